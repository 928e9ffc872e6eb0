// The optimizer and the slices of sharded strategies on the CPU and in files.
#include "train/strategy/offload.h"

#include <doctest/doctest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "levin/sync.h"
#include "levin/train/fsdp_strategy.h"
#include "levin/train/zero_strategy.h"
#include "tests/device.h"
#include "tests/warnings.h"
#include "train/strategy/parallel_fixture_test.h"

using namespace levin;
using namespace levin::test::parallel;
using levin::train::OffloadFile;
namespace fs = std::filesystem;

namespace {

struct Layer : nn::Module {
  Layer(nn::Module& parent, const std::string& name, std::int64_t width)
      : Module(parent, name), fc(*this, "fc", {.in = width, .out = width}) {}
  nn::Linear fc;
  Tensor operator()(const Tensor& x) const {
    const nn::Call call(*this, x);
    return call.gives(x + tanh(fc(x)));
  }
};

// Layers as units, which save after a batch in an open window.
struct Net : TrainModuleOf<Net, OnItsPart> {
  static constexpr std::int64_t kWidth = 24;
  explicit Net(std::uint64_t seed) : TrainModuleOf<Net, OnItsPart>(seed) {
    for (int i = 0; i < 3; ++i) layers.add(kWidth);
  }
  nn::Linear in{*this, "in", {.in = 2, .out = kWidth}};
  nn::ModuleList<Layer> layers{*this, "layers"};
  nn::Linear out{*this, "out", {.in = kWidth, .out = 1}};
  bool adam = true, exact = false;
  std::string path;
  std::int64_t save_after = -1, bad_batch = -1;
  std::shared_ptr<optim::Optimizer> optimizer;
  Function<void(Net&)> before_batch{};
  Tensor operator()(const Tensor& x) const {
    Tensor h = in(x);
    for (const Layer& layer : layers) h = layer(h);
    return out(h);
  }
  StepOutput training_step(const Batch& b, std::int64_t) override {
    const bool bad = trainer().total_batch_idx() == bad_batch && trainer().global_rank() == 1;
    const Tensor error = (bad ? std::numeric_limits<float>::infinity() : 1) *
                         square((*this)(mine(b[0])).to(DType::f32) - mine(b[1]).to(DType::f32));
    return exact ? StepOutput::sum(sum(error), static_cast<double>(error.numel())) : StepOutput(mean(error));
  }
  OptimizerConfig configure_optimizers() override {
    if (adam)
      optimizer = std::make_shared<optim::Adam>(parameters(), optim::AdamOptions{.lr = 0.003});
    else
      optimizer = std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.05, .momentum = 0.9});
    return {.optimizers = {optimizer}};
  }
  BatchStart on_train_batch_start(const StepInfo&) override {
    if (before_batch) before_batch(*this);
    return BatchStart::proceed;
  }
  void on_train_batch_end(const StepInfo&) override {
    if (trainer().total_batch_idx() == save_after) trainer().save_checkpoint(path);
  }
};

