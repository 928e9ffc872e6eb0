// bench/device.sh, which a machine with a GPU is at hand for too shortly to be mended there: its stages on simt, and with
// programs that are made up and fail in every way. And bench/device_table.py, with figures that are made up.
#include <cstdlib>
#include <fstream>

#include "levin/device.h"
#include "tests/device.h"
#include "tests/train/program.h"
#include "tests/where.h"

using namespace levin;
using levin::test::build_dir;
using levin::test::json_of;
using levin::test::source_dir;
using levin::test::TemporaryFolder;
using nlohmann::json;

namespace {

struct Ran {
  int code;
  std::string said;
};
Ran run_line(const TemporaryFolder& dir, const std::string& line) {
  const std::string said = dir / "said.txt";
  const int status = std::system(("(" + line + ") >'" + said + "' 2>&1").c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(said, std::size_t{1} << 20)};
}
Ran stage(const TemporaryFolder& dir, const std::string& programs, const std::string& arguments) {
  return run_line(dir, "PATH='" + dir.path() + "/tools':$PATH OUT='" + dir.path() + "/out' PROGRAMS='" + programs +
                           "' bash '" + source_dir() + "/bench/device.sh' " + arguments);
}
Ran table(const TemporaryFolder& dir, const std::string& arguments) {
  return run_line(dir, "python3 '" + source_dir() + "/bench/device_table.py' " + arguments);
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
bool have_tools() {
  if (std::system("python3 -c pass 2>/dev/null && bash -c 'command -v xargs tar timeout sha256sum' >/dev/null 2>&1") ==
      0)
    return true;
  test::skip("no python3, or no tools of coreutils, findutils or tar");
  return false;
}

void check_stage_on_simt(const std::string& name, const std::string& expected) {
  if (device_count(DeviceType::simt) == 0) return test::skip("no simt in this build");
  const TemporaryFolder dir;
  for (const char* program : {"levin_tests", "bench_kernels", "bench_step"}) {
    const std::string folder = std::string(program) == "levin_tests" ? "tests" : "bench";
    if (!test::Program(program, dir, folder).built()) return;
  }
  if (!test::Program("levin", dir).built() || !have_tools()) return;
  const Ran ran = stage(dir, build_dir(), name + " --quick --device simt --jobs 2 --limit 300");
  INFO(ran.said);
  CHECK(ran.code == 0);
  CHECK(has(ran.said, name + ": done in "));
  CHECK(has(ran.said, expected));
  CHECK_FALSE(has(ran.said, "FAULT"));
  CHECK(std::filesystem::exists(dir / ("out/" + name + ".txt")));
  CHECK(std::filesystem::exists(dir / ("out/" + name + ".tar.gz")));
}

void make_program(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << "#!/bin/bash\n" << text;
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
}
// A pack whose tests pass, fail, are skipped, die and hang. bench_kernels knows the rows of ncu's list and measures nothing.
void make_up_programs(const TemporaryFolder& dir) {
  make_program(dir / "pack/bin/levin_tests", R"(case "$*" in
  --list-ops) printf '%s\n' add mul softmax; exit ;;
  *'--file tests/ops/device_test'*--list) printf '%s\n' '[doctest] names' ==== 'ops on a device: all'; exit ;;
  *--list) printf '%s\n' '[doctest] names' ==== 'ops on a device: all' 'on a device "good", it passes' 'a device that fails' \
    'a device that is skipped' 'a device that dies' 'a device that hangs' 'a device behind it'; exit ;;
  *fails) echo words; echo 'x.cpp:3: ERROR: CHECK( a == b ) is NOT correct!'; echo '  values: CHECK( 1 == 2 )'
    echo '0 passed, 1 failed, 0 skipped'; exit 1 ;;
  *skipped) echo '1 skipped: no data'; echo '0 passed, 0 failed, 1 skipped' ;;
  *dies) kill -SEGV $$ ;;
  *hangs) sleep 60 ;;
  *) echo '1 passed, 0 failed, 0 skipped' ;;
esac
)");
  make_program(dir / "pack/bin/bench_kernels",
               "[ \"$1\" = --list ] && awk '/^[a-z]/ {print $2 \"/iterations:1/manual_time\"}' '" + source_dir() +
                   "/bench/device/rows.txt' && exit\necho 'bench: no device' >&2\nexit 1\n");
  make_program(dir / "pack/bin/bench_step", "echo 'bench: no device' >&2; exit 1\n");
  make_program(dir / "pack/bin/levin", "echo 'version  made up'\n");
}

