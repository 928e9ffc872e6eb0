// The program that tests of launchers start as the ranks of a job: it does what its arguments say, in their order.
//
//   ranks [--launch N] [--grace S] ACTION [VALUE] ...
//
// --launch makes the script launcher start the other ranks. "@R:" before an action is for rank R alone:
//   print N        N numbered lines on stdout and stderr        env NAME     the variable, as NAME=value
//   text WORDS     one line on stderr                           part WORDS   on stdout, without a line's end
//   ignore-term    SIGTERM has no effect                        read         a line of stdin
//   block-term     SIGTERM waits for await-term                 await-term   waits for SIGTERM
//   child FILE     a process that waits for ever; FILE holds its number     pid FILE   the same of this process
//   mark FILE      makes the file                               await FILE   waits until another rank has made it
//   hang           waits for ever                               signal N     raises a signal
//   hold S         hold_kill                                    exit CODE    by exit(3)
//   threads        the number of threads of CPU kernels
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "levin/comm/launch.h"
#include "levin/device.h"
#include "levin/error.h"
#include "tests/launchers/await.h"

using namespace levin;

namespace {

[[noreturn]] void hang() {
  while (true) ::pause();
}

void make_file(const std::string& path, const std::string& text) {
  const std::string partial = path + ".part";  // a reader sees the whole text or no file
  std::FILE* const file = std::fopen(partial.c_str(), "w");
  if (file == nullptr) std::exit(99);
  std::fputs(text.c_str(), file);
  std::fclose(file);
  std::rename(partial.c_str(), path.c_str());
}

void act(std::string_view action, const std::string& value) {
  if (action == "print") {
    for (int i = 0; i < std::stoi(value); ++i) {
      std::printf("out %d\n", i);
      std::fprintf(stderr, "err %d\n", i);
    }
  } else if (action == "env") {
    const char* const text = std::getenv(value.c_str());
    std::printf("%s=%s\n", value.c_str(), text ? text : "");
  } else if (action == "text") {
    std::fprintf(stderr, "%s\n", value.c_str());
  } else if (action == "part") {
    std::fputs(value.c_str(), stdout);
    std::fflush(stdout);
  } else if (action == "ignore-term") {
    std::signal(SIGTERM, SIG_IGN);
  } else if (action == "block-term") {
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    ::sigprocmask(SIG_BLOCK, &term, nullptr);
  } else if (action == "await-term") {
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    int number = 0;
    ::sigwait(&term, &number);
  } else if (action == "child") {
    const pid_t child = ::fork();
    if (child == 0) hang();
    make_file(value, std::to_string(child));
  } else if (action == "pid") {
    make_file(value, std::to_string(::getpid()));
  } else if (action == "mark") {
    make_file(value, "");
  } else if (action == "await") {
    test::await_file(value);
  } else if (action == "read") {
    char line[64] = "nothing\n";
    if (std::fgets(line, sizeof line, stdin) == nullptr)
      std::fputs("end of stdin\n", stdout);
    else
      std::printf("read %s", line);
  } else if (action == "hang") {
    hang();
  } else if (action == "signal") {
    std::raise(std::stoi(value));
  } else if (action == "hold") {
    dist::hold_kill(std::stoi(value));
  } else if (action == "exit") {
    std::exit(std::stoi(value));
  } else if (action == "threads") {
    std::printf("threads %d\n", num_threads());
  } else {
    std::fprintf(stderr, "ranks: unknown action %s\n", std::string(action).c_str());
    std::exit(98);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    dist::LaunchOptions o;
    int i = 1;
    for (; i + 1 < argc && std::string_view(argv[i]).starts_with("--"); i += 2) {
      if (std::string_view(argv[i]) == "--launch") o.processes = std::stoi(argv[i + 1]);
      if (std::string_view(argv[i]) == "--grace") o.grace = std::stoi(argv[i + 1]);
    }
    auto environment = dist::ClusterEnvironment::detect();
    if (o.processes > 1) environment = dist::launch_script(o);
    for (; i < argc; ++i) {
      std::string_view action = argv[i];
      bool mine = true;
      if (action[0] == '@') {
        const std::size_t end = action.find(':');
        mine = std::stoi(std::string(action.substr(1, end - 1))) == environment->global_rank();
        action.remove_prefix(end + 1);
      }
      const bool has_value = action != "hang" && action != "read" && action != "ignore-term" &&
                             action != "await-term" && action != "block-term" && action != "threads";
      const std::string value = has_value && i + 1 < argc ? argv[++i] : "";
      if (mine) act(action, value);
    }
    return 0;
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
