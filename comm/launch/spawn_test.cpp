#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "comm/launch/driver.h"
#include "levin/comm/launch.h"
#include "levin/error.h"
#include "levin/generator.h"
#include "levin/ops.h"
#include "tests/temporary.h"
#include "tests/variables.h"

using namespace levin;
using test::PlantedVariables;

namespace {

template <class E>
std::string error_of_spawn(int processes, const Function<std::string(int)>& body) {
  try {
    (void)dist::spawn(processes, body, {.grace = 1});
  } catch (const E& e) { return e.what(); }
  return "no such error";
}

[[noreturn]] void hang() {
  while (true) ::pause();
}

}  // namespace

TEST_CASE("spawn returns what each rank's function returns, in the order of ranks") {
  const PlantedVariables planted({});
  const std::string large(1 << 20, 'x');
  const std::vector<std::string> results = dist::spawn(3, [&](int rank) {
    const auto e = dist::ClusterEnvironment::detect();
    if (e->global_rank() != rank || e->local_rank() != rank || e->world_size() != 3 || e->main_port() == 0 ||
        !e->creates_processes_externally() || std::string(std::getenv("LEVIN_JOB_SECRET")).size() != 64)
      return std::string("wrong environment");
    return rank == 1 ? large : rank == 2 ? std::string("a\0b", 3) : std::string();
  });
  CHECK(results == std::vector<std::string>{"", large, std::string("a\0b", 3)});
  CHECK(std::getenv("LOCAL_RANK") == nullptr);  // nothing is left in this process
}

TEST_CASE("children of spawn compute, also after their parent has computed on threads") {
  const PlantedVariables planted({});
  Generator gen(1);
  const Tensor x = randn({96, 96}, gen, Device::cpu());
  const auto product = [&] { return std::to_string(sum(matmul(x, x)).item<float>()); };
  const std::string expected = product();
  CHECK(dist::spawn(2, [&](int) { return product(); }) == std::vector<std::string>{expected, expected});
}

TEST_CASE("an error of a spawned rank is thrown by the parent with its type and rank, and the others end") {
  const PlantedVariables planted({});
  const std::string text = error_of_spawn<DataError>(3, [](int rank) -> std::string {
    if (rank == 2) fail<DataError>("loader: no file");
    hang();
  });
  CHECK(text == "rank 2: loader: no file");
  const std::string other = error_of_spawn<CommError>(2, [](int rank) -> std::string {
    if (rank == 1) throw std::runtime_error("mine");
    hang();
  });
  CHECK(other == "rank 1: mine");
}

TEST_CASE("the rank that fails first is named, not one that survived its failure") {
  const PlantedVariables planted({});
  int number[2];  // rank 1's process, whose end rank 0 waits for
  REQUIRE(::pipe(number) == 0);
  const std::string text = error_of_spawn<ShapeError>(2, [&](int rank) -> std::string {
    pid_t other = ::getpid();
    if (rank == 1) {
      (void)!::write(number[1], &other, sizeof other);
      fail<CommError>("rank 0 is lost");
    }
    (void)!::read(number[0], &other, sizeof other);
    pollfd ended{static_cast<int>(::syscall(SYS_pidfd_open, other, 0)), POLLIN, 0};
    if (ended.fd >= 0) ::poll(&ended, 1, -1);
    fail<ShapeError>("add: shapes differ");
  });
  ::close(number[0]);
  ::close(number[1]);
  CHECK(text == "rank 0: add: shapes differ");
}

TEST_CASE("a spawned rank that is killed or exits is a CommError that says how it ended") {
  const PlantedVariables planted({});
  const std::string killed = error_of_spawn<CommError>(2, [](int rank) -> std::string {
    if (rank == 1) ::kill(::getpid(), SIGKILL);
    hang();
  });
  CHECK(killed.find("spawn: rank 1 (process ") == 0);
  CHECK(killed.find("was killed by signal 9 (SIGKILL)") != std::string::npos);
  const std::string exited = error_of_spawn<CommError>(2, [](int rank) -> std::string {
    if (rank == 1) ::_exit(3);
    hang();
  });
  CHECK(exited.find("exited with code 3") != std::string::npos);
  const std::string early = error_of_spawn<CommError>(1, [](int) -> std::string { ::_exit(0); });
  CHECK(early.find("rank 0 ended without a result") != std::string::npos);
}

TEST_CASE("a spawned rank that ignores SIGTERM is killed after the grace") {
  const PlantedVariables planted({});
  const std::string text = error_of_spawn<ConfigError>(2, [](int rank) -> std::string {
    ::signal(SIGTERM, SIG_IGN);
    if (rank == 0) fail<ConfigError>("wrong");
    hang();
  });
  CHECK(text == "rank 0: wrong");
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);  // no child is left
}

TEST_CASE("spawn refuses wrong arguments, and a process that uses a GPU's driver") {
  CHECK_THROWS_AS((void)dist::spawn(0, [](int) { return std::string(); }), ConfigError);
  CHECK_THROWS_AS((void)dist::spawn(1, {}), ConfigError);
  const test::TemporaryFolder folder;
  CHECK_FALSE(dist::driver_is_open(folder.path().c_str()));
  std::filesystem::create_symlink("/dev/null", folder / "3");
  CHECK_FALSE(dist::driver_is_open(folder.path().c_str()));
  std::filesystem::create_symlink("/dev/nvidiactl", folder / "4");
  CHECK(dist::driver_is_open(folder.path().c_str()));
}