// Figures as bench_kernels writes them, of rows that take one second or what is said.
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

TEST_CASE("device.sh: the stage probe finds programs, libraries and an op of each engine on simt") {
  check_stage_on_simt("probe", "device tests");
}
TEST_CASE("device.sh: the stage tests runs tests in processes of their own, those of the ops in parts, on simt") {
  check_stage_on_simt("tests", " 0 slow, 0 died, 0 absent, 0 cut");
}
TEST_CASE("device.sh: the stage sanitize runs the op table in parts on simt") {
  check_stage_on_simt("sanitize", "none: 3 parts, 0 errors");
}
TEST_CASE("device.sh: the stage bench leaves figures of kernels and steps on simt") {
  check_stage_on_simt("bench", " rows of Levin's, 0 of them failed");
}
TEST_CASE("device.sh: the stage torch compares, or says that nothing was compared, on simt") {
  check_stage_on_simt(
      "torch", std::system("python3 -c 'import torch' 2>/dev/null") == 0 ? "beside PyTorch" : "nothing was compared");
}
TEST_CASE(
    "device.sh: each kernel that the stage ncu looks at is a row of bench_kernels and in the table of registers, on "
    "simt") {
  check_stage_on_simt("ncu", "rows and kernels were looked up");
}

TEST_CASE("device.sh names tests that fail, die, hang and were not come to, and fails") {
  if (!have_tools()) return;
  const TemporaryFolder dir;
  make_up_programs(dir);
  const Ran ran = stage(dir, dir / "pack", "tests --jobs 1 --limit 9");
  INFO(ran.said);
  CHECK(ran.code == 1);
  CHECK(has(ran.said,
            "FAULT failed, status 1: a device that fails\n  x.cpp:3: ERROR: CHECK( a == b ) is NOT correct! values: "
            "CHECK( 1 == 2 )"));
  CHECK(has(ran.said, "FAULT died, status 139: a device that dies"));
  CHECK(has(ran.said, "FAULT cut: a device that hangs"));
  CHECK(has(ran.said, "FAULT cut: a device behind it"));
  CHECK(has(ran.said, "2 passed, 1 failed, 1 skipped, 0 slow, 1 died, 0 absent, 2 cut"));
  CHECK(has(ran.said, "1 skipped: no data"));
  CHECK(has(read_file(dir / "out/tests.txt", 1 << 16), "FAULT cut: a device behind it"));
}

TEST_CASE("device.sh fails and says so where programs are missing, do not start, or measure nothing") {
  if (!have_tools()) return;
  const TemporaryFolder dir;
  std::filesystem::create_directories(dir / "pack/bin");
  for (const char* name : {"probe", "tests", "sanitize", "bench", "torch", "ncu"}) {
    const Ran nothing = stage(dir, dir / "pack", name);
    INFO(nothing.said);
    CHECK(nothing.code == 1);
    CHECK(has(nothing.said, "has no levin_tests bench_kernels bench_step levin"));
  }
  make_up_programs(dir);
  const Ran bench = stage(dir, dir / "pack", "bench");
  INFO(bench.said);
  CHECK(bench.code == 1);
  CHECK(has(bench.said, "FAULT kernels ended with 1: bench: no device"));
  CHECK(has(bench.said, "FAULT there are no figures"));
  make_program(dir / "pack/bin/levin_tests", "echo no device; exit 2\n");
  for (const char* name : {"tests", "sanitize"}) {
    const Ran empty = stage(dir, dir / "pack", std::string(name) + " --device simt");
    INFO(empty.said);
    CHECK(empty.code == 1);
    CHECK(has(empty.said, "FAULT levin_tests"));
  }
}

