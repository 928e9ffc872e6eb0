// Which products go to the kernels of compute capability 9.0, in every build.
#include "kernels/gemm/gemm_hopper.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "levin/engines.h"
#include "levin/error.h"
#include "levin/ops.h"
#include "tests/device.h"

using namespace levin;
using namespace levin::kernels;

namespace {

bf16* at(std::uintptr_t address) { return reinterpret_cast<bf16*>(address); }

HopperProduct good() {
  const Matrix<bf16> a{at(4096), 72, 1}, b{at(8192), 1, 72};
  return *hopper_product<bf16>({130, 48, 70}, a, b, at(16384), 48, nullptr);
}

template <class T>
void check_directions(Device device) {
  constexpr std::int64_t kRows = 128 * 12 - 40, kColumns = 128 * 11 - 24, kDepth = 72;
  const auto number = [](std::int64_t i, std::int64_t k) { return float((i * 7 + k * 5) % 31 % 3 - 1); };
  // Element (i, k) of a matrix [lines, depth]; turned: stored as [depth, lines].
  const auto matrix = [&](std::int64_t lines, std::int64_t factor, bool turned) {
    std::vector<T> v(std::size_t(lines * kDepth));
    for (std::int64_t i = 0; i < lines; ++i) {
      for (std::int64_t k = 0; k < kDepth; ++k)
        v[std::size_t(turned ? k * lines + i : i * kDepth + k)] = T(number(i * factor, k));
    }
    return turned ? transpose(from_data(v, {kDepth, lines}, device), 0, 1) : from_data(v, {lines, kDepth}, device);
  };
  for (const bool a_turned : {false, true}) {
    for (const bool b_turned : {false, true}) {
      const Tensor y = matmul(matrix(kRows, 1, a_turned), transpose(matrix(kColumns, 3, b_turned), 0, 1));
      const std::vector<float> got = y.to(DType::f32).to_vector<float>();
      int wrong = 0;
      for (std::int64_t i = 0; i < kRows; i += 53) {
        for (std::int64_t j = 0; j < kColumns; ++j) {
          float sum = 0;
          for (std::int64_t k = 0; k < kDepth; ++k) sum += number(i, k) * number(j * 3, k);
          wrong += got[std::size_t(i * kColumns + j)] != sum;
        }
      }
      CAPTURE(a_turned);
      CAPTURE(b_turned);
      CHECK(wrong == 0);
    }
  }
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
  refused([](HopperProduct& p) { p.end = End::gelu_erf_slope; }, "the slope of gelu without z");
  refused([](HopperProduct& p) { p.end = End::gelu_tanh_slope, p.before = p.y, p.bias = p.y; },
          "the slope of gelu without z, or with a bias");
  refused([](HopperProduct& p) { p.end = End::gelu_tanh_slope, p.before = p.y; }, "the slope of gelu of an a");
}

TEST_CASE("a product gets tiles of 256 columns where they fill 132 multiprocessors, then of 128, then none") {
  CHECK(plan_hopper({8192, 8192, 64})->columns == 256);
  CHECK(plan_hopper({8192, 8192, 64})->blocks == 132);
  CHECK(plan_hopper({128 * 12, 128 * 11, 64})->columns == 128);
  CHECK(plan_hopper({128 * 12 - 127, 128 * 11 - 127, 64})->columns == 128);
  CHECK(!plan_hopper({128 * 12, 128 * 10, 1 << 20}).has_value());
}

TEST_CASE("a product goes through its tiles in clusters of two where that takes no more rounds") {
  CHECK(plan_hopper({8192, 8192, 64})->peers == 2);
  CHECK(plan_hopper({4096, 768, 64})->peers == 2);
  CHECK(plan_hopper({128 * 12, 128 * 11, 64})->peers == 2);  // 66 pairs: one round
  CHECK(plan_hopper({128 * 11, 128 * 12, 64})->peers == 1);  // 72 pairs: two rounds instead of one
  CHECK(plan_hopper({100, 256 * 132, 64})->peers == 1);      // second rows would be none
}

TEST_CASE("device: our own products that fill the device are exact, in both directions of both operands") {
  DEVICE_OR_SKIP();
  const test::ChosenEngine own(EngineFamily::product, EngineChoice::own);
  check_directions<f16>(device);
  check_directions<bf16>(device);
}
