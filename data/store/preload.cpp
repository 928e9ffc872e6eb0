#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "data/store/mapping.h"
#include "data/store/preload.h"
#include "levin/data/store.h"
#include "levin/warning.h"
#include "tensor/files/file.h"

// Note [Files in memory]
// A source lies in a folder of the target that is named by the hash of the source's path. A process that looks or
// copies holds the lock (flock) of the target's file "lock". A process without `keep` holds a shared lock on a file
// beside its folder; the one that can lock it alone at its exit is the last, and removes the folder.
namespace levin::data {
namespace {

namespace fs = std::filesystem;
using store::Descriptor;

struct File {
  fs::path from, to;
  std::uintmax_t bytes = 0;
};

[[noreturn]] void fail_system(const fs::path& where, const char* what, const std::error_code& error) {
  fail<FileError>(where.string(), ": ", what, " failed: ", error.message());
}
Descriptor open_lock(const fs::path& path) {
  Descriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (fd.get() < 0) fail_system(path, "opening the lock", {errno, std::generic_category()});
  return fd;
}
void lock(const Descriptor& fd, int kind, const fs::path& path) {
  while (::flock(fd.get(), kind) != 0) {
    if (errno != EINTR) fail_system(path, "locking", {errno, std::generic_category()});
  }
}

// The regular files of a source.
void list_files(const fs::path& from, const fs::path& to, std::vector<File>& files) {
  std::error_code error;
  if (fs::is_directory(from, error)) {
    fs::create_directories(to, error);
    if (error) fail_system(to, "making the folder", error);
    for (fs::directory_iterator at(from, error), end; !error && at != end; at.increment(error))
      list_files(at->path(), to / at->path().filename(), files);
    if (error) fail_system(from, "reading the folder", error);
    return;
  }
  const std::uintmax_t bytes = fs::file_size(from, error);
  if (error) fail_system(from, "looking at the file", error);
  files.push_back({from, to, bytes});
}

bool same_content(const File& file) {
  levin::detail::FileSource a(file.from.string()), b(file.to.string());
  std::vector<char> x(std::size_t{1} << 20), y(x.size());
  for (std::uint64_t at = 0; at < a.size(); at += x.size()) {
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(x.size(), a.size() - at));
    a.read(at, x.data(), n);
    b.read(at, y.data(), n);
    if (!std::equal(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(n), y.begin())) return false;
  }
  return true;
}
bool is_there(const File& file, PreloadOptions::Verify verify) {
  std::error_code error;
  if (!fs::is_regular_file(file.to, error) || fs::file_size(file.to, error) != file.bytes || error) return false;
  return verify == PreloadOptions::Verify::size || same_content(file);
}

void copy(const File& file) {
  const std::string temporary = levin::detail::temporary_name(file.to.string());
  std::error_code error;
  fs::copy_file(file.from, temporary, error);
  if (!error) fs::rename(temporary, file.to, error);
  if (!error) return;
  std::error_code ignored;
  fs::remove(temporary, ignored);
  fail_system(file.from, "copying into memory", error);
}

// Folders that go when this process exits.
struct Leaving {
  fs::path folder, users;
  Descriptor lock;
  pid_t process;
};
struct AllLeaving {
  std::mutex mutex;
  std::vector<Leaving> list;
};
AllLeaving& leaving() {
  static auto* const all = new AllLeaving;  // used at the exit
  return *all;
}
void remember(Leaving one) {
  [[maybe_unused]] static const int registered = std::atexit([] { store::remove_unused_preloads(); });
  const std::lock_guard guard(leaving().mutex);
  leaving().list.push_back(std::move(one));
}

}  // namespace

void store::remove_unused_preloads() noexcept {
  try {
    const std::lock_guard guard(leaving().mutex);
    for (const Leaving& one : leaving().list) {
      if (one.process != ::getpid()) continue;  // a forked child has its parent's locks
      const fs::path target = one.folder.parent_path();
      const Descriptor all = open_lock(target / "lock");
      lock(all, LOCK_EX, target);
      if (::flock(one.lock.get(), LOCK_EX | LOCK_NB) != 0) continue;
      std::error_code ignored;
      fs::remove_all(one.folder, ignored);
      fs::remove(one.users, ignored);
    }
    leaving().list.clear();
  } catch (...) {  // nobody is left to be told
  }
}

std::vector<std::string> preload_to_ram(const std::vector<std::string>& paths, const PreloadOptions& options) {
  if (options.target.empty()) fail<ConfigError>("preload_to_ram: the target is empty, expected a folder in memory");
  const fs::path target = options.target;
  std::error_code error;
  for (const std::string& path : paths) {
    if (!fs::exists(path, error)) fail<FileError>("preload_to_ram: ", path, " is absent");
  }
  fs::create_directories(target, error);
  if (error) fail_system(target, "making the folder", error);
  const Descriptor all = open_lock(target / "lock");
  lock(all, LOCK_EX, target);
  std::vector<File> missing;
  std::vector<std::string> result;
  std::vector<fs::path> folders;
  std::uintmax_t needed = 0;
  for (const std::string& path : paths) {
    const fs::path from = fs::canonical(path, error);
    if (error) fail_system(path, "looking at the path", error);
    folders.push_back(target / content_hash(from.string()));
    fs::create_directories(folders.back(), error);
    if (error) fail_system(folders.back(), "making the folder", error);
    result.push_back((folders.back() / from.filename()).string());
    std::vector<File> files;
    list_files(from, result.back(), files);
    for (File& file : files) {
      if (is_there(file, options.verify)) continue;
      needed += file.bytes;
      missing.push_back(std::move(file));
    }
  }
  const fs::space_info space = fs::space(target, error);
  if (error) fail_system(target, "asking for free space", error);
  if (needed > 0 && space.available < needed + needed / 10) {
    warn("W-DATA-PRELOAD", WarningCategory::user,
         "preload_to_ram: " + std::to_string(needed) + " bytes and a tenth more are needed, " +
             std::to_string(space.available) + " are free in " + options.target +
             "; the files are read where they are");
    return paths;
  }
  for (const File& file : missing) {
    levin::detail::remove_stale_temporaries(file.to.parent_path().string() + "/", file.to.filename().string());
    copy(file);
  }
  if (options.keep) return result;
  for (const fs::path& folder : folders) {
    const fs::path users = folder.string() + ".users";
    Descriptor own = open_lock(users);
    lock(own, LOCK_SH, users);
    remember({folder, users, std::move(own), ::getpid()});
  }
  return result;
}

}  // namespace levin::data
