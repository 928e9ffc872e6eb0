#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "autograd/ops/pointwise/plain_test.h"
#include "kernels/executor/cpu.h"
#include "levin/device.h"
#include "levin/sparse.h"
#include "tests/device.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

using Ints = std::vector<std::int64_t>;
using Doubles = std::vector<double>;
const Device cpu = Device::cpu();
constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kSlope = 0.3;

Tensor ints(const Ints& values) {
  return from_data(std::span<const std::int64_t>(values), {static_cast<std::int64_t>(values.size())}, cpu);
}
Tensor matrix(const Doubles& values, Shape shape) {
  return reshape(from_data(std::span<const double>(values), {static_cast<std::int64_t>(values.size())}, cpu),
                 Dims(shape.dims()));
}

struct Sample {
  Ints crow, col;
  std::int64_t cols, heads, channels;  // channels -1: scores of GAT
  bool has_edge = false, gradcheck = true;
  [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(crow.size()) - 1; }
  [[nodiscard]] std::int64_t entries() const { return static_cast<std::int64_t>(col.size()); }
  [[nodiscard]] bool is_gat() const { return channels < 0; }
};
// Row 1 of 5 has all entries but two.
Sample hub(std::int64_t entries, std::int64_t cols, std::int64_t heads, std::int64_t channels, bool has_edge,
           bool gradcheck = true) {
  Sample s{{0, 1, entries - 1, entries - 1, entries, entries}, {}, cols, heads, channels, has_edge, gradcheck};
  for (std::int64_t k = 0; k < entries; ++k) s.col.push_back(k * k % cols);
  return s;
}
// A loop, an isolated row, repeated entries, more columns than are used.
Sample small(std::int64_t heads, std::int64_t channels, bool has_edge = false) {
  return {{0, 3, 3, 5, 6}, {0, 2, 2, 1, 1, 0}, 4, heads, channels, has_edge};
}
// Channels: fewer than a vector, one vector, several with a rest, one; heads likewise where channels are one.
const std::vector<Sample> kSamples{small(2, 3, true),
                                   small(1, 8),
                                   small(3, 16),
                                   small(1, 37, true),
                                   small(5, 1),
                                   small(2, 0),
                                   hub(60, 5, 2, 4, true),
                                   {{0, 1}, {0}, 1, 1, 1},
                                   {{0, 0, 0}, {}, 3, 2, 3},
                                   {{0}, {}, 0, 2, 3},
                                   hub(1300, 9, 1, 2, true, false)};
const std::vector<Sample> kGatSamples{small(1, -1),
                                      small(8, -1, true),
                                      small(0, -1),
                                      hub(60, 5, 3, -1, true),
                                      {{0, 1}, {0}, 1, 1, -1},
                                      {{0, 0, 0}, {}, 3, 2, -1},
                                      {{0}, {}, 0, 2, -1},
                                      hub(1300, 9, 4, -1, true, false)};

// The permutation that samples use: reversal.
Tensor backwards(std::int64_t n) {
  Ints edge;
  for (std::int64_t k = 0; k < n; ++k) edge.push_back(n - 1 - k);
  return ints(edge);
}

void add_sample(OpCase& c, const Sample& s) {
  const auto of = [&](std::int64_t n) { return s.is_gat() ? Shape{n, s.heads} : Shape{n, s.heads, s.channels}; };
  std::vector<Input> inputs{real(of(s.cols)), real(of(s.rows()))};
  if (!s.is_gat()) inputs.push_back(real({s.heads, s.channels}));
  const std::size_t from = inputs.size();
  inputs.push_back(fixed(ints(s.crow)));
  inputs.push_back(fixed(ints(s.col)));
  if (s.has_edge) inputs.push_back(optional(fixed(backwards(s.entries()))));
  c.samples.push_back(
      {.inputs = inputs,
       .call =
           [=](const Tensors& in) {
             const Csr a{
                 .crow = in[from], .col = in[from + 1], .edge = s.has_edge ? in[from + 2] : Tensor{}, .cols = s.cols};
             return Tensors{s.is_gat() ? edge_scores(a, in[0], in[1], kSlope)
                                       : gatv2_scores(a, in[0], in[1], in[2], kSlope)};
           },
       .reference =
           [=](const Tensors& in) {
             const Plain l(in[0]), r(in[1]), attn(s.is_gat() ? ones({1}, cpu, DType::f64) : in[2]);
             Plain y(Shape{s.entries(), s.heads});
             const auto leaky = [](double v) { return v > 0 ? v : kSlope * v; };
             for (std::int64_t i = 0; i < s.rows(); ++i)
               for (std::int64_t k = s.crow[std::size_t(i)]; k < s.crow[std::size_t(i) + 1]; ++k)
                 for (std::int64_t h = 0; h < s.heads; ++h) {
                   const std::int64_t j = s.col[std::size_t(k)], at = s.has_edge ? s.entries() - 1 - k : k;
                   if (s.is_gat()) y({at, h}) = leaky(l({j, h}) + r({i, h}));
                   for (std::int64_t n = 0; n < s.channels; ++n)
                     y({at, h}) += attn({h, n}) * leaky(l({j, h, n}) + r({i, h, n}));
                 }
             return Tensors{y.tensor()};
           },
       .gradcheck = s.gradcheck});
}

