#include <doctest/doctest.h>

#include <functional>
#include <limits>
#include <memory>

#include "levin/optim.h"

namespace levin::optim {
namespace {

// Expected numbers: torch 2.13, SGD with lr 0.5 and momentum 0.9, lr before each of the calls of step().
struct Fixture {
  Tensor p = tensor({0.0}, Device::cpu());
  SGD optimizer{{{&p, "p", nullptr}}, {.lr = 0.5, .momentum = 0.9}};
};

void check(Scheduler& s, const std::vector<double>& want) {
  for (const double lr : want) {
    CHECK(s.last_lr() == doctest::Approx(lr).epsilon(1e-12));
    s.step();
  }
}

TEST_CASE("schedules follow PyTorch's closed forms") {
  Fixture f[9];
  StepLR step(f[0].optimizer, 3, 0.1);
  check(step, {0.5, 0.5, 0.5, 0.05, 0.05, 0.05, 0.005, 0.005});
  MultiStepLR multi(f[1].optimizer, {5, 2}, 0.5);
  check(multi, {0.5, 0.5, 0.25, 0.25, 0.25, 0.125, 0.125, 0.125});
  ExponentialLR exponential(f[2].optimizer, 0.9);
  check(exponential, {0.5, 0.45, 0.405, 0.3645, 0.32805});
  CosineAnnealingLR cosine(f[3].optimizer, 6, 0.1);
  check(cosine, {0.5, 0.47320508075688783, 0.4, 0.3, 0.2, 0.1267949192431123, 0.1, 0.12679491924311226});
  CosineAnnealingWarmRestarts warm(f[4].optimizer, 2, 2, 0.1);
  check(warm, {0.5, 0.3, 0.5, 0.4414213562373095, 0.3, 0.1585786437626905, 0.5, 0.4847759065022573});
  LinearLR linear(f[5].optimizer, 0.25, 1.0, 4);
  check(linear, {0.125, 0.21875, 0.3125, 0.40625, 0.5, 0.5});
  PolynomialLR polynomial(f[6].optimizer, 5, 2);
  check(polynomial, {0.5, 0.32, 0.18, 0.08, 0.02, 0, 0, 0});
  LambdaLR lambda(f[7].optimizer, [](std::int64_t t) { return 1.0 / double(t + 1); });
  check(lambda, {0.5, 0.25, 0.5 / 3});
  std::vector<std::unique_ptr<Scheduler>> parts;
  parts.push_back(std::make_unique<LinearLR>(f[8].optimizer, 0.1, 1.0, 3));
  parts.push_back(std::make_unique<ExponentialLR>(f[8].optimizer, 0.9));
  SequentialLR sequence(f[8].optimizer, std::move(parts), {3});
  check(sequence, {0.05, 0.2, 0.35, 0.5, 0.45, 0.405, 0.3645, 0.32805});
}

TEST_CASE("factors and cycles of PyTorch") {
  Fixture f[5];
  ConstantLR constant(f[0].optimizer, 0.25, 3);
  check(constant, {0.125, 0.125, 0.125, 0.5, 0.5});
  MultiplicativeLR multiplied(f[1].optimizer, [](std::int64_t t) { return 1 - 0.1 * double(t); });
  check(multiplied, {0.5, 0.45, 0.36, 0.252, 0.1512});
  CHECK(multiplied.lr_at(0, 2) == doctest::Approx(0.36));  // earlier than the last one
  const auto cycle = [&](int k, CyclicOptions options, const std::vector<double>& lr,
                         const std::vector<double>& momentum) {
    CyclicLR cyclic(f[k].optimizer, std::move(options));
    for (std::size_t i = 0; i < lr.size(); ++i) {
      CHECK(cyclic.last_lr() == doctest::Approx(lr[i]).epsilon(1e-12));
      CHECK(*f[k].optimizer.momentum(0) == doctest::Approx(momentum[i]).epsilon(1e-12));
      cyclic.step();
    }
  };
  cycle(2, {.base_lr = 0.1, .max_lr = 1, .step_size_up = 2, .step_size_down = 3},
        {0.10000000000000001, 0.54999999999999993, 0.99999999999999978, 0.69999999999999984, 0.39999999999999991,
         0.10000000000000001, 0.55000000000000038, 0.99999999999999978},
        {0.90000000000000002, 0.85000000000000009, 0.80000000000000004, 0.83333333333333337, 0.8666666666666667,
         0.90000000000000002, 0.84999999999999998, 0.80000000000000004});
  cycle(3, {.base_lr = 0.1, .max_lr = 1, .step_size_up = 2, .mode = CyclicMode::triangular2},
        {0.10000000000000001, 0.55000000000000004, 1, 0.55000000000000004, 0.10000000000000001, 0.32500000000000001,
         0.55000000000000004, 0.32500000000000001},
        {0.90000000000000002, 0.85000000000000009, 0.80000000000000004, 0.85000000000000009, 0.90000000000000002, 0.875,
         0.85000000000000009, 0.875});
  cycle(4, {.base_lr = 0.1, .max_lr = 1, .step_size_up = 2, .mode = CyclicMode::exp_range, .gamma = 0.9},
        {0.10000000000000001, 0.505, 0.82900000000000007, 0.42805000000000004, 0.10000000000000001, 0.3657205,
         0.57829690000000011, 0.31523360500000008},
        {0.90000000000000002, 0.85499999999999998, 0.81900000000000006, 0.86355000000000004, 0.90000000000000002,
         0.87047550000000007, 0.84685589999999999, 0.87608515500000006});
  // A function in place of the mode's, of the cycle or of the step, and a momentum that stays.
  Fixture g, h;
  CyclicOptions own{.base_lr = 0, .max_lr = 1, .step_size_up = 2, .cycle_momentum = false};
  own.scale_fn = [](double x) { return 1 / (1 + x); };
  CyclicLR by_cycle(g.optimizer, own);
  check(by_cycle, {0, 0.25, 0.5, 0.25, 0, 1.0 / 6, 1.0 / 3});
  own.scale_mode = ScaleMode::iterations;
  CyclicLR by_step(h.optimizer, own);
  check(by_step, {0, 0.25, 1.0 / 3, 0.125, 0, 1.0 / 12});
  CHECK(*g.optimizer.momentum(0) == 0.9);
}

TEST_CASE("chained schedules multiply, resume with the same bits, and refuse what is no rate alone") {
  Fixture f, g, h;
  const auto make = [](Optimizer& o) {
    std::vector<std::unique_ptr<Scheduler>> parts;
    parts.push_back(std::make_unique<LinearLR>(o, 0.25, 1.0, 3));
    parts.push_back(std::make_unique<StepLR>(o, 2, 0.5));
    parts.push_back(std::make_unique<ExponentialLR>(o, 0.9));
    return std::make_unique<ChainedScheduler>(o, std::move(parts));
  };
  const auto chain = make(f.optimizer);
  check(*chain, {0.125, 0.22500000000000001, 0.15187500000000001, 0.18225000000000002, 0.082012500000000016,
                 0.073811250000000023, 0.03321506250000001});
  const auto resumed = make(g.optimizer);
  resumed->load_state_dict(chain->state_dict());
  g.optimizer.load_state_dict(f.optimizer.state_dict());
  for (int i = 0; i < 3; ++i) {
    chain->step(), resumed->step();
    CHECK(f.optimizer.lr() == g.optimizer.lr());
  }
  h.optimizer.set_lr(0, 0);
  CHECK(make(h.optimizer)->lr_at(0, 3) == 0);
  const auto refused = [&](std::unique_ptr<Scheduler> part, const char* why) {
    std::vector<std::unique_ptr<Scheduler>> parts;
    parts.push_back(std::move(part));
    CHECK_THROWS_WITH_AS(ChainedScheduler(f.optimizer, std::move(parts)), doctest::Contains(why), ConfigError);
  };
  refused(std::make_unique<ConstantLR>(g.optimizer), "another optimizer");
  refused(std::make_unique<ReduceLROnPlateau>(f.optimizer), "plateau");
  refused(std::make_unique<CyclicLR>(f.optimizer, CyclicOptions{.base_lr = 0.1, .max_lr = 1}),
          "cycle_momentum = false");
}

TEST_CASE("one cycle moves lr up and down and momentum the other way, and ends") {
  Fixture f, g;
  OneCycleLR cycle(f.optimizer, {.max_lr = 1.0, .total_steps = 10});
  const std::vector<double> lr{0.04,
                               0.52,
                               1.0,
                               0.9504846320134737,
                               0.8117456539497631,
                               0.6112620219362893,
                               0.38874197806371075,
                               0.18825834605023697,
                               0.049519367986526286,
                               4e-06};
  const std::vector<double> momentum{0.95,
                                     0.9,
                                     0.85,
                                     0.854951556604879,
                                     0.8688255099070633,
                                     0.8888739533021842,
                                     0.9111260466978157,
                                     0.9311744900929366,
                                     0.945048443395121,
                                     0.95};
  for (std::size_t i = 0; i < lr.size(); ++i) {
    CHECK(cycle.last_lr() == doctest::Approx(lr[i]).epsilon(1e-12));
    CHECK(*f.optimizer.momentum(0) == doctest::Approx(momentum[i]).epsilon(1e-12));
    cycle.step();
  }
  CHECK_THROWS_AS(cycle.step(), StateError);
  OneCycleLR linear(g.optimizer, {.max_lr = 1.0, .total_steps = 10, .pct_start = 0.4, .anneal = Anneal::linear});
  check(linear, {0.04, 0.36, 0.68, 1.0, 0.833334, 0.666668, 0.500002, 0.333336, 0.16667, 4.000000000004e-06});
  Fixture three;
  OneCycleLR phases(three.optimizer, {.max_lr = 1.0, .total_steps = 10, .three_phase = true});
  check(phases,
        {0.040000000000000036, 0.52000000000000002, 1, 0.52000000000000002, 0.040000000000000001, 0.036180721853510199,
         0.026181721853510202, 0.013822278146489805, 0.0038232781464898036, 3.9999999999999998e-06});
}

TEST_CASE("the rate for averaged weights goes from where it is to its goal in the given steps and stays there") {
  Fixture f[4];
  for (Fixture& one : f) one.optimizer.set_lr(0, 0.1);
  SwaLr cosine(f[0].optimizer, 0.05);
  check(cosine, {0.1, 0.098776412907378845, 0.09522542485937369, 0.089694631307311828, 0.082725424859373686, 0.075});
  for (int i = 0; i < 4; ++i) cosine.step();
  check(cosine, {0.05, 0.05, 0.05});
  SwaLr linear(f[1].optimizer, 0.05, 10, Anneal::linear);
  check(linear, {0.1, 0.095, 0.09, 0.085, 0.08});
  SwaLr at_once(f[2].optimizer, 0.05, 0);
  check(at_once, {0.1, 0.05, 0.05});
  // It starts from the current lr, not from the base of an earlier schedule; a later schedule starts from swa_lr.
  ExponentialLR before(f[3].optimizer, 0.5);
  before.step();
  SwaLr after(f[3].optimizer, 0.2, 2, Anneal::linear);
  CHECK(after.lr_at(0, 0) == 0.05);
  check(after, {0.05, 0.125, 0.2});
  const ExponentialLR last(f[3].optimizer, 0.5);
  CHECK(last.last_lr() == 0.2);
}

TEST_CASE("the rate for averaged weights goes on from what others set between its steps") {
  // As torch 2.13's SWALR: each step undoes the factor of the last one and applies the next.
  Fixture f;
  f.optimizer.set_lr(0, 0.1);
  SwaLr swa(f.optimizer, 0.05, 4, Anneal::linear);
  swa.step();
  CHECK(swa.last_lr() == doctest::Approx(0.0875));
  f.optimizer.set_lr(0, 0.05);  // on the goal already
  swa.step();
  CHECK(swa.last_lr() == doctest::Approx(0.05));
  f.optimizer.set_lr(0, 0.11);
  swa.step();
  CHECK(swa.last_lr() == doctest::Approx(0.08));
  swa.step();
  CHECK(swa.last_lr() == 0.05);
  f.optimizer.set_lr(0, 0.3);
  swa.step();
  CHECK(swa.last_lr() == 0.05);
}

TEST_CASE("each group goes to a rate of its own, resumed with the same bits, and wrong rates are refused") {
  Tensor p = tensor({0.0}, Device::cpu()), q = tensor({0.0}, Device::cpu());
  const auto make = [&] {
    auto sgd = std::make_unique<SGD>(Parameters{{&p, "p", nullptr}}, SGDOptions{.lr = 0.1});
    sgd->add_group({{&q, "q", nullptr}}, {.lr = 0.4});
    return sgd;
  };
  const auto a = make(), b = make();
  SwaLr whole(*a, std::vector{0.05, 0.2}, 5), part(*b, std::vector{0.05, 0.2}, 5);
  for (int i = 0; i < 2; ++i) whole.step();
  a->set_lr(1, 0.25);
  part.load_state_dict(whole.state_dict());
  b->load_state_dict(a->state_dict());
  for (int i = 0; i < 4; ++i) {
    whole.step(), part.step();
    for (const int g : {0, 1}) CHECK(a->lr(g) == b->lr(g));
  }
  CHECK(a->lr(0) == 0.05);
  CHECK(a->lr(1) == 0.2);
  CHECK_THROWS_WITH_AS(SwaLr(*a, std::vector{0.1}), doctest::Contains("2 groups"), ConfigError);
  CHECK_THROWS_AS(SwaLr(*a, -0.1), ConfigError);
  CHECK_THROWS_AS(SwaLr(*a, 0.1, -1), ConfigError);
}

TEST_CASE("a plateau lowers lr after patience, cools down, stops at the minimum, and resumes") {
  Fixture f, g;
  const PlateauOptions options{.factor = 0.5, .patience = 1, .cooldown = 1, .min_lr = 0.1};
  ReduceLROnPlateau plateau(f.optimizer, options);
  const std::vector<double> metrics{1, .9, .95, .95, .95, .95, .95, .95, .8, .9, .9, .9};
  const std::vector<double> want{0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125, 0.125, 0.125, 0.125, 0.1, 0.1};
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    if (i == 5) {
      ReduceLROnPlateau copy(g.optimizer, options);
      copy.load_state_dict(plateau.state_dict());
      g.optimizer.set_lr(0, f.optimizer.lr());
      for (std::size_t k = i; k < metrics.size(); ++k) {
        copy.step(metrics[k]);
        CHECK(g.optimizer.lr() == doctest::Approx(want[k]));
      }
    }
    plateau.step(metrics[i]);
    CHECK(f.optimizer.lr() == doctest::Approx(want[i]));
  }
  CHECK_THROWS_AS(plateau.step(), StateError);
}

TEST_CASE("a schedule whose momentum is refused leaves the optimizer as it was") {
  Tensor p = ones({1}, Device::cpu());
  p.requires_grad_();
  Adam adam({{&p, "p", nullptr}}, {.lr = 0.25});
  const OneCycleOptions beyond{.max_lr = 1, .total_steps = 10, .max_momentum = 1};  // beta1 is below 1
  CHECK_THROWS_AS(OneCycleLR(adam, beyond), ConfigError);
  CHECK(adam.lr() == 0.25);
}

TEST_CASE("a schedule resumes where it was, and refuses wrong options and states") {
  Fixture f, g;
  CosineAnnealingLR a(f.optimizer, 6), b(g.optimizer, 6);
  for (int i = 0; i < 3; ++i) a.step();
  b.load_state_dict(a.state_dict());
  a.step();
  b.step();
  CHECK(a.last_lr() == b.last_lr());
  CHECK_THROWS_AS(b.load_state_dict({}), ConfigError);
  const ReduceLROnPlateau plateau(f.optimizer, {});
  CHECK_THROWS_WITH_AS(b.load_state_dict(plateau.state_dict()), doctest::Contains("best is unknown here"), ConfigError);
  const auto with = [](std::int64_t t, double base) {
    return NamedTensors{{"t", tensor({t}, Device::cpu())}, {"base", tensor({base}, Device::cpu())}};
  };
  for (const NamedTensors& state : {with(-1, 0.5), with(1, std::nan(""))})
    CHECK_THROWS_AS(b.load_state_dict(state), ConfigError);
  CHECK(a.last_lr() == b.last_lr());
  CHECK_THROWS_AS(StepLR(f.optimizer, 0), ConfigError);
  CHECK_THROWS_AS(ReduceLROnPlateau(f.optimizer, {.factor = 1}), ConfigError);
  CHECK_THROWS_AS(SequentialLR(f.optimizer, {}, {}), ConfigError);
  std::vector<std::unique_ptr<Scheduler>> cycling;
  cycling.push_back(std::make_unique<OneCycleLR>(f.optimizer, OneCycleOptions{.max_lr = 1, .total_steps = 10}));
  CHECK_THROWS_WITH_AS(SequentialLR(f.optimizer, std::move(cycling), {}), doctest::Contains("cycle_momentum = false"),
                       ConfigError);
}

TEST_CASE("lr_at refuses a group that the optimizer has not, in every schedule") {
  Fixture f;
  std::vector<std::unique_ptr<Scheduler>> all, parts;
  Optimizer& o = f.optimizer;
  parts.push_back(std::make_unique<StepLR>(o, 2));
  all.push_back(std::make_unique<StepLR>(o, 2));
  all.push_back(std::make_unique<MultiStepLR>(o, std::vector<std::int64_t>{2}));
  all.push_back(std::make_unique<ExponentialLR>(o, 0.9));
  all.push_back(std::make_unique<CosineAnnealingLR>(o, 4));
  all.push_back(std::make_unique<CosineAnnealingWarmRestarts>(o, 4));
  all.push_back(std::make_unique<LinearLR>(o, 0.5, 1.0, 4));
  all.push_back(std::make_unique<PolynomialLR>(o, 4));
  all.push_back(std::make_unique<ConstantLR>(o));
  all.push_back(std::make_unique<MultiplicativeLR>(o, [](std::int64_t) { return 0.5; }));
  all.push_back(std::make_unique<CyclicLR>(o, CyclicOptions{.base_lr = 0.1, .max_lr = 1}));
  std::vector<std::unique_ptr<Scheduler>> chained;
  chained.push_back(std::make_unique<ConstantLR>(o));
  all.push_back(std::make_unique<ChainedScheduler>(o, std::move(chained)));
  all.push_back(std::make_unique<LambdaLR>(o, [](std::int64_t) { return 1.0; }));
  all.push_back(std::make_unique<OneCycleLR>(o, OneCycleOptions{.max_lr = 1, .total_steps = 4}));
  all.push_back(std::make_unique<SwaLr>(o, 0.1));
  all.push_back(std::make_unique<ReduceLROnPlateau>(o));
  all.push_back(std::make_unique<SequentialLR>(o, std::move(parts), std::vector<std::int64_t>{}));
  for (std::size_t k = 0; k < all.size(); ++k) {
    CAPTURE(k);
    CHECK_NOTHROW((void)all[k]->lr_at(0, 1));
    for (const int group : {-1, 1, 9}) CHECK_THROWS_AS((void)all[k]->lr_at(group, 1), IndexError);
  }
}

TEST_CASE("periods of warm restarts that grow beyond what a count holds end nowhere, and overflow nothing") {
  Fixture f;
  const auto most = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t t_mult : {std::int64_t{2}, std::int64_t{3}, most}) {
    const CosineAnnealingWarmRestarts warm(f.optimizer, 2, t_mult);
    for (const std::int64_t t : {std::int64_t{1}, std::int64_t{3}, most - 1, most}) {
      const double lr = warm.lr_at(0, t);
      CHECK((lr >= 0 && lr <= 0.5));
    }
  }
  CHECK(CosineAnnealingWarmRestarts(f.optimizer, 2, most).lr_at(0, 2 + most / 2) == doctest::Approx(0.25));
}

