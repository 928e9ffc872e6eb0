// Options from text: the environment, and the flags of older programs.
#include "train/options/accelerators.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <string>
#include <vector>

#include "levin/device.h"
#include "levin/error.h"
#include "levin/warning.h"

namespace levin {
namespace {

using train::lower;

// ---- Values

struct Asked {
  const char* name;
  std::string_view value;
  [[noreturn]] void refuse(const std::string& expected) const {
    fail<ConfigError>("TrainerOptions: ", name, " is \"", value, "\", expected ", expected);
  }
};

template <class T>
bool whole(std::string_view text, T& to) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), to);
  return error == std::errc() && end == text.data() + text.size();
}

void read(const Asked& a, bool& to) {
  const std::string v = lower(a.value);
  if (v != "true" && v != "false" && v != "1" && v != "0") a.refuse("true or false");
  to = v == "true" || v == "1";
}
void read(const Asked& a, std::int64_t& to) {
  if (!whole(a.value, to)) a.refuse("a whole number");
}
// fast_dev_run, where true is one batch.
void read(const Asked& a, int& to) {
  const std::string v = lower(a.value);
  if (v == "true" || v == "false")
    to = v == "true" ? 1 : 0;
  else if (!whole(a.value, to))
    a.refuse("a whole number, true or false");
}
void read(const Asked& a, double& to) {
  if (!whole(a.value, to)) a.refuse("a number");
}
void read(const Asked& a, std::string& to) { to = a.value; }
// "1" is a count, "1.0" a fraction.
void read(const Asked& a, Portion& to) {
  std::int64_t count = 0;
  double fraction = 0;
  if (whole(a.value, count))
    to = Portion(count);
  else if (whole(a.value, fraction))
    to = Portion(fraction);
  else
    a.refuse("a count of batches (10) or a fraction (0.25)");
}
void read(const Asked& a, Duration& to) { to = Duration(a.value); }
void read(const Asked& a, ValidationInterval& to) {
  if (a.value.find(':') != std::string_view::npos) {
    to = ValidationInterval(Duration(a.value));
    return;
  }
  Portion portion(1.0);
  read(a, portion);
  to = portion;
}
void read(const Asked& a, LoggerChoice& to) {
  bool on = false;
  read(a, on);
  to = on;
}

void read(const Asked& a, DeviceChoice& to) { to = DeviceChoice(a.value); }
void read(const Asked& a, NodeCount& to) {
  std::int64_t count = 0;
  read(a, count);
  to = count;
}
void read(const Asked& a, StrategyChoice& to) { to = StrategyChoice(a.value); }

template <class E, std::size_t N>
void choose(const Asked& a, E& to, const std::array<const char*, N>& names) {
  std::string known;
  for (std::size_t i = 0; i < N; ++i) {
    if (lower(a.value) == names[i]) {
      to = static_cast<E>(i);
      return;
    }
    known += (i == 0 ? "" : i + 1 == N ? " or " : ", ") + std::string(names[i]);
  }
  a.refuse(known);
}
void read(const Asked& a, ClipAlgorithm& to) { choose(a, to, std::array{"norm", "value"}); }
void read(const Asked& a, OnSkippedStep& to) { choose(a, to, std::array{"advance", "hold"}); }
void read(const Asked& a, MatmulPrecision& to) { choose(a, to, std::array{"highest", "high"}); }
void read(const Asked& a, AccumulateWeighting& to) { choose(a, to, std::array{"per_batch", "exact"}); }
void read(const Asked& a, Capture& to) { choose(a, to, std::array{"off", "step"}); }
void read(const Asked& a, Deterministic& to) {
  const std::string v = lower(a.value);
  if (v == "true" || v == "false")
    to = v == "true" ? Deterministic::on : Deterministic::off;
  else
    choose(a, to, std::array{"off", "on", "warn"});
}
void read(const Asked& a, std::shared_ptr<Profiler>& to) {
  const std::string v = lower(a.value);
  if (v == "none")
    to = nullptr;
  else if (v == "simple")
    to = std::make_shared<SimpleProfiler>();
  else if (v == "trace")
    to = std::make_shared<TraceProfiler>(TraceProfilerOptions{.path = "trace.json"});
  else if (v == "nvtx")
    to = std::make_shared<NvtxProfiler>();
  else
    a.refuse("none, simple, trace or nvtx");
}
template <class T>
void read(const Asked& a, std::optional<T>& to) {
  if (lower(a.value) == "none") {
    to.reset();
    return;
  }
  T value = [] {
    if constexpr (std::is_same_v<T, Portion> || std::is_same_v<T, ValidationInterval>)
      return T(1.0);
    else if constexpr (std::is_same_v<T, Duration>)
      return T(Duration::Parts{});
    else
      return T{};
  }();
  read(a, value);
  to = std::move(value);
}

