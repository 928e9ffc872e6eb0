#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/executor/dispatch.h"
#include "levin/autograd.h"
#include "levin/ops.h"
#include "levin/sparse.h"
#include "levin/stream.h"
#include "tests/device.h"
#include "tests/skip.h"

namespace levin {
namespace {

const Device cpu = Device::cpu();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
using Doubles = std::vector<double>;
using Ints = std::vector<std::int64_t>;

Tensor ints(const Ints& values) {
  return from_data(std::span<const std::int64_t>(values), {static_cast<std::int64_t>(values.size())}, cpu);
}
// Entries of a random multigraph, rows sorted; one row has a third of them.
Csr random_graph(std::int64_t rows, std::int64_t cols, std::int64_t entries, Device device = cpu) {
  Generator gen(7);
  const Tensor at = randint(0, rows, {entries}, gen, cpu), col = randint(0, cols, {entries}, gen, cpu);
  Tensor row = where(lt(arange(entries, cpu), entries / 3), full({entries}, 5, cpu, DType::i64), at);
  row = sort(row).values;
  const Tensor crow = cat({zeros({1}, cpu, DType::i64), cumsum(bincount(row, rows), 0)});
  return {.crow = crow.to(device), .col = col.to(device), .cols = cols};
}
double largest(const Tensor& x) { return amax(abs(x)).to(DType::f64).item(); }
// The same by a tensor of messages [entries, width].
Tensor by_messages(const Csr& a, const Tensor& value, const Tensor& x) {
  const Tensor row = gather_csr(arange(a.rows(), cpu), a.crow, a.entries());
  return index_add(zeros({a.rows(), x.shape()[1]}, cpu, x.dtype()), 0, row,
                   index_select(x, 0, a.col) * unsqueeze(value, 1));
}

TEST_CASE("spmm of a bipartite graph has the sums, means and gradients that were worked out by hand") {
  const Csr a{.crow = ints({0, 2, 4}), .col = ints({0, 2, 1, 2}), .cols = 3};
  Tensor w = tensor({.5, -1., 2., 3.}, cpu), x = reshape(tensor({1., 2., 3., 4., 5., 6.}, cpu), {3, 2});
  w.requires_grad_();
  x.requires_grad_();
  const Tensor gy = reshape(tensor({1., -1., .5, 2.}, cpu), {2, 2});
  const Tensor y = spmm(a, w, x), mean = spmm(a, {}, x, Reduce::mean);
  CHECK(y.to_vector<double>() == Doubles{-4.5, -5, 21, 26});
  CHECK(mean.to_vector<double>() == Doubles{3, 4, 4, 5});
  const Tensor wx[] = {w, x};
  const Tensors g = grad(std::span(&y, 1), wx, std::span(&gy, 1)),
                gm = grad(std::span(&mean, 1), std::span(&x, 1), std::span(&gy, 1));
  CHECK(g[0].to_vector<double>() == Doubles{-1, -1, 9.5, 14.5});
  CHECK(g[1].to_vector<double>() == Doubles{.5, -.5, 1, 4, .5, 7});
  CHECK(gm[0].to_vector<double>() == Doubles{.5, -.5, .25, 1, .75, .5});
}

TEST_CASE("softmax over segments: known values and gradients, an empty segment, scores of a thousand") {
  Tensor s = tensor({1., 2., 3., 1000., 1000., -5.}, cpu);
  s.requires_grad_();
  const Tensor y = segment_softmax(s, ints({0, 3, 3, 5, 6})), gy = tensor({1., 0., 2., 1., -1., 3.}, cpu);
  const Doubles value{.0900306, .2447285, .6652410, .5, .5, 1}, slope{-.0378593, -.3476395, .3854988, .5, -.5, 0};
  const Doubles got = y.to_vector<double>(),
                g = grad(std::span(&y, 1), std::span(&s, 1), std::span(&gy, 1))[0].to_vector<double>();
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(got[i] == doctest::Approx(value[i]).epsilon(1e-6));
    CHECK(std::abs(g[i] - slope[i]) < 1e-6);
  }
}

TEST_CASE("softmax over segments: -inf alone gives 0, NaN stays in its segment, a common shift changes no bit") {
  const auto run = [](const Device device) {
    const Tensor offsets = ints({0, 2, 4, 6}).to(device);
    const Doubles got =
        segment_softmax(tensor({-kInf, -kInf, kNan, 1., -kInf, 3.}, cpu).to(device), offsets).to_vector<double>();
    CHECK((got[0] == 0 && got[1] == 0 && got[4] == 0 && got[5] == 1));
    CHECK((std::isnan(got[2]) && std::isnan(got[3])));
    const Tensor s = tensor({3.f, -7.f, 0.f, 12.f, 5.f, 5.f}, cpu).to(device);
    CHECK(segment_softmax(s, offsets).to_vector<float>() == segment_softmax(s + 1024, offsets).to_vector<float>());
  };
  run(cpu);
  if (const auto device = test::launching_device()) run(*device);
}

TEST_CASE("the largest of a row: the first of equal ones gets the gradient, NaN wins, no entries give 0") {
  const auto run = [](const Device device) {
    const Csr a{.crow = ints({0, 3, 3, 5}).to(device), .col = ints({1, 0, 2, 0, 1}).to(device), .cols = 3};
    Tensor x = tensor({2., 2., 1.}, cpu).to(device);
    x.requires_grad_();
    const Tensor y = spmm(a, {}, x, Reduce::max);
    CHECK(y.to_vector<double>() == Doubles{2, 0, 2});
    CHECK(grad(sum(y), std::span(&x, 1))[0].to_vector<double>() == Doubles{1, 1, 0});
    const Tensor bad = tensor({-1., kNan, 7., kNan}, cpu).to(device);
    for (const Reduce r : {Reduce::min, Reduce::max}) {
      const Doubles got = segment_reduce(bad, ints({0, 1, 3, 3, 4}).to(device), r).to_vector<double>();
      CHECK((got[0] == -1 && std::isnan(got[1]) && got[2] == 0 && std::isnan(got[3])));
    }
  };
  run(cpu);
  if (const auto device = test::launching_device()) run(*device);
}

TEST_CASE("a graph with a hub: spmm equals the sum of messages, and no number of threads changes a bit") {
  const Csr a = with_transpose(random_graph(3000, 2000, 40'000));
  Generator gen(3);
  Tensor x = randn({2000, 33}, gen, cpu, DType::f64), value = randn({40'000}, gen, cpu, DType::f64);
  x.requires_grad_();
  value.requires_grad_();
  const Tensor gy = randn({3000, 33}, gen, cpu, DType::f64), in[] = {value, x};
  const auto run = [&] {
    const Tensor y = spmm(a, value, x), s = segment_softmax(value, a.crow);
    Tensors all = grad(std::span(&y, 1), in, std::span(&gy, 1));
    all.push_back(y.detach());
    all.push_back(s.detach());
    all.push_back(spmm(a, value, x, Reduce::max).detach());
    return all;
  };
  kernels::set_num_threads(1);
  const Tensors one = run();
  kernels::set_num_threads(3);
  const Tensors three = run();
  kernels::set_num_threads(0);
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(one[i].to_vector<double>() == three[i].to_vector<double>());

  const Tensor y = by_messages(a, value, x);
  const Tensors expected = grad(std::span(&y, 1), in, std::span(&gy, 1));
  const double eps = std::numeric_limits<double>::epsilon(), terms = std::sqrt(40'000 / 3.);
  for (std::size_t i = 0; i < 2; ++i) CHECK(largest(one[i] - expected[i]) <= 4 * eps * terms * largest(expected[i]));
  CHECK(largest(one[2] - y.detach()) <= 4 * eps * terms * largest(y.detach()));
}

TEST_CASE("rows of every width have the sums and the softmax of f64, over edges, heads and a mean") {
  const std::int64_t entries = 900;
  Csr a = random_graph(70, 50, entries);
  a.edge = sort(cos(arange(entries, cpu).to(DType::f64) * 1.7)).indices;
  const double eps = std::numeric_limits<float>::epsilon(), terms = 330;  // of the longest row
  Generator gen(11);
  const auto check = [&](std::int64_t heads, std::int64_t inner) {
    CAPTURE(heads);
    CAPTURE(inner);
    const Tensor x = rand({50, heads, inner}, gen, cpu), value = rand({entries, heads}, gen, cpu);
    // Head by head, by messages.
    const Tensor v = index_select(value, 0, a.edge).to(DType::f64), wide = x.to(DType::f64);
    Tensors by_head;
    for (std::int64_t h = 0; h < heads; ++h) by_head.push_back(by_messages(a, select(v, 1, h), select(wide, 1, h)));
    const Tensor expected = stack(by_head, 1), y = spmm(a, value, x);
    CHECK(largest(y.to(DType::f64) - expected) <= terms * eps * largest(expected));
    const Tensor count = clamp(narrow(a.crow, 0, 1, 70) - narrow(a.crow, 0, 0, 70), 1, std::nullopt).to(DType::f64);
    const Tensor mean = expected / reshape(count, {70, 1, 1});
    CHECK(largest(spmm(a, value, x, Reduce::mean).to(DType::f64) - mean) <= terms * eps * largest(mean));

    Tensor s = (randn({entries, heads * inner}, gen, cpu) * 5).detach(), t = s.to(DType::f64);
    s.requires_grad_(), t.requires_grad_();
    const Tensor gy = rand(s.shape(), gen, cpu), p = segment_softmax(s, a), e = exp(t);
    const Tensor q = e / gather_csr(segment_reduce(e, a), a);
    CHECK(largest(p.detach().to(DType::f64) - q.detach()) <= 20 * eps);
    const Tensor gs = grad(sum(p * gy), std::span(&s, 1))[0],
                 gt = grad(sum(q * gy.to(DType::f64)), std::span(&t, 1))[0];
    CHECK(largest(gs.to(DType::f64) - gt) <= 100 * eps);
  };
  for (const std::int64_t width : {1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 33, 40, 64, 65, 100, 130})
    check(1, width);
  for (const auto& [heads, inner] : {std::pair{2, 1}, {8, 1}, {3, 4}, {8, 8}, {2, 7}, {3, 16}, {5, 24}, {2, 40}})
    check(heads, inner);
}

TEST_CASE("the transpose is the adjoint, and the transpose of the transpose is the matrix") {
  const Csr a = random_graph(50, 40, 700), t = transpose(a), back = transpose(t);
  Generator gen(5);
  const Tensor x = randn({40, 4}, gen, cpu, DType::f64), z = randn({50, 4}, gen, cpu, DType::f64),
               value = randn({700}, gen, cpu, DType::f64);
  const double left = sum(spmm(a, value, x) * z).item(), right = sum(x * spmm(t, value, z)).item();
  CHECK(left == doctest::Approx(right).epsilon(1e-12));
  CHECK(back.crow.to_vector<std::int64_t>() == a.crow.to_vector<std::int64_t>());
  CHECK(back.col.to_vector<std::int64_t>() == a.col.to_vector<std::int64_t>());
  CHECK_FALSE(back.edge.defined());
  CHECK(spmm(a, {}, ones({40}, cpu, DType::f64)).to_vector<double>() ==
        (narrow(a.crow, 0, 1, 50) - narrow(a.crow, 0, 0, 50)).to(DType::f64).to_vector<double>());
}

// The positions of `a` as i32.
Csr narrowed(Csr a) {
  for (Tensor* t : {&a.col, &a.edge, &a.t_col, &a.t_edge})
    if (t->defined()) *t = t->to(DType::i32);
  a.facts = nullptr;
  return a;
}

TEST_CASE("positions of four and of eight bytes give the same bits, with edges, a transpose, facts or none") {
  const auto run = [](const Device device) {
    const Csr random = random_graph(60, 40, 700);
    Csr with_edge = random;
    with_edge.edge = sort(cos(arange(700, cpu).to(DType::f64) * 1.7)).indices;
    Generator gen(9);
    for (const Csr& wide : {random, with_edge, with_transpose(with_edge), checked(with_transpose(with_edge))}) {
      const Csr narrow = wide.facts ? checked(narrowed(wide)) : narrowed(wide);
      Tensor value = randn({700, 2}, gen, cpu), x = randn({40, 2, 8}, gen, cpu), z = randn({60, 2, 8}, gen, cpu);
      value = value.to(device), x = x.to(device), z = z.to(device);
      value.requires_grad_(), x.requires_grad_(), z.requires_grad_();
      const auto all = [&](const Csr& a) {
        Tensors out;
        const auto add = [&](const Tensor& y, std::vector<Tensor> in) {
          out.push_back(y.detach());
          for (const Tensor& g : grad(sum(y * y), in)) out.push_back(g);
        };
        for (const Reduce r : {Reduce::sum, Reduce::mean, Reduce::max}) add(spmm(a, value, x, r), {value, x});
        add(spmm(a, {}, x), {x});
        add(sddmm(a, z, x), {z, x});
        add(segment_softmax(value, a), {value});
        add(segment_reduce(value, a), {value});
        add(gather_csr(z, a), {z});
        return out;
      };
      const Tensors one = all(wide.to(device)), other = all(narrow.to(device));
      for (std::size_t i = 0; i < one.size(); ++i) {
        CAPTURE(i);
        CHECK(one[i].to_vector<float>() == other[i].to_vector<float>());
      }
      const Csr t = with_transpose(narrow), u = transpose(narrow);
      CHECK(t.t_col.dtype() == DType::i32);
      CHECK(t.t_edge.dtype() == DType::i32);
      CHECK(t.t_col.to(DType::i64).to_vector<std::int64_t>() == with_transpose(wide).t_col.to_vector<std::int64_t>());
      CHECK((t.known() != nullptr) == (wide.known() != nullptr));
      CHECK((u.known() != nullptr) == (wide.known() != nullptr));
    }
  };
  run(cpu);
  if (const auto device = test::launching_device()) run(*device);
}

TEST_CASE("a segment op over a pattern equals that over its offsets, and names a wrong number of entries") {
  const Csr a = checked(random_graph(20, 9, 50));
  Generator gen(2);
  const Tensor x = randn({50, 3}, gen, cpu), rows = randn({20, 3}, gen, cpu);
  CHECK(segment_softmax(x, a).to_vector<float>() == segment_softmax(x, a.crow).to_vector<float>());
  CHECK(segment_reduce(x, a, Reduce::mean).to_vector<float>() ==
        segment_reduce(x, a.crow, Reduce::mean).to_vector<float>());
  CHECK(gather_csr(rows, a).to_vector<float>() == gather_csr(rows, a.crow, 50).to_vector<float>());
  CHECK_THROWS_WITH_AS((void)segment_softmax(rows, a), doctest::Contains("has shape [20, 3], expected 50 rows"),
                       ShapeError);
  CHECK_THROWS_AS((void)segment_reduce(rows, a), ShapeError);
  CHECK_THROWS_AS((void)gather_csr(x, a), ShapeError);
}

TEST_CASE("transposes keep the facts of a pattern, with longest row and column exchanged") {
  const Csr a = checked({.crow = ints({0, 3, 3, 4}), .col = ints({0, 1, 1, 1}), .cols = 4}), both = with_transpose(a),
            t = transpose(both);
  REQUIRE(both.known());
  REQUIRE(t.known());
  CHECK(both.known()->longest_row == 3);
  CHECK(both.known()->longest_column == 3);
  CHECK(t.known()->longest_row == 3);
  CHECK(with_transpose(checked({.crow = ints({0, 1, 2}), .col = ints({0, 0}), .cols = 1})).known()->longest_column ==
        2);
  CHECK_FALSE(with_transpose(random_graph(5, 5, 9)).known());
}

TEST_CASE("no op examines a pattern that was checked, and each examines one that was written since") {
  // crow = [0, 3, 2, 3] is wrong, and rows of it lie in memory: an op that does not look computes.
  const auto spoil = [](const Csr& a) { const_cast<std::int64_t*>(a.crow.data<std::int64_t>())[1] = 3; };
  const Csr raw{.crow = ints({0, 2, 2, 3}), .col = ints({0, 1, 2}), .cols = 3};
  const Tensor x = ones({3, 2}, cpu), value = ones({3}, cpu);
  const std::pair<const char*, std::function<void(const Csr&)>> ops[] = {
      {"spmm", [&](const Csr& a) { (void)spmm(a, value, x); }},
      {"spmm max", [&](const Csr& a) { (void)spmm(a, value, x, Reduce::max); }},
      {"sddmm", [&](const Csr& a) { (void)sddmm(a, x, x); }},
      {"segment_softmax", [&](const Csr& a) { (void)segment_softmax(x, a); }},
      {"segment_reduce", [&](const Csr& a) { (void)segment_reduce(x, a); }},
      {"with_transpose", [&](const Csr& a) { (void)with_transpose(a); }},
  };
  for (const auto& [name, op] : ops) {
    CAPTURE(name);
    Csr a = raw;
    a.crow = raw.crow.clone();
    a.col = raw.col.clone();
    a = checked(a);
    spoil(a);  // without a new version, as no user can
    CHECK_NOTHROW(op(a));
    a.facts = nullptr;
    CHECK_THROWS_AS(op(a), IndexError);
    a.crow = raw.crow.clone();
    a = checked(a);
    a.crow.mutable_data<std::int64_t>()[1] = 3;
    CHECK_THROWS_AS(op(a), IndexError);
    a.crow = raw.crow.clone();
    a = checked(a);
    a.col.mutable_data<std::int64_t>()[1] = 3;
    if (std::string(name).starts_with("s") && !std::string(name).starts_with("seg")) CHECK_THROWS_AS(op(a), IndexError);
  }
}

TEST_CASE("a backward does not examine a pattern that was checked, nor its transpose") {
  const Csr a = checked(with_transpose({.crow = ints({0, 2, 2, 3}), .col = ints({0, 1, 2}), .cols = 3}));
  Tensor x = ones({3, 2}, cpu);
  x.requires_grad_();
  const Tensor y = spmm(a, {}, x);
  const_cast<std::int64_t*>(a.t_crow.data<std::int64_t>())[1] = 2;  // [0, 2, 2, 3]
  CHECK(grad(sum(y), std::span(&x, 1))[0].to_vector<float>() == std::vector<float>{2, 2, 0, 0, 1, 1});
}

TEST_CASE("on simt no op launches a check of rows that were examined before they came there") {
  if (device_count(DeviceType::simt) == 0) return test::skip("no simt in this build");
  const Device simt = Device::simt();
  const Csr raw{.crow = ints({0, 2, 2, 3}), .col = ints({0, 1, 2}), .cols = 3};
  const Tensor x = ones({3, 2}, simt);
  for (const bool known : {true, false}) {
    const Csr a = (known ? checked(raw) : raw).to(simt);
    ptr<std::int64_t>(a.crow)[1] = 3;  // memory of the host, and no new version
    const auto reports = [&](const Tensor& y) {
      if (known)
        CHECK_NOTHROW((void)y.to_vector<float>());
      else
        CHECK_THROWS_AS((void)y.to_vector<float>(), IndexError);
    };
    reports(spmm(a, {}, x));
    reports(spmm(a, {}, x, Reduce::max));
    reports(sddmm(a, x, x));
    reports(segment_softmax(x, a));
    reports(gather_csr(x, a));
  }
}

// Offsets of rows whose entries are many tiles, none for thousands of rows, or a few.
Tensor uneven_offsets() {
  Ints crow{0};
  const auto add = [&](std::int64_t rows, std::int64_t entries) {
    for (std::int64_t i = 0; i < rows; ++i) crow.push_back(crow.back() + entries);
  };
  add(1, 0);
  add(1, 9001);  // crosses several cuts, and leaves rest of a tile
  add(300, 25);  // as in a graph of one degree
  add(5000, 0);  // whole tiles without an entry
  add(7, 700);   // many chunks of a tile
  add(900, 1);
  add(1, 20'000);
  for (std::int64_t i = 0; i < 200; ++i) add(1, i % 19);
  add(2, 0);
  return ints(crow);
}

TEST_CASE("narrow rows of a device have the bits of the cpu: hubs, empty rows, rows across tiles, views, all widths") {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  const Tensor offsets = uneven_offsets(), there = offsets.to(*device);
  const std::int64_t entries = offsets.to_vector<std::int64_t>().back(), cols = 70;
  Generator gen(13);
  const Tensor col = randint(0, cols, {entries}, gen, cpu);
  const Csr a{.crow = offsets, .col = col, .cols = cols}, b = a.to(*device);
  struct Case {
    std::int64_t width;
    DType dtype;
  };
  for (const Case& c :
       {Case{1, DType::f32}, Case{2, DType::f32}, Case{3, DType::f32}, Case{4, DType::f32}, Case{8, DType::f32},
        Case{1, DType::bf16}, Case{8, DType::bf16}, Case{4, DType::f16}, Case{1, DType::f64}, Case{2, DType::f64}}) {
    CAPTURE(c.width);
    CAPTURE(text(c.dtype));
    // Integers: sums of them are exact in any order. One element in front makes a view unaligned.
    const Tensor all = randint(-2, 3, {entries * c.width + 1}, gen, cpu).to(c.dtype),
                 value = randint(-1, 2, {entries}, gen, cpu).to(c.dtype),
                 dense = randint(-2, 3, {cols, c.width}, gen, cpu).to(c.dtype);
    const auto rows_of = [&](const Tensor& flat, std::int64_t first) {
      return reshape(narrow(flat, 0, first, entries * c.width), {entries, c.width});
    };
    for (const std::int64_t first : {0, 1}) {
      const Tensor x = rows_of(all, first), y = rows_of(all.to(*device), first);
      for (const Reduce r : {Reduce::sum, Reduce::max, Reduce::min, Reduce::mean}) {
        const auto want = segment_reduce(x, offsets, r).to(DType::f64).to_vector<double>();
        CHECK(segment_reduce(y, there, r).to(DType::f64).to_vector<double>() == want);
      }
    }
    for (const Reduce r : {Reduce::sum, Reduce::max}) {
      const auto want = spmm(a, value, dense, r).to(DType::f64).to_vector<double>();
      CHECK(spmm(b, value.to(*device), dense.to(*device), r).to(DType::f64).to_vector<double>() == want);
    }
  }
}

TEST_CASE("softmax over narrow segments of a device: hubs, empty rows, NaN and infinities stay in their rows") {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  const Tensor offsets = uneven_offsets();
  const std::int64_t entries = offsets.to_vector<std::int64_t>().back();
  Generator gen(14);
  for (const std::int64_t width : {1, 3, 4, 8}) {
    CAPTURE(width);
    const Tensor gy = rand({entries, width}, gen, cpu);
    const Tensor scores = (randn({entries, width}, gen, cpu) * 5).detach();
    const auto run = [&](const Device on, DType dtype) {
      Tensor x = scores.to(on).to(dtype).detach();
      x.requires_grad_();
      const Tensor y = segment_softmax(x, offsets.to(on)), seed = gy.to(on).to(dtype);
      return Tensors{y.detach().to(cpu), grad(std::span(&y, 1), std::span(&x, 1), std::span(&seed, 1))[0].to(cpu)};
    };
    const Tensors want = run(cpu, DType::f64), got = run(*device, DType::f32);
    for (std::size_t i = 0; i < 2; ++i)
      CHECK(largest(got[i].to(DType::f64) - want[i]) <= 64 * std::numeric_limits<float>::epsilon() * largest(want[i]));
  }
  // Entry 5000 is the hub's, entry 9001 the next row's first.
  Doubles bad(static_cast<std::size_t>(entries), 1);
  bad[5000] = kNan;
  bad[9001] = kInf;
  bad[9026] = -kInf;
  const Tensor x = from_data(bad, {entries}, cpu).to(DType::f32), at = offsets.to(*device);
  const auto sums = segment_reduce(x.to(*device), at).to_vector<float>(),
             tops = segment_reduce(x.to(*device), at, Reduce::max).to_vector<float>();
  CHECK((std::isnan(sums[1]) && std::isnan(tops[1])));
  CHECK((sums[2] == kInf && tops[2] == kInf && sums[3] == -kInf && tops[3] == 1 && sums[4] == 25));
  CHECK((sums[0] == 0 && tops[0] == 0 && sums[302] == 0));
}

TEST_CASE("a device reports columns and offsets out of range at the next wait, whatever else it read") {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  const auto there = [&](const Ints& v) { return ints(v).to(*device); };
  const Tensor x = ones({4, 3}, *device);
  const auto fails = [&](const Csr& a, const std::string& contains) {
    for (const Reduce reduce : {Reduce::sum, Reduce::max}) {
      const Tensor y = spmm(a, {}, x, reduce);
      CHECK_THROWS_WITH_AS((void)y.to_vector<float>(), doctest::Contains(contains.c_str()), IndexError);
    }
    const Tensor d = sddmm(a, ones({a.rows(), 3}, *device), x);
    CHECK_THROWS_AS((void)d.to_vector<float>(), IndexError);
    const Tensor t = with_transpose(a).t_col;
    CHECK_THROWS_AS((void)t.to_vector<std::int64_t>(), IndexError);
  };
  fails({.crow = there({0, 1, 2}), .col = there({0, 4}), .cols = 4}, "spmm: index 4 is out of range");
  fails({.crow = there({0, 1, 2}), .col = there({-1, 1}), .cols = 4}, "spmm: index -1 is out of range");
  fails({.crow = there({0, 2, 1, 3}), .col = there({0, 1, 2}), .cols = 4}, "crow must rise from 0");
  fails({.crow = there({0, 900, 3}), .col = there({0, 1, 2}), .cols = 4}, "crow must rise from 0");
  fails({.crow = there({-800, 1, 3}), .col = there({0, 1, 2}), .cols = 4}, "crow must rise from 0");
  fails({.crow = there({0, 1, 2}), .col = there({0, 1, 2}), .cols = 4}, "crow must rise from 0");
  const Tensor s = segment_softmax(x, there({0, 9, 4}));
  CHECK_THROWS_AS((void)s.to_vector<float>(), IndexError);
  CHECK(spmm({.crow = there({0, 2}), .col = there({0, 1}), .cols = 4}, {}, x).to_vector<float>() ==
        std::vector<float>(3, 2));
}

}  // namespace
}  // namespace levin
