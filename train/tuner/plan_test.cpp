#include <doctest/doctest.h>

#include <algorithm>
#include <stdexcept>

#include "levin/memory.h"
#include "levin/train.h"
#include "tensor/memory/allocator.h"
#include "tensor/memory/size_class.h"
#include "train/run/fixture_test.h"
#include "train/tuner/fixture_test.h"

using namespace levin;

namespace {

struct PlannedMlp : TrainModuleOf<PlannedMlp> {
  using TrainModuleOf::TrainModuleOf;
  nn::Linear fc1{*this, "fc1", {.in = 64, .out = 512}};
  nn::Dropout drop{*this, "drop", {.p = 0.5}};
  nn::Linear fc2{*this, "fc2", {.in = 512, .out = 10}};
  Tensor operator()(const Tensor& x) const { return fc2(drop(relu(fc1(x)))); }
  StepOutput training_step(const Batch& b, std::int64_t) override {
    const Tensor y = (*this)(b[0]), loss = cross_entropy(y, b[1]);
    log("loss", loss, {.on_epoch = true});
    log("accuracy", accuracy(y, b[1]));
    return loss;
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::Adam>(parameters(), optim::AdamOptions{.lr = 0.01})}};
  }
  static Shape sample() { return {64}; }
};

struct PlannedCnn : TrainModuleOf<PlannedCnn> {
  using TrainModuleOf::TrainModuleOf;
  nn::Conv2d conv1{*this, "conv1", {.in = 3, .out = 16, .kernel = 3, .padding = 1}};
  nn::BatchNorm2d norm{*this, "norm", {.features = 16}};
  nn::Conv2d conv2{*this, "conv2", {.in = 16, .out = 32, .kernel = 3, .padding = 1}};
  nn::Linear fc{*this, "fc", {.in = 32 * 4 * 4, .out = 10}};
  StepOutput training_step(const Batch& b, std::int64_t) override {
    Tensor x = max_pool2d(relu(norm(conv1(b[0]))), 2);
    x = max_pool2d(relu(conv2(x)), 2);
    const Tensor loss = cross_entropy(fc(flatten(x, 1)), b[1]);
    log("loss", loss);
    return loss;
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.01, .momentum = 0.9})}};
  }
  static Shape sample() { return {3, 16, 16}; }
};

// Bytes in use at the peak of the steps after the first, beyond those before the module was made.
struct PeakOfSteps : Callback {
  std::int64_t peak = 0;
  void on_train_batch_end(const StepInfo& at) override {
    if (at.batch_idx > 0) peak = std::max(peak, memory_stats(Device::cpu()).peak);
    reset_peak_memory(Device::cpu());
  }
};

constexpr std::int64_t kBatch = 256, kBatches = 4;

data::DataLoader labelled(const Shape& sample) {
  Generator gen(2);
  std::vector<std::int64_t> sizes = {kBatch * kBatches};
  for (const std::int64_t n : sample) sizes.push_back(n);
  const Tensor x = randn(Shape(std::span<const std::int64_t>(sizes)), gen, Device::cpu());
  return data::DataLoader(data::tensor_dataset({x, randint(0, 10, {kBatch * kBatches}, gen, Device::cpu())}),
                          {.batch_size = kBatch});
}

// The bytes of buffers within MemoryPlan::parameters, as the allocator counts them.
std::int64_t plan_of_buffers(nn::Module& net) {
  std::int64_t sum = 0;
  for (const nn::BufferRef& b : net.buffers()) {
    const std::size_t bytes = static_cast<std::size_t>(b.value->numel()) * itemsize(b.value->dtype());
    if (bytes > detail::kInlineBytes) sum += static_cast<std::int64_t>(detail::size_class(bytes).bytes);
  }
  return sum;
}

Batch shapes_of(const Batch& b) {
  Batch out = b;
  for (Tensor& t : out.fields) t = t.to(Device::meta());
  return out;
}

// A plan counts the step's tensors by the allocator's sizes, and no kernel here allocates its own. So the two are equal
// except for the order in which threads of a pool release pieces, which a hundredth covers.
template <class Net>
void compare(const std::string& precision, std::int64_t accumulate) {
  CAPTURE(precision);
  CAPTURE(accumulate);
  data::DataLoader train = labelled(Net::sample());
  const std::int64_t before = memory_stats(Device::cpu()).in_use;
  Net net({.gen = Generator(1), .device = Device::cpu()});
  TrainerOptions options = test::silent();
  options.max_epochs = 1;
  options.precision = precision;
  options.accumulate_grad_batches = accumulate;
  options.gradient_clip_val = 1.0;
  const std::string weights = content_hash("", net.named_parameters().front().second);
  MemoryPlan plan;
  {
    Trainer trainer(options);
    plan = Tuner(trainer).plan_memory(net, shapes_of(*train.begin()), Device::cpu());
  }
  CHECK(content_hash("", net.named_parameters().front().second) == weights);
  CHECK(net.device() == Device::cpu());
  const auto peak = std::make_shared<PeakOfSteps>();
  options.callbacks = {peak};
  Trainer trainer(options);
  trainer.fit(net, {.train = train});
  const auto measured = static_cast<double>(peak->peak - before), planned = static_cast<double>(plan.peak);
  CHECK(planned <= measured);
  CHECK(planned >= 0.99 * measured);
  CHECK(plan.gradients == plan.parameters - plan_of_buffers(net));
  CHECK(plan.activations > plan.batch);
  CHECK(plan.peak >= plan.parameters + plan.gradients + plan.optimizer_state + plan.batch + plan.activations / 2);
}

}  // namespace

