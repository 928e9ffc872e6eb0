// Gamma, Chi2, StudentT, Beta, Dirichlet. Numbers are those of torch.distributions of PyTorch 2.13 in f64.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "levin/autograd.h"
#include "levin/distributions.h"
#include "tests/device.h"

namespace levin::testing {
namespace {

using distributions::Beta, distributions::Chi2, distributions::Dirichlet, distributions::Gamma, distributions::StudentT;
const Device cpu = Device::cpu();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
using Values = std::vector<double>;

Tensor vec(const Values& v, DType dtype = DType::f64) {
  return from_data(v, {static_cast<std::int64_t>(v.size())}, cpu).to(dtype);
}
Tensor rows(const Values& v, std::int64_t count) {
  return reshape(vec(v), {count, static_cast<std::int64_t>(v.size()) / count});
}
void close(const Tensor& got, const Values& want) {
  const Values values = got.detach().to(DType::f64).to_vector<double>();
  REQUIRE(values.size() == want.size());
  for (std::size_t k = 0; k < want.size(); ++k) {
    if (std::isnan(want[k]))
      CHECK(std::isnan(values[k]));
    else if (std::isinf(want[k]))
      CHECK(values[k] == want[k]);
    else
      CHECK(values[k] == doctest::Approx(want[k]).epsilon(1e-9));
  }
}

// Mean and variance of many samples are within five standard errors of theirs.
constexpr std::int64_t kDraws = 200'000;
void check_moments(const Tensor& samples, double mean, double variance, double fourth) {
  const double n = static_cast<double>(samples.numel());
  CHECK(std::abs(levin::mean(samples).item() - mean) < 5 * std::sqrt(variance / n));
  CHECK(std::abs(var(samples).item() - variance) < 5 * std::sqrt((fourth - variance * variance) / n));
}

Gamma gammas() { return {vec({0.3, 2.5, 40}), vec({2, 0.5, 3})}; }
Beta betas() { return {vec({0.4, 2, 30}), vec({0.6, 5, 12})}; }
Dirichlet dirichlets() { return {rows({0.3, 1.2, 4, 10, 2, 0.5}, 2)}; }
Dirichlet other_dirichlets() { return {rows({1, 1, 1, 3, 0.5, 2}, 2)}; }

}  // namespace

TEST_CASE("gamma, chi-squared and Student's t densities and entropies equal PyTorch's") {
  close(gammas().log_prob(vec({0.05, 4, 12})), {1.1091587508377012, -1.9381092801929467, -1.7759093721870443});
  close(gammas().entropy(), {-1.7491161412819627, 2.423095090065, 2.156380384616483});
  const Chi2 squares{vec({0.5, 3, 20})};
  close(squares.log_prob(vec({0.1, 2.5, 18})), {0.21562949990747038, -1.7107931672675951, -2.7199534646154415});
  close(squares.entropy(), {-0.9394204447741763, 2.0541199559354117, 3.2292013590409248});
  const StudentT t{vec({0.8, 3, 50}), vec({0.5, -1, 2}), vec({2, 0.25, 1.5})};
  close(t.log_prob(vec({-3, -0.5, 2.5})), {-3.3012542999788477, -1.3091902092780263, -1.3860071049662914});
  close(t.entropy(), {3.510053760968839, 0.38718321074340123, 1.8445022889539304});
}

TEST_CASE("beta and Dirichlet densities and entropies equal PyTorch's") {
  close(betas().log_prob(vec({0.01, 0.3, 0.75})), {1.5722105701632363, 0.7705248015812898, 1.6828468949993578});
  close(betas().entropy(), {-0.3809510716357942, -0.48453071499548894, -1.264144578542684});
  close(dirichlets().log_prob(rows({0.1, 0.3, 0.6, 0.7, 0.2, 0.1}, 2)), {0.9941687265085744, 1.6919352275446062});
  close(dirichlets().entropy(), {-3.2902097036385802, -3.42110905152828});
}

TEST_CASE("gamma, beta and Dirichlet divergences equal PyTorch's, and one with itself is 0") {
  const Gamma gamma{vec({1.5, 0.7, 35}), vec({1, 0.25, 4})};
  close(kl_divergence(gammas(), gamma), {3.876169605026757, 0.4770693556121466, 3.595164949249435});
  const Beta beta{vec({1.5, 0.5, 20}), vec({1, 4, 20})};
  close(kl_divergence(betas(), beta), {0.967570403369421, 0.7699185563058011, 4.174525733349521});
  close(kl_divergence(dirichlets(), other_dirichlets()), {2.597062523078635, 4.613193351018701});
  close(kl_divergence(other_dirichlets(), dirichlets()), {3.287516586984043, 5.729749991266617});
  close(kl_divergence(gamma, gamma), {0, 0, 0});
  close(kl_divergence(beta, beta), {0, 0, 0});
  close(kl_divergence(dirichlets(), dirichlets()), {0, 0});
}

TEST_CASE("gamma, chi-squared, Student's t, beta and Dirichlet means and variances equal PyTorch's") {
  const auto moments = [](const auto& d, const Values& mean, const Values& variance) {
    close(d.mean(), mean);
    close(d.variance(), variance);
  };
  moments(gammas(), {0.15, 5, 40 / 3.0}, {0.075, 10, 40 / 9.0});
  moments(Chi2{vec({0.5, 3, 20})}, {0.5, 3, 20}, {1, 6, 40});
  moments(StudentT{vec({0.8, 1.5, 2, 3, 50}), vec({0.5}), vec({2})}, {kNaN, 0.5, 0.5, 0.5, 0.5},
          {kNaN, kInf, kInf, 12, 4.166666666666667});
  moments(betas(), {0.4, 2 / 7.0, 30 / 42.0}, {0.12, 0.025510204081632654, 0.004746084480303749});
  moments(dirichlets(), {0.05454545454545454, 0.21818181818181817, 0.7272727272727273, 0.8, 0.16, 0.04},
          {0.007933884297520661, 0.026242848061029875, 0.030514939605848695, 0.011851851851851851, 0.009955555555555556,
           0.0028444444444444446});
  // No NaN meets the gradient of a df without a variance.
  Tensor df = vec({1.5, 2, 3});
  df.requires_grad_();
  backward(sum(masked_fill(StudentT{df, vec({0}), vec({1})}.variance(), le(df.detach(), 2), 0)));
  close(df.grad(), {0, 0, -2});  // of df / (df - 2)
}

TEST_CASE("densities at the ends of a gamma, beta or Dirichlet support are its limits, and -inf outside") {
  close(Gamma{vec({1, 2, 0.5, 2}), vec({3, 1, 1, 1})}.log_prob(vec({0, 0, 0, -1})), {std::log(3), -kInf, kInf, -kInf});
  close(Beta{vec({1, 2, 1, 2, 2}), vec({1, 1, 0.5, 1, 1})}.log_prob(vec({0, 0, 1, -0.5, 1.5})),
        {0, -kInf, kInf, -kInf, -kInf});
  close(Dirichlet{vec({0.5, 1, 2})}.log_prob(rows({0, 1.25, -0.25, 0, 0.5, 0.5}, 2)), {-kInf, kInf});
  // No NaN meets the gradient of an element outside.
  Tensor a = vec({2, 3}), x = vec({-1, 0.5});
  a.requires_grad_();
  x.requires_grad_();
  backward(sum(masked_fill(Gamma{a, vec({1})}.log_prob(x), lt(x.detach(), 0), 0)));
  backward(sum(masked_fill(Beta{a, vec({1})}.log_prob(x), lt(x.detach(), 0), 0)));
  CHECK(isfinite(a.grad()).all().item<bool>());
  CHECK(isfinite(x.grad()).all().item<bool>());
}

TEST_CASE("gamma, chi-squared, Student's t, beta and Dirichlet samples have their moments") {
  Generator g(2);
  const Shape many{kDraws};
  check_moments(Gamma{vec({2.5}), vec({0.5})}.sample(g, many), 5, 10, (3 * 2.5 * 2.5 + 6 * 2.5) * 16);
  check_moments(Gamma{vec({0.3}), vec({2})}.sample(g, many), 0.15, 0.075, (3 * 0.09 + 6 * 0.3) / 16);
  check_moments(Chi2{vec({3})}.sample(g, many), 3, 6, 12 * 3 * (3 + 4));
  // Of df = 10: variance df / (df - 2), kurtosis 3 + 6 / (df - 4).
  check_moments(StudentT{vec({10}), vec({-1}), vec({2})}.sample(g, many), -1, 5, 25 * 4.0);
  // Of beta variables: the kurtosis is 3 + 6 ((a - b)^2 (t + 1) - a b (t + 2)) / (a b (t + 2) (t + 3)), t = a + b.
  const auto beta = [&](const Tensor& samples, double a, double b) {
    const double t = a + b, variance = a * b / (t * t * (t + 1));
    const double excess = 6 * ((a - b) * (a - b) * (t + 1) - a * b * (t + 2)) / (a * b * (t + 2) * (t + 3));
    check_moments(samples, a / t, variance, (3 + excess) * variance * variance);
  };
  beta(Beta{vec({2}), vec({5})}.sample(g, many), 2, 5);
  beta(Beta{vec({0.05}), vec({0.1})}.sample(g, many), 0.05, 0.1);
  const Tensor shares = Dirichlet{vec({0.5, 1, 4})}.sample(g, many);
  for (const int k : {0, 1, 2})
    beta(select(shares, 1, k), std::array{0.5, 1.0, 4.0}[std::size_t(k)], std::array{5.0, 4.5, 1.5}[std::size_t(k)]);
  CHECK(amax(abs(sum(shares, {1}) - 1)).item() < 1e-14);
}

TEST_CASE("small concentrations give probabilities and no NaN") {
  Generator g(2);
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    CAPTURE(text(dtype));
    const Tensor shares = Dirichlet{full({4}, 1e-3, cpu, dtype)}.sample(g, {500}).to(DType::f64);
    CHECK(amax(abs(sum(shares, {1}) - 1)).item() < 0.01);
    // Nearly all of the weight is on one category, and each is that one as often.
    const Tensor top = gt(shares, 0.9).to(DType::f64);
    CHECK(sum(top).item() > 490);
    CHECK(amin(sum(top, {0})).item() > 125 - 5 * std::sqrt(500 * 0.25 * 0.75));
    const Tensor coins = Beta{full({500}, 1e-3, cpu, dtype), full({500}, 1e-3, cpu, dtype)}.sample(g).to(DType::f64);
    CHECK(std::abs(sum(coins).item() - 250) < 5 * std::sqrt(125.0));
  }
}