struct Run {
  Offload optimizer = Offload::none, params = Offload::none;
  int ranks = 2, stage = 2;
  bool adam = true, exact = false, fsdp = false, pinned = true, overlaps = true;
  std::string folder = "/nowhere";
  std::int64_t sub_group = 100, accumulate = 1, steps = 6, bad_batch = -1;
  std::string accelerator = "cpu", precision = "32-true";
  std::string save{}, resume{};
  Function<void(Net&)> before_batch{};
  Function<void(Net&)> after{};
};
struct Result {
  Weights weights;
  ShardedStrategy::Report report;
};
std::vector<Result> run(const Run& r) {
  return on_ranks(r.ranks, [&](const Group& threads) {
    const Group group = r.ranks == 1 ? dist::single_process_group() : threads;
    TrainerOptions options = plain();
    options.max_steps = r.steps;
    options.accumulate_grad_batches = r.accumulate;
    options.gradient_clip_val = 0.5;
    options.accelerator = r.accelerator;
    options.precision = r.precision;
    if (r.precision.starts_with("16")) options.grad_scaler = optim::GradScalerOptions{.init_scale = 16};
    if (r.exact) options.accumulate_weighting = AccumulateWeighting::exact;
    std::shared_ptr<ShardedStrategy> strategy;
    if (r.fsdp)
      strategy = std::make_shared<FsdpStrategy>(
          FsdpOptions{.cpu_offload = r.optimizer == Offload::cpu, .process = {.group = group}});
    else
      strategy = std::make_shared<ZeroStrategy>(ZeroOptions{.stage = r.stage,
                                                            .bucket_cap_mb = 2e-3,
                                                            .overlap_comm = r.overlaps,
                                                            .offload_optimizer = r.optimizer,
                                                            .offload_params = r.params,
                                                            .nvme_path = r.folder,
                                                            .pin_memory = r.pinned,
                                                            .sub_group_size = r.sub_group,
                                                            .process = {.group = group}});
    options.strategy = strategy;
    Net module(3 + static_cast<std::uint64_t>(group->rank()));
    module.adam = r.adam;
    module.exact = r.exact;
    module.path = r.save;
    module.bad_batch = r.bad_batch;
    module.save_after = r.save.empty() ? -1 : 7;
    module.before_batch = r.before_batch;
    data::DataLoader data = test::loader(160, 32);
    Trainer trainer(options);
    trainer.fit(module, {.train = data, .ckpt_path = r.resume});
    if (r.after) r.after(module);
    return Result{values_of(module), strategy->report()};
  });
}
Weights weights(const Run& r) {
  const std::vector<Result> ranks = run(r);
  for (const Result& of : ranks) CHECK(of.weights == ranks[0].weights);
  return ranks[0].weights;
}
std::int64_t open_files_below(const std::string& folder) {
  std::int64_t n = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    if (fs::read_symlink(entry.path(), error).string().starts_with(folder + "/")) ++n;
  }
  return n;
}
// KiB of the mappings of files below the folder that are in this process's memory.
std::int64_t resident_below(const std::string& folder) {
  std::ifstream maps("/proc/self/smaps");
  std::int64_t kib = 0;
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(' ')) inside = line.find(folder + "/") != std::string::npos;
    if (inside && line.starts_with("Rss:")) kib += std::stoll(line.substr(4));
  }
  return kib;
}

}  // namespace

TEST_CASE("tensors of an offload file keep their values while they rest, and its space returns as zeros") {
  const test::TemporaryFolder folder;
  {
    const auto file = OffloadFile::make(folder.path(), 1000);
    CHECK(fs::is_empty(folder.path()));  // no name that an error could leave
    CHECK(open_files_below(folder.path()) == 1);
    file->reserve(8 << 20);
    Tensor large = file->allocate({1 << 20}, DType::f32), small = file->allocate({3}, DType::f64);
    const std::int64_t bytes = file->report().bytes;
    CHECK(bytes == 8 << 20);
    CHECK(small.to_vector<double>() == std::vector<double>(3, 0.0));
    fill_(large, 2.5);
    CHECK(resident_below(folder.path()) >= 4 << 10);
    file->rest(large);
    CHECK(resident_below(folder.path()) < 512);  // a page of a neighbour brings those around it
    CHECK(file->report().peak_part == 4 << 20);
    CHECK(sum(large).item() == 2.5 * (1 << 20));
    Tensor next = file->allocate({1 << 20}, DType::f32);  // more than the rest of what was reserved
    const std::int64_t grown = file->report().bytes;
    CHECK(grown > bytes);
    large = {};
    next = file->allocate({1000}, DType::f32);
    large = file->allocate({1 << 20}, DType::f32);
    CHECK(file->report().bytes == grown);
    CHECK(sum(large).item() == 0);
    CHECK(file->allocate({0}, DType::f32).numel() == 0);
    small = {};
  }
  CHECK(open_files_below(folder.path()) == 0);
}

TEST_CASE("a folder that takes no file is a FileError that names it, and parts have one element or more") {
  const test::TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  for (const std::string& bad : {folder / "missing", folder / "file", std::string("/proc/self")}) {
    CAPTURE(bad);
    CHECK_THROWS_WITH_AS(OffloadFile::make(bad, 10), doctest::Contains(bad.c_str()), FileError);
  }
  CHECK_THROWS_WITH_AS(OffloadFile::make("", 10), doctest::Contains("nvme_path is empty"), ConfigError);
  CHECK_THROWS_WITH_AS(OffloadFile::make(folder.path(), 0), doctest::Contains("sub_group_size is 0"), ConfigError);
}

