#include "levin/train/summary.h"

#include <algorithm>
#include <array>
#include <map>

#include "levin/flops.h"
#include "levin/nn/call.h"
#include "tensor/text/number_text.h"
#include "train/data/transfer.h"
#include "train/run/on_meta.h"
#include "train/run/run.h"

namespace levin {
namespace {

constexpr const char* kUnknown = "?";

// What is known of a module's calls.
struct Calls {
  std::string in = kUnknown, out = kUnknown;  // of the first
  std::int64_t flops = 0;                     // of all, without what was called inside
};
using CallsOf = std::map<const nn::Module*, Calls>;  // null: outside of any

std::string sizes(std::span<const Tensor* const> tensors) {
  std::string all;
  int n = 0;
  for (const Tensor* t : tensors) {
    if (t->defined()) all += (n++ > 0 ? ", " : "") + text(t->shape());
  }
  return n == 0 ? kUnknown : n == 1 ? all : "[" + all + "]";
}

class Sizes final : public nn::CallWatch {
 public:
  explicit Sizes(CallsOf& calls) : calls_(calls) { inside_.push_back(&calls_[nullptr]); }
  ~Sizes() override { attribute(); }
  void called(const nn::Module& module, std::span<const Tensor* const> inputs) override {
    attribute();
    const auto [at, first] = calls_.try_emplace(&module);
    if (first) at->second.in = sizes(inputs);
    inside_.push_back(&at->second);
  }
  void returned(const nn::Module&, std::span<const Tensor* const> outputs) override {
    if (inside_.back()->out == kUnknown) inside_.back()->out = sizes(outputs);
  }
  void left(const nn::Module&) noexcept override {
    attribute();
    inside_.pop_back();
  }

 private:
  // What was counted since the last time.
  void attribute() noexcept { inside_.back()->flops += counter_.total() - std::exchange(counted_, counter_.total()); }
  CallsOf& calls_;
  std::vector<Calls*> inside_;  // the innermost last
  FlopCounter counter_;
  std::int64_t counted_ = 0;
};

using Line = std::vector<std::string>;

void check(const SummaryOptions& options) {
  if (options.max_depth < -1)
    fail<ConfigError>("ModelSummary: max_depth is ", options.max_depth, ", expected -1 (all), 0 or more");
}

std::string readable_bytes(std::int64_t n) {
  return n < 1'000'000 ? std::to_string(n) + " bytes" : detail::fixed(static_cast<double>(n) / 1e6, 3) + " MB";
}

// `calls` null: there is no example.
std::string table(const nn::Module& module, const SummaryOptions& options, const CallsOf* calls) {
  std::vector<Line> lines = {{"", "Name", "Type", "Params", "Mode"}};
  if (calls) lines[0].insert(lines[0].end(), {"In sizes", "Out sizes", "FLOPs"});
  std::int64_t own = 0, bytes = 0, training = 0, evaluating = 0;
  std::vector<std::pair<Device, std::int64_t>> on;  // bytes by device
  for (const auto& [name, value] : module.named_parameters()) {
    if (name.find('.') == std::string::npos) own += value.numel();
    const std::int64_t size = value.numel() * static_cast<std::int64_t>(itemsize(value.dtype()));
    bytes += size;
    const auto it = std::find_if(on.begin(), on.end(), [&](const auto& d) { return d.first == value.device(); });
    if (it == on.end())
      on.emplace_back(value.device(), size);
    else
      it->second += size;
  }
  const Calls none;
  const auto of = [&](const nn::Module* m) -> const Calls& {
    if (!calls) return none;
    const auto at = calls->find(m);
    return at != calls->end() ? at->second : none;
  };
  const auto add = [&](const std::string& name, const nn::Module& m, std::int64_t n, std::int64_t flops) {
    lines.push_back(
        {std::to_string(lines.size() - 1), name, m.type_name(), readable_count(n), m.is_training() ? "train" : "eval"});
    if (calls) lines.back().insert(lines.back().end(), {of(&m).in, of(&m).out, readable_count(flops)});
  };
  std::int64_t all_flops = 0;
  if (calls) {
    for (const auto& [m, c] : *calls) all_flops += c.flops;
  }
  module.visit([&](const std::string& path, const nn::Module& m) {
    ++(m.is_training() ? training : evaluating);
    const auto depth = path.empty() ? 0 : std::count(path.begin(), path.end(), '.') + 1;
    if (options.max_depth >= 0 && depth > options.max_depth) return;
    std::int64_t flops = 0;
    if (depth == 0) {
      flops = of(nullptr).flops + of(&m).flops;
      if (own + flops > 0 && options.max_depth != 0) add("(own)", m, own, flops);
    } else {
      m.visit([&](const std::string&, const nn::Module& below) { flops += of(&below).flops; });
      add(path, m, m.parameter_count().total(), flops);
    }
  });

  std::vector<std::size_t> widths(lines[0].size());
  for (const Line& line : lines) {
    for (std::size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], line[c].size());
  }
  std::string out;
  std::size_t width = 3 * (widths.size() - 1);
  for (const std::size_t w : widths) width += w;
  const std::string rule = std::string(width, '-') + "\n";
  if (lines.size() > 1) {
    for (const Line& line : lines) {
      for (std::size_t c = 0; c < line.size(); ++c) {
        const bool last = c + 1 == line.size();
        out += line[c] + (last ? "\n" : std::string(widths[c] - line[c].size(), ' ') + " | ");
      }
      if (&line == lines.data()) out += rule;
    }
    out += rule;
  }
  const nn::ParameterCount count = module.parameter_count();
  out += readable_count(count.trainable) + " trainable parameters\n";
  out += readable_count(count.frozen) + " non-trainable parameters\n";
  out += readable_count(count.total()) + " parameters in all, " + readable_bytes(bytes) + "\n";
  if (on.size() > 1) {
    for (const auto& [device, size] : on) out += "  " + readable_bytes(size) + " of them on " + text(device) + "\n";
  }
  if (calls) out += readable_count(all_flops) + " FLOPs in a forward pass of the example\n";
  return out + std::to_string(training) + " modules in train mode, " + std::to_string(evaluating) + " in eval mode\n";
}

}  // namespace

