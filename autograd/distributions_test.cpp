#include "levin/distributions.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <numbers>
#include <vector>

#include "levin/autograd.h"
#include "tests/device.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

using distributions::Bernoulli, distributions::Categorical, distributions::Cauchy, distributions::Exponential,
    distributions::Geometric, distributions::Gumbel, distributions::HalfNormal, distributions::Laplace,
    distributions::LogNormal, distributions::MultivariateNormal, distributions::Normal,
    distributions::OneHotCategorical, distributions::Uniform;
const Device cpu = Device::cpu();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
using Values = std::vector<double>;

Tensor vec(const Values& v, DType dtype = DType::f64) {
  return from_data(v, {static_cast<std::int64_t>(v.size())}, cpu).to(dtype);
}
double at(const Tensor& x, std::size_t k = 0) { return x.detach().to(DType::f64).to_vector<double>()[k]; }
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

// Mean and variance of many samples are within five standard errors of theirs; `fourth` is the fourth central moment.
constexpr std::int64_t kDraws = 200'000;
void check_moments(const Tensor& samples, double mean, double variance, double fourth) {
  const double n = static_cast<double>(samples.numel());
  CHECK(std::abs(at(levin::mean(samples)) - mean) < 5 * std::sqrt(variance / n));
  CHECK(std::abs(at(var(samples)) - variance) < 5 * std::sqrt((fourth - variance * variance) / n));
}

}  // namespace

LEVIN_OP_CASE(multinomial) {
  OpCase c{.ops = {"multinomial"}, .dtypes = kFloatDTypes, .differentiable = false, .no_empty = "a row has a category"};
  // One category has all the weight, or all categories are drawn: the numbers do not matter.
  for (const Shape& s : {Shape{5}, Shape{3, 4}, Shape{1}}) {
    c.samples.push_back(
        {.inputs = {real(s, 0.1, 1)},
         .call =
             [](const Tensors& in) {
               Generator generator(4);
               const Tensor top = amax(in[0], -1, KeepDim::yes);
               const Tensor one = masked_fill(in[0], lt(in[0], top), 0);
               const Tensor all = multinomial(in[0], in[0].size(-1), generator);
               return Tensors{multinomial(one, 3, generator, Replacement::yes), sort(all).values};
             },
         .reference =
             [](const Tensors& in) {
               const Tensor top = argmax(in[0], -1, KeepDim::yes);
               const std::int64_t m = in[0].size(-1);
               return Tensors{expand(top, top.shape().with(top.rank() - 1, 3)), expand(arange(m, cpu), in[0].shape())};
             }});
  }
  const auto g = std::make_shared<Generator>(1);
  c.errors.push_back({"n", [=] { (void)multinomial(ones({3}, cpu), 4, *g); }, throws<ShapeError>,
                      "multinomial: n is 4, expected at least 1 and at most 3"});
  c.errors.push_back({"shape", [=] { (void)multinomial(ones({}, cpu), 1, *g); }, throws<ShapeError>,
                      "multinomial: weights have shape []"});
  c.errors.push_back({"negative",
                      [=] {
                        (void)multinomial(vec({1, -1}), 1, *g);
                      },
                      throws<ConfigError>,
                      "multinomial: weight 1 of row 0 is -1, expected a finite number of at least 0"});
  c.errors.push_back({"few",
                      [=] {
                        (void)multinomial(vec({1, 0}), 2, *g);
                      },
                      throws<ConfigError>, "multinomial: row 0 has 1 weights above 0"});
  return c;
}

