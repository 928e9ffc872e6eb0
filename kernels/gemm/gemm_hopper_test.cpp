// Which products go to the kernels of compute capability 9.0, in every build.
#include "kernels/gemm/gemm_hopper.h"

#include <doctest/doctest.h>

#include <string>

#include "levin/error.h"

using namespace levin;
using namespace levin::kernels;

namespace {

bf16* at(std::uintptr_t address) { return reinterpret_cast<bf16*>(address); }

HopperProduct good() {
  const Matrix<bf16> a{at(4096), 72, 1}, b{at(8192), 1, 72};
  return *hopper_product<bf16>({130, 48, 70}, a, b, at(16384), 48, nullptr);
}

}  // namespace

TEST_CASE("a product of compute capability 9.0 names the side of each operand that lies together") {
  const HopperProduct p = good();
  CHECK(!hopper_refusal(p).has_value());
  CHECK(!p.a.along_lines);
  CHECK(p.a.step == 72);
  CHECK(!p.b.along_lines);
  CHECK(p.b.step == 72);
  const Matrix<bf16> a{at(4096), 1, 136}, b{at(8192), 56, 1};
  const auto turned = hopper_product<bf16>({130, 48, 70}, a, b, at(16384), 48, nullptr);
  REQUIRE(turned.has_value());
  CHECK(turned->a.along_lines);
  CHECK(turned->a.step == 136);
  CHECK(turned->b.along_lines);
  CHECK(turned->b.step == 56);
  CHECK(!hopper_refusal(*turned).has_value());
  CHECK(!hopper_product<bf16>({130, 48, 70}, {at(4096), 144, 2}, b, at(16384), 48, nullptr).has_value());
}

TEST_CASE("a product beyond the limits of TMA is refused with the operand's name") {
  const auto refused = [](auto change, const std::string& why) {
    HopperProduct p = good();
    change(p);
    const auto said = hopper_refusal(p);
    REQUIRE(said.has_value());
    INFO(*said);
    CHECK(said->find(why) == 0);
  };
  using End = HopperProduct::End;
  refused([](HopperProduct& p) { p.a.step = 70; }, "a: rows 140 bytes apart");
  refused([](HopperProduct& p) { p.b.data = at(8200); }, "b: the address");
  refused([](HopperProduct& p) { p.y_step = 50; }, "y: rows 100 bytes apart");
  refused([](HopperProduct& p) { p.dtype = DType::f32; }, "a: dtype f32");
  refused([](HopperProduct& p) { p.size.k = 0; }, "a product of [130, 0] and [0, 48]");
  refused([](HopperProduct& p) { p.size.m = std::int64_t{1} << 31; }, "a product of [2147483648, 70]");
  refused([](HopperProduct& p) { p.before = p.y; }, "sums before an epilogue");
  refused([](HopperProduct& p) { p.end = End::gelu_erf, p.before = at(16392); }, "before: the address");
  refused([](HopperProduct& p) { p.end = End::gelu_tanh, p.b.along_lines = true; }, "gelu of operands");
}

TEST_CASE("a product gets tiles of 256 columns where they fill 132 multiprocessors, then of 128, then none") {
  CHECK(plan_hopper({8192, 8192, 64})->columns == 256);
  CHECK(plan_hopper({8192, 8192, 64})->blocks == 132);
  CHECK(plan_hopper({128 * 12, 128 * 11, 64})->columns == 128);
  CHECK(plan_hopper({128 * 12 - 127, 128 * 11 - 127, 64})->columns == 128);
  CHECK(!plan_hopper({128 * 12, 128 * 10, 1 << 20}).has_value());
}
