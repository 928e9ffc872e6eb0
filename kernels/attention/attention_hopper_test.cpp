// Which calls of attention go to the kernels of compute capability 9.0, in every build.
#include "kernels/attention/attention_hopper.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "levin/autograd.h"
#include "levin/generator.h"
#include "levin/ops.h"
#include "tests/device.h"

using namespace levin;
using namespace levin::kernels;

namespace {

LibraryAttention good(std::int64_t width = 64) {
  const auto operand = [&](std::uintptr_t address, std::int64_t rows) {
    return LibraryAttention::Operand{
        reinterpret_cast<void*>(address), {2, 3, rows, width}, {rows * 3 * width, width, 3 * width, 1}};
  };
  return {.dtype = DType::bf16,
          .scale = 0.125f,
          .q = operand(4096, 70),
          .k = operand(8192, 130),
          .v = operand(8192 + 16, 130),
          .y = operand(16384, 70),
          .lse = {nullptr, {2, 3, 70, 1}, {210, 70, 1, 1}}};
}
LibraryAttention good_backward() {
  LibraryAttention call = good();
  call.backward = true;
  call.gy = call.y, call.gq = call.q, call.gk = call.k, call.gv = call.v;
  return call;
}

}  // namespace

TEST_CASE("attention of compute capability 9.0 takes heads 64 and 128 wide, and names the limit of others") {
  CHECK(!hopper_refusal(good()).has_value());
  CHECK(!hopper_refusal(good(128)).has_value());
  const auto refused = [](auto change, const std::string& why) {
    LibraryAttention call = good();
    change(call);
    const auto said = hopper_refusal(call);
    REQUIRE(said.has_value());
    INFO(*said);
    CHECK(said->find(why) == 0);
  };
  CHECK(hopper_refusal(good(96)) == "heads of width 96 and 96, expected 64 or 128 of both");
  refused([](LibraryAttention& c) { c.v.sizes[3] = 128; }, "heads of width 64 and 128");
  refused([](LibraryAttention& c) { c.scale = 0; }, "scale 0");
  refused([](LibraryAttention& c) { c.scale = -1; }, "scale -1");
  refused([](LibraryAttention& c) { c.scale = std::numeric_limits<float>::infinity(); }, "scale inf");
  refused([](LibraryAttention& c) { c.q.sizes[2] = std::int64_t{1} << 31; }, "q [2, 3, 2147483648, 64]");
  refused([](LibraryAttention& c) { c.q.sizes[0] = std::int64_t{1} << 31; }, "q [2147483648, 3, 70, 64]");
  refused([](LibraryAttention& c) { c.q.strides[2] = 196; }, "q: rows 392 bytes apart");
  refused([](LibraryAttention& c) { c.k.strides[1] = 4; }, "k: heads 8 bytes apart");
  refused([](LibraryAttention& c) { c.v.strides[0] = 12; }, "v: batches 24 bytes apart");
  refused([](LibraryAttention& c) { c.y.data = reinterpret_cast<void*>(std::uintptr_t{4104}); }, "y: the address");
  refused([](LibraryAttention& c) { c.dtype = DType::f32; }, "q: dtype f32");
  CHECK(!hopper_refusal(good_backward()).has_value());
  const auto of_gradient = [](LibraryAttention::Operand LibraryAttention::*operand) {
    LibraryAttention call = good_backward();
    (call.*operand).strides[2] = 196;
    return hopper_refusal(call).value_or("").substr(0, 26);
  };
  CHECK(of_gradient(&LibraryAttention::gy) == "gy: rows 392 bytes apart, ");
  CHECK(of_gradient(&LibraryAttention::gq) == "gq: rows 392 bytes apart, ");
  CHECK(of_gradient(&LibraryAttention::gk) == "gk: rows 392 bytes apart, ");
  CHECK(of_gradient(&LibraryAttention::gv) == "gv: rows 392 bytes apart, ");
}

