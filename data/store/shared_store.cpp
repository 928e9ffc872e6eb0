#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "data/store/mapping.h"
#include "levin/data/store.h"
#include "tensor/device/interrupt.h"
#include "tensor/files/file.h"

// Note [Named stores]
// The maker of a named store holds the lock (flock) of its shared-memory object until the store is complete. The system
// releases the lock of a process that dies, so whoever gets the lock of an incomplete store makes it, in place: no
// process number is compared, and nothing that another process may have opened is removed.
namespace levin::data {
namespace {

using namespace store;
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kLongest = 200;

[[noreturn]] void fail_system(const std::string& where, const char* what) {
  fail<FileError>(where, ": ", what, " failed: ", std::generic_category().message(errno));
}

NamedTensors dense(const Tensors& tensors) {
  NamedTensors named;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) fail<StateError>("SharedStore: tensor ", i, " is undefined");
    const std::string name = text(static_cast<std::int64_t>(i));
    named.emplace_back(name, levin::detail::dense_on_host("SharedStore: tensor " + name, tensors[i]));
  }
  return named;
}

std::string object_of(const std::string& name) {
  if (name.empty() || name.size() > kLongest || name.find('/') != std::string::npos ||
      name.find('\0') != std::string::npos)
    fail<ConfigError>("SharedStore: the name \"", name, "\" has ", name.size(), " bytes, expected 1 to ", kLongest,
                      " and no '/'");
  return "/levin-" + name;
}

// Whether the name stands for this object.
bool is_named(const std::string& object, int fd) {
  struct stat named {
  }, own{};
  const Descriptor other(::shm_open(object.c_str(), O_RDONLY | O_CLOEXEC, 0));
  return other.get() >= 0 && ::fstat(other.get(), &named) == 0 && ::fstat(fd, &own) == 0 && named.st_ino == own.st_ino;
}
bool is_complete(int fd) {
  std::uint32_t ready = 0;
  return ::pread(fd, &ready, sizeof ready, kReadyAt) == sizeof ready && ready == 1;
}

// With the lock held: counts this opening, and removes the name at the last. Throws FileError.
void count_opening(int fd, const std::string& object, int processes) {
  if (processes <= 0) return;
  std::uint32_t opened = 0;
  if (::pread(fd, &opened, sizeof opened, kOpenedAt) != sizeof opened) fail_system(object, "reading");
  ++opened;
  if (::pwrite(fd, &opened, sizeof opened, kOpenedAt) != sizeof opened) fail_system(object, "writing");
  if (opened >= static_cast<std::uint32_t>(processes)) ::shm_unlink(object.c_str());
}

}  // namespace

struct SharedStore::Impl {
  std::shared_ptr<const Mapping> mapping;
};

SharedStore::SharedStore(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

SharedStore SharedStore::create(const Tensors& tensors) {
  const std::string where = "SharedStore";
  const NamedTensors named = dense(tensors);
  const Layout layout = plan(named, kAlignment);
  Descriptor memory(::memfd_create("levin-store", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memory.get() < 0) fail_system(where, "memfd_create");
  allocate(memory.get(), layout.bytes, where);
  fill(memory.get(), layout, named, where);
  // From here on no process can write, cut or extend the memory.
  if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0)
    fail_system(where, "sealing");
  return SharedStore(std::make_shared<Impl>(Impl{std::make_shared<Mapping>(std::move(memory), where)}));
}

SharedStore SharedStore::open_or_create(const std::string& name, const Function<Tensors()>& make,
                                        SharedStoreOptions options) {
  const std::string object = object_of(name), where = "SharedStore \"" + name + "\"";
  if (!make) fail<ConfigError>(where, ": make is empty");
  if (!(options.timeout >= 0))
    fail<ConfigError>(where, ": timeout is ", options.timeout, ", expected 0 or more seconds");
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (;;) {
    Descriptor fd(::shm_open(object.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (fd.get() < 0) fail_system(where, "shm_open");
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) {
      if (!is_named(object, fd.get())) continue;  // removed meanwhile
      if (!is_complete(fd.get())) {
        if (::ftruncate(fd.get(), 0) != 0) fail_system(where, "emptying");
        const NamedTensors named = dense(make());
        const Layout layout = plan(named, kAlignment);
        allocate(fd.get(), layout.bytes, where);
        fill(fd.get(), layout, named, where);
      }
      // The mapping's descriptor cannot write.
      auto mapping = std::make_shared<Mapping>(
          Descriptor(::open(("/proc/self/fd/" + text(std::int64_t{fd.get()})).c_str(), O_RDONLY | O_CLOEXEC)), where);
      count_opening(fd.get(), object, options.processes);
      return SharedStore(std::make_shared<Impl>(Impl{std::move(mapping)}));  // closing `fd` unlocks
    }
    if (errno != EWOULDBLOCK && errno != EINTR) fail_system(where, "locking");
    if (std::chrono::duration<double>(Clock::now() - start).count() >= options.timeout)
      fail<DataError>(where, ": another process did not complete the store within ", options.timeout,
                      " seconds; raise timeout, or look at what that process waits for");
    if (const auto asked = levin::detail::stop_asked; asked && asked())
      fail<InterruptedError>(where, ": stopped while another process made the store");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

SharedStore SharedStore::attach(int handle) {
  return SharedStore(std::make_shared<Impl>(
      Impl{std::make_shared<Mapping>(Descriptor(handle), "SharedStore of handle " + text(std::int64_t{handle}))}));
}

bool SharedStore::remove(const std::string& name) {
  const std::string object = object_of(name);
  if (::shm_unlink(object.c_str()) == 0) return true;
  if (errno != ENOENT) fail_system("SharedStore \"" + name + "\"", "shm_unlink");
  return false;
}

std::int64_t SharedStore::size() const { return static_cast<std::int64_t>(impl_->mapping->sections().size()); }
Tensor SharedStore::view(std::int64_t i) const {
  if (i < 0 || i >= size()) fail<IndexError>("SharedStore: tensor is ", i, ", expected 0 to ", size() - 1);
  return impl_->mapping->view(static_cast<std::size_t>(i));
}
Tensors SharedStore::views() const {
  Tensors all;
  for (std::int64_t i = 0; i < size(); ++i) all.push_back(view(i));
  return all;
}
int SharedStore::handle() const {
  const int fd = impl_->mapping->descriptor();
  if (::fcntl(fd, F_SETFD, 0) != 0) fail_system("SharedStore", "fcntl");
  return fd;
}
std::int64_t SharedStore::bytes() const { return static_cast<std::int64_t>(impl_->mapping->bytes().size()); }
void SharedStore::verify() const { impl_->mapping->verify(); }

}  // namespace levin::data
