// The script launcher: each test starts tests/ranks, which starts itself again.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "comm/launch/job_variables.h"
#include "tensor/device/cpus.h"
#include "tests/launchers/await.h"
#include "tests/launchers/command.h"
#include "tests/variables.h"

using namespace levin;
using namespace levin::test;

namespace {

const std::string kRanks = "tests/ranks";

Command::Ended run_ranks(const TemporaryFolder& folder, std::vector<std::string> words) {
  words.insert(words.begin(), build_dir() + "/" + kRanks);
  return Command(std::move(words), folder.path()).wait();
}

std::vector<std::string> lines_with(const std::string& text, const std::string& start) {
  std::vector<std::string> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(start)) found.push_back(line);
  return found;
}

std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  const std::size_t begin = text.rfind('\n', end);
  return text.substr(begin + 1, end - begin);
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Waits until the process whose number the file holds is gone.
bool is_gone(const std::string& file) {
  std::ifstream in(file);
  pid_t pid = 0;
  in >> pid;
  REQUIRE(pid > 0);
  const int watch = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (watch < 0) return true;
  pollfd ended{watch, POLLIN, 0};
  const bool gone = ::poll(&ended, 1, 5000) == 1;
  ::close(watch);
  return gone;
}

}  // namespace

TEST_CASE("the script launcher starts the program again for each rank, with one job in their environment") {
  if (!is_built(kRanks)) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({});
  const auto ended = run_ranks(folder, {"--launch", "3",
                                        "env",      "LOCAL_RANK",
                                        "env",      "RANK",
                                        "env",      "NODE_RANK",
                                        "env",      "WORLD_SIZE",
                                        "env",      "MASTER_ADDR",
                                        "env",      "MASTER_PORT",
                                        "env",      "LEVIN_RUN_ID",
                                        "env",      "LEVIN_JOB_SECRET",
                                        "env",      "OMP_NUM_THREADS",
                                        "threads",  "read"});
  CAPTURE(ended.err);
  CHECK(ended.code == 0);
  const std::vector<std::string> of_one = lines_with(ended.out, "[rank 1] "),
                                 of_two = lines_with(ended.out, "[rank 2] ");
  REQUIRE(of_one.size() == 11);
  REQUIRE(of_two.size() == 11);
  CHECK(of_one[0] == "[rank 1] LOCAL_RANK=1");
  CHECK(of_two[0] == "[rank 2] LOCAL_RANK=2");
  CHECK(of_one[1] == "[rank 1] RANK=1");
  CHECK(of_one[2] == "[rank 1] NODE_RANK=0");
  CHECK(of_one[3] == "[rank 1] WORLD_SIZE=3");
  CHECK(of_one[4] == "[rank 1] MASTER_ADDR=127.0.0.1");
  CHECK(of_one[7].size() == std::string("[rank 1] LEVIN_JOB_SECRET=").size() + 64);
  const std::string threads = std::to_string(std::max(1, detail::usable_cpus() / 3));
  CHECK(of_one[8] == "[rank 1] OMP_NUM_THREADS=" + threads);
  CHECK(of_one[9] == "[rank 1] threads " + threads);
  CHECK(of_one[10] == "[rank 1] end of stdin");
  CHECK(lines_with(ended.out, "threads ") == std::vector<std::string>{"threads " + threads});
  for (std::size_t i = 3; i < 10; ++i) {  // the same on all ranks
    CHECK(of_one[i].substr(9) == of_two[i].substr(9));
    CHECK(has(ended.out, "\n" + of_one[i].substr(9) + "\n"));
  }
  CHECK(has(ended.out, "LOCAL_RANK=0\n"));
}

TEST_CASE("variables that are set keep their value under the script launcher") {
  if (!is_built(kRanks)) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({{"OMP_NUM_THREADS", "5"}, {"LEVIN_JOB_SECRET", "mine"}});
  const auto ended =
      run_ranks(folder, {"--launch", "2", "@1:env", "OMP_NUM_THREADS", "@1:env", "LEVIN_JOB_SECRET", "@1:threads"});
  CHECK(ended.out == "[rank 1] OMP_NUM_THREADS=5\n[rank 1] LEVIN_JOB_SECRET=mine\n[rank 1] threads 5\n");
}

TEST_CASE("the output of ranks keeps its lines whole and each rank's in order") {
  if (!is_built(kRanks)) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({});
  constexpr int kLines = 2000;
  const auto ended = run_ranks(folder, {"--launch", "4", "print", std::to_string(kLines), "@2:part", "no end"});
  CHECK(ended.code == 0);
  for (const auto& [text, word] : {std::pair(ended.out, "out "), std::pair(ended.err, "err ")}) {
    for (const char* prefix : {"[rank 1] ", "[rank 2] ", "[rank 3] ", ""}) {
      const std::vector<std::string> lines = lines_with(text, prefix + std::string(word));
      CAPTURE(prefix);
      REQUIRE(lines.size() == kLines);
      for (int i = 0; i < kLines; ++i)
        REQUIRE(lines[static_cast<std::size_t>(i)] == prefix + std::string(word) + std::to_string(i));
    }
  }
  CHECK(std::count(ended.out.begin(), ended.out.end(), '\n') == 4 * kLines + 1);
  CHECK(has(ended.out, "[rank 2] no end\n"));
}

TEST_CASE("a rank that exits with 3 ends the job, which reports the rank and the code and shows its error last") {
  if (!is_built(kRanks)) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({});
  const auto ended = run_ranks(folder, {"--launch", "3", "--grace", "1", "@1:text", "this went wrong", "@1:exit", "3",
                                        "text", "waiting", "hang"});
  CAPTURE(ended.err);
  CHECK(ended.code == 3);  // of the process that the user started, which hung
  CHECK(has(ended.err, "rank 1 (process "));
  CHECK(has(ended.err, "exited with code 3, and 2 other ranks were ended. The end of its stderr:\n"));
  CHECK(last_line(ended.err) == "[rank 1] this went wrong");
}