TEST_CASE("device.sh counts what compute-sanitizer finds by part, and takes no summary for a fault") {
  if (!have_tools()) return;
  const TemporaryFolder dir;
  make_up_programs(dir);
  make_program(dir / "tools/compute-sanitizer", R"(while [[ $1 == --* ]]; do [ "$1" = --tool ] && tool=$2; shift 2; done
"$@"
[ $tool = racecheck ] && exit 1
echo '========= Invalid __global__ write of size 4 bytes'; echo '========= ERROR SUMMARY: 3 errors'; exit 97
)");
  const Ran ran = stage(dir, dir / "pack", "sanitize --limit 30");
  INFO(ran.said);
  CHECK(ran.code == 1);
  CHECK(has(ran.said,
            "FAULT 3 errors in memcheck 1 ^(add|mul|softmax)$: ========= Invalid __global__ write of size 4 bytes"));
  CHECK(has(ran.said, "memcheck: 1 parts, 3 errors"));
  CHECK(has(ran.said, "FAULT no summary from racecheck 1 ^(softmax|add|mul)$"));
}

TEST_CASE("device.sh makes a table of what ncu measured, and names a kernel of which there is no report") {
  if (!have_tools()) return;
  const TemporaryFolder dir;
  make_up_programs(dir);
  make_program(dir / "tools/ncu", R"(for ((i = 1; i <= $#; i++)); do
  j=$((i + 1))
  [ "${!i}" = --export ] && to=${!j}
  [ "${!i}" = --import ] && from=${!j}
done
if [ -n "$from" ]; then
  echo '==PROF== words'
  echo '"ID","Kernel Name","gpu__time_duration.sum","dram__throughput.avg.pct_of_peak_sustained_elapsed","launch__registers_per_thread","smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio","smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"'
  echo '"","","ns","%","register/thread","inst","inst"'
  echo '"0","k<1, 2>","1,500.0","91.5","40","0.5","7.25"'
elif [[ $to != */adamw ]]; then
  echo x >"$to.ncu-rep"
fi
)");
  const Ran ran = stage(dir, dir / "pack", "ncu");
  INFO(ran.said);
  CHECK(ran.code == 1);
  CHECK(has(ran.said, "FAULT adamw: ended with 0 and without a report"));
  std::string line = ran.said.substr(ran.said.find("\nsoftmax  ") + 1);
  line = line.substr(0, line.find('\n'));
  CHECK(has(line, " 1.5 "));
  CHECK(has(line, " 91.5 "));
  CHECK(has(line, " 40 "));
  CHECK(has(line, "long_scoreboard 7.2, barrier 0.5"));
}

TEST_CASE("device_table.py fills rows, judges them by their targets, and puts the farthest first") {
  if (!have_tools()) return;
  const TemporaryFolder dir;
  write_figures(dir);
  const Ran ran = table(dir, "--table '" + dir.path() + "/table.md' '" + dir.path() + "'");
  INFO(ran.said);
  REQUIRE(ran.code == 0);
  const std::string text = written(dir);
  INFO(text);
  CHECK(has(text,
            "Measured: on Made-up GPU, driver 1.2 (CUDA 13.0), multiprocessors at 1000 MHz, memory at 2000 MHz; commit "
            "c0ffee, 2001-02-03."));
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
  const test::Program kernels("bench_kernels", dir, "bench"), steps("bench_step", dir, "bench");
  if (!kernels.built() || !steps.built() || !have_tools()) return;
  for (const auto& [program, runs] : {std::pair{&kernels, "kernels,own_gemm,cudnn"}, std::pair{&steps, "steps"}}) {
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

TEST_CASE("LEVIN_OPS chooses cases of the op table on a device by name, and one that names none is an error") {
  const TemporaryFolder dir;
  const test::Program tests("levin_tests", dir, "tests");
  if (!test::launching_device()) return test::skip("no device that launches kernels here");
  if (!tests.built()) return;
  const auto with = [&](const char* ops) {
    ::setenv("LEVIN_OPS", ops, 1);
    auto ended = tests.run({"--name", "ops on a device: a recorded and replayed run has the bits of an eager one"});
    ::unsetenv("LEVIN_OPS");
    return ended;
  };
  const auto listed = tests.run({"--list-ops"});
  CHECK(has(listed.output, "\nlayer_norm\n"));
  const auto one = with("^layer_norm$"), none = with("^no_such_op$"), broken = with("(");
  INFO(one.output << none.output << broken.output);
  CHECK(one.code == 0);
  CHECK(has(one.output, "LEVIN_OPS=^layer_norm$ chose among the cases"));
  CHECK(has(one.output, "1 passed, 0 failed, 0 skipped"));
  CHECK(none.code == 1);
  CHECK(has(none.output, "LEVIN_OPS=^no_such_op$ names no case of the op table"));
  CHECK(broken.code == 1);
}