TEST_CASE("a second plan of the same trainer counts what the first did, to the byte") {
  data::DataLoader train = labelled(PlannedMlp::sample());
  PlannedMlp net({.gen = Generator(1), .device = Device::cpu()});
  Trainer trainer(test::silent());
  Tuner tuner(trainer);
  const Batch shapes = shapes_of(*train.begin());
  const MemoryPlan first = tuner.plan_memory(net, shapes, Device::meta());
  for (int again = 0; again < 2; ++again) {
    const MemoryPlan next = tuner.plan_memory(net, shapes, Device::meta());
    CHECK(next.peak == first.peak);
    CHECK(next.activations == first.activations);
    CHECK(next.batch == first.batch);
  }
}

TEST_CASE("the planned peak of a step is the measured one") {
  compare<PlannedMlp>("32-true", 1);
  compare<PlannedMlp>("bf16-mixed", 1);
  compare<PlannedMlp>("32-true", 2);
  compare<PlannedCnn>("32-true", 1);
  compare<PlannedCnn>("bf16-mixed", 1);
}

TEST_CASE("a module on meta is planned in exact bytes, or as another device counts") {
  const nn::Options on_meta{.gen = Generator(1), .device = Device::meta()};
  PlannedMlp net(on_meta);
  Trainer trainer(test::silent());
  Batch batch{.fields = {empty({8, 64}, Device::meta()), empty({8}, Device::meta(), DType::i64)},
              .indices = std::vector<std::int64_t>(8)};
  const MemoryPlan exact = Tuner(trainer).plan_memory(net, batch);
  const std::int64_t parameters = 4 * (64 * 512 + 512 + 512 * 10 + 10);
  CHECK(exact.parameters == parameters);
  CHECK(exact.gradients == parameters);
  CHECK(exact.optimizer_state == 2 * parameters);
  CHECK(exact.batch == 8 * 64 * 4 + 8 * 8);
  // cuda's allocator gives a quarter of a power of two more at most, and 256 bytes at least.
  const MemoryPlan rounded = Tuner(trainer).plan_memory(net, batch, Device::cuda());
  CHECK(rounded.parameters > parameters);
  CHECK(rounded.parameters <= parameters * 5 / 4 + 256);
  CHECK(net.fc1.weight.device().is_meta());
}

namespace {

// A step with 2000 floats a sample, which may read a value.
struct Hungry : TrainModuleOf<Hungry> {
  Hungry() : TrainModuleOf(test::kTuned) { tunable("batch_size", &batch_size); }
  nn::Linear up{*this, "up", {.in = 2, .out = 2000}};
  nn::Dropout drop{*this, "drop", {.p = 0.5}};
  data::DatasetRef samples = test::points(4096);
  std::int64_t batch_size = 1, planned = 0;
  std::vector<std::int64_t> run{};  // sizes of batches, once each
  bool reads = false;
  StepOutput training_step(const Batch& b, std::int64_t) override {
    if (b[0].device().is_meta())
      ++planned;
    else if (run.empty() || run.back() != b.size())
      run.push_back(b.size());
    const Tensor loss = mean(square(drop(tanh(up(b[0])))));
    if (reads && loss.item() < 0) throw std::domain_error("a mean of squares");
    return loss;
  }
  std::unique_ptr<data::DataLoader> train_loader() override {
    return std::make_unique<data::DataLoader>(samples, data::DataLoaderOptions{.batch_size = batch_size});
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
  }
};

}  // namespace

TEST_CASE("a size whose plan exceeds the memory is not run, and one that reads values is tried for real") {
  for (const bool reads : {false, true}) {
    CAPTURE(reads);
    const test::TemporaryFolder dir;
    const test::Warnings warnings;
    Hungry net;
    net.reads = reads;
    TrainerOptions options = test::silent();
    options.default_root_dir = dir.path();
    options.max_epochs = 1;
    options.memory_limit = memory_stats(Device::cpu()).in_use + 4'000'000;
    Trainer trainer(options);
    CHECK(memory_size(Device::cpu()) > *options.memory_limit);
    const auto found = Tuner(trainer).scale_batch_size(net);
    REQUIRE(found.has_value());
    CHECK(*found >= 32);
    CHECK(*found < 512);
    CHECK(warnings.count("I-TUNE-PLAN") == (reads ? 1 : 0));
    // With plans all sizes that were run fit; without plans the last one does not.
    CHECK(net.run.back() == (reads ? 2 * *found : *found));
    CHECK(net.planned == (reads ? 1 : 2 * (static_cast<std::int64_t>(net.run.size()) + 1)));
    CHECK(net.drop.is_training());
  }
}

TEST_CASE("a single sample whose plan exceeds the memory is an error that names both") {
  const test::TemporaryFolder dir;
  Hungry net;
  TrainerOptions options = test::silent();
  options.default_root_dir = dir.path();
  options.max_epochs = 1;
  options.memory_limit = memory_stats(Device::cpu()).in_use + 10'000;
  Trainer trainer(options);
  CHECK_THROWS_WITH_AS((void)Tuner(trainer).scale_batch_size(net, {.init_val = 1}), doctest::Contains("its plan, "),
                       OutOfMemoryError);
  CHECK(net.run.empty());
}

TEST_CASE("a plan of a step that throws leaves module and trainer as they were") {
  Hungry net;
  net.reads = true;
  Trainer trainer(test::silent());
  const std::vector<float> before = test::weights_of(net);
  const Batch batch = *test::loader(8, 8).begin();
  CHECK_THROWS_AS((void)Tuner(trainer).plan_memory(net, batch), UnsupportedError);
  CHECK(test::weights_of(net) == before);
  CHECK(net.up.weight.requires_grad());
  CHECK_FALSE(net.up.weight.grad().defined());
  CHECK(trainer.global_step() == 0);
  net.reads = false;
  CHECK(Tuner(trainer).plan_memory(net, batch).peak > 8 * 2000 * 4);
}
