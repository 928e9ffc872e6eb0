// levin-run: each test starts it with tests/ranks as the program.
#include <algorithm>

#include "tests/launchers/await.h"
#include "tests/launchers/command.h"
#include "tests/variables.h"

using namespace levin;
using namespace levin::test;

namespace {

const std::string kRun = "examples/levin-run";

bool both_built() { return is_built(kRun) && is_built("tests/ranks"); }

std::vector<std::string> command(std::vector<std::string> flags, std::vector<std::string> actions) {
  flags.insert(flags.begin(), build_dir() + "/" + kRun);
  flags.insert(flags.end(), {"--", build_dir() + "/tests/ranks"});
  flags.insert(flags.end(), actions.begin(), actions.end());
  return flags;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("levin-run starts a program as the ranks of one job") {
  if (!both_built()) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({});
  const auto ended =
      Command(command({"-n", "2"}, {"env", "RANK", "env", "WORLD_SIZE", "env", "MASTER_ADDR"}), folder.path()).wait();
  CHECK(ended.code == 0);
  CHECK(ended.err.empty());
  for (const char* line : {"RANK=0\n", "WORLD_SIZE=2\n", "[rank 1] RANK=1\n", "[rank 1] WORLD_SIZE=2\n",
                           "[rank 1] MASTER_ADDR=127.0.0.1\n"})
    CHECK(has(ended.out, line));
}

TEST_CASE("levin-run numbers the ranks of a node of several") {
  if (!both_built()) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({});
  const auto ended = Command(command({"-n", "2", "--nnodes", "3", "--node-rank", "1", "--rdzv", "10.0.0.1:4000"},
                                     {"env", "RANK", "env", "LOCAL_RANK", "env", "NODE_RANK", "env", "WORLD_SIZE",
                                      "env", "MASTER_ADDR", "env", "MASTER_PORT", "env", "LEVIN_JOB_SECRET"}),
                             folder.path())
                         .wait();
  CHECK(ended.code == 0);
  for (const char* line : {"[rank 3] RANK=3\n", "[rank 3] LOCAL_RANK=1\n", "[rank 3] NODE_RANK=1\n",
                           "[rank 3] WORLD_SIZE=6\n", "[rank 3] MASTER_ADDR=10.0.0.1\n", "[rank 3] MASTER_PORT=4000\n",
                           "[rank 3] LEVIN_JOB_SECRET=\n", "[rank 2] RANK=2\n"})
    CHECK(has(ended.out, line));
}

TEST_CASE("levin-run ends with the code of the rank that failed first, and its error comes last") {
  if (!both_built()) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({});
  const std::string mark = folder / "mark";
  const auto ended =
      Command(command({"-n", "3"}, {"@2:text", "no such file", "@2:exit", "3", "@0:text", "waits", "hang"}),
              folder.path())
          .wait();
  CHECK(ended.code == 3);
  CHECK(has(ended.err, "levin-run: rank 2 (process "));
  CHECK(
      ended.err.ends_with("exited with code 3, and 2 other ranks were ended. The end of its stderr:\n"
                          "[rank 2] no such file\n"));
  const auto first =
      Command(command({"-n", "2"}, {"@1:mark", mark, "@0:await", mark, "@0:text", "broken", "@0:exit", "7", "hang"}),
              folder.path())
          .wait();
  CHECK(first.code == 7);
  CHECK(first.err.ends_with("1 other rank was ended. The end of its stderr:\nbroken\n"));
  const auto killed = Command(command({"-n", "2"}, {"@1:signal", "11", "hang"}), folder.path()).wait();
  CHECK(killed.code == 128 + 11);
}

TEST_CASE("levin-run blames the rank that failed, not the ranks that survived it") {
  if (!both_built()) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({});
  const std::string mark = folder / "mark";
  // Rank 1 marks its end before it ends, so rank 0 fails at about the same time or later.
  const auto ended =
      Command(command({"-n", "2"}, {"@1:mark", mark, "@1:exit", "75", "@0:await", mark, "@0:exit", "9"}), folder.path())
          .wait();
  CHECK(ended.code == 9);
  const auto survivors = Command(command({"-n", "2"}, {"exit", "75"}), folder.path()).wait();
  CHECK(survivors.code == 75);
}

TEST_CASE("levin-run forwards SIGTERM to all ranks, and a second one kills them") {
  if (!both_built()) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({});
  const std::string one = folder / "one", two = folder / "two", told = folder / "told";
  {
    Command run(command({"-n", "2"}, {"block-term", "@0:mark", one, "@1:mark", two, "await-term", "exit", "0"}),
                folder.path());
    await_file(one);
    await_file(two);
    ::kill(run.process(), SIGTERM);
    CHECK(run.wait().code == 0);
  }
  std::filesystem::remove(one);
  std::filesystem::remove(two);
  Command run(
      command({"-n", "2"}, {"block-term", "@0:mark", one, "@1:mark", two, "await-term", "@1:mark", told, "hang"}),
      folder.path());
  await_file(one);
  await_file(two);
  ::kill(run.process(), SIGTERM);
  await_file(told);
  ::kill(run.process(), SIGTERM);
  CHECK(run.wait().code == 128 + 9);
}

TEST_CASE("levin-run starts a job that failed again, with its count, as often as allowed") {
  if (!both_built()) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({});
  const auto ended =
      Command(command({"-n", "2", "--max-restarts", "2"}, {"@1:env", "LEVIN_RESTART_COUNT", "@1:exit", "4", "hang"}),
              folder.path())
          .wait();
  CHECK(ended.code == 4);
  CHECK(ended.out ==
        "[rank 1] LEVIN_RESTART_COUNT=0\n[rank 1] LEVIN_RESTART_COUNT=1\n[rank 1] LEVIN_RESTART_COUNT=2\n");
  CHECK(has(ended.err, "levin-run: restart 2 of 2\n"));
}

TEST_CASE("levin-run names a program that it cannot start, and flags that it does not know") {
  if (!both_built()) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({});
  const std::string run = build_dir() + "/" + kRun;
  const auto missing = Command({run, "-n", "2", "--", "/nonexistent/program"}, folder.path()).wait();
  CHECK(missing.code == 127);
  CHECK(has(missing.err, "cannot start /nonexistent/program: No such file or directory"));
  for (const std::vector<std::string>& words : {std::vector<std::string>{run, "--what", "1", "--", "true"},
                                                {run, "-n", "two", "--", "true"},
                                                {run, "-n", "0", "--", "true"},
                                                {run, "-n", "2"},
                                                {run, "-n"},
                                                {run, "--nnodes", "2", "--", "true"},
                                                {run, "--rdzv", "host", "--", "true"},
                                                {run, "--node-rank", "1", "--", "true"}}) {
    CAPTURE(words.back());
    const auto ended = Command(words, folder.path()).wait();
    CHECK(ended.code == 2);
    CHECK(has(ended.err, "usage: levin-run -n N"));
  }
}

TEST_CASE("a program's processes are gone when levin-run is killed") {
  if (!both_built()) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({});
  const std::string one = folder / "one", told = folder / "told";
  Command run(command({"-n", "2"}, {"block-term", "@1:mark", one, "await-term", "@1:mark", told}), folder.path());
  await_file(one);
  ::kill(run.process(), SIGKILL);
  CHECK(run.wait().code == -9);
  await_file(told);  // SIGTERM has come
}
