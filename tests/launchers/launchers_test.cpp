// Launchers of others, for real: each test runs a script of this folder, which skips by itself where its launcher is
// absent.
#include <charconv>
#include <chrono>
#include <cmath>

#include "levin/comm/launch.h"
#include "tests/launchers/command.h"
#include "tests/variables.h"

using namespace levin;
using namespace levin::test;

namespace {

const std::string kRanks = "tests/ranks";

struct Launched {
  Command::Ended end;
  bool skipped = false;
};

// SCRIPT WORDS... of this folder.
Launched launch(const TemporaryFolder& folder, const std::string& script, std::vector<std::string> words) {
  words.insert(words.begin(), source_dir() + "/tests/launchers/" + script);
  Launched launched{Command(std::move(words), folder.path()).wait()};
  constexpr int kSkip = 77;
  if (launched.end.code == kSkip) {
    REQUIRE(launched.end.out.starts_with("SKIP "));
    skip(script + ": " + launched.end.out.substr(5, launched.end.out.find('\n') - 5));
    launched.skipped = true;
  }
  return launched;
}

std::string program() { return build_dir() + "/" + kRanks; }

bool has_gloo() {
  if (std::filesystem::exists(build_dir() + "/liblevin_gloo.so")) return true;
  skip("no liblevin_gloo.so: install libgloo-dev");
  return false;
}

// What "train" of the program printed, by rank.
std::vector<std::vector<float>> weights_in(const std::string& out, int ranks) {
  std::vector<std::vector<float>> all;
  for (int r = 0; r < ranks; ++r) {
    const std::string head = "weights of rank " + std::to_string(r) + ":";
    const std::size_t at = out.find(head);
    REQUIRE(at != std::string::npos);
    const std::string line = out.substr(at + head.size(), out.find('\n', at) - at - head.size());
    std::vector<float> weights;
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (line[i] != ' ') continue;
      float value = 0;
      const auto end = std::from_chars(line.data() + i + 1, line.data() + line.size(), value);
      REQUIRE(end.ec == std::errc());
      weights.push_back(value);
    }
    all.push_back(std::move(weights));
  }
  return all;
}

