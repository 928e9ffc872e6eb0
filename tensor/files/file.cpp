#include "tensor/files/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <charconv>
#include <climits>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <system_error>
#include <vector>

#include "levin/serialize.h"
#include "tensor/files/folder.h"

namespace levin {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian and copied as they are");

constexpr std::size_t kChunk = std::size_t{1} << 16;

std::string reason(int error) { return std::generic_category().message(error); }

// A descriptor that closes itself. close() reports errors that the destructor must swallow.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool close() { return ::close(std::exchange(fd_, -1)) == 0 || errno == EINTR; }

 private:
  int fd_;
};

int open_retrying(const char* path, int flags, mode_t mode = 0) {
  int fd = -1;
  do { fd = ::open(path, flags | O_CLOEXEC, mode); } while (fd < 0 && errno == EINTR);
  return fd;
}

using detail::Parts;

std::size_t total(const Parts& parts) { return parts.bytes; }
Parts parts_of(std::span<const std::span<const std::byte>> all) {
  std::size_t bytes = 0;
  for (const auto& part : all) bytes += part.size();
  return {.bytes = bytes, .count = all.size(), .part = [all](std::size_t i) { return all[i]; }};
}

std::string folder_of(const std::string& path) { return path.substr(0, path.find_last_of('/') + 1); }

[[noreturn]] void fail_writing(const std::string& path, const char* what, int error, std::size_t bytes) {
  const std::string folder = folder_of(path);
  struct statvfs disk {};
  if ((error == ENOSPC || error == EDQUOT) && ::statvfs(folder.empty() ? "." : folder.c_str(), &disk) == 0) {
    fail<FileError>(path, ": ", what, " failed: ", reason(error), "; ", bytes, " bytes are needed, ",
                    static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize, " are free; make room and try again");
  }
  fail<FileError>(path, ": ", what, " failed: ", reason(error));
}

void write_all(int fd, const std::string& path, const Parts& parts) {
  for (std::size_t i = 0; i < parts.count; ++i) {
    const std::span<const std::byte> part = parts.part(i);
    for (std::size_t done = 0; done < part.size();) {
      const ssize_t n = ::write(fd, part.data() + done, std::min(part.size() - done, std::size_t{1} << 30));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail_writing(path, "writing", n < 0 ? errno : ENOSPC, total(parts));
      done += static_cast<std::size_t>(n);
    }
  }
}

void sync(int fd, const std::string& path, std::size_t bytes) {
  while (::fsync(fd) != 0) {
    if (errno == EINTR) continue;
    if (errno == EINVAL || errno == EROFS) return;  // the file system has no fsync
    fail_writing(path, "fsync", errno, bytes);
  }
}

// Restores owner and mode as far as the file system and our rights allow: content matters more than either.
void keep_attributes(int fd, const struct stat& was) {
  struct stat now {};
  if (::fstat(fd, &now) != 0) return;
  mode_t mode = was.st_mode & 07777u;
  if ((now.st_uid != was.st_uid || now.st_gid != was.st_gid) && ::fchown(fd, was.st_uid, was.st_gid) != 0) {
    mode &= 0777u;  // setuid for another user would grant rights
    // The group's bits were set for another group.
    if (now.st_gid != was.st_gid && ::fchown(fd, static_cast<uid_t>(-1), was.st_gid) != 0) mode &= ~mode_t{070};
  }
  (void)::fchmod(fd, mode);
}

// Reports what a failing disk or file system did to the bytes before the old file is replaced.
void compare(const std::string& temporary, const Parts& parts) {
  detail::FileSource written(temporary);
  if (written.size() != total(parts)) {
    fail<FileError>(temporary, ": ", written.size(), " bytes were found after writing ", total(parts));
  }
  std::vector<std::byte> chunk(kChunk);
  std::uint64_t offset = 0;
  for (std::size_t i = 0; i < parts.count; ++i) {
    const std::span<const std::byte> part = parts.part(i);
    for (std::size_t done = 0; done < part.size(); done += chunk.size()) {
      const std::size_t n = std::min(chunk.size(), part.size() - done);
      written.read(offset, chunk.data(), n);
      if (std::memcmp(chunk.data(), part.data() + done, n) != 0) {
        fail<FileError>(temporary, ": the bytes read back at ", offset, " are not those written; is the disk failing?");
      }
      offset += n;
    }
  }
}

// Removes the temporary file unless a rename has made it the final file.
struct Temporary {
  std::string path;
  bool kept = false;
  explicit Temporary(std::string p) : path(std::move(p)) {}
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() {
    if (!kept) ::unlink(path.c_str());
  }
};

