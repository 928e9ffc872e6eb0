// levin plan: the memory that a training step of a bundled program takes, on the CPU with what lies beside it, and the
// largest batch for a given memory. Nothing is allocated or computed: the step runs on shapes alone
// (Tuner::plan_memory).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "examples/gan_model.h"
#include "examples/mnist_model.h"

namespace levin::examples {

struct PlanSettings {
  std::string program, model = "cnn", optimizer = "adamw", precision = "32-true", device = "cuda", json;
  std::int64_t batch_size = 128, accumulate = 1, memory = 0, devices = 1;
  int workers = 1;
  [[nodiscard]] Device as() const { return device == "cpu" ? Device::cpu() : Device::cuda(); }
};

// A step's plan, and what lies in the same memory beside the step: nothing on a GPU; on the CPU the digits and the
// batches that the loader holds ready. `step.peak` includes both.
struct RunPlan {
  MemoryPlan step;
  std::int64_t data_sets = 0, loader = 0;
};

// A program's model on meta, with the program's trainer.
class Planned {
 public:
  explicit Planned(const PlanSettings& s)
      : as_(s.as()),
        workers_(s.workers),
        trainer_(TrainerOptions{.logger = false,
                                .max_epochs = 1,
                                .accumulate_grad_batches = s.program == "gan" ? 1 : s.accumulate,
                                .enable_checkpointing = false,
                                .enable_progress_bar = false,
                                .enable_model_summary = false,
                                .precision = s.precision,
                                .handle_signals = false}) {
    const Generator gen(1);
    if (s.program == "mnist") {
      ClassifierSettings how;
      how.model = s.model;
      how.optimizer = s.optimizer;
      how.lr = 1e-3;
      module_ = mnist::make_model(how, gen, Device::meta());
    } else {
      gan::Settings how;
      how.model = s.model;
      how.accumulate = s.accumulate;
      how.lr = 1e-3;
      module_ = std::make_unique<gan::Gan>(how, gen, Device::meta());
    }
    if (as_.is_cpu()) hold_data_sets();
  }
  [[nodiscard]] RunPlan of(std::int64_t samples) {
    RunPlan plan{.step = planned(samples), .data_sets = data_sets_};
    plan.step.parameters -= data_sets_;
    if (as_.is_cpu()) plan.loader = kAhead * workers_ * plan.step.batch;
    plan.step.peak += plan.loader;
    return plan;
  }
  // The largest batch whose peak is at most `bytes`, searched up to `most`; 0: not even a single sample fits.
  [[nodiscard]] std::int64_t largest(std::int64_t bytes, std::int64_t most) {
    std::int64_t fits = 0, fails = 1;
    while (fails <= most && of(fails).step.peak <= bytes) fits = std::exchange(fails, 2 * fails);
    fails = std::min(fails, most + 1);
    while (fails - fits > 1) {
      const std::int64_t middle = fits + (fails - fits) / 2;
      (of(middle).step.peak <= bytes ? fits : fails) = middle;
    }
    return fits;
  }

 private:
  static constexpr int kAhead = 2;  // batches per worker: the loader's default

  // The images and labels of both parts, a byte each, which both programs hold. As buffers of the module they count
  // with the allocator's sizes.
  void hold_data_sets() {
    const std::int64_t without = planned(1).parameters;
    for (const auto& [part, n] : {std::pair{"train", 60000}, {"test", 10000}}) {
      const std::string name = part;
      (void)module_->register_buffer(name + "_images", empty({n, kSide, kSide}, Device::meta(), DType::u8));
      (void)module_->register_buffer(name + "_labels", empty({n}, Device::meta(), DType::u8));
    }
    data_sets_ = planned(1).parameters - without;
  }
  [[nodiscard]] MemoryPlan planned(std::int64_t samples) {
    const Batch batch{
        .fields = {empty({samples, 1, kSide, kSide}, Device::meta()), empty({samples}, Device::meta(), DType::i64)},
        .indices = std::vector<std::int64_t>(static_cast<std::size_t>(samples))};
    return Tuner(trainer_).plan_memory(*module_, batch, as_);
  }