TEST_CASE("a rank that a signal kills is reported with the signal") {
  if (!is_built(kRanks)) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({});
  const auto ended = run_ranks(folder, {"--launch", "2", "--grace", "0", "@1:signal", "9", "hang"});
  CHECK(ended.code == 128 + 9);
  CHECK(has(ended.err, "was killed by signal 9 (SIGKILL)"));
  CHECK(has(ended.err, "It wrote nothing to stderr."));
}

TEST_CASE("ranks that ignore SIGTERM, and what they started, are gone when a job has failed") {
  if (!is_built(kRanks)) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({});
  const std::string child = folder / "child", other = folder / "other";
  const auto ended = run_ranks(folder, {"--launch", "3", "--grace", "1", "@2:ignore-term", "@2:child", child,
                                        "@1:await", child, "@1:child", other, "@1:exit", "4", "hang"});
  CHECK(ended.code == 4);
  CHECK(is_gone(child));
  CHECK(is_gone(other));
}

TEST_CASE("a rank that the launcher would kill may ask for time to save") {
  if (!is_built(kRanks)) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({});
  const std::string saving = folder / "saving", saved = folder / "saved";
  // With a grace of 0 seconds SIGKILL follows SIGTERM at once. Rank 2 saves after SIGTERM.
  const auto ended = run_ranks(
      folder,
      {"--launch", "3",     "--grace",  "0",    "@2:block-term", "@0:hold", "30",      "@2:hold", "30",
       "@2:mark",  saving,  "@0:await", saving, "@1:await",      saving,    "@1:exit", "5",       "@2:await-term",
       "@2:print", "20000", "@2:mark",  saved,  "@0:await",      saved,     "@0:exit", "75"});
  CAPTURE(ended.err);
  CHECK(ended.code == 75);
  CHECK(std::filesystem::exists(saved));
  CHECK(has(ended.err, "exited with code 5"));
}

TEST_CASE("a first rank that ends well waits for the others, and ends with the code of one that fails") {
  if (!is_built(kRanks)) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({});
  const std::string file = folder / "mark";
  const auto well = run_ranks(folder, {"--launch", "2", "@0:mark", file, "@1:await", file, "@1:print", "1"});
  CHECK(well.code == 0);
  CHECK(well.out == "[rank 1] out 0\n");
  const auto failed = run_ranks(folder, {"--launch", "2", "@1:await", file, "@1:text", "late", "@1:exit", "6"});
  CHECK(failed.code == 6);
  CHECK(last_line(failed.err) == "[rank 1] late");
}

TEST_CASE("a first rank that fails ends the others and keeps its own code") {
  if (!is_built(kRanks)) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({});
  const std::string child = folder / "child";
  const auto ended = run_ranks(folder, {"--launch", "2", "--grace", "1", "@1:child", child, "@1:hang", "@0:await",
                                        child, "@0:text", "no data", "@0:exit", "65"});
  CHECK(ended.code == 65);
  CHECK(has(ended.err, "no data\nlevin: rank 0 (process "));
  CHECK(has(last_line(ended.err), "exited with code 65, and the other ranks were ended"));
}

TEST_CASE("ranks die with the process that started them") {
  if (!is_built(kRanks)) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({});
  const std::string child = folder / "number";
  Command first({build_dir() + "/" + kRanks, "--launch", "2", "@1:pid", child, "@1:mark", folder / "there", "hang"},
                folder.path());
  await_file(folder / "there");
  ::kill(first.process(), SIGKILL);
  (void)first.wait();
  CHECK(is_gone(child));
}

TEST_CASE("a program runs with stdin, stdout and stderr closed under the script launcher") {
  if (!is_built(kRanks)) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({});
  const std::string mark = folder / "mark";
  const std::string command =
      "'" + build_dir() + "/" + kRanks + "' --launch 2 print 100 @1:read @1:mark '" + mark + "'";
  CHECK(std::system((command + " <&- >&- 2>&-").c_str()) == 0);
  CHECK(std::filesystem::exists(mark));
  std::filesystem::remove(mark);
  CHECK(std::system((command + " | true").c_str()) == 0);  // nobody reads the output
}

TEST_CASE("a second launch in a process finds the job that it belongs to, and another size is refused") {
  if (!is_built(kRanks)) return;
  const TemporaryFolder folder;
  const PlantedVariables planted({{"LOCAL_RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}});
  const auto ended = run_ranks(folder, {"--launch", "3", "print", "1"});
  CHECK(ended.code == 1);
  CHECK(has(ended.err, "WORLD_SIZE is 2, and num_nodes 1 times devices 3 is 3"));
  CHECK(ended.out.empty());
}

TEST_CASE("a port that a launcher holds is given to no other process, and rank 0 listens there") {
  const dist::HeldPort held;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(held.port()));
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  const int plain = ::socket(AF_INET, SOCK_STREAM, 0), rank = ::socket(AF_INET, SOCK_STREAM, 0),
            peer = ::socket(AF_INET, SOCK_STREAM, 0), yes = 1;
  CHECK(::bind(plain, any, sizeof address) == -1);
  REQUIRE(::setsockopt(rank, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0);
  CHECK(::bind(rank, any, sizeof address) == 0);
  CHECK(::listen(rank, 1) == 0);
  CHECK(::connect(peer, any, sizeof address) == 0);
  for (const int fd : {plain, rank, peer}) ::close(fd);
}
