// Gradients that travel as products of thin matrices, with threads of this process as ranks.
#include "train/strategy/power_sgd.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "comm/group/local.h"
#include "levin/autograd.h"
#include "levin/ops.h"
#include "train/run/fixture_test.h"

using namespace levin;
using train::PowerSgd;

namespace {

using Group = std::shared_ptr<dist::ProcessGroup>;

Tensor drawn(const Shape& shape, std::uint64_t seed, DType dtype = DType::f32) {
  Generator gen(seed);
  return randn(shape, gen, Device::cpu(), DType::f64).to(dtype);
}
double norm_of(const Tensor& t) { return norm(t.to(DType::f64)).item<double>(); }

// What `gradients`, one bucket, become: of one round.
Tensors reduced(PowerSgd& by, const Tensors& gradients) {
  std::vector<PowerSgd::Gradient> bucket;
  Tensors homes;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    homes.push_back(gradients[i].clone());
    bucket.push_back({.parameter = i, .home = homes.back()});
  }
  by.finish(*by.begin(std::move(bucket)));
  return homes;
}

// The mean over `rounds` of what two ranks with constant gradients of full rank get, apart from their average, relative
// to that.
double bias_after(int rounds, const PowerSgdOptions& options) {
  const Tensor mine[] = {drawn({16, 24}, 1), drawn({16, 24}, 2)};
  const Tensor average = (mine[0] + mine[1]) * 0.5;
  std::array<double, 2> bias{};
  dist::run_local(2, [&](const Group& group) {
    PowerSgd by(group, options);
    const auto r = static_cast<std::size_t>(group->rank());
    Tensor all = zeros_like(average);
    for (int i = 0; i < rounds; ++i) add_(all, reduced(by, {mine[r]})[0]);
    bias[r] = norm_of(all / static_cast<double>(rounds) - average) / norm_of(average);
  });
  CHECK(bias[0] == bias[1]);
  return bias[0];
}

}  // namespace

TEST_CASE("columns are made orthonormal, also nearly dependent ones, and a column of zeros stays one") {
  Tensor x = drawn({40, 4}, 3);
  const Tensor first = slice(x, 1, 0, 1);
  Tensor near = slice(x, 1, 2, 3), zero = slice(x, 1, 3, 4);
  copy_(near, first * 3.0 + drawn({40, 1}, 4) * 1e-5);
  fill_(zero, 0);
  for (const double scale : {1.0, 1e-30}) {
    const Tensor q = train::orthonormal_columns(x * scale);
    Tensor eye = zeros({4, 4}, Device::cpu());
    for (std::int64_t k = 0; k < 3; ++k) {
      Tensor at = slice(slice(eye, 0, k, k + 1), 1, k, k + 1);
      fill_(at, 1);
    }
    CHECK(norm_of(matmul(t(q), q) - eye) < 1e-5);
  }
}

TEST_CASE("powersgd gives the average of gradients whose average has its rank, with and without 2 dimensions") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const double close = dtype == DType::f32 ? 1e-5 : 1e-13;
    const Tensor shared = drawn({32, 2}, 1, dtype);
    // A linear layer, a convolution, a small matrix, a bias, and one without elements.
    const auto gradients_of = [&](int rank) {
      const auto seed = static_cast<std::uint64_t>(10 * rank);
      return Tensors{matmul(shared, drawn({2, 48}, 11 + seed, dtype)),
                     reshape(matmul(shared, drawn({2, 36}, 12 + seed, dtype)), {32, 4, 3, 3}),
                     drawn({4, 4}, 13 + seed, dtype), drawn({33}, 14 + seed, dtype),
                     empty({0, 5}, Device::cpu(), dtype)};
    };
    for (const int ranks : {2, 3}) {
      Tensors sums = gradients_of(0);
      for (int r = 1; r < ranks; ++r) {
        const Tensors of_rank = gradients_of(r);
        for (std::size_t i = 0; i < sums.size(); ++i) add_(sums[i], of_rank[i]);
      }
      dist::run_local(ranks, [&](const Group& group) {
        PowerSgd by(group, {.matrix_approximation_rank = 2});
        for (int round = 0; round < 3; ++round) {
          const Tensors got = reduced(by, gradients_of(group->rank()));
          for (std::size_t i = 0; i < got.size(); ++i)
            CHECK(norm_of(got[i] - sums[i] / static_cast<double>(ranks)) <= close * norm_of(sums[i]));
        }
      });
    }
  }
}

