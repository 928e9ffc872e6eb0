// Note [Offload] is in offload.h.
#include "train/strategy/offload.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "levin/error.h"

namespace levin::train {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }
std::int64_t aligned(std::int64_t bytes, std::int64_t to) { return (bytes + to - 1) / to * to; }

// A file without a name.
int open_unnamed(const std::string& folder) {
  int fd = -1;
  do { fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600); } while (fd < 0 && errno == EINTR);
  // File systems without O_TMPFILE, and kernels that take it for O_DIRECTORY.
  if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
    std::string name = folder + "/levin-offload-XXXXXX";
    fd = ::mkostemp(name.data(), O_CLOEXEC);
    if (fd >= 0 && ::unlink(name.c_str()) != 0) {
      const int error = errno;
      ::close(fd);
      errno = error;
      fd = -1;
    }
  }
  if (fd < 0)
    fail<FileError>("offload: can not make a file in nvme_path ", folder, ": ", reason(errno),
                    "; name a folder of this machine that can be written to");
  return fd;
}

}  // namespace

struct OffloadFile::Disk {
  struct Segment {
    std::byte* at;
    std::int64_t first, bytes;  // in the file
  };
  struct Region {
    std::byte* at;
    std::int64_t bytes;
    bool fresh;  // zeros of the file system
  };

  Disk(int descriptor, std::string of) : fd(descriptor), folder(std::move(of)) {}
  ~Disk() {
    for (const Segment& s : segments) ::munmap(s.at, static_cast<std::size_t>(s.bytes));
    ::close(fd);
  }
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  void reserve(std::int64_t bytes) {
    const std::lock_guard lock(mutex);
    // In one piece, so that the tensors fit in any order.
    const auto fits = [&](const Region& r) { return r.fresh && r.bytes >= bytes; };
    if (std::none_of(free.begin(), free.end(), fits)) grow(bytes);
  }

  void grow(std::int64_t bytes) {
    bytes = aligned(bytes, page);
    int error = 0;
    do { error = ::posix_fallocate(fd, static_cast<off_t>(size), static_cast<off_t>(bytes)); } while (error == EINTR);
    if (error == ENOSPC || error == EFBIG || error == ENOMEM || error == EDQUOT)
      fail<OutOfMemoryError>("offload: nvme_path ", folder, " has no room for ", size + bytes,
                             " bytes of this rank: ", reason(error), "; use more ranks, or another folder");
    if (error != 0)
      fail<FileError>("offload: taking ", size + bytes, " bytes in nvme_path ", folder, " failed: ", reason(error));
    void* const at = ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                            static_cast<off_t>(size));
    if (at == MAP_FAILED)
      fail<FileError>("offload: mapping ", bytes, " bytes of a file in nvme_path ", folder, " failed: ", reason(errno));
    auto* const memory = static_cast<std::byte*>(at);
    segments.push_back({memory, size, bytes});
    free.push_back({memory, bytes, true});
    size += bytes;
  }

  // The first region that is large enough.
  Region take(std::int64_t bytes) {
    const std::lock_guard lock(mutex);
    const auto find = [&] {
      return std::find_if(free.begin(), free.end(), [&](const Region& r) { return r.bytes >= bytes; });
    };
    auto at = find();
    if (at == free.end()) {
      grow(bytes);
      at = find();
    }
    const Region taken{at->at, bytes, at->fresh};
    at->at += bytes;
    at->bytes -= bytes;
    if (at->bytes == 0) free.erase(at);
    return taken;
  }
  // Neighbours become one region again, so that tensors of another order fit.
  void give_back(std::byte* at, std::int64_t bytes) noexcept {
    const std::lock_guard lock(mutex);
    Region all{at, bytes, false};
    for (auto r = free.begin(); r != free.end();) {
      const bool before = r->at + r->bytes == all.at, after = all.at + all.bytes == r->at;
      if (r->fresh || (!before && !after)) {
        ++r;
        continue;
      }
      if (before) all.at = r->at;
      all.bytes += r->bytes;
      r = free.erase(r);
    }
    try {
      free.push_back(all);
    } catch (const std::bad_alloc&) {
      // The region stays unused until the file ends.
    }
  }

  void rest(std::span<const Part> parts) noexcept {
    std::int64_t sum = 0;
    for (const Part& p : parts) {
      const auto* const begin = static_cast<const std::byte*>(p.begin);
      for (const Segment& s : segments) {
        const std::byte *const first = std::max<const std::byte*>(begin, s.at), *const end = std::min<const std::byte*>(
                                                                                    begin + p.bytes, s.at + s.bytes);
        if (first >= end) continue;
        sum += end - first;
        // Whole pages: a neighbour that shares one reads it again.
        const std::int64_t from = (first - s.at) / page * page, to = aligned(end - s.at, page);
        ::madvise(s.at + from, static_cast<std::size_t>(to - from), MADV_DONTNEED);
        ::sync_file_range(fd, s.first + from, to - from, SYNC_FILE_RANGE_WRITE);
      }
    }
    peak_part = std::max(peak_part, sum);
  }

  const int fd;
  const std::string folder;
  const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  std::mutex mutex;  // of `free`: tensors end on any thread
  std::vector<Segment> segments;
  std::vector<Region> free;
  std::int64_t size = 0, peak_part = 0;
};

