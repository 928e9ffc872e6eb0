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

const Mode& mode_of(std::string_view name) {
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

// A mode of TrainerOptions::precision.
class Precision::BuiltIn final : public PrecisionPlugin {
 public:
  explicit BuiltIn(const TrainerOptions& options) : mode_(mode_of(canonical(options))) {
    now = asked();
    if (options.grad_scaler && !mode_.scales)
      fail<ConfigError>("Trainer: grad_scaler is given and precision is \"", mode_.name,
                        "\", which scales no loss; leave grad_scaler out, or use 16-mixed or 16-o2");
    scaler_ = options.grad_scaler.value_or(optim::GradScalerOptions{});
    if (mode_.masters && !options.grad_scaler) scaler_.max_scale = 0x1p24;  // Apex' limit
    if (mode_.scales) (void)optim::GradScaler(scaler_);                     // checks the options
  }

  [[nodiscard]] std::string name() const override { return now.name; }

  void convert_module(nn::Module* module, Device device) override {
    now = asked();
    if (now.name == "16-mixed" && device.is_cpu()) {
      warn("W-TRAIN-F16-CPU", WarningCategory::user,
           "fit: precision = \"16-mixed\" on the cpu becomes \"bf16-mixed\": f16 has no speed there, and bf16 needs no "
           "loss scale");
      now = {.name = "bf16-mixed", .autocast = DType::bf16, .scales = false};
    }
    if (const std::optional<DType> lower = now.autocast ? now.autocast : mode_.parameters; lower && device.launches())
      check_hardware(now.name, *lower, device, detail::compute_capability(device));
    if (!mode_.parameters || !module) return;
    const auto keeps = [&](const nn::Module& m) {
      return (mode_.masters && is_batch_norm(m)) || dynamic_cast<const Metric*>(&m) != nullptr;
    };
    module->to(*mode_.parameters, keeps);
  }

  [[nodiscard]] std::optional<optim::GradScalerOptions> grad_scaler() override {
    return now.scales ? std::optional(scaler_) : std::nullopt;
  }

  void setup_optimizer(optim::Optimizer& optimizer) override {
    for (const ParamRef& p : optimizer.model_parameters()) {
      const DType dtype = p.value->dtype();
      if (mode_.parameters && dtype != *mode_.parameters && !(mode_.masters && dtype == DType::f32))
        fail<ConfigError>("fit: precision = \"", now.name, "\" and the parameter ", p.name, " is ", dtype,
                          "; it belongs to no module that could be converted: make it ", *mode_.parameters);
    }
    if (mode_.masters) optimizer.use_master_weights();
  }

  [[nodiscard]] Tensor convert_input(Tensor field) override {
    return mode_.inputs && is_float(field.dtype()) ? field.to(*mode_.inputs) : field;
  }

  void forward_context(const Function<void()>& forward) override {
    if (!now.autocast) return forward();
    std::optional<Autocast> on;
    if (casts)
      on.emplace(*now.autocast, *casts);
    else
      on.emplace(*now.autocast);
    forward();
  }

  [[nodiscard]] Tensor convert_output(Tensor output) override {
    return mode_.masters && output.dtype() == DType::f16 ? output.to(DType::f32) : output;
  }

  Mixed now;  // for the module that was converted last
  std::optional<CastPlan> casts{};

 private:
  [[nodiscard]] Mixed asked() const {
    return {.name = std::string(mode_.name), .autocast = mode_.autocast, .scales = mode_.scales};
  }
  const Mode& mode_;
  optim::GradScalerOptions scaler_;
};

Precision::Precision(const TrainerOptions& options) : plugin_(options.plugins.precision) {
  if (!plugin_) {
    plugin_ = mode_ = std::make_shared<BuiltIn>(options);
    now_ = mode_->now;
    return;
  }
  now_ = {.name = plugin_->name(), .autocast = {}, .scales = plugin_->grad_scaler().has_value()};
  const auto refuse = [&](const std::string& option) {
    fail<ConfigError>("Trainer: ", option, " and plugins has a PrecisionPlugin, ", now_.name,
                      ", which are two of one kind; give one of them");
  };
  if (!options.precision.empty()) refuse("precision is \"" + options.precision + "\"");
  if (!options.amp_level.empty()) refuse("amp_level is \"" + options.amp_level + "\"");
  if (options.grad_scaler) refuse("grad_scaler is given");
}

void Precision::convert(nn::Module* tree, Device device) {
  plugin_->convert_module(tree, device);
  scaling_ = plugin_->grad_scaler();
  if (mode_)
    now_ = mode_->now;
  else
    now_.scales = scaling_.has_value();
}
void Precision::cast_together(bool on) {
  if (!mode_) return;
  mode_->casts.reset();
  if (on) mode_->casts.emplace();
}
void Precision::set_mixed(Mixed before) {
  if (mode_) mode_->now = before;
  now_ = std::move(before);
}

void Precision::adopt(optim::Optimizer& optimizer) {
  if (now_.scales && optimizer.name() == std::string_view("lbfgs"))
    fail<ConfigError>(
        "fit: precision = \"", now_.name,
        "\" scales the loss, and lbfgs evaluates it several times a step; use bf16-mixed or another optimizer");
  plugin_->setup_optimizer(optimizer);
  if (now_.scales && !scaler_ && scaling_) scaler_.emplace(*scaling_);
}

void Precision::inputs(Batch& batch, Device device) const {
  for (Tensor& t : batch.fields) {
    if (!t.defined()) continue;
    if (t.device() != device) t = t.to(device, device.launches() ? NonBlocking::yes : NonBlocking::no);
    t = plugin_->convert_input(std::move(t));
  }
}

void Precision::before_step(optim::Optimizer& optimizer) const {
  const NoGrad off;
  plugin_->before_step(optimizer);
}
void Precision::after_step(optim::Optimizer& optimizer) const {
  const NoGrad off;
  plugin_->after_step(optimizer);
}

void Precision::check_ran(bool ran) const {
  if (!ran) fail<StateError>("PrecisionPlugin: forward_context of ", now_.name, " did not call forward; call it once");
}

}  // namespace levin::train

namespace levin {

PrecisionPlugin::~PrecisionPlugin() = default;
void PrecisionPlugin::convert_module(nn::Module*, Device) {}
std::optional<optim::GradScalerOptions> PrecisionPlugin::grad_scaler() { return {}; }
void PrecisionPlugin::setup_optimizer(optim::Optimizer&) {}
Tensor PrecisionPlugin::convert_input(Tensor field) { return field; }
void PrecisionPlugin::forward_context(const Function<void()>& forward) { forward(); }
Tensor PrecisionPlugin::convert_output(Tensor output) { return output; }
Tensor PrecisionPlugin::pre_backward(Tensor loss) { return loss; }
void PrecisionPlugin::before_step(optim::Optimizer&) {}
void PrecisionPlugin::after_step(optim::Optimizer&) {}
NamedTensors PrecisionPlugin::state_dict() { return {}; }
void PrecisionPlugin::load_state_dict(const NamedTensors&) {}

}  // namespace levin
