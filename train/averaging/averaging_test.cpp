#include "levin/train/averaging.h"

#include <doctest/doctest.h>

#include <cmath>
#include <stdexcept>

#include "levin/stream.h"
#include "tests/device.h"
#include "train/run/fixture_test.h"

namespace levin {
namespace {

const Device cpu = Device::cpu();
std::vector<Device> devices() {
  std::vector<Device> all{cpu};
  if (const auto there = test::launching_device()) all.push_back(*there);
  return all;
}

// A weight [3], a floating buffer [3] and a count.
struct Tiny : nn::Module {
  explicit Tiny(Device device, DType dtype = DType::f32)
      : Module({.gen = Generator(1), .device = device, .dtype = dtype}),
        weight(*this, "weight", zeros({3}, device, dtype)),
        mean(*this, "mean", zeros({3}, device, dtype)),
        count(*this, "count", zeros({}, device, DType::i64)),
        scratch(*this, "scratch", zeros({2}, device, dtype), nn::Persistent::no) {}
  void set(double x) {
    const NoGrad off;
    fill_(weight, x);
    fill_(mean, 10 * x);
    fill_(count, static_cast<std::int64_t>(x));
    fill_(scratch, -x);
  }
  nn::Parameter weight;
  nn::Buffer mean, count, scratch;
};

double value(const Tensor& x) {
  const std::vector<double> all = x.detach().to(DType::f64).to_vector<double>();
  for (const double v : all) CHECK(v == all[0]);
  return all[0];
}
double value(const NamedTensors& state, const std::string& name) {
  for (const auto& [key, t] : state) {
    if (key == name) return value(t);
  }
  FAIL("the state has no " << name);
  return 0;
}
// The error of three factors and products in f32 of numbers up to 6.
constexpr double kTolerance = 3 * 0x1p-23 * 6;

// The averages of the weight after each of the values.
std::vector<double> follow(Device device, AveragedModelOptions options, const std::vector<double>& values) {
  Tiny net(device);
  AveragedModel average(net, std::move(options));
  std::vector<double> out;
  for (const double x : values) {
    net.set(x);
    average.update(net);
    out.push_back(value(average.state(), "module.weight"));
    CHECK(value(net.weight) == x);
  }
  CHECK(average.n_averaged() == static_cast<std::int64_t>(values.size()));
  return out;
}
void check_close(const std::vector<double>& got, const std::vector<double>& want) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - want[i]) <= kTolerance);
}

struct WithNorms : nn::Module {
  explicit WithNorms(Device device) : Module({.gen = Generator(3), .device = device}) {}
  nn::Linear fc{*this, "fc", {.in = 2, .out = 4}};
  nn::BatchNorm1d norm{*this, "norm", {.features = 4, .momentum = 0.3}};
  nn::BatchNorm1d untracked{*this, "untracked", {.features = 4, .track_running_stats = false}};
  Tensor operator()(const Tensor& x) const { return untracked(norm(fc(x))); }
};

}  // namespace

TEST_CASE("weights 1, 2, 6 average to 3, and with a decay of one half to 1, 1.5, 3.75") {
  for (const Device device : devices()) {
    CAPTURE(text(device));
    check_close(follow(device, {}, {1, 2, 6}), {1, 1.5, 3});
    check_close(follow(device, {.avg_fn = swa_avg()}, {1, 2, 6}), {1, 1.5, 3});
    check_close(follow(device, {.avg_fn = ema_avg(0.5)}, {1, 2, 6}), {1, 1.5, 3.75});
    check_close(follow(device, {.device = cpu, .avg_fn = ema_avg(0.5)}, {1, 2, 6}), {1, 1.5, 3.75});
    // The first update copies, for any decay.
    check_close(follow(device, {.avg_fn = ema_avg(1)}, {1, 2, 6}), {1, 1, 1});
  }
  CHECK_THROWS_AS((void)ema_avg(-0.1), ConfigError);
  CHECK_THROWS_WITH_AS((void)ema_avg(1.5), doctest::Contains("expected 0 to 1"), ConfigError);
  CHECK_THROWS_AS((void)ema_avg(std::nan("")), ConfigError);
}

