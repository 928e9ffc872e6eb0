// Options of ZeRO in DeepSpeed's files.
#include <doctest/doctest.h>

#include <fstream>

#include "levin/train/fsdp_strategy.h"
#include "levin/train/zero_strategy.h"
#include "tests/temporary.h"
#include "tests/variables.h"

using namespace levin;

namespace {

std::string error_of(const std::string& json) {
  try {
    (void)parse_zero_config(json, "ds.json");
  } catch (const Error& e) { return e.what(); }
  return "none";
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
const ZeroOptions& options_of(const std::shared_ptr<Strategy>& strategy) {
  const auto zero = std::dynamic_pointer_cast<ZeroStrategy>(strategy);
  REQUIRE(zero);
  return zero->options();
}

}  // namespace

TEST_CASE("a file of DeepSpeed's shape sets each option of ZeRO") {
  const ZeroOptions all = parse_zero_config(R"({
    "zero_optimization": {
      "stage": 3, "allgather_bucket_size": 5e8, "reduce_bucket_size": 262144, "overlap_comm": false,
      "contiguous_gradients": true, "sub_group_size": 1e9,
      "offload_optimizer": {"device": "nvme", "nvme_path": "/disk", "pin_memory": false},
      "offload_param": {"device": "cpu", "nvme_path": "/disk", "pin_memory": false}
    }})");
  CHECK(all.stage == 3);
  CHECK(all.bucket_cap_mb == 1);
  CHECK_FALSE(all.overlap_comm);
  CHECK(all.sub_group_size == 1'000'000'000);
  CHECK(all.offload_optimizer == Offload::nvme);
  CHECK(all.offload_params == Offload::cpu);
  CHECK(all.nvme_path == "/disk");
  CHECK_FALSE(all.pin_memory);
  const ZeroOptions none = parse_zero_config("{}"), plain;
  CHECK(none.stage == plain.stage);
  CHECK(none.bucket_cap_mb == plain.bucket_cap_mb);
  CHECK(none.offload_optimizer == Offload::none);
  CHECK(parse_zero_config(R"({"zero_optimization": {"allgather_bucket_size": 524288}})").bucket_cap_mb == 2);
}

TEST_CASE("a file's unknown keys are one error that lists all, beside values that cannot be") {
  const std::string unknown = error_of(R"({
    "fp16": {"enabled": true, "loss_scale": 0}, "train_batch_size": 8, "list": [1, {"a": 2}],
    "zero_optimization": {"stage": 2, "prefetch": 1, "offload_optimizer": {"device": "cpu", "fast_init": true}},
    "zero_optimization.stage": 2})");
  CHECK(has(unknown,
            "ds.json: unknown: fp16, train_batch_size, list, zero_optimization.prefetch, "
            "zero_optimization.offload_optimizer.fast_init, zero_optimization.stage ("));
  const std::string flags = error_of(R"({"gradient_accumulation_steps": 4, "gradient_clipping": 1.0, "other": 1})");
  CHECK(has(flags, "unknown: other"));
  CHECK(has(flags, "gradient_accumulation_steps is the trainer's accumulate_grad_batches"));
  CHECK(has(flags, "gradient_clipping is the trainer's gradient_clip_val"));
  CHECK(has(error_of(R"({"zero_optimization": {"stage": 4}})"), "zero_optimization.stage is 4, expected 1, 2 or 3"));
  CHECK(has(error_of(R"({"zero_optimization": {"stage": 0}})"), "stage is 0, expected 1, 2 or 3; without"));
  CHECK(has(error_of(R"({"zero_optimization": {"stage": "auto"}})"), "stage is \"auto\", expected 1, 2 or 3"));
  CHECK(has(error_of(R"({"zero_optimization": {"reduce_bucket_size": 1.5}})"), "expected a whole number of 1 or more"));
  CHECK(has(error_of(R"({"zero_optimization": {"sub_group_size": 0}})"), "expected a whole number of 1 or more"));
  CHECK(has(error_of(R"({"zero_optimization": {"overlap_comm": 1}})"), "expected true or false"));
  CHECK(
      has(error_of(R"({"zero_optimization": {"contiguous_gradients": false}})"), "gradients always lie in one buffer"));
  CHECK(has(error_of(R"({"zero_optimization": {"offload_param": {"device": "gpu"}}})"), "expected none, cpu or nvme"));
  CHECK(has(error_of(R"({"zero_optimization": {"offload_optimizer": {"nvme_path": "/a"},
                                               "offload_param": {"nvme_path": "/b"}}})"),
            "one folder serves both"));
  CHECK(has(error_of(R"({"zero_optimization": 3})"), "zero_optimization is 3, expected an object"));
  CHECK(has(error_of(R"({"zero_optimization": [3]})"), "zero_optimization is an array, expected an object"));
  CHECK(has(error_of("[]"), "the file is an array"));
  CHECK(has(error_of("7"), "the file is 7"));
  CHECK_THROWS_AS((void)parse_zero_config("{\"zero_optimization\": "), FormatError);
  CHECK_THROWS_AS((void)parse_zero_config(""), FormatError);
}