TEST_CASE("schedules refuse numbers outside their range when they are made") {
  Fixture f;
  Optimizer& o = f.optimizer;
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  for (const double bad : {nan, inf, -0.5}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(StepLR(o, 1, bad), ConfigError);
    CHECK_THROWS_AS(MultiStepLR(o, {1}, bad), ConfigError);
    CHECK_THROWS_AS(ExponentialLR(o, bad), ConfigError);
    CHECK_THROWS_AS(CosineAnnealingLR(o, 1, bad), ConfigError);
    CHECK_THROWS_AS(CosineAnnealingWarmRestarts(o, 1, 1, bad), ConfigError);
    CHECK_THROWS_AS(LinearLR(o, bad, 1, 1), ConfigError);
    CHECK_THROWS_AS(LinearLR(o, 1, bad, 1), ConfigError);
    CHECK_THROWS_AS(PolynomialLR(o, 1, bad), ConfigError);
    CHECK_THROWS_AS(SwaLr(o, bad), ConfigError);
    CHECK_THROWS_AS(ConstantLR(o, bad), ConfigError);
    const CyclicOptions cyclic{.base_lr = 0.1, .max_lr = 1};
    for (double CyclicOptions::*option : {&CyclicOptions::base_lr, &CyclicOptions::max_lr, &CyclicOptions::gamma,
                                          &CyclicOptions::base_momentum, &CyclicOptions::max_momentum}) {
      CyclicOptions options = cyclic;
      options.*option = bad;
      CHECK_THROWS_AS(CyclicLR(o, options), ConfigError);
    }
    const OneCycleOptions good{.max_lr = 1, .total_steps = 4};
    for (double OneCycleOptions::*option :
         {&OneCycleOptions::max_lr, &OneCycleOptions::pct_start, &OneCycleOptions::base_momentum,
          &OneCycleOptions::max_momentum, &OneCycleOptions::div_factor, &OneCycleOptions::final_div_factor}) {
      OneCycleOptions options = good;
      options.*option = bad;
      CHECK_THROWS_AS(OneCycleLR(o, options), ConfigError);
    }
    for (double PlateauOptions::*option : {&PlateauOptions::factor, &PlateauOptions::min_lr, &PlateauOptions::eps}) {
      PlateauOptions options;
      options.*option = bad;
      CHECK_THROWS_AS(ReduceLROnPlateau(o, options), ConfigError);
    }
  }
  CHECK_THROWS_AS(ReduceLROnPlateau(o, {.patience = -1}), ConfigError);
  CHECK_THROWS_AS(ReduceLROnPlateau(o, {.threshold = nan}), ConfigError);
  CHECK_THROWS_AS(ReduceLROnPlateau(o, {.cooldown = -1}), ConfigError);
  CHECK_THROWS_AS(SwaLr(o, 0.1, -1), ConfigError);
  CHECK_THROWS_AS(ConstantLR(o, 0.5, 0), ConfigError);
  CHECK_THROWS_AS(MultiplicativeLR(o, {}), ConfigError);
  CHECK_THROWS_AS(CyclicLR(o, {.base_lr = 0.1, .max_lr = 1, .step_size_up = 0}), ConfigError);
  CHECK_THROWS_AS(CyclicLR(o, {.base_lr = 0.1, .max_lr = 1, .step_size_down = -1}), ConfigError);
  std::vector<std::unique_ptr<Scheduler>> none(1);
  CHECK_THROWS_AS(SequentialLR(o, std::move(none), {}), ConfigError);
  none.resize(1);
  CHECK_THROWS_AS(ChainedScheduler(o, std::move(none)), ConfigError);
  CHECK_THROWS_AS(ChainedScheduler(o, {}), ConfigError);
  CHECK(o.lr(0) == 0.5);  // as it was
}

}  // namespace
}  // namespace levin::optim