TEST_CASE("attention gets blocks of 192 rows for heads 64 wide and of 128 for others, and fills half of an H100") {
  const auto fills = [](std::int64_t heads, std::int64_t rows, std::int64_t width) {
    LibraryAttention call = good(width);
    call.q.sizes = {2, heads, rows, width};
    return fills_hopper(call);
  };
  CHECK(fills(33, 192, 64));
  CHECK(!fills(32, 192, 64));
  CHECK(fills(17, 193, 64));
  CHECK(!fills(17, 192, 64));
  CHECK(fills(17, 129, 128));
  CHECK(!fills(17, 128, 128));
  LibraryAttention call = good_backward();
  call.k.sizes = {2, 17, 129, 64};
  call.q.sizes = {2, 17, 64, 64};
  CHECK(fills_hopper(call));  // blocks of 128 columns
  call.q.sizes[2] = 63;
  CHECK(!fills_hopper(call));  // sums of a tile, most of which no row would use
  call.q.sizes[2] = 64;
  call.k.sizes[2] = 128;
  CHECK(!fills_hopper(call));
}

TEST_CASE("device: our own attention that fills the device, and its gradients, are those of f64") {
  DEVICE_OR_SKIP();
  const test::ChosenEngine own(EngineFamily::attention, EngineChoice::own);
  const Device cpu = Device::cpu();
  constexpr std::int64_t kBatches = 2, kHeads = 33, kRows = 65;
  for (const std::int64_t width : {64, 128}) {
    const DType dtype = width == 64 ? DType::bf16 : DType::f16;
    const Causal causal = width == 64 ? Causal::yes : Causal::no;
    CAPTURE(width);
    Generator g(3);
    // The thirds of one product, as models have them.
    const Tensor qkv = randn({kBatches, kRows, 3, kHeads, width}, g, cpu, DType::f64).to(dtype),
                 seed = randn({kBatches, kRows, kHeads, width}, g, cpu, DType::f64).to(dtype);
    const auto thirds = [](const Tensor& t) { return unbind(permute(t, {2, 0, 3, 1, 4})); };
    const auto results = [&](Device where, DType as) {
      Tensor x = qkv.to(where).to(as).detach();
      x.requires_grad_();
      const Tensors parts = thirds(x);
      const Tensor y = scaled_dot_product_attention(parts[0], parts[1], parts[2], {.causal = causal});
      const Tensor gx = grad(Tensors{y}, Tensors{x}, Tensors{transpose(seed.to(where).to(as), 1, 2)})[0];
      return std::pair(y.to(cpu).to(DType::f64), gx.to(cpu).to(DType::f64));
    };
    const auto [got_y, got_gx] = results(device, dtype);
    const auto [want_y, want_gx] = results(cpu, DType::f64);
    // A weight is rounded once and the result once; the weights of a row add up to 1 and |v| < 5.
    const double unit = dtype == DType::f16 ? 0x1p-11 : 0x1p-8, least = dtype == DType::f16 ? 0x1p-25 : 0;
    CHECK(allclose(got_y, want_y, 0, 5 * 2 * unit));

    // Of the gradients: weights, slopes, y and the results are rounded.
    const Tensors parts = thirds(qkv.to(DType::f64));
    const Tensor &q = parts[0], &k = parts[1], &v = parts[2], gy = transpose(seed.to(DType::f64), 1, 2);
    const double scale = 1 / std::sqrt(double(width));
    Tensor scores = matmul(q, transpose(k, -2, -1)) * scale;
    if (causal == Causal::yes)
      scores = masked_fill(scores, gt(arange(kRows, cpu), unsqueeze(arange(kRows, cpu), 1)),
                           -std::numeric_limits<double>::infinity());
    const Tensor w = softmax(scores, -1), d = matmul(gy, transpose(v, -2, -1));
    const Tensor mean_error = sum(abs(gy) * matmul(w, abs(v)), -1, KeepDim::yes) * 2;
    const Tensor slope_error = (w * (abs(d - sum(d * w, -1, KeepDim::yes)) + mean_error) * unit + least) * scale;
    const Tensors bounds{matmul(slope_error, abs(k)), matmul(transpose(slope_error, -2, -1), abs(q)),
                         matmul(transpose(w * unit + least, -2, -1), abs(gy))};
    const Tensors got = thirds(got_gx), want = thirds(want_gx);
    for (std::size_t i = 0; i < 3; ++i) {
      CAPTURE(i);
      const Tensor allowed = bounds[i] * 2 + abs(want[i]) * (2 * unit) + 2 * least;
      CHECK(all(le(abs(got[i] - want[i]), allowed)).item<bool>());
    }
  }
}