// Ranks that trained together have the same weights, up to 1e-5 those of one process.
void check_trained(const Command::Ended& end, int ranks) {
  CAPTURE(end.out);
  CAPTURE(end.err);
  REQUIRE(end.code == 0);
  const TemporaryFolder folder;
  const Command::Ended alone = Command({build_dir() + "/" + kRanks, "train", "auto"}, folder.path()).wait();
  REQUIRE(alone.code == 0);
  const std::vector<float> want = weights_in(alone.out, 1)[0];
  REQUIRE(want.size() == 65);
  const auto weights = weights_in(end.out, ranks);
  for (const std::vector<float>& mine : weights) {
    CHECK(mine == weights[0]);
    REQUIRE(mine.size() == want.size());
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(std::abs(mine[i] - want[i]) <= 1e-5f);
  }
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("two ranks of Open MPI's mpirun form a job and reduce") {
  if (!is_built(kRanks)) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({});
  const Launched run = launch(folder, "mpirun.sh", {program(), "reduce"});
  if (run.skipped) return;
  CAPTURE(run.end.err);
  CHECK(run.end.code == 0);
  CHECK(has(run.end.out, "rank 0 of 2: 3\n"));
  CHECK(has(run.end.out, "rank 1 of 2: 3\n"));
}

TEST_CASE("a rank of Open MPI's mpirun that exits with 3 ends the job with that code") {
  if (!is_built(kRanks)) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({});
  const Launched run = launch(folder, "mpirun.sh", {program(), "reduce", "@1:exit", "3", "hang"});
  if (run.skipped) return;
  CAPTURE(run.end.err);
  CHECK(run.end.code == 3);
}

TEST_CASE("two ranks of torchrun form a job beside the port that its agent holds, and reduce") {
  if (!is_built(kRanks)) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({});
  const Launched run = launch(folder, "torchrun.sh", {program(), "reduce"});
  if (run.skipped) return;
  CAPTURE(run.end.err);
  CHECK(run.end.code == 0);
  CHECK(has(run.end.out, "rank 0 of 2: 3\n"));
  CHECK(has(run.end.out, "rank 1 of 2: 3\n"));
}

TEST_CASE("two tasks of SLURM's srun form a job and reduce") {
  if (!is_built(kRanks)) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({});
  const Launched run = launch(folder, "slurm.sh", {"srun", program(), "reduce"});
  if (run.skipped) return;
  CAPTURE(run.end.err);
  CHECK(run.end.code == 0);
  CHECK(has(run.end.out, "rank 0 of 2: 3\n"));
  CHECK(has(run.end.out, "rank 1 of 2: 3\n"));
}

TEST_CASE("a SLURM batch job of two tasks saves at a signal, requeues itself and resumes under the same id") {
  if (!is_built(kRanks)) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({});
  dist::SlurmScript script{.job_name = "requeued",
                           .tasks_per_node = 2,
                           .time = "2",
                           .log_dir = folder.path(),
                           .requeue_signal = "",
                           .commands = {"--oversubscribe --overcommit '" + program() + "' reduce requeue-once"}};
  write_file_atomically(folder / "script", script.render());
  const Launched run = launch(folder, "slurm.sh", {"requeue", folder / "script"});
  if (run.skipped) return;
  CAPTURE(run.end.out);
  CAPTURE(run.end.err);
  CHECK(run.end.code == 0);
  CHECK(has(run.end.out, "rank 1 of 2: 3\n"));
  CHECK(has(run.end.out, "requeues\n"));
  CHECK(has(run.end.out, "start 1\n"));
  CHECK(has(run.end.out, "job COMPLETED\n"));
}

TEST_CASE(
    "a training in a SLURM job saves at a signal, requeues the job, resumes and ends with the bits of one piece") {
  if (!is_built(kRanks)) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({});
  const std::string cut = folder / "cut", whole = folder / "whole";
  std::filesystem::create_directory(cut);
  std::filesystem::create_directory(whole);
  dist::SlurmScript script{.job_name = "requeued",
                           .tasks_per_node = 2,
                           .time = "2",
                           .log_dir = folder.path(),
                           .requeue_signal = "",
                           .commands = {"--oversubscribe --overcommit '" + program() + "' cut-fit '" + cut + "'"}};
  write_file_atomically(folder / "script", script.render());
  const Launched run = launch(folder, "slurm.sh", {"requeue", folder / "script"});
  if (run.skipped) return;
  CAPTURE(run.end.out);
  CAPTURE(run.end.err);
  CHECK(run.end.code == 0);
  CHECK(has(run.end.out, "job COMPLETED\n"));
  const std::string file = cut + "/hpc_ckpt_1.safetensors";
  CHECK(std::filesystem::exists(file));
  CHECK_FALSE(std::filesystem::exists(cut + "/hpc_ckpt_2.safetensors"));
  // Both ranks of the first start lived to the end of the fit, although SLURM sent them SIGTERM.
  for (const char* rank : {"0", "1"}) {
    const std::string error = cut + "/error." + rank;
    REQUIRE(std::filesystem::exists(error));
    const std::string words = read_file(error, 4096);
    CHECK(has(words, "fit: stopped by SIGUSR1 after 7 optimizer steps; saved " + file + "; job "));
    CHECK(has(words, " is requeued"));
    CHECK(has(run.end.out, "start 1 of rank " + std::string(rank) + " resumed \"" + file + "\"\n"));
  }
  const Command::Ended in_one = Command({program(), "--launch", "2", "fit", whole}, folder.path()).wait();
  CAPTURE(in_one.err);
  REQUIRE(in_one.code == 0);
  const auto bits = [](const std::string& out, const std::string& rank) {
    const std::size_t at = out.find("bits of rank " + rank + ":");
    REQUIRE(at != std::string::npos);
    return out.substr(at + 15, out.find('\n', at) - at - 15);
  };
  CHECK(bits(in_one.out, "0").size() > 65 * 2);
  CHECK(bits(run.end.out, "0") == bits(in_one.out, "0"));
  CHECK(bits(run.end.out, "1") == bits(in_one.out, "0"));
}

TEST_CASE("ranks on hosts behind slow links that lose packets form a job and reduce") {
  if (!is_built(kRanks) || !has_gloo()) return;
  const PlantedVariables planted({});
  for (const int hosts : {2, 4}) {
    const TemporaryFolder folder;
    const Launched run = launch(folder, "netns.sh", {std::to_string(hosts), program(), "reduce"});
    if (run.skipped) return;
    CAPTURE(run.end.err);
    CHECK(run.end.code == 0);
    for (int rank = 0; rank < hosts; ++rank)
      CHECK(has(run.end.out, "rank " + std::to_string(rank) + " of " + std::to_string(hosts) + ": " +
                                 std::to_string(hosts * (hosts + 1) / 2) + "\n"));
  }
}

TEST_CASE("2 and 4 processes that train over Gloo make the steps of one process with the whole batch") {
  if (!is_built(kRanks) || !has_gloo()) return;
  const PlantedVariables planted({});
  const TemporaryFolder folder;
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    check_trained(Command({program(), "--launch", std::to_string(ranks), "train", "gloo:all"}, folder.path()).wait(),
                  ranks);
  }
  // Two hosts of two ranks: shared memory within, Gloo between.
  check_trained(Command({program(), "--launch", "4", "@0:host", "a", "@1:host", "a", "@2:host", "b", "@3:host", "b",
                         "train", "auto"},
                        folder.path())
                    .wait(),
                4);
}

TEST_CASE("hosts behind slow links that lose packets make the steps of one process with the whole batch") {
  if (!is_built(kRanks) || !has_gloo()) return;
  const PlantedVariables planted({});
  for (const int hosts : {2, 4}) {
    CAPTURE(hosts);
    const TemporaryFolder folder;
    const Launched run = launch(folder, "netns.sh", {std::to_string(hosts), program(), "train", "auto"});
    if (run.skipped) return;
    check_trained(run.end, hosts);
  }
}

TEST_CASE("a link that goes down ends the ranks on both sides, with the rank that is not heard") {
  if (!is_built(kRanks) || !has_gloo()) return;
  const TemporaryFolder folder;
  const std::string down = folder / "down";
  const PlantedVariables planted({{"LEVIN_NETNS_DOWN", down.c_str()}});
  const auto start = std::chrono::steady_clock::now();
  const Launched run = launch(folder, "netns.sh", {"2", program(), "reduce", "@0:mark", down, "reduce-on"});
  if (run.skipped) return;
  CAPTURE(run.end.err);
  CHECK(run.end.code == 1);
  CHECK(has(run.end.err, "rank 1 (host host1"));
  CHECK(has(run.end.err, "rank 0 (host host0"));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));  // a rank is silent after 3
}
