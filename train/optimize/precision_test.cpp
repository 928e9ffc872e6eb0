// Precisions of the trainer: dtypes of parameters and inputs, and what the loss scale does to steps.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <utility>

#include "tests/device.h"
#include "tests/skip.h"
#include "tests/warnings.h"
#include "train/optimize/precision.h"
#include "train/run/fixture_test.h"
#if defined(LEVIN_SIMT)
#include "levin/extend.h"
#include "tensor/device/launch_ledger.h"
#endif

using namespace levin;
using namespace levin::test;

namespace {

struct NormNet : nn::Module {
  using Module::Module;
  nn::Linear fc1{*this, "fc1", {.in = 2, .out = 16}};
  nn::BatchNorm1d norm{*this, "norm", {.features = 16}};
  nn::Linear fc2{*this, "fc2", {.in = 16, .out = 1}};
  Tensor operator()(const Tensor& x) const { return fc2(relu(norm(fc1(x)))); }
};

struct Seen {
  DType weight, norm_weight, input, output, loss;
  double first = 0, last = 0;  // losses
};

// Trains the net in this precision for some steps.
Seen train_in(const std::string& precision, Device device) {
  Generator gen(3);
  NormNet net({.gen = gen, .device = device});
  optim::AdamW opt(net.parameters(), {.lr = 0.02});
  data::DataLoader data = loader(40, 20);
  TrainerOptions options = silent();
  options.max_steps = 12;
  options.precision = precision;
  Trainer trainer(options);
  Seen seen{};
  trainer.fit(opt, data, [&](const Batch& b) {
    const Tensor y = net(b[0]);
    const Tensor loss = squared_error(y, b[1]);
    seen.input = b[0].dtype(), seen.output = y.dtype(), seen.loss = loss.dtype();
    if (trainer.global_step() == 0) seen.first = loss.item();
    seen.last = loss.item();
    return loss;
  });
  seen.weight = net.fc1.weight.dtype();
  seen.norm_weight = net.norm.weight.dtype();
  CHECK(is_float(net.norm.running_mean.dtype()));
  CHECK(net.norm.num_batches_tracked.dtype() == DType::i64);
  return seen;
}

// A parameter whose gradient the test chooses: loss = sum(w * x), so grad = x.
struct Line : nn::Module {
  using Module::Module;
  nn::Parameter w{*this, "w", {2}, [](Tensor& t, Generator&) { fill_(t, 1); }};
};
// Batches {x}, one for each row of `rows`.
data::DataLoader rows(const std::vector<float>& values) {
  const auto n = static_cast<std::int64_t>(values.size()) / 2;
  return data::DataLoader(data::tensor_dataset({from_data(values, {n, 2}, Device::cpu())}), {.batch_size = 1});
}

}  // namespace

namespace {
// A row of Note [Precisions]: what training in it must show.
struct Row {
  const char* precision;
  DType weight, norm, input, output, loss;
};
void check_row(const Row& row, Device device) {
  CAPTURE(row.precision);
  const Seen s = train_in(row.precision, device);
  CHECK(s.weight == row.weight);
  CHECK(s.norm_weight == row.norm);
  CHECK(s.input == row.input);
  CHECK(s.output == row.output);
  CHECK(s.loss == row.loss);
  CHECK(s.last < s.first);
}
}  // namespace

TEST_CASE("each precision gives parameters, inputs and losses the dtypes of its row and trains, on the cpu") {
  using enum DType;
  for (const Row& row : {Row{"32-true", f32, f32, f32, f32, f32}, Row{"", f32, f32, f32, f32, f32},
                         Row{"64-true", f64, f64, f64, f64, f64}, Row{"bf16-mixed", f32, f32, f32, bf16, f32},
                         Row{"bf16-true", bf16, bf16, bf16, bf16, bf16}, Row{"16-true", f16, f16, f16, f16, f16},
                         Row{"16-o2", f16, f32, f16, f16, f32}})
    check_row(row, Device::cpu());
}