// ---- Whether an option has its default

template <class T>
bool is_default(const T& value, const T& initial) {
  return value == initial;
}
template <class T>
bool is_default(const std::optional<T>& value, const std::optional<T>& initial) {
  if constexpr (requires { value == initial; })
    return value == initial;
  else
    return !value;
}
bool is_default(const LoggerChoice& value, const LoggerChoice&) { return !value.chosen(); }
bool is_default(const StrategyChoice& value, const StrategyChoice&) { return !value.maker() && !value.object(); }

// ---- The options that have a text

struct Named {
  const char* name;
  void (*set)(TrainerOptions& options, const Asked& asked);
  bool (*unset)(const TrainerOptions& options);
};
template <auto Member>
constexpr Named named(const char* name) {
  return {.name = name,
          .set = [](TrainerOptions& o, const Asked& a) { read(a, o.*Member); },
          .unset = [](const TrainerOptions& o) { return is_default(o.*Member, TrainerOptions{}.*Member); }};
}
using O = TrainerOptions;
constexpr Named kNamed[] = {
    named<&O::accelerator>("accelerator"),
    named<&O::logger>("logger"),
    named<&O::fast_dev_run>("fast_dev_run"),
    named<&O::max_epochs>("max_epochs"),
    named<&O::min_epochs>("min_epochs"),
    named<&O::max_steps>("max_steps"),
    named<&O::min_steps>("min_steps"),
    named<&O::max_time>("max_time"),
    named<&O::limit_train_batches>("limit_train_batches"),
    named<&O::limit_val_batches>("limit_val_batches"),
    named<&O::limit_test_batches>("limit_test_batches"),
    named<&O::limit_predict_batches>("limit_predict_batches"),
    named<&O::overfit_batches>("overfit_batches"),
    named<&O::val_check_interval>("val_check_interval"),
    named<&O::check_val_every_n_epoch>("check_val_every_n_epoch"),
    named<&O::num_sanity_val_steps>("num_sanity_val_steps"),
    named<&O::log_every_n_steps>("log_every_n_steps"),
    named<&O::accumulate_grad_batches>("accumulate_grad_batches"),
    named<&O::accumulate_weighting>("accumulate_weighting"),
    named<&O::gradient_clip_val>("gradient_clip_val"),
    named<&O::gradient_clip_algorithm>("gradient_clip_algorithm"),
    named<&O::enable_checkpointing>("enable_checkpointing"),
    named<&O::enable_progress_bar>("enable_progress_bar"),
    named<&O::enable_model_summary>("enable_model_summary"),
    named<&O::barebones>("barebones"),
    named<&O::devices>("devices"),
    named<&O::num_nodes>("num_nodes"),
    named<&O::strategy>("strategy"),
    named<&O::sync_batchnorm>("sync_batchnorm"),
    named<&O::use_distributed_sampler>("use_distributed_sampler"),
    named<&O::deterministic>("deterministic"),
    named<&O::benchmark>("benchmark"),
    named<&O::float32_matmul_precision>("float32_matmul_precision"),
    named<&O::inference_mode>("inference_mode"),
    named<&O::reload_dataloaders_every_n_epochs>("reload_dataloaders_every_n_epochs"),
    named<&O::precision>("precision"),
    named<&O::amp_level>("amp_level"),
    named<&O::lr_on_skipped_step>("lr_on_skipped_step"),
    named<&O::profiler>("profiler"),
    named<&O::capture>("capture"),
    named<&O::sync_budget>("sync_budget"),
    named<&O::detect_anomaly>("detect_anomaly"),
    named<&O::default_root_dir>("default_root_dir"),
    named<&O::enable_autolog_hparams>("enable_autolog_hparams"),
    named<&O::memory_limit>("memory_limit"),
    named<&O::handle_signals>("handle_signals"),
    named<&O::requeue_signal>("requeue_signal"),
};

// Options whose values are objects.
constexpr std::array kObjects = {"callbacks", "grad_scaler", "plugins"};

