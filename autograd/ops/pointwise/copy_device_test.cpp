// Copies of permuted tensors on a device: the tiles, and the copies that use none.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "kernels/pointwise/transpose_device.cuh"
#include "levin/ops.h"
#include "tests/device.h"
#include "tests/skip.h"
#if defined(LEVIN_SIMT)
#include "kernels/simt/run.h"
#endif

namespace levin {
namespace {

const Device cpu = Device::cpu();

// Values that are exact in every dtype, and differ between neighbours in every dimension.
Tensor numbers(const Shape& s, DType t) {
  std::vector<double> v;
  for (std::int64_t i = 0; i < s.numel(); ++i) v.push_back(double(i * 37 % 127));
  return from_data(std::span<const double>(v), s, cpu).to(t);
}

template <class F>
void for_each_permutation(int rank, F&& f) {
  std::vector<std::int64_t> order;
  for (std::int64_t d = 0; d < rank; ++d) order.push_back(d);
  do f(order);
  while (std::next_permutation(order.begin(), order.end()));
}

// Whether a dense copy of x goes by tiles.
bool by_tiles(const Tensor& x) {
  const int side = itemsize(x.dtype()) == 1   ? 128
                   : itemsize(x.dtype()) == 8 ? 32
                                              : 64,
            write = int(16 / itemsize(x.dtype()));
  kernels::PointwisePlan plan;
  const auto bytes = std::int64_t(itemsize(x.dtype()));
  alignas(16) static char somewhere[16];
  plan.add(somewhere, x.shape(), x.shape(), contiguous_strides(x.shape()), x.dtype());
  plan.add(somewhere + x.offset() * bytes % 16, x.shape(), x.shape(), x.strides(), x.dtype());
  plan.collapse();
  kernels::gpu::TransposePlan cut;
  return kernels::gpu::plan_transpose(plan, side, write, write, cut);
}

TEST_CASE("copies on a device: every permutation of four odd dimensions, in every dtype, has the cpu's bits") {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  int tiled = 0;
  for (const DType t :
       {DType::u8, DType::bf16, DType::f16, DType::f32, DType::i64, DType::f64, DType::b8, DType::i8, DType::i16}) {
    const Tensor x = numbers({5, 9, 7, 11}, t), there = x.to(*device);
    for_each_permutation(4, [&](const std::vector<std::int64_t>& order) {
      CAPTURE(text(t));
      CAPTURE(order[0] * 1000 + order[1] * 100 + order[2] * 10 + order[3]);
      const Tensor turned = permute(there, Dims(order));
      tiled += by_tiles(turned);
      CHECK(equal(turned.contiguous().to(cpu), permute(x, Dims(order)).contiguous()));
    });
  }
  CHECK(tiled > 70);  // of 216: 54 keep their innermost dimension, others have sides of a few elements
}

TEST_CASE("copies on a device: whole and cut tiles, aligned or not, expanded, converted and written through views") {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  for (const DType t : {DType::u8, DType::bf16, DType::f32, DType::f64, DType::i8, DType::i16}) {
    CAPTURE(text(t));
    const Tensor x = numbers({3, 160, 144}, t), there = x.to(*device);
    const auto same = [&](const Tensor& got, const Tensor& want) { CHECK(equal(got.to(cpu), want.contiguous())); };
    CHECK(by_tiles(transpose(there, 1, 2)));
    same(transpose(there, 1, 2).contiguous(), transpose(x, 1, 2));
    // One element further, and rows whose length is no multiple of a vector.
    const auto inner = [](const Tensor& u) { return transpose(slice(slice(u, 1, 1, 158), 2, 1, 132), 1, 2); };
    CHECK(by_tiles(inner(there)));
    same(inner(there).contiguous(), inner(x));
    // Aligned rows, cut tiles.
    const auto part = [](const Tensor& u) { return transpose(slice(u, 2, 16, 128), 1, 2); };
    same(part(there).contiguous(), part(x));
    // The same matrix for a whole batch; and one column for all, which gains nothing from a tile.
    const auto batch = [](const Tensor& u) {
      return expand(unsqueeze(transpose(select(u, 0, 1), 0, 1), 0), {2, 144, 160});
    };
    CHECK(by_tiles(batch(there)));
    same(batch(there).contiguous(), batch(x));
    const auto column = [](const Tensor& u) { return expand(slice(select(u, 0, 1), 1, 0, 1), {160, 40}); };
    CHECK(!by_tiles(column(there)));
    same(column(there).contiguous(), column(x));
    // Into a view.
    Tensor to = zeros({3, 150, 170}, *device, t), want = zeros({3, 150, 170}, cpu, t);
    Tensor window = slice(slice(to, 1, 3, 147), 2, 5, 165), wanted = slice(slice(want, 1, 3, 147), 2, 5, 165);
    copy_(window, transpose(there, 1, 2));
    copy_(wanted, transpose(x, 1, 2));
    same(to, want);
    for (const DType other : {DType::f16, DType::bf16, DType::f32, DType::i32, DType::i8, DType::i16}) {
      CAPTURE(text(other));
      same(cast(transpose(there, 1, 2), other), cast(transpose(x, 1, 2), other));
      same(cast(inner(there), other), cast(inner(x), other));
    }
  }
}

TEST_CASE("copies for a device: one of a matrix is no transpose, nor is one of few columns") {
  const Tensor x = numbers({64, 64}, DType::f32);
  CHECK(!by_tiles(slice(x, 1, 0, 32)));
  CHECK(by_tiles(transpose(x, 0, 1)));
  CHECK(!by_tiles(transpose(slice(x, 0, 0, 3), 0, 1)));
}

#if defined(LEVIN_SIMT)
TEST_CASE("copies on simt: no order in which threads run changes a tile") {
  const Tensor x = numbers({130, 70}, DType::bf16), there = x.to(*test::launching_device());
  for (const simt::Schedule schedule : simt::kSchedules) {
    CAPTURE(simt::name(schedule));
    simt::set_schedule(schedule, 17);
    const Tensor got = transpose(there, 0, 1).contiguous();
    simt::set_schedule(simt::Schedule::ascending);
    CHECK(equal(got.to(cpu), transpose(x, 0, 1).contiguous()));
  }
}
#endif

}  // namespace
}  // namespace levin
