#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "levin/train.h"
#include "tests/skip.h"
#include "tests/warnings.h"
#include "train/run/fixture_test.h"

using namespace levin;

namespace {

constexpr std::int64_t kSamples = 19;  // in batches of 8: 8, 8, 3

// Returns a sum of squared errors and its weight: the number of samples, or the sum of a second target.
struct Summed : TrainModuleOf<Summed> {
  explicit Summed(Device device) : TrainModuleOf({.gen = Generator(3), .device = device}) {}
  nn::Linear fc1{*this, "fc1", {.in = 2, .out = 8}};
  nn::Linear fc2{*this, "fc2", {.in = 8, .out = 1}};
  bool by_tokens = false, adam = false, alone = false, manual = false;
  std::vector<double> losses{};

  StepOutput training_step(const Batch& b, std::int64_t) override {
    const Tensor errors = square(fc2(tanh(fc1(b[0]))) - b[1]);
    if (alone) return mean(errors);
    if (!by_tokens) return StepOutput::sum(sum(errors), static_cast<double>(b.size()));
    const Tensor weights = square(b[1]);
    return StepOutput::sum(sum(errors * weights), sum(weights));
  }
  void on_train_batch_end(const StepInfo& info) override { losses.push_back(info.loss.item()); }
  bool automatic_optimization() const override { return !manual; }
  OptimizerConfig configure_optimizers() override {
    if (adam) return {.optimizers = {std::make_shared<optim::Adam>(parameters(), optim::AdamOptions{.lr = 0.02})}};
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1, .momentum = 0.9})}};
  }
};

data::DataLoader in_batches_of(std::int64_t n) { return data::DataLoader(test::points(kSamples), {.batch_size = n}); }

TrainerOptions exactly(std::int64_t window, std::int64_t epochs = 5) {
  TrainerOptions options = test::silent();
  options.max_epochs = epochs;
  options.accumulate_grad_batches = window;
  options.accumulate_weighting = AccumulateWeighting::exact;
  return options;
}

std::vector<float> trained(Summed& net, const TrainerOptions& options, std::int64_t batch) {
  data::DataLoader train = in_batches_of(batch);
  Trainer trainer(options);
  trainer.fit(net, {.train = train});
  CHECK(trainer.global_step() == options.max_epochs.value());
  CHECK(trainer.skipped_steps() == 0);
  return test::weights_of(net);
}

double greatest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(double(a[i]) - double(b[i])));
  return most;
}

// Both sum the same 19 terms of order 1 in another order, so a gradient differs by 19 eps at most. Each of 5 steps
// moves a weight by lr / (1 - momentum) times that.
double sgd_tolerance(double eps) { return 5 * 19 * eps; }
constexpr double kEps = std::numeric_limits<float>::epsilon();

}  // namespace

TEST_CASE("with exact weighting a ragged window of 8, 8 and 3 samples is one batch of 19") {
  for (const bool by_tokens : {false, true}) {
    for (const bool clips : {false, true}) {
      CAPTURE(by_tokens);
      CAPTURE(clips);
      TrainerOptions ragged = exactly(3), whole = exactly(1);
      if (clips) ragged.gradient_clip_val = whole.gradient_clip_val = 0.25;  // below the norm of the first steps
      Summed a(Device::cpu()), b(Device::cpu()), c(Device::cpu());
      a.by_tokens = b.by_tokens = c.by_tokens = by_tokens;
      const std::vector<float> in_windows = trained(a, ragged, 8), at_once = trained(b, whole, kSamples);
      CHECK(greatest_difference(in_windows, at_once) < sgd_tolerance(kEps));
      // The reported losses are the batches' means.
      CHECK(a.losses.size() == 15);
      if (!by_tokens)
        CHECK((8 * a.losses[0] + 8 * a.losses[1] + 3 * a.losses[2]) / 19 ==
              doctest::Approx(b.losses[0]).epsilon(19 * kEps));
      // Equal weights of batches give another result.
      ragged.accumulate_weighting = AccumulateWeighting::per_batch;
      CHECK(greatest_difference(trained(c, ragged, 8), at_once) > 1e-3);
    }
  }
}

TEST_CASE("without a window exact weighting is the mean loss, and a weight serves the usual weighting too") {
  Summed a(Device::cpu()), b(Device::cpu()), c(Device::cpu());
  b.alone = true;
  TrainerOptions usual = exactly(1);
  usual.accumulate_weighting = AccumulateWeighting::per_batch;
  const std::vector<float> mean = trained(b, usual, kSamples);
  CHECK(greatest_difference(trained(a, exactly(1), kSamples), mean) < sgd_tolerance(kEps));
  CHECK(greatest_difference(trained(c, usual, kSamples), mean) < sgd_tolerance(kEps));
}