TEST_CASE("on a device, each precision gives parameters, inputs and losses the dtypes of its row and trains") {
  using enum DType;
  DEVICE_OR_SKIP();
  for (const Row& row : {Row{"32-true", f32, f32, f32, f32, f32}, Row{"16-mixed", f32, f32, f32, f16, f32},
                         Row{"bf16-mixed", f32, f32, f32, bf16, f32}, Row{"16-true", f16, f16, f16, f16, f16},
                         Row{"bf16-true", bf16, bf16, bf16, bf16, bf16}, Row{"16-o2", f16, f32, f16, f16, f32}})
    check_row(row, device);
}

TEST_CASE("16-mixed on the cpu warns and becomes bf16-mixed") {
  std::vector<std::string> ids;
  auto before = set_warning_handler([&](const Warning& w) { ids.push_back(w.id); });
  const Seen s = train_in("16-mixed", Device::cpu());
  const Seen alias = train_in("16", Device::cpu());
  set_warning_handler(std::move(before));
  CHECK(s.output == DType::bf16);
  CHECK(alias.output == DType::bf16);
  CHECK(ids == std::vector<std::string>{"W-TRAIN-F16-CPU", "W-TRAIN-PRECISION", "W-TRAIN-F16-CPU"});
}

TEST_CASE("a precision that is unknown or contradicts another option is refused before any work") {
  const auto refused = [](auto change) -> std::string {
    TrainerOptions options = silent();
    change(options);
    try {
      const Trainer trainer(options);
    } catch (const ConfigError& e) { return e.what(); }
    return "nothing";
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  CHECK(has(refused([](auto& o) { o.precision = "fp8"; }), "expected one of 32-true, 64-true, 16-mixed"));
  CHECK(has(refused([](auto& o) { o.amp_level = "O4"; }), "expected O0, O1, O2 or O3"));
  CHECK(has(refused([](auto& o) { o.amp_level = "O2", o.precision = "bf16-true"; }), "give one of them"));
  CHECK(has(refused([](auto& o) { o.precision = "bf16-mixed", o.grad_scaler.emplace(); }), "scales no loss"));
  CHECK(has(refused([](auto& o) {
              o.precision = "16-mixed";
              o.grad_scaler = optim::GradScalerOptions{.growth_factor = 0.5};
            }),
            "growth_factor"));
  CHECK(refused([](auto& o) { o.amp_level = "O2"; }) == "nothing");
  CHECK(refused([](auto& o) { o.amp_level = "O2", o.precision = "16-o2"; }) == "nothing");
}

TEST_CASE("hardware without bf16 is a warning, and without f16 an error") {
  const Device gpu = Device::cuda(1);
  const Warnings heard;
  for (const int enough : {80, 90}) train::check_hardware("bf16-mixed", DType::bf16, gpu, enough);
  for (const int enough : {53, 75}) train::check_hardware("16-mixed", DType::f16, gpu, enough);
  train::check_hardware("64-true", DType::f64, gpu, 30);
  CHECK(heard.all().empty());
  train::check_hardware("bf16-true", DType::bf16, gpu, 75);
  REQUIRE(heard.ids() == std::vector<std::string>{"W-TRAIN-BF16-EMULATED"});
  CHECK(
      heard.all()[0].text ==
      "fit: precision = \"bf16-true\" and cuda:1 has no hardware for bf16: its compute capability is 7.5, expected 8.0 "
      "or more; it is emulated, use 16-mixed or 32-true");
  CHECK_THROWS_WITH_AS(
      train::check_hardware("16-mixed", DType::f16, gpu, 52),
      "fit: precision = \"16-mixed\" and cuda:1 has no hardware for f16: its compute capability is 5.2, "
      "expected 5.3 or more; use 32-true",
      UnsupportedError);
}

TEST_CASE("lbfgs with a loss scale is a ConfigError") {
  Generator gen(3);
  Line net({.gen = gen, .device = Device::cpu()});
  optim::LBFGS opt(net.parameters());
  data::DataLoader data = rows({1, 1});
  TrainerOptions options = silent();
  options.max_epochs = 1;
  options.precision = "16-o2";
  Trainer trainer(options);
  CHECK_THROWS_AS(trainer.fit(opt, data, [&](const Batch& b) { return sum(net.w * b[0]); }), ConfigError);
}

TEST_CASE("on a device, steps that overflow count, change nothing, and hold the schedule only where asked") {
  DEVICE_OR_SKIP();
  for (const OnSkippedStep what : {OnSkippedStep::advance, OnSkippedStep::hold}) {
    Generator gen(3);
    Line net({.gen = gen, .device = device});
    optim::Adam opt(net.parameters(), {.lr = 0.5});
    const float inf = INFINITY;
    data::DataLoader data = rows({inf, 1, 1, inf, 1, 2, 3, 4, 5, 6});
    TrainerOptions options = silent();
    options.max_epochs = 1;
    options.precision = "16-mixed";
    options.lr_on_skipped_step = what;
    options.log_every_n_steps = 1;
    Trainer trainer(options);
    const auto rate = std::make_shared<optim::ExponentialLR>(opt, 0.5);
    std::vector<float> after_two;
    trainer.fit(opt, data,
                [&](const Batch& b) {
                  if (trainer.global_step() == 2) after_two = net.w.to_vector<float>();
                  return sum(net.w * b[0]);
                },
                {.schedulers = {{.scheduler = rate, .interval = SchedulerConfig::Interval::step}}});
    CHECK(after_two == std::vector<float>{1, 1});
    CHECK(trainer.global_step() == 5);
    CHECK(trainer.skipped_steps() == 2);
    CHECK(rate->steps() == (what == OnSkippedStep::hold ? 3 : 5));
    std::int64_t updates = -1;  // counted by the optimizer
    for (const auto& [name, t] : opt.state_dict()) {
      if (name == "w.step") updates = t.item<std::int64_t>();
    }
    CHECK(updates == 3);
    bool logged = false;
    for (const LogRecord& r : trainer.history()) {
      for (const auto& [name, value] : r.values) logged |= name == "amp/skipped_steps" && value == 2;
    }
    CHECK(logged);
  }
}

TEST_CASE("on a device, clipping under a loss scale sees true gradients") {
  DEVICE_OR_SKIP();
  struct Norm : Callback {
    double norm = 0;
    void on_before_optimizer_step(optim::Optimizer& opt) override {
      double sum = 0;
      for (const ParamRef& p : opt.parameters()) {
        for (const float g : p.value->grad().to(Device::cpu()).to_vector<float>()) sum += double(g) * g;
      }
      norm = std::sqrt(sum);
    }
  };
  const auto train = [&](const std::string& precision, const std::shared_ptr<Norm>& look) {
    Generator gen(3);
    Line net({.gen = gen, .device = device});
    optim::SGD opt(net.parameters(), {.lr = 1});
    data::DataLoader data = rows({6, 8});
    TrainerOptions options = silent();
    options.max_epochs = 1;
    options.gradient_clip_val = 0.5;
    options.precision = precision;
    options.callbacks = {look};
    Trainer trainer(options);
    trainer.fit(opt, data, [&](const Batch& b) { return sum(net.w * b[0]); });
    return net.w.to(Device::cpu()).to_vector<float>();
  };
  const auto plain = std::make_shared<Norm>(), scaled = std::make_shared<Norm>();
  const std::vector<float> expected = train("32-true", plain), mixed = train("16-mixed", scaled);
  CHECK(plain->norm == doctest::Approx(10));
  CHECK(scaled->norm == doctest::Approx(10));
  REQUIRE(mixed.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) CHECK(std::abs(mixed[i] - expected[i]) < 0x1p-11F);  // half an f16 step at 1
}

TEST_CASE("the loss scale, masters and 16-bit weights survive a resume bit for bit") {
  const auto run = [](const std::string& precision, Device device, std::int64_t epochs, const std::string& from,
                      const std::string& to) {
    Generator gen(3);
    NormNet net({.gen = gen, .device = device});
    optim::AdamW opt(net.parameters(), {.lr = 0.02});
    data::DataLoader data = loader(20, 10);
    TrainerOptions options = silent();
    options.max_epochs = epochs;
    options.precision = precision;
    if (precision == "16-o2") options.grad_scaler = optim::GradScalerOptions{.growth_interval = 3};
    Trainer trainer(options);
    trainer.fit(opt, data, [&](const Batch& b) { return squared_error(net(b[0]), b[1]); }, {.ckpt_path = from});
    trainer.save_checkpoint(to);
    return load_safetensors(to);
  };
  for (const std::string precision : {"16-o2", "bf16-true", "64-true", "bf16-mixed"}) {
    CAPTURE(precision);
    const TemporaryFolder dir;
    const TensorFile whole = run(precision, Device::cpu(), 4, "", dir / "whole.safetensors");
    (void)run(precision, Device::cpu(), 2, "", dir / "cut.safetensors");
    const TensorFile resumed = run(precision, Device::cpu(), 4, dir / "cut.safetensors", dir / "resumed.safetensors");
    CHECK(whole.metadata == resumed.metadata);  // hashes of all tensors
    bool scale = false;
    for (const auto& [name, t] : resumed.tensors) scale |= name.starts_with("levin.precision.");
    CHECK(scale == (precision == "16-o2"));
  }
}

TEST_CASE("a loss scale that is not enabled trains and clips as without one") {
  Generator gen(3);
  Line net({.gen = gen, .device = Device::cpu()});
  optim::SGD opt(net.parameters(), {.lr = 1});
  data::DataLoader data = rows({6, 8});
  TrainerOptions options = silent();
  options.max_epochs = 1;
  options.precision = "16-o2";
  options.gradient_clip_val = 0.5;
  options.grad_scaler = optim::GradScalerOptions{.enabled = false};
  Trainer trainer(options);
  trainer.fit(opt, data, [&](const Batch& b) { return sum(net.w * b[0]); });
  const std::vector<f16> w = net.w.to_vector<f16>();
  CHECK(std::abs(float(w[0]) - (1 - 0.3F)) < 0x1p-10F);  // the gradient {6, 8} clipped to a norm of 0.5
  CHECK(std::abs(float(w[1]) - (1 - 0.4F)) < 0x1p-10F);
  CHECK(trainer.skipped_steps() == 0);
}

TEST_CASE("a module is tested in the trainer's precision without a fit before") {
  struct Tested : TrainModuleOf<Tested> {
    using TrainModuleOf::TrainModuleOf;
    nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
    StepOutput training_step(const Batch& b, std::int64_t) override { return squared_error(fc(b[0]), b[1]); }
    void test_step(const Batch& b, std::int64_t, std::int64_t) override { log("loss", squared_error(fc(b[0]), b[1])); }
    OptimizerConfig configure_optimizers() override { return {}; }
  };
  Generator gen(3);
  Tested module({.gen = gen, .device = Device::cpu()});
  data::DataLoader data = loader(20, 10);
  TrainerOptions options = silent();
  options.precision = "BF16-True";
  Trainer trainer(options);
  CHECK(trainer.test(module, data).size() == 1);
  CHECK(module.fc.weight.dtype() == DType::bf16);
}

TEST_CASE("16-o2 gives hooks and callers the step's results in f32, though its layers compute in f16") {
  struct Outputs : TrainModuleOf<Outputs> {
    using TrainModuleOf::TrainModuleOf;
    nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
    bool manual = false;
    bool automatic_optimization() const override { return !manual; }
    StepOutput training_step(const Batch& b, std::int64_t) override {
      const Tensor y = fc(b[0]);
      CHECK(y.dtype() == DType::f16);
      return NamedTensors{{"loss", slice(y, 0, 0, 1)}, {"y", y}};
    }
    Tensor predict_step(const Batch& b, std::int64_t, std::int64_t) override { return fc(b[0]); }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.01})}};
    }
  };
  struct Looks : Callback {
    std::vector<DType> seen;
    void on_train_batch_end(const StepInfo& info) override {
      seen.push_back(info.loss.dtype());
      seen.push_back(info.outputs.at(0).second.dtype());
    }
  };
  for (const bool manual : {false, true}) {
    Outputs module({.gen = Generator(3), .device = Device::cpu()});
    module.manual = manual;
    data::DataLoader data = loader(4, 4);
    const auto looks = std::make_shared<Looks>();
    TrainerOptions options = silent();
    options.max_epochs = 1;
    options.precision = "16-o2";
    options.callbacks = {looks};
    Trainer trainer(options);
    trainer.fit(module, {.train = data});
    CHECK(looks->seen == std::vector<DType>{DType::f32, DType::f32});
    CHECK(trainer.predict(module, data).at(0).at(0).dtype() == DType::f32);
  }
}

