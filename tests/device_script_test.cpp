// bench/device.sh: a machine with a GPU is available for too short a time to mend the script there. These tests run its
// stages on simt, and with made-up programs that fail in every way.
#include "tests/device_script.h"
#include <algorithm>
#include <filesystem>

#include "levin/device.h"
#include "tests/device.h"

using namespace levin;
using namespace levin::test;
using namespace levin::test::script;

namespace {

void check_stage_on_simt(const std::string& name, const std::string& expected) {
  if (device_count(DeviceType::simt) == 0) return skip("no simt in this build");
  const TemporaryFolder dir;
  for (const char* program : {"levin_tests", "bench_kernels", "bench_step"}) {
    const std::string folder = std::string(program) == "levin_tests" ? "tests" : "bench";
    if (!Program(program, dir, folder).built()) return;
  }
  if (!Program("levin", dir).built() || !have_tools()) return;
  const Ran ran = stage(dir, build_dir(), name + " --quick --device simt --jobs 2 --limit 300");
  INFO(ran.said);
  CHECK(ran.code == 0);
  CHECK(has(ran.said, name + ": done in "));
  CHECK(has(ran.said, expected));
  CHECK_FALSE(has(ran.said, "FAULT"));
  CHECK(std::filesystem::exists(dir / ("out/" + name + ".txt")));
  CHECK(std::filesystem::exists(dir / ("out/" + name + ".tar.gz")));
}

// A wrapper of a built benchmark program: it knows the rows of a GPU, and its figures are made up.
void make_up_figures(const TemporaryFolder& dir, const std::string& name) {
  make_program(dir / ("pack/bin/" + name), "real='" + build_dir() + "/bench/" + name + "'\n" +
                                               R"([ "$1" = --list ] && exec "$real" "$@"
while [ $# -gt 0 ]; do
  case $1 in --json) json=$2 ;; --filter) filter=$2 ;; esac
  shift
done
"$real" --list cuda --filter "$filter" | awk '
BEGIN {
  print "{\n  \"context\": {\"levin_device\": \"cuda:0\", \"levin_matmul_16_TFLOP/s\": \"800\"},\n  \"benchmarks\": ["
}
{
  printf "%s    {\n\"name\": \"%s\", \"real_time\": 10.0, \"time_unit\": \"us\", ", (NR > 1 ? ",\n" : ""), $0
  printf "\"of_bound\": 0.5, \"flops\": 1e9, \"items_per_second\": 1000.0, \"host_us\": 5.0\n    }"
}
END { print "\n  ]\n}"; exit NR == 0 }' >"$json"
)");
}

// A pack whose tests pass, fail, are skipped, die and hang. bench_kernels knows the rows of ncu's list and measures
// nothing.
void make_up_programs(const TemporaryFolder& dir) {
  make_program(dir / "pack/bin/levin_tests", R"(case "$*" in
  --list-ops) printf '%s\n' add mul softmax; exit ;;
  *'--file tests/ops/device_test'*--list) printf '%s\n' '[doctest] names' ==== 'ops on a device: all'; exit ;;
  *--list) printf '%s\n' '[doctest] names' ==== 'ops on a device: all' 'on a device "good", it passes' \
    'a device that fails' 'a device that is skipped' 'a device that dies' 'a device that hangs' \
    'a device behind it'; exit ;;
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

TEST_CASE(
    "device.sh tests --again runs what failed once more with blocking launches, a test of ops with the same ops") {
  if (!have_tools()) return;
  const TemporaryFolder dir;
  make_up_programs(dir);
  make_program(dir / "pack/bin/levin_tests", R"(case "$*" in
  --list-ops) printf '%s\n' add mul; exit ;;
  *--file*--list) echo 'ops on a device: all'; exit ;;
  *--list) printf '%s\n' 'ops on a device: all' 'another, on a device'; exit ;;
