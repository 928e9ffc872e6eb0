#include "comm/job/job.h"

#include <doctest/doctest.h>

#include <array>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "comm/job/secret.h"
#include "levin/build_info.h"
#include "levin/error.h"
#include "tests/skip.h"
#include "tests/warnings.h"

namespace levin::dist {
namespace {

using std::string;

int free_port() {
  const Fd probe = listen_at({"127.0.0.1", 0}, Reach::loopback, 0);
  return port_of(probe);
}

struct Seat {
  InitOptions options{.timeout = 30, .rendezvous_timeout = 10};
  Job::Place place;
  Card card;
};

// The ranks of a job as threads of this process, each with its own connection. Returns what each threw.
std::vector<string> run_job(int world, const std::function<void(int rank, Seat&)>& prepare,
                            const std::function<void(int rank, Job&)>& body, const string& host = "127.0.0.1") {
  const int port = free_port();
  std::vector<string> errors(static_cast<std::size_t>(world));
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      string& error = errors[static_cast<std::size_t>(r)];
      try {
        Seat seat;
        seat.place = {.main = {host, port}, .world = world, .rank = r, .local_rank = r};
        seat.card = own_card(world, "");
        prepare(r, seat);
        const auto job = Job::join(seat.options, seat.place, seat.card);
        body(r, *job);
      } catch (const ConfigError& e) { error = string("ConfigError ") + e.what(); } catch (const CommError& e) {
        error = string("CommError ") + e.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}
void as_is(int, Seat&) {}
std::vector<string> nothing(int world) { return std::vector<string>(static_cast<std::size_t>(world)); }

TEST_CASE("ranks meet at the store, and gather values in the order of ranks") {
  const auto errors = run_job(4, as_is, [](int rank, Job& job) {
    const auto world = job.rendezvous();
    CHECK(world->rank() == rank);
    CHECK(world->size() == 4);
    CHECK(world->host(0) == world->host(3));
    CHECK(world->address() == "127.0.0.1");
    for (int i = 0; i < 20; ++i) {
      const auto all = world->gather("numbers", text(rank) + "/" + text(i));
      for (int r = 0; r < 4; ++r) CHECK(all[static_cast<std::size_t>(r)] == text(r) + "/" + text(i));
    }
    // Parts meet by themselves.
    const auto part = world->part(rank % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{3, 1});
    CHECK(part->size() == 2);
    CHECK(part->world_rank(part->rank()) == rank);
    CHECK(part->gather("ranks", text(rank)) ==
          (rank % 2 == 0 ? std::vector<string>{"0", "2"} : std::vector<string>{"3", "1"}));
    if (rank == 3) job.set("key", string(100000, 'x'));
    CHECK(job.get("key").size() == 100000);
  });
  CHECK(errors == nothing(4));
}

}  // namespace
}  // namespace levin::dist
