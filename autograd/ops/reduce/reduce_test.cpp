#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/executor/cpu.h"
#include "kernels/reduce/reduce.cuh"
#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin {
namespace {

const Device cpu = Device::cpu();
constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
using Values = std::vector<double>;

Tensor normal(const Shape& shape, unsigned seed, DType dtype = DType::f32) {
  std::mt19937 random(seed);
  std::normal_distribution<double> draw;
  Values v(static_cast<std::size_t>(shape.numel()));
  for (double& x : v) x = draw(random);
  return from_data(v, shape, cpu).to(dtype);
}

Values values(const Tensor& x) { return x.to(DType::f64).to_vector<double>(); }

// The elements of each output of a reduction of x, in row-major order, found by plain coordinates.
std::vector<Values> groups(const Tensor& x, std::uint32_t mask) {
  const Values all = values(x);
  std::int64_t outputs = 1;
  for (int d = 0; d < x.rank(); ++d) outputs *= mask >> d & 1u ? 1 : x.size(d);
  std::vector<Values> out(static_cast<std::size_t>(outputs));
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    std::int64_t rest = i, o = 0, scale = 1;
    for (int d = x.rank() - 1; d >= 0; --d) {
      if (!(mask >> d & 1u)) {
        o += rest % x.size(d) * scale;
        scale *= x.size(d);
      }
      rest /= x.size(d);
    }
    out[static_cast<std::size_t>(o)].push_back(all[static_cast<std::size_t>(i)]);
  }
  return out;
}

Dims dims_of(std::uint32_t mask) {
  std::vector<std::int64_t> dims;
  for (int d = 0; d < kMaxRank; ++d) {
    if (mask >> d & 1u) dims.push_back(d);
  }
  return Dims(std::span<const std::int64_t>(dims));
}

double total(const Values& v, double (*f)(double)) {
  double s = 0;
  for (const double x : v) s += f(x);
  return s;
}
double self(double x) { return x; }
double variance(const Values& v) {
  const double n = static_cast<double>(v.size()), mean = total(v, self) / n;
  double s = 0;
  for (const double x : v) s += (x - mean) * (x - mean);
  return s / (n - 1);
}

// `terms`: the unit of the sum's rounding errors, relative to the result.
struct Case {
  const char* name;
  std::function<Tensor(const Tensor&, Dims)> run;
  std::function<double(const Values&)> reference, terms;
};
double one(const Values&) { return 0; }  // exact
const Case kCases[] = {
    {"sum", [](const Tensor& x, Dims d) { return sum(x, d); }, [](const Values& v) { return total(v, self); },
     [](const Values& v) { return total(v, std::fabs); }},
    {"mean", [](const Tensor& x, Dims d) { return mean(x, d); },
     [](const Values& v) { return total(v, self) / static_cast<double>(v.size()); },
     [](const Values& v) { return total(v, std::fabs) / static_cast<double>(v.size()); }},
    {"amax", [](const Tensor& x, Dims d) { return amax(x, d); },
     [](const Values& v) { return *std::max_element(v.begin(), v.end()); }, one},
    {"amin", [](const Tensor& x, Dims d) { return amin(x, d); },
     [](const Values& v) { return *std::min_element(v.begin(), v.end()); }, one},
    {"norm 1", [](const Tensor& x, Dims d) { return norm(x, 1, d); },
     [](const Values& v) { return total(v, std::fabs); }, [](const Values& v) { return total(v, std::fabs); }},
    {"norm 2", [](const Tensor& x, Dims d) { return norm(x, 2, d); },
     [](const Values& v) { return std::sqrt(total(v, [](double x) { return x * x; })); },
     [](const Values& v) { return std::sqrt(total(v, [](double x) { return x * x; })); }},
    {"norm 3", [](const Tensor& x, Dims d) { return norm(x, 3, d); },
     [](const Values& v) { return std::cbrt(total(v, [](double x) { return std::fabs(x * x * x); })); },
     [](const Values& v) { return std::cbrt(total(v, [](double x) { return std::fabs(x * x * x); })); }},
    {"norm inf", [](const Tensor& x, Dims d) { return norm(x, kInf, d); },
     [](const Values& v) {
       double top = 0;
       for (const double x : v) top = std::max(top, std::fabs(x));
       return top;
     },
     one},
    {"logsumexp", [](const Tensor& x, Dims d) { return logsumexp(x, d); },
     [](const Values& v) { return std::log(total(v, std::exp)); },
     [](const Values& v) { return 2 + std::fabs(*std::max_element(v.begin(), v.end())); }},
    {"var", [](const Tensor& x, Dims d) { return var(x, d); }, variance,
     [](const Values& v) { return 1 + variance(v); }},
    {"std", [](const Tensor& x, Dims d) { return levin::std(x, d); },
     [](const Values& v) { return std::sqrt(variance(v)); },
     [](const Values& v) { return 1 + std::sqrt(variance(v)); }},
};