TEST_CASE("a disk without room for an offloaded optimizer is an OutOfMemoryError before the first batch") {
  const test::TemporaryFolder folder;
  constexpr int kNoMount = 77;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const std::string user = "0 " + std::to_string(getuid()) + " 1", of_group = "0 " + std::to_string(getgid()) + " 1";
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) _exit(kNoMount);
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << user;
    std::ofstream("/proc/self/gid_map") << of_group;
    if (mount("levin", folder.path().c_str(), "tmpfs", 0, "size=8k") != 0) _exit(kNoMount);
    int code = 1;
    try {
      set_num_threads(1);  // worker threads do not survive a fork
      bool began = false;
      try {
        (void)run({.optimizer = Offload::nvme, .ranks = 1, .folder = folder.path(), .before_batch = [&](Net&) {
                     began = true;
                   }});
        code = 2;
      } catch (const OutOfMemoryError& e) {
        const std::string what = e.what();
        code = began ? 3 : what.find("has no room for") == std::string::npos ? 4 : 0;
      }
    } catch (...) { code = 5; }
    _exit(code);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoMount) return test::skip("no user namespaces with mounts");
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("an optimizer's state in files gives the bits of one in memory, updated group by group") {
  const test::TemporaryFolder folder;
  for (const int stage : {1, 2, 3}) {
    for (const bool adam : {true, false}) {
      CAPTURE(stage);
      CAPTURE(adam);
      Run r{.stage = stage, .adam = adam, .accumulate = adam ? 2 : 1};
      const Weights plain = weights(r);
      CHECK(weights({.optimizer = Offload::cpu, .stage = stage, .adam = adam, .accumulate = r.accumulate}) == plain);
      r.optimizer = Offload::nvme;
      r.folder = folder.path();
      r.before_batch = [&](Net&) { CHECK(fs::is_empty(folder.path())); };
      const std::vector<Result> ranks = run(r);
      for (const Result& of : ranks) {
        CHECK(of.weights == plain);
        CHECK(of.report.file >= of.report.optimizer_state);
        CHECK(of.report.optimizer_state > 0);
        CHECK(of.report.peak_file_part > 0);
        CHECK(of.report.peak_file_part <= (adam ? 2 : 1) * 4 * r.sub_group);
      }
      CHECK(open_files_below(folder.path()) == 0);
    }
  }
}

TEST_CASE("slices of parameters in files are gathered from there, with the same bits") {
  const test::TemporaryFolder folder;
  const Weights plain = weights({.stage = 3});
  const std::int64_t all = run({.stage = 3})[0].report.peak_parameters;
  for (const Offload optimizer : {Offload::cpu, Offload::nvme}) {
    for (const Offload params : {Offload::cpu, Offload::nvme}) {
      const std::vector<Result> ranks =
          run({.optimizer = optimizer, .params = params, .stage = 3, .folder = folder.path()});
      for (const Result& of : ranks) {
        CHECK(of.weights == plain);
        // Units alone are in memory, without the rank's slices.
        if (params == Offload::nvme) CHECK(of.report.peak_parameters < all);
      }
    }
  }
  CHECK(weights({.optimizer = Offload::cpu, .fsdp = true}) == weights({.fsdp = true}));
  CHECK(weights({.stage = 3, .overlaps = false}) == plain);
}

TEST_CASE("one process has its optimizer's state in a file, with the bits of a run without a strategy") {
  const test::TemporaryFolder folder;
  const Weights plain = weights({.ranks = 1, .accumulate = 2});
  for (const int stage : {1, 2, 3})
    CHECK(weights({.optimizer = Offload::nvme, .ranks = 1, .stage = stage, .folder = folder.path(), .accumulate = 2}) ==
          plain);
}

