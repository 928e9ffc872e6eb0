// Kernels for rows that are known to be short, against those for any pattern and against the CPU.
#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

#include "levin/autograd.h"
#include "levin/sparse.h"
#include "levin/stream.h"
#include "tests/device.h"
#include "tests/skip.h"
#if defined(LEVIN_SIMT)
#include "kernels/simt/run.h"
#endif

namespace levin {
namespace {

const Device cpu = Device::cpu();

// Integers as floats: sums of them are exact, so that every order of addition has the same bits.
Tensor whole(const Shape& shape, Generator& gen, DType dtype) { return randint(-8, 9, shape, gen, cpu).to(dtype); }

// Rows of 0 to 11 entries, one of `longest`; columns of four bytes or eight.
Csr drawn(std::int64_t rows, std::int64_t cols, std::int64_t longest, DType index, bool has_edge) {
  Generator gen(3);
  Tensor count = randint(0, 12, {rows}, gen, cpu);
  count = where(eq(arange(rows, cpu), rows / 2), full({rows}, longest, cpu, DType::i64), count);
  const Tensor crow = cat({zeros({1}, cpu, DType::i64), cumsum(count, 0)});
  const std::int64_t entries = crow.to_vector<std::int64_t>().back();
  Csr a{.crow = crow, .col = randint(0, cols, {entries}, gen, cpu).to(index), .cols = cols};
  if (has_edge) a.edge = sort(rand({entries}, gen, cpu)).indices.to(index);
  return with_transpose(a);
}

struct Widths {
  std::int64_t heads, inner;
  DType dtype = DType::f32;
};
// All ops that reduce rows or pass over entries, with gradients.
Tensors results(const Csr& a, const Widths& w, Device device) {
  Generator gen(4);
  const auto leaf = [&](const Shape& shape) {
    Tensor t = whole(shape, gen, w.dtype).to(device);
    t.requires_grad_();
    return t;
  };
  const Tensor value = leaf({a.entries(), w.heads}), x = leaf({a.cols, w.heads, w.inner}),
               r = leaf({a.rows(), w.heads, w.inner}), attn = leaf({w.heads, w.inner}), u = leaf({a.cols, w.heads}),
               v = leaf({a.rows(), w.heads}), of_entries = leaf({a.entries(), w.heads, w.inner});
  Tensors out;
  const auto add = [&](const Tensor& y, std::vector<Tensor> in) {
    const Tensor gy = whole(y.shape(), gen, w.dtype).to(device);
    out.push_back(y.detach());
    for (const Tensor& g : grad(std::span(&y, 1), in, std::span(&gy, 1))) out.push_back(g);
  };
  for (const Reduce reduce : {Reduce::sum, Reduce::max, Reduce::min}) add(spmm(a, value, x, reduce), {value, x});
  add(spmm(a, {}, x), {x});
  add(sddmm(a, r, x), {r, x});
  add(segment_reduce(of_entries, a), {of_entries});
  add(gather_csr(r, a), {r});
  add(edge_scores(a, u, v, 2.0), {u, v});
  add(gatv2_scores(a, x, r, attn, 2.0), {x, r, attn});
  return out;
}

const std::vector<Widths> kWidths{
    {1, 1}, {1, 4}, {2, 3}, {8, 8}, {1, 16}, {1, 33}, {2, 64}, {1, 150}, {3, 5, DType::f64}, {2, 8, DType::f64}};

TEST_CASE("rows that are known to be short: a device has the bits of any pattern and of the cpu, in every width") {
  DEVICE_OR_SKIP();
  for (const DType index : {DType::i32, DType::i64}) {
    const Csr raw = drawn(40, 30, 100, index, index == DType::i64), known = checked(raw);
    for (const Widths& w : kWidths) {
      CAPTURE(w.heads);
      CAPTURE(w.inner);
      const Tensors here = results(known, w, cpu), any = results(raw.to(device), w, device),
                    shorts = results(known.to(device), w, device);
      for (std::size_t i = 0; i < here.size(); ++i) {
        CAPTURE(i);
        const auto got = shorts[i].to(DType::f64).to_vector<double>();
        CHECK(got == any[i].to(DType::f64).to_vector<double>());
        CHECK(got == here[i].to(DType::f64).to_vector<double>());
      }
    }
  }
}

#if defined(LEVIN_SIMT)
TEST_CASE("rows that are known to be short: no order in which threads of simt run changes a bit") {
  const Device simt = Device::simt();
  const Csr known = checked(drawn(40, 30, 100, DType::i32, true)).to(simt);
  Generator gen(5);
  const Tensor scores = randn({known.entries(), 3}, gen, cpu).to(simt);
  for (const Widths& w : {Widths{1, 1}, Widths{2, 3}, Widths{1, 16}, Widths{1, 150}}) {
    const Tensors want = results(known, w, simt);
    const auto softmax = segment_softmax(scores, known).to_vector<float>();
    for (const simt::Schedule schedule : simt::kSchedules) {
      CAPTURE(simt::name(schedule));
      simt::set_schedule(schedule, 17);
      const Tensors got = results(known, w, simt);
      CHECK(segment_softmax(scores, known).to_vector<float>() == softmax);
      simt::set_schedule(simt::Schedule::ascending);
      for (std::size_t i = 0; i < want.size(); ++i) CHECK(got[i].to_vector<float>() == want[i].to_vector<float>());
    }
  }
}
#endif

TEST_CASE("softmax over short segments on a device has the values and gradients of the cpu") {
  DEVICE_OR_SKIP();
  const Csr known = checked(drawn(40, 30, 100, DType::i32, false)), there = known.to(device);
  Generator gen(6);
  for (const std::int64_t width : {1, 3, 8, 200}) {
    Tensor x = randn({known.entries(), width}, gen, cpu), gy = randn(x.shape(), gen, cpu);
    const auto run = [&](const Csr& a, Device on) {
      Tensor in = x.detach().to(on);
      in.requires_grad_();
      const Tensor y = segment_softmax(in, a), seed = gy.to(on);
      return Tensors{y.detach().to(cpu), grad(std::span(&y, 1), std::span(&in, 1), std::span(&seed, 1))[0].to(cpu)};
    };
    const Tensors want = run(known, cpu), got = run(there, device);
    const double eps = std::numeric_limits<float>::epsilon();
    for (std::size_t i = 0; i < 2; ++i)
      CHECK(amax(abs(got[i] - want[i])).item() <= 16 * eps * amax(abs(want[i])).item());
  }
}

TEST_CASE("an op on a graph of Cora's size is one kernel of a device where its rows are known to be short") {
  DEVICE_OR_SKIP();
  Generator gen(7);
  const std::int64_t nodes = 2708;
  const Csr raw = drawn(nodes, nodes, 169, DType::i32, false), known = checked(raw).to(device), any = raw.to(device);
  const Tensor x = randn({nodes, 16}, gen, cpu).to(device), value = randn({raw.entries()}, gen, cpu).to(device),
               u = randn({nodes, 8}, gen, cpu).to(device), l = randn({nodes, 8, 8}, gen, cpu).to(device),
               attn = randn({8, 8}, gen, cpu).to(device);
  const auto kernels = [&](const auto& f) {
    f();  // what is made once is made here
    return Graph(Stream::current(device), f).nodes();
  };
  CHECK(kernels([&] { (void)spmm(known, value, x); }) == 1);
  CHECK(kernels([&] { (void)spmm(any, value, x); }) == 5);
  CHECK(kernels([&] { (void)spmm(known, {}, x, Reduce::mean); }) == 1);
  CHECK(kernels([&] { (void)spmm(known, value, x, Reduce::max); }) == 1);
  CHECK(kernels([&] { (void)sddmm(known, x, x); }) == 1);
  CHECK(kernels([&] { (void)segment_reduce(value, known); }) == 1);
  CHECK(kernels([&] { (void)gather_csr(x, known); }) == 1);
  CHECK(kernels([&] { (void)segment_softmax(value, known); }) == 2);
  CHECK(kernels([&] { (void)edge_scores(known, u, u); }) == 1);
  CHECK(kernels([&] { (void)gatv2_scores(known, l, l, attn); }) == 1);
}

TEST_CASE("a row longer than short ones takes the general kernels of a device, with the bits of the cpu") {
  DEVICE_OR_SKIP();
  for (const std::int64_t longest : {512, 513, 5000}) {
    CAPTURE(longest);
    const Csr known = checked(drawn(20, 30, longest, DType::i32, false));
    const Widths w{1, 3};
    const Tensors here = results(known, w, cpu), there = results(known.to(device), w, device);
    for (std::size_t i = 0; i < here.size(); ++i) {
      CAPTURE(i);
      CHECK(there[i].to_vector<float>() == here[i].to_vector<float>());
    }
  }
}

}  // namespace
}  // namespace levin
