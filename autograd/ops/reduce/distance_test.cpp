#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "tests/ops/loss_reference.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();

using Row = std::span<const double>;
double norm_of(Row x, double p) {
  double sum = 0;
  for (const double v : x) sum = std::isinf(p) ? std::max(sum, std::abs(v)) : sum + std::pow(std::abs(v), p);
  return std::isinf(p) ? sum : std::pow(sum, 1 / p);
}
double dot(Row a, Row b) {
  double sum = 0;
  for (std::size_t k = 0; k < a.size(); ++k) sum += a[k] * b[k];
  return sum;
}
double apart(Row a, Row b, double p) {
  std::vector<double> d(a.size());
  for (std::size_t k = 0; k < d.size(); ++k) d[k] = a[k] - b[k] + 1e-6;
  return norm_of(d, p);
}
double cosine(Row a, Row b) { return dot(a, b) / (std::max(norm_of(a, 2), 1e-8) * std::max(norm_of(b, 2), 1e-8)); }

// f of the rows of all inputs, which have one shape [..., d]; the result has shape [...].
Tensor of_rows(const Tensors& in, const std::function<double(std::span<const Row>)>& f) {
  const Shape shape = in[0].shape();
  const auto d = static_cast<std::size_t>(shape.back());
  const auto n = static_cast<std::size_t>(shape.removed(shape.rank() - 1).numel());
  std::vector<std::vector<double>> all;
  for (const Tensor& t : in) all.push_back(t.contiguous().to_vector<double>());
  std::vector<double> out(n);
  for (std::size_t i = 0; i < n; ++i) {
    std::vector<Row> rows;
    for (const auto& v : all) rows.emplace_back(v.data() + i * d, d);
    out[i] = f(rows);
  }
  return from_data(std::span<const double>(out), shape.removed(shape.rank() - 1), cpu);
}

const Shape kVectors[] = {{1}, {0, 3}, {4, 5}, {2, 3, 7}, {3, 700}};

// A vector of one number has the direction 1 or -1: its gradient is 0, the difference of two terms g / |x|, where the
// samples' g is 0.5 and their |x| at most 2.
double cancelled_terms(const Shape& s) { return s.numel() == 1 ? 0.25 : 0; }

}  // namespace

LEVIN_OP_CASE(normalize) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .ulps = 8, .layout_changes_sums = true};
  for (const double p : {1.0, 2.0, 3.5, double(INFINITY)}) {
    for (const std::int64_t dim : {0, 1, -1}) {
      for (const Shape& s : {Shape{1, 1}, Shape{0, 3}, Shape{4, 5}, Shape{2, 300}}) {
        const bool down = dim == 0;
        c.samples.push_back(
            {.inputs = {real(s)},
             .call = [=](const Tensors& in) { return Tensors{normalize(in[0], p, dim)}; },
             .reference =
                 [=](const Tensors& in) {
                   const Tensor x = down ? t(in[0]) : in[0];
                   const Tensor length = of_rows({x}, [p](std::span<const Row> r) { return norm_of(r[0], p); });
                   const Tensor y = map_reference(x, unsqueeze(length, -1), [](double v, double n) { return v / n; });
                   return Tensors{down ? t(y) : y};
                 },
             .cancelled_terms = cancelled_terms(s)});
      }
    }
  }
  c.errors.push_back({"eps",
                      [] {
                        (void)normalize(zeros({2, 2}, cpu), 2, 1, -1);
                      },
                      throws<ConfigError>, "normalize: eps is -1"});
  c.errors.push_back({"dim", [] { (void)normalize(zeros({2}, cpu)); }, throws<IndexError>, "normalize: dim"});
  return c;
}

LEVIN_OP_CASE(cosine_similarity) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .ulps = 8, .sums = 4, .layout_changes_sums = true};
  for (const Shape& s : kVectors) {
    c.samples.push_back({.inputs = {real(s), real(s)},
                         .call = [](const Tensors& in) { return Tensors{cosine_similarity(in[0], in[1], -1)}; },
                         .reference =
                             [](const Tensors& in) {
                               return Tensors{of_rows(in, [](std::span<const Row> r) { return cosine(r[0], r[1]); })};
                             },
                         .cancelled_terms = cancelled_terms(s)});
  }
  // All pairs of vectors, and one beside others.
  for (const auto& [a, b] : {std::pair{Shape{4, 1, 5}, Shape{3, 5}}, std::pair{Shape{2, 3}, Shape{3}}}) {
    c.samples.push_back({.inputs = {real(a), real(b)},
                         .call = [](const Tensors& in) { return Tensors{cosine_similarity(in[0], in[1], -1)}; },
                         .reference =
                             [](const Tensors& in) {
                               const Shape whole = broadcast_shapes("", in[0].shape(), in[1].shape());
                               return Tensors{of_rows({expand(in[0], whole), expand(in[1], whole)},
                                                      [](std::span<const Row> r) { return cosine(r[0], r[1]); })};
                             }});
  }
  c.errors.push_back({"shapes",
                      [] {
                        (void)cosine_similarity(zeros({2, 2}, cpu), zeros({3, 2}, cpu));
                      },
                      throws<ShapeError>, "cosine_similarity: "});
  c.errors.push_back({"dtypes",
                      [] {
                        (void)cosine_similarity(zeros({2, 2}, cpu), zeros({2, 2}, cpu, DType::f64));
                      },
                      throws<DTypeError>, "cosine_similarity: tensors are f32 and f64"});
  return c;
}