const Csr kTwo{.crow = ints({0, 1, 2}), .col = ints({0, 3}), .cols = 4};

}  // namespace

LEVIN_OP_CASE(edge_scores) {
  OpCase c{.ops = {"edge_scores", "edge_scores_backward"},
           .dtypes = kFloatDTypes,
           .sums = 1300,
           .no_single = "offsets have one element more than there are rows"};
  for (const Sample& s : kGatSamples) add_sample(c, s);
  const auto error = [&](const char* what, Shape u, Shape v, auto is, const std::string& contains,
                         DType dtype = DType::f32) {
    c.errors.push_back({what, [=] { (void)edge_scores(kTwo, zeros(u, cpu), zeros(v, cpu, dtype)); }, is, contains});
  };
  error("rows of u", {3, 2}, {2, 2}, throws<ShapeError>, "edge_scores: u has shape [3, 2], expected [4, H]");
  error("rank of u", {4}, {2}, throws<ShapeError>, "edge_scores: u has shape [4], expected [4, H]");
  error("rows of v", {4, 2}, {4, 2}, throws<ShapeError>, "edge_scores: v has shape [4, 2], expected [2, 2]");
  error("dtypes", {4, 2}, {2, 2}, throws<DTypeError>, "edge_scores: tensors are f32 and f64", DType::f64);
  c.errors.push_back(
      {"column",
       [] {
         (void)edge_scores({.crow = ints({0, 1}), .col = ints({4}), .cols = 4}, zeros({4, 1}, cpu), zeros({1, 1}, cpu));
       },
       throws<IndexError>, "edge_scores: index 4 at position [0] is out of range"});
  return c;
}

LEVIN_OP_CASE(gatv2_scores) {
  OpCase c{.ops = {"edge_scores", "edge_scores_backward"},
           .dtypes = kFloatDTypes,
           .sums = 1300,
           .no_single = "offsets have one element more than there are rows"};
  for (const Sample& s : kSamples) add_sample(c, s);
  const auto error = [&](const char* what, Shape l, Shape r, Shape attn, auto is, const std::string& contains,
                         DType dtype = DType::f32) {
    c.errors.push_back(
        {what, [=] { (void)gatv2_scores(kTwo, zeros(l, cpu), zeros(r, cpu), zeros(attn, cpu, dtype)); }, is, contains});
  };
  error("rows of l", {3, 2, 5}, {2, 2, 5}, {2, 5}, throws<ShapeError>,
        "gatv2_scores: l has shape [3, 2, 5], expected [4, H, C]");
  error("rank of l", {4, 2}, {2, 2}, {2}, throws<ShapeError>, "gatv2_scores: l has shape [4, 2], expected [4, H, C]");
  error("r", {4, 2, 5}, {2, 2, 4}, {2, 5}, throws<ShapeError>,
        "gatv2_scores: r has shape [2, 2, 4], expected [2, 2, 5]");
  error("attn", {4, 2, 5}, {2, 2, 5}, {5, 2}, throws<ShapeError>,
        "gatv2_scores: attn has shape [5, 2], expected [2, 5]");
  error("dtypes", {4, 2, 5}, {2, 2, 5}, {2, 5}, throws<DTypeError>, "gatv2_scores: tensors are f32 and f64",
        DType::f64);
  c.errors.push_back({"falling offsets",
                      [] {
                        (void)gatv2_scores({.crow = ints({0, 1, 0}), .col = ints({0}), .cols = 4},
                                           zeros({4, 1, 1}, cpu), zeros({2, 1, 1}, cpu), zeros({1, 1}, cpu));
                      },
                      throws<IndexError>, "gatv2_scores: crow[2] is 0, expected 1 or more"});
  return c;
}

