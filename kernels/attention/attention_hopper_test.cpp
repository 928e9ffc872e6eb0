// Which calls of attention go to the kernels of compute capability 9.0, in every build.
#include "kernels/attention/attention_hopper.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

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
}

TEST_CASE("device: our own attention that fills the device is that of f64, also where heads share lines of memory") {
  DEVICE_OR_SKIP();
  const Device cpu = Device::cpu();
  for (const std::int64_t width : {64, 128}) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      for (const Causal causal : {Causal::no, Causal::yes}) {
        CAPTURE(width);
        CAPTURE(text(dtype));
        Generator g(3);
        const Tensor qkv = randn({2, 65, 3, 33, width}, g, cpu, DType::f64).to(dtype);
        const auto result = [&](const Tensor& from) {
          const Tensors parts = unbind(permute(from, {2, 0, 3, 1, 4}));
          return scaled_dot_product_attention(parts[0], parts[1], parts[2], {.causal = causal});
        };
        const Tensor got = result(qkv.to(device)), want = result(qkv.to(DType::f64));
        // A weight is rounded once and the result once; the weights of a row add up to 1 and |v| < 5.
        const double unit = dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
        CHECK(allclose(got.to(cpu).to(DType::f64), want, 0, 5 * 2 * unit));
      }
    }
  }
}
