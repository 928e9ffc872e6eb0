// The benchmark programs run and their reports are whole. No test measures time: --quick takes one sample of the
// smallest shapes, and the tests only look for the presence of figures.
#include <fcntl.h>
#include <sys/stat.h>

#include <chrono>
#include <cmath>
#include <sstream>
#include <thread>

#include "levin/device.h"
#include "tests/train/program.h"
#include "tests/where.h"

using namespace levin;
using levin::test::json_of;
using levin::test::Program;
using levin::test::TemporaryFolder;
using Ended = Program::Ended;
using nlohmann::json;

namespace {

struct Report {
  Ended ended;
  json head, rows;
};
// {}: the program is not built, and the test counts as skipped.
std::optional<Report> report_of(const std::string& name, std::vector<std::string> arguments) {
  const TemporaryFolder dir;
  const Program program(name, dir, "bench");
  if (!program.built()) return {};
  const std::string file = dir / "report.json";
  arguments.insert(arguments.end(), {"--quick", "--warm-only", "--json", file});
  Report r{.ended = program.run(std::move(arguments)), .head = {}, .rows = {}};
  INFO(r.ended.output);
  REQUIRE(std::filesystem::exists(file));
  const json all = json_of(file);
  r.head = all.at("context");
  r.rows = all.at("benchmarks");
  return r;
}

std::vector<std::string> names_of(const json& rows) {
  std::vector<std::string> names;
  for (const json& row : rows) {
    const std::string name = row.at("name");
    names.push_back(name.substr(0, name.find("/iterations")));
  }
  return names;
}
void check_head(const Report& r, const std::string& device) {
  for (const char* what :
       {"date", "levin_commit", "levin_compiler", "levin_device_name", "levin_oneTBB", "levin_copy_GB/s",
        "levin_memcpy_GB/s", "levin_own_copy_GB/s", "levin_matmul_f32_TFLOP/s", "levin_launch_us"}) {
    REQUIRE_MESSAGE(r.head.contains(what), std::string(what));
    CHECK_MESSAGE(!r.head[what].get<std::string>().empty(), std::string(what));
  }
  // A bound comes from the faster copy: a bound from our copy alone would hide our copy's losses.
  const auto figure = [&](const char* what) { return std::stod(r.head[what].get<std::string>()); };
  CHECK(figure("levin_memcpy_GB/s") > 0);
  CHECK(figure("levin_own_copy_GB/s") > 0);
  CHECK(figure("levin_copy_GB/s") == std::max(figure("levin_memcpy_GB/s"), figure("levin_own_copy_GB/s")));
  CHECK(r.head["levin_device"] == device);
}
void check_whole(const json& row) {
  INFO(row.dump());
  CHECK_FALSE(row.contains("error_occurred"));
  CHECK(row.at("real_time").get<double>() > 0);
  for (const char* figure : {"low_us", "high_us"}) CHECK(row.at(figure).get<double>() > 0);
}
void check_kernels(const json& rows) {
  for (const json& row : rows) {
    check_whole(row);
    INFO(row.dump());
    CHECK(row.at("bytes").get<double>() > 0);
    CHECK(row.at("of_bound").get<double>() > 0);
    CHECK(row.contains("flops"));
  }
}

const std::string kOps =
    "^(relu|softmax|max_pool_backward|gather_elements|matmul|segment_sum|adamw|ema|unscale|flatten)/f32/";
const std::vector<std::string> kNames{"relu/f32/256",
                                      "softmax/f32/1x256",
                                      "softmax/f32/8x256",
                                      "softmax/f32/2x1024",
                                      "max_pool_backward/f32/2x8x8x8",
                                      "gather_elements/f32/1x256",
                                      "matmul/f32/16x16x16",
                                      "segment_sum/f32/64x4x1",
                                      "adamw/f32/2x8",
                                      "adamw/f32/100x4",
                                      "ema/f32/2x8",
                                      "ema/f32/100x4",
                                      "unscale/f32/2x8",
                                      "unscale/f32/100x4",
                                      "flatten/f32/2x8",
                                      "flatten/f32/100x4"};

}  // namespace

TEST_CASE("bench_kernels reports whole rows, and what machine and commit they are of") {
  const auto r = report_of("bench_kernels", {"--filter", kOps, "--commit", "f00f", "--gemm", "own", "--tf32"});
  if (!r) return;
  INFO(r->ended.output);
  CHECK(r->ended.code == 0);
  check_head(*r, "cpu");
  CHECK(r->ended.output.find("DEBUG") == std::string::npos);  // of Debian's Google Benchmark, not of Levin
  CHECK(r->head["levin_commit"] == "f00f");
  CHECK(r->head["levin_gemm"] == "own");
  CHECK(r->head["levin_tf32"] == "allowed");
  auto names = names_of(r->rows), expected = kNames;
  std::sort(names.begin(), names.end());
  std::sort(expected.begin(), expected.end());
  CHECK(names == expected);
  check_kernels(r->rows);
}