TEST_CASE("an offloaded state is saved as one in memory, in an open window, and each resumes from the other's file") {
  const test::TemporaryFolder folder;
  for (const int ranks : {1, 2}) {
    for (const std::string precision : {"32-true", "bf16-true"}) {
      const std::string in_memory = folder / "memory.safetensors", in_file = folder / "file.safetensors";
      const Run plain{.ranks = ranks, .stage = 3, .accumulate = 2, .steps = 8, .precision = precision};
      Run offloaded = plain;
      offloaded.optimizer = offloaded.params = Offload::nvme;
      offloaded.folder = folder.path();
      Run saves = plain;
      saves.save = in_memory;
      const Weights whole = weights(saves);
      saves = offloaded;
      saves.save = in_file;
      CHECK(weights(saves) == whole);
      const NamedTensors a = load_safetensors(in_memory).tensors, b = load_safetensors(in_file).tensors;
      REQUIRE(a.size() == b.size());
      for (std::size_t i = 0; i < a.size(); ++i) {
        CAPTURE(a[i].first);
        CHECK(a[i].first == b[i].first);
        CHECK(a[i].second.dtype() == b[i].second.dtype());
        CHECK(a[i].second.shape() == b[i].second.shape());
        if (is_float(a[i].second.dtype()) && a[i].first.find("time") == std::string::npos)
          CHECK(a[i].second.to(DType::f64).to_vector<double>() == b[i].second.to(DType::f64).to_vector<double>());
      }
      Run resumes = plain;
      resumes.resume = in_file;
      CHECK(weights(resumes) == whole);
      resumes = offloaded;
      resumes.resume = in_memory;
      CHECK(weights(resumes) == whole);
    }
  }
}

TEST_CASE("files of an offloaded optimizer are gone with it, and after an error") {
  const test::TemporaryFolder folder;
  const auto strategy = std::make_shared<ZeroStrategy>(ZeroOptions{.stage = 3,
                                                                   .offload_optimizer = Offload::nvme,
                                                                   .offload_params = Offload::nvme,
                                                                   .nvme_path = folder.path(),
                                                                   .process = {.group = dist::single_process_group()}});
  TrainerOptions options = plain();
  options.strategy = strategy;
  {
    Net module(3);
    data::DataLoader data = test::loader(160, 32);
    Trainer trainer(options);
    trainer.fit(module, {.train = data});
    CHECK(open_files_below(folder.path()) == 1);
    trainer.save_checkpoint(folder / "after.safetensors");  // the state is still there
    CHECK(fs::file_size(folder / "after.safetensors") > 3 * 1897 * 4);
    fs::remove(folder / "after.safetensors");
  }
  CHECK(open_files_below(folder.path()) == 0);  // the strategy lives
  CHECK(strategy->report().file > 0);
  const auto fails = [](Net& net) {
    if (net.trainer().total_batch_idx() == 3) fail<DataError>("a bad sample");
  };
  CHECK_THROWS_WITH_AS(run({.optimizer = Offload::nvme, .folder = folder.path(), .before_batch = fails}),
                       doctest::Contains("a bad sample"), DataError);
  CHECK(fs::is_empty(folder.path()));
  CHECK(open_files_below(folder.path()) == 0);
}

TEST_CASE("offloading that cannot be is one error before training") {
  CHECK_THROWS_WITH_AS(ZeroStrategy({.stage = 2, .offload_optimizer = Offload::cpu, .offload_params = Offload::cpu}),
                       doctest::Contains("stage is 2"), ConfigError);
  CHECK_THROWS_WITH_AS(ZeroStrategy({.stage = 3, .offload_params = Offload::cpu}),
                       doctest::Contains("offload_optimizer is not"), ConfigError);
  CHECK_THROWS_WITH_AS(ZeroStrategy({.sub_group_size = 0}), doctest::Contains("sub_group_size is 0"), ConfigError);
  bool began = false;
  CHECK_THROWS_WITH_AS(
      run({.optimizer = Offload::nvme, .folder = "/nowhere/at/all", .before_batch = [&](Net&) { began = true; }}),
      doctest::Contains("/nowhere/at/all"), FileError);
  CHECK_FALSE(began);
}

// ---- On a device

