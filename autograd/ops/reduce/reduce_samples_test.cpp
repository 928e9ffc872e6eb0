// Samples of the reductions for the conformance suite.
#include <cmath>
#include <limits>

#include "autograd/ops/pointwise/plain_test.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
constexpr double kInf = std::numeric_limits<double>::infinity();
using Values = std::vector<double>;

// f of the elements of each output.
Tensor reduced(const Tensor& x, const std::vector<int>& dims, bool keep, const std::function<double(const Values&)>& f,
               DType dtype = DType::f64) {
  const Plain in(x);
  std::vector<std::int64_t> sizes(x.shape().begin(), x.shape().end()), out;
  for (int d = 0; d < x.rank(); ++d) {
    const bool gone = dims.empty() || std::count(dims.begin(), dims.end(), d) > 0;
    if (gone) sizes[static_cast<std::size_t>(d)] = 1;
    if (!gone || keep) out.push_back(sizes[static_cast<std::size_t>(d)]);
  }
  const Shape ones{std::span<const std::int64_t>(sizes)};
  std::vector<Values> groups(static_cast<std::size_t>(ones.numel()));
  in.each([&](const At& at) {
    std::int64_t o = 0;
    for (int d = 0; d < ones.rank(); ++d) {
      const auto i = static_cast<std::size_t>(d);
      o = o * sizes[i] + (sizes[i] == 1 ? 0 : at[i]);
    }
    groups[static_cast<std::size_t>(o)].push_back(in(at));
  });
  Plain y{Shape(std::span<const std::int64_t>(out))};
  for (std::size_t o = 0; o < groups.size(); ++o) y.values[o] = f(groups[o]);
  return y.tensor(dtype);
}

std::vector<int> listed(const Dims& dims, int rank) {
  std::vector<int> out;
  for (const std::int64_t d : dims.span()) out.push_back(static_cast<int>(d < 0 ? d + rank : d));
  return out;
}

struct Sample {
  Shape shape;
  Dims dims;
  KeepDim keep;
};
const Sample kSamples[] = {
    {{3, 5, 2}, {}, KeepDim::no}, {{3, 5, 2}, {1}, KeepDim::no}, {{3, 5, 2}, {0, -1}, KeepDim::yes},
    {{4, 6}, {0}, KeepDim::no},   {{4, 6}, {-1}, KeepDim::yes},  {{1}, {0}, KeepDim::no},
    {{}, {}, KeepDim::no},        {{0, 4}, {1}, KeepDim::no}};

// A case over the samples above and one sample of many elements.
using Call = std::function<Tensor(const Tensor&, Dims, KeepDim)>;
OpCase reduction(const char* op, std::vector<DType> dtypes, const Call& call,
                 const std::function<double(const Values&)>& f, double low = -2, double high = 2) {
  OpCase c{.ops = {op}, .dtypes = std::move(dtypes), .sums = 70, .layout_changes_sums = true};
  const auto add = [&](const Sample& s) {
    c.samples.push_back({.inputs = {real(s.shape, low, high)},
                         .call = [=](const Tensors& in) { return Tensors{call(in[0], s.dims, s.keep)}; },
                         .reference =
                             [=](const Tensors& in) {
                               return Tensors{reduced(in[0], listed(s.dims, in[0].rank()), s.keep == KeepDim::yes, f)};
                             },
                         .gradcheck = true});
  };
  for (const Sample& s : kSamples) add(s);
  add({{7, 70, 11}, {1}, KeepDim::no});
  const std::string name = op;
  c.errors.push_back({"dim",
                      [=] {
                        (void)call(zeros({2, 3}, cpu), 2, KeepDim::no);
                      },
                      throws<IndexError>, name + ": dimension is 2, expected -2 to 1 for rank 2"});
  c.errors.push_back({"twice",
                      [=] {
                        (void)call(zeros({2, 3}, cpu), {1, -1}, KeepDim::no);
                      },
                      throws<IndexError>, name + ": dimension -1 is given twice"});
  return c;
}

// Every second sample under autocast, too.
OpCase with_autocast(OpCase c) {
  const std::size_t count = c.samples.size();
  for (std::size_t k = 0; k < count; k += 2) c.samples.push_back(under_autocast(c.samples[k]));
  return c;
}

double sum_of(const Values& v) {
  double s = 0;
  for (const double x : v) s += x;
  return s;
}
double variance(const Values& v, double correction) {
  const double n = static_cast<double>(v.size()), mean = sum_of(v) / n;
  double s = 0;
  for (const double x : v) s += (x - mean) * (x - mean);
  return s / (n - correction);
}
double power_norm(const Values& v, double p) {
  double s = 0;
  for (const double x : v) s = std::isinf(p) ? std::max(s, std::fabs(x)) : s + std::pow(std::fabs(x), p);
  return std::isinf(p) ? s : std::pow(s, 1 / p);
}

}  // namespace

LEVIN_OP_CASE(sum) {
  return with_autocast(reduction(
      "sum", kComputedDTypes, [](const Tensor& x, Dims d, KeepDim k) { return sum(x, d, k); }, sum_of));
}

