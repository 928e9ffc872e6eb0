// The trainer's cost per step over a hand-written loop with the same loader, model, loss and optimizer. The model is as
// small as possible, so that nothing hides the trainer. Rounds alternate (by hand, trainer, ...). A round's step is the
// mean over its last --steps batches, and the table shows the difference to the hand-written loop of the same round:
// median, smallest and largest. Beside it, per step: calls of operator new, and bytes that tensors took from the
// system.
//
// --help lists the flags; the kinds of --only are:
//
// - none: no callback, no logger; every step is one optimizer step
// - logged: the same, and training_step logs its loss
// - default: a Trainer's defaults: progress bar, summary, TensorBoard files, checkpoints, a logged loss
// - all: default, with clipping, a moving average of the weights, early stopping and the learning rate's monitor
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/flags.h"
#include "kernels/executor/cpu.h"
#include "levin/levin.h"

// ---- Every allocation of the program, counted
namespace {
std::atomic<std::int64_t> news{0};
}
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  news.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  news.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

using namespace levin;

namespace {

struct Settings {
  std::int64_t rounds = 15, steps = 10'000, warmup = 500;
  std::string json, only;  // one of the kinds below; empty: all of them
  [[nodiscard]] std::int64_t batches() const { return warmup + steps; }
};

// Bytes that tensors hold from the system.
std::int64_t held() {
  const MemoryStats stats = memory_stats(Device::cpu());
  return stats.in_use + stats.cached;
}

// The counts between two batches of a round.
struct Probe {
  std::int64_t first = 0, last = 0, news_before = 0, news_after = 0, bytes_before = 0, bytes_after = 0;
  std::chrono::steady_clock::time_point begin{}, end{};
  void at(std::int64_t batch) {
    if (batch == first) {
      news_before = news.load();
      bytes_before = held();
      begin = std::chrono::steady_clock::now();
    } else if (batch == last) {
      end = std::chrono::steady_clock::now();
      news_after = news.load();
      bytes_after = held();
    }
  }
};
struct Measured {
  double microseconds = 0, allocations = 0, bytes = 0;  // a step
};
Measured measured(const Probe& p) {
  const auto n = static_cast<double>(p.last - p.first);
  return {.microseconds = std::chrono::duration<double, std::micro>(p.end - p.begin).count() / n,
          .allocations = static_cast<double>(p.news_after - p.news_before) / n,
          .bytes = static_cast<double>(p.bytes_after - p.bytes_before) / n};
}

struct Line : TrainModuleOf<Line> {
  using TrainModuleOf::TrainModuleOf;
  nn::Linear fc{*this, "fc", {.in = 8, .out = 1}};
  Probe probe;
  bool logs = false;
  Tensor loss(const Batch& b) const { return mse_loss(fc(b[0]), b[1]); }
  StepOutput training_step(const Batch& b, std::int64_t batch_idx) override {
    probe.at(batch_idx);
    Tensor l = loss(b);
    if (logs) log("train_loss", l, {.prog_bar = true, .on_step = true, .on_epoch = true});
    return l;
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 1e-3})}};
  }
};

data::DataLoader batches(const Settings& s) {
  Generator gen(2);
  const Tensor x = randn({s.batches() * 4, 8}, gen, Device::cpu());
  return data::DataLoader(data::tensor_dataset({x, slice(x, 1, 0, 1)}), {.batch_size = 4});
}

[[gnu::noinline]] Measured by_hand(const Settings& s, data::DataLoader& loader) {
  Line line({.gen = Generator(1), .device = Device::cpu()});
  Probe probe{.first = s.warmup, .last = s.batches() - 1};
  optim::SGD optimizer(line.parameters(), {.lr = 1e-3});
  std::int64_t i = 0;
  for (const Batch& b : loader) {
    probe.at(i++);
    const Tensor loss = line.loss(b);
    optimizer.zero_grad();
    backward(loss);
    optimizer.step();
  }
  return measured(probe);
}

Measured trained(const Settings& s, data::DataLoader& loader, TrainerOptions options, bool logs) {
  Line line({.gen = Generator(1), .device = Device::cpu()});
  line.probe = {.first = s.warmup, .last = s.batches() - 1};
  line.logs = logs;
  options.max_epochs = 1;
  Trainer trainer(std::move(options));
  trainer.fit(line, {.train = loader});
  return measured(line.probe);
}

