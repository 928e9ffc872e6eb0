#include "comm/launch/program.h"

#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "comm/launch/descriptor.h"
#include "comm/launch/output.h"
#include "levin/error.h"

namespace levin::dist {
namespace {

// Files in memory take and give any number of bytes without a second thread.
Fd memory() { return above_stderr(::memfd_create("levin-program", MFD_CLOEXEC), "no memory for a program's output"); }

std::string content(const Fd& file) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  std::string out;
  std::array<char, 4096> bytes;
  while (out.size() < kMost) {
    const ssize_t n = ::pread(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(out.size()));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    out.append(bytes.data(), static_cast<std::size_t>(n));
  }
  while (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

}  // namespace

ProgramEnd run_program(const std::vector<std::string>& words, std::string_view input) {
  const Fd in = memory(), out = memory(), err = memory();
  if (!write_all(in.get(), input) || ::lseek(in.get(), 0, SEEK_SET) != 0)
    fail<ConfigError>(words[0], ": no memory for its input: ", std::strerror(errno));
  std::vector<std::string> copies = words;
  std::vector<char*> argv;
  for (std::string& word : copies) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, in.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, out.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, err.get(), STDERR_FILENO);
  pid_t child = 0;
  const int code = ::posix_spawnp(&child, argv[0], &files, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (code != 0) fail<ConfigError>(words[0], " cannot be started: ", std::strerror(code));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno == EINTR) continue;
    status = 0;  // the program ignores SIGCHLD: the code is lost
    break;
  }
  return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          .out = content(out),
          .err = content(err)};
}

}  // namespace levin::dist