TEST_CASE("on a device, 16-mixed is what it says again after a module on the cpu, between two runs and in a hook") {
  DEVICE_OR_SKIP();
  const test::Warnings warnings;
  struct Mixed : TrainModuleOf<Mixed> {
    using TrainModuleOf::TrainModuleOf;
    nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
    std::vector<DType> seen;
    StepOutput training_step(const Batch& b, std::int64_t) override {
      const Tensor y = fc(b[0]);
      seen.push_back(y.dtype());
      return squared_error(y, b[1]);
    }
    void validation_step(const Batch& b, std::int64_t, std::int64_t) override { seen.push_back(fc(b[0]).dtype()); }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.01})}};
    }
  };
  struct Between : Callback {
    Mixed other{{.gen = Generator(3), .device = Device::cpu()}};
    data::DataLoader data = loader(4, 4);
    void on_train_batch_end(const StepInfo&) override {
      const auto y = [&](const Batch& b) { return mean(other.fc(b[0])); };
      (void)trainer().validate(other, data);
      (void)trainer().evaluate(other, data, y);
    }
  };
  Mixed first({.gen = Generator(3), .device = Device::cpu()}), second({.gen = Generator(3), .device = device});
  data::DataLoader data = loader(8, 4);
  const auto between = std::make_shared<Between>();
  TrainerOptions options = silent();
  options.max_epochs = 1;
  options.precision = "16-mixed";
  Trainer trainer(options);
  trainer.fit(first, {.train = data});
  CHECK(first.seen == std::vector<DType>{DType::bf16, DType::bf16});
  options.callbacks = {between};
  for (const bool hook : {false, true}) {
    Trainer again(options);
    Trainer& used = hook ? again : trainer;
    used.options().max_epochs = hook ? 1 : 2;
    second.seen.clear();
    used.fit(second, {.train = data});
    CHECK(second.seen == std::vector<DType>{DType::f16, DType::f16});
    CHECK(used.callback_metrics().size() == 1);  // amp/skipped_steps: there is a loss scale
  }
  CHECK(between->other.seen == std::vector<DType>{DType::bf16, DType::bf16});
  CHECK(warnings.count("W-TRAIN-F16-CPU") >= 1);
}

