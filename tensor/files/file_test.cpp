#include "tensor/files/file.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "levin/serialize.h"
#include "tests/temporary.h"

using namespace levin;
using levin::test::TemporaryFolder;

namespace {

std::size_t entries(const std::string& folder) {
  std::size_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++n;
  return n;
}

}  // namespace

TEST_CASE("a file is written, replaced and nothing else is left") {
  const TemporaryFolder folder;
  const std::string path = folder / "a.json";
  write_file_atomically(path, "one");
  CHECK(read_file(path, 10) == "one");
  write_file_atomically(path, std::string(200000, 'x'));
  CHECK(read_file(path, 200000) == std::string(200000, 'x'));
  write_file_atomically(path, "");
  CHECK(read_file(path, 0) == "");
  CHECK(entries(folder.path()) == 1);
}

TEST_CASE("several parts are written one behind the other") {
  const TemporaryFolder folder;
  const std::string a = "ab", b, c = "cde";
  const std::vector<std::span<const std::byte>> parts{std::as_bytes(std::span<const char>(a)),
                                                      std::as_bytes(std::span<const char>(b)),
                                                      std::as_bytes(std::span<const char>(c))};
  write_file_atomically(folder / "x", parts);
  CHECK(read_file(folder / "x", 10) == "abcde");
}

TEST_CASE("a file larger than the caller allows is refused") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "x", "12345");
  CHECK_THROWS_AS((void)read_file(folder / "x", 4), FormatError);
}

TEST_CASE("a file keeps its old content when a new one can not be written whole") {
  const TemporaryFolder folder;
  const std::string path = folder / "x";
  write_file_atomically(path, "old");
  // A limit on file sizes stands for a full disk: the write is short, then fails. A child process sets it, since the
  // limit holds for a whole process.
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int rc = 1;
    try {
      write_file_atomically(path, std::string(5000, 'n'));
    } catch (const FileError&) { rc = 0; } catch (...) {
    }
    ::_exit(rc);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(read_file(path, 10) == "old");
  CHECK(entries(folder.path()) == 1);
}

TEST_CASE("a full device is named with what was needed") {
  std::string message;
  try {
    write_file_atomically("/dev/full", "1234567");
  } catch (const FileError& e) { message = e.what(); }
  CHECK(message.find("/dev/full: ") == 0);
  CHECK(message.find("7 bytes are needed") != std::string::npos);
}

TEST_CASE("a folder that is absent, or where a folder stands in the way, is a file error and leaves nothing") {
  const TemporaryFolder folder;
  CHECK_THROWS_AS(write_file_atomically(folder / "absent/x", "1"), FileError);
  std::filesystem::create_directory(folder / "x");
  CHECK_THROWS_AS(write_file_atomically(folder / "x", "1"), FileError);
  CHECK(entries(folder.path()) == 1);
}