TEST_CASE("multinomial draws categories as often as their weights say, and the generator moves on") {
  Generator generator(11);
  const Values weights{0, 1, 4, 0, 5, 0};
  const Tensor drawn = multinomial(vec(weights), kDraws, generator, Replacement::yes);
  const std::vector<std::int64_t> counts = bincount(drawn, 6).to_vector<std::int64_t>();
  for (std::size_t k = 0; k < weights.size(); ++k) {
    const double p = weights[k] / 10;
    CHECK(std::abs(double(counts[k]) - p * kDraws) <= 5 * std::sqrt(p * (1 - p) * kDraws));
  }
  const RandomRange before = generator.state();
  CHECK_THROWS_AS((void)multinomial(vec({0, 0}), 1, generator), ConfigError);
  CHECK(generator.state().offset == before.offset);
  (void)multinomial(vec({1, 1}), 1, generator);
  CHECK(generator.state().offset > before.offset);
  // Without replacement the first draw follows the weights, and the second those that are left.
  const Tensor rows = expand(vec({1, 2, 3}), {kDraws, 3});
  const Tensor pairs = multinomial(rows, 2, generator);
  const std::vector<std::int64_t> of_pairs =
      bincount(select(pairs, 1, 0) * 3 + select(pairs, 1, 1), 9).to_vector<std::int64_t>();
  for (int a = 0; a < 3; ++a) {
    for (int b = 0; b < 3; ++b) {
      const double p = a == b ? 0 : (a + 1) / 6.0 * (b + 1) / (6.0 - (a + 1));
      CHECK(std::abs(double(of_pairs[std::size_t(3 * a + b)]) - p * kDraws) <= 5 * std::sqrt(p * (1 - p) * kDraws));
    }
  }
}

TEST_CASE("multinomial gives the CPU's categories on a device, and a bad weight throws at the next wait") {
  DEVICE_OR_SKIP();
  Generator generator(7);
  const Tensor weights = rand({20, 30}, generator, cpu, DType::f64);
  for (const Replacement replacement : {Replacement::no, Replacement::yes}) {
    Generator here(3), there(3);
    CHECK(equal(multinomial(weights.to(device), 9, there, replacement).to(cpu),
                multinomial(weights, 9, here, replacement)));
    CHECK(here.state().offset == there.state().offset);
  }
  const Tensor bad = multinomial(vec({1, -1, 3}).to(device), 2, generator, Replacement::yes);
  CHECK_THROWS_WITH_AS((void)bad.to(cpu), doctest::Contains("multinomial: p is"), ConfigError);
}

TEST_CASE("samples have the moments of their distributions") {
  Generator g(2);
  const Tensor a = vec({0.5}), b = vec({2});
  const Shape many{kDraws};
  check_moments(Normal{a, b}.sample(g, many), 0.5, 4, 3 * 16);
  check_moments(Uniform{a, b}.sample(g, many), 1.25, 2.25 / 12, std::pow(1.5, 4) / 80);
  check_moments(Exponential{b}.sample(g, many), 0.5, 0.25, 9 / 16.0);
  check_moments(Laplace{a, b}.sample(g, many), 0.5, 8, 24 * 16);
  // e^(s^2) of s = 0.5.
  const double w = std::exp(0.25), spread = (w - 1) * w * std::exp(2 * 0.5);
  check_moments(LogNormal{a, vec({0.5})}.sample(g, many), std::exp(0.5 + 0.125), spread,
                (std::pow(w, 4) + 2 * std::pow(w, 3) + 3 * w * w - 3) * spread * spread);
  const double wide = M_PI * M_PI / 6 * 4;
  check_moments(Gumbel{a, b}.sample(g, many), 0.5 + 2 * std::numbers::egamma, wide, 5.4 * wide * wide);
  // A Cauchy variable has no moments; a third lies beyond tan(pi / 3).
  const Tensor far = gt(abs(Cauchy{a, b}.sample(g, many) - a), b * std::sqrt(3.0));
  check_moments(far.to(DType::f64), 1 / 3.0, 2 / 9.0, 2 / 9.0 * (1 - 3 * 2 / 9.0));
  check_moments(Bernoulli::of_probs(vec({0.3})).sample(g, many), 0.3, 0.21, 0.21 * (1 - 3 * 0.21));
  const Tensor drawn = Categorical{log(vec({1, 2, 5}))}.sample(g, many);
  check_moments(eq(drawn, 1).to(DType::f64), 0.25, 0.1875, 0.1875 * (1 - 3 * 0.1875));
  const Tensor vectors = OneHotCategorical{log(vec({1, 2, 5}))}.sample(g, many);
  check_moments(select(vectors, 1, 1), 0.25, 0.1875, 0.1875 * (1 - 3 * 0.1875));
  CHECK(equal(sum(vectors, {1}), ones(many, cpu, DType::f64)));
  // With a = sqrt(2 / pi) the fourth central moment of |N(0, 1)| is 3 - 2 a^2 - 3 a^4.
  const double a2 = 2 / std::numbers::pi;
  check_moments(HalfNormal{b}.sample(g, many), 2 * std::sqrt(a2), 4 * (1 - a2), 16 * (3 - 2 * a2 - 3 * a2 * a2));
  // With q = 1 - p that of failures before a success is q (9 q + p^2) / p^4.
  for (const double p : {0.4, 1 - 0x1p-10}) {
    const double q = 1 - p;
    check_moments(Geometric::of_probs(vec({p})).sample(g, many), q / p, q / (p * p),
                  q * (9 * q + p * p) / std::pow(p, 4));
  }
}