LEVIN_OP_CASE(pairwise_distance) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .ulps = 8, .layout_changes_sums = true};
  for (const double p : {1.0, 2.0, double(INFINITY)}) {
    for (const Shape& s : kVectors) {
      c.samples.push_back({.inputs = {real(s), real(s)},
                           .call = [p](const Tensors& in) { return Tensors{pairwise_distance(in[0], in[1], p)}; },
                           .reference =
                               [p](const Tensors& in) {
                                 return Tensors{
                                     of_rows(in, [p](std::span<const Row> r) { return apart(r[0], r[1], p); })};
                               }});
    }
  }
  c.errors.push_back({"numbers", [] { (void)pairwise_distance(zeros({}, cpu), zeros({}, cpu)); }, throws<ShapeError>,
                      "pairwise_distance: x is a single element"});
  return c;
}

LEVIN_OP_CASE(cosine_embedding_loss) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .ulps = 8, .sums = 16, .layout_changes_sums = true};
  for (const Reduction r : {Reduction::none, Reduction::mean, Reduction::sum}) {
    for (const Shape& s : {Shape{1, 1}, Shape{0, 3}, Shape{6, 5}, Shape{2, 3, 40}}) {
      std::vector<std::int64_t> signs;
      for (std::int64_t i = 0; i < s.removed(s.rank() - 1).numel(); ++i) signs.push_back(i % 3 == 0 ? -1 : 1);
      const Tensor target = from_data(std::span<const std::int64_t>(signs), s.removed(s.rank() - 1), cpu);
      c.samples.push_back(
          {.inputs = {real(s), real(s), fixed(target)},
           .call = [=](const Tensors& in) { return Tensors{cosine_embedding_loss(in[0], in[1], in[2], 0.1, r)}; },
           .reference =
               [=](const Tensors& in) {
                 const Tensor cos = of_rows({in[0], in[1]}, [](std::span<const Row> v) {
                   return dot(v[0], v[1]) / std::sqrt((dot(v[0], v[0]) + 1e-12) * (dot(v[1], v[1]) + 1e-12));
                 });
                 return Tensors{reduced_reference(
                     map_reference(cos, in[2].to(DType::f64),
                                   [](double v, double sign) { return sign > 0 ? 1 - v : std::max(0.0, v - 0.1); }),
                     r)};
               },
           .gradcheck = s.numel() > 1 || (r != Reduction::mean && s.numel() == 0),  // 0 / 0; a cosine of 1 or -1
           .cancelled_terms = cancelled_terms(s)});
    }
  }
  c.errors.push_back({"target",
                      [] {
                        (void)cosine_embedding_loss(zeros({2, 3}, cpu), zeros({2, 3}, cpu), ones({3}, cpu));
                      },
                      throws<ShapeError>, "cosine_embedding_loss: target has shape [3]"});
  return c;
}

LEVIN_OP_CASE(triplet_margin_loss) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .ulps = 16, .sums = 16, .layout_changes_sums = true};
  for (const Reduction r : {Reduction::none, Reduction::mean, Reduction::sum}) {
    for (const SwapAnchor swap : {SwapAnchor::no, SwapAnchor::yes}) {
      for (const Shape& s : {Shape{1, 1}, Shape{0, 3}, Shape{6, 5}, Shape{2, 3, 40}}) {
        const double p = s.rank() == 3 ? 1 : 2;
        const TripletMarginOptions o{.margin = 0.7, .p = p, .swap = swap, .reduction = r};
        c.samples.push_back(
            {.inputs = {real(s), real(s), real(s)},
             .call = [=](const Tensors& in) { return Tensors{triplet_margin_loss(in[0], in[1], in[2], o)}; },
             .reference =
                 [=](const Tensors& in) {
                   return Tensors{reduced_reference(of_rows(in,
                                                            [=](std::span<const Row> v) {
                                                              double far = apart(v[0], v[2], p);
                                                              if (swap == SwapAnchor::yes)
                                                                far = std::min(far, apart(v[1], v[2], p));
                                                              return std::max(0.0, apart(v[0], v[1], p) - far + 0.7);
                                                            }),
                                                    r)};
                 },
             .gradcheck = s.numel() > 0 || r != Reduction::mean});
      }
    }
  }
  c.errors.push_back({"shapes",
                      [] {
                        (void)triplet_margin_loss(zeros({2, 3}, cpu), zeros({2, 3}, cpu), zeros({3}, cpu));
                      },
                      throws<ShapeError>, "triplet_margin_loss: anchor has shape [2, 3] and negative [3]"});
  c.errors.push_back({"margin",
                      [] {
                        const Tensor x = zeros({2, 3}, cpu);
                        (void)triplet_margin_loss(x, x, x, {.margin = 0});
                      },
                      throws<ConfigError>, "triplet_margin_loss: margin is 0"});
  return c;
}

TEST_CASE("a vector of zeros is normalized to zeros in every dtype, and has a finite gradient") {
  for (const DType dtype : kFloatDTypes) {
    Tensor x = zeros({2, 3}, cpu, dtype);
    x.requires_grad_();
    const Tensor y = normalize(x);
    CHECK(equal(y, zeros({2, 3}, cpu, dtype)));
    CHECK(all(isfinite(cosine_similarity(x, ones({2, 3}, cpu, dtype)))).item() == 1);
    backward(sum(cosine_similarity(x, ones({2, 3}, cpu, dtype))));
    CHECK(all(isfinite(x.grad())).item() == (dtype != DType::f16));  // 1 / 1e-8 is beyond f16
  }
}

TEST_CASE("vectors whose squares overflow 16 bits have a cosine, and a number stands for a vector of it") {
  const Tensor a = full({1, 4}, 60000, cpu, DType::f16), b = full({1}, -60000, cpu, DType::f16);
  CHECK(cosine_similarity(a, a).item() == doctest::Approx(1));
  CHECK(cosine_similarity(a, b).item() == doctest::Approx(-1));
}

}  // namespace levin::testing
