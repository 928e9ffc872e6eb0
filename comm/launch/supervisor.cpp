#include "comm/launch/supervisor.h"

#include <fcntl.h>
#include <linux/types.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "levin/error.h"

namespace levin::dist {
namespace {

constexpr double kSurvivorWait = 2;  // seconds for the rank that failed first to end, after a survivor's end
constexpr int kPollMs = 100;         // where the system has no pidfd

// What hold_kill sends: smaller than PIPE_BUF, so it arrives whole.
struct Hold {
  double seconds;
};

void to_descriptor(int from, int to) noexcept {
  if (from >= 0) ::dup2(from, to);
}

}  // namespace

std::string text(const Ending& e) {
  const std::string head = "rank " + std::to_string(e.rank) + " (process " + std::to_string(e.pid) + ") ";
  if (e.signal == 0) return head + "exited with code " + std::to_string(e.code);
  const char* const name = ::sigabbrev_np(e.signal);
  return head + "was killed by signal " + std::to_string(e.signal) + (name ? std::string(" (SIG") + name + ")" : "");
}

Supervisor::Supervisor(std::string who, Output::To to, double grace)
    : who_(std::move(who)), grace_(grace), output_(to), wake_(make_pipe()), hold_(make_pipe()) {
  set_nonblocking(wake_.read);
  set_nonblocking(wake_.write);
  set_nonblocking(hold_.read);
}

Supervisor::~Supervisor() {
  kill_ = true;
  signal_all(SIGKILL);
  for (const auto& rank : ranks_) {
    while (!rank->ended && ::waitpid(rank->ending.pid, nullptr, 0) < 0 && errno == EINTR) {}
  }
}

std::string Supervisor::hold_variable() const { return "LEVIN_LAUNCH_FD=" + std::to_string(hold_.write.get()); }

void Supervisor::fork_rank(int rank, Streams streams, const std::function<int()>& inside) {
  Pipe out, error;
  Fd in, terminal;
  Output::Form form = Output::Form::prefixed;
  if (streams != Streams::inherited) {
    if (streams == Streams::prefixed || ::isatty(STDIN_FILENO) == 1 || ::fcntl(STDIN_FILENO, F_GETFD) < 0)
      in = above_stderr(::open("/dev/null", O_RDONLY | O_CLOEXEC), "/dev/null");
    if (streams == Streams::prefixed || ::isatty(STDOUT_FILENO) == 0) out = make_pipe();
    if (streams == Streams::first) form = Output::Form::lines;
    if (streams == Streams::first && ::isatty(STDERR_FILENO) == 1) {
      Terminal made = make_terminal(STDERR_FILENO);
      terminal = std::move(made.master);
      error.write = std::move(made.slave);
    }
    if (!terminal) error = make_pipe();
  }
  auto added = std::make_unique<Rank>();
  ranks_.reserve(ranks_.size() + 1);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all,
                  &before);  // no handler of the parent runs in the child before its streams are made
  const pid_t parent = ::getpid(), pid = ::fork();
  if (pid == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(kSurvivorCode);  // the parent died before prctl
    to_descriptor(in.get(), STDIN_FILENO);
    to_descriptor(out.write.get(), STDOUT_FILENO);
    to_descriptor(error.write.get(), STDERR_FILENO);
    ::fcntl(hold_.write.get(), F_SETFD, 0);  // exec keeps it: hold_kill of the rank writes to it
    for (const auto& other : ranks_) other->watch.reset();
    for (const int number : {SIGTERM, SIGINT}) {  // a handler is for the calling program's own end
      struct sigaction now {};
      if (::sigaction(number, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) ::signal(number, SIG_DFL);
    }
    sigset_t mask = before;
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
      if (signals) sigdelset(&mask, number);  // blocked for the signalfd alone
    }
    pthread_sigmask(SIG_SETMASK, &mask, nullptr);
    ::_exit(inside());
  }
  const int code = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) fail<ConfigError>(who_, ": no process for rank ", rank, ": ", std::strerror(code));
  ::setpgid(pid, pid);  // in both, so that the group exists for either
  added->ending = {.rank = rank, .pid = pid};
  added->watch = Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  ranks_.push_back(std::move(added));
  if (out.read) output_.add(std::move(out.read), rank, STDOUT_FILENO, form);
  if (terminal) output_.add(std::move(terminal), rank, STDERR_FILENO, Output::Form::raw);
  if (error.read) output_.add(std::move(error.read), rank, STDERR_FILENO, form);
}

void Supervisor::signal_all(int signal) noexcept {
  for (const auto& rank : ranks_) {
    if (!rank->ended) ::kill(-rank->ending.pid, signal);
  }
}

void Supervisor::wake() noexcept { (void)!::write(wake_.write.get(), "x", 1); }
void Supervisor::stop() noexcept {
  stop_ = true;
  wake();
}
void Supervisor::kill() noexcept {
  kill_ = true;
  wake();
}
void Supervisor::forward(int signal) noexcept { signal_all(signal); }
void Supervisor::hold(double seconds) noexcept {
  hold_until_ = seconds > 0 ? steady_seconds() + seconds : 0;
  wake();
}