TEST_CASE("a config that cannot be read is a FileError with its name") {
  const test::TemporaryFolder folder;
  for (const std::string& bad : {folder / "none.json", folder.path()})
    CHECK_THROWS_WITH_AS((void)read_zero_config(bad), doctest::Contains(bad.c_str()), FileError);
}

TEST_CASE("each name of an offloading strategy has its options") {
  const test::PlantedVariables variables({});
  ::unsetenv("PL_DEEPSPEED_CONFIG_PATH");
  const struct {
    const char* name;
    int stage;
    Offload optimizer, params;
  } all[] = {
      {"zero_stage_1", 1, Offload::none, Offload::none},
      {"zero_stage_2", 2, Offload::none, Offload::none},
      {"deepspeed", 2, Offload::none, Offload::none},
      {"zero_stage_2_offload", 2, Offload::cpu, Offload::none},
      {"deepspeed_stage_2_offload", 2, Offload::cpu, Offload::none},
      {"zero_stage_3", 3, Offload::none, Offload::none},
      {"zero_stage_3_offload", 3, Offload::cpu, Offload::cpu},
      {"deepspeed_stage_3_offload", 3, Offload::cpu, Offload::cpu},
      {"zero_stage_3_offload_nvme", 3, Offload::nvme, Offload::nvme},
      {"deepspeed_stage_3_offload_nvme", 3, Offload::nvme, Offload::nvme},
  };
  for (const auto& one : all) {
    CAPTURE(one.name);
    const ZeroOptions options = options_of(StrategyRegistry::make(one.name));
    CHECK(options.stage == one.stage);
    CHECK(options.offload_optimizer == one.optimizer);
    CHECK(options.offload_params == one.params);
    CHECK(options.nvme_path == "/local_nvme");
  }
  CHECK(std::dynamic_pointer_cast<FsdpStrategy>(StrategyRegistry::make("fsdp_cpu_offload")));
}

TEST_CASE("LEVIN_ZERO_CONFIG and PL_DEEPSPEED_CONFIG_PATH name the file of strategies that are given by name") {
  const test::TemporaryFolder folder;
  const std::string file = folder / "ds.json", other = folder / "other.json";
  std::ofstream(file) << R"({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}})";
  std::ofstream(other) << R"({"zero_optimization": {"reduce_bucket_size": 262144}})";
  for (const char* variable : {"LEVIN_ZERO_CONFIG", "PL_DEEPSPEED_CONFIG_PATH"}) {
    const test::PlantedVariables variables({{variable, file.c_str()}});
    const ZeroOptions options = options_of(StrategyRegistry::make("deepspeed"));
    CHECK(options.stage == 1);
    CHECK(options.offload_optimizer == Offload::cpu);
    CHECK(options_of(StrategyRegistry::make("zero_stage_1")).offload_optimizer == Offload::cpu);
    CHECK_THROWS_WITH_AS(
        (void)StrategyRegistry::make("zero_stage_3"),
        doctest::Contains("strategy names stage 3 and " + doctest::String(file.c_str()) + " says stage 1"),
        ConfigError);
    CHECK(options_of(StrategyRegistry::make("ddp_sharded")).stage == 2);
    CHECK(ZeroStrategy().options().stage == 2);  // an object has its own
  }
  {
    const test::PlantedVariables variables({{"LEVIN_ZERO_CONFIG", other.c_str()}});
    const ZeroOptions options = options_of(StrategyRegistry::make("zero_stage_3_offload_nvme"));
    CHECK(options.stage == 3);
    CHECK(options.offload_params == Offload::nvme);
    CHECK(options.bucket_cap_mb == 1);
  }
  const test::PlantedVariables both({{"LEVIN_ZERO_CONFIG", file.c_str()}, {"PL_DEEPSPEED_CONFIG_PATH", other.c_str()}});
  CHECK_THROWS_WITH_AS((void)StrategyRegistry::make("deepspeed"), doctest::Contains("set one of them"), ConfigError);
}
