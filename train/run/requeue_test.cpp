// Jobs of SLURM that go back into the queue: Note [Requeue].
#include "train/run/requeue.h"

#include <doctest/doctest.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <optional>

#include "tests/planted_program.h"
#include "tests/variables.h"
#include "tests/warnings.h"
#include "train/data/rank_fixture_test.h"
#include "train/run/probe_test.h"
#include "train/run/signals.h"

using namespace levin;
using test::PlantedProgram;
using test::PlantedVariables;
namespace fs = std::filesystem;

namespace {

const PlantedVariables::List kTask = {{"SLURM_JOB_ID", "12"}, {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_NAME", "train"}};

// Raises a signal after a batch.
struct Raising final : TrainModuleOf<Raising, test::Probe> {
  using TrainModuleOf<Raising, test::Probe>::TrainModuleOf;
  int signal = 0;
  void on_train_batch_end(const StepInfo& info) override {
    if (signal != 0 && info.global_step % 4 == 2 && trainer().is_global_zero()) raise(signal);
  }
};

// Heeds SIGTERM again after a requeue in this process, which lives on.
struct HeedTerm {
  HeedTerm() = default;
  ~HeedTerm() { train::SignalGuard::heed_term(); }
  HeedTerm(const HeedTerm&) = delete;
  HeedTerm& operator=(const HeedTerm&) = delete;
};

struct Ran {
  std::string error, resumed;
  std::vector<float> weights;
};
Ran run(TrainerOptions options, const std::string& root, int signal, const std::string& resume = "") {
  const HeedTerm after;
  options.handle_signals = true;
  options.default_root_dir = root;
  Raising module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
  module.signal = signal;
  data::DataLoader data = test::ramp(10);
  Trainer trainer(options);
  Ran ran;
  try {
    trainer.fit(module, {.train = data, .ckpt_path = resume});
  } catch (const InterruptedError& e) { ran.error = e.what(); }
  ran.resumed = trainer.resumed_from();
  ran.weights = test::weights_of(module);
  return ran;
}
TrainerOptions one() { return test::epochs(1); }

std::string words_of(const std::string& path) { return fs::exists(path) ? read_file(path, 4096) : ""; }

}  // namespace

TEST_CASE(
    "at SIGUSR1 a run in a SLURM task saves hpc_ckpt_N and requeues its job, and later starts resume the newest") {
  const test::TemporaryFolder folder;
  const std::string root = folder / "root", scontrol_words = folder / "words";
  fs::create_directory(root);
  write_file_atomically(root + "/hpc_ckpt_x.safetensors", "no number");
  const std::vector<float> whole = run(one(), folder / "whole", 0).weights;
  const PlantedVariables planted(kTask);
  const PlantedProgram scontrol("scontrol", "echo \"$*\" >>'" + scontrol_words + "'\n");

  const Ran first = run(one(), root, SIGUSR1);
  const std::string file = root + "/hpc_ckpt_1.safetensors";
  CHECK(first.error == "fit: stopped by SIGUSR1 after 2 optimizer steps; saved " + file + "; job 12 is requeued");
  CHECK(words_of(scontrol_words) == "requeue 12\n");
  const test::ExpectedWarnings told{"I-CKPT-HPC"};
  const Ran second = run(one(), root, SIGUSR1);
  CHECK(second.resumed == file);
  CHECK(test::contains(second.error, "after 6 optimizer steps; saved "));
  CHECK(fs::exists(root + "/hpc_ckpt_2.safetensors"));
  CHECK(run(one(), root, 0, file).resumed == file);  // an explicit path wins
  const Ran third = run(one(), root, 0);
  CHECK(third.resumed == root + "/hpc_ckpt_2.safetensors");
  CHECK(third.error.empty());
  CHECK(third.weights == whole);
  CHECK(words_of(scontrol_words) == "requeue 12\nrequeue 12\n");
}

TEST_CASE("a damaged hpc_ckpt file is skipped, and a second fit of a trainer looks for none") {
  const test::TemporaryFolder folder;
  const PlantedVariables planted(kTask);
  const PlantedProgram scontrol("scontrol", "true\n");
  (void)run(one(), folder.path(), SIGUSR1);
  write_file_atomically(folder / "hpc_ckpt_10.safetensors", "damaged");
  const test::ExpectedWarnings told{"I-CKPT-HPC", "W-CKPT-SKIPPED"};
  Raising module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader data = test::ramp(10);
  TrainerOptions options = one();
  options.default_root_dir = folder.path();
  Trainer trainer(options);
  trainer.fit(module, {.train = data});
  CHECK(trainer.resumed_from() == folder / "hpc_ckpt_1.safetensors");
  trainer.options().max_epochs = 2;
  trainer.fit(module, {.train = data});
  CHECK(trainer.resumed_from().empty());
  CHECK(trainer.global_step() == 20);
}

TEST_CASE("ckpt_path = hpc is the newest file of a requeued job anywhere, and an error where there is none") {
  const test::TemporaryFolder folder;
  const PlantedVariables none({});
  Raising module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader data = test::ramp(10);
  TrainerOptions options = one();
  options.default_root_dir = folder.path();
  CHECK_THROWS_WITH_AS(Trainer(options).fit(module, {.train = data, .ckpt_path = "hpc"}),
                       doctest::Contains("ckpt_path = \"hpc\" and there is no hpc_ckpt file in default_root_dir"),
                       ConfigError);
  {
    const PlantedVariables planted(kTask);
    const PlantedProgram scontrol("scontrol", "true\n");
    (void)run(one(), folder.path(), SIGUSR1);
  }
  CHECK(run(one(), folder.path(), 0).resumed.empty());  // outside of a task
  CHECK(run(one(), folder.path(), 0, "hpc").resumed == folder / "hpc_ckpt_1.safetensors");
}

TEST_CASE("outside of a SLURM task, for another signal or with an empty requeue_signal, a signal is an ordinary one") {
  const auto ordinary = [](PlantedVariables::List variables, int signal, const char* option) {
    const test::TemporaryFolder folder;
    const PlantedVariables planted(variables);
    const PlantedProgram scontrol("scontrol", "touch '" + (folder / "called") + "'\n");
    TrainerOptions options = one();
    options.requeue_signal = option;
    options.enable_checkpointing = true;
    const Ran ran = run(options, folder.path(), signal);
    CHECK(test::contains(ran.error, "/checkpoints/last.safetensors, ckpt_path = \"last\" goes on from there"));
    CHECK_FALSE(fs::exists(folder / "hpc_ckpt_1.safetensors"));
    CHECK_FALSE(fs::exists(folder / "called"));
  };
  ordinary({{"SLURM_JOB_ID", "12"}}, SIGUSR1, "SIGUSR1");  // a batch script without srun
  ordinary({{"SLURM_JOB_ID", "12"}, {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_NAME", "bash"}}, SIGUSR1, "SIGUSR1");
  ordinary(kTask, SIGTERM, "SIGUSR1");
  ordinary(kTask, SIGUSR1, "");
}

TEST_CASE("requeue_signal may be any signal that a process handles, by its name") {
  const test::TemporaryFolder folder;
  const PlantedVariables planted(kTask);
  const PlantedProgram scontrol("scontrol", "true\n");
  TrainerOptions options = one();
  options.requeue_signal = "usr2";
  CHECK(
      test::contains(run(options, folder.path(), SIGUSR2).error, "stopped by SIGUSR2 after 2 optimizer steps; saved "));
  struct sigaction now {};
  sigaction(SIGUSR2, nullptr, &now);
  const bool restored = now.sa_handler == SIG_DFL;
  CHECK(restored);
  for (const char* bad : {"SIGKILL", "STOP", "USR3", "10", "SIG"}) {
    options.requeue_signal = bad;
    CHECK_THROWS_WITH_AS((void)Trainer(options), doctest::Contains("requeue_signal is \""), ConfigError);
  }
}

TEST_CASE("a run that cannot be saved is not requeued, and one that cannot be requeued is saved") {
  const test::TemporaryFolder folder;
  const PlantedVariables planted(kTask);
  {
    const PlantedProgram scontrol("scontrol", "touch '" + (folder / "called") + "'\n");
    const std::string error = run(one(), "/proc/no/such", SIGUSR1).error;
    CHECK(test::contains(error, "it could not be saved, so the job is not requeued. save_checkpoint: can not make"));
    CHECK_FALSE(fs::exists(folder / "called"));
  }
  const PlantedProgram refusing("scontrol", "echo 'Job is unknown' >&2\nexit 1\n");
  const std::string error = run(one(), folder.path(), SIGUSR1).error;
  CHECK(
      test::contains(error, "hpc_ckpt_1.safetensors; the job could not be requeued. requeue_job: scontrol requeue 12"));
  CHECK(fs::exists(folder / "hpc_ckpt_1.safetensors"));
}

TEST_CASE("ranks save and requeue together at the signal of one of them, once, and resume together") {
  const test::TemporaryFolder folder;
  const std::string scontrol_words = folder / "words";
  const PlantedVariables planted(kTask);
  const PlantedProgram scontrol("scontrol", "echo \"$*\" >>'" + scontrol_words + "'\n");
  const auto on_two = [&](int signal, const std::string& root) {
    std::array<Ran, 2> ran;
    test::on_ranks(2, [&](int rank, const TrainerOptions& options) {
      ran[static_cast<std::size_t>(rank)] = run(options, root, signal);
    });
    CHECK(ran[0].error == ran[1].error);
    CHECK(ran[0].resumed == ran[1].resumed);
    CHECK(ran[0].weights == ran[1].weights);
    return ran[0];
  };
  const Ran whole = on_two(0, folder / "whole");
  const Ran cut = on_two(SIGUSR1, folder / "root");
  CHECK(test::contains(cut.error, "fit: stopped by SIGUSR1 after 2 optimizer steps; saved "));
  CHECK(words_of(scontrol_words) == "requeue 12\n");
  const test::ExpectedWarnings told{"I-CKPT-HPC"};
  const Ran resumed = on_two(0, folder / "root");
  CHECK(resumed.resumed == folder / "root/hpc_ckpt_1.safetensors");
  CHECK(resumed.weights == whole.weights);
}

TEST_CASE("SIGTERM, which SLURM sends to a job that it requeues, ends no rank before its teardown") {
  const test::TemporaryFolder folder;
  const PlantedVariables planted(kTask);
  const auto term = [] {
    struct sigaction now {};
    sigaction(SIGTERM, nullptr, &now);
    return now.sa_handler;
  };
  const auto usual = term();
  const auto errors_of_two = [&](const std::string& root) {
    std::array<std::string, 2> errors;
    test::on_ranks(2, [&](int rank, TrainerOptions options) {
      options.handle_signals = true;
      options.default_root_dir = root;
      Raising module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
      module.signal = SIGUSR1;
      data::DataLoader data = test::ramp(10);
      Trainer trainer(options);
      try {
        trainer.fit(module, {.train = data});
      } catch (const InterruptedError& e) { errors[static_cast<std::size_t>(rank)] = e.what(); }
    });
    for (const std::string& error : errors) CHECK(test::contains(error, "stopped by SIGUSR1"));
    return errors;
  };
  {
    const HeedTerm after;
    // scontrol's parent is this process, with both ranks.
    const PlantedProgram scontrol("scontrol", "kill -TERM $PPID\n");
    for (const std::string& error : errors_of_two(folder / "requeued"))
      CHECK(test::contains(error, "job 12 is requeued"));
    const bool ignored = term() == SIG_IGN;  // until the process ends
    CHECK(ignored);
  }
  bool heeded = term() == usual;
  CHECK(heeded);
  const PlantedProgram refusing("scontrol", "exit 1\n");
  for (const std::string& error : errors_of_two(folder / "refused"))
    CHECK(test::contains(error, "the job could not be requeued"));
  heeded = term() == usual;
  CHECK(heeded);
}