TEST_CASE("an average follows a function of one tensor, or of all at once") {
  for (const Device device : devices()) {
    std::vector<std::int64_t> counts;
    const auto largest = [&](const Tensor& average, const Tensor& x, std::int64_t n) {
      counts.push_back(n);
      return maximum(average, x);
    };
    CHECK(follow(device, {.avg_fn = largest}, {4, 2, 6}) == std::vector<double>{4, 4, 6});
    CHECK(counts == std::vector<std::int64_t>{1, 2});
    const auto sum = [](const Tensors& averages, const Tensors& values, std::int64_t) {
      REQUIRE(averages.size() == 1);  // buffers are copied
      Tensor a = averages[0];
      add_(a, values[0]);
    };
    CHECK(follow(device, {.multi_avg_fn = sum}, {4, 2, 6}) == std::vector<double>{4, 6, 12});
  }
  const auto wrong = [](const Tensor& average, const Tensor&, std::int64_t) { return average.to(DType::f64); };
  CHECK_THROWS_WITH_AS(follow(cpu, {.avg_fn = wrong}, {1, 2}), doctest::Contains("avg_fn returned"), DTypeError);
  const auto small = [](const Tensor& average, const Tensor&, std::int64_t) { return sum(average); };
  CHECK_THROWS_AS(follow(cpu, {.avg_fn = small}, {1, 2}), ShapeError);
}

TEST_CASE("buffers are copied at each update, or averaged where they are floats; counts are copied") {
  for (const Device device : devices()) {
    for (const bool use_buffers : {false, true}) {
      Tiny net(device);
      AveragedModel average(net, {.use_buffers = use_buffers});
      for (const double x : {1, 2, 6}) {
        net.set(x);
        average.update(net);
      }
      CHECK(std::abs(value(average.state(), "module.mean") - (use_buffers ? 30 : 60)) <= 10 * kTolerance);
      CHECK(value(average.state(), "module.count") == 6);
    }
  }
}

TEST_CASE("averages of 16 bits keep changes that 16 bits would lose, and the module gets them rounded") {
  for (const Device device : devices()) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      CAPTURE(text(dtype));
      Tiny net(device, dtype);
      net.set(1);
      AveragedModel average(net, {.avg_fn = ema_avg(0.999)});
      average.update(net);
      net.set(2);
      double want = 1;
      for (int i = 0; i < 100; ++i) {
        average.update(net);
        want = 0.999 * want + 0.001 * 2;
      }
      CHECK(average.state()[1].second.dtype() == DType::f32);
      CHECK(value(average.state(), "module.weight") == doctest::Approx(want).epsilon(100 * 0x1p-23));
      {
        const auto swapped = average.swap_into(net);
        CHECK(net.weight.dtype() == dtype);
        CHECK(value(net.weight) == doctest::Approx(want).epsilon(0x1p-8));
      }
      average.copy_to(net);
      CHECK(net.weight.dtype() == dtype);
      CHECK(value(net.weight) == doctest::Approx(want).epsilon(0x1p-8));
    }
  }
}

TEST_CASE("in the scope of a swap the module is the average, and afterwards what it was, gradients too") {
  for (const Device device : devices()) {
    for (const Device where : {cpu, device}) {
      Tiny net(device);
      AveragedModel average(net, {.device = where});
      for (const double x : {1, 3}) {
        net.set(x);
        average.update(net);
      }
      net.weight.set_grad(full({3}, 7, device));
      const auto* live = net.weight.impl();
      const std::uint32_t version = net.weight.version();
      try {
        const auto swapped = average.swap_into(net);
        CHECK(value(net.weight) == 2);
        CHECK(net.weight.device() == device);
        CHECK(!net.weight.requires_grad());
        CHECK(value(net.weight.grad()) == 7);  // of an open window, for a checkpoint
        fill_(net.mean, 50);                   // as statistics estimated for the average
        CHECK_THROWS_WITH_AS(average.update(net), doctest::Contains("swapped"), StateError);
        CHECK_THROWS_AS(average.load(average.state()), StateError);
        throw std::runtime_error("a validation that fails");
      } catch (const std::runtime_error&) {}
      CHECK(net.weight.impl() == live);
      CHECK(net.weight.version() == version);
      CHECK(value(net.weight) == 3);
      CHECK(value(net.weight.grad()) == 7);
      CHECK(value(net.mean) == 30);
      CHECK(value(average.state(), "module.mean") == 50);
      average.update(net);
      CHECK(average.n_averaged() == 3);
    }
  }
}

