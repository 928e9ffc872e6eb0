#include "tensor/core/team.h"

#include <doctest/doctest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "levin/autograd.h"
#include "levin/error.h"

using namespace levin;

TEST_CASE("each member of a team has its thread, member 0 that of the caller, in every round") {
  detail::Team team(3);
  std::vector<std::thread::id> first(3), again(3);
  team.run([&](int k) { first[static_cast<std::size_t>(k)] = std::this_thread::get_id(); });
  team.run([&](int k) { again[static_cast<std::size_t>(k)] = std::this_thread::get_id(); });
  CHECK(first == again);
  CHECK(first[0] == std::this_thread::get_id());
  CHECK(std::set<std::thread::id>(first.begin(), first.end()).size() == 3);
}

TEST_CASE("a team runs under the modes of its caller and rethrows the error of the least member when all ended") {
  detail::Team team(4);
  std::atomic<int> recording{0}, ended{0};
  {
    const NoGrad off;
    team.run([&](int) { recording += grad_mode() ? 1 : 0; });
  }
  CHECK(recording == 0);
  team.run([&](int) { recording += grad_mode() ? 1 : 0; });
  CHECK(recording == 4);
  try {
    team.run([&](int k) {
      ++ended;
      if (k == 1 || k == 3) fail<StateError>("member ", k);
    });
    CHECK(false);
  } catch (const StateError& e) { CHECK(std::string(e.what()).find("member 1") != std::string::npos); }
  CHECK(ended == 4);
  team.run([&](int) { ++ended; });
  CHECK(ended == 8);
}

TEST_CASE("a team of one runs in the calling thread") {
  detail::Team team(1);
  std::thread::id ran;
  team.run([&](int) { ran = std::this_thread::get_id(); });
  CHECK(ran == std::this_thread::get_id());
}