void check_case(const Case& c, const Tensor& x, std::uint32_t mask) {
  const std::vector<Values> g = groups(x, mask);
  if (std::string(c.name) != "sum" && g[0].size() < 2) return;
  const Tensor y = c.run(x, dims_of(mask));
  const Values got = values(y);
  REQUIRE(got.size() == g.size());
  const double eps = epsilon(x.dtype()), eps_sum = x.dtype() == DType::f64 ? eps : epsilon(DType::f32);
  for (std::size_t o = 0; o < g.size(); ++o) {
    const double expected = c.reference(g[o]);
    // An element meets at most 64 additions in its chain, a few where chains join, and one a level of pairs.
    const double additions = 80 + std::log2(static_cast<double>(g[o].size()));
    INFO(std::string(c.name), " of ", text(x), ", mask ", mask, ", output ", o);
    CHECK(std::fabs(got[o] - expected) <= additions * eps_sum * c.terms(g[o]) + eps * std::fabs(expected));
  }
}

TEST_CASE("reductions equal plain sums over every set of dimensions, in every layout and floating dtype") {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    for (const Shape& shape : {Shape{3, 5, 4}, Shape{2, 33, 40}, Shape{70, 1, 9}, Shape{1, 1, 1}}) {
      const Tensor x = normal(shape, 1, dtype);
      const Tensor layouts[] = {x, transpose(x, 0, 2), slice(x, 1, 0, x.size(1), 2), slice(x, 2, 0, x.size(2), 2),
                                expand(select(x, 0, 0), {2, x.size(1), x.size(2)})};
      for (const Tensor& layout : layouts) {
        for (std::uint32_t mask = 1; mask < 8; ++mask) {
          for (const Case& c : kCases) check_case(c, layout, mask);
        }
      }
    }
  }
}