TEST_CASE("shapes of samples and densities are those of the parameters, with the asked ones in front") {
  Generator g(2);
  const Tensor column = zeros({3, 1}, cpu), row = ones({4}, cpu);
  CHECK(Normal{column, row}.sample(g).shape() == Shape{3, 4});
  CHECK(Laplace{column, row}.rsample(g, {2, 5}).shape() == Shape{2, 5, 3, 4});
  CHECK(Normal{column, row}.entropy().shape() == Shape{3, 4});
  CHECK(Uniform{column, row}.log_prob(zeros({2, 1, 1}, cpu)).shape() == Shape{2, 3, 4});
  const Categorical c{zeros({3, 5}, cpu)};
  CHECK(c.sample(g, {2}).shape() == Shape{2, 3});
  CHECK(c.sample(g).shape() == Shape{3});
  CHECK(c.log_prob(zeros({2, 1}, cpu, DType::i64)).shape() == Shape{2, 3});
  CHECK(c.entropy().shape() == Shape{3});
  CHECK(c.mean().shape() == Shape{3});
  const OneHotCategorical o{zeros({3, 5}, cpu)};
  CHECK(o.sample(g, {2}).shape() == Shape{2, 3, 5});
  CHECK(o.log_prob(zeros({2, 1, 5}, cpu)).shape() == Shape{2, 3});
  CHECK(o.mean().shape() == Shape{3, 5});
  CHECK(Normal{column, row}.mean().shape() == Shape{3, 4});
  CHECK(Gumbel{column, row}.variance().shape() == Shape{3, 4});
  CHECK(Cauchy{column, row}.variance().shape() == Shape{3, 4});
  CHECK(HalfNormal{column}.rsample(g, {2}).shape() == Shape{2, 3, 1});
  CHECK(Geometric{row.to(DType::bf16)}.sample(g, {2}).dtype() == DType::bf16);
  CHECK(OneHotCategorical{row.to(DType::f16)}.sample(g).dtype() == DType::f16);
  CHECK(Normal{column, row}.rsample(g).dtype() == DType::f32);
  CHECK(Exponential{row.to(DType::bf16)}.sample(g).dtype() == DType::bf16);
}

TEST_CASE("log-densities and entropies follow their formulas, and are -inf outside of the support") {
  const Tensor loc = vec({0.5, -1}), scale = vec({2, 0.25});
  close(Normal{loc, scale}.log_prob(vec({1.5, -1})),
        {-0.125 - std::log(2.0) - 0.5 * std::log(2 * M_PI), -std::log(0.25) - 0.5 * std::log(2 * M_PI)});
  close(Normal{loc, scale}.entropy(), {0.5 * std::log(2 * M_PI * M_E * 4), 0.5 * std::log(2 * M_PI * M_E / 16)});
  close(Uniform{vec({0}), vec({4})}.log_prob(vec({0, 2, 4, -1})), {-std::log(4), -std::log(4), -kInf, -kInf});
  close(Uniform{vec({0}), vec({4})}.entropy(), {std::log(4)});
  close(Exponential{vec({2})}.log_prob(vec({0, 1, -1})), {std::log(2), std::log(2) - 2, -kInf});
  close(Exponential{vec({2})}.entropy(), {1 - std::log(2)});
  close(Laplace{loc, scale}.log_prob(vec({1.5, -1})), {-0.5 - std::log(4), -std::log(0.5)});
  close(Laplace{loc, scale}.entropy(), {1 + std::log(4), 1 + std::log(0.5)});
  const Bernoulli coin = Bernoulli::of_probs(vec({0.3}));
  close(coin.log_prob(vec({0, 1})), {std::log(0.7), std::log(0.3)});
  close(coin.entropy(), {-0.3 * std::log(0.3) - 0.7 * std::log(0.7)});
  CHECK(at(Bernoulli::of_probs(vec({1})).log_prob(vec({1}))) == doctest::Approx(0));
  const Categorical three = Categorical::of_probs(vec({1, 0, 3}));
  close(three.log_prob(from_data(std::vector<std::int64_t>{0, 1, 2}, {3}, cpu)),
        {std::log(0.25), -kInf, std::log(0.75)});
  close(three.entropy(), {-0.25 * std::log(0.25) - 0.75 * std::log(0.75)});
  close(three.probs(), {0.25, 0, 0.75});
  CHECK_THROWS_AS((void)three.log_prob(from_data(std::vector<std::int64_t>{3}, {1}, cpu)), IndexError);
}