TEST_CASE("a temporary file left by a process that died with our number does not stop a write") {
  const TemporaryFolder folder;
  const std::string path = folder / "x";
  write_file_atomically(path, "1");
  // The test does not know the counter in the name, so it takes the next few.
  for (int i = 0; i < 200; ++i) {
    std::FILE* stale = std::fopen((path + ".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(i)).c_str(), "w");
    REQUIRE(stale);
    std::fclose(stale);
  }
  write_file_atomically(path, "2");
  CHECK(read_file(path, 10) == "2");
}

namespace {

// A process that has ended: its number is free.
pid_t dead_process() {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(0);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  return child;
}

}  // namespace

TEST_CASE("a process that is killed while it writes leaves a file that the next sweep removes") {
  const TemporaryFolder folder;
  const std::string path = folder / "x.bin";
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {  // killed by the system in the middle of the write
    const rlimit limit{1000, 1000}, no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::signal(SIGXFSZ, SIG_DFL);
    write_file_atomically(path, std::string(5000, 'n'));
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  CHECK(entries(folder.path()) == 1);
  levin::detail::remove_stale_temporaries(folder.path(), ".other");
  CHECK(entries(folder.path()) == 1);
  levin::detail::remove_stale_temporaries(folder.path(), ".bin");
  CHECK(entries(folder.path()) == 0);
  levin::detail::remove_stale_temporaries(folder / "absent", ".bin");
}

TEST_CASE("a sweep leaves alone what a living process may be writing, and what only looks like a temporary file") {
  const TemporaryFolder folder;
  const std::string dead = std::to_string(dead_process()), ours = std::to_string(::getpid());
  const std::string stale = folder / ("a.bin.tmp-" + dead + "-0"), ours_left = folder / ("a.bin.tmp-" + ours + "-7");
  // Files of a live process; of a dead number whose lock is held (by a container with numbers of its own); of our
  // number, by a thread that is writing; and names that are not ours.
  const std::string parent = folder / ("a.bin.tmp-" + std::to_string(::getppid()) + "-0"),
                    locked = folder / ("b.bin.tmp-" + dead + "-0"), writing = folder / ("b.bin.tmp-" + ours + "-8");
  const std::vector<std::string> kept = {parent,
                                         locked,
                                         writing,
                                         folder / "a.bin",
                                         folder / ("a.tmp-" + dead + "-0"),
                                         folder / ("a.bin.tmp-" + dead),
                                         folder / ("a.bin.tmp-" + dead + "-x"),
                                         folder / ("a.bin.tmp-" + dead + "-0.txt"),
                                         folder / "a.bin.tmp--5-0"};
  for (const std::string& path : kept) write_file_atomically(path, "kept");
  for (const std::string& path : {stale, ours_left}) write_file_atomically(path, "left");
  std::filesystem::create_directory(folder / ("c.bin.tmp-" + dead + "-0"));
  std::vector<int> holders;
  for (const std::string& path : {locked, writing}) {
    holders.push_back(::open(path.c_str(), O_WRONLY));
    REQUIRE(::flock(holders.back(), LOCK_EX | LOCK_NB) == 0);
  }
  levin::detail::remove_stale_temporaries(folder.path(), ".bin");
  for (const std::string& path : kept) CHECK_MESSAGE(std::filesystem::exists(path), path);
  CHECK_FALSE(std::filesystem::exists(stale));
  CHECK_FALSE(std::filesystem::exists(ours_left));
  CHECK(entries(folder.path()) == kept.size() + 1);
  for (const int fd : holders) ::close(fd);
  levin::detail::remove_stale_temporaries(folder.path(), ".bin");
  CHECK_FALSE(std::filesystem::exists(locked));
  CHECK_FALSE(std::filesystem::exists(writing));
}

TEST_CASE("a writer holds the lock on its temporary file") {
  const TemporaryFolder folder;
  const std::string path = folder / "x.bin";
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const std::string content(4 << 20, 'n');
    while (true) write_file_atomically(path, content);
  }
  // Stopped at a moment when its file exists and is not empty.
  std::string found;
  while (found.empty()) {
    ::kill(child, SIGSTOP);
    REQUIRE(::waitpid(child, nullptr, WUNTRACED) == child);
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      const std::string name = entry.path().string();
      if (name.find(".tmp-") != std::string::npos && entry.file_size() > 0) found = name;
    }
    if (found.empty()) {
      ::kill(child, SIGCONT);
      ::usleep(200);
    }
  }
  const int fd = ::open(found.c_str(), O_WRONLY);
  CHECK(fd >= 0);
  CHECK(::flock(fd, LOCK_EX | LOCK_NB) != 0);
  ::kill(child, SIGKILL);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  CHECK(::flock(fd, LOCK_EX | LOCK_NB) == 0);
  ::close(fd);
  levin::detail::remove_stale_temporaries(folder.path(), ".bin");
  CHECK_FALSE(std::filesystem::exists(found));
}

TEST_CASE("threads that write the same file leave one of their contents, whole") {
  const TemporaryFolder folder;
  const std::string path = folder / "x";
  {
    std::vector<std::jthread> threads;
    for (char c = 'a'; c < 'e'; ++c) {
      threads.emplace_back([&, c] {
        for (int i = 0; i < 5; ++i) write_file_atomically(path, std::string(100000, c));
      });
    }
  }
  const std::string content = read_file(path, 100000);
  CHECK(content == std::string(100000, content[0]));
  CHECK(entries(folder.path()) == 1);
}

namespace {
mode_t mode_of(const std::string& path) {
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  return info.st_mode & 07777u;
}
}  // namespace

TEST_CASE("a file keeps its mode when it is replaced, and a new one has what the umask leaves") {
  const TemporaryFolder folder;
  const std::string path = folder / "x";
  const mode_t mask = ::umask(027);
  write_file_atomically(path, "1");
  ::umask(mask);
  CHECK(mode_of(path) == 0640);
  for (const mode_t mode : {0600, 0644, 0755, 0666, 0400, 0200}) {
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    write_file_atomically(path, std::to_string(mode));
    CHECK(mode_of(path) == mode);
    REQUIRE(::chmod(path.c_str(), 0600) == 0);
    CHECK(read_file(path, 10) == std::to_string(mode));
  }
}

TEST_CASE("a symbolic link stays, and what it leads to is written") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "there");
  std::filesystem::create_symlink("there/real", folder / "near");     // relative to the link's folder
  std::filesystem::create_symlink(folder / "near", folder / "link");  // through another one, absolute
  write_file_atomically(folder / "link", "new");                      // no file existed there
  CHECK(std::filesystem::is_symlink(folder / "link"));
  CHECK(std::filesystem::is_symlink(folder / "near"));
  CHECK(read_file(folder / "there/real", 10) == "new");
  REQUIRE(::chmod((folder / "there/real").c_str(), 0604) == 0);
  write_file_atomically(folder / "link", "newer");
  CHECK(std::filesystem::is_symlink(folder / "link"));
  CHECK(read_file(folder / "there/real", 10) == "newer");
  CHECK(mode_of(folder / "there/real") == 0604);
  CHECK(entries(folder.path()) == 3);
  CHECK(entries(folder / "there") == 1);
  std::filesystem::create_symlink("loop", folder / "loop");
  CHECK_THROWS_AS(write_file_atomically(folder / "loop", "1"), FileError);
}

TEST_CASE("a pipe is written to directly") {
  const TemporaryFolder folder;
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  std::string got;
  std::jthread reader([&] {
    std::FILE* pipe = std::fopen((folder / "pipe").c_str(), "r");
    for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) got += static_cast<char>(c);
    std::fclose(pipe);
  });
  write_file_atomically(folder / "pipe", "through");
  reader.join();
  CHECK(got == "through");
  CHECK_THROWS_AS((void)read_file(folder / "pipe", 10), FileError);
}
