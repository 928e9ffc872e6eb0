// The script launcher: Note [The script launcher runs main again] in levin/comm/launch.h.
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cstdlib>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "comm/launch/environments.h"
#include "comm/launch/job_variables.h"
#include "comm/launch/supervisor.h"
#include "comm/launch/variables.h"
#include "levin/comm/launch.h"
#include "levin/device.h"
#include "levin/error.h"
#include "levin/warning.h"
#include "tensor/device/cpus.h"

namespace levin::dist {
namespace {

constexpr const char* kProgram = "/proc/self/exe";  // also where the file has been replaced since the start

// The arguments of this process.
std::vector<std::string> own_arguments() {
  const auto refuse = [](const char* what) {
    fail<ConfigError>("launch_script: this program cannot be started again, because ", what, " cannot be read (",
                      std::strerror(errno), "); use the strategy ddp_spawn, whose processes are copies of this one");
  };
  if (::access(kProgram, X_OK) != 0) refuse(kProgram);
  const Fd file(::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC));
  if (!file) refuse("/proc/self/cmdline");
  std::string text;
  std::array<char, 65536> bytes;
  while (true) {
    const ssize_t n = ::read(file.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) refuse("/proc/self/cmdline");
    if (n == 0) break;
    text.append(bytes.data(), static_cast<std::size_t>(n));
  }
  std::vector<std::string> arguments;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\0', begin), text.size());
    arguments.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  if (arguments.empty()) {
    errno = ENODATA;
    refuse("/proc/self/cmdline");
  }
  return arguments;
}

// The ranks that this process has started; one object, which lives until the process ends.
class Script {
 public:
  Script(JobShape job, double grace) : job_(std::move(job)), grace_(grace) {}
  void start();  // throws ConfigError
  void at_exit(int code);
  void hold(double seconds) noexcept {
    hold_until_ = seconds > 0 ? steady_seconds() + seconds : 0;
    ranks_->hold(seconds);
  }
  [[nodiscard]] pid_t owner() const { return owner_; }

 private:
  void run(std::vector<std::string> arguments);
  void end_this_process();

  JobShape job_;
  double grace_;
  std::unique_ptr<HeldPort> port_;
  std::unique_ptr<Supervisor> ranks_;
  std::thread thread_;
  const pid_t owner_ = ::getpid();
  Pipe refusal_;  // errno of an exec that failed
  std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false, ended_ = false, exiting_ = false;
  VariableList variables_;  // of all ranks
  std::string problem_;     // why no rank was started
  std::atomic<double> hold_until_{0};
};

Script* script = nullptr;  // set once, by the thread that launches

void Script::start() {
  std::vector<std::string> arguments = own_arguments();
  if (job_.port == 0) {
    port_ = std::make_unique<HeldPort>();
    job_.port = port_->port();
  }
  ranks_ = std::make_unique<Supervisor>("levin", Output::To::screen, grace_);
  name_job(job_);
  variables_ = job_variables(job_);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the program's signals are for its own threads
  thread_ = std::thread([this, before, arguments = std::move(arguments)]() mutable {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);  // for the children
    run(std::move(arguments));
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return started_; });
  lock.unlock();
  if (!problem_.empty()) {
    thread_.join();
    fail<ConfigError>(problem_);
  }
  set_variables(variables_);
  set_variables(rank_variables(job_, 0));
  if (const int threads = detail::threads_by_environment(); threads > 0) set_num_threads(threads);
}

// On the thread that forks: children get SIGTERM when the thread that made them ends.
void Script::run(std::vector<std::string> arguments) {
  const auto report_start = [&](std::string problem) {
    const std::lock_guard lock(mutex_);
    problem_ = std::move(problem);
    started_ = true;
    changed_.notify_all();
  };
  try {
    refusal_ = make_pipe();
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    for (int local = 1; local < job_.processes; ++local) {
      VariableList changes = variables_;
      for (auto& entry : rank_variables(job_, local)) changes.push_back(std::move(entry));
      const std::string hold = ranks_->hold_variable();
      const std::size_t equals = hold.find('=');
      changes.emplace_back(hold.substr(0, equals), hold.substr(equals + 1));
      const EnvironmentBlock environment(changes);
      ranks_->fork_rank(job_.node_rank * job_.processes + local, Supervisor::Streams::prefixed, [&] {
        ::execve(kProgram, argv.data(), environment.get());
        const int code = errno;
        (void)!::write(refusal_.write.get(), &code, sizeof code);
        return 127;
      });
    }
    refusal_.write.reset();
    int code = 0;
    if (::read(refusal_.read.get(), &code, sizeof code) == sizeof code) {
      fail<ConfigError>("launch_script: this program cannot be started again: ", std::strerror(code),
                        "; use the strategy ddp_spawn, whose processes are copies of this one");
    }
    ranks_->output().start();
  } catch (const Error& e) {  // the ranks end with this object
    return report_start(std::string(e.message()));
  }
  ranks_->on_failure = [this](const Ending&) {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  };
  report_start("");
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  ranks_->run();
  std::unique_lock lock(mutex_);
  ended_ = true;
  changed_.notify_all();
  if (!ranks_->failure() || exiting_) return;
  // The program learns of the failure by a CommError of its next collective. Where none comes, it is ended here.
  const double deadline = steady_seconds() + grace_;
  while (!exiting_) {
    const double left = std::max(deadline, hold_until_.load()) - steady_seconds();
    if (left <= 0) break;
    changed_.wait_for(lock, std::chrono::duration<double>(std::min(left, 1.0)));
  }
  if (exiting_) return;
  lock.unlock();
  end_this_process();
}