LEVIN_OP_CASE(sum_to) {
  OpCase c{.ops = {"sum"}, .dtypes = kFloatDTypes, .sums = 30, .layout_changes_sums = true};
  struct To {
    Shape from, to;
    std::vector<int> dims;
  };
  for (const To& s : {To{{3, 5, 2}, {5, 2}, {0}}, To{{3, 5, 2}, {1, 1}, {0, 1, 2}}, To{{3, 5, 2}, {3, 1, 2}, {1}},
                      To{{3, 5, 2}, {}, {0, 1, 2}}, To{{1}, {}, {0}}, To{{0, 4}, {1, 4}, {0}}}) {
    c.samples.push_back({.inputs = {real(s.from)},
                         .call = [=](const Tensors& in) { return Tensors{sum_to(in[0], s.to)}; },
                         .reference =
                             [=](const Tensors& in) {
                               return Tensors{reshape(reduced(in[0], s.dims, false, sum_of), Dims(s.to.dims()))};
                             }});
  }
  c.errors.push_back({"not broadcast",
                      [] {
                        (void)sum_to(zeros({2, 3}, cpu), {2, 2});
                      },
                      throws<ShapeError>, "sum_to: x [2, 3] was not broadcast from [2, 2]"});
  return c;
}

LEVIN_OP_CASE(mean) {
  return with_autocast(reduction(
      "mean", kFloatDTypes, [](const Tensor& x, Dims d, KeepDim k) { return mean(x, d, k); },
      [](const Values& v) { return sum_of(v) / static_cast<double>(v.size()); }));
}

LEVIN_OP_CASE(prod) {
  const auto product = [](const Values& v) {
    double p = 1;
    for (const double x : v) p *= x;
    return p;
  };
  OpCase c = reduction(
      "prod", kComputedDTypes, [](const Tensor& x, Dims d, KeepDim k) { return prod(x, d, k); }, product, 0.7, 1.4);
  c.ops.push_back("prod_backward");
  return c;
}

LEVIN_OP_CASE(amax) {
  OpCase c = reduction(
      "amax", kComputedDTypes, [](const Tensor& x, Dims d, KeepDim k) { return amax(x, d, k); },
      [](const Values& v) { return *std::max_element(v.begin(), v.end()); });
  c.errors.push_back({"nothing", [] { (void)amax(zeros({2, 0}, cpu), 1); }, throws<ShapeError>, "amax: x [2, 0]"});
  return c;
}

LEVIN_OP_CASE(amin) {
  OpCase c = reduction(
      "amin", kComputedDTypes, [](const Tensor& x, Dims d, KeepDim k) { return amin(x, d, k); },
      [](const Values& v) { return *std::min_element(v.begin(), v.end()); });
  c.errors.push_back({"nothing", [] { (void)amin(zeros({0}, cpu)); }, throws<ShapeError>, "amin: x [0]"});
  return c;
}

LEVIN_OP_CASE(var) {
  return reduction(
      "var", kFloatDTypes, [](const Tensor& x, Dims d, KeepDim k) { return var(x, d, 0.5, k); },
      [](const Values& v) { return variance(v, 0.5); });
}

LEVIN_OP_CASE(std) {
  return reduction(
      "std", kFloatDTypes, [](const Tensor& x, Dims d, KeepDim k) { return levin::std(x, d, 0, k); },
      [](const Values& v) { return std::sqrt(variance(v, 0)); });
}

LEVIN_OP_CASE(norm) {
  OpCase all{.ops = {"norm"}, .dtypes = kFloatDTypes, .sums = 70, .layout_changes_sums = true};
  for (const double p : {0.5, 1.0, 2.0, 3.0, kInf}) {
    OpCase c = reduction(
        "norm", kFloatDTypes, [p](const Tensor& x, Dims d, KeepDim k) { return norm(x, p, d, k); },
        [p](const Values& v) { return power_norm(v, p); });
    all.samples.insert(all.samples.end(), c.samples.begin(), c.samples.end());
    all.errors = c.errors;
  }
  all.errors.push_back({"p", [] { (void)norm(zeros({2}, cpu), 0); }, throws<ConfigError>, "norm: p is 0"});
  return all;
}

LEVIN_OP_CASE(logsumexp) {
  return reduction(
      "logsumexp", kFloatDTypes, [](const Tensor& x, Dims d, KeepDim k) { return logsumexp(x, d, k); },
      [](const Values& v) {
        double s = 0;
        for (const double x : v) s += std::exp(x);
        return std::log(s);
      });
}

LEVIN_OP_CASE(any) {
  OpCase c = reduction(
      "any", kAllDTypes, [](const Tensor& x, Dims d, KeepDim k) { return any(x, d, k); },
      [](const Values& v) { return std::any_of(v.begin(), v.end(), [](double x) { return x != 0; }); });
  c.differentiable = false;
  return c;
}