namespace {

// f on the CPU and on the device that launches kernels.
template <class F>
void each_device(const F& f) {
  f(cpu);
  if (const auto device = test::launching_device()) f(*device);
}

TEST_CASE("scores of edges at the kink, of infinities and of NaN are those of the same formula in other ops") {
  each_device([](Device device) {
    const Doubles values{0, -0.0, 1, -1, kInf, -kInf, kNan, 1e308, -1e308, 1e-310};
    const auto n = static_cast<std::int64_t>(values.size());
    const Csr a{.crow = arange(0, n * n + 1, n, cpu).to(device),
                .col = reshape(expand(arange(n, cpu), {n, n}), -1).to(device),
                .cols = n};
    for (const double slope : {0.2, 0.0, 1.0, -0.5, 2.0}) {
      CAPTURE(slope);
      Tensor u = matrix(values, {n, 1}).to(device), v = u.clone();
      u.requires_grad_();
      v.requires_grad_();
      const Tensor in[] = {u, v}, gy = full({n * n, 1}, 1.5, device, DType::f64);
      const auto all = [&](const Tensor& y) {
        Tensors t = grad(std::span(&y, 1), in, std::span(&gy, 1));
        t.push_back(y.detach());
        return t;
      };
      const Tensors got = all(edge_scores(a, u, v, slope)),
                    want = all(leaky_relu(index_select(u, 0, a.col) + gather_csr(v, a.crow, n * n), slope));
      for (std::size_t t = 0; t < 3; ++t) {
        const Doubles x = got[t].to_vector<double>(), y = want[t].to_vector<double>();
        for (std::size_t k = 0; k < x.size(); ++k) {
          if (std::isfinite(y[k]))
            CHECK(std::abs(x[k] - y[k]) <= 1e-15 * std::abs(y[k]));
          else
            CHECK((x[k] == y[k] || (std::isnan(x[k]) && std::isnan(y[k]))));
        }
      }
    }
    // One entry each with the sum 0: the slope of the derivative is that of the negative side.
    Tensor l = tensor({1., -2.}, cpu).to(device), attn = tensor({3.}, cpu).to(device);
    l.requires_grad_();
    attn.requires_grad_();
    const Csr two{.crow = ints({0, 1, 2}).to(device), .col = ints({0, 1}).to(device), .cols = 2};
    const Tensor r = reshape(-l.detach(), {2, 1, 1}), ones_ = full({2, 1}, 1., device, DType::f64), in[] = {l, attn};
    const Tensor y = gatv2_scores(two, reshape(l, {2, 1, 1}), r, reshape(attn, {1, 1}), 0.25);
    const Tensors g = grad(std::span(&y, 1), in, std::span(&ones_, 1));
    CHECK(y.to_vector<double>() == Doubles{0, 0});
    CHECK(g[0].to_vector<double>() == Doubles{0.75, 0.75});
    CHECK(g[1].to_vector<double>() == Doubles{0});
  });
}

// The path 0-1-2-3 in both directions with loops, by destination: rows ascending in source.
struct Path {
  Csr a{.crow = ints({0, 2, 5, 8, 10}), .col = ints({0, 1, 0, 1, 2, 1, 2, 3, 2, 3}), .cols = 4};
  // Where the entries stand in the order of the numbers below: 0-1 1-0 1-2 2-1 2-3 3-2 as source-destination, loops.
  Ints order{2, 1, 5, 4, 8, 7, 0, 3, 6, 9};
  Tensor x = matrix({1, 2, 0, -1, 3, 1, -2, .5}, {4, 2}), w = matrix({.5, -1, 2, .25}, {2, 2}),
         b = matrix({.1, -.2}, {2}), wr = matrix({1, 0, .5, -.5}, {2, 2}),
         gy = matrix({1, 0, 0, 1, 1, -1, .5, 2}, {4, 2});
};
void check_numbers(const Tensor& got, const Doubles& want) {
  const Doubles x = got.to_vector<double>();
  REQUIRE(x.size() == want.size());
  for (std::size_t i = 0; i < x.size(); ++i) CHECK(std::abs(x[i] - want[i]) < 1e-6);
}

TEST_CASE("attention of GATv2 on a path has the weights, outputs and gradients that were worked out in f64") {
  each_device([](Device device) {
    Path p;
    const Csr a{.crow = p.a.crow.to(device), .col = p.a.col.to(device), .cols = 4};
    Tensor x = p.x.to(device), w = p.w.to(device), b = p.b.to(device), wr = p.wr.to(device),
           attn = matrix({1, -.5}, {1, 2}).to(device);
    for (Tensor* t : {&x, &w, &b, &wr, &attn}) t->requires_grad_();
    const Tensor l = reshape(matmul(x, permute(w, {1, 0})) + b, {4, 1, 2}),
                 r = reshape(matmul(x, permute(wr, {1, 0})), {4, 1, 2});
    const Tensor alpha = segment_softmax(gatv2_scores(a, l, r, attn), a.crow);
    const Tensor y = reshape(spmm(a, alpha, l), {4, 2}), gy = p.gy.to(device);
    check_numbers(index_select(alpha, 0, ints(p.order).to(device)),
                  {.058511, .959883, .854342, .021633, .073611, .125566, .040117, .919856, .020092, .926389});
    check_numbers(y, {.999706, -.339677, .942906, -.148480, .776039, -.774577, -1.252778, -3.329689});
    const Tensor in[] = {x, w, b, wr, attn};
    const Tensors g = grad(std::span(&y, 1), in, std::span(&gy, 1));
    check_numbers(g[0], {.191057, -.060016, 1.091351, -1.583906, -.946685, -.511510, 3.646251, .314191});
    check_numbers(g[1], {.189709, -.973368, -5.398486, .231704});
    check_numbers(g[2], {2.462405, 1.515346});
    check_numbers(g[3], {.077016, .268643, 1.367200, -.156328});
    check_numbers(g[4], {.242123, 8.494140});
  });
}

TEST_CASE("attention of GAT on a path has the weights that were worked out in f64") {
  each_device([](Device device) {
    Path p;
    const Csr a{.crow = p.a.crow.to(device), .col = p.a.col.to(device), .cols = 4};
    const Tensor h = matmul(p.x, permute(p.w, {1, 0}));
    const Tensor u = matmul(h, matrix({.3, -.2}, {2, 1})), v = matmul(h, matrix({-.1, .4}, {2, 1}));
    const Tensor alpha = segment_softmax(edge_scores(a, u.to(device), v.to(device)), a.crow);
    check_numbers(index_select(alpha, 0, ints(p.order).to(device)),
                  {.291313, .785835, .452513, .282704, .429228, .441341, .214165, .425983, .106146, .570772});
  });
}

TEST_CASE(
    "scores of a graph with a hub: no number of threads changes a bit, values and gradients are the composite's") {
  Generator gen(4);
  const std::int64_t nodes = 900, edges = 30'000;
  const Tensor at = randint(0, nodes, {edges}, gen, cpu), col = randint(0, nodes, {edges}, gen, cpu);
  const Tensor row = sort(where(lt(arange(edges, cpu), edges / 3), full({edges}, 5, cpu, DType::i64), at)).values;
  const Csr a = checked(with_transpose(
      {.crow = cat({zeros({1}, cpu, DType::i64), cumsum(bincount(row, nodes), 0)}), .col = col, .cols = nodes}));
  Tensor l = randn({nodes, 3, 8}, gen, cpu, DType::f64), r = randn({nodes, 3, 8}, gen, cpu, DType::f64),
         attn = randn({3, 8}, gen, cpu, DType::f64);
  for (Tensor* t : {&l, &r, &attn}) t->requires_grad_();
  const Tensor gy = randn({edges, 3}, gen, cpu, DType::f64), in[] = {l, r, attn};
  const auto all = [&](const Tensor& y) {
    Tensors t = grad(std::span(&y, 1), in, std::span(&gy, 1));
    t.push_back(y.detach());
    return t;
  };
  kernels::set_num_threads(1);
  const Tensors one = all(gatv2_scores(a, l, r, attn));
  kernels::set_num_threads(3);
  const Tensors three = all(gatv2_scores(a, l, r, attn));
  kernels::set_num_threads(0);
  const Tensors want = all(sum(attn * leaky_relu(index_select(l, 0, a.col) + gather_csr(r, a.crow, edges), 0.2), -1));
  const double eps = std::numeric_limits<double>::epsilon();
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(one[i].to_vector<double>() == three[i].to_vector<double>());
    const double largest = amax(abs(want[i])).item();
    CHECK(amax(abs(one[i] - want[i])).item() <= 4 * eps * std::sqrt(double(edges)) * largest);
  }
}

TEST_CASE("scores and their gradients take no memory of entries x heads x channels") {
  const std::int64_t nodes = 100, edges = 40'000, heads = 4, channels = 64;
  Generator gen(4);
  const Csr a = checked(with_transpose(
      {.crow = arange(0, edges + 1, edges / nodes, cpu), .col = randint(0, nodes, {edges}, gen, cpu), .cols = nodes}));
  Tensor l = randn({nodes, heads, channels}, gen, cpu), r = randn({nodes, heads, channels}, gen, cpu),
         attn = randn({heads, channels}, gen, cpu);
  for (Tensor* t : {&l, &r, &attn}) t->requires_grad_();
  reset_peak_memory(cpu);
  const std::int64_t before = memory_stats(cpu).in_use;
  backward(sum(gatv2_scores(a, l, r, attn)));
  CHECK(memory_stats(cpu).peak - before < edges * heads * channels * 4 / 8);
}

}  // namespace
}  // namespace levin::testing
