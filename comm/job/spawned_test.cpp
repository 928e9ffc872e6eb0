#include "comm/job/spawned_test.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "comm/job/card.h"
#include "comm/job/note.h"
#include "levin/error.h"
#include "tensor/text/number_text.h"

namespace levin::test {
namespace {

using dist::steady_seconds;
using std::string;
using std::string_view;

constexpr int kMostRanks = 16;
constexpr std::size_t kText = 2048;
constexpr int kUnitialised = -1;

int zygote = kUnitialised;                     // the socket to it
std::vector<std::pair<pid_t, int>> unclaimed;  // ends of processes whose group was not the one that waited

// Plain bytes on a socket; the descriptors travel beside it: reports and output of each rank, then the release.
struct Request {
  void (*body)(Rank&) = nullptr;
  int size = 0;
  std::array<char, kText> argument{}, points{};
};
// pid > 0 with started: rank's process; else the end of one.
struct Answer {
  bool started = false;
  pid_t pid = 0;
  int status = 0;
};

// What the threads of this process have waited for a core: the second number of each schedstat, in nanoseconds.
double queued_seconds() {
  double all = 0;
  std::error_code none;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", none)) {
    std::array<char, 128> bytes{};
    const int file = ::open((thread.path() / "schedstat").c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;
    (void)!::read(file, bytes.data(), bytes.size() - 1);
    ::close(file);
    const string_view text = bytes.data();
    const std::size_t begin = text.find(' ') + 1;
    all += detail::read_double(text.substr(begin, text.find(' ', begin) - begin)).value_or(0) * 1e-9;
  }
  return all;
}

[[noreturn]] void run_rank(const Request& request, int rank, int reports, int output, int release) {
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::dup2(output, 1);
  ::dup2(output, 2);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  ::setenv("LEVIN_POINTS", request.points.data(), 1);
  ::setenv("LEVIN_POINTS_EVENTS", std::to_string(reports).c_str(), 1);
  ::setenv("LEVIN_POINTS_RELEASE", std::to_string(release).c_str(), 1);
  Rank self(rank, request.size, request.argument.data(), reports);
  const auto threw = [&](const string& what) {
    self.report("queued " + detail::fixed(queued_seconds(), 6));
    self.report("threw " + what);
    std::fflush(nullptr);
    ::_exit(1);
  };
  try {
    request.body(self);
  } catch (const CommError& e) { threw(string("CommError: ") + e.what()); } catch (const ConfigError& e) {
    threw(string("ConfigError: ") + e.what());
  } catch (const DataError& e) { threw(string("DataError: ") + e.what()); } catch (const std::exception& e) {
    threw(string("exception: ") + e.what());
  }
  std::fflush(nullptr);
  ::_exit(0);
}

void take_request(int socket, const sigset_t& old_mask) {
  Request request;
  std::array<int, 2 * kMostRanks + 1> fds{};
  iovec data{&request, sizeof request};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof fds)> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t n = ::recvmsg(socket, &message, 0);
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (n != sizeof request || header == nullptr) ::_exit(0);  // the test program has ended, and so do the ranks
  static const dist::Card hashed = dist::own_card(1, "");    // the ranks inherit the hash of the program
  std::memcpy(fds.data(), CMSG_DATA(header), header->cmsg_len - CMSG_LEN(0));
  const std::size_t given = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  for (int r = 0; r < request.size; ++r) {
    const auto at = static_cast<std::size_t>(2 * r);
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(socket);
      (void)::sigprocmask(SIG_SETMASK, &old_mask, nullptr);
      for (std::size_t i = 0; i + 1 < given; ++i) {
        if (i != at && i != at + 1) ::close(fds[i]);
      }
      run_rank(request, r, fds[at], fds[at + 1], fds[given - 1]);
    }
    const Answer answer{.started = true, .pid = child};
    (void)!::send(socket, &answer, sizeof answer, MSG_NOSIGNAL);
  }
  for (std::size_t i = 0; i < given; ++i) ::close(fds[i]);
}

[[noreturn]] void serve(int socket) {
  sigset_t children, old_mask;
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  (void)::sigprocmask(SIG_BLOCK, &children, &old_mask);
  const int ends = ::signalfd(-1, &children, SFD_CLOEXEC);
  for (;;) {
    std::array<pollfd, 2> both{{{socket, POLLIN, 0}, {ends, POLLIN, 0}}};
    (void)::poll(both.data(), both.size(), -1);
    if (both[1].revents != 0) {
      signalfd_siginfo info{};
      (void)!::read(ends, &info, sizeof info);
      Answer answer;
      while ((answer.pid = ::waitpid(-1, &answer.status, WNOHANG)) > 0)
        (void)!::send(socket, &answer, sizeof answer, MSG_NOSIGNAL);
    }
    if (both[0].revents != 0) take_request(socket, old_mask);
  }
}

}  // namespace

