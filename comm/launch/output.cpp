#include "comm/launch/output.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <utility>

#include "tensor/text/screen.h"

namespace levin::dist {
namespace {

constexpr std::size_t kLongestLine = std::size_t{1} << 20;  // a longer one is cut, so that memory is bounded
constexpr std::size_t kTail = 8192;                         // bytes of stderr that are kept for the report
constexpr int kTailLines = 24;

}  // namespace

bool write_all(int fd, std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n > 0) {
      text.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno == EAGAIN) {
      pollfd wait{fd, POLLOUT, 0};
      ::poll(&wait, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

NoSigpipe::NoSigpipe() noexcept {
  sigset_t pipe, before;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  blocked_ = pthread_sigmask(SIG_BLOCK, &pipe, &before) == 0 && sigismember(&before, SIGPIPE) == 0;
}
NoSigpipe::~NoSigpipe() {
  if (!blocked_) return;
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  const timespec none{};
  while (sigtimedwait(&pipe, nullptr, &none) < 0 && errno == EINTR) {}
  pthread_sigmask(SIG_UNBLOCK, &pipe, nullptr);
}

void Output::add(Fd from, int rank, int stream, Form form) {
  set_nonblocking(from);
  sources_.push_back({.from = std::move(from), .rank = rank, .stream = stream, .form = form});
}

void Output::start() {
  wake_ = make_pipe();
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the program's signals are for its own threads
  try {
    thread_ = std::thread([this] { run(); });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Output::run() {
  std::vector<pollfd> polled;
  std::vector<Source*> open;
  while (true) {
    polled.assign(1, {wake_.read.get(), POLLIN, 0});
    open.clear();
    for (Source& source : sources_) {
      if (source.ended) continue;
      polled.push_back({source.from.get(), POLLIN, 0});
      open.push_back(&source);
    }
    if (::poll(polled.data(), polled.size(), -1) < 0) continue;
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (polled[i + 1].revents != 0) take(*open[i]);
    }
    if (polled[0].revents != 0) break;
  }
  // What a grandchild writes after this is lost; the pipe holds at most a megabyte of what is owed.
  constexpr int kMostReads = 64;
  for (Source& source : sources_) {
    for (int i = 0; i < kMostReads && !source.ended && take(source); ++i) {}
    end(source);
  }
}

bool Output::take(Source& source) {
  std::array<char, 65536> bytes;
  const ssize_t n = ::read(source.from.get(), bytes.data(), bytes.size());
  if (n > 0) {
    give(source, {bytes.data(), static_cast<std::size_t>(n)});
    return true;
  }
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return errno == EINTR;
  end(source);  // EOF; EIO of a terminal whose other side is closed
  return false;
}

void Output::give(Source& source, std::string_view bytes) {
  const std::string prefix =
      source.form == Form::prefixed ? "[rank " + std::to_string(source.rank) + "] " : std::string();
  std::string out;
  if (source.form == Form::raw) {
    out = bytes;
  } else {
    source.line += bytes;
    std::size_t begin = 0;
    for (std::size_t end; (end = source.line.find('\n', begin)) != std::string::npos; begin = end + 1)
      out += prefix + source.line.substr(begin, end + 1 - begin);
    source.line.erase(0, begin);
    if (source.line.size() > kLongestLine) out += prefix + std::exchange(source.line, "") + "\n";
  }
  if (out.empty()) return;
  if (source.stream == STDERR_FILENO) {
    source.tail += out;
    if (source.tail.size() > 2 * kTail) source.tail.erase(0, source.tail.size() - kTail);
  }
  write(source.stream, out, source.form == Form::raw);
}

void Output::end(Source& source) {
  if (!source.line.empty()) give(source, "\n");
  source.ended = true;
  source.from.reset();
}

void Output::write(int stream, std::string_view text, bool raw) {
  if (to_ == To::screen) {
    std::FILE* const file = stream == STDERR_FILENO ? stderr : stdout;
    detail::print_above(file, text);
    std::fflush(file);
    return;
  }
  if (raw) {
    open_line_ = text.back() != '\n';
  } else if (std::exchange(open_line_, false)) {
    write_all(stream, "\n");
  }
  write_all(stream, text);
}

void Output::finish() noexcept {
  if (!thread_.joinable()) return;
  write_all(wake_.write.get(), "x");
  thread_.join();
}

std::string Output::tail(int rank) const {
  std::string all;
  for (const Source& source : sources_) {
    if (source.rank == rank && source.stream == STDERR_FILENO) all += source.tail;
  }
  while (!all.empty() && all.back() == '\n') all.pop_back();
  std::size_t begin = all.size();
  for (int lines = 0; lines < kTailLines && begin != std::string::npos && all.size() - begin < kTail; ++lines)
    begin = begin == 0 ? std::string::npos : all.rfind('\n', begin - 1);
  if (begin != std::string::npos) all.erase(0, begin + 1);
  return all.empty() ? all : all + "\n";
}

void Output::print(std::string_view text) {
  const NoSigpipe quiet;
  write(STDERR_FILENO, text, false);
}

}  // namespace levin::dist