esac
echo "ERROR: $2, blocking ${CUDA_LAUNCH_BLOCKING:-no}, ops ${LEVIN_OPS:-all}"
echo '0 passed, 1 failed, 0 skipped'
exit 1
)");
  const Ran ran = stage(dir, dir / "pack", "tests --again --jobs 1");
  INFO(ran.said);
  CHECK(ran.code == 1);
  const std::string again = ran.said.substr(std::min(ran.said.find("again, with"), ran.said.size()));
  CHECK(has(ran.said, "ERROR: ops on a device: all, blocking no, ops ^(add|mul)$"));
  CHECK(has(again, "ERROR: ops on a device: all, blocking 1, ops ^(add|mul)$"));
  CHECK(has(again, "ERROR: another, on a device, blocking 1"));
  CHECK(has(again, "0 passed, 2 failed, 0 skipped, 0 slow, 0 died, 0 absent, 0 cut"));
}

TEST_CASE("device.sh that is stopped ends its processes and reports what ended before") {
  if (!have_tools()) return;
  const TemporaryFolder dir;
  make_up_programs(dir);
  const Ran ran = run_line(dir, "OUT='" + dir.path() + "/out' PROGRAMS='" + dir.path() + "/pack' bash '" +
                                    source_dir() + "/bench/device.sh' tests --jobs 1 & sleep 3; kill $!; wait $!");
  INFO(ran.said);
  CHECK(ran.code == 1);
  CHECK(has(ran.said, "FAULT stopped from outside after "));
  CHECK(has(ran.said, "FAULT died, status 139: a device that dies"));
  CHECK(has(ran.said, "2 passed, 1 failed, 1 skipped, 0 slow, 1 died, 0 absent, 2 cut"));
  CHECK(std::filesystem::exists(dir / "out/tests.tar.gz"));
}

TEST_CASE("device.sh: the stage bench comes to every row that a GPU has, and device_table.py fills the table from it") {
  const TemporaryFolder dir;
  for (const char* name : {"bench_kernels", "bench_step"}) {
    if (!Program(name, dir, "bench").built()) return;
  }
  if (!have_tools()) return;
  make_up_programs(dir);
  for (const char* name : {"bench_kernels", "bench_step"}) make_up_figures(dir, name);
  const Ran ran = stage(dir, dir / "pack", "bench");
  INFO(ran.said);
  CHECK(ran.code == 0);
  CHECK_FALSE(has(ran.said, "FAULT"));
  const std::string copy = dir / "targets.md";
  std::filesystem::copy_file(source_dir() + "/bench/results/gpu_targets.md", copy);
  const Ran filled = table(dir, "--table '" + copy + "' '" + dir.path() + "/out/bench.tar.gz'");
  INFO(filled.said);
  CHECK(filled.code == 0);
  const std::string text = read_file(copy, 1 << 20);
  CHECK(has(text, " | 10 us | "));
  CHECK_FALSE(has(text, " | not measured | not measured | not measured | not measured | "));
  const Ran missing = run_line(
      dir, "cd '" + dir.path() + "' && tar -xzf out/bench.tar.gz && cat rest_[0-9]*.json | sed -nE 's/^\"name\": " +
               "\"([^\"]*)\".*/\\1/p' | sort >had && '" + build_dir() +
               "/bench/bench_kernels' --list cuda | sort >all && [ -s all ] && diff had all");
  INFO(missing.said);
  CHECK(missing.code == 0);
}

TEST_CASE("device.sh: the stage torch runs Levin and a PyTorch that is made up in turns, on simt") {
  if (device_count(DeviceType::simt) == 0) return skip("no simt in this build");
  const TemporaryFolder dir;
  for (const char* name : {"bench_kernels", "bench_step"}) {
    if (!Program(name, dir, "bench").built()) return;
  }
  if (!have_tools()) return;
  std::filesystem::create_directories(dir / "torch");
  std::ofstream(dir / "torch/__init__.py") << R"(import sys
from unittest.mock import MagicMock
torch = MagicMock()
torch.__version__, torch.nn.Module = "0.made-up", object
torch.cuda.OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {})
for name in ("", ".nn", ".nn.functional", "._functorch", "._functorch.config"):
    sys.modules["torch" + name] = torch
)";
  ::setenv("PYTHONPATH", dir.path().c_str(), 1);
  const Ran ran = stage(dir, build_dir(), "torch --device simt --limit 200");
  ::unsetenv("PYTHONPATH");
  INFO(ran.said);
  CHECK(ran.code == 0);
  CHECK(has(ran.said, "3 beside PyTorch, 3 not of it"));  // add_1 and two sizes of relu
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