// torch.distributions of PyTorch 2.13 in f64.
TEST_CASE("log-normal, Gumbel and Cauchy densities and entropies equal PyTorch's") {
  const Tensor loc = vec({0.5, -1}), scale = vec({2, 0.25}), x = vec({1.5, 0.5});
  close(LogNormal{loc, scale}.log_prob(x), {-2.0186679275959074, 0.40723378608867666});
  close(LogNormal{loc, scale}.entropy(), {2.612085713764618, -0.9673558279152179});
  close(LogNormal{loc, scale}.log_prob(vec({0, -2})), {-kInf, -kInf});
  close(Gumbel{loc, scale}.log_prob(x), {-1.7996778402725786, -4.616184391056776});
  close(Gumbel{loc, scale}.entropy(), {2.270362845461478, 0.19092130378164218});
  close(Cauchy{loc, scale}.log_prob(x), {-2.061020617723555, -3.369353437373734});
  close(Cauchy{loc, scale}.entropy(), {3.224171427529236, 1.1447298858494002});
}

// D(...).log_prob(x) and D(...).entropy() of torch.distributions of PyTorch 2.13 in f64, validate_args=False.
TEST_CASE("half-normal, geometric and one-hot densities and entropies equal PyTorch's") {
  const HalfNormal half{vec({2, 0.25})};
  close(half.log_prob(vec({1.5, 0.5})), {-1.2001885332046727, -0.8394969915248368});
  close(half.log_prob(vec({0, -1})), {-0.9189385332046728, -kInf});
  close(half.entropy(), {1.4189385332046727, -0.6605030084751632});
  const Geometric failures{vec({-1.5, 0.25, 2})};
  close(failures.log_prob(vec({0, 3, 1})), {-1.7014132779827524, -3.053757679515374, -2.253856022085944});
  close(failures.log_prob(vec({-1})), {-kInf, -kInf, -kInf});
  close(failures.entropy(), {2.6040849645390165, 1.219181686850029, 0.41477641584135877});
  close(Geometric::of_probs(vec({0.3})).log_prob(vec({2})), {-1.9173226922034008});
  close(Geometric::of_probs(vec({0.3})).probs(), {0.3});
  const OneHotCategorical vectors = OneHotCategorical::of_probs(reshape(vec({1, 0, 3, 2, 1, 1}), {2, 3}));
  close(vectors.log_prob(reshape(vec({0, 0, 1, 0, 1, 0}), {2, 3})), {-0.2876820724517809, -1.3862943611198906});
  close(vectors.log_prob(vec({0, 1, 0})), {-kInf, -1.3862943611198906});
  close(vectors.entropy(), {0.5623351446188083, 1.0397207708399179});
  close(vectors.probs(), {0.25, 0, 0.75, 0.5, 0.25, 0.25});
}