// The mean over samples of the derivative of f(sample), one parameter a sample, is the derivative of the mean of f.
void check_mean_gradient(double parameter, double want, const std::function<Tensor(const Tensor&, Generator&)>& f) {
  Generator g(7);
  Tensor p = full({kDraws / 4}, parameter, cpu, DType::f64);
  p.requires_grad_();
  backward(sum(f(p, g)));
  CHECK(std::abs(mean(p.grad()).item() - want) < 5 * std::sqrt(var(p.grad()).item() / double(p.numel())));
}
TEST_CASE("derivatives of rsample average to those of the expectation") {
  const Tensor two = vec({2});
  check_mean_gradient(1.5, 0.5, [&](const Tensor& a, Generator& g) { return Gamma{a, two}.rsample(g); });
  check_mean_gradient(1.5, -2 / 2.25, [&](const Tensor& rate, Generator& g) { return Gamma{two, rate}.rsample(g); });
  check_mean_gradient(3, 1, [&](const Tensor& df, Generator& g) { return Chi2{df}.rsample(g); });
  // E[t^2] = df / (df - 2).
  check_mean_gradient(12, -0.02, [&](const Tensor& df, Generator& g) {
    return square(StudentT{df, vec({0}), vec({1})}.rsample(g));
  });
  check_mean_gradient(0.7, 2 / (2.7 * 2.7), [&](const Tensor& a, Generator& g) { return Beta{a, two}.rsample(g); });
  check_mean_gradient(0.7, -2 / (2.7 * 2.7), [&](const Tensor& b, Generator& g) { return Beta{two, b}.rsample(g); });
  check_mean_gradient(0.7, -2 / (5.7 * 5.7), [&](const Tensor& a, Generator& g) {
    const Tensor all = stack({a, full_like(a.detach(), 2), full_like(a.detach(), 3)}, 1);
    return select(Dirichlet{all}.rsample(g), 1, 1);
  });
}