TEST_CASE("powersgd sends thin matrices in place of gradients, unless they are hardly smaller") {
  dist::run_local(2, [&](const Group& group) {
    PowerSgd by(group, {.matrix_approximation_rank = 2, .min_compression_rate = 4});
    const auto sent = [&](const Shape& shape, bool compresses) {
      const auto round = by.begin({{.parameter = 0, .home = drawn(shape, 1), .compresses = compresses}});
      by.finish(*round);
      return PowerSgd::bytes(*round) / 4;
    };
    CHECK(sent({32, 64}, true) == (32 + 64) * 2);  // a tenth
    CHECK(sent({32, 64}, false) == 32 * 64);
    CHECK(sent({16, 16}, true) == 16 * 16);  // a quarter is no less than a quarter
    CHECK(sent({2048}, true) == 2048);
  });
}

TEST_CASE("with error feedback the mean of what powersgd gives tends to the average, and without it does not") {
  const double few = bias_after(10, {}), many = bias_after(160, {});
  CHECK(many < few / 8);
  CHECK(many < 0.1);
  CHECK(bias_after(160, {.use_error_feedback = false}) > 0.5);
}

TEST_CASE("with a warm start powersgd tends to the best approximation of its rank, and without it does not") {
  // Singular values 4, 3, 2 and 1, of which rank 2 keeps two.
  const Tensor u = train::orthonormal_columns(drawn({24, 4}, 1)), v = train::orthonormal_columns(drawn({32, 4}, 2));
  const Tensor sizes = from_data(std::vector<float>{4, 3, 2, 1}, {1, 4}, Device::cpu());
  const Tensor gradient = matmul(u * sizes, t(v));
  const double best = std::sqrt(4.0 + 1.0);
  for (const bool warm : {true, false}) {
    dist::run_local(2, [&](const Group& group) {
      PowerSgd by(group, {.matrix_approximation_rank = 2, .use_error_feedback = false, .warm_start = warm});
      double first = 0, last = 0;
      for (int round = 0; round < 40; ++round) {
        last = norm_of(reduced(by, {gradient})[0] - gradient);
        if (round == 0) first = last;
      }
      CHECK(first > best * 1.05);
      CHECK((last < best * 1.001) == warm);
    });
  }
}

TEST_CASE("after a gradient that is not finite powersgd gives finite ones again") {
  dist::run_local(2, [&](const Group& group) {
    PowerSgd by(group, {});
    const Tensor good = matmul(drawn({16, 1}, 1), drawn({1, 24}, 2));
    Tensor bad = good.clone();
    if (group->rank() == 1) fill_(bad, std::numeric_limits<double>::infinity());
    (void)reduced(by, {good});
    CHECK(!std::isfinite(norm_of(reduced(by, {bad})[0])));  // all ranks see it
    CHECK(norm_of(reduced(by, {good})[0] - good) < 1e-5 * norm_of(good));
  });
}

TEST_CASE("powersgd keeps what it left out of a gradient while no rank uses the parameter") {
  dist::run_local(2, [&](const Group& group) {
    const auto by_rank = [&](std::uint64_t seed) { return drawn({16, 24}, seed + 10 * group->rank()); };
    const Tensor first = by_rank(1), second = by_rank(2), nothing = zeros_like(first);
    const auto passes = [&](bool unused_between) {
      PowerSgd by(group, {});
      (void)reduced(by, {first});
      for (int i = 0; i < 3 && unused_between; ++i) {
        std::vector<PowerSgd::Gradient> bucket{{.parameter = 0, .home = nothing.clone()}};
        by.finish(*by.begin(std::move(bucket)), std::vector<std::uint8_t>{0});
      }
      return reduced(by, {second})[0];
    };
    CHECK(passes(true).to_vector<float>() == passes(false).to_vector<float>());
  });
}

