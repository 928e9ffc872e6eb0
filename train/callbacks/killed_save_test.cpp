// A run that is killed at each system call of its saves resumes from the files on disk.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "tests/skip.h"
#include "tests/warnings.h"
#include "train/run/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

namespace fs = std::filesystem;

constexpr long kMark = SYS_getsid;  // no other code makes this call

// Calls for memory change no file. Their number depends on the allocator: a sanitizer's makes another number in each
// process.
bool asks_for_memory(std::uint64_t call) {
  for (const long known : {SYS_brk, SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_madvise})
    if (call == static_cast<std::uint64_t>(known)) return true;
  return false;
}

// Marks for the tracer the begin and the end of the saves of steps 2 and 3, which it disturbs.
struct Marks : Callback {
  BatchStart on_train_batch_start(const StepInfo& info) override {
    if (info.global_step == 1 || info.global_step == 3) (void)::syscall(kMark, 0);
    return BatchStart::proceed;
  }
};

struct Run {
  Generator gen{3};
  Net net{{.gen = gen, .device = Device::cpu()}};
  optim::Adam opt{net.parameters(), {.lr = 0.01}};
  data::DataLoader data = loader(16, 4);
  Trainer trainer;
  Run(const std::string& root, SaveLast last) : trainer(options(root, last)) {}
  static TrainerOptions options(const std::string& root, SaveLast last) {
    TrainerOptions o = silent();
    o.enable_checkpointing = true;
    o.default_root_dir = root;
    o.max_epochs = 1;
    o.callbacks = {std::make_shared<Marks>(), std::make_shared<ModelCheckpoint>(
                                                  ModelCheckpointOptions{.save_last = last, .every_n_train_steps = 1})};
    return o;
  }
  void fit(const std::string& ckpt_path = {}) {
    trainer.fit(opt, data, [&](const Batch& b) { return squared_error(net(b[0]), b[1]); }, {.ckpt_path = ckpt_path});
  }
};

enum class End : std::uint8_t { killed, finished, not_traced, failed };

// Runs in a child, and kills it before the n-th call between the marks, not counting calls for memory.
End run_and_kill(const std::string& root, SaveLast last, int n) {
  const pid_t child = fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(2);
    ::raise(SIGSTOP);
    try {
      set_num_threads(1);  // worker threads do not survive a fork
      Run(root, last).fit();
    } catch (...) { _exit(1); }
    _exit(0);
  }
  int status = 0, seen = 0, marks = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return End::failed;
  if (WIFEXITED(status)) return WEXITSTATUS(status) == 2 ? End::not_traced : End::failed;
  if (::ptrace(PTRACE_SETOPTIONS, child, nullptr, reinterpret_cast<void*>(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL)) !=
      0)
    return End::failed;
  while (true) {
    if (::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr) != 0 || ::waitpid(child, &status, 0) != child)
      return End::failed;
    if (WIFEXITED(status)) return WEXITSTATUS(status) == 0 ? End::finished : End::failed;
    if (WIFSIGNALED(status)) return End::failed;
    __ptrace_syscall_info info{};
    if (::ptrace(PTRACE_GET_SYSCALL_INFO, child, reinterpret_cast<void*>(sizeof info), &info) <= 0) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return End::not_traced;
    }
    if (info.op != PTRACE_SYSCALL_INFO_ENTRY) continue;
    if (info.entry.nr == static_cast<std::uint64_t>(kMark)) {
      ++marks;
    } else if (marks == 1 && !asks_for_memory(info.entry.nr) && ++seen == n) {
      ::kill(child, SIGKILL);
      while (::waitpid(child, &status, 0) == child && !WIFSIGNALED(status) && !WIFEXITED(status)) {}
      return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? End::killed : End::failed;
    }
  }
}

}  // namespace

namespace {

void check_kills(SaveLast last) {
  const TemporaryFolder whole_dir;
  Run whole(whole_dir.path(), last);
  whole.fit();
  int kills = 0;
  std::vector<std::int64_t> steps;  // from which a run resumed
  for (int n = 1;; ++n) {
    CAPTURE(n);
    const TemporaryFolder dir;
    const End end = run_and_kill(dir.path(), last, n);
    if (end == End::not_traced) return skip("processes can not be traced here");
    REQUIRE(end != End::failed);
    if (end == End::finished) break;
    ++kills;
    const Warnings warnings;
    Run resumed(dir.path(), last);
    struct First : Callback {
      std::int64_t step = -1;
      void on_fit_start() override { step = trainer().global_step(); }
    };
    const auto first = std::make_shared<First>();
    TrainerOptions options = Run::options(dir.path(), last);
    options.callbacks.push_back(first);
    Trainer trainer(options);
    trainer.fit(resumed.opt, resumed.data, [&](const Batch& b) { return squared_error(resumed.net(b[0]), b[1]); },
                {.ckpt_path = "last"});
    steps.push_back(first->step);
    CHECK(warnings.ids().empty());  // no file was damaged or missing
    CHECK(trainer.global_step() == 4);
    CHECK(weights_of(resumed.net) == weights_of(whole.net));
    for (const auto& entry : fs::directory_iterator(dir / "checkpoints")) {
      const std::string name = entry.path().filename().string();
      CHECK((name.ends_with(".safetensors") && fs::exists(entry.path())));  // no unfinished file, no dangling link
    }
  }
  CHECK(kills > 20);
  CHECK(std::is_sorted(steps.begin(), steps.end()));
  for (const std::int64_t step : {1, 2, 3}) CHECK(std::find(steps.begin(), steps.end(), step) != steps.end());
}

}  // namespace

TEST_CASE("a run that is killed at any system call of a save resumes from its newest file, bit for bit") {
  check_kills(SaveLast::link);
}
TEST_CASE("a run that is killed at any system call of a save that makes last a file resumes, bit for bit") {
  check_kills(SaveLast::on);
}
