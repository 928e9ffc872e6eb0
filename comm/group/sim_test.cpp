#include "comm/group/sim.h"

#include <doctest/doctest.h>
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "comm/group/algorithms.h"
#include "levin/error.h"

namespace levin {
namespace {

using namespace levin::dist;
using std::int64_t;

template <class T>
std::byte* bytes_of(std::vector<T>& v) {
  return reinterpret_cast<std::byte*>(v.data());
}
Task task_of(Collective op, DType dtype, int64_t count) {
  Task t;
  t.op = op;
  t.dtype = dtype;
  t.count = count;
  return t;
}
float value(int rank, int64_t i) { return std::sin(static_cast<float>(rank * 977 + i * 31 + 1)); }
std::vector<float> values(int rank, int64_t n) {
  std::vector<float> out(static_cast<std::size_t>(n));
  for (int64_t i = 0; i < n; ++i) out[static_cast<std::size_t>(i)] = value(rank, i);
  return out;
}
float tree(int begin, int end, int64_t i) {
  return end - begin == 1 ? value(begin, i)
                          : tree(begin, begin + (end - begin) / 2, i) + tree(begin + (end - begin) / 2, end, i);
}

// One of each collective; throws where a value is wrong.
void run_all(SimRank& me, int64_t n) {
  Scratch scratch;
  std::uint64_t slot = 1;
  const int ranks = me.size();
  const auto run = [&](const Task& task) { run_collective(me.transport(), task, slot++, scratch); };
  const auto require = [&](bool ok, const char* what) {
    if (!ok) fail<InternalError>(what, " of ", n, " elements on ", ranks, " ranks is wrong at rank ", me.rank());
  };
  {
    std::vector<float> x = values(me.rank(), n);
    Task t = task_of(Collective::all_reduce, DType::f32, n);
    t.in = t.out = bytes_of(x);
    run(t);
    for (int64_t i = 0; i < n; i += 1 + n / 50) {
      double sum = 0;
      for (int r = 0; r < ranks; ++r) sum += value(r, i);
      require(std::abs(x[static_cast<std::size_t>(i)] - sum) < 1e-6 * ranks * ranks, "all_reduce");
    }
    if (std::has_single_bit(static_cast<unsigned>(ranks))) {
      for (int64_t i = 0; i < n; i += 1 + n / 50) {
        require(x[static_cast<std::size_t>(i)] == tree(0, ranks, i), "the tree of all_reduce");
      }
    }
  }
  {
    std::vector<std::int64_t> in(static_cast<std::size_t>(n * ranks)), out(static_cast<std::size_t>(n));
    std::iota(in.begin(), in.end(), me.rank() * 1000);
    Task t = task_of(Collective::reduce_scatter, DType::i64, n);
    t.in = bytes_of(in);
    t.out = bytes_of(out);
    run(t);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t want = ranks * (me.rank() * n + i) + 1000ll * ranks * (ranks - 1) / 2;
      require(out[static_cast<std::size_t>(i)] == want, "reduce_scatter");
    }
    t.op = Collective::all_to_all;
    t.out = bytes_of(in);
    std::vector<std::int64_t> from(in.size());
    std::iota(from.begin(), from.end(), me.rank() * 1000000);
    t.in = bytes_of(from);
    run(t);
    for (int r = 0; r < ranks; ++r) {
      for (int64_t i = 0; i < n; ++i) {
        require(in[static_cast<std::size_t>(r * n + i)] == r * 1000000 + me.rank() * n + i, "all_to_all");
      }
    }
    t.op = Collective::all_gather;
    std::vector<std::int64_t> mine(static_cast<std::size_t>(n), me.rank());
    t.in = bytes_of(mine);
    run(t);
    for (int64_t i = 0; i < n * ranks; ++i) require(in[static_cast<std::size_t>(i)] == i / n, "all_gather");
  }
  for (const int root : {0, ranks - 1, ranks / 2}) {
    std::vector<float> x = values(me.rank(), n);
    Task t = task_of(Collective::broadcast, DType::f32, n);
    t.in = t.out = bytes_of(x);
    t.peer = root;
    run(t);
    require(x == values(root, n), "broadcast");
  }
  run(task_of(Collective::barrier, DType::u8, 0));
}

bool fine(const SimResult& r) {
  for (const std::string& error : r.errors) {
    if (!error.empty()) MESSAGE(error);
    if (!error.empty()) return false;
  }
  return true;
}

TEST_CASE("every algorithm is right for any number of ranks, sizes around its limits, jitter and loss") {
  for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 13, 16}) {
    for (const int64_t n : {0, 1, 2, 7, 1024, 4096, 4099}) {
      CAPTURE(ranks);
      CAPTURE(n);
      const SimOptions options{
          .ranks = ranks, .link = {.jitter = 20, .loss = 0.05}, .seed = static_cast<std::uint64_t>(ranks * 100 + n)};
      CHECK(fine(simulate(options, [n](SimRank& me) { run_all(me, n); })));
    }
  }
  for (const int ranks : {2, 3, 4}) {  // several segments of 1 MiB
    CHECK(fine(simulate({.ranks = ranks, .link = {.jitter = 20}}, [](SimRank& me) { run_all(me, 1200007); })));
  }
}