// A run that leaves nothing: it works in a temporary folder.
struct Kind {
  const char* name;
  TrainerOptions (*options)(const std::string& folder);
  bool logs;
};
TrainerOptions bare() {
  TrainerOptions options;
  options.logger = false;
  options.enable_checkpointing = false;
  options.enable_progress_bar = false;
  options.enable_model_summary = false;
  return options;
}
TrainerOptions usual(const std::string& folder) {
  TrainerOptions options;
  options.default_root_dir = folder;
  return options;
}
TrainerOptions everything(const std::string& folder) {
  TrainerOptions options = usual(folder);
  options.gradient_clip_val = 1.0;
  options.callbacks = {std::make_shared<EmaWeightAveraging>(EmaWeightAveragingOptions{.decay = 0.999}),
                       std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "train_loss"}),
                       std::make_shared<LearningRateMonitor>()};
  return options;
}

struct Row {
  std::vector<double> extra;  // us per step over the hand-written loop, round by round
  Measured last;
};
double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

void report(const Settings& s, const std::vector<double>& hand, const Measured& by_hand,
            const std::vector<std::pair<std::string, Row>>& rows) {
  const auto [low, high] = std::minmax_element(hand.begin(), hand.end());
  std::printf("cpu level %s, %d threads, %lld rounds of %lld steps\n", kernels::name(kernels::cpu_level()),
              num_threads(), static_cast<long long>(s.rounds), static_cast<long long>(s.steps));
  std::printf("%-10s %10s %10s %10s %12s %12s\n", "", "us/step", "least", "most", "news/step", "bytes/step");
  std::printf("%-10s %10.3f %10.3f %10.3f %12.3f %12.3f\n", "by hand", median(hand), *low, *high, by_hand.allocations,
              by_hand.bytes);
  nlohmann::json json{{"by_hand", {{"us", hand}, {"allocations", by_hand.allocations}, {"bytes", by_hand.bytes}}}};
  for (const auto& [name, row] : rows) {
    const auto [least, most] = std::minmax_element(row.extra.begin(), row.extra.end());
    std::printf("%-10s %+10.3f %+10.3f %+10.3f %12.3f %12.3f\n", name.c_str(), median(row.extra), *least, *most,
                row.last.allocations, row.last.bytes);
    json[name] = {{"extra_us", row.extra}, {"allocations", row.last.allocations}, {"bytes", row.last.bytes}};
  }
  if (!s.json.empty()) std::ofstream(s.json) << json.dump(2) << "\n";
}

int run(const Settings& s) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "levin_bench_trainer";
  std::vector<Kind> kinds = {{"none", [](const std::string&) { return bare(); }, false},
                             {"logged", [](const std::string&) { return bare(); }, true},
                             {"default", usual, true},
                             {"all", everything, true}};
  if (!s.only.empty()) std::erase_if(kinds, [&](const Kind& k) { return k.name != s.only; });
  if (kinds.empty()) fail<ConfigError>("--only: no kind is called ", s.only, "; has none, logged, default, all");
  data::DataLoader loader = batches(s);
  std::vector<double> hand;
  Measured last_by_hand;
  std::vector<std::pair<std::string, Row>> rows;
  for (const Kind& kind : kinds) rows.emplace_back(kind.name, Row{});
  for (std::int64_t round = 0; round < s.rounds; ++round) {
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      last_by_hand = by_hand(s, loader);
      hand.push_back(last_by_hand.microseconds);
      Row& row = rows[k].second;
      row.last = trained(s, loader, kinds[k].options(folder.string()), kinds[k].logs);
      row.extra.push_back(row.last.microseconds - last_by_hand.microseconds);
      std::filesystem::remove_all(folder);
    }
  }
  report(s, hand, last_by_hand, rows);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Settings s;
  using bench::number_flag;
  const std::vector<bench::Flag> flags = {
      number_flag<std::int64_t>("--rounds", "N", "of each kind (15)", 1, [&](std::int64_t n) { s.rounds = n; }),
      number_flag<std::int64_t>("--steps", "N", "of a round that are measured (10000)", 2,
                                [&](std::int64_t n) { s.steps = n; }),
      number_flag<std::int64_t>("--warmup", "N", "of a round before these (500)", 1,
                                [&](std::int64_t n) { s.warmup = n; }),
      number_flag<int>("--threads", "N", "CPU threads", 1, [](int n) { set_num_threads(n); }),
      {"--only", "KIND", "none, logged, default or all", [&](const std::string& kind) { s.only = kind; }},
      {"--json", "FILE", "the figures as JSON", [&](const std::string& file) { s.json = file; }},
      {"--quick", "", "one round of a few steps: shows that it runs, and no figure means anything",
       [&](const std::string&) { s.rounds = 1, s.steps = 20, s.warmup = 5; }}};
  const bench::Parsed parsed =
      bench::parse(argc, argv, "What the trainer adds to a step of a loop that is written by hand.", flags);
  if (parsed.ended) return *parsed.ended;
  try {
    return run(s);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench: %s\n", e.what());
    return 1;
  }
}