// Note [Temporary files of the dead]
//
// A writer that is killed leaves `NAME.tmp-<pid>-<n>`. Such a file is stale when no process has that number and no
// process holds the lock that every writer keeps on its file until the rename. The number alone does not suffice:
// another container or machine that shares the folder numbers its own processes, and a restarted container often has
// the number of the one that died. So for a file with our own number the lock decides; a file with the number of
// another live process stays.
constexpr std::string_view kMark = ".tmp-";

// The process number in a temporary file's name when the name before it ends in `ending`.
std::optional<pid_t> writer_of(std::string_view name, std::string_view ending) {
  const std::size_t at = name.rfind(kMark);
  if (at == std::string_view::npos || !name.substr(0, at).ends_with(ending)) return {};
  const std::string_view numbers = name.substr(at + kMark.size());
  pid_t pid = 0;
  unsigned count = 0;
  const char* const end = numbers.data() + numbers.size();
  const auto first = std::from_chars(numbers.data(), end, pid);
  if (first.ec != std::errc() || pid <= 0 || first.ptr == end || *first.ptr != '-') return {};
  const auto second = std::from_chars(first.ptr + 1, end, count);
  if (second.ec != std::errc() || second.ptr != end) return {};
  return pid;
}

// Returns true when the file or folder was removed because its writer is dead. A folder with its index is whole, and
// stays.
bool remove_if_stale(const std::string& path, pid_t writer, detail::Stale of = detail::Stale::files) {
  const bool dead = ::kill(writer, 0) != 0 && errno == ESRCH;
  if (writer != ::getpid() && !dead) return false;
  struct stat link {};
  const bool known = ::lstat(path.c_str(), &link) == 0;
  if (dead && known && S_ISLNK(link.st_mode)) return ::unlink(path.c_str()) == 0;
  const bool folder = of == detail::Stale::folders && known && S_ISDIR(link.st_mode);
  const int how = folder ? O_RDONLY | O_DIRECTORY | O_NOFOLLOW : O_WRONLY | O_NOFOLLOW | O_NONBLOCK;
  const Descriptor fd(open_retrying(path.c_str(), how));
  struct stat locked {};
  struct stat named {};
  if (fd.get() < 0 || ::fstat(fd.get(), &locked) != 0 || !(folder || S_ISREG(locked.st_mode))) return false;
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return false;
  if (folder) {
    if (::access((path + "/" + detail::kIndex).c_str(), F_OK) == 0) return false;
    detail::remove_folder(path);
    return ::lstat(path.c_str(), &named) != 0;
  }
  // Keeps a name that another file has taken since the open.
  if (::stat(path.c_str(), &named) != 0 || named.st_ino != locked.st_ino || named.st_dev != locked.st_dev) return false;
  return ::unlink(path.c_str()) == 0;
}

// The target of a chain of symbolic links, whether or not a file exists there.
std::string followed(std::string path) {
  constexpr int kMostLinks = 40;  // Linux's limit
  for (int i = 0; i < kMostLinks; ++i) {
    char target[PATH_MAX];
    const ssize_t n = ::readlink(path.c_str(), target, sizeof target);
    if (n <= 0) return path;  // not a link, or an error that later calls report
    if (n == sizeof target) fail_writing(path, "following the link", ENAMETOOLONG, 0);
    const std::string to(target, static_cast<std::size_t>(n));
    path = to.front() == '/' ? to : folder_of(path) + to;
  }
  fail_writing(path, "following the link", ELOOP, 0);
}

}  // namespace

std::string detail::temporary_name(const std::string& path) {
  static std::atomic<unsigned> counter{0};
  return path + std::string(kMark) + text(::getpid()) + "-" + text(counter++);
}

void write_file_atomically(const std::string& path, std::span<const std::span<const std::byte>> parts) {
  detail::write_parts_atomically(path, parts_of(parts));
}