TEST_CASE("order and bits of sums do not depend on the network") {
  for (const int ranks : {5, 8}) {
    std::vector<float> first;
    for (const std::uint64_t seed : {1u, 2u, 3u}) {
      std::vector<std::vector<float>> x;
      for (int r = 0; r < ranks; ++r) x.push_back(values(r, 9000));
      const SimResult r =
          simulate({.ranks = ranks, .link = {.jitter = 50, .loss = 0.1}, .seed = seed}, [&](SimRank& me) {
            Scratch scratch;
            Task t = task_of(Collective::all_reduce, DType::f32, 9000);
            t.in = t.out = bytes_of(x[static_cast<std::size_t>(me.rank())]);
            run_collective(me.transport(), t, 1, scratch);
          });
      CHECK(fine(r));
      for (const auto& one : x) CHECK(one == x[0]);
      if (first.empty()) first = x[0];
      CHECK(x[0] == first);
    }
  }
}

TEST_CASE("the tree of 16-bit elements rounds once over messages, too") {
  std::vector<std::vector<bf16>> x(4, std::vector<bf16>(3, bf16(0x1p-8f)));
  x[0].assign(3, bf16(1.f));
  x[3].assign(3, bf16(0.f));
  std::vector<std::vector<bf16>> slice(4, std::vector<bf16>(1));
  CHECK(fine(simulate({.ranks = 4}, [&](SimRank& me) {
    Scratch scratch;
    std::vector<bf16> in(4, x[static_cast<std::size_t>(me.rank())][0]);
    Task t = task_of(Collective::reduce_scatter, DType::bf16, 1);
    t.order = ReduceOrder::tree;
    t.in = bytes_of(in);
    t.out = bytes_of(slice[static_cast<std::size_t>(me.rank())]);
    run_collective(me.transport(), t, 1, scratch);
    t = task_of(Collective::all_reduce, DType::bf16, 3);
    t.order = ReduceOrder::tree;
    t.reduce = ReduceOp::average;
    t.in = t.out = bytes_of(x[static_cast<std::size_t>(me.rank())]);
    run_collective(me.transport(), t, 2, scratch);
  })));
  for (int r = 0; r < 4; ++r) {
    CHECK(static_cast<float>(slice[static_cast<std::size_t>(r)][0]) == 1.f + 0x1p-7f);
    CHECK(static_cast<float>(x[static_cast<std::size_t>(r)][2]) == (1.f + 0x1p-7f) / 4);
  }
}

TEST_CASE("a rank that is killed or stopped at any message ends all others with one verdict, which names it") {
  for (const int ranks : {2, 3, 5, 8}) {
    for (int64_t after = 0; after < (ranks == 2 ? 8 : 14); ++after) {
      for (const auto kind : {SimFault::Kind::kill, SimFault::Kind::stop}) {
        CAPTURE(ranks);
        CAPTURE(after);
        CAPTURE(static_cast<int>(kind));
        const int victim = static_cast<int>(after) % ranks;
        const SimResult r = simulate({.ranks = ranks,
                                      .link = {.jitter = 5},
                                      .seed = static_cast<std::uint64_t>(after),
                                      .faults = {{.kind = kind, .rank = victim, .after = after}}},
                                     [](SimRank& me) {
                                       run_all(me, 5000);
                                       me.compute(10);  // verdicts arrive
                                     });
        int told = 0;
        for (int k = 0; k < ranks; ++k) {
          if (k == victim) continue;
          const std::string& error = r.errors[static_cast<std::size_t>(k)];
          CHECK(error.find("rank " + std::to_string(victim) + " is ") != std::string::npos);
          CHECK(error.find("deadlock") == std::string::npos);
          told += error == r.errors[static_cast<std::size_t>(victim == 0 ? 1 : 0)] ? 1 : 0;
        }
        CHECK(told == ranks - 1);
        CHECK(r.seconds < 20);
      }
    }
  }
}

