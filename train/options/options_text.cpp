// Options from text: the environment, and the flags of older programs.
#include "train/options/options_text.h"

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

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

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
};

// Options whose values are objects.
constexpr std::array kObjects = {"callbacks", "grad_scaler"};

// An option for several processes or devices, its values that mean one, and the reason for the message.
struct NotBuilt {
  const char* name;
  std::vector<const char*> fine;
  const char* instead;
};
const std::vector<NotBuilt>& not_built() {
  static const std::vector<NotBuilt> all = {
      {"devices", {"1", "auto"}, "this library trains on one device, the one that the module is made on"},
      {"num_nodes", {"1"}, "this library trains in one process"},
      {"strategy",
       {"auto", "single_device"},
       "this library trains in one process, strategies of several are not built"},
      {"sync_batchnorm", {"false", "0"}, "there is one process, whose batch norms see all of the batch"},
      {"use_distributed_sampler", {"true", "false", "1", "0"}, "there is one process, which reads all samples"},
      {"plugins", {"none", ""}, "plug-ins and pipelines are not built"}};
  return all;
}
void refuse_not_built(const NotBuilt& what, std::string_view value) {
  const std::string v = lower(value);
  if (std::find(what.fine.begin(), what.fine.end(), v) != what.fine.end()) return;
  fail<ConfigError>("TrainerOptions: ", what.name, " is \"", value, "\", and ", what.instead, "; leave it out");
}

std::string backends() {
  std::string all = "cpu";
  for (const DeviceType type : {DeviceType::cuda, DeviceType::simt}) {
    if (device_count(type) > 0) all += std::string(", ") + (type == DeviceType::cuda ? "cuda" : "simt");
  }
  return all;
}

std::string nearest(const std::string& accelerator) {
  return accelerator == "tpu" ? "accelerator = \"auto\"; XLA_USE_BF16 is precision = \"bf16-true\""
                              : "accelerator = \"auto\"";
}
[[noreturn]] void fail_unsupported(const std::string& option, const std::string& accelerator) {
  fail<ConfigError>("TrainerOptions: ", option, ": ", accelerator,
                    " is a known accelerator and this build has no backend for it; it has ", backends(),
                    ". The nearest is ", nearest(accelerator));
}

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
  for (const NotBuilt& what : not_built()) {
    if (name != what.name) continue;
    refuse_not_built(what, value);
    return true;
  }
  if (name != "xla_dist") return false;
  bool on = false;
  read({.name = "xla_dist", .value = value}, on);
  if (on) fail_unsupported("xla_dist = " + std::string(value), "tpu");
  return true;
}

}  // namespace

// ---- Accelerators

void train::check_accelerator_name(std::string_view given) {
  const std::string name = lower(given);
  if (name.empty() || name == "auto" || name == "cpu") return;
  if (name == "tpu" || name == "ipu" || name == "hpu")
    fail_unsupported("accelerator = \"" + std::string(given) + "\"", name);
  const bool cuda = name == "cuda" || name == "gpu";
  if (!cuda && name != "simt")
    fail<ConfigError>("TrainerOptions: accelerator is \"", given, "\", expected auto, cpu, cuda (gpu) or simt");
  if (device_count(cuda ? DeviceType::cuda : DeviceType::simt) == 0)
    fail<ConfigError>("TrainerOptions: accelerator is \"", given, "\", and there is no such device: ",
                      cuda ? "the build is without CUDA (-Dcuda=enabled), or no driver or device was found"
                           : "the build is without -Dsimt=true",
                      "; usable are ", backends());
}

std::optional<Device> train::accelerator_device(const TrainerOptions& options) {
  const std::string name = lower(options.accelerator);
  if (name.empty() || name == "auto") return std::nullopt;
  return name == "cpu" ? Device::cpu() : name == "simt" ? Device::simt() : Device::cuda();
}

void train::check_accelerator(const TrainerOptions& options, const char* call, Device device) {
  if (const std::optional<Device> wanted = accelerator_device(options); wanted && device.type() != wanted->type())
    fail<ConfigError>(call, ": accelerator is \"", options.accelerator, "\" and the parameters are on ", device,
                      "; make them there ({.device = ...}), or leave accelerator out");
}

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

// gpus: a count, a list of one index, or none of them.
void set_gpus(TrainerOptions& options, std::string_view value) {
  tell_old("gpus", "accelerator = \"cuda\", and make the module on its device");
  std::string v = lower(value);
  const bool list = v.starts_with("[");
  std::erase_if(v, [](char c) { return c == '[' || c == ']' || c == ' '; });
  if (!list && (v == "0" || v == "none" || v.empty())) {
    options.accelerator = "cpu";
    return;
  }
  if (v.ends_with(",")) v.pop_back();
  std::int64_t number = 0;
  const bool one = whole(v, number) && (list || value.ends_with(",") ? number == 0 : number == 1);
  if (!one) refuse_not_built(not_built().front(), value);
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
  const auto refuse = [](const char* name, std::string_view value) {
    for (const NotBuilt& what : not_built()) {
      if (std::string_view(what.name) == name) refuse_not_built(what, value);
    }
  };
  const bool leveled = std::any_of(flags.begin(), flags.end(), [](const auto& f) { return f.first == "amp_level"; });
  for (const auto& [name, value] : flags) {
    const std::string v = lower(value);
    if (name == "gpus") {
      set_gpus(options, value);
    } else if (name == "tpu_cores") {
      tell_old(name, "accelerator");
      fail_unsupported("tpu_cores = " + value, "tpu");
    } else if (name == "xla_dist") {
      tell_old(name, "accelerator");
      (void)set_named(options, name, value);
    } else if (name == "nb_gpu_nodes") {
      tell_old(name, "num_nodes");
      refuse("num_nodes", value);
    } else if (name == "distributed_backend" || (name == "accelerator" && is_strategy(v))) {
      tell_old(name + (name == "accelerator" ? "=" + v : ""), "strategy");
      if (v != "none" && !v.empty()) refuse("strategy", value);
    } else if (name == "amp_level") {
      tell_old(name, "precision");
      options.amp_level = value;
    } else if (name == "use_amp") {
      tell_old(name, "precision = \"16-mixed\"");
      bool on = false;
      read({.name = "use_amp", .value = value}, on);
      if (on && !leveled) options.precision = "16-mixed";
    } else if (name == "plugins") {
      tell_old(name, v == "pipe" ? "strategy = pipeline" : "plugins");
      refuse("plugins", value);
    } else if (!set_named(options, name, value)) {
      fail<ConfigError>("TrainerOptions: no option is called \"", name, "\" (", value, "); see levin/train/options.h");
    }
  }
  train::check_accelerator_name(options.accelerator);
  return options;
}

}  // namespace levin
