#include "train/optimize/precision.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "levin/nn/layers.h"
#include "levin/train/metric.h"
#include "levin/warning.h"
#include "tensor/device/hardware.h"

namespace levin::train {
namespace {

struct Mode {
  std::string_view name;
  std::optional<DType> parameters, inputs, autocast;
  bool scales = false, masters = false;
};
constexpr std::array kModes{
    Mode{.name = "32-true", .parameters = {}, .inputs = {}, .autocast = {}},
    Mode{.name = "64-true", .parameters = DType::f64, .inputs = DType::f64, .autocast = {}},
    Mode{.name = "16-mixed", .parameters = {}, .inputs = {}, .autocast = DType::f16, .scales = true},
    Mode{.name = "bf16-mixed", .parameters = {}, .inputs = {}, .autocast = DType::bf16},
    Mode{.name = "16-true", .parameters = DType::f16, .inputs = DType::f16, .autocast = {}},
    Mode{.name = "bf16-true", .parameters = DType::bf16, .inputs = DType::bf16, .autocast = {}},
    Mode{.name = "16-o2",
         .parameters = DType::f16,
         .inputs = DType::f16,
         .autocast = DType::f16,
         .scales = true,
         .masters = true},
};

// Other spellings. An ambiguous one warns.
struct Alias {
  std::string_view name, means;
  bool warns = false;
};
constexpr std::array kAliases{
    Alias{"32", "32-true"},      Alias{"32-full", "32-true"},   Alias{"64", "64-true"},
    Alias{"64-full", "64-true"}, Alias{"16", "16-mixed", true}, Alias{"bf16", "bf16-mixed", true},
};
constexpr std::array kLevels{Alias{"O0", "32-true"}, Alias{"O1", "16-mixed"}, Alias{"O2", "16-o2"},
                             Alias{"O3", "16-true"}};

bool same_letters(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

std::string canonical(const TrainerOptions& options) {
  std::string name = options.precision.empty() ? "32-true" : options.precision;
  for (const Mode& m : kModes) {
    if (same_letters(m.name, name)) name = m.name;
  }
  for (const Alias& a : kAliases) {
    if (!same_letters(a.name, name)) continue;
    if (a.warns)
      warn("W-TRAIN-PRECISION", WarningCategory::deprecated,
           "Trainer: precision = \"" + name + "\" means \"" + std::string(a.means) + "\"; write that");
    name = a.means;
    break;
  }
  if (options.amp_level.empty()) return name;
  const auto level = std::find_if(kLevels.begin(), kLevels.end(),
                                  [&](const Alias& a) { return same_letters(a.name, options.amp_level); });
  if (level == kLevels.end())
    fail<ConfigError>("Trainer: amp_level is \"", options.amp_level, "\", expected O0, O1, O2 or O3");
  if (!options.precision.empty() && name != level->means)
    fail<ConfigError>("Trainer: amp_level = \"", options.amp_level, "\" means precision \"", level->means,
                      "\", and precision is \"", options.precision, "\"; give one of them");
  return std::string(level->means);
}

const Mode& mode_of(const std::string& name) {
  std::string known;
  for (const Mode& m : kModes) {
    if (m.name == name) return m;
    known += (known.empty() ? "" : ", ") + std::string(m.name);
  }
  fail<ConfigError>("Trainer: precision is \"", name, "\", expected one of ", known);
}

bool is_batch_norm(const nn::Module& m) { return dynamic_cast<const nn::BatchNorm*>(&m) != nullptr; }

}  // namespace

// NVIDIA's "CUDA C++ Programming Guide", arithmetic by compute capability: f16 from 5.3 on, bf16 from 8.0 on.
void check_hardware(const std::string& precision, DType lower, Device device, int capability) {
  const auto lacks = [&](int needed) {
    return "fit: precision = \"" + precision + "\" and " + text(device) + " has no hardware for " + text(lower) +
           ": its compute capability is " + text(capability / 10) + "." + text(capability % 10) + ", expected " +
           text(needed / 10) + "." + text(needed % 10) + " or more";
  };
  if (lower == DType::f16 && capability < 53) fail<UnsupportedError>(lacks(53), "; use 32-true");
  if (lower == DType::bf16 && capability < 80)
    warn("W-TRAIN-BF16-EMULATED", WarningCategory::user, lacks(80) + "; it is emulated, use 16-mixed or 32-true");
}

Precision::Precision(const TrainerOptions& options) {
  const std::string name = canonical(options);
  const Mode& mode = mode_of(name);
  asked_ = now_ = {.name = name, .autocast = mode.autocast, .scales = mode.scales};
  parameters_ = mode.parameters;
  inputs_ = mode.inputs;
  masters_ = mode.masters;
  if (options.grad_scaler && !mode.scales)
    fail<ConfigError>("Trainer: grad_scaler is given and precision is \"", name,
                      "\", which scales no loss; leave grad_scaler out, or use 16-mixed or 16-o2");
  scaler_options_ = options.grad_scaler.value_or(optim::GradScalerOptions{});
  if (masters_ && !options.grad_scaler) scaler_options_.max_scale = 0x1p24;  // Apex' limit
  if (mode.scales) (void)optim::GradScaler(scaler_options_);                 // checks the options
}

void Precision::convert(nn::Module* tree, Device device) {
  now_ = asked_;
  if (now_.name == "16-mixed" && device.is_cpu()) {
    warn("W-TRAIN-F16-CPU", WarningCategory::user,
         "fit: precision = \"16-mixed\" on the cpu becomes \"bf16-mixed\": f16 has no speed there, and bf16 needs no "
         "loss scale");
    now_ = {.name = "bf16-mixed", .autocast = DType::bf16, .scales = false};
  }
  if (const std::optional<DType> lower = now_.autocast ? now_.autocast : parameters_; lower && device.launches())
    check_hardware(now_.name, *lower, device, detail::compute_capability(device));
  if (!parameters_ || !tree) return;
  const auto keeps = [&](const nn::Module& m) {
    return (masters_ && is_batch_norm(m)) || dynamic_cast<const Metric*>(&m) != nullptr;
  };
  tree->to(*parameters_, keeps);
}

void Precision::adopt(optim::Optimizer& optimizer) {
  for (const ParamRef& p : optimizer.model_parameters()) {
    const DType dtype = p.value->dtype();
    if (parameters_ && dtype != *parameters_ && !(masters_ && dtype == DType::f32))
      fail<ConfigError>("fit: precision = \"", now_.name, "\" and the parameter ", p.name, " is ", dtype,
                        "; it belongs to no module that could be converted: make it ", *parameters_);
  }
  if (now_.scales && optimizer.name() == std::string_view("lbfgs"))
    fail<ConfigError>(
        "fit: precision = \"", now_.name,
        "\" scales the loss, and lbfgs evaluates it several times a step; use bf16-mixed or another optimizer");
  if (masters_) optimizer.use_master_weights();
  if (now_.scales && !scaler_) scaler_.emplace(scaler_options_);
}

void Precision::inputs(Batch& batch, Device device) const {
  for (Tensor& t : batch.fields) {
    if (!t.defined()) continue;
    if (t.device() != device) t = t.to(device, device.launches() ? NonBlocking::yes : NonBlocking::no);
    if (inputs_ && is_float(t.dtype())) t = t.to(*inputs_);
  }
}

}  // namespace levin::train
