#include "tests/workers.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>

namespace levin::test {
namespace {

constexpr int kMost = 64;
constexpr std::size_t kName = 512;

[[noreturn]] void give_up(const char* what) {
  std::fprintf(stderr, "levin_tests: %s: %s\n", what, std::strerror(errno));
  std::exit(70);
}

}  // namespace

struct Workers::Shared {
  std::atomic<int> next{1}, passed{0}, failed{0}, skipped{0};
  struct Test {
    std::array<char, kName> name{};  // empty: the worker has begun none, or has finished
    std::atomic<bool> counted{false};
  };
  std::array<Test, kMost> tests{};  // the last one of each worker
};

Workers::Workers(int size) : size_(size < kMost ? size : kMost) {
  void* const memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) give_up("no memory for the workers");
  shared_ = new (memory) Shared;
  reasons_ = ::memfd_create("levin-tests-skipped", MFD_CLOEXEC);
  if (reasons_ < 0 || ::fcntl(reasons_, F_SETFL, O_APPEND) != 0) give_up("no file for the reasons of skips");
  workers_.resize(static_cast<std::size_t>(size_));
  for (int i = 0; size_ > 1 && i < size_; ++i) {
    if (fork_worker(i)) return;
  }
}

bool Workers::fork_worker(int index) {
  const pid_t parent = ::getpid(), child = ::fork();
  if (child < 0) give_up("no process for a worker");
  if (child > 0) {
    workers_[static_cast<std::size_t>(index)] = child;
    return false;
  }
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  index_ = index;
  return true;
}

int Workers::claim() const { return shared_->next++; }

void Workers::begins(const char* name) const {
  Shared::Test& test = shared_->tests[static_cast<std::size_t>(index_ < 0 ? 0 : index_)];
  test.counted = false;
  std::snprintf(test.name.data(), kName, "%s", name);
}

Counts Workers::ends(const Counts& one) const {
  shared_->passed += one.passed;
  shared_->failed += one.failed;
  shared_->skipped += one.skipped;
  shared_->tests[static_cast<std::size_t>(index_ < 0 ? 0 : index_)].counted = true;
  return counts();
}

void Workers::finishes() const { shared_->tests[static_cast<std::size_t>(index_)].name[0] = '\0'; }

void Workers::skipped(const std::string& reason) const {
  const std::string line = reason + "\n";
  (void)!::write(reasons_, line.data(), line.size());
}

// A record lock is of a process, unlike flock on a descriptor that the workers share.
void Workers::exclusively(const Function<void()>& f) const {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  while (::fcntl(reasons_, F_SETLKW, &lock) != 0 && errno == EINTR) {}
  f();
  lock.l_type = F_UNLCK;
  (void)::fcntl(reasons_, F_SETLK, &lock);
}

bool Workers::wait() {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    int status = 0;
    while (::waitpid(workers_[i], &status, 0) < 0 && errno == EINTR) {}
    Shared::Test& test = shared_->tests[i];
    const bool within = test.name[0] != '\0';
    if (!within && WIFEXITED(status) && WEXITSTATUS(status) <= 1) continue;  // 1: tests have failed
    if (!within || !test.counted) {  // doctest counts a test that crashes, and then the process ends
      ++shared_->failed;
      const std::string how = WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status)) + " (" +
                                                        ::strsignal(WTERMSIG(status)) + ")"
                                                  : "exit code " + std::to_string(WEXITSTATUS(status));
      const char* const name = within ? test.name.data() : "outside of tests";
      std::printf("FAILED %s\n  its process ended by %s\n", name, how.c_str());
      std::fflush(stdout);  // a new worker must not print it again
    }
    if (!within) continue;
    test.name[0] = '\0';
    if (fork_worker(static_cast<int>(i))) return true;
    --i;  // waits for the new one
  }
  return false;
}

Counts Workers::counts() const {
  return {.passed = shared_->passed, .failed = shared_->failed, .skipped = shared_->skipped};
}

std::vector<std::string> Workers::reasons() const {
  std::string text;
  std::array<char, 4096> part{};
  for (;;) {
    const ssize_t n = ::pread(reasons_, part.data(), part.size(), static_cast<off_t>(text.size()));
    if (n <= 0) break;
    text.append(part.data(), static_cast<std::size_t>(n));
  }
  std::vector<std::string> out;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = rest.find('\n');
    out.emplace_back(rest.substr(0, end));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  return out;
}

}  // namespace levin::test