// D(...).mean and D(...).variance of the same.
TEST_CASE("means and variances equal PyTorch's, also where they are infinite or NaN") {
  const Tensor loc = vec({0.5, -1}), scale = vec({2, 0.25});
  const auto moments = [](const auto& d, const Values& mean, const Values& variance) {
    close(d.mean(), mean);
    close(d.variance(), variance);
  };
  moments(Normal{loc, scale}, {0.5, -1}, {4, 0.0625});
  moments(HalfNormal{scale}, {1.5957691216057308, 0.19947114020071635}, {1.4535209105296745, 0.022711264227026164});
  moments(Uniform{loc, loc + scale}, {1.5, -0.875}, {1 / 3.0, 0.0625 / 12});
  moments(Exponential{scale}, {0.5, 4}, {0.25, 16});
  moments(Laplace{loc, scale}, {0.5, -1}, {8, 0.125});
  moments(LogNormal{loc, scale}, {12.182493960703473, 0.3795571881830896}, {7954.670768472807, 0.009291307743475185});
  moments(Gumbel{loc, scale}, {1.6544313298030657, -0.8556960837746168}, {6.579736267392906, 0.10280837917801415});
  moments(Cauchy{loc, scale}, {kNaN, kNaN}, {kInf, kInf});
  const Tensor logits = vec({-1.5, 0.25, 2});
  moments(Bernoulli{logits}, {0.18242552380635635, 0.5621765008857981, 0.8807970779778823},
          {0.14914645207033286, 0.24613408273759835, 0.10499358540350662});
  moments(Geometric{logits}, {4.4816890703380645, 0.778800783071405, 0.1353352832366128},
          {24.567225993525728, 1.3853314427840386, 0.15365092212534703});
  moments(Categorical{logits}, {kNaN}, {kNaN});
  moments(OneHotCategorical::of_probs(vec({1, 0, 3})), {0.25, 0, 0.75}, {0.1875, 0, 0.1875});
}

MultivariateNormal skewed() {
  return {vec({1, -2, 0.5}), reshape(vec({2, 99, 99, 0.5, 1, 99, -1, 0.25, 0.5}), {3, 3})};  // 99: not read
}
MultivariateNormal of_rows() {
  return MultivariateNormal::of_covariance(vec({0, 1, 0}), reshape(vec({2, 0.5, 0, 0.5, 1, 0.25, 0, 0.25, 3}), {3, 3}));
}

TEST_CASE("multivariate normal densities, entropies and divergences equal PyTorch's, in batches too") {
  const Tensor x = reshape(vec({0, 0, 0, 1, -1, 2}), {2, 3});
  close(skewed().log_prob(x), {-10.295878099614018, -6.3818155996140185});
  close(of_rows().log_prob(x), {-4.159246715784791, -7.909246715784791});
  close(skewed().entropy(), {4.2568155996140185});
  close(skewed().mean(), {1, -2, 0.5});
  close(skewed().variance(), {4, 1.25, 1.3125});
  close(kl_divergence(skewed(), of_rows()), {7.736272579585405});
  close(kl_divergence(of_rows(), skewed()), {17.206372237487763});
  // Three factors of 3 x 3, whose shape a single one must not be taken for.
  const Tensor l = skewed().scale_tril;
  const MultivariateNormal three{vec({1, -2, 0.5}), stack({l, l, l}, 0)};
  close(kl_divergence(of_rows(), three), {17.206372237487763, 17.206372237487763, 17.206372237487763});
  CHECK(three.log_prob(unsqueeze(x, 1)).shape() == Shape{2, 3});
  CHECK(three.entropy().shape() == Shape{3});
  CHECK(three.mean().shape() == Shape{3, 3});
  CHECK(three.variance().shape() == Shape{3, 3});
  Generator g(3);
  CHECK(three.sample(g, {5}).shape() == Shape{5, 3, 3});
  CHECK_FALSE(three.rsample(g).requires_grad());
  CHECK_THROWS_WITH_AS((void)(MultivariateNormal{vec({1, 2}), l}.entropy()),
                       doctest::Contains("MultivariateNormal: loc has shape [2], scale_tril [3, 3]"), ShapeError);
  CHECK_THROWS_WITH_AS((void)skewed().log_prob(vec({1})),
                       "MultivariateNormal: values have shape [1], expected 3 numbers in the last dimension",
                       ShapeError);
  CHECK_THROWS_WITH_AS((void)kl_divergence(skewed(), MultivariateNormal{vec({1}), reshape(vec({1}), {1, 1})}),
                       "kl_divergence: vectors of 3 and of 1 numbers, expected as many", ShapeError);
  CHECK_THROWS_AS((void)MultivariateNormal::of_covariance(vec({1}), reshape(vec({-1}), {1, 1})), ConfigError);
}