void detail::write_parts_atomically(const std::string& given, const Parts& parts) {
  struct stat existing {};
  const bool exists = ::stat(given.c_str(), &existing) == 0;
  if (exists && !S_ISREG(existing.st_mode)) {
    const std::string& path = given;
    Descriptor fd(open_retrying(path.c_str(), O_WRONLY));
    if (fd.get() < 0) fail_writing(path, "opening", errno, total(parts));
    write_all(fd.get(), path, parts);
    if (!fd.close()) fail_writing(path, "closing", errno, total(parts));
    return;
  }
  const std::string path = followed(given);
  // At no time has the new file more readers than the old one.
  const mode_t mode = exists ? 0600 : 0666;
  std::string name = detail::temporary_name(path);
  int opened = -1;
  while (true) {
    opened = open_retrying(name.c_str(), O_WRONLY | O_CREAT | O_EXCL, mode);
    if (opened < 0 && errno == EEXIST) {
      if (!remove_if_stale(name, ::getpid())) name = detail::temporary_name(path);
      continue;
    }
    if (opened < 0) fail_writing(path, "creating a temporary file beside it", errno, total(parts));
    // Where locks are not supported no process gets one. Before we held the lock the file may have looked stale.
    (void)::flock(opened, LOCK_EX | LOCK_NB);
    struct stat created {};
    if (::fstat(opened, &created) != 0 || created.st_nlink > 0) break;
    ::close(opened);
  }
  Descriptor fd(opened);
  const Descriptor lock(::fcntl(opened, F_DUPFD_CLOEXEC, 0));  // keeps the file locked after fd is closed
  Temporary temporary(name);
  write_all(fd.get(), path, parts);
  sync(fd.get(), path, total(parts));
  if (!fd.close()) fail_writing(path, "closing", errno, total(parts));
  compare(name, parts);
  if (exists) {  // last, since the mode may forbid us to read the file
    keep_attributes(lock.get(), existing);
    sync(lock.get(), path, total(parts));
  }
  if (::rename(name.c_str(), path.c_str()) != 0) fail_writing(path, "renaming", errno, total(parts));
  temporary.kept = true;
  // The rename is durable only once the directory is on disk.
  const std::string folder = folder_of(path);
  const Descriptor directory(open_retrying(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY));
  if (directory.get() >= 0) sync(directory.get(), path, total(parts));
}

void write_file_atomically(const std::string& path, std::string_view content) {
  const std::span<const std::byte> part = std::as_bytes(std::span(content.data(), content.size()));
  write_file_atomically(path, std::span(&part, 1));
}

std::string read_file(const std::string& path, std::size_t max_bytes) {
  detail::FileSource source(path);
  if (source.size() > max_bytes) {
    fail<FormatError>(path, ": the file has ", source.size(), " bytes, expected at most ", max_bytes);
  }
  std::string content(static_cast<std::size_t>(source.size()), '\0');
  source.read(0, content.data(), content.size());
  return content;
}

namespace detail {

void remove_stale_temporaries(const std::string& folder, std::string_view ending, Stale of) noexcept {
  try {
    // std::filesystem's iterator ends the process where it has no memory.
    const auto close = [](DIR* d) { ::closedir(d); };
    const std::unique_ptr<DIR, decltype(close)> all(::opendir(folder.c_str()), close);
    while (const dirent* const entry = all ? ::readdir(all.get()) : nullptr) {
      if (const auto writer = writer_of(entry->d_name, ending))
        (void)remove_if_stale(folder + "/" + entry->d_name, *writer, of);
    }
  } catch (...) {}  // a failed sweep does not prevent the save
}

void append_to_file(const std::string& path, std::string_view content) {
  const std::span<const std::byte> part = std::as_bytes(std::span(content.data(), content.size()));
  const std::span<const std::span<const std::byte>> all(&part, 1);
  Descriptor fd(open_retrying(path.c_str(), O_WRONLY | O_APPEND | O_CREAT, 0666));
  struct stat before {};
  if (fd.get() < 0 || ::fstat(fd.get(), &before) != 0) fail_writing(path, "opening", errno, content.size());
  try {
    write_all(fd.get(), path, parts_of(all));
    // Some file systems (NFS) report a full disk only at close.
    if (!fd.close()) fail_writing(path, "closing", errno, content.size());
  } catch (const FileError&) {
    if (S_ISREG(before.st_mode)) (void)!::truncate(path.c_str(), before.st_size);
    throw;
  }
}

FileSource::FileSource(const std::string& path) : Source(path) {
  // O_NONBLOCK: the open of a pipe without a writer would wait for ever, before the check can refuse it.
  Descriptor fd(open_retrying(path.c_str(), O_RDONLY | O_NONBLOCK));
  if (fd.get() < 0) fail<FileError>(path, ": can not be opened: ", reason(errno));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) fail<FileError>(path, ": can not be examined: ", reason(errno));
  if (S_ISDIR(info.st_mode)) fail<FileError>(path, ": is a folder, expected a file");
  if (!S_ISREG(info.st_mode)) fail<FileError>(path, ": is not a regular file");
  size_ = static_cast<std::uint64_t>(info.st_size);
  fd_ = ::dup(fd.get());
  if (fd_ < 0) fail<FileError>(path, ": can not be opened: ", reason(errno));
}

FileSource::~FileSource() {
  if (fd_ >= 0) ::close(fd_);
}