TEST_CASE("long reductions, cut into chunks, stay within the bound: one row, tall columns, narrow columns") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    check_case(kCases[0], normal({300'001}, 2, dtype), 1);
    check_case(kCases[0], normal({9001, 3}, 2, dtype), 1);
    check_case(kCases[0], normal({9001, 300}, 2, dtype), 1);
    check_case(kCases[0], normal({700, 1100}, 2, dtype), 1);
    check_case(kCases[0], normal({2, 70'000, 2}, 2, dtype), 2);
    check_case(kCases[9], normal({5000, 7}, 2, dtype), 1);
  }
}

TEST_CASE("sums have the same bits on any number of threads") {
  const Tensor row = normal({1'000'003}, 3), columns = normal({9001, 130}, 3);
  const Tensor half_row = row.to(DType::bf16), half_columns = normal({1030, 1100}, 3, DType::f16);
  const auto run = [&](int threads) {
    kernels::set_num_threads(threads);
    Values v = values(sum(row));
    for (const Tensor& t : {sum(columns, 0), sum(columns, 1), var(columns, 0), sum(half_row), sum(half_columns, 0),
                            sum(half_columns, 1), sum(half_columns.to(DType::f32), 0)}) {
      const Values more = values(t);
      v.insert(v.end(), more.begin(), more.end());
    }
    return v;
  };
  const Values alone = run(1);
  CHECK(run(2) == alone);
  CHECK(run(5) == alone);
  kernels::set_num_threads(0);
}

TEST_CASE("every x86 level reduces rows and columns alike") {
  const Tensor x = round(normal({77, 45}, 4));  // sums are exact
  const Tensor half = x.to(DType::bf16);
  for (const kernels::CpuLevel level : {kernels::CpuLevel::base, kernels::CpuLevel::v3, kernels::CpuLevel::v4}) {
    if (level > kernels::cpu_level()) continue;
    for (const std::uint32_t mask : {1u, 2u, 3u}) {
      const kernels::ReducePlan plan(x.shape(), x.strides(), mask);
      std::vector<float> y(static_cast<std::size_t>(plan.outputs));
      kernels::cpu::reduce<float, float>(kernels::Cpu{level}, x.data<float>(), plan, kernels::Reduce::sum,
                                         kernels::Map::value, y.data());
      const std::vector<Values> g = groups(x, mask);
      for (std::size_t o = 0; o < y.size(); ++o) CHECK(static_cast<double>(y[o]) == total(g[o], self));
      kernels::cpu::reduce<bf16, float>(kernels::Cpu{level}, half.data<bf16>(), plan, kernels::Reduce::sum,
                                        kernels::Map::value, y.data());
      for (std::size_t o = 0; o < y.size(); ++o) CHECK(static_cast<double>(y[o]) == total(g[o], self));
    }
  }
}

TEST_CASE("sums and products of integers and bool are i64; extremes keep the dtype") {
  const Tensor x = tensor<std::uint8_t>({200, 100, 3}, cpu);
  CHECK(sum(x).dtype() == DType::i64);
  CHECK(sum(x).item<std::int64_t>() == 303);
  CHECK(prod(x).item<std::int64_t>() == 60'000);
  CHECK(amax(x).dtype() == DType::u8);
  CHECK(amax(x).item<std::int64_t>() == 200);
  CHECK(sum(gt(x, 3)).item<std::int64_t>() == 2);
  CHECK(sum(tensor<std::int64_t>({std::int64_t{1} << 60, 1}, cpu)).item<std::int64_t>() == (std::int64_t{1} << 60) + 1);
  CHECK_THROWS_AS((void)mean(x), UnsupportedError);
}

TEST_CASE("16-bit sums are rounded once: 4096 ones and more are not lost") {
  CHECK(sum(ones({5000}, cpu, DType::f16)).item() == 5000);
  CHECK(mean(full({70'000}, 2, cpu, DType::f16)).item() == 2);  // the sum alone would overflow
  CHECK(levin::std(tensor({-300.f, 300.f}, cpu).to(DType::f16), {}, 0).item() == 300);
}

TEST_CASE("shapes: negative and several dimensions, keepdim, rank 0") {
  const Tensor x = ones({2, 3, 4}, cpu);
  CHECK(sum(x, -1).shape() == Shape{2, 3});
  CHECK(sum(x, {0, -1}).shape() == Shape{3});
  CHECK(sum(x, {0, 2}, KeepDim::yes).shape() == Shape{1, 3, 1});
  CHECK(sum(x).shape() == Shape{});
  CHECK(sum(x, {}, KeepDim::yes).shape() == Shape{1, 1, 1});
  CHECK(sum(sum(x)).item() == 24);
}

TEST_CASE("nothing to reduce: 0, 1, NaN, -infinity, false, true; an extreme of nothing is refused") {
  const Tensor x = zeros({2, 0}, cpu);
  CHECK(values(sum(x, 1)) == Values{0, 0});
  CHECK(values(prod(x, 1)) == Values{1, 1});
  CHECK(values(norm(x, kInf, 1)) == Values{0, 0});
  CHECK(std::isnan(values(mean(x, 1))[0]));
  CHECK(std::isnan(values(var(x, 1))[0]));
  CHECK(values(logsumexp(x, 1)) == Values{-kInf, -kInf});
  CHECK(values(any(x, 1)) == Values{0, 0});
  CHECK(values(all(x, 1)) == Values{1, 1});
  CHECK(sum(x, 0).shape() == Shape{0});
  CHECK(amax(x, 0).shape() == Shape{0});
  CHECK_THROWS_WITH_AS((void)amax(x, 1),
                       "amax: x [2, 0] has no elements along the reduced dimensions, expected at least one",
                       ShapeError);
  CHECK_THROWS_AS((void)amin(x), ShapeError);
}

TEST_CASE("a NaN wins in extremes wherever it stands, and infinities pass through") {
  for (std::int64_t at = 0; at < 70; ++at) {
    Tensor x = arange(70, cpu, DType::f32);
    x.mutable_data<float>()[at] = static_cast<float>(kNan);
    CHECK(std::isnan(amax(x).item()));
    CHECK(std::isnan(amin(x).item()));
    CHECK(std::isnan(values(amax(reshape(x, {7, 10}), 0))[static_cast<std::size_t>(at % 10)]));
    CHECK(std::isnan(norm(x, kInf).item()));
  }
  CHECK(amax(tensor({-kInf, -kInf}, cpu)).item() == -kInf);
  CHECK(logsumexp(tensor({-kInf, -kInf}, cpu)).item() == -kInf);
  CHECK(logsumexp(tensor({kInf, 0.0}, cpu)).item() == kInf);
  CHECK(logsumexp(tensor({1000.0, 1000.0}, cpu)).item() == doctest::Approx(1000 + std::log(2.0)));
}

TEST_CASE("any and all count what is not zero, NaN included") {
  CHECK(any(tensor({0.0, kNan}, cpu)).item<bool>());
  CHECK_FALSE(any(tensor({0.0, -0.0}, cpu)).item<bool>());
  CHECK(values(all(tensor<std::int32_t>({1, 0, 256, 3}, cpu).to(DType::i32), {})) == Values{0});
  const Tensor x = reshape(tensor<std::int64_t>({0, 0, 1, 0, 2, 3}, cpu), {3, 2});
  CHECK(values(any(x, 1)) == Values{0, 1, 1});
  CHECK(values(all(x, 1)) == Values{0, 0, 1});
  CHECK(any(x, 0).dtype() == DType::b8);
}

TEST_CASE("sum_to undoes a broadcast, and refuses a shape that does not broadcast to x's") {
  const Tensor x = ones({4, 2, 3}, cpu);
  CHECK(sum_to(x, x.shape()).impl() == x.impl());
  CHECK(sum_to(x, {2, 3}).to_vector<float>() == std::vector<float>(6, 4));
  CHECK(sum_to(x, {4, 1, 3}).to_vector<float>() == std::vector<float>(12, 2));
  CHECK(sum_to(x, {1, 1}).shape() == Shape{1, 1});
  CHECK(sum_to(x, {}).item() == 24);
  CHECK_THROWS_AS((void)sum_to(x.to(DType::i32), {3}), DTypeError);
  CHECK_THROWS_AS((void)sum_to(x, {2, 2}), ShapeError);
  CHECK_THROWS_AS((void)sum_to(x, {1, 4, 2, 3}), ShapeError);
}

TEST_CASE("wrong dimensions and orders are typed errors") {
  const Tensor x = ones({2, 3}, cpu);
  CHECK_THROWS_AS((void)sum(x, 2), IndexError);
  CHECK_THROWS_AS((void)mean(x, {0, 0}), IndexError);
  CHECK_THROWS_AS((void)norm(x, 0), ConfigError);
  CHECK_THROWS_AS((void)norm(x, -1), ConfigError);
  CHECK_THROWS_AS((void)norm(x, kNan), ConfigError);
  CHECK_THROWS_AS((void)logsumexp(x.to(DType::i64)), UnsupportedError);
}

TEST_CASE("on meta reductions give shapes") {
  const Tensor x = empty({2, 3}, Device::meta());
  CHECK(sum(x, 1).shape() == Shape{2});
  CHECK(var(x, 0, 1, KeepDim::yes).shape() == Shape{1, 3});
  CHECK(logsumexp(x).device().is_meta());
}

Tensor leaf(const Shape& shape, unsigned seed) {
  Tensor x = normal(shape, seed, DType::f64);
  x.requires_grad_();
  return x;
}
void check_gradients(const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
  Generator generator(9);
  const auto fn = [&](std::span<const Tensor> in) { return Tensors{f(in[0])}; };
  const GradcheckResult first = gradcheck(fn, std::span(&x, 1));
  CHECK_MESSAGE(first.ok, first.message);
  const GradcheckResult second = gradgradcheck(fn, std::span(&x, 1), generator);
  CHECK_MESSAGE(second.ok, second.message);
}

TEST_CASE("gradients of reductions, first and second") {
  const Tensor x = leaf({3, 4, 2}, 5);
  for (const Dims& dims : {Dims{}, Dims{1}, Dims{0, 2}}) {
    check_gradients([&](const Tensor& t) { return sum(t, dims); }, x);
    check_gradients([&](const Tensor& t) { return mean(t, dims, KeepDim::yes); }, x);
    check_gradients([&](const Tensor& t) { return prod(t, dims); }, x);
    check_gradients([&](const Tensor& t) { return amax(t, dims); }, x);
    check_gradients([&](const Tensor& t) { return amin(t, dims, KeepDim::yes); }, x);
    check_gradients([&](const Tensor& t) { return var(t, dims, 1); }, x);
    check_gradients([&](const Tensor& t) { return levin::std(t, dims, 0, KeepDim::yes); }, x);
    for (const double p : {0.5, 1.0, 2.0, 2.5, kInf}) {
      check_gradients([&](const Tensor& t) { return norm(t, p, dims); }, x);
    }
    check_gradients([&](const Tensor& t) { return logsumexp(t, dims); }, x);
  }
  check_gradients([&](const Tensor& t) { return sum_to(t, {4, 1}); }, x);
}

Values gradient(const Tensor& y, const Tensor& x) { return values(grad(y, std::span(&x, 1))[0]); }

TEST_CASE("the gradient of a product is the product of the others, where one is 0 and where the product overflows") {
  const auto gradient_of = [](const Values& row, DType dtype, double seed) {
    Tensor x = from_data(row, {static_cast<std::int64_t>(row.size())}, Device::cpu()).to(dtype).detach();
    x.requires_grad_();
    const Tensor y = prod(x), g = full({}, seed, Device::cpu(), dtype);
    return values(grad(std::span(&y, 1), std::span(&x, 1), std::span(&g, 1))[0].to(DType::f64));
  };
  for (const DType dtype : {DType::f32, DType::f64}) {
    CHECK(gradient_of({2, 3, 4, 5, 8}, dtype, 2) == Values{960, 640, 480, 384, 240});
    CHECK(gradient_of({2, 0, 4, 5, 8}, dtype, 1) == Values{0, 320, 0, 0, 0});
    CHECK(gradient_of({2, 0, 4, 0, 8}, dtype, 1) == Values{0, 0, 0, 0, 0});
    CHECK(gradient_of({-2, 0.5, kInf}, dtype, 1) == Values{kInf, -kInf, -1});
    CHECK(std::isnan(gradient_of({2, kNaN, 4}, dtype, 1)[0]));
    CHECK(gradient_of({2, kNaN, 0}, dtype, 0).size() == 3);
    CHECK(gradient_of({3}, dtype, 7) == Values{7});
  }
  // The product is infinite, or 0, and the products of the others are not.
  CHECK(gradient_of({0x1p600, 0x1p600, 0x1p-600}, DType::f64, 1) == Values{1, 1, kInf});
  CHECK(gradient_of({0x1p-600, 0x1p-600, 0x1p600}, DType::f64, 1) == Values{1, 1, 0});
  CHECK(gradient_of({0x1p-1000, 1, 1, 1, 0x1p-70, 0x1p1000}, DType::f64, 1)[0] == 0x1p930);
  CHECK(gradient_of({0x1p100, 0x1p100, 0x1p-100}, DType::f32, 1) == Values{1, 1, kInf});
  CHECK(gradient_of({0x1p-500, 0x1p-500}, DType::f64, 0x1p-600) == Values{0, 0});
  // Products on the way are subnormal and have lost digits, the product has not.
  const double digits = 0x1.123456789abcdp-540;
  CHECK(gradient_of({digits, 1, 1, 1, 0x1p-500, 1, 1, 1, 0x1p600}, DType::f64, 1)[1] == digits * 0x1p100);
  CHECK(gradient_of({digits, 0x1p-500, 0x1p600, 1}, DType::f64, 1)[1] == digits * 0x1p600);
  // Of nothing, twice.
  Tensor none = zeros({2, 0}, Device::cpu());
  none.requires_grad_();
  const Tensor y = prod(none, 1);
  const Tensor g = grad(y.sum(), std::span(&none, 1), {.create_graph = true})[0];
  CHECK(g.shape() == Shape{2, 0});
  CHECK(grad(sum(g * none), std::span(&none, 1))[0].shape() == Shape{2, 0});
}

TEST_CASE("gradients at kinks: ties share, zeros of a product, a norm and a deviation of zero") {
  Tensor x = tensor({2.0, 5.0, 5.0}, cpu);
  x.requires_grad_();
  CHECK(gradient(amax(x), x) == Values{0, 0.5, 0.5});
  CHECK(gradient(norm(x, kInf), x) == Values{0, 0.5, 0.5});
  Tensor z = tensor({0.0, 3.0, 4.0}, cpu);
  z.requires_grad_();
  CHECK(gradient(prod(z), z) == Values{12, 0, 0});
  const Tensor g = grad(prod(z), std::span(&z, 1), {.create_graph = true})[0];
  CHECK(gradient(sum(g), z) == Values{7, 4, 3});  // d/dz_j of the sum of products of the other two
  Tensor o = zeros({2}, cpu, DType::f64);
  o.requires_grad_();
  CHECK(gradient(norm(o), o) == Values{0, 0});
  CHECK(gradient(levin::std(o), o) == Values{0, 0});
  CHECK(gradient(prod(o), o) == Values{0, 0});
  Tensor low = tensor({-kInf, -kInf}, cpu);
  low.requires_grad_();
  CHECK(gradient(logsumexp(low), low) == Values{0, 0});
}

}  // namespace
TEST_CASE("integer sums and products wrap around") {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const Device here = Device::cpu();
  for (const std::int64_t n : {std::int64_t{3}, std::int64_t{100}}) {
    const Tensor x = full({n}, most, here, DType::i64);
    const auto wrapped = static_cast<std::int64_t>(static_cast<std::uint64_t>(n) * static_cast<std::uint64_t>(most));
    CHECK(sum(x).item<std::int64_t>() == wrapped);
    CHECK(select(cumsum(x, 0), 0, -1).item<std::int64_t>() == wrapped);
    CHECK(prod(x, 0).item<std::int64_t>() == (n % 2 == 0 ? 1 : most));  // most * most is 1 modulo 2^64
    const Tensor zero = zeros({1}, here, DType::i64), to = zeros({n}, here, DType::i64);
    CHECK(index_add(zero, 0, to, x).item<std::int64_t>() == wrapped);
    CHECK(scatter_add(zero, 0, to, x).item<std::int64_t>() == wrapped);
  }
}

TEST_CASE("the gradients of std and var in 16 bits are those of f64, also where n times std is beyond the dtype") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const auto& [n, size] : {std::pair{100, 1000.0}, {70000, 1.0}}) {
      const Tensor x = (normal({n}, 3) * size).to(dtype);
      for (Tensor (*f)(const Tensor&, Dims, double, KeepDim) : {&levin::std, &levin::var}) {
        const auto gradient = [&](Tensor leaf) {
          leaf.requires_grad_();
          return values(grad(Tensors{f(leaf, {}, 1, KeepDim::no)}, Tensors{leaf})[0]);
        };
        const Values got = gradient(x.clone()), want = gradient(x.to(DType::f64));
        double error = 0, whole = 0;
        for (std::size_t i = 0; i < got.size(); ++i) {
          error += (got[i] - want[i]) * (got[i] - want[i]);
          whole += want[i] * want[i];
        }
        CAPTURE(text(dtype));
        CAPTURE(n);
        // y and each element are rounded once, elements to a multiple of 2^-24 where they are subnormal in f16.
        const double rounding = epsilon(dtype) * std::sqrt(whole) + (dtype == DType::f16 ? 0x1p-24 * std::sqrt(n) : 0);
        CHECK(std::sqrt(error) <= 2 * rounding);
      }
    }
  }
}

}  // namespace levin
