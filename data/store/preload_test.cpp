#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "data/store/preload.h"
#include "levin/data/store.h"
#include "levin/error.h"
#include "levin/serialize.h"
#include "tests/temporary.h"
#include "tests/warnings.h"

using namespace levin;
using namespace levin::data;
namespace fs = std::filesystem;

namespace {

void write(const std::string& path, const std::string& content) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << content;
}
std::string content(const std::string& path) { return read_file(path, 1 << 20); }

}  // namespace

TEST_CASE("preloaded files and folders lie in the target, are copied once, and again when they differ") {
  const test::TemporaryFolder from, target;
  write(from / "a.bin", "first");
  write(from / "set/one", "1");
  write(from / "set/deep/two", "22");
  fs::create_directories(from / "set/empty");
  const std::vector<std::string> paths{from / "a.bin", from / "set"};
  const PreloadOptions by_size{.target = target / "ram"};
  const std::vector<std::string> found = preload_to_ram(paths, by_size);
  REQUIRE(found.size() == 2);
  CHECK(found[0].rfind(target / "ram", 0) == 0);
  CHECK(content(found[0]) == "first");
  CHECK(content(found[1] + "/one") == "1");
  CHECK(content(found[1] + "/deep/two") == "22");
  CHECK(fs::is_directory(found[1] + "/empty"));
  write(found[0], "FIRST");  // equal by size: stays
  CHECK(preload_to_ram(paths, by_size) == found);
  CHECK(content(found[0]) == "FIRST");
  CHECK(preload_to_ram(paths, {.target = target / "ram", .verify = PreloadOptions::Verify::hash}) == found);
  CHECK(content(found[0]) == "first");
  write(from / "a.bin", "longer than it was");
  CHECK(preload_to_ram(paths, by_size) == found);
  CHECK(content(found[0]) == "longer than it was");
  // Sources of one name do not meet.
  write(from / "other/a.bin", "other");
  CHECK(content(preload_to_ram({from / "other/a.bin"}, by_size)[0]) == "other");
  CHECK(content(found[0]) == "longer than it was");
}

TEST_CASE("without room a warning has both numbers, and the original paths are returned") {
  const test::TemporaryFolder from, target;
  write(from / "big", "");
  fs::resize_file(from / "big", std::uintmax_t{1} << 42);  // sparse: 4 TiB
  std::vector<std::string> found;
  const test::Warnings warnings;
  found = preload_to_ram({from / "big"}, {.target = target / "ram"});
  CHECK(found == std::vector<std::string>{from / "big"});
  CHECK(std::distance(fs::directory_iterator(target / "ram"), {}) == 1);  // the lock
  REQUIRE(warnings.count("W-DATA-PRELOAD") == 1);
  CHECK(warnings.all()[0].text.find("4398046511104 bytes and a tenth more are needed") != std::string::npos);
}