TEST_CASE("bench_kernels on simt times short kernels as replays of a recorded graph, in 16 bits too") {
  if (device_count(DeviceType::simt) == 0) return levin::test::skip("no simt in this build");
  const auto r = report_of("bench_kernels", {"--device", "simt", "--filter",
                                             "^(relu_backward|dropout|layer_norm|matmul|adamw_masters|clip_grad_norm)/"
                                             ".*/(256|1x256|16x16x16|2x8)/"});
  if (!r) return;
  INFO(r->ended.output);
  CHECK(r->ended.code == 0);
  check_head(*r, "simt");
  CHECK(r->rows.size() >= 9);
  check_kernels(r->rows);
  for (const json& row : r->rows) {
    INFO(row.dump());
    CHECK(row.at("copies") == 2);
    CHECK(row.at("call_us").get<double>() > 0);
  }
  const auto names = names_of(r->rows);
  for (const char* name : {"matmul/bf16/16x16x16", "matmul/f16/16x16x16", "adamw_masters/bf16/2x8"})
    CHECK_MESSAGE(std::count(names.begin(), names.end(), name) == 1, std::string(name));
}

TEST_CASE("a benchmark row that fails says why, the rows behind it run, and the exit status tells") {
  // Tensors of 1 KB and of 64 KB, and memory for the small ones.
  const auto r = report_of(
      "bench_kernels", {"--filter", "^(relu|relu_backward)/f32/", "--max-bytes", "65536", "--memory-limit", "20000"});
  if (!r) return;
  INFO(r->ended.output);
  CHECK(r->ended.code == 1);
  CHECK(r->ended.output.find("2 rows failed") != std::string::npos);
  CHECK(names_of(r->rows) ==
        std::vector<std::string>{"relu/f32/256", "relu/f32/16384", "relu_backward/f32/256", "relu_backward/f32/16384"});
  for (const std::size_t small : {0, 2}) check_whole(r->rows[small]);
  for (const std::size_t large : {1, 3}) {
    CHECK(r->rows[large].at("error_occurred") == true);
    CHECK(r->rows[large].at("error_message").get<std::string>().find("the limit is 20000") != std::string::npos);
  }
}

TEST_CASE("a paced benchmark program prints a row as a line, and waits for a line before the next row") {
  const TemporaryFolder dir;
  const Program program("bench_kernels", dir, "bench");
  if (!program.built()) return;
  const std::string fifo = dir / "input";
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  const int input = open(fifo.c_str(), O_RDWR);  // both ends: opening neither waits for the other
  REQUIRE(input >= 0);
  // The second and the fourth row need more memory than the limit.
  const pid_t child = program.start({"--quick", "--warm-only", "--paced", "--filter", "^(relu|relu_backward)/f32/",
                                     "--max-bytes", "65536", "--memory-limit", "20000"},
                                    fifo);
  const auto lines = [&] {
    std::vector<std::string> rows;
    std::istringstream output(program.output_so_far());
    for (std::string line; std::getline(output, line);)
      if (line.find('\t') != std::string::npos) rows.push_back(line);
    return rows;
  };
  for (int row = 1; row <= 2; ++row) {
    for (int wait = 0; wait < 12000 && std::ssize(lines()) < row; ++wait)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    CHECK(std::ssize(lines()) == row);
    REQUIRE(write(input, "\n", 1) == 1);
  }
  REQUIRE(write(input, "\n\n", 2) == 2);
  const Ended ended = program.wait_for(child);
  close(input);
  INFO(ended.output);
  CHECK(ended.code == 1);
  const auto rows = lines();
  REQUIRE(rows.size() == 4);
  CHECK(rows[0].starts_with("relu/f32/256/"));
  CHECK(std::stod(rows[0].substr(rows[0].find('\t') + 1)) > 0);
  CHECK(rows[1].starts_with("relu/f32/16384/"));
  CHECK(rows[1].find("\tfailed: ") != std::string::npos);
}

TEST_CASE("bench_step reports whole rows of training steps, on a device also of recorded ones") {
  const bool simt = device_count(DeviceType::simt) > 0;
  const auto r = report_of("bench_step", {"--device", simt ? "simt" : "cpu", "--filter", "mlp|gpt|gcn"});
  if (!r) return;
  INFO(r->ended.output);
  CHECK(r->ended.code == 0);
  check_head(*r, simt ? "simt" : "cpu");
  CHECK(r->rows.size() == (simt ? 6 : 3));
  for (const json& row : r->rows) {
    check_whole(row);
    INFO(row.dump());
    CHECK(row.at("items_per_second").get<double>() > 0);
    CHECK(row.contains("of_bound") == (row.at("name").get<std::string>().find("gcn") == std::string::npos));
    CHECK(row.contains("host_us") == simt);
  }
}