std::shared_ptr<OffloadFile> OffloadFile::make(const std::string& folder, std::int64_t elements_at_once) {
  if (elements_at_once < 1)
    fail<ConfigError>("offload: sub_group_size is ", elements_at_once, ", expected 1 element or more");
  if (folder.empty()) fail<ConfigError>("offload: nvme_path is empty, expected a folder");
  const int fd = open_unnamed(folder);
  std::shared_ptr<Disk> disk;
  try {
    disk = std::make_shared<Disk>(fd, folder);
  } catch (...) {
    ::close(fd);
    throw;
  }
  return std::shared_ptr<OffloadFile>(new OffloadFile(std::move(disk), elements_at_once));
}
OffloadFile::OffloadFile(std::shared_ptr<Disk> disk, std::int64_t elements_at_once)
    : disk_(std::move(disk)), elements_at_once_(elements_at_once) {}
OffloadFile::~OffloadFile() = default;

void OffloadFile::reserve(std::int64_t bytes) {
  if (bytes > 0) disk_->reserve(bytes);
}

Tensor OffloadFile::allocate(const Shape& shape, DType dtype) {
  const auto bytes = shape.numel() * static_cast<std::int64_t>(itemsize(dtype));
  if (bytes == 0) return empty(shape, Device::cpu(), dtype);
  const std::int64_t size = aligned(bytes, kAlignment);
  const Disk::Region r = disk_->take(size);
  std::shared_ptr<void> owner(
      r.at, [disk = disk_, size](void* at) noexcept { disk->give_back(static_cast<std::byte*>(at), size); });
  if (!r.fresh) {
    std::memset(r.at, 0, static_cast<std::size_t>(bytes));
    const Part part{r.at, static_cast<std::size_t>(bytes)};
    disk_->rest({&part, 1});
  }
  return from_blob(r.at, shape, dtype, std::move(owner), "offload file in " + disk_->folder);
}

void OffloadFile::rest(std::span<const Part> parts) noexcept { disk_->rest(parts); }
void OffloadFile::rest(const Tensor& t) noexcept {
  const Part part{t.get().storage->data + t.offset() * static_cast<std::int64_t>(itemsize(t.dtype())),
                  static_cast<std::size_t>(t.numel()) * itemsize(t.dtype())};
  disk_->rest({&part, 1});
}

OffloadFile::Report OffloadFile::report() const { return {.bytes = disk_->size, .peak_part = disk_->peak_part}; }

}  // namespace levin::train