TEST_CASE("a parameter that no rank uses for some steps gets powersgd's next gradient as if they had not been") {
  struct Pausing final : TrainModuleOf<Pausing> {
    explicit Pausing(std::uint64_t seed)
        : TrainModuleOf(nn::Options{.gen = Generator(seed), .device = Device::cpu()}) {}
    nn::Linear used{*this, "used", {.in = 2, .out = 1}};
    nn::Linear pauses{*this, "pauses", {.in = 24, .out = 24}};
    bool has_pauses = false;
    std::int64_t steps = 0;
    StepOutput training_step(const Batch& b, std::int64_t) override {
      const std::int64_t step = steps++;
      const Tensor loss = test::squared_error(used(b[0]), b[1]);
      if (step >= 3 && step < (has_pauses ? 6 : 3)) return loss;
      Generator gen(static_cast<std::uint64_t>(step < 3 ? step : step - (has_pauses ? 3 : 0)));
      return loss + sum(square(pauses(randn({8, 24}, gen, Device::cpu()) * (1.0 + trainer().global_rank()))));
    }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 1e-4})}};
    }
  };
  std::array<std::vector<float>, 2> weights;
  for (const bool has_pauses : {false, true}) {
    dist::run_local(2, [&](const Group& group) {
      TrainerOptions options = test::silent();
      options.max_steps = has_pauses ? 9 : 6;
      options.strategy = std::make_shared<DdpStrategy>(DdpOptions{.find_unused_parameters = true,
                                                                  .bucket_cap_mb = 1e-4,
                                                                  .comm_hook = CommHook::powersgd,
                                                                  .powersgd = {.start_powerSGD_iter = 2},
                                                                  .process = {.group = group}});
      Pausing module(3);
      module.has_pauses = has_pauses;
      data::DataLoader data = test::loader(256, 8);
      Trainer(options).fit(module, {.train = data});
      if (group->rank() == 0) weights[has_pauses ? 1 : 0] = module.pauses.weight.to_vector<float>();
    });
  }
  CHECK(weights[0] == weights[1]);
}

namespace {

struct Wide : TrainModuleOf<Wide> {
  explicit Wide(std::uint64_t seed) : TrainModuleOf(nn::Options{.gen = Generator(seed), .device = Device::cpu()}) {}
  nn::Linear fc1{*this, "fc1", {.in = 2, .out = 24}};
  nn::Linear fc2{*this, "fc2", {.in = 24, .out = 24}};
  nn::Linear fc3{*this, "fc3", {.in = 24, .out = 1}};
  std::vector<double> losses;
  StepOutput training_step(const Batch& b, std::int64_t) override {
    const Tensor loss = test::squared_error(fc3(tanh(fc2(tanh(fc1(b[0]))))), b[1]);
    losses.push_back(loss.detach().item<float>());
    return loss;
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.05, .momentum = 0.9})}};
  }
};

struct Ran {
  std::vector<float> weights;
  double first = 0, last = 0;  // loss
  std::int64_t bytes = 0;
};
Ran trained(std::int64_t steps, CommHook hook, std::int64_t start, double bucket_cap_mb = 25) {
  std::array<Ran, 2> ran;
  dist::run_local(2, [&](const Group& group) {
    TrainerOptions options = test::silent();
    options.max_steps = steps;
    const auto strategy = std::make_shared<DdpStrategy>(DdpOptions{.bucket_cap_mb = bucket_cap_mb,
                                                                   .comm_hook = hook,
                                                                   .powersgd = {.start_powerSGD_iter = start},
                                                                   .process = {.group = group}});
    options.strategy = strategy;
    Wide module(static_cast<std::uint64_t>(group->rank()));
    data::DataLoader data = test::loader(64, 8);
    Trainer(options).fit(module, {.train = data});
    ran[static_cast<std::size_t>(group->rank())] = {.weights = test::weights_of(module),
                                                    .first = module.losses.front(),
                                                    .last = module.losses.back(),
                                                    .bytes = strategy->report().bytes};
  });
  CHECK(ran[0].weights == ran[1].weights);
  return ran[0];
}

}  // namespace