TEST_CASE("preloaded files that are not kept go with the last process that uses them") {
  const test::TemporaryFolder from, target;
  write(from / "a", "x");
  const auto preload = [&] { return preload_to_ram({from / "a"}, {.target = target / "ram", .keep = false})[0]; };
  // Preloads, waits for `wait`, leaves; whether the file is there after that.
  const auto in_child = [&](int ready, int wait) {
    const pid_t child = ::fork();
    if (child != 0) return child;
    int code = 2;
    try {
      char byte = 0;
      const std::string path = preload();
      if (ready >= 0) (void)!::write(ready, "r", 1);
      if (wait >= 0) (void)!::read(wait, &byte, 1);
      if (content(path) == "x") {
        store::remove_unused_preloads();
        code = fs::exists(path) ? 1 : 0;
      }
    } catch (...) {}
    ::_exit(code);
  };
  const auto code_of = [](pid_t child) {
    int status = -1;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  int ready[2], go[2];
  REQUIRE(::pipe(ready) == 0);
  REQUIRE(::pipe(go) == 0);
  const pid_t longer = in_child(ready[1], go[0]);
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  CHECK(code_of(in_child(-1, -1)) == 1);  // `longer` uses it
  REQUIRE(::write(go[1], "g", 1) == 1);
  CHECK(code_of(longer) == 0);
  for (const int fd : {ready[0], ready[1], go[0], go[1]}) ::close(fd);
}

TEST_CASE("a preload of an absent path and one without a target are refused") {
  const test::TemporaryFolder target;
  CHECK_THROWS_WITH_AS((void)preload_to_ram({target / "absent"}, {.target = target / "ram"}),
                       doctest::Contains("absent is absent"), FileError);
  CHECK_THROWS_AS((void)preload_to_ram({}, {.target = ""}), ConfigError);
}

TEST_CASE("a target that cannot be made or locked is named in a warning, and the original paths are returned") {
  const test::TemporaryFolder from, target;
  write(from / "a", "x");
  fs::create_directories(target / "ram/lock");  // as the lock of another user: it cannot be opened
  const test::Warnings warnings;
  const std::vector<std::string> paths{from / "a"};
  CHECK(preload_to_ram(paths, {.target = "/proc/none"}) == paths);
  CHECK(preload_to_ram(paths, {.target = target / "ram"}) == paths);
  REQUIRE(warnings.count("W-DATA-PRELOAD") == 2);
  CHECK(warnings.all()[0].text.find("/proc/none: making the folder failed") != std::string::npos);
  CHECK(warnings.all()[1].text.find("opening the lock failed") != std::string::npos);
  CHECK(PreloadOptions().target == "/dev/shm/levin-" + std::to_string(::getuid()));
}

TEST_CASE("what the source does not have leaves the copy, also temporary files of killed processes") {
  const test::TemporaryFolder from, target;
  for (const char* name : {"set/cat/1", "set/cat/2", "set/dog/1", "set/eel/deep/1"}) write(from / name, "x");
  const auto preload = [&] { return preload_to_ram({from / "set"}, {.target = target / "ram"})[0]; };
  const std::string copy = preload();
  write(copy + "/cat/1.tmp-1-0", "half");
  fs::remove(from / "set/cat/2");
  fs::remove_all(from / "set/dog");
  fs::remove_all(from / "set/eel");
  write(from / "set/eel", "a file that was a folder");
  CHECK(preload() == copy);
  CHECK(content(copy + "/eel") == "a file that was a folder");
  fs::remove(copy + "/eel");
  CHECK(content(copy + "/cat/1") == "x");
  CHECK(std::distance(fs::recursive_directory_iterator(copy), {}) == 2);  // cat, cat/1
}

TEST_CASE("a folder that links lead to again is copied once, and stays reachable by each name") {
  const test::TemporaryFolder from, target;
  write(from / "set/a/1", "x");
  fs::create_directory_symlink(".", from / "set/latest");
  fs::create_directory_symlink("a", from / "set/b");
  fs::create_symlink("a/1", from / "set/file");
  const auto preload = [&] { return preload_to_ram({from / "set"}, {.target = target / "ram"})[0]; };
  const std::string copy = preload();
  CHECK(preload() == copy);
  for (const char* name : {"/a/1", "/b/1", "/latest/a/1", "/latest/latest/b/1", "/file"})
    CHECK(content(copy + name) == "x");
  CHECK(fs::is_symlink(copy + "/latest"));
  CHECK(fs::is_symlink(copy + "/a") != fs::is_symlink(copy + "/b"));
  CHECK_FALSE(fs::is_symlink(copy + "/file"));
}

TEST_CASE("files that one process keeps stay when another that does not keep them leaves") {
  const test::TemporaryFolder from, target;
  write(from / "a", "x");
  const auto preload = [&](bool keep) {
    return preload_to_ram({from / "a"}, {.target = target / "ram", .keep = keep})[0];
  };
  const std::string path = preload(false);
  CHECK(preload(true) == path);
  store::remove_unused_preloads();
  CHECK(content(path) == "x");
}