TEST_CASE("log_prob, entropy and divergences of gamma distributions differentiate to the second order") {
  Tensor a = vec({0.5, 3}), b = vec({2, 0.75});
  a.requires_grad_();
  b.requires_grad_();
  const Tensor x = vec({0.3, 0.6}), shares = rows({0.2, 0.8, 0.5, 0.5}, 2);
  const GradcheckFn f = [&](std::span<const Tensor> in) {
    const Gamma gamma{in[0], in[1]};
    const Beta beta{in[0], in[1]};
    const StudentT t{in[0], in[1], in[1] * 2};
    const Dirichlet d{stack({in[0], in[1]}, 1)};
    const StudentT wide{in[1] + 2.5, in[0], in[1]};
    return Tensors{gamma.log_prob(x),
                   gamma.entropy(),
                   gamma.mean(),
                   gamma.variance(),
                   beta.mean(),
                   beta.variance(),
                   wide.mean(),
                   wide.variance(),
                   Chi2{in[0]}.variance(),
                   d.mean(),
                   d.variance(),
                   beta.log_prob(x),
                   beta.entropy(),
                   t.log_prob(x),
                   t.entropy(),
                   Chi2{in[0]}.log_prob(x),
                   d.log_prob(shares),
                   d.entropy(),
                   kl_divergence(gamma, Gamma{in[1], in[0]}),
                   kl_divergence(beta, Beta{in[1], in[0]}),
                   kl_divergence(d, Dirichlet{stack({in[1], in[0]}, 1)})};
  };
  const GradcheckResult first = gradcheck(f, std::array{a, b});
  CHECK_MESSAGE(first.ok, first.message);
  Generator g(1);
  const GradcheckResult second = gradgradcheck(f, std::array{a, b}, g);
  CHECK_MESSAGE(second.ok, second.message);
  Tensor values = x.detach();
  values.requires_grad_();
  const GradcheckFn of_values = [&](std::span<const Tensor> in) {
    return Tensors{Gamma{vec({2, 3}), vec({1})}.log_prob(in[0]), Beta{vec({2, 3}), vec({1.5})}.log_prob(in[0])};
  };
  CHECK(gradcheck(of_values, std::array{values}).ok);
}

