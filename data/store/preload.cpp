#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <unordered_map>
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
// beside its folder; the one that can lock it alone at its exit is the last, and removes the folder, unless a process
// with `keep` has left a file "<folder>.kept" beside it.
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

// What the copy of a source has.
class Listing {
 public:
  std::vector<File> files;
  std::vector<fs::path> folders;                     // each behind the one that it lies in
  std::vector<std::pair<fs::path, fs::path>> links;  // a folder that was listed before: where, and to what

  void add(const fs::path& from, const fs::path& to) {
    struct stat info {};
    if (::stat(from.c_str(), &info) != 0) fail_system(from, "looking at the file", {errno, std::generic_category()});
    if (!S_ISDIR(info.st_mode)) {
      if (!S_ISREG(info.st_mode)) fail<FileError>(from.string(), ": is neither a file nor a folder");
      files.push_back({from, to, static_cast<std::uintmax_t>(info.st_size)});
      have(to, fs::file_type::regular);
      return;
    }
    const auto [first, is_new] = seen_.insert({{info.st_dev, info.st_ino}, to});
    if (!is_new) {
      links.emplace_back(to, first->second.lexically_relative(to.parent_path()));
      have(to, fs::file_type::symlink, links.back().second);
      return;
    }
    folders.push_back(to);
    have(to, fs::file_type::directory);
    std::error_code error;
    for (fs::directory_iterator at(from, error), end; !error && at != end; at.increment(error))
      add(at->path(), to / at->path().filename());
    if (error) fail_system(from, "reading the folder", error);
  }

  // Removes from a folder of the target what the source does not have, and temporary files of killed processes.
  void remove_others(const fs::path& folder) const {
    std::error_code error;
    std::vector<fs::path> others, below;
    if (!fs::exists(folder, error)) return;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
      const fs::path& path = at->path();
      const fs::file_type type = at->symlink_status(error).type();
      const auto found = entries_.find(path.string());
      if (found == entries_.end() || found->second.type != type ||
          (type == fs::file_type::symlink && fs::read_symlink(path, error) != found->second.link)) {
        others.push_back(path);
      } else if (type == fs::file_type::directory) {
        below.push_back(path);
      }
    }
    if (error) fail_system(folder, "reading the folder", error);
    for (const fs::path& path : others) {
      fs::remove_all(path, error);
      if (error) fail_system(path, "removing what the source does not have", error);
    }
    for (const fs::path& path : below) remove_others(path);
  }

 private:
  struct Entry {
    fs::file_type type;
    fs::path link;
  };
  void have(const fs::path& to, fs::file_type type, fs::path link = {}) {
    entries_.insert({to.string(), {type, std::move(link)}});
  }

  std::unordered_map<std::string, Entry> entries_;
  std::map<std::pair<dev_t, ino_t>, fs::path> seen_;
};

// The target's lock, or why there is none.
std::optional<Descriptor> lock_target(const fs::path& target, std::string& reason) {
  try {
    std::error_code error;
    fs::create_directories(target, error);
    if (error) fail_system(target, "making the folder", error);
    Descriptor all = open_lock(target / "lock");
    lock(all, LOCK_EX, target);
    return all;
  } catch (const FileError& e) { reason = e.what(); }
  return {};
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
      if (!fs::exists(one.folder.string() + ".kept", ignored)) fs::remove_all(one.folder, ignored);
      fs::remove(one.users, ignored);
    }
    leaving().list.clear();
  } catch (...) {  // no caller is left to be told
  }
}

std::string preload_target() { return "/dev/shm/levin-" + text(static_cast<std::int64_t>(::getuid())); }

std::vector<std::string> preload_to_ram(const std::vector<std::string>& paths, const PreloadOptions& options) {
  if (options.target.empty()) fail<ConfigError>("preload_to_ram: the target is empty, expected a folder in memory");
  const fs::path target = options.target;
  std::error_code error;
  for (const std::string& path : paths) {
    if (!fs::exists(path, error)) fail<FileError>("preload_to_ram: ", path, " is absent");
  }
  const auto without = [&](const std::string& why) {
    warn("W-DATA-PRELOAD", WarningCategory::user, "preload_to_ram: " + why + "; the files are read where they are");
    return paths;
  };
  std::string reason;
  const std::optional<Descriptor> all = lock_target(target, reason);
  if (!all) return without(reason);
  std::vector<File> missing;
  std::vector<std::string> result;
  std::vector<fs::path> folders;
  std::vector<Listing> listings;
  std::uintmax_t needed = 0;
  for (const std::string& path : paths) {
    const fs::path from = fs::canonical(path, error);
    if (error) fail_system(path, "looking at the path", error);
    folders.push_back(target / content_hash(from.string()));
    result.push_back((folders.back() / from.filename()).string());
    Listing& listing = listings.emplace_back();
    listing.add(from, result.back());
    listing.remove_others(folders.back());
    for (const File& file : listing.files) {
      if (is_there(file, options.verify)) continue;
      needed += file.bytes;
      missing.push_back(file);
    }
  }
  const fs::space_info space = fs::space(target, error);
  if (error) fail_system(target, "asking for free space", error);
  if (needed > 0 && space.available < needed + needed / 10) {
    return without(std::to_string(needed) + " bytes and a tenth more are needed, " + std::to_string(space.available) +
                   " are free in " + options.target);
  }
  for (std::size_t i = 0; i < listings.size(); ++i) {
    listings[i].folders.insert(listings[i].folders.begin(), folders[i]);
    for (const fs::path& folder : listings[i].folders) {
      fs::create_directories(folder, error);
      if (error) fail_system(folder, "making the folder", error);
    }
    for (const auto& [link, to] : listings[i].links) {
      if (!fs::is_symlink(link, error)) fs::create_directory_symlink(to, link, error);
      if (error) fail_system(link, "making the link", error);
    }
  }
  for (const File& file : missing) copy(file);
  for (const fs::path& folder : folders) {
    if (options.keep) {
      (void)open_lock(folder.string() + ".kept");
      continue;
    }
    const fs::path users = folder.string() + ".users";
    Descriptor own = open_lock(users);
    lock(own, LOCK_SH, users);
    remember({folder, users, std::move(own), ::getpid()});
  }
  return result;
}

}  // namespace levin::data
