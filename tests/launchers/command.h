// Runs a program and takes what it writes on stdout and stderr apart.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "levin/serialize.h"
#include "tests/skip.h"
#include "tests/temporary.h"
#include "tests/where.h"

namespace levin::test {

class Command {
 public:
  struct Ended {
    int code = -1;  // minus the signal where one killed it
    std::string out, err;
  };
  explicit Command(std::vector<std::string> words, std::string folder)
      : words_(std::move(words)), folder_(std::move(folder)) {
    std::vector<char*> argv;
    for (std::string& word : words_) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, (folder_ + "/out").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&files, 2, (folder_ + "/err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    REQUIRE(posix_spawn(&child_, argv[0], &files, nullptr, argv.data(), environ) == 0);
    posix_spawn_file_actions_destroy(&files);
  }
  ~Command() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;
  [[nodiscard]] pid_t process() const { return child_; }
  [[nodiscard]] Ended wait() {
    int status = 0;
    REQUIRE(::waitpid(child_, &status, 0) == child_);
    child_ = 0;
    constexpr std::size_t kMost = std::size_t{1} << 24;
    return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status),
            .out = read_file(folder_ + "/out", kMost),
            .err = read_file(folder_ + "/err", kMost)};
  }

 private:
  std::vector<std::string> words_;
  std::string folder_;
  pid_t child_ = 0;
};

// A program of this build; the test is skipped where it is not built.
[[nodiscard]] inline bool is_built(const std::string& program) {
  if (std::filesystem::exists(build_dir() + "/" + program)) return true;
  skip(program + " is not built");
  return false;
}

}  // namespace levin::test