TEST_CASE("on a device a window is weighed exactly under a loss scale: unscaling and division are one") {
  if (device_count(DeviceType::simt) == 0) return test::skip("no device that launches kernels");
  for (const bool clips : {false, true}) {
    CAPTURE(clips);
    TrainerOptions ragged = exactly(3, 3), whole = exactly(1, 3);
    ragged.precision = whole.precision = "16-mixed";
    // Small enough for sums of 19 in f16, because a skipped step proves nothing.
    ragged.grad_scaler = whole.grad_scaler = optim::GradScalerOptions{.init_scale = 64};
    if (clips) ragged.gradient_clip_val = whole.gradient_clip_val = 0.25;
    Summed a(Device::simt()), b(Device::simt());
    const std::vector<float> at_once = trained(b, whole, kSamples);
    constexpr double kHalf = 0x1p-10;  // of f16: gradients of products are rounded to it, batch by batch
    CHECK(greatest_difference(trained(a, ragged, 8), at_once) < sgd_tolerance(kHalf));
    // As without a loss scale: a division that is made twice or never is far off.
    Summed c(Device::cpu());
    TrainerOptions plain = exactly(1, 3);
    plain.gradient_clip_val = whole.gradient_clip_val;
    CHECK(greatest_difference(trained(c, plain, kSamples), at_once) < sgd_tolerance(kHalf));
  }
}

TEST_CASE("a run that is cut inside an exact window resumes with its weight, bit for bit") {
  const test::TemporaryFolder dir;
  const std::string path = dir / "open.safetensors";
  Summed whole(Device::cpu());
  whole.adam = true;
  const std::vector<float> expected = trained(whole, exactly(3), 8);

  struct SaveInWindow : Callback {
    std::string path;
    void on_train_batch_end(const StepInfo& info) override {
      if (info.epoch == 1 && info.batch_idx == 1) trainer().save_checkpoint(path);
    }
  };
  const auto save = std::make_shared<SaveInWindow>();
  save->path = path;
  TrainerOptions cut = exactly(3, 2);
  cut.callbacks = {save};
  Summed first(Device::cpu());
  first.adam = true;
  (void)trained(first, cut, 8);

  Summed second(Device::cpu());
  second.adam = true;
  data::DataLoader train = in_batches_of(8);
  Trainer trainer(exactly(3));
  trainer.fit(second, {.train = train, .ckpt_path = path});
  CHECK(test::weights_of(second) == expected);

  TrainerOptions other = exactly(3);
  other.accumulate_weighting = AccumulateWeighting::per_batch;
  Trainer unweighed(other);
  CHECK_THROWS_WITH_AS(unweighed.fit(second, {.train = train, .ckpt_path = path}),
                       doctest::Contains("accumulate_weighting was exact"), ConfigError);
}

TEST_CASE("a window whose batches weigh nothing changes no weight") {
  Summed net(Device::cpu());
  net.by_tokens = true;
  const std::vector<float> before = test::weights_of(net);
  const Tensor zero = zeros({4, 1}, Device::cpu());
  data::DataLoader train(data::tensor_dataset({ones({4, 2}, Device::cpu()), zero}), {.batch_size = 2});
  Trainer trainer(exactly(2, 1));
  trainer.fit(net, {.train = train});
  CHECK(test::weights_of(net) == before);
}

TEST_CASE("exact weighting says what it lacks, and prevents capture by name") {
  data::DataLoader train = in_batches_of(8);
  Summed alone(Device::cpu()), manual(Device::cpu());
  alone.alone = true;
  manual.manual = true;
  Trainer a(exactly(3)), b(exactly(1));
  CHECK_THROWS_WITH_AS(a.fit(alone, {.train = train}), doctest::Contains("StepOutput::sum(sum, weight)"), ConfigError);
  CHECK_THROWS_WITH_AS(b.fit(manual, {.train = train}), doctest::Contains("accumulate_weighting is exact"),
                       ConfigError);
  CHECK_THROWS_AS((void)StepOutput::sum(zeros({2}, Device::cpu()), 1), ShapeError);
  CHECK_THROWS_AS((void)StepOutput::sum(zeros({}, Device::cpu()), zeros({}, Device::meta())), DeviceError);
  if (device_count(DeviceType::simt) == 0) return;
  const test::Warnings warnings;
  Summed net(Device::simt());
  TrainerOptions options = exactly(1, 1);
  options.capture = Capture::step;
  Trainer captured(options);
  captured.fit(net, {.train = train});
  CHECK(captured.capture_report().prevented_by.find("accumulate_weighting is exact") == 0);
}

TEST_CASE("divide_gradients_ divides gradients of every dtype by a number in the device's memory") {
  std::vector<Device> devices = {Device::cpu()};
  if (device_count(DeviceType::simt) > 0) devices.push_back(Device::simt());
  for (const Device device : devices) {
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      CAPTURE(device.is_cpu());
      Tensor p = zeros({700}, device, dtype), none = zeros({3}, device, dtype);
      p.requires_grad_();
      none.requires_grad_();
      p.set_grad(full({700}, 6.0, device, dtype));
      optim::divide_gradients_({{&p, "p"}, {&none, "none"}}, full({}, 4.0, device, DType::f64));
      CHECK(p.grad().to(DType::f64).to_vector<double>() == std::vector<double>(700, 1.5));
      CHECK_FALSE(none.grad().defined());
      CHECK_THROWS_AS(optim::divide_gradients_({{&p, "p"}}, full({}, 4.0, device)), ShapeError);
    }
  }
}