TEST_CASE("slow ranks and links that are down for a while delay the result and change nothing else") {
  const auto body = [](SimRank& me) {
    me.compute(0.5);
    run_all(me, 5000);
  };
  const SimResult plain = simulate({.ranks = 5}, body);
  const SimResult slow =
      simulate({.ranks = 5, .faults = {{.kind = SimFault::Kind::slow, .rank = 3, .seconds = 4}}}, body);
  const SimResult down = simulate(
      {.ranks = 5, .faults = {{.kind = SimFault::Kind::link_down, .rank = 1, .at = 0.5, .seconds = 2, .other = 2}}},
      body);
  CHECK(fine(plain));
  CHECK(fine(slow));
  CHECK(fine(down));
  CHECK(plain.seconds < 0.6);
  CHECK(slow.seconds > 2);
  CHECK(slow.seconds < 2.1);
  CHECK(down.seconds > 2.5);
  CHECK(down.seconds < 2.6);
  CHECK(plain.messages == down.messages);
}

TEST_CASE("a wait that nothing can end is reported as a deadlock, an endless one after the timeout") {
  const SimResult r = simulate({.ranks = 2, .timeout = INFINITY}, [](SimRank& me) {
    std::byte b{};
    me.transport().wait(me.transport().recv(1 - me.rank(), 1, &b, 1));
  });
  CHECK(r.errors[0] == "deadlock: rank 0 waits for rank 1 and nothing is under way");
  CHECK(r.errors[1] == "deadlock: rank 1 waits for rank 0 and nothing is under way");
  const SimResult late = simulate({.ranks = 2, .timeout = 7}, [](SimRank& me) {
    std::byte b{};
    if (me.rank() == 0) me.transport().wait(me.transport().recv(1, 1, &b, 1));
  });
  CHECK(late.errors[0] == "rank 1 sent no message for 7 s");
  CHECK(late.seconds == 7);
}

TEST_CASE("the simulated time of an all_reduce is that of its algorithm") {
  // Halving and doubling: 2 (R-1)/R of the bytes, 2 log2 R messages.
  const int64_t n = 1 << 20;
  const SimLink link{.latency = 1e-5, .bandwidth = 1e9};
  const auto body = [n](SimRank& me) {
    std::vector<float> x = values(me.rank(), n);
    Scratch scratch;
    Task t = task_of(Collective::all_reduce, DType::f32, n);
    t.in = t.out = bytes_of(x);
    run_collective(me.transport(), t, 1, scratch);
  };
  const SimResult r = simulate({.ranks = 8, .link = link}, body);
  const double wire = 2.0 * 7 / 8 * 4 * static_cast<double>(n) / 1e9;
  CHECK(r.seconds > wire);
  CHECK(r.seconds < wire * 1.02 + 20 * 1e-5);
  CHECK(r.bytes == 8 * 2 * 7 / 8 * 4 * n);
}

TEST_CASE("a thousand ranks vote in a few hundred simulated microseconds") {
  std::vector<std::uint8_t> got(1000);
  const SimResult r = simulate({.ranks = 1000, .link = {.jitter = 1}}, [&](SimRank& me) {
    std::vector<std::uint8_t> vote(64, static_cast<std::uint8_t>(me.rank() == 777 ? 9 : 1));
    Scratch scratch;
    Task t = task_of(Collective::all_reduce, DType::u8, 64);
    t.reduce = ReduceOp::max;
    t.in = t.out = bytes_of(vote);
    run_collective(me.transport(), t, 1, scratch);
    got[static_cast<std::size_t>(me.rank())] = vote[63];
  });
  CHECK(fine(r));
  CHECK(std::count(got.begin(), got.end(), 9) == 1000);
  CHECK(r.seconds < 500e-6);
  CHECK(r.messages < 12000);
}

TEST_CASE("a simulation is a function of its options") {
  const auto body = [](SimRank& me) { run_all(me, 333); };
  const SimOptions options{.ranks = 6, .link = {.jitter = 3, .loss = 0.1}, .seed = 42};
  CHECK(simulate(options, body).seconds == simulate(options, body).seconds);
  CHECK_THROWS_AS(static_cast<void>(simulate({.ranks = 0}, body)), ConfigError);
  CHECK_THROWS_AS(static_cast<void>(simulate({.ranks = 2, .link = {.loss = 1}}, body)), ConfigError);
  CHECK_THROWS_AS(static_cast<void>(simulate({.ranks = 2, .faults = {{.rank = 2}}}, body)), ConfigError);
}

}  // namespace
}  // namespace levin