TEST_CASE("multivariate normal samples have their mean and covariance, and derivatives flow to both") {
  Generator g(2);
  const Tensor drawn = skewed().sample(g, {kDraws}) - skewed().loc;
  const Tensor want = skewed().covariance(), got = matmul(t(drawn), drawn) / double(kDraws);
  for (std::size_t i = 0; i < 3; ++i) {
    const double mean = at(levin::mean(drawn, {0}), i), variance = at(want, 4 * i);
    CHECK(std::abs(mean) < 5 * std::sqrt(variance / kDraws));
    for (std::size_t j = 0; j < 3; ++j) {
      const double error = std::sqrt((variance * at(want, 4 * j) + std::pow(at(want, 3 * i + j), 2)) / kDraws);
      CHECK(std::abs(at(got, 3 * i + j) - at(want, 3 * i + j)) < 5 * error);
    }
  }
  Tensor loc = vec({1, -2, 0.5}), l = reshape(vec({2, 0, 0, 0.5, 1, 0, -1, 0.25, 0.5}), {3, 3});
  loc.requires_grad_();
  l.requires_grad_();
  const GradcheckFn f = [&](std::span<const Tensor> in) {
    Generator again(5);
    const MultivariateNormal d{in[0], in[1]};
    return Tensors{d.rsample(again, {2}),       d.log_prob(vec({0, 1, 2})), d.entropy(), d.mean(), d.variance(),
                   kl_divergence(d, of_rows()), kl_divergence(of_rows(), d)};
  };
  const GradcheckResult result = gradcheck(f, std::array{loc, l});
  CHECK_MESSAGE(result.ok, result.message);
}

TEST_CASE("divergences follow their formulas, and one with itself is 0") {
  const Normal p{vec({0.5}), vec({2})}, q{vec({-1}), vec({0.5})};
  close(kl_divergence(p, q), {0.5 * (16 + 9 - 1 - std::log(16.0))});
  close(kl_divergence(p, p), {0});
  const Categorical a = Categorical::of_probs(vec({0.5, 0.5, 0})), b = Categorical::of_probs(vec({0.25, 0.75, 0})),
                    c = Categorical::of_probs(vec({1, 0, 0}));
  close(kl_divergence(a, b), {0.5 * std::log(2.0) + 0.5 * std::log(0.5 / 0.75)});
  close(kl_divergence(c, a), {std::log(2.0)});
  CHECK(at(kl_divergence(a, c)) == kInf);
  // kl_divergence(D(logits=p), D(logits=q)) of PyTorch.
  const Tensor from = vec({-1.5, 0.25, 2}), to = vec({0.5, -1, 2});
  close(kl_divergence(Bernoulli{from}, Bernoulli{to}), {0.40781265858464155, 0.19004289374662686, 0});
  close(kl_divergence(Geometric{from}, Geometric{to}), {2.2355021933089385, 0.33804844821365554, 0});
  const OneHotCategorical o = OneHotCategorical::of_probs(vec({1, 0, 3}));
  close(kl_divergence(o, OneHotCategorical::of_probs(vec({1, 1, 2}))), {0.3040988310811233});
  const Bernoulli never{vec({-kInf})}, always{vec({kInf})}, coin{vec({0})};
  close(kl_divergence(never, coin), {std::log(2.0)});
  close(kl_divergence(always, coin), {std::log(2.0)});
  CHECK(at(kl_divergence(coin, never)) == kInf);
  CHECK(at(kl_divergence(coin, always)) == kInf);
}