TEST_CASE("copying an average into the module keeps the module's tensors where they are") {
  for (const Device device : devices()) {
    for (const Device where : {cpu, device}) {
      Tiny net(device);
      AveragedModel average(net, {.device = where});
      for (const double x : {1, 3}) {
        net.set(x);
        average.update(net);
      }
      const Tensor same = net.weight.detach();
      average.copy_to(net);
      CHECK(value(same) == 2);
      CHECK(value(net.mean) == 30);
      CHECK(value(net.count) == 3);
      CHECK(value(net.scratch) == -3);
      net.set(5);
      CHECK(value(average.state(), "module.weight") == 2);
    }
  }
}

TEST_CASE("an average resumes from its state with the same bits, under PyTorch's names") {
  for (const Device device : devices()) {
    Tiny net(device);
    AveragedModel whole(net, {.avg_fn = ema_avg(0.3)}), part(net, {.avg_fn = ema_avg(0.3)});
    net.set(1);
    whole.update(net);
    net.set(0.7);
    whole.update(net);
    NamedTensors state;
    std::vector<std::string> names;
    for (const auto& [name, t] : whole.state()) {
      names.push_back(name);
      state.emplace_back(name, t.clone().to(cpu));
    }
    CHECK(names == std::vector<std::string>{"n_averaged", "module.weight", "module.mean", "module.count"});
    part.load(state);
    CHECK(part.n_averaged() == 2);
    net.set(0.1);
    whole.update(net);
    part.update(net);
    for (std::size_t i = 0; i < names.size(); ++i) CHECK(equal(whole.state()[i].second, part.state()[i].second));

    NamedTensors wrong = state;
    wrong[1].second = zeros({4}, cpu);
    CHECK_THROWS_WITH_AS(part.load(wrong), doctest::Contains("module.weight"), ConfigError);
    wrong = state;
    wrong[3].second = zeros({}, cpu);
    CHECK_THROWS_AS(part.load(wrong), ConfigError);
    wrong = state;
    wrong[0].second = tensor({std::int64_t{-1}}, cpu);
    CHECK_THROWS_AS(part.load(wrong), ConfigError);
    wrong = state;
    wrong.pop_back();
    CHECK_THROWS_WITH_AS(part.load(wrong), doctest::Contains("module.count"), ConfigError);
    wrong = state;
    wrong.emplace_back("module.more", zeros({}, cpu));
    CHECK_THROWS_AS(part.load(wrong), ConfigError);
    CHECK(equal(whole.state()[1].second, part.state()[1].second));
  }
}

TEST_CASE("a module that is not the one averaged is refused") {
  Tiny net(cpu);
  WithNorms other(cpu);
  AveragedModel average(net);
  CHECK_THROWS_WITH_AS(average.update(other), doctest::Contains("fc.weight"), ConfigError);
  CHECK_THROWS_AS((void)average.swap_into(other), ConfigError);
  CHECK_THROWS_AS(average.copy_to(other), ConfigError);
  nn::Module empty({.gen = Generator(1), .device = cpu});
  CHECK_THROWS_AS(AveragedModel{empty}, ConfigError);
  CHECK(average.n_averaged() == 0);
}

TEST_CASE("averages lie in the memory format of their weights, which a swap keeps") {
  for (const Device device : devices()) {
    struct Pixels : nn::Module {
      using Module::Module;
      nn::Conv2d conv{*this, "conv", {.in = 3, .out = 4, .kernel = 3}};
    } net({.gen = Generator(1), .device = device});
    net.to(MemoryFormat::channels_last);
    AveragedModel average(net, {.avg_fn = ema_avg(0.5)});
    average.update(net);
    const Tensor first = net.conv.weight.detach().to(cpu).contiguous();
    {
      const NoGrad off;
      fill_(net.conv.weight, 0);
    }
    average.update(net);
    {
      const auto swapped = average.swap_into(net);
      CHECK(net.conv.weight.is_contiguous(MemoryFormat::channels_last));
      CHECK(equal(net.conv.weight.detach().to(cpu), first * 0.5));
    }
    average.copy_to(net);
    CHECK(net.conv.weight.is_contiguous(MemoryFormat::channels_last));
    CHECK(equal(net.conv.weight.detach().to(cpu), first * 0.5));
  }
}

TEST_CASE("an update is not recorded, on a device either") {
  DEVICE_OR_SKIP();
  Tiny net(device);
  AveragedModel average(net);
  CHECK_THROWS_AS(Graph(Stream::current(device), [&] { average.update(net); }), CaptureError);
}