void start_zygote() {
  std::array<int, 2> pair{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()) != 0) return;
  // Through a process between them, which ends at once: tests that wait for any child must not meet the zygote.
  const pid_t between = ::fork();
  if (between == 0) {
    if (::fork() != 0) ::_exit(0);
    ::close(pair[0]);
    (void)::setpgid(0, 0);  // a terminal's Ctrl-C is for the test program
    serve(pair[1]);
  }
  (void)::waitpid(between, nullptr, 0);
  ::close(pair[1]);
  zygote = pair[0];
}

void Rank::report(const string& line) const {
  string bytes = line;
  std::replace(bytes.begin(), bytes.end(), '\n', '\x1f');
  std::replace(bytes.begin(), bytes.end(), '\t', ' ');
  bytes += "\t" + detail::fixed(steady_seconds(), 6) + "\n";
  (void)!::write(reports_, bytes.data(), bytes.size());
}

Spawned::Spawned(int size, void (*body)(Rank&), const Options& options)
    : processes_(static_cast<std::size_t>(size)),
      ends_(static_cast<std::size_t>(size)),
      deadline_(steady_seconds() + options.limit) {
  if (zygote == kUnitialised) throw std::runtime_error("start_zygote() was not called");
  if (size > kMostRanks || options.argument.size() >= kText || options.points.size() >= kText)
    throw std::runtime_error("Spawned: too many ranks, or too long a text");
  Request request{.body = body, .size = size};
  std::copy(options.argument.begin(), options.argument.end(), request.argument.begin());
  std::copy(options.points.begin(), options.points.end(), request.points.begin());
  std::vector<int> given;
  for (Process& p : processes_) {
    for (int* end : {&p.reports, &p.output}) {
      std::array<int, 2> ends{};
      if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
      *end = ends[0];
      given.push_back(ends[1]);
    }
  }
  std::array<int, 2> release{};
  if (::pipe2(release.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  release_ = release[1];
  released_ = ::fcntl(release[0], F_DUPFD_CLOEXEC, 0);  // release() may come after the end of all ranks
  given.push_back(release[0]);
  iovec data{&request, sizeof request};
  const std::size_t bytes = given.size() * sizeof(int);
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * (2 * kMostRanks + 1))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(bytes);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(bytes);
  std::memcpy(CMSG_DATA(header), given.data(), bytes);
  const ssize_t sent = ::sendmsg(zygote, &message, MSG_NOSIGNAL);
  for (const int fd : given) ::close(fd);
  if (sent != sizeof request) throw std::runtime_error("the zygote is gone");
  for (Process& p : processes_) {
    while (p.pid < 0) {
      Answer answer;
      if (::recv(zygote, &answer, sizeof answer, 0) != sizeof answer) throw std::runtime_error("the zygote is gone");
      if (answer.started) {
        p.pid = answer.pid;
        continue;
      }
      unclaimed.emplace_back(answer.pid, answer.status);
    }
  }
}

Spawned::~Spawned() {
  for (const Process& p : processes_) {
    if (!p.ended && p.pid > 0) (void)::kill(p.pid, SIGKILL);
  }
  try {
    deadline_ = steady_seconds() + 10;
    while (std::any_of(processes_.begin(), processes_.end(), [](const Process& p) { return !p.ended; })) pump();
  } catch (...) {}
  for (const Process& p : processes_) {
    if (p.reports >= 0) ::close(p.reports);
    if (p.output >= 0) ::close(p.output);
  }
  if (release_ >= 0) ::close(release_);
  if (released_ >= 0) ::close(released_);
}

string Spawned::all_output() const {
  string out;
  for (std::size_t r = 0; r < ends_.size(); ++r) {
    string line = "rank " + std::to_string(r) + ": ";
    for (const string& report : ends_[r].reports) out += line + "reports " + report + "\n";
    if (!ends_[r].error.empty()) out += line + ends_[r].error + "\n";
    if (!ends_[r].output.empty()) out += line + "prints " + ends_[r].output + "\n";
  }
  return out;
}

void Spawned::give_up(const string& why) {
  for (const Process& p : processes_) {
    if (!p.ended && p.pid > 0) (void)::kill(p.pid, SIGKILL);
  }
  throw std::runtime_error(why + "\n" + all_output());
}

bool Spawned::claim_ends() {
  const auto claim = [&](const std::pair<pid_t, int>& end) {
    for (std::size_t r = 0; r < processes_.size(); ++r) {
      if (processes_[r].pid != end.first || processes_[r].ended) continue;
      processes_[r].ended = true;
      ends_[r].code = WIFEXITED(end.second) ? WEXITSTATUS(end.second) : -1;
      ends_[r].signal = WIFSIGNALED(end.second) ? WTERMSIG(end.second) : 0;
      return true;
    }
    return false;
  };
  return std::erase_if(unclaimed, claim) != 0;
}

void Spawned::pump() {
  if (claim_ends()) return;
  std::vector<pollfd> all{{zygote, POLLIN, 0}};
  for (const Process& p : processes_) {
    all.push_back({p.reports, POLLIN, 0});
    all.push_back({p.output, POLLIN, 0});
  }
  const double left = deadline_ - steady_seconds();
  const int n = left <= 0 ? 0 : ::poll(all.data(), all.size(), static_cast<int>(std::ceil(left * 1000)));
  if (n == 0) give_up("ranks did not end in time");
  for (std::size_t r = 0; r < processes_.size(); ++r) {
    Process& p = processes_[r];
    End& end = ends_[r];
    std::array<char, 4096> buffer{};
    const auto take = [&](int& fd, const pollfd& ready, string& into) {
      if (ready.revents == 0 || fd < 0) return;
      const ssize_t bytes = ::read(fd, buffer.data(), buffer.size());
      if (bytes > 0) into.append(buffer.data(), static_cast<std::size_t>(bytes));
      if (bytes == 0) {
        ::close(fd);
        fd = -1;
      }
    };
    take(p.reports, all[1 + 2 * r], p.rest);
    take(p.output, all[2 + 2 * r], end.output);
    for (std::size_t at = p.rest.find('\n'); at != string::npos; at = p.rest.find('\n')) {
      string line = p.rest.substr(0, at);
      p.rest.erase(0, at + 1);
      std::replace(line.begin(), line.end(), '\x1f', '\n');
      const std::size_t tab = line.rfind('\t');
      double when = 0;
      if (tab != string::npos) {
        when = detail::read_double(string_view(line).substr(tab + 1)).value_or(0);
        line.erase(tab);
      }
      if (line.starts_with("threw ")) {
        end.error = line.substr(6);
        end.failed_at = when;
      } else if (line.starts_with("queued ")) {
        end.queued = detail::read_double(string_view(line).substr(7)).value_or(0);
      } else {
        end.reports.push_back(line);
        end.times.push_back(when);
      }
    }
  }
  if (all[0].revents == 0) return;
  Answer answer;
  if (::recv(zygote, &answer, sizeof answer, 0) != sizeof answer) give_up("the zygote is gone");
  unclaimed.emplace_back(answer.pid, answer.status);
  (void)claim_ends();
}

void Spawned::wait_for(int rank, const string& line) {
  const auto r = static_cast<std::size_t>(rank);
  const auto reported = [&] {
    return std::find(ends_[r].reports.begin(), ends_[r].reports.end(), line) != ends_[r].reports.end();
  };
  while (!reported()) {
    if (processes_[r].ended && processes_[r].reports < 0)
      give_up("rank " + std::to_string(rank) + " ended and did not report `" + line + "`");
    pump();
  }
}

double Spawned::seconds_to_error(int rank, const string& line, int survivor) const {
  const End &from = end_of(rank), &to = end_of(survivor);
  for (std::size_t i = 0; i < from.reports.size(); ++i) {
    if (from.reports[i].starts_with(line) && to.failed_at > 0) return to.failed_at - from.times[i] - to.queued;
  }
  throw std::runtime_error("no line `" + line + "` of rank " + std::to_string(rank) + ", or no error of rank " +
                           std::to_string(survivor) + "\n" + all_output());
}

void Spawned::kill(int rank, int signal) const { (void)::kill(processes_[static_cast<std::size_t>(rank)].pid, signal); }

void Spawned::release() {
  for (std::size_t r = 0; r < processes_.size(); ++r) (void)!::write(release_, "r", 1);
}

void Spawned::wait_but(int rank) {
  const auto running = [&](std::size_t r) {
    const Process& p = processes_[r];
    return static_cast<int>(r) != rank && (!p.ended || p.reports >= 0 || p.output >= 0);
  };
  for (std::size_t r = 0; r < processes_.size(); ++r) {
    while (running(r)) pump();
  }
}
void Spawned::wait() { wait_but(-1); }

namespace {

TEST_CASE("spawned ranks report lines, errors, output and their ends") {
  Spawned group(3,
                [](Rank& rank) {
                  std::printf("printed by %d\n", rank.rank());
                  rank.report(rank.argument() + " of " + std::to_string(rank.size()));
                  if (rank.rank() == 1) fail<DataError>("two\nlines");
                  if (rank.rank() == 2) ::pause();
                },
                {.argument = "argument"});
  group.wait_for(2, "argument of 3");
  group.wait_but(2);
  group.kill(2, SIGTERM);
  group.wait();
  CHECK(group.end_of(0).code == 0);
  CHECK(group.end_of(0).output == "printed by 0\n");
  CHECK(group.end_of(1).code == 1);
  CHECK(group.end_of(1).error == "DataError: two\nlines");
  CHECK(group.end_of(2).code == -1);
  CHECK(group.end_of(2).signal == SIGTERM);
}

TEST_CASE("spawned ranks that do not end are killed after the limit, and the wait fails") {
  Spawned group(2, [](Rank&) { ::pause(); }, {.limit = 0.05});
  CHECK_THROWS_WITH_AS(group.wait(), doctest::Contains("did not end in time"), std::runtime_error);
}

}  // namespace
}  // namespace levin::test
