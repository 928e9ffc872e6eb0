// Note [Folders that appear whole] is in folder.h.
#include "tensor/files/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "levin/error.h"
#include "tensor/files/file.h"

namespace levin::detail {
namespace {

[[noreturn]] void fail_for(const std::string& path, const char* what, int error) {
  fail<FileError>(path, ": ", what, " failed: ", std::generic_category().message(error));
}

std::string parent_of(const std::string& path) {
  const std::size_t at = path.find_last_of('/');
  return at == std::string::npos ? "." : at == 0 ? "/" : path.substr(0, at);
}

// std::filesystem's iterator ends the process where it has no memory.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  const auto close = [](DIR* d) { ::closedir(d); };
  const std::unique_ptr<DIR, decltype(close)> all(::opendir(folder.c_str()), close);
  while (const dirent* const entry = all ? ::readdir(all.get()) : nullptr) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  return names;
}

void sync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  int failed = 0;
  while (::fsync(fd) != 0) {
    if (errno == EINTR) continue;
    if (errno != EINVAL && errno != EROFS) failed = errno;  // else the file system has no fsync
    break;
  }
  ::close(fd);
  if (failed != 0) fail_for(path, "fsync", failed);
}

void check_replaceable(const std::string& path) {
  struct stat there {};
  if (::lstat(path.c_str(), &there) != 0 || S_ISLNK(there.st_mode)) return;
  if (!S_ISDIR(there.st_mode))
    fail<FileError>(path, ": is a file, and a folder of a sharded checkpoint is to be written there; remove it, or ",
                    "give another name");
  for (const std::string& name : names_in(path)) {
    if (!is_of_folder(name))
      fail<FileError>(path, ": is a folder with ", name,
                      ", which is no part of a checkpoint and would be removed; give another name");
  }
}

}  // namespace

bool is_of_folder(std::string_view name) {
  if (const std::size_t at = name.find(".tmp-"); at != std::string_view::npos) name = name.substr(0, at);
  return name == kIndex || (name.starts_with("rank-") && name.ends_with(".safetensors"));
}

void remove_folder(const std::string& path) noexcept {
  try {
    ::unlink((path + "/" + kIndex).c_str());
    for (const std::string& name : names_in(path)) {
      if (is_of_folder(name)) ::unlink((path + "/" + name).c_str());
    }
    ::rmdir(path.c_str());
  } catch (...) {}  // no memory for the names
}

NewFolder::NewFolder(std::string path) : path_(std::move(path)) {
  check_replaceable(path_);
  std::string name = temporary_name(path_);
  while (::mkdir(name.c_str(), 0777) != 0) {
    if (errno != EEXIST) fail_for(path_, "making a temporary folder beside it", errno);
    name = temporary_name(path_);
  }
  temporary_ = std::move(name);
  lock_ = ::open(temporary_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock_ >= 0) (void)::flock(lock_, LOCK_EX | LOCK_NB);  // where locks are not supported no process gets one
}

NewFolder::~NewFolder() {
  if (!temporary_.empty()) remove_folder(temporary_);
  if (lock_ >= 0) ::close(lock_);
}

void NewFolder::commit() {
  check_replaceable(path_);
  sync_folder(temporary_);
  struct stat there {};
  const char *const from = temporary_.c_str(), *const to = path_.c_str();
  if (::lstat(to, &there) != 0) {
    if (::rename(from, to) != 0) fail_for(path_, "renaming", errno);
  } else if (::renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0) {
    if (S_ISLNK(there.st_mode))
      ::unlink(from);
    else
      remove_folder(temporary_);
  } else {  // a file system without the exchange
    const std::string old = temporary_name(path_);
    if (::rename(to, old.c_str()) != 0) fail_for(path_, "renaming", errno);
    if (::rename(from, to) != 0) {
      const int error = errno;
      (void)::rename(old.c_str(), to);
      fail_for(path_, "renaming", error);
    }
    if (S_ISLNK(there.st_mode))
      ::unlink(old.c_str());
    else
      remove_folder(old);
  }
  temporary_.clear();
  sync_folder(parent_of(path_));
}

}  // namespace levin::detail
