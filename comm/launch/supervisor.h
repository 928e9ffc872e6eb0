// The processes of a job's ranks on this node: starting, watching and ending them: Note [The end of a job] in
// levin/comm/launch.h.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/job/note.h"
#include "comm/launch/descriptor.h"
#include "comm/launch/output.h"

namespace levin::dist {

// A rank's exit code where it survived the failure of another rank.
inline constexpr int kSurvivorCode = 75;

// How a rank ended.
struct Ending {
  int rank = 0;
  pid_t pid = 0;
  int code = 0;    // 128 + signal where a signal killed it
  int signal = 0;  // 0: it exited
};
[[nodiscard]] std::string text(const Ending& ending);  // "rank 1 (process 71) exited with code 3"

class Supervisor {
 public:
  // `who` begins the messages: "levin-run". The loop is run() of one thread, which must also be the thread that forks:
  // children get SIGTERM when it ends.
  Supervisor(std::string who, Output::To to, double grace);
  ~Supervisor();  // kills the ranks that still run
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  enum class Streams : std::uint8_t {
    inherited,  // stdin, too
    prefixed,   // behind "[rank N] "; stdin is /dev/null
    first       // of rank 0: whole lines, or the terminal; stdin is not a terminal
  };
  // Forks. In the child `inside` runs after the streams and the group of processes are made, and its result is the exit
  // code; it must be async-signal-safe where other threads run. Throws ConfigError where no process can be made.
  void fork_rank(int rank, Streams streams, const std::function<int()>& inside);
  // Environment of the children, by which hold_kill reaches this object: "LEVIN_LAUNCH_FD=7".
  [[nodiscard]] std::string hold_variable() const;

  // Waits until all ranks have ended, and ends them where one failed. Then finishes the output, which has been started.
  void run();

  // From any thread: ends all ranks with SIGTERM, then SIGKILL; kills them at once; hold_kill of this process.
  void stop() noexcept;
  void kill() noexcept;
  void hold(double seconds) noexcept;
  void forward(int signal) noexcept;  // to all ranks; from on_signal

  // Called in run() when a rank has failed, once, and when the time for SIGKILL has come, once.
  std::function<void(const Ending&)> on_failure{};
  std::function<void()> on_kill{};
  // While run() waits, these signals of the process are taken from `signals` (a signalfd) and given to on_signal.
  Fd signals{};
  std::function<void(int)> on_signal{};

  // The rank that failed first; nothing while none has. From any thread.
  [[nodiscard]] std::optional<Ending> failure() const;
  // After run(): what to print about it, with the tail of its stderr. Empty without a failure.
  [[nodiscard]] std::string report(int others) const;
  [[nodiscard]] std::vector<int> running() const;  // ranks; from any thread
  [[nodiscard]] Output& output() { return output_; }

 private:
  struct Rank {
    Ending ending;
    Fd watch;  // a pidfd; none where the system has none
    std::atomic<bool> ended{false};
  };
  bool reap(Rank& rank);  // whether it has ended
  void decide(const Ending& ending);
  void signal_all(int signal) noexcept;
  void wake() noexcept;

  std::string who_;
  double grace_;
  Output output_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  Pipe wake_, hold_;
  std::atomic<bool> stop_{false}, kill_{false};
  std::atomic<double> hold_until_{0};
  std::optional<Ending> survivor_;  // ended with kSurvivorCode, and nothing else is known yet
  double survivor_at_ = 0, term_at_ = 0;
  bool killed_ = false;
  mutable std::mutex mutex_;
  std::optional<Ending> failure_;
};

}  // namespace levin::dist