  Device as_;
  int workers_;
  std::int64_t data_sets_ = 0;
  Trainer trainer_;
  std::unique_ptr<TrainModule> module_;
};

inline PlanSettings parse_plan(int argc, char** argv) {
  PlanSettings s;
  Flags flags("levin plan", "What memory a training step of a bundled program takes, without running one.");
  flags.add_argument("PROGRAM", s.program, "mnist or gan")->check(CLI::IsMember({"mnist", "gan"}));
  flags.add("--model", s.model)->check(CLI::IsMember({"mlp", "cnn"}));
  const CLI::Option* const optimizer =
      flags.add("--optimizer", s.optimizer)->check(CLI::IsMember({"adamw", "adam", "sgd"}));
  const CLI::Option* const size = flags.add("--batch-size", s.batch_size)->check(at_least(1));
  flags.add("--workers", s.workers)->check(at_least(0));
  flags.add("--precision", s.precision);
  flags.add("--accumulate", s.accumulate)->check(at_least(1));
  flags.add("--device", s.device)
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->description(
          "whose memory it is: cpu, where data sets and batches that are loaded ahead lie beside the step, or cuda");
  flags.add("--memory", s.memory)->check(at_least(1));
  flags.add("--devices", s.devices)
      ->check(at_least(1))
      ->description("ranks: the bytes of each under ddp and the three stages of ZeRO");
  flags.add("--json", s.json)->description("the same as JSON; - writes it to stdout in place of the text");
  flags.parse(argc, argv);
  if (s.program == "gan" && optimizer->count() > 0) flags.refuse("--optimizer: gan trains with adam");
  const auto& of_gan = gan::kPrecisions;
  if (s.program == "gan" && std::find(of_gan.begin(), of_gan.end(), s.precision) == of_gan.end())
    flags.refuse("--precision: gan trains with 32-true or bf16-mixed");
  if (s.program == "gan") s.optimizer = "adam";
  if (s.memory > 0 && size->count() == 0) s.batch_size = 0;
  return s;
}

// The lines of the table and the fields of the JSON.
inline std::vector<std::pair<const char*, std::int64_t>> rows_of(const RunPlan& run) {
  const MemoryPlan& p = run.step;
  return {{"parameters", p.parameters},           {"gradients", p.gradients},
          {"optimizer_state", p.optimizer_state}, {"batch", p.batch},
          {"activations", p.activations},         {"data_sets", run.data_sets},
          {"loaded_ahead", run.loader},           {"peak", p.peak}};
}

// Bytes of a rank of several, by strategy. Stage 1 divides the optimizer's state by the ranks, stage 2 gradients, too,
// stage 3 parameters, too, and gathers those of one unit at a time, which are not counted here.
struct RankBytes {
  const char* strategy;
  std::int64_t parameters, gradients, optimizer_state, peak;
};
inline std::vector<RankBytes> rank_bytes(const RunPlan& run, std::int64_t ranks) {
  const auto part = [&](std::int64_t bytes, bool divided) { return divided ? (bytes + ranks - 1) / ranks : bytes; };
  const MemoryPlan& p = run.step;
  const std::int64_t rest = p.peak - p.parameters - p.gradients - p.optimizer_state;
  std::vector<RankBytes> all;
  for (const auto& [stage, name] :
       {std::pair{0, "ddp"}, {1, "zero_stage_1"}, {2, "zero_stage_2"}, {3, "zero_stage_3"}}) {
    RankBytes r{.strategy = name,
                .parameters = part(p.parameters, stage >= 3),
                .gradients = part(p.gradients, stage >= 2),
                .optimizer_state = part(p.optimizer_state, stage >= 1),
                .peak = rest};
    r.peak += r.parameters + r.gradients + r.optimizer_state;
    all.push_back(r);
  }
  return all;
}

inline nlohmann::ordered_json plan(const PlanSettings& s) {
  constexpr std::int64_t kMost = std::int64_t{1} << 20;
  Planned planned(s);
  const std::int64_t largest = s.memory > 0 ? planned.largest(s.memory, kMost) : 0;
  const std::int64_t samples = s.batch_size > 0 ? s.batch_size : std::max<std::int64_t>(1, largest);
  const RunPlan p = planned.of(samples);
  nlohmann::ordered_json all = {{"program", s.program},     {"model", s.model},           {"optimizer", s.optimizer},
                                {"precision", s.precision}, {"accumulate", s.accumulate}, {"device", s.device},
                                {"batch_size", samples}};
  for (const auto& [name, bytes] : rows_of(p)) all[name] = bytes;
  if (s.memory > 0) {
    all["memory"] = s.memory;
    all["largest_batch"] = largest;
  }
  const std::vector<RankBytes> ranks = s.devices > 1 ? rank_bytes(p, s.devices) : std::vector<RankBytes>();
  for (const RankBytes& r : ranks) {
    all["ranks"].push_back({{"strategy", r.strategy},
                            {"parameters", r.parameters},
                            {"gradients", r.gradients},
                            {"optimizer_state", r.optimizer_state},
                            {"peak", r.peak}});
  }
  if (s.json == "-") return all;
  std::printf("%s %s, %s, %s, batches of %lld\n", s.program.c_str(), s.model.c_str(), s.optimizer.c_str(),
              s.precision.c_str(), static_cast<long long>(samples));
  for (const auto& [name, bytes] : rows_of(p))
    std::printf("  %-16s %15lld bytes  %10.1f MB\n", name, static_cast<long long>(bytes),
                static_cast<double>(bytes) / 1e6);
  if (!ranks.empty())
    std::printf("of each of %lld ranks: parameters, gradients, optimizer state, peak (bytes)\n",
                static_cast<long long>(s.devices));
  for (const RankBytes& r : ranks)
    std::printf("  %-16s %12lld %12lld %12lld %12lld\n", r.strategy, static_cast<long long>(r.parameters),
                static_cast<long long>(r.gradients), static_cast<long long>(r.optimizer_state),
                static_cast<long long>(r.peak));
  if (s.memory > 0 && largest == 0)
    std::printf("%lld bytes are too few for a single sample\n", static_cast<long long>(s.memory));
  else if (s.memory > 0)
    std::printf("%s%lld samples are the largest batch for %lld bytes\n", largest == kMost ? "at least " : "",
                static_cast<long long>(largest), static_cast<long long>(s.memory));
  return all;
}

}  // namespace levin::examples
