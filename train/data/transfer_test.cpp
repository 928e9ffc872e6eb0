// Batches on their way to a device: on a stream of their own, in order with the steps, and into recorded steps.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>

#include "levin/stream.h"
#include "levin/sync.h"
#include "tests/device.h"
#include "tests/skip.h"
#include "tests/warnings.h"
#include "train/data/transfer.h"
#include "train/run/fixture_test.h"
#include "train/run/probe_test.h"

using namespace levin;

namespace {

struct Learner : TrainModuleOf<Learner> {
  using TrainModuleOf::TrainModuleOf;
  test::Net net{*this, "net"};
  std::int64_t on_device = 0;
  StepOutput training_step(const Batch& b, std::int64_t) override {
    on_device += b[0].device().launches() && b[1].device().launches();
    return test::squared_error(net(b[0]), b[1]);
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.05})}};
  }
};
// Copies in the way of a user's own hook: on the stream of the steps.
struct ByHook : TrainModuleOf<ByHook, Learner> {
  using TrainModuleOf::TrainModuleOf;
  Batch transfer_batch_to_device(Batch batch, Device device) override {
    return train::move_batch(std::move(batch), device);
  }
};

struct Choice {
  bool pinned = false, captured = false;
  int workers = 0;
};
template <class Net>
std::vector<float> trained(Device device, Choice c) {
  Net net({.gen = Generator(3), .device = device});
  data::DataLoader loader(
      test::points(64),
      {.batch_size = 4, .shuffle = true, .num_workers = c.workers, .pin_memory = c.pinned, .generator = Generator(9)});
  TrainerOptions options = test::epochs(2);
  options.log_every_n_steps = 0;
  options.sync_budget = 0;  // a step that makes the host wait throws
  if (c.captured) options.capture = Capture::step;
  Trainer trainer(options);
  trainer.fit(net, {.train = loader});
  CHECK(trainer.global_step() == 32);
  if (c.captured) CHECK(trainer.capture_report().replayed > 20);
  return test::weights_of(net);
}

}  // namespace

TEST_CASE(
    "batches that travel beside the steps of a device train the same bits as batches copied in the step's stream") {
  DEVICE_OR_SKIP();
  const std::vector<float> expected = trained<ByHook>(device, {});
  for (const bool further : {false, true}) {
    // A further stream of simt does its work late: at the end, after the loader has written its memory many times.
    const StreamGuard guard(further ? Stream::next_of(device) : Stream::default_of(device));
    for (const bool captured : {false, true}) {
      for (const bool pinned : {false, true}) {
        for (const int workers : {0, 1}) {
          CAPTURE(further);
          CAPTURE(captured);
          CAPTURE(pinned);
          CAPTURE(workers);
          CHECK(trained<Learner>(device, {pinned, captured, workers}) == expected);
        }
      }
    }
  }
}

TEST_CASE("steps of a device that do not wait for their batches would be found") {
  DEVICE_OR_SKIP();
  if (device.is_cuda()) return test::skip("on a GPU a missing wait shows by chance");
  struct Planted {
    Planted() { train::forget_arrivals = true; }
    ~Planted() { train::forget_arrivals = false; }
  } const planted;
  const test::Warnings warnings;  // of a loss that is NaN
  const std::vector<float> weights = trained<Learner>(device, {});
  bool wrong = false;
  for (const float w : weights) wrong = wrong || std::isnan(w);
  CHECK(wrong);
}

TEST_CASE("a recorded step of a device gets its batch from the host, without a copy within the device") {
  DEVICE_OR_SKIP();
  const Device cpu = Device::cpu();
  const Tensor x = arange(6, cpu, DType::f32), y = arange(6, cpu, DType::f32) * 10;
  for (const bool pinned : {false, true}) {
    const Tensors into{zeros({6}, device), zeros({6}, device)};
    Batch batch{.fields = {pinned ? x.pin_memory() : x, pinned ? y.pin_memory() : y}};
    train::Transfer transfer;
    {
      SyncLedger ledger;
      const SyncGuard forbid(ledger, SyncCheck::forbid);
      transfer.move(batch, device, &into);
    }
    CHECK(batch[0].shares_storage(into[0]));
    CHECK(batch[1].shares_storage(into[1]));
    CHECK(into[0].to_vector<float>() == x.to_vector<float>());
    CHECK(into[1].to_vector<float>() == y.to_vector<float>());
    // What the steps have so far reads the old values.
    const Tensor before = into[0] + 1;
    Batch next{.fields = {y, x}};
    transfer.move(next, device, &into);
    CHECK(before.to_vector<float>() == (x + 1).to_vector<float>());
    CHECK(into[0].to_vector<float>() == y.to_vector<float>());
  }
}

TEST_CASE("a recorded step of a device gets channels-last images from the host in its own memory format") {
  DEVICE_OR_SKIP();
  const Tensor x = reshape(arange(120, Device::cpu(), DType::f32), {2, 3, 4, 5});
  for (const MemoryFormat from : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    for (const MemoryFormat to : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      const Tensors into{empty(x.shape(), device, DType::f32, to)};
      Batch batch{.fields = {x.contiguous(from)}};
      train::Transfer transfer;
      transfer.move(batch, device, &into);
      CHECK(batch[0].shares_storage(into[0]));
      CHECK(equal(into[0].to(Device::cpu()), x));
    }
  }
}

TEST_CASE("fields that record gradients, and fields on the device, stay as they are on the way to a device") {
  DEVICE_OR_SKIP();
  Tensor w = ones({3}, Device::cpu());
  w.requires_grad_();
  const Tensor there = ones({3}, device);
  Batch batch{.fields = {w, there, Tensor(), arange(3, Device::cpu(), DType::f32)}};
  train::Transfer transfer;
  transfer.move(batch, device, nullptr);
  CHECK(batch.fields[0].device().is_cpu());
  CHECK(batch.fields[1].shares_storage(there));
  CHECK_FALSE(batch.fields[2].defined());
  CHECK(batch.fields[3].device() == device);
  CHECK((batch.fields[3] + there).to_vector<float>() == std::vector<float>{1, 2, 3});
}