void FileSource::read(std::uint64_t offset, void* out, std::size_t n) {
  auto* to = static_cast<std::byte*>(out);
  while (n > 0) {
    const ssize_t got = ::pread(fd_, to, std::min(n, std::size_t{1} << 30), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail<FileError>(name(), ": reading at byte ", offset, " failed: ", reason(errno));
    if (got == 0) fail<FileError>(name(), ": ended at byte ", offset, " while it was read, it had ", size());
    to += got;
    offset += static_cast<std::uint64_t>(got);
    n -= static_cast<std::size_t>(got);
  }
}

MemorySource::MemorySource(std::string name, std::span<const std::byte> bytes)
    : Source(std::move(name)), bytes_(bytes) {
  size_ = bytes.size();
}

void MemorySource::read(std::uint64_t offset, void* out, std::size_t n) {
  if (offset > size_ || n > size_ - offset) {
    fail<InternalError>(name(), ": bytes ", offset, " to ", offset + n, " are asked for, it has ", size_);
  }
  if (n) std::memcpy(out, bytes_.data() + offset, n);
}

Shape checked_shape(const std::string& where, std::span<const std::int64_t> dims) {
  try {
    return Shape(dims);
  } catch (const ShapeError& e) { fail<FormatError>(where, " ", std::string_view(e.what())); }
}

namespace {

void swap_bytes(std::byte* data, std::size_t count, std::size_t width) {
  for (std::size_t i = 0; i < count; ++i) std::reverse(data + i * width, data + (i + 1) * width);
}

template <class From, class To>
void widen(const std::byte* from, To* to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + i * sizeof(From), sizeof(From));
    to[i] = static_cast<To>(value);
  }
}

}  // namespace

Tensor read_tensor(Source& source, const std::string& where, std::uint64_t offset, const Shape& shape, FileType type,
                   ByteOrder order) {
  Tensor x = empty(shape, Device::cpu(), type.dtype);
  std::byte* to = x.get().storage->data;
  const auto count = static_cast<std::size_t>(shape.numel());
  const bool swap = order == ByteOrder::big && type.width > 1;
  if (!type.widened()) {
    source.read(offset, to, count * type.width);
    if (swap) swap_bytes(to, count, type.width);
    if (type.dtype == DType::b8) {
      const auto* bad = std::find_if(to, to + count, [](std::byte b) { return b > std::byte{1}; });
      if (bad != to + count) {
        fail<FormatError>(where, " element ", bad - to, " of a bool array is byte ", static_cast<unsigned>(*bad),
                          ", expected 0 or 1");
      }
    }
    return x;
  }
  std::vector<std::byte> chunk(std::min(count, kChunk) * type.width);
  for (std::size_t done = 0; done < count; done += kChunk) {
    const std::size_t n = std::min(kChunk, count - done);
    source.read(offset + done * type.width, chunk.data(), n * type.width);
    if (swap) swap_bytes(chunk.data(), n, type.width);
    if (type.dtype == DType::i64) {
      widen<std::uint32_t>(chunk.data(), reinterpret_cast<std::int64_t*>(to) + done, n);
    } else {
      widen<std::uint16_t>(chunk.data(), reinterpret_cast<std::int32_t*>(to) + done, n);
    }
  }
  return x;
}

Tensor dense_on_host(const std::string& what, const Tensor& x) {
  if (x.device().is_meta()) fail<UnsupportedError>(what, " is a meta tensor and has no values");
  const Tensor host = x.device().is_cpu() ? x.detach() : x.detach().to(Device::cpu());
  if (host.is_contiguous()) return host;
  Tensor dense = empty(host.shape(), host.device(), host.dtype());
  const std::size_t width = itemsize(x.dtype());
  const std::byte* from = host.get().storage->data;
  std::byte* to = dense.get().storage->data;
  std::array<std::int64_t, kMaxRank> at{};
  std::int64_t index = host.offset();
  for (std::int64_t i = 0; i < host.numel(); ++i) {
    std::memcpy(to, from + static_cast<std::size_t>(index) * width, width);
    to += width;
    for (int d = host.rank() - 1; d >= 0; --d) {  // the next element in row-major order
      index += host.strides()[d];
      if (++at[static_cast<std::size_t>(d)] < host.shape()[d]) break;
      index -= host.strides()[d] * host.shape()[d];
      at[static_cast<std::size_t>(d)] = 0;
    }
  }
  return dense;
}

std::span<const std::byte> bytes_of(const Tensor& dense) {
  const std::size_t width = itemsize(dense.dtype());
  const std::size_t bytes = static_cast<std::size_t>(dense.numel()) * width;
  if (bytes == 0) return {};
  return {dense.get().storage->data + static_cast<std::size_t>(dense.offset()) * width, bytes};
}

}  // namespace detail
}  // namespace levin
