#include <doctest/doctest.h>

#include <cstdlib>

#include "levin/engines.h"
#include "tests/warnings.h"
#include "train/run/probe_test.h"

using namespace levin;
using namespace levin::test;

namespace {

// Sets variables of the environment, and removes them at the end.
class Environment {
 public:
  explicit Environment(const std::vector<std::pair<std::string, std::string>>& all) {
    for (const auto& [name, value] : all) {
      setenv(("LEVIN_TRAINER_" + name).c_str(), value.c_str(), 1);
      names_.push_back("LEVIN_TRAINER_" + name);
    }
  }
  ~Environment() {
    for (const std::string& name : names_) unsetenv(name.c_str());
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::vector<std::string> names_;
};

std::string env_error(const std::string& name, const std::string& value) {
  const Environment set({{name, value}});
  try {
    (void)TrainerOptions::from_env({});
  } catch (const ConfigError& e) { return e.what(); }
  return "accepted";
}
std::string legacy_error(const Metadata& flags) {
  try {
    (void)TrainerOptions::from_legacy(flags);
  } catch (const ConfigError& e) { return e.what(); }
  return "accepted";
}

}  // namespace

TEST_CASE("the environment says what the program left at its default") {
  Warnings warnings;
  const Environment set({{"MAX_EPOCHS", "3"},
                         {"MAX_STEPS", "7"},
                         {"LIMIT_VAL_BATCHES", "0.25"},
                         {"LIMIT_TRAIN_BATCHES", "1"},
                         {"LIMIT_TEST_BATCHES", "1.0"},
                         {"VAL_CHECK_INTERVAL", "00:00:05:00"},
                         {"CHECK_VAL_EVERY_N_EPOCH", "none"},
                         {"MAX_TIME", "01:00:00:00"},
                         {"GRADIENT_CLIP_VAL", "0.5"},
                         {"GRADIENT_CLIP_ALGORITHM", "Value"},
                         {"FAST_DEV_RUN", "true"},
                         {"LOGGER", "false"},
                         {"PROFILER", "simple"},
                         {"DETERMINISTIC", "warn"},
                         {"BENCHMARK", "true"},
                         {"FLOAT32_MATMUL_PRECISION", "high"},
                         {"PRECISION", "bf16-true"},
                         {"ENABLE_PROGRESS_BAR", "0"},
                         {"DEVICES", "0,2"},
                         {"NUM_NODES", "2"},
                         {"STRATEGY", "DDP"},
                         {"SYNC_BATCHNORM", "true"},
                         {"USE_DISTRIBUTED_SAMPLER", "false"},
                         {"DEFAULT_ROOT_DIR", "/some/where"}});
  TrainerOptions given;
  given.max_steps = 9;
  const TrainerOptions o = TrainerOptions::from_env(given);
  CHECK(o.max_epochs == 3);
  CHECK(o.max_steps == 9);  // set by the program
  CHECK(o.limit_val_batches == Portion(0.25));
  CHECK(o.limit_train_batches == Portion(1));
  CHECK(o.limit_test_batches == Portion(1.0));
  REQUIRE(o.val_check_interval.has_value());
  CHECK(o.val_check_interval->time()->seconds() == 300);
  CHECK_FALSE(o.check_val_every_n_epoch.has_value());
  CHECK(o.max_time->seconds() == 86400);
  CHECK(o.gradient_clip_val == 0.5);
  CHECK(o.gradient_clip_algorithm == ClipAlgorithm::value);
  CHECK(o.fast_dev_run == 1);
  CHECK(o.logger.chosen());
  CHECK_FALSE(o.logger.by_default());
  CHECK(dynamic_cast<const SimpleProfiler*>(o.profiler.get()) != nullptr);
  CHECK(o.deterministic == Deterministic::warn);
  CHECK(o.benchmark == true);
  CHECK(o.float32_matmul_precision == MatmulPrecision::high);
  CHECK(o.devices.indices() == std::vector{0, 2});
  CHECK(o.num_nodes.value() == 2);
  CHECK(o.strategy.name() == "ddp");
  CHECK(o.sync_batchnorm);
  CHECK_FALSE(o.use_distributed_sampler);
  CHECK(o.precision == "bf16-true");
  CHECK(o.enable_progress_bar == false);
  CHECK(o.default_root_dir == "/some/where");
  CHECK(warnings.all().empty());
}

TEST_CASE("what the environment says wrongly is named, with the value and what is expected") {
  CHECK(contains(env_error("MAX_EPOCHS", "3.5"), "max_epochs is \"3.5\", expected a whole number"));
  CHECK(contains(env_error("BAREBONES", "maybe"), "barebones is \"maybe\", expected true or false"));
  CHECK(contains(env_error("CAPTURE", "all"), "capture is \"all\", expected off or step"));
  CHECK(contains(env_error("LIMIT_VAL_BATCHES", "few"), "a count of batches (10) or a fraction (0.25)"));
  CHECK(contains(env_error("CALLBACKS", "x"), "objects have no text"));
  CHECK(contains(env_error("PLUGINS", "x"), "objects have no text"));
  CHECK(contains(env_error("DEVICES", "four"), "devices is \"four\", expected a count"));
  CHECK(contains(env_error("NUM_NODES", "0"), "num_nodes is 0, expected 1 or more"));
  Warnings warnings;
  CHECK(env_error("MAX_EPOCH", "3") == "accepted");
  REQUIRE(warnings.count("W-TRAIN-ENV") == 1);
  CHECK(contains(warnings.all().front().text, "LEVIN_TRAINER_MAX_EPOCH is set and no option is called max_epoch"));
}

TEST_CASE("older spellings become options, each reported once as deprecated") {
  Warnings warnings;
  const TrainerOptions o = TrainerOptions::from_legacy({{"max_epochs", "4"},
                                                        {"amp_level", "O2"},
                                                        {"use_amp", "False"},
                                                        {"nb_gpu_nodes", "1"},
                                                        {"val_check_interval", "0.5"},
                                                        {"distributed_backend", "None"}});
  CHECK(o.max_epochs == 4);
  CHECK(o.amp_level == "O2");
  CHECK(o.precision.empty());
  CHECK(o.val_check_interval->portion() == Portion(0.5));
  std::vector<std::string> ids = warnings.ids();
  CHECK(ids == std::vector<std::string>{"W-TRAIN-LEGACY-amp_level", "W-TRAIN-LEGACY-use_amp",
                                        "W-TRAIN-LEGACY-nb_gpu_nodes", "W-TRAIN-LEGACY-distributed_backend"});
  for (const Warning& w : warnings.all()) CHECK(w.category == WarningCategory::deprecated);
  CHECK(TrainerOptions::from_legacy({{"use_amp", "True"}}).precision == "16-mixed");
  CHECK(TrainerOptions::from_legacy({{"gpus", "0"}}).accelerator == "cpu");
  CHECK(contains(legacy_error({{"nothing", "1"}}), "no option is called \"nothing\""));
  (void)Trainer([] {
    TrainerOptions built =
        TrainerOptions::from_legacy({{"amp_level", "O2"}, {"use_amp", "False"}, {"logger", "false"}});
    built.enable_checkpointing = built.enable_progress_bar = false;
    return built;
  }());  // 16-o2
}

TEST_CASE("older spellings of devices and strategies become options, those of absent accelerators errors") {
  Warnings warnings;
  CHECK(TrainerOptions::from_legacy({{"nb_gpu_nodes", "128"}}).num_nodes.value() == 128);
  CHECK(TrainerOptions::from_legacy({{"accelerator", "ddp_spawn"}}).strategy.name() == "ddp_spawn");
  CHECK(TrainerOptions::from_legacy({{"distributed_backend", "dp"}}).strategy.name() == "dp");
  CHECK(TrainerOptions::from_legacy({{"distributed_backend", "ddp_cpu"}}).accelerator == "cpu");
  CHECK(TrainerOptions::from_legacy({{"plugins", "pipe"}}).strategy.name() == "pipeline");
  CHECK(contains(legacy_error({{"plugins", "mine"}}), "objects have no text"));
  CHECK(contains(legacy_error({{"gpus", "[0, 0]"}}), "devices lists 0 twice"));
  for (const char* some : {"4", "[0, 1]", "0,"}) {  // whether this machine has a GPU is another question
    const std::string error = legacy_error({{"gpus", some}});
    CHECK((error == "accepted" || contains(error, "there is no such device")));
  }
  CHECK(warnings.count("W-TRAIN-LEGACY-gpus") == 4);
  const std::string tpu = legacy_error({{"tpu_cores", "8"}});
  CHECK(contains(tpu, "tpu is a known accelerator"));
  CHECK(contains(tpu, "no backend for it; it has cpu"));
  CHECK(contains(legacy_error({{"xla_dist", "True"}}), "xla_dist = True: tpu is a known accelerator"));
  CHECK(legacy_error({{"xla_dist", "False"}}) == "accepted");
  CHECK(contains(env_error("XLA_DIST", "1"), "tpu is a known accelerator"));
  CHECK(env_error("USE_DISTRIBUTED_SAMPLER", "false") == "accepted");
  CHECK(contains(env_error("USE_DISTRIBUTED_SAMPLER", "4"), "expected true or false"));
  CHECK(warnings.count("W-TRAIN-ENV") == 0);
}

TEST_CASE("an accelerator is a name of a device that is there") {
  const auto error_of = [](const char* name) -> std::string {
    TrainerOptions options = epochs(1);
    options.accelerator = name;
    return refused(options, 2, 0);
  };
  CHECK(error_of("auto") == "accepted");
  CHECK(error_of("CPU") == "accepted");
  CHECK(contains(error_of("gnu"), "expected auto, cpu, cuda (gpu) or simt"));
  for (const char* name : {"tpu", "ipu", "HPU"}) CHECK(contains(error_of(name), "no backend for it; it has cpu"));
  CHECK(contains(error_of("tpu"), "XLA_USE_BF16 is precision = \"bf16-true\""));
  for (const auto& [name, type] : {std::pair{"gpu", DeviceType::cuda}, std::pair{"simt", DeviceType::simt}}) {
    if (device_count(type) == 0)
      CHECK(contains(error_of(name), "there is no such device"));
    else
      CHECK(error_of(name) == "accepted");  // the module moves there
  }
}

TEST_CASE("benchmark chooses the library's engines for the length of a fit") {
  const EngineChoice before = set_engine_choice(EngineFamily::convolution, EngineChoice::first);
  // A user's choice for one family is restored after the fit; in the fit our own kernels stay chosen.
  const EngineChoice attention = set_engine_choice(EngineFamily::attention, EngineChoice::timed);
  const EngineChoice products = set_engine_choice(EngineFamily::product, EngineChoice::own);
  for (const std::optional<bool> benchmark : {std::optional<bool>(), std::optional(true), std::optional(false)}) {
    TrainerOptions options = epochs(1);
    options.benchmark = benchmark;
    std::vector<EngineChoice> inside;
    struct Looks : TrainModuleOf<Looks, Probe> {
      using TrainModuleOf::TrainModuleOf;
      std::vector<EngineChoice>* seen = nullptr;
      void on_train_start() override {
        for (const EngineFamily family : {EngineFamily::convolution, EngineFamily::attention, EngineFamily::product})
          seen->push_back(engine_choice(family));
      }
    } net({.gen = Generator(1), .device = Device::cpu()});
    net.seen = &inside;
    data::DataLoader train = ramp(1);
    Trainer trainer(options);
    trainer.fit(net, {.train = train});
    const EngineChoice asked = benchmark.value_or(false) ? EngineChoice::timed : EngineChoice::first;
    CHECK(inside == std::vector{asked, benchmark ? asked : EngineChoice::timed, EngineChoice::own});
    CHECK(engine_choice(EngineFamily::convolution) == EngineChoice::first);
    CHECK(engine_choice(EngineFamily::attention) == EngineChoice::timed);
    CHECK(engine_choice(EngineFamily::product) == EngineChoice::own);
  }
  set_engine_choice(EngineFamily::attention, attention);
  set_engine_choice(EngineFamily::product, products);
  set_engine_choice(EngineFamily::convolution, before);
}

TEST_CASE("float32_matmul_precision allows TF32 for products for the length of a fit") {
  struct LooksAtTf32 : TrainModuleOf<LooksAtTf32, Probe> {
    using TrainModuleOf::TrainModuleOf;
    std::vector<AllowTf32> seen;
    void on_train_start() override {
      for (const EngineFamily family : {EngineFamily::product, EngineFamily::convolution})
        seen.push_back(allow_tf32(family));
    }
  };
  const AllowTf32 before = allow_tf32(EngineFamily::product);
  for (const AllowTf32 outside : {AllowTf32::no, AllowTf32::yes}) {
    set_allow_tf32(EngineFamily::product, outside);
    for (const auto asked : {std::optional<MatmulPrecision>(), std::optional(MatmulPrecision::highest),
                             std::optional(MatmulPrecision::high)}) {
      TrainerOptions options = epochs(1);
      options.float32_matmul_precision = asked;
      LooksAtTf32 net({.gen = Generator(1), .device = Device::cpu()});
      data::DataLoader train = ramp(1);
      Trainer trainer(options);
      trainer.fit(net, {.train = train});
      const AllowTf32 inside = asked ? AllowTf32{*asked == MatmulPrecision::high} : outside;
      CHECK(net.seen == std::vector{inside, AllowTf32::no});
      CHECK(allow_tf32(EngineFamily::product) == outside);
    }
  }
  set_allow_tf32(EngineFamily::product, before);
}