void Script::end_this_process() {
  const auto first = ranks_->failure();
  // What the program has buffered is written if it can be: a thread that hangs may hold the lock of a stream.
  struct Flushed {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  const auto flushed = std::make_shared<Flushed>();
  std::thread([flushed] {
    std::fflush(nullptr);
    const std::lock_guard lock(flushed->mutex);
    flushed->done = true;
    flushed->changed.notify_all();
  }).detach();
  {
    std::unique_lock lock(flushed->mutex);
    flushed->changed.wait_for(lock, std::chrono::milliseconds(500), [&] { return flushed->done; });
  }
  write_all(STDERR_FILENO, "levin: rank " + std::to_string(job_.node_rank * job_.processes) +
                               " did not end and is killed\n" + ranks_->report(job_.processes - 1));
  ::_exit(first->code);
}

void Script::at_exit(int code) {
  {
    const std::lock_guard lock(mutex_);
    exiting_ = true;
    changed_.notify_all();
  }
  if (code != 0 && code != kSurvivorCode) ranks_->stop();
  {
    std::unique_lock lock(mutex_);
    // The rank whose failure this one survived ends within moments, unless it hangs.
    const std::chrono::seconds silent{code == kSurvivorCode ? 2 : 10};
    if (!changed_.wait_for(lock, silent, [&] { return ended_; }) && code == 0) {
      std::string names;
      for (const int rank : ranks_->running()) names += (names.empty() ? "" : ", ") + std::to_string(rank);
      lock.unlock();
      ranks_->output().print("levin: this process has ended and waits for rank " + names + "\n");
      lock.lock();
    }
    if (code == kSurvivorCode && !ended_ && !ranks_->failure()) ranks_->stop();
    changed_.wait(lock, [&] { return ended_; });
  }
  thread_.join();
  const auto first = ranks_->failure();
  const int self = job_.node_rank * job_.processes;
  if (first && (code == 0 || code == kSurvivorCode || first->code != kSurvivorCode)) {
    std::fflush(nullptr);
    ranks_->output().print(ranks_->report(job_.processes - 1));
  } else if (code != 0) {
    std::fflush(nullptr);
    ranks_->output().print("levin: rank " + std::to_string(self) + " (process " + std::to_string(owner_) +
                           ") exited with code " + std::to_string(code) + ", and the other ranks were ended\n");
  }
  if (first && code == 0) {
    std::fflush(nullptr);
    ::_exit(first->code);
  }
}

void leave(int code, void*) {
  if (script != nullptr && script->owner() == ::getpid()) script->at_exit(code);
}

}  // namespace

std::shared_ptr<ClusterEnvironment> launch_script(const LaunchOptions& o) {
  if (o.processes < 1 || o.processes > 4096 || o.nodes < 1 || o.nodes > kMostRanks / o.processes || !(o.grace >= 0)) {
    fail<ConfigError>("launch_script: processes is ", o.processes, " (expected 1 to 4096), nodes ", o.nodes,
                      " (1 or more), grace ", o.grace, " (0 or more)");
  }
  auto environment = ClusterEnvironment::detect();
  environment->validate(o.processes, o.nodes);
  if (environment->creates_processes_externally() || std::int64_t{o.processes} * o.nodes == 1) return environment;
  if (on_path("srun") && !has_variable("SLURM_JOB_ID")) {
    warn("W-SLURM-SRUN", WarningCategory::possible_user,
         "srun is on the PATH and did not start this program: its processes run on this machine alone");
  }
  auto started = std::make_unique<Script>(JobShape{.launcher = "script",
                                                   .processes = o.processes,
                                                   .nodes = o.nodes,
                                                   .node_rank = environment->node_rank(),
                                                   .address = environment->main_address(),
                                                   .port = environment->main_port()},
                                          o.grace);
  started->start();
  script = started.release();  // lives until the process ends
  ::on_exit(leave, nullptr);
  return ClusterEnvironment::detect();
}

void hold_kill(double seconds) noexcept {
  if (!(seconds >= 0)) return;
  if (script != nullptr && script->owner() == ::getpid()) script->hold(seconds);
  int fd = -1;
  const char* const text = ::getenv("LEVIN_LAUNCH_FD");
  if (text == nullptr || std::from_chars(text, text + std::strlen(text), fd).ec != std::errc()) return;
  struct stat what {};
  if (fd < 3 || ::fstat(fd, &what) != 0 || !S_ISFIFO(what.st_mode)) return;
  const NoSigpipe quiet;
  (void)!::write(fd, &seconds, sizeof seconds);
}

}  // namespace levin::dist