TEST_CASE("an optimizer of a device that steps on the CPU, or in a file, makes the device's steps") {
  if (device_count(DeviceType::simt) == 0) return test::skip("no simt device in this build");
  const test::TemporaryFolder folder;
  for (const int stage : {1, 2, 3}) {
    for (const std::int64_t accumulate : {1, 2}) {
      CAPTURE(stage);
      CAPTURE(accumulate);
      Run r{.stage = stage,
            .adam = accumulate == 1,
            .exact = stage == 2,
            .folder = folder.path(),
            .accumulate = accumulate,
            .accelerator = "simt"};
      const Weights there = weights(r);
      r.optimizer = Offload::cpu;
      const Weights here = weights(r);
      CHECK(difference(here, there) <= 1e-6);  // roots and quotients of f32
      r.pinned = false;
      CHECK(weights(r) == here);
      r.optimizer = Offload::nvme;
      CHECK(weights(r) == here);
      if (stage != 3) continue;
      for (const Offload params : {Offload::cpu, Offload::nvme}) {
        r.params = params;
        CHECK(weights(r) == here);
      }
    }
  }
}

TEST_CASE("state and masters of an offloaded optimizer are on the CPU, page-locked where they are copied") {
  if (device_count(DeviceType::simt) == 0) return test::skip("no simt device in this build");
  const auto check = [](Net& net) {
    std::int64_t state = 0;
    for (const auto& [name, t] : net.optimizer->state_refs()) {
      CHECK(t.device() == Device::cpu());
      state += t.numel() > 1 ? 1 : 0;
    }
    CHECK(state > 0);
    for (const ParamRef& p : net.optimizer->pieces()) {
      CHECK(p.value->device() == Device::cpu());
      CHECK(p.value->is_pinned());
    }
    for (const ParamRef& p : net.parameters()) CHECK(p.value->device() == Device::simt());
  };
  for (const std::string precision : {"32-true", "bf16-true"}) {
    CAPTURE(precision);
    (void)run({.optimizer = Offload::cpu, .accelerator = "simt", .precision = precision, .after = check});
    (void)run({.optimizer = Offload::cpu, .ranks = 1, .accelerator = "simt", .precision = precision, .after = check});
  }
}

TEST_CASE("an offloaded optimizer waits for the device once a pass") {
  if (device_count(DeviceType::simt) == 0) return test::skip("no simt device in this build");
  const auto waits = [](Run r) {
    std::vector<std::int64_t> at;
    r.ranks = 1;  // several ranks of threads wait in their collectives
    r.accelerator = "simt";
    r.before_batch = [&](Net&) { at.push_back(host_waits()); };
    (void)weights(r);
    REQUIRE(at.size() > 4);
    return at[4] - at[3];
  };
  for (const int stage : {1, 2, 3}) {
    CAPTURE(stage);
    const std::int64_t before = waits({.stage = stage});
    CHECK(waits({.optimizer = Offload::cpu, .stage = stage}) == before + 1);
    if (stage == 3) CHECK(waits({.optimizer = Offload::cpu, .params = Offload::cpu, .stage = stage}) == before + 1);
  }
}

TEST_CASE("a loss scale on a device skips the steps of an optimizer on the CPU") {
  if (device_count(DeviceType::simt) == 0) return test::skip("no simt device in this build");
  Run r{.stage = 2, .adam = false, .steps = 8, .accelerator = "simt", .precision = "16-o2"};
  for (const bool exact : {false, true}) {
    CAPTURE(exact);
    r.exact = exact;
    r.optimizer = Offload::none;
    r.bad_batch = 3;
    const Weights there = weights(r);
    r.optimizer = Offload::cpu;
    const Weights here = weights(r);
    CHECK(difference(here, there) <= 2e-3);  // f16 weights around 1: steps of 2^-11 to 2^-10
    r.bad_batch = -1;
    CHECK(difference(weights(r), here) > 4e-3);
  }
}

TEST_CASE("values that a hook writes to whole parameters reach an optimizer on the CPU") {
  if (device_count(DeviceType::simt) == 0) return test::skip("no simt device in this build");
  Run r{.stage = 2, .adam = false, .accelerator = "simt"};
  const Weights unchanged = weights(r);
  r.before_batch = [](Net& net) {
    if (net.trainer().total_batch_idx() != 3) return;
    const NoGrad off;
    for (const ParamRef& p : net.in.parameters()) mul_(*p.value, 0.5);
  };
  const Weights there = weights(r);
  CHECK(difference(there, unchanged) > 0.01);
  r.optimizer = Offload::cpu;
  CHECK(difference(weights(r), there) <= 1e-6);
}
