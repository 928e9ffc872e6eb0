#include "tensor/file.h"

#include <doctest/doctest.h>
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
  // A limit on file sizes stands in for a full disk: the write comes back short, then fails. In a child of its own,
  // since the limit holds for the whole process.
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
  // The counter in the name is not known here, so the next few are all taken.
  for (int i = 0; i < 200; ++i) {
    std::FILE* stale = std::fopen((path + ".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(i)).c_str(), "w");
    REQUIRE(stale);
    std::fclose(stale);
  }
  write_file_atomically(path, "2");
  CHECK(read_file(path, 10) == "2");
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
