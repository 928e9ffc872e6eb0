// Which launches a step makes, and what they read and write.
#include "tensor/device/launch_ledger.h"

#include <doctest/doctest.h>

#include "levin/extend.h"
#include "levin/levin.h"
#include "tensor/device/runtime.h"
#include "tests/skip.h"
using namespace levin;
using levin::detail::LaunchLedger;
using levin::detail::LedgerCall;

namespace {
const Device kSimt = Device::simt();

struct Ledger : LaunchLedger {
  Ledger() { detail::mode().detour = true; }
};
Tensor numbers(Shape shape) {
  Generator gen(1);
  return rand(std::move(shape), gen, kSimt);
}
}  // namespace

TEST_CASE("simt: a ledger names ops and the lines that launch them, of the innermost op") {
  const Tensor x = numbers({4, 64});
  Ledger ledger;
  (void)softmax(relu(x), 1);
  const std::vector<LedgerCall> calls = ledger.take();
  REQUIRE(calls.size() == 2);
  CHECK(calls[0].op == "relu");
  CHECK(calls[1].op == "softmax");
  REQUIRE(calls[1].launches.size() == 1);
  CHECK(calls[1].launches[0].place.starts_with("softmax.cuh:"));
  CHECK(ledger.take().empty());
  (void)relu(x);
  CHECK(ledger.take().size() == 1);
}

TEST_CASE("simt: a ledger that lives over a recording and a replay enters what the replay runs") {
  const Tensor x = numbers({64});
  Tensor y;
  Ledger ledger;
  Graph graph(Stream::current(kSimt), [&] { y = relu(x + 1); });
  graph.replay();
  const std::vector<LedgerCall> calls = ledger.take();
  REQUIRE(calls.size() == 2);
  CHECK(calls[0].launches.size() == 1);
  CHECK(calls[1].launches.size() == 1);
  CHECK(graph.nodes() == 2);
}

TEST_CASE(
    "simt: a ledger counts each sector that a launch reads or writes once, and in `least` each byte that is needed") {
  std::byte* const x = detail::ledger_allocate(4096);
  std::byte* const y = detail::ledger_allocate(4096);
  const auto launch = [](auto work) { detail::runtime::enqueue(Stream::current(kSimt), work); };
  const auto read = [](const std::byte* p, std::size_t bytes) { detail::ledger_read(p, bytes); };
  const auto write = [](const std::byte* p, std::size_t bytes) { detail::ledger_write(p, bytes); };
  Ledger ledger;
  // x is a value that outlives the step: read, then written. Half of it is read twice, 4 bytes at a time.
  launch([=] {
    for (int i = 0; i < 4096; i += 4) read(x + i, 4);
    for (int i = 0; i < 2048; i += 4) read(x + i, 4);
    write(x + 64, 96);
  });
  ledger.next_call();
  // A column of y, which the next call reads; y + 4 is scratch memory, read by its own call alone.
  launch([=] {
    for (int i = 0; i < 4096; i += 128) write(y + i, 8);
  });
  launch([=] {
    for (int i = 0; i < 4096; i += 128) read(y + i + 4, 4);
  });
  ledger.next_call();
  launch([=] {
    for (int i = 0; i < 4096; i += 128) read(y + i, 4);
    write(y + 30, 4);  // across the border of two sectors; nothing reads it
  });
  detail::ledger_read(x, 32);  // outside of a launch
  const std::vector<LedgerCall> calls = ledger.take();
  REQUIRE(calls.size() == 3);
  const auto sums = [](const detail::LedgerLaunch& l) { return std::vector{l.read, l.written, l.asked}; };
  CHECK(sums(calls[0].launches[0]) == std::vector<std::int64_t>{4096, 96, 4096 + 2048 + 96});
  CHECK(calls[0].least == 4096 + 96);
  REQUIRE(calls[1].launches.size() == 2);
  CHECK(sums(calls[1].launches[0]) == std::vector<std::int64_t>{0, 32 * 32, 32 * 8});
  CHECK(sums(calls[1].launches[1]) == std::vector<std::int64_t>{32 * 32, 0, 32 * 4});
  CHECK(calls[1].least == 32 * 4);
  CHECK(sums(calls[2].launches[0]) == std::vector<std::int64_t>{32 * 32, 64, 32 * 4 + 4});
  CHECK(calls[2].least == 32 * 4 + 4);
  detail::ledger_release(x, 4096);
  detail::ledger_release(y, 4096);
}

TEST_CASE("simt: a build that counts bytes sees each access of a kernel") {
  if (!LaunchLedger::counts_bytes()) return test::skip("this build counts no bytes (-Dledger=true)");
  const Tensor x = numbers({1 << 18});
  Ledger ledger;
  (void)relu(x);
  (void)sum(x);
  const std::vector<LedgerCall> calls = ledger.take();
  const std::int64_t bytes = 4 * x.numel();
  REQUIRE(calls.size() == 2);
  CHECK(calls[0].launches[0].read == bytes);
  CHECK(calls[0].launches[0].written == bytes);
  CHECK(calls[0].launches[0].asked == 2 * bytes);
  CHECK(calls[0].least == 2 * bytes);
  REQUIRE(calls[1].launches.size() == 2);
  CHECK(calls[1].launches[0].written > 4);
  CHECK(calls[1].launches[0].written == calls[1].launches[1].read);  // scratch memory
  CHECK(calls[1].least == bytes + 4);
}

TEST_CASE("simt: what a step launches outside of ops, between two ops, is one call, and a phase ends it") {
  Tensor w = numbers({64});
  w.requires_grad_();
  w.set_grad(numbers({64}));
  optim::AdamW opt({{&w, "w", nullptr}}, {.lr = 0.1});
  opt.step();
  Ledger ledger;
  opt.step();
  ledger.next_call();
  opt.step();
  const std::vector<LedgerCall> calls = ledger.take();
  REQUIRE(calls.size() == 2);
  CHECK(calls[0].op.empty());
  CHECK(calls[0].launches.size() == calls[1].launches.size());
}

TEST_CASE("simt: a ledger names the module whose call is under way, also in its backward") {
  Generator gen(1);
  nn::Sequential net({.gen = gen, .device = kSimt});
  net.add<nn::Linear>({.in = 8, .out = 4});
  Ledger ledger;
  backward(sum(net(numbers({2, 8}))));
  bool forward = false, back = false;
  std::string seen;
  for (const LedgerCall& c : ledger.take()) {
    seen += c.op + " in \"" + c.module + "\"\n";
    forward |= c.op == "linear" && c.module == "0";
    back |= c.op == "linear_parameters_backward" && c.module == "0";
  }
  INFO(seen);
  CHECK(forward);
  CHECK(back);
}