TEST_CASE("rsample and log_prob differentiate in the parameters, and sample does not") {
  const Values first{0.5, -1}, second{2, 0.25};
  const auto check = [&](auto make) {
    Tensor x = vec(first), y = vec(second);
    x.requires_grad_();
    y.requires_grad_();
    const GradcheckFn f = [&](std::span<const Tensor> in) {
      Generator g(5);
      const auto d = make(in[0], in[1]);
      return Tensors{d.rsample(g, {3}), d.log_prob(vec({0.7, 0.1})), d.entropy(), d.mean(), d.variance()};
    };
    const GradcheckResult result = gradcheck(f, std::array{x, y});
    CHECK_MESSAGE(result.ok, result.message);
    Generator g(5);
    CHECK_FALSE(make(x, y).sample(g).requires_grad());
  };
  check([](const Tensor& x, const Tensor& y) { return Normal{x, y}; });
  check([](const Tensor& x, const Tensor& y) { return Laplace{x, y}; });
  check([](const Tensor& x, const Tensor& y) { return Exponential{exp(x) + y}; });
  check([](const Tensor& x, const Tensor& y) { return Uniform{x - 1, x + y + 3}; });
  check([](const Tensor& x, const Tensor& y) { return LogNormal{x, y * 0.5}; });
  check([](const Tensor& x, const Tensor& y) { return Gumbel{x, y}; });
  check([](const Tensor& x, const Tensor& y) { return HalfNormal{exp(x) + y}; });
  Tensor place = vec(first), width = vec(second);
  place.requires_grad_();
  width.requires_grad_();
  const GradcheckFn of_cauchy = [](std::span<const Tensor> in) {  // its moments are constants
    Generator g(5);
    const Cauchy d{in[0], in[1]};
    return Tensors{d.rsample(g, {3}), d.log_prob(vec({0.7, 0.1})), d.entropy()};
  };
  CHECK(gradcheck(of_cauchy, std::array{place, width}).ok);
  Tensor logits = vec({0.3, -0.2, 1});
  logits.requires_grad_();
  const GradcheckFn f = [&](std::span<const Tensor> in) {
    const Categorical c{in[0]};
    const Bernoulli b{in[0]};
    const Geometric failures{in[0]};
    const OneHotCategorical o{in[0]};
    const Tensor other = in[0] * in[0];
    return Tensors{c.log_prob(from_data(std::vector<std::int64_t>{2, 0}, {2}, cpu)),
                   c.entropy(),
                   b.entropy(),
                   b.log_prob(vec({1, 0, 1})),
                   b.variance(),
                   failures.entropy(),
                   failures.log_prob(vec({2, 0, 5})),
                   failures.mean(),
                   failures.variance(),
                   o.log_prob(vec({0, 1, 0})),
                   o.entropy(),
                   o.variance(),
                   kl_divergence(c, Categorical{other}),
                   kl_divergence(b, Bernoulli{other}),
                   kl_divergence(failures, Geometric{other}),
                   kl_divergence(o, OneHotCategorical{other})};
  };
  CHECK(gradcheck(f, std::array{logits}).ok);
}

TEST_CASE("parameters of two dtypes, and logits without categories, are refused") {
  Generator g(1);
  CHECK_THROWS_WITH_AS((void)(Normal{zeros({2}, cpu), zeros({2}, cpu, DType::f64)}.sample(g)),
                       doctest::Contains("Normal: tensors are f32 and f64"), DTypeError);
  CHECK_THROWS_WITH_AS((void)(Categorical{zeros({}, cpu)}.entropy()), doctest::Contains("Categorical: logits"),
                       ShapeError);
  CHECK_THROWS_AS((void)(Exponential{zeros({2}, cpu, DType::i64)}.entropy()), UnsupportedError);
  CHECK_THROWS_AS((void)(HalfNormal{zeros({2}, cpu, DType::i64)}.mean()), UnsupportedError);
  CHECK_THROWS_WITH_AS((void)(OneHotCategorical{zeros({}, cpu)}.mean()), doctest::Contains("OneHotCategorical: logits"),
                       ShapeError);
  CHECK_THROWS_WITH_AS((void)(OneHotCategorical{zeros({3}, cpu)}.log_prob(zeros({2}, cpu))),
                       "OneHotCategorical: values have shape [2], expected 3 numbers in the last dimension",
                       ShapeError);
  CHECK_THROWS_AS((void)kl_divergence(Bernoulli{zeros({2}, cpu)}, Bernoulli{zeros({2}, cpu, DType::f64)}), DTypeError);
}

}  // namespace levin::testing