TEST_CASE("shapes, dtypes and gradients of gamma distributions are those of the parameters") {
  Generator g(2);
  const Tensor column = ones({3, 1}, cpu), row = ones({4}, cpu);
  CHECK(Gamma{column, row}.sample(g, {2}).shape() == Shape{2, 3, 4});
  CHECK(Beta{column, row}.rsample(g).shape() == Shape{3, 4});
  CHECK(StudentT{ones({2, 1, 1}, cpu), column, row}.sample(g).shape() == Shape{2, 3, 4});
  CHECK(StudentT{row, column, ones({}, cpu)}.entropy().shape() == Shape{3, 4});
  CHECK(StudentT{row, column, ones({}, cpu)}.mean().shape() == Shape{3, 4});
  CHECK(StudentT{row, column, ones({}, cpu)}.variance().shape() == Shape{3, 4});
  CHECK(Chi2{row}.log_prob(ones({2, 1}, cpu)).shape() == Shape{2, 4});
  const Dirichlet d{ones({3, 5}, cpu)};
  CHECK(d.sample(g, {2}).shape() == Shape{2, 3, 5});
  CHECK(d.log_prob(full({2, 1, 5}, 0.2, cpu)).shape() == Shape{2, 3});
  CHECK(d.entropy().shape() == Shape{3});
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Tensor half = ones({2}, cpu, dtype);
    CHECK(Gamma{half, half}.sample(g).dtype() == dtype);
    CHECK(Beta{half, half}.sample(g).dtype() == dtype);
    CHECK(StudentT{half, half, half}.sample(g).dtype() == dtype);
    CHECK(Dirichlet{half}.sample(g).dtype() == dtype);
  }
  Tensor a = vec({2});
  a.requires_grad_();
  CHECK(Gamma{a, vec({1})}.rsample(g).requires_grad());
  CHECK_FALSE(Gamma{a, vec({1})}.sample(g).requires_grad());
  CHECK_FALSE(Dirichlet{a}.sample(g).requires_grad());
}

TEST_CASE("gamma distributions refuse parameters of two dtypes, and Dirichlet other numbers of categories") {
  Generator g(1);
  CHECK_THROWS_WITH_AS((void)(Gamma{ones({2}, cpu), ones({2}, cpu, DType::f64)}.sample(g)),
                       doctest::Contains("Gamma: tensors are f32 and f64"), DTypeError);
  CHECK_THROWS_AS((void)(Chi2{ones({2}, cpu, DType::i64)}.sample(g)), UnsupportedError);
  CHECK_THROWS_WITH_AS((void)(Dirichlet{ones({}, cpu)}.sample(g)), doctest::Contains("Dirichlet: concentration"),
                       ShapeError);
  CHECK_THROWS_WITH_AS((void)(Dirichlet{ones({3}, cpu)}.log_prob(ones({2}, cpu))),
                       "Dirichlet: values have shape [2], expected 3 numbers in the last dimension", ShapeError);
  CHECK_THROWS_WITH_AS((void)kl_divergence(Dirichlet{ones({3}, cpu)}, Dirichlet{ones({2}, cpu)}),
                       "kl_divergence: 3 and 2 categories, expected as many", ShapeError);
  CHECK(g.state().offset == 0);
}

TEST_CASE("gamma distributions draw on a device what they draw on the CPU") {
  DEVICE_OR_SKIP();
  const auto near = [&](const Tensor& there, const Tensor& here) {
    CHECK(amax(abs(there.to(cpu) - here)).item() <= 1e-14 * amax(abs(here)).item());
  };
  Generator here(3), there(3);
  const Tensor a = vec({0.3, 2, 40}), b = vec({1, 0.5, 3}), on_a = a.to(device), on_b = b.to(device);
  near(Gamma{on_a, on_b}.sample(there, {50}), Gamma{a, b}.sample(here, {50}));
  near(Beta{on_a, on_b}.sample(there, {50}), Beta{a, b}.sample(here, {50}));
  near(Dirichlet{on_a}.sample(there, {50}), Dirichlet{a}.sample(here, {50}));
  near(StudentT{on_a + 2, on_b, on_b}.sample(there, {50}), StudentT{a + 2, b, b}.sample(here, {50}));
  CHECK(here.state().offset == there.state().offset);
}

}  // namespace levin::testing
