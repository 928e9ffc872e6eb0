#include "data/store/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "tensor/memory/read_only.h"

namespace levin::data::store {
namespace {

[[noreturn]] void fail_system(const std::string& where, const char* what) {
  fail<FileError>(where, ": ", what, " failed: ", std::generic_category().message(errno));
}

}  // namespace

Descriptor::Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}
Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Mapping::Mapping(Descriptor descriptor, std::string where)
    : descriptor_(std::move(descriptor)), where_(std::move(where)) {
  struct stat status {};
  if (::fstat(descriptor_.get(), &status) != 0) fail_system(where_, "opening the store");
  const auto size = static_cast<std::size_t>(status.st_size);
  if (!S_ISREG(status.st_mode) || size < kHeader) fail<FormatError>(where_, ": no store of Levin, it is too short");
  void* const at = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor_.get(), 0);
  if (at == MAP_FAILED) fail_system(where_, "mapping");
  bytes_ = {static_cast<const std::byte*>(at), size};
  try {
    sections_ = parse(bytes_, where_);
    levin::detail::mark_read_only(bytes_.data(), bytes_.size());
  } catch (...) {
    ::munmap(at, size);
    throw;
  }
}
Mapping::~Mapping() {
  levin::detail::release_read_only(bytes_.data());
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Tensor Mapping::view(std::size_t i) const {
  const Section& s = sections_[i];
  if (s.shape.numel() == 0) return empty(s.shape, Device::cpu(), s.dtype);
  auto owner = std::const_pointer_cast<Mapping>(shared_from_this());
  return from_blob(const_cast<std::byte*>(bytes_.data()) + s.offset, s.shape, s.dtype, std::move(owner), where_);
}
void Mapping::verify() const {
  for (std::size_t i = 0; i < sections_.size(); ++i) verify(i);
}
void Mapping::verify(std::size_t i) const { check_hash(bytes_, sections_[i], where_); }

void allocate(int fd, std::uint64_t bytes, const std::string& where) {
  int error = 0;
  do { error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes)); } while (error == EINTR);
  if (error == ENOSPC || error == ENOMEM || error == EFBIG)
    fail<OutOfMemoryError>(where, ": there is no room for ", bytes, " bytes: ", std::generic_category().message(error));
  if (error != 0) fail<FileError>(where, ": taking ", bytes, " bytes failed: ", std::generic_category().message(error));
}

void fill(int fd, const Layout& plan, const NamedTensors& tensors, const std::string& where) {
  void* const at = ::mmap(nullptr, plan.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) fail_system(where, "mapping");
  auto* const to = static_cast<std::byte*>(at);
  write(plan, tensors, to);
  set_ready(to);
  ::munmap(at, plan.bytes);
}

}  // namespace levin::data::store
