// bench/device_table.py with made-up figures and the rows of bench/results/gpu_targets.md.
#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>

#include "tests/device_script.h"

using namespace levin;
using namespace levin::test;
using namespace levin::test::script;
using nlohmann::json;

namespace {

// Figures as bench_kernels writes them, for rows that take one second or the given time.
nlohmann::ordered_json report(const std::string& commit, const json& rows) {
  nlohmann::ordered_json all{{"context",
                              {{"date", "2001-02-03T04:05:06"},
                               {"levin_device", "cuda:0"},
                               {"levin_device_name", "Made-up GPU"},
                               {"levin_driver", "1.2"},
                               {"levin_driver_cuda", "13.0"},
                               {"levin_sm_MHz", "1000"},
                               {"levin_memory_MHz", "2000"},
                               {"levin_commit", commit},
                               {"levin_copy_GB/s", "4000"},
                               {"levin_matmul_16_TFLOP/s", "800"},
                               {"levin_matmul_f32_TFLOP/s", "50"}}},
                             {"benchmarks", json::array()}};
  for (json row : rows) {
    row["name"] = row.at("name").get<std::string>() + "/iterations:1/manual_time";
    row.update({{"time_unit", "us"}, {"low_us", row.at("real_time")}, {"high_us", row.at("real_time")}});
    all["benchmarks"].push_back(nlohmann::ordered_json(row));
  }
  return all;
}
const std::string kTable = R"(# Made up

Measured: nothing.

| work | run | row | target | time | spread | of bound | PyTorch eager | PyTorch compiled | met |
|---|---|---|---|---|---|---|---|---|---|
| copies | kernels | `copy/f32/8` | 90 % of bound | not measured | not measured | not measured | not measured | not measured | not measured |
| nothing | kernels | `none/f32/8` | 3 us | 2 us | not measured | not measured | not measured | not measured | yes |
| products | own_gemm | `matmul/bf16/8` | 70 % of kernels | not measured | not measured | not measured | not measured | not measured | not measured |
| sums | kernels | `sum/f32/8` | 90 % of bound; 2 times PyTorch | not measured | not measured | not measured | not measured | not measured | not measured |

| step | run | row | target | time | spread | of bound | PyTorch eager | PyTorch compiled | met |
|---|---|---|---|---|---|---|---|---|---|
| words | steps | `gpt_step_captured/1` | 500 tokens a second; 50 % of 100 TFLOP/s | not measured | not measured | not measured | not measured | not measured | not measured |
| host | steps | `host_us of the rows above` | 12 us | not measured | not measured | not measured | not measured | not measured | not measured |
)";
void write_figures(const TemporaryFolder& dir) {
  std::ofstream(dir / "table.md") << kTable;
  std::ofstream(dir / "kernels.json") << report(
      "c0ffee", json::array({{{"name", "copy/f32/8"}, {"real_time", 10.0}, {"of_bound", 0.95}, {"flops", 0.0}},
                             {{"name", "sum/f32/8"}, {"real_time", 10.0}, {"of_bound", 0.45}, {"flops", 0.0}},
                             {{"name", "matmul/bf16/8"}, {"real_time", 10.0}, {"of_bound", 0.9}, {"flops", 7.2e9}}}));
  std::ofstream(dir / "own_gemm.json") << report(
      "c0ffee", json::array({{{"name", "matmul/bf16/8"}, {"real_time", 20.0}, {"of_bound", 1.0}, {"flops", 7.2e9}}}));
  std::ofstream(dir / "steps.json") << report("c0ffee", json::array({{{"name", "gpt_step_captured/1"},
                                                                      {"real_time", 1000.0},
                                                                      {"of_bound", 0.1},
                                                                      {"items_per_second", 600.0},
                                                                      {"host_us", 9.5}}}));
  nlohmann::ordered_json torch = report("c0ffee", json::array());
  torch["torch"] = "PyTorch 0";
  torch["rows"] = {{"sum/f32/8", json::array({{1e-5, 3e-5, nullptr}, {1e-5, 2.5e-5, nullptr}})}};
  std::ofstream(dir / "torch.json") << torch;
}
std::string written(const TemporaryFolder& dir) { return read_file(dir / "table.md", 1 << 20); }

}  // namespace