TEST_CASE("bench_graph reports SpMM beside the bandwidth of the same run, its slope over the edges, and an epoch") {
  const auto r = report_of("bench_graph", {});
  if (!r) return;
  INFO(r->ended.output);
  CHECK(r->ended.code == 0);
  CHECK(names_of(r->rows) == std::vector<std::string>{"gcn_epoch/f32/cora", "spmm/f32/100x25x64", "spmm/f32/100x25x16",
                                                      "spmm/f32/100x25x128", "spmm_linear/f32/10000_nodes/64",
                                                      "spmm_linear/f32/25_a_row/64"});
  for (const json& row : r->rows) {
    INFO(row.dump());
    CHECK_FALSE(row.contains("error_occurred"));
    CHECK(row.at("real_time").get<double>() > 0);
    const std::string name = row.at("name");
    if (name.starts_with("spmm/")) CHECK(row.at("of_triad").get<double>() > 0);
    if (name.starts_with("spmm_linear/")) CHECK(std::isfinite(row.at("slope").get<double>()));
  }
}

TEST_CASE("bench_pipeline reports how long stages wait, beside the formula, for both schedules") {
  const auto r = report_of("bench_pipeline", {"--filter", "2x4|4x4"});
  if (!r) return;
  INFO(r->ended.output);
  CHECK(r->ended.code == 0);
  CHECK(names_of(r->rows) == std::vector<std::string>{"bubble/f32/gpipe_2x4", "bubble/f32/gpipe_4x4",
                                                      "bubble/f32/1f1b_2x4", "bubble/f32/1f1b_4x4"});
  for (const json& row : r->rows) {
    INFO(row.dump());
    CHECK_FALSE(row.contains("error_occurred"));
    CHECK(row.at("bubble").get<double>() > 0);
    CHECK(row.at("formula").get<double>() ==
          doctest::Approx(row.at("name").get<std::string>().find("_2x4") != std::string::npos ? 1.0 / 5 : 3.0 / 7));
  }
}

TEST_CASE("bench_comm reports times of all-reduces between processes, and their fit, which levin plan takes") {
  const auto r = report_of("bench_comm", {"--filter", "shm"});
  if (!r) return;
  INFO(r->ended.output);
  CHECK(r->ended.code == 0);
  REQUIRE(r->rows.size() == 2);
  for (const json& row : r->rows) {
    INFO(row.dump());
    const auto figure = [&](const char* what) { return row.at(what).get<double>(); };
    for (const char* size : {"us_of_64", "us_of_131072", "us_of_26214400"}) CHECK(figure(size) > 0);
    CHECK(std::isfinite(figure("alpha_us")));
    // Of 2 and 4 ranks: 2 (N - 1) / N bytes cross for each byte.
    const double crossing = std::string(row.at("name")).find("2_ranks") != std::string::npos ? 1 : 1.5;
    CHECK(figure("busbw") == doctest::Approx(crossing * 1024 / figure("beta_ns_of_KiB")).epsilon(1e-3));
  }
}

TEST_CASE("a benchmark program lists its flags, and refuses by name one that it has not or that lacks its value") {
  const TemporaryFolder dir;
  for (const char* name : {"bench_graph", "bench_kernels", "bench_step", "bench_trainer"}) {
    const Program program(name, dir, "bench");
    if (!program.built()) return;
    const auto said = [&](std::vector<std::string> arguments, int code, const char* words) {
      const Ended e = program.run(std::move(arguments));
      CAPTURE(e.output);
      CHECK(e.code == code);
      CHECK(e.output.find(words) != std::string::npos);
    };
    said({"--help"}, 0, "--json FILE");
    said({"--frob"}, 2, "unknown flag --frob");
    said({"--frob"}, 2, "--threads");
    said({"--threads"}, 2, "--threads lacks its N");
    said({"--threads", "x"}, 2, "\"x\" is not a whole number");
  }
  const Program kernels("bench_kernels", dir, "bench");
  CHECK(kernels.run({"--dtypes", "f64"}).code == 2);
  const Ended bf16 = kernels.run({"--quick", "--dtypes", "bf16", "--filter", "relu"});
  CAPTURE(bf16.output);
  CHECK(bf16.code == 0);
  CHECK(bf16.output.find("relu/bf16/") != std::string::npos);
  CHECK(bf16.output.find("/f32/") == std::string::npos);
  const Ended ledger = Program("bench_step", dir, "bench").run({"--ledger", "--filter", "scaled"});
  CAPTURE(ledger.output);
  CHECK(ledger.code == 1);  // builds with tests count no bytes
  CHECK(ledger.output.find("./run bench step --ledger") != std::string::npos);
  const Ended quick = Program("bench_trainer", dir, "bench").run({"--quick", "--only", "none"});
  CAPTURE(quick.output);
  CHECK(quick.code == 0);
  CHECK(quick.output.find("1 rounds of 20 steps") != std::string::npos);
}
