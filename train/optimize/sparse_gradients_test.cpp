// Trainings of a table whose gradients are rows: recorded on a device, with loss scaling and clipping, and resumed.
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "levin/autograd.h"
#include "tests/device.h"
#include "tests/skip.h"
#include "tests/temporary.h"
#include "train/run/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(optim::Parameters)>;
template <class O, class Options>
MakeOptimizer make(Options options) {
  return [options](optim::Parameters p) { return std::make_unique<O>(std::move(p), options); };
}

struct Table : nn::Module {
  Table(bool sparse, nn::Options options)
      : Module(options), rows(*this, "rows", {.count = 40, .dim = 6, .sparse = sparse}) {}
  nn::Embedding rows;
};

struct How {
  Capture capture = Capture::off;
  std::string precision{};
  std::int64_t epochs = 3;
  std::string resume{}, save{};
};
struct Outcome {
  Tensor weight;
  Trainer::CaptureReport report;
  bool has_rows = false;
};

// Batches of 4, 4 and 2 samples, each of three rows; a row may be named twice.
Outcome run(Device device, bool sparse, const MakeOptimizer& kind, const How& how) {
  std::vector<std::int64_t> named;
  for (std::int64_t i = 0; i < 30; ++i) named.push_back((i * i) % 37);
  Generator gen(5);
  const Tensor targets = randn({10, 3, 6}, gen, Device::cpu());
  const auto data = data::tensor_dataset({from_data(named, {10, 3}, Device::cpu()), targets});
  data::DataLoader loader(data, {.batch_size = 4, .shuffle = true, .generator = Generator(9)});
  Table net(sparse, {.gen = Generator(3), .device = device});
  const auto optimizer = kind(net.parameters());
  TrainerOptions options = silent();
  options.max_epochs = how.epochs;
  options.gradient_clip_val = 0.5;
  options.precision = how.precision;
  options.capture = how.capture;
  Trainer trainer(options);
  trainer.fit(*optimizer, loader, [&](const Batch& b) { return mean(square(net.rows(b[0]) - b[1])); },
              {.ckpt_path = how.resume});
  if (!how.save.empty()) trainer.save_checkpoint(how.save);
  return {net.rows.weight.detach().to(Device::cpu()).clone(), trainer.capture_report(),
          row_grad(net.rows.weight).rows.defined()};
}

const MakeOptimizer sgd = make<optim::SGD>(optim::SGDOptions{.lr = 0.5});
const MakeOptimizer sparse_adam = make<optim::SparseAdam>(optim::SparseAdamOptions{.lr = 0.1});

TEST_CASE("a training of a sparse table is that of a dense one, and SparseAdam's resumes to the bit") {
  const TemporaryFolder dir;
  const Outcome rows = run(Device::cpu(), true, sgd, {}), dense = run(Device::cpu(), false, sgd, {});
  CHECK(allclose(rows.weight, dense.weight, 1e-6, 1e-7));  // the norms that clip add other zeros
  CHECK(rows.has_rows);
  const Outcome whole = run(Device::cpu(), true, sparse_adam, {.epochs = 4});
  (void)run(Device::cpu(), true, sparse_adam, {.epochs = 2, .save = dir / "cut.safetensors"});
  const Outcome resumed = run(Device::cpu(), true, sparse_adam, {.epochs = 4, .resume = dir / "cut.safetensors"});
  CHECK(equal(whole.weight, resumed.weight));
  CHECK_FALSE(equal(whole.weight, rows.weight));
}

TEST_CASE("on a device, steps with gradients of rows are recorded, and their replays are the eager steps to the bit") {
  DEVICE_OR_SKIP();
  for (const auto* kind : {&sgd, &sparse_adam}) {
    for (const char* precision : {"32-true", "16-mixed"}) {
      CAPTURE(precision);
      const Outcome eager = run(device, true, *kind, {.precision = precision});
      const Outcome replayed = run(device, true, *kind, {.capture = Capture::step, .precision = precision});
      CHECK(equal(eager.weight, replayed.weight));
      CHECK(replayed.report.replayed > 0);
      CHECK(replayed.report.prevented_by == "");
    }
  }
}

}  // namespace