std::optional<Ending> Supervisor::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::vector<int> Supervisor::running() const {
  std::vector<int> ranks;
  for (const auto& rank : ranks_) {
    if (!rank->ended) ranks.push_back(rank->ending.rank);
  }
  return ranks;
}

bool Supervisor::reap(Rank& rank) {
  siginfo_t info{};
  // The rank stays a zombie for the moment: its number, which is that of its group, cannot be given to another process.
  const int rc = ::waitid(P_PID, static_cast<id_t>(rank.ending.pid), &info, WEXITED | WNOHANG | WNOWAIT);
  if (rc == 0 && info.si_pid == 0) return false;
  if (rc == 0) {
    rank.ending.signal = info.si_code == CLD_EXITED ? 0 : info.si_status;
    rank.ending.code = rank.ending.signal == 0 ? info.si_status : 128 + rank.ending.signal;
    if (rank.ending.code != 0) ::kill(-rank.ending.pid, SIGKILL);  // what it has started
    ::waitpid(rank.ending.pid, nullptr, 0);
  } else {
    if (errno == EINTR) return false;
    rank.ending.code = 1;  // the program ignores SIGCHLD, or waited for our child: the code is lost
  }
  rank.watch.reset();
  rank.ended = true;
  return true;
}

void Supervisor::decide(const Ending& ending) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = ending;
  }
  if (on_failure) on_failure(ending);
  stop_ = true;
}

void Supervisor::run() {
  std::vector<pollfd> polled;
  while (true) {
    std::size_t alive = 0;
    bool blind = false;
    polled.assign({{wake_.read.get(), POLLIN, 0}, {hold_.read.get(), POLLIN, 0}, {signals.get(), POLLIN, 0}});
    for (const auto& rank : ranks_) {
      if (rank->ended) continue;
      if (!reap(*rank)) {
        ++alive;
        blind = blind || !rank->watch;
        polled.push_back({rank->watch.get(), POLLIN, 0});
      } else if (rank->ending.code == 0 || stop_) {
        continue;  // a rank that was told to end has not failed
      } else if (rank->ending.code != kSurvivorCode) {
        decide(rank->ending);
      } else if (!survivor_) {
        survivor_ = rank->ending;
        survivor_at_ = steady_seconds();
      }
    }
    const double now = steady_seconds();
    if (survivor_ && !failure() && (alive == 0 || now >= survivor_at_ + kSurvivorWait)) decide(*survivor_);
    if (alive == 0) break;
    double wait = -1;  // seconds; -1: until something happens
    const auto until = [&](double at) { wait = std::max(0.0, wait < 0 ? at - now : std::min(wait, at - now)); };
    if (survivor_ && !failure()) until(survivor_at_ + kSurvivorWait);
    if (stop_ && term_at_ == 0) {
      term_at_ = now;
      signal_all(SIGTERM);
      signal_all(SIGCONT);  // a stopped rank takes SIGTERM after it
    }
    if (term_at_ > 0 && !killed_) {
      const double at = std::max(term_at_ + grace_, hold_until_.load());
      if (now >= at) kill_ = true;
      until(at);
    }
    if (kill_ && !killed_) {
      killed_ = true;
      signal_all(SIGKILL);
      if (on_kill) on_kill();
      continue;
    }
    if (blind) until(now + kPollMs / 1000.0);
    if (::poll(polled.data(), polled.size(), wait < 0 ? -1 : static_cast<int>(std::ceil(wait * 1000))) < 0) continue;
    std::array<char, 256> ignored;
    if (polled[0].revents != 0) (void)!::read(wake_.read.get(), ignored.data(), ignored.size());
    if (Hold asked{}; polled[1].revents != 0 && ::read(hold_.read.get(), &asked, sizeof asked) == sizeof asked &&
                      asked.seconds >= 0) {  // not NaN
      hold_until_ = asked.seconds > 0 ? now + std::min(asked.seconds, 3600.0) : 0;
    }
    if (polled[2].revents != 0) {
      signalfd_siginfo info{};
      if (::read(signals.get(), &info, sizeof info) == sizeof info && on_signal)
        on_signal(static_cast<int>(info.ssi_signo));
    }
  }
  output_.finish();
}

std::string Supervisor::report(int others) const {
  const std::optional<Ending> first = failure();
  if (!first) return "";
  std::string out = who_ + ": " + text(*first);
  if (others > 0)
    out += ", and " + std::to_string(others) + " other rank" + (others > 1 ? "s were" : " was") + " ended";
  const std::string tail = output_.tail(first->rank);
  return out + (tail.empty() ? ". It wrote nothing to stderr.\n" : ". The end of its stderr:\n" + tail);
}

}  // namespace levin::dist