TEST_CASE("device_table.py fills rows, judges them by their targets, and puts the farthest first") {
  if (!have_tools()) return;
  const TemporaryFolder dir;
  write_figures(dir);
  const Ran ran = table(dir, "--table '" + dir.path() + "/table.md' '" + dir.path() + "'");
  INFO(ran.said);
  REQUIRE(ran.code == 0);
  const std::string text = written(dir);
  INFO(text);
  std::string unbroken = text;
  std::replace(unbroken.begin(), unbroken.end(), '\n', ' ');
  CHECK(has(unbroken,
            "Measured: on Made-up GPU, driver 1.2 (CUDA 13.0), multiprocessors at 1000 MHz, memory at 2000 MHz; commit "
            "c0ffee, 2001-02-03."));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) CHECK((line.size() <= 120 || line.starts_with("|")));
  CHECK(has(
      text,
      "| sums | kernels | `sum/f32/8` | 90 % of bound; 2 times PyTorch | 10 us | 10 us to 10 us | 45.0 % | 2.75 (2.50 "
      "to 3.00) | not measured | no |\n"
      "| products | own_gemm | `matmul/bf16/8` | 70 % of kernels | 20 us | 20 us to 20 us | 45.0 % | not measured | "
      "not "
      "measured | no |\n"
      "| copies | kernels | `copy/f32/8` | 90 % of bound | 10 us | 10 us to 10 us | 95.0 % | not measured | not "
      "measured "
      "| yes |\n"
      "| nothing | kernels | `none/f32/8` | 3 us | not measured | not measured | not measured | not measured | not "
      "measured | not measured |\n"));
  CHECK(has(text,
            "| words | steps | `gpt_step_captured/1` | 500 tokens a second; 50 % of 100 TFLOP/s | 1 ms | 1 ms to 1 ms "
            "| 10.0 % "
            "| not measured | not measured | yes |\n"));
  CHECK(has(text, "| `host_us of the rows above` | 12 us | 9.5 us |"));
  CHECK(table(dir, "--table '" + dir.path() + "/table.md' '" + dir.path() + "'").code == 0);
  CHECK(written(dir) == text);
}

TEST_CASE(
    "device_table.py refuses unknown rows, runs, targets, mixed commits and figures of no GPU, and changes nothing "
    "then") {
  if (!have_tools()) return;
  const TemporaryFolder dir;
  const auto refused = [&](const std::string& why, const std::string& files = "") {
    const std::string before = written(dir);
    const Ran ran =
        table(dir, "--table '" + dir.path() + "/table.md' '" + dir.path() + "'/" + (files.empty() ? "*.json" : files));
    INFO(ran.said);
    CHECK(ran.code != 0);
    CHECK(has(ran.said, why));
    CHECK(written(dir) == before);
  };
  const json one = json::array({{{"name", "copy/f32/9"}, {"real_time", 10.0}, {"of_bound", 0.95}}});
  write_figures(dir);
  std::ofstream(dir / "kernels.json") << report("c0ffee", one);
  refused("table.md has no row for kernels copy/f32/9");
  std::ofstream(dir / "kernels.json") << report("decaf", json::array());
  refused("levin_commit");
  write_figures(dir);
  std::ofstream(dir / "others.json") << report("c0ffee", one);
  refused("others.json is no run");
  std::filesystem::remove(dir / "others.json");
  nlohmann::ordered_json simt = report("c0ffee", json::array());
  simt["context"]["levin_device"] = "simt";
  std::ofstream(dir / "kernels.json") << simt;
  refused("figures of device simt are none of a GPU's", "kernels.json");
  write_figures(dir);
  std::ofstream(dir / "table.md") << std::string(kTable).replace(kTable.find("3 us"), 4, "3 feet");
  refused("target \"3 feet\" is of no form");
}

TEST_CASE("device_table.py takes the whole rows of a report that was cut while it was written") {
  if (!have_tools()) return;
  const TemporaryFolder dir;
  write_figures(dir);
  const std::string text =
      report("c0ffee", json::array({{{"name", "copy/f32/8"}, {"real_time", 10.0}, {"of_bound", 0.95}, {"flops", 0.0}},
                                    {{"name", "sum/f32/8"}, {"real_time", 10.0}, {"of_bound", 0.45}, {"flops", 0.0}}}))
          .dump(2);
  std::ofstream(dir / "kernels.json") << text.substr(0, text.find("sum/f32/8"));
  const Ran ran = table(dir, "--table '" + dir.path() + "/table.md' '" + dir.path() + "/kernels.json'");
  INFO(ran.said);
  REQUIRE(ran.code == 0);
  CHECK(has(written(dir), "| copies | kernels | `copy/f32/8` | 90 % of bound | 10 us |"));
  CHECK(has(written(dir), "| sums | kernels | `sum/f32/8` | 90 % of bound; 2 times PyTorch | not measured |"));
}

TEST_CASE("each row of gpu_targets.md is a row of bench_kernels or bench_step on a GPU") {
  const TemporaryFolder dir;
  const Program kernels("bench_kernels", dir, "bench"), steps("bench_step", dir, "bench");
  if (!kernels.built() || !steps.built() || !have_tools()) return;
  const std::string of_kernels = "kernels,own_gemm,own_attention,cudnn";
  for (const auto& [program, runs] : {std::pair{&kernels, of_kernels}, std::pair{&steps, std::string("steps")}}) {
    const auto known = program->run({"--list", "cuda"});
    REQUIRE(known.code == 0);
    std::string wanted = table(dir, std::string("--filter ") + runs).said;  // ^(a|b)/
    REQUIRE(wanted.size() > 10);
    wanted = wanted.substr(2, wanted.rfind(")/") - 2) + "|";
    for (std::size_t at = 0, end = 0; (end = wanted.find('|', at)) != std::string::npos; at = end + 1) {
      const std::string name = wanted.substr(at, end - at);
      CHECK_MESSAGE(has("\n" + known.output, "\n" + name + "/iterations:1/"), name);
    }
  }
}