std::string readable_count(std::int64_t n) {
  constexpr std::array kUnits = {"", " K", " M", " B", " T"};
  std::size_t unit = 0;
  std::int64_t size = 1;
  for (; unit + 1 < kUnits.size() && n / size >= 1000; ++unit) size *= 1000;
  const std::int64_t whole = n / size;
  std::string out = std::to_string(whole);
  if (unit > 0 && whole < 100) out += "." + std::to_string(n % size / (size / 10));
  return out + kUnits[unit];
}

std::string summarize(const nn::Module& module, const SummaryOptions& options) {
  check(options);
  return table(module, options, nullptr);
}

std::string summarize(nn::Module& module, const SummaryOptions& options, const Function<void()>& forward) {
  check(options);
  CallsOf calls;
  {
    const train::ModeGuard modes(&module);
    const train::OnMeta moved(module);
    module.train(false);
    const NoGrad off;
    const Sizes watch(calls);
    forward();
  }
  return table(module, options, &calls);
}

std::string summarize(TrainModule& module, const SummaryOptions& options) {
  Batch example = module.example_input();
  if (example.fields.empty()) return summarize(std::as_const(module), options);
  return summarize(module, options,
                   [&] { module.example_forward(train::move_batch(std::move(example), Device::meta())); });
}

ModelSummary::ModelSummary(SummaryOptions options) : options_(options) { check(options_); }

void ModelSummary::on_fit_start() {
  nn::Module* const module = trainer().module();
  if (!module) return;
  text_ = summarize(std::as_const(*module), options_);
  Trainer::Run& run = Trainer::Run::of(trainer());
  try {
    if (Batch example = run.borrowed.active->example_input(); !example.fields.empty()) {
      const train::Restore on_meta(run.device, Device::meta());
      const train::Restore unprofiled(run.options.profiler, {});
      text_ = summarize(*module, options_, [&] {
        run.to_device(*run.borrowed.active, example, run.device);
        run.precision.run([&] { run.borrowed.active->example_forward(example); });
      });
    }
  } catch (const std::exception& e) {
    warn("W-TRAIN-SUMMARY", WarningCategory::user,
         "ModelSummary: the table has no sizes, because the example of " + module->type_name() +
             " can not be run on shapes alone: " + e.what() + "; see TrainModule::example_input",
         Repeat::yes);
  }
  std::fputs(text_.c_str(), stderr);
}

}  // namespace levin