LEVIN_OP_CASE(all) {
  OpCase c = reduction(
      "all", kAllDTypes, [](const Tensor& x, Dims d, KeepDim k) { return all(x, d, k); },
      [](const Values& v) { return std::all_of(v.begin(), v.end(), [](double x) { return x != 0; }); });
  c.differentiable = false;
  return c;
}

// ---- Along one dimension

namespace {
// The position of the first best element along dim; better(a, b) when a beats b.
Tensor best_along(const Tensor& x, int dim, bool keep, const std::function<bool(double, double)>& better, bool where) {
  return reduced(x, {dim}, keep, [=](const Values& v) {
    std::size_t at = 0;
    for (std::size_t i = 1; i < v.size(); ++i) {
      if (better(v[i], v[at])) at = i;
    }
    return where ? static_cast<double>(at) : v[at];
  });
}
struct Along {
  Shape shape;
  std::int64_t dim;
  KeepDim keep;
};
const Along kAlong[] = {{{3, 5, 2}, 1, KeepDim::no},
                        {{4, 6}, -1, KeepDim::yes},
                        {{4, 300}, 0, KeepDim::no},
                        {{1}, 0, KeepDim::no},
                        {{0, 4}, 1, KeepDim::no}};

template <class Arg, class Pair>
OpCase extreme(const char* arg_name, const char* name, Arg arg, Pair pair,
               const std::function<bool(double, double)>& better) {
  OpCase c{.ops = {arg_name, name}, .dtypes = kComputedDTypes};
  for (const Along& s : kAlong) {
    const int dim = static_cast<int>(s.dim < 0 ? s.dim + s.shape.rank() : s.dim);
    const bool keep = s.keep == KeepDim::yes;
    c.samples.push_back({.inputs = {real(s.shape, -9, 9)},
                         .call =
                             [=](const Tensors& in) {
                               const ValuesIndices r = pair(in[0], s.dim, s.keep);
                               return Tensors{r.values, r.indices, arg(in[0], std::optional(s.dim), s.keep)};
                             },
                         .reference =
                             [=](const Tensors& in) {
                               const Tensor at = best_along(in[0], dim, keep, better, true);
                               return Tensors{best_along(in[0], dim, keep, better, false), at, at};
                             }});
  }
  c.samples.push_back({.inputs = {constant({3, 7}, -9, 9)},
                       .call = [=](const Tensors& in) { return Tensors{arg(in[0], std::nullopt, KeepDim::yes)}; },
                       .reference =
                           [=](const Tensors& in) {
                             return Tensors{reshape(best_along(reshape(in[0], -1), 0, true, better, true), {1, 1})};
                           }});
  const std::string pair_name = name, where = arg_name;
  c.errors.push_back({"dim", [=] { (void)pair(zeros({3}, cpu), 1, KeepDim::no); }, throws<IndexError>,
                      pair_name + ": dimension is 1"});
  c.errors.push_back({"nothing",
                      [=] {
                        (void)pair(zeros({2, 0}, cpu), 1, KeepDim::no);
                      },
                      throws<ShapeError>, pair_name + ": dimension 1 of x [2, 0] is empty"});
  c.errors.push_back({"no elements", [=] { (void)arg(zeros({0}, cpu), std::nullopt, KeepDim::no); }, throws<ShapeError>,
                      where + ": x [0] has no elements"});
  c.errors.push_back({"arg dim", [=] { (void)arg(zeros({3}, cpu), std::optional<std::int64_t>(-2), KeepDim::no); },
                      throws<IndexError>, where + ": dimension is -2"});
  return c;
}
}  // namespace

LEVIN_OP_CASE(max) {
  return extreme(
      "argmax", "max", [](auto&&... a) { return argmax(a...); }, [](auto&&... a) { return max(a...); },
      [](double a, double b) { return a > b; });
}
LEVIN_OP_CASE(min) {
  return extreme(
      "argmin", "min", [](auto&&... a) { return argmin(a...); }, [](auto&&... a) { return min(a...); },
      [](double a, double b) { return a < b; });
}

LEVIN_OP_CASE(cumsum) {
  OpCase c{.ops = {"cumsum"}, .dtypes = kComputedDTypes, .sums = 10};
  for (const Along& s : kAlong) {
    const int dim = static_cast<int>(s.dim < 0 ? s.dim + s.shape.rank() : s.dim);
    c.samples.push_back({.inputs = {real(s.shape, -3, 3)},
                         .call = [=](const Tensors& in) { return Tensors{cumsum(in[0], s.dim)}; },
                         .reference =
                             [=](const Tensors& in) {
                               Plain y(in[0]);
                               y.each([&](const At& at) {
                                 const std::int64_t k = at[static_cast<std::size_t>(dim)];
                                 if (k > 0) y(at) += y(with(at, dim, static_cast<double>(k - 1)));
                               });
                               return Tensors{y.tensor()};
                             }});
  }
  c.errors.push_back({"dim", [] { (void)cumsum(zeros({3}, cpu), 1); }, throws<IndexError>, "cumsum: dimension is 1"});
  return c;
}

}  // namespace levin::testing