TEST_CASE("evaluation runs in the precision of the run") {
  Generator gen(3);
  NormNet net({.gen = gen, .device = Device::cpu()});
  optim::SGD opt(net.parameters(), {.lr = 0.01});
  data::DataLoader data = loader(20, 10);
  TrainerOptions options = silent();
  options.max_epochs = 1;
  options.precision = "bf16-mixed";
  Trainer trainer(options);
  trainer.fit(opt, data, [&](const Batch& b) { return squared_error(net(b[0]), b[1]); });
  DType seen = DType::f32;
  (void)trainer.evaluate(data, [&](const Batch& b) {
    const Tensor y = net(b[0]);
    seen = y.dtype();
    return squared_error(y, b[1]);
  });
  CHECK(seen == DType::bf16);
}

TEST_CASE("on a device, steps whose hooks look at gradients and steps that clip on the way have the same bits") {
  DEVICE_OR_SKIP();
  struct SummedNet : TrainModuleOf<SummedNet> {
    using TrainModuleOf::TrainModuleOf;
    nn::Linear fc1{*this, "fc1", {.in = 2, .out = 16}};
    nn::BatchNorm1d norm{*this, "norm", {.features = 16}};
    nn::Linear fc2{*this, "fc2", {.in = 16, .out = 1}};
    StepOutput training_step(const Batch& b, std::int64_t) override {
      return StepOutput::sum(squared_error(fc2(relu(norm(fc1(b[0])))), b[1]) * 3, 3);
    }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 0.02})}};
    }
  };
  struct Look : Callback {
    void on_before_optimizer_step(optim::Optimizer& opt) override {
      for (const ParamRef& p : opt.parameters()) CHECK(p.value->grad().defined());
    }
  };
  struct LookLate : Callback {
    void on_before_zero_grad(optim::Optimizer&) override {}
  };
  struct Result {
    std::string state;  // with hashes of all tensors
    std::size_t launches = 0;
  };
  constexpr int kSteps = 6;
  const auto train = [&](const std::string& precision, std::optional<double> limit, AccumulateWeighting weighting,
                         const std::shared_ptr<Callback>& look) {
    const TemporaryFolder dir;
    Generator gen(3);
    SummedNet net({.gen = gen, .device = device});
    data::DataLoader data = loader(20, 5);
    TrainerOptions options = silent();
    options.max_steps = kSteps;
    options.gradient_clip_val = limit;
    options.precision = precision;
    options.accumulate_weighting = weighting;
    if (precision.starts_with("16")) options.grad_scaler = optim::GradScalerOptions{.init_scale = 0x1p20};
    if (look) options.callbacks = {look};
    Trainer trainer(options);
    Result result;
#if defined(LEVIN_SIMT)
    detail::LaunchLedger ledger;
    const struct Detour {
      bool before = std::exchange(detail::mode().detour, true);
      ~Detour() { detail::mode().detour = before; }
    } detour;
#endif
    trainer.fit(net, {.train = data});
#if defined(LEVIN_SIMT)
    for (const auto& call : ledger.take()) result.launches += call.launches.size();
#endif
    trainer.save_checkpoint(dir / "end.safetensors");
    for (const auto& [key, value] : load_safetensors(dir / "end.safetensors").metadata)
      result.state += key + "=" + value + "\n";
    return result;
  };
  struct Case {
    std::string precision;
    std::optional<double> limit;
    AccumulateWeighting weighting;
    std::size_t saved;  // launches a step
  };
  using enum AccumulateWeighting;
  for (const Case& c :
       {Case{"32-true", 0.5, per_batch, 1}, Case{"32-true", {}, per_batch, 0}, Case{"32-true", 0.5, exact, 0},
        Case{"bf16-true", 0.5, per_batch, 1}, Case{"16-mixed", 0.5, per_batch, 2}, Case{"16-mixed", {}, per_batch, 1},
        Case{"16-mixed", 0.5, exact, 2}, Case{"16-o2", 0.5, per_batch, 2}}) {
    CAPTURE(c.precision);
    CAPTURE(c.saved);
    (void)train(c.precision, c.limit, c.weighting, nullptr);  // makes what a first run of a thread makes once
    const Result fused = train(c.precision, c.limit, c.weighting, nullptr),
                 looked = train(c.precision, c.limit, c.weighting, std::make_shared<Look>()),
                 looked_late = train(c.precision, c.limit, c.weighting, std::make_shared<LookLate>());
    CHECK(fused.state == looked.state);
    CHECK(fused.state == looked_late.state);
#if defined(LEVIN_SIMT)
    // The first step finds whether hooks are overridden.
    CHECK(looked_late.launches - fused.launches == (kSteps - 1) * c.saved);
#endif
  }
}