TEST_CASE("device.sh takes a shared object that the machine lacks from the archive, and names one that neither has") {
  if (!have_tools()) return;
  const TemporaryFolder dir;
  make_up_programs(dir);
  make_program(dir / "tools/ldd", R"(for folder in ${LD_LIBRARY_PATH//:/ }; do [ -e $folder/libfoo.so.1 ] && exit; done
printf '\tlibfoo.so.1 => not found\n'
)");
  const Ran lacks = stage(dir, dir / "pack", "ncu --device simt");
  INFO(lacks.said);
  CHECK(lacks.code == 1);
  CHECK(has(lacks.said, "FAULT neither this machine nor the archive has libfoo.so.1\n"));
  std::filesystem::create_directories(dir / "pack/lib");
  std::ofstream(dir / "pack/lib/libfoo.so.1") << "made up";
  const Ran has_it = stage(dir, dir / "pack", "ncu --device simt");
  INFO(has_it.said);
  CHECK(has_it.code == 0);
}

TEST_CASE("device.sh counts what compute-sanitizer finds by part, and takes no summary for a fault") {
  if (!have_tools()) return;
  const TemporaryFolder dir;
  make_up_programs(dir);
  make_program(dir / "tools/compute-sanitizer", R"(while [[ $1 == --* ]]; do [ "$1" = --tool ] && tool=$2; shift 2; done
[ "$LEVIN_NO_MEMORY_CACHING" = 1 ] || exit 1  # it would not see where a tensor ends
"$@"
[ $tool = racecheck ] && exit 1
echo '========= Invalid __global__ write of size 4 bytes'; echo '========= ERROR SUMMARY: 3 errors'; exit 97
)");
  const Ran ran = stage(dir, dir / "pack", "sanitize --limit 30");
  INFO(ran.said);
  CHECK(ran.code == 1);
  CHECK(has(ran.said,
            "FAULT 3 errors in memcheck 1 ^(add|mul|softmax)$: ========= Invalid __global__ write of size 4 bytes"));
  CHECK(has(ran.said, "memcheck: 3 parts, 9 errors"));  // two of them are kernels for Hopper
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
  echo '"ID","Kernel Name","gpu__time_duration.sum","dram__throughput.avg.pct_of_peak_sustained_elapsed",'\
'"launch__registers_per_thread","smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",'\
'"smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"'
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

TEST_CASE("levin_tests --name runs the test of that name alone, with --device too") {
  const TemporaryFolder dir;
  const Program tests("levin_tests", dir, "tests");
  const auto device = launching_device();
  if (!device) return skip("no device that launches kernels here");
  if (!tests.built()) return;
  const std::string name = device->is_cuda() ? "cuda" : "simt";
  const auto one =
      tests.run({"--device", name, "--name", "whatever engine is chosen, products on a device are products"});
  INFO(one.output);
  CHECK(one.code == 0);
  CHECK(has(one.output, "1 passed, 0 failed, 0 skipped"));
  const auto none = tests.run({"--device", name, "--name", "products on a device are products"});
  INFO(none.output);
  CHECK(none.code == 1);
  CHECK(has(none.output, "no test has such a name"));
}

TEST_CASE("LEVIN_OPS chooses cases of the op table on a device by name, and one that names none is an error") {
  const TemporaryFolder dir;
  const Program tests("levin_tests", dir, "tests");
  if (!launching_device()) return skip("no device that launches kernels here");
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