TEST_CASE("statistics of batch norms become the mean over one pass, and modes and momenta what they were") {
  for (const Device device : devices()) {
    CAPTURE(text(device));
    WithNorms net(device);
    data::DataLoader loader = test::loader(12, 4);
    (void)net(randn({4, 2}, *std::make_unique<Generator>(7), cpu).to(device));  // statistics that the pass must replace
    net.eval();
    net.fc.set_training_flag(true);
    Tensor mean_sum = zeros({4}, cpu, DType::f64), var_sum = mean_sum.clone();
    int batches = 0;
    update_bn(loader, net, [&](const Batch& b) {
      CHECK(net.is_training());
      CHECK(!grad_mode());
      CHECK(b[0].device() == device);
      (void)net(b[0]);
      const Tensor x = net.fc(b[0]).to(cpu).to(DType::f64);
      add_(mean_sum, mean(x, 0));
      add_(var_sum, var(x, 0));
      ++batches;
    });
    REQUIRE(batches == 3);
    const auto close = [&](const Tensor& got, const Tensor& want) {
      // Sums of 4 numbers of about 1 and a mean of 3 in f32.
      return allclose(got.to(cpu).to(DType::f64), want, 16 * 0x1p-23, 16 * 0x1p-23);
    };
    CHECK(close(net.norm.running_mean, mean_sum / 3));
    CHECK(close(net.norm.running_var, var_sum / 3));
    CHECK(net.norm.num_batches_tracked.item<std::int64_t>() == 3);
    CHECK(net.norm.momentum == 0.3);
    CHECK(!net.norm.is_training());
    CHECK(net.fc.is_training());
    // The short form.
    const Tensor before = net.norm.running_mean.clone();
    fill_(net.norm.running_mean, 5);
    loader.set_epoch(0);
    update_bn(loader, net);
    CHECK(equal(before, net.norm.running_mean));
  }
}

TEST_CASE("statistics stay when the pass fails or gives no batch, or when they are not trained") {
  WithNorms net(cpu);
  data::DataLoader loader = test::loader(12, 4);
  (void)net(ones({4, 2}, cpu));
  const Tensor mean = net.norm.running_mean.clone(), var = net.norm.running_var.clone();
  int calls = 0;
  const auto unchanged = [&] {
    return equal(mean, net.norm.running_mean) && equal(var, net.norm.running_var) && net.norm.momentum == 0.3 &&
           net.norm.num_batches_tracked.item<std::int64_t>() == 1;
  };
  const auto failing = [&](const Batch& b) {
    (void)net(b[0]);
    if (++calls == 2) throw std::runtime_error("no");
  };
  CHECK_THROWS_AS(update_bn(loader, net, failing), std::runtime_error);
  CHECK(unchanged());
  data::DataLoader none(test::points(2), {.batch_size = 4, .drop_last = true});
  CHECK_THROWS_WITH_AS(update_bn(none, net), doctest::Contains("no batch"), DataError);
  CHECK(unchanged());
  // A part that always stays in eval mode: its statistics are not trained.
  struct Frozen : WithNorms {
    using WithNorms::WithNorms;
    void train(bool on) override {
      Module::train(on);
      norm.set_training_flag(false);
    }
  } frozen(cpu);
  calls = 0;
  update_bn(loader, frozen, [&](const Batch&) { ++calls; });
  CHECK(calls == 0);
  CHECK(value(frozen.norm.running_var) == 1);
}

TEST_CASE("training with an average that is looked at between its steps ends with the same bits as without") {
  const auto run = [](bool look) {
    test::Net net({.gen = Generator(2), .device = cpu});
    optim::AdamW opt(net.parameters(), {.lr = 0.01});
    data::DataLoader train = test::loader();
    std::optional<AveragedModel> average;
    if (look) average.emplace(net, AveragedModelOptions{.avg_fn = ema_avg(0.9)});
    for (const Batch& b : train) {
      opt.zero_grad();
      backward(test::squared_error(net(b[0]), b[1]));
      opt.step();
      if (!look) continue;
      average->update(net);
      const auto swapped = average->swap_into(net);
      CHECK(net.parameter_count().trainable == 0);
      const NoGrad off;
      net.eval();
      (void)net(b[0]);
      net.train();
    }
    return test::weights_of(net);
  };
  CHECK(run(true) == run(false));
}

}  // namespace levin