TEST_CASE(
    "a run with powersgd goes on from its checkpoint to the bits of the run without an end, each rank with its own") {
  const test::TemporaryFolder dir;
  for (const bool warm : {true, false}) {
    for (const char* name : {"a.safetensors", "a.levin"}) {
      CAPTURE(warm);
      CAPTURE(name);
      const auto run = [&](std::int64_t steps, const std::string& save, const std::string& resume) {
        std::array<std::vector<float>, 2> weights;
        dist::run_local(2, [&](const Group& group) {
          TrainerOptions options = test::silent();
          options.max_steps = steps;
          options.strategy =
              std::make_shared<DdpStrategy>(DdpOptions{.bucket_cap_mb = 1e-4,
                                                       .comm_hook = CommHook::powersgd,
                                                       .powersgd = {.start_powerSGD_iter = 3, .warm_start = warm},
                                                       .process = {.group = group}});
          Wide module(5);
          data::DataLoader data = test::loader(64, 8);
          Trainer trainer(options);
          trainer.fit(module, {.train = data, .ckpt_path = resume});
          if (!save.empty()) trainer.save_checkpoint(save);
          weights[static_cast<std::size_t>(group->rank())] = test::weights_of(module);
        });
        CHECK(weights[0] == weights[1]);
        return weights[0];
      };
      const std::vector<float> whole = run(14, "", "");
      (void)run(7, dir / name, "");
      CHECK(run(14, "", dir / name) == whole);
    }
  }
}

TEST_CASE("a fit with powersgd trains as well as the plain average, begins with that, and sends less") {
  const Ran plain = trained(300, CommHook::none, 2);
  CHECK(plain.last < 0.3 * plain.first);
  for (const double bucket_cap_mb : {25.0, 1e-4}) {  // one bucket, and one for each parameter
    const Ran compressed = trained(300, CommHook::powersgd, 2, bucket_cap_mb);
    CHECK(compressed.weights != plain.weights);
    CHECK(compressed.last < 1.5 * plain.last + 0.01 * plain.first);
    CHECK(compressed.bytes < plain.bytes / 2);
  }
  CHECK(trained(20, CommHook::powersgd, 20).weights == trained(20, CommHook::none, 2).weights);
  CHECK(trained(21, CommHook::powersgd, 20).weights != trained(21, CommHook::none, 2).weights);
}

TEST_CASE("options of powersgd out of range, and a loss scale beside it, are refused") {
  const auto error_of = [](const DdpOptions& ddp, const std::string& precision = "32-true") {
    try {
      TrainerOptions options = test::silent();
      options.precision = precision;
      options.strategy = std::make_shared<DdpStrategy>(ddp);
      const Trainer trainer(options);
    } catch (const ConfigError& e) { return std::string(e.what()); }
    return std::string("accepted");
  };
  const auto hooked = [](const PowerSgdOptions& powersgd) {
    return DdpOptions{.comm_hook = CommHook::powersgd, .powersgd = powersgd};
  };
  const auto has = [](const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; };
  CHECK(error_of(hooked({})) == "accepted");
  CHECK(has(error_of(hooked({.matrix_approximation_rank = 0})), "matrix_approximation_rank is 0, expected 1 or more"));
  CHECK(has(error_of(hooked({.start_powerSGD_iter = 1})), "start_powerSGD_iter is 1, expected 2 or more"));
  CHECK(has(error_of(hooked({.min_compression_rate = 0})), "min_compression_rate is 0, expected more than 0"));
  CHECK(error_of({.powersgd = {.matrix_approximation_rank = 0}}) == "accepted");  // of another hook
  for (const char* precision : {"16-mixed", "16-o2"})
    CHECK(has(error_of(hooked({}), precision), "comm_hook is powersgd and precision is"));
}