// Sets the option of this name. Returns false if there is none.
bool set_named(TrainerOptions& options, std::string_view name, std::string_view value) {
  for (const Named& n : kNamed) {
    if (name != n.name) continue;
    n.set(options, {.name = n.name, .value = value});
    return true;
  }
  for (const char* object : kObjects) {
    if (name == object)
      fail<ConfigError>("TrainerOptions: ", name, " is \"", value,
                        "\", and objects have no text; set it in the program");
  }
  if (name != "xla_dist") return false;
  bool on = false;
  read({.name = "xla_dist", .value = value}, on);
  if (on) train::fail_unsupported("xla_dist = " + std::string(value), "tpu");
  return true;
}

}  // namespace

TrainerOptions TrainerOptions::from_env(TrainerOptions options) {
  constexpr std::string_view kPrefix = "LEVIN_TRAINER_";
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view line = *entry;
    const std::size_t equals = line.find('=');
    if (!line.starts_with(kPrefix) || equals == std::string_view::npos) continue;
    const std::string name = lower(line.substr(kPrefix.size(), equals - kPrefix.size()));
    const auto known =
        std::find_if(std::begin(kNamed), std::end(kNamed), [&](const Named& n) { return name == n.name; });
    if (known != std::end(kNamed) && !known->unset(options)) continue;  // the program has set it
    if (!set_named(options, name, line.substr(equals + 1)))
      warn("W-TRAIN-ENV", WarningCategory::user,
           "TrainerOptions: " + std::string(line.substr(0, equals)) + " is set and no option is called " + name);
  }
  return options;
}

// ---- Older spellings

namespace {

void tell_old(const std::string& old, const std::string& now) {
  warn("W-TRAIN-LEGACY-" + old, WarningCategory::deprecated,
       "TrainerOptions: " + old + " is an old spelling; write " + now);
}

// gpus: a count, a list of indices, or none of them.
void set_gpus(TrainerOptions& options, std::string_view value) {
  tell_old("gpus", "accelerator = \"cuda\" and devices");
  std::string v = lower(value);
  const bool list = v.starts_with("[");
  std::erase_if(v, [](char c) { return c == '[' || c == ']' || c == ' '; });
  if (!list && (v == "0" || v == "none" || v.empty())) {
    options.accelerator = "cpu";
    return;
  }
  if (list && v.find(',') == std::string::npos) v += ",";
  options.devices = DeviceChoice(v);
  options.accelerator = "cuda";
}

bool is_strategy(const std::string& name) {
  constexpr std::array kNames = {"ddp",         "ddp_spawn", "ddp2", "dp",       "ddp_cpu",
                                 "ddp_sharded", "horovod",   "fsdp", "deepspeed"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

}  // namespace

TrainerOptions TrainerOptions::from_legacy(const Metadata& flags) {
  TrainerOptions options;
  const bool leveled = std::any_of(flags.begin(), flags.end(), [](const auto& f) { return f.first == "amp_level"; });
  for (const auto& [name, value] : flags) {
    const std::string v = lower(value);
    if (name == "gpus") {
      set_gpus(options, value);
    } else if (name == "tpu_cores") {
      tell_old(name, "accelerator");
      train::fail_unsupported("tpu_cores = " + value, "tpu");
    } else if (name == "xla_dist") {
      tell_old(name, "accelerator");
      (void)set_named(options, name, value);
    } else if (name == "nb_gpu_nodes") {
      tell_old(name, "num_nodes");
      (void)set_named(options, "num_nodes", value);
    } else if (name == "distributed_backend" || (name == "accelerator" && is_strategy(v))) {
      tell_old(name + (name == "accelerator" ? "=" + v : ""), "strategy");
      if (v == "ddp_cpu") options.accelerator = "cpu";
      if (v != "none" && !v.empty()) options.strategy = v == "ddp_cpu" ? "ddp" : v;
    } else if (name == "amp_level") {
      tell_old(name, "precision");
      options.amp_level = value;
    } else if (name == "use_amp") {
      tell_old(name, "precision = \"16-mixed\"");
      bool on = false;
      read({.name = "use_amp", .value = value}, on);
      if (on && !leveled) options.precision = "16-mixed";
    } else if (name == "plugins") {
      if (v != "pipe" && v != "none" && !v.empty()) (void)set_named(options, name, value);
      tell_old(name, "strategy = \"pipeline\"");
      if (v == "pipe") options.strategy = "pipeline";
    } else if (!set_named(options, name, value)) {
      fail<ConfigError>("TrainerOptions: no option is called \"", name, "\" (", value, "); see levin/train/options.h");
    }
  }
  train::check_accelerator_name(options.accelerator);
  return options;
}

}  // namespace levin
