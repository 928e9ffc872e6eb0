#include "levin/engines.h"

#include <doctest/doctest.h>

#include <array>
#include <string>

#include "levin/error.h"
#include "levin/ops.h"
#include "tests/device.h"

using namespace levin;

namespace {

constexpr std::array kFamilies{EngineFamily::product, EngineFamily::convolution, EngineFamily::attention,
                               EngineFamily::batch_norm};

// Restores what a test changes.
class EnginesAsBefore {
 public:
  EnginesAsBefore() {
    for (const EngineFamily f : kFamilies)
      choices_[std::size_t(f)] = engine_choice(f), tf32_[std::size_t(f)] = allow_tf32(f);
  }
  ~EnginesAsBefore() {
    for (const EngineFamily f : kFamilies) set_engine_choice(f, choices_[std::size_t(f)]);
    for (const EngineFamily f : {EngineFamily::product, EngineFamily::convolution})
      set_allow_tf32(f, tf32_[std::size_t(f)]);
  }

 private:
  std::array<EngineChoice, 4> choices_{};
  std::array<AllowTf32, 4> tf32_{};
};

}  // namespace

TEST_CASE("each family of ops has an engine of its own, and what kernels read is what was chosen") {
  const EnginesAsBefore as_before;
  constexpr std::array kChoices{EngineChoice::own, EngineChoice::first, EngineChoice::timed};
  for (std::size_t f = 0; f < kFamilies.size(); ++f) {
    for (const EngineFamily other : kFamilies) set_engine_choice(other, EngineChoice::own);
    for (std::size_t c = 0; c < kChoices.size(); ++c) {
      CAPTURE(f);
      CAPTURE(c);
      CHECK(set_engine_choice(kFamilies[f], kChoices[c]) == kChoices[c == 0 ? 0 : c - 1]);
      for (std::size_t g = 0; g < kFamilies.size(); ++g)
        CHECK(engine_choice(kFamilies[g]) == (g == f ? kChoices[c] : EngineChoice::own));
    }
  }
}

TEST_CASE("f32 numbers are rounded to TF32 nowhere until a process allows it, for products and convolutions apart") {
  const EnginesAsBefore as_before;
  for (const EngineFamily f : kFamilies) CHECK(allow_tf32(f) == AllowTf32::no);
  CHECK(set_allow_tf32(EngineFamily::product, AllowTf32::yes) == AllowTf32::no);
  CHECK(allow_tf32(EngineFamily::product) == AllowTf32::yes);
  CHECK(allow_tf32(EngineFamily::convolution) == AllowTf32::no);
  CHECK(set_allow_tf32(EngineFamily::convolution, AllowTf32::yes) == AllowTf32::no);
  CHECK(set_allow_tf32(EngineFamily::product, AllowTf32::no) == AllowTf32::yes);
  CHECK(allow_tf32(EngineFamily::product) == AllowTf32::no);
  CHECK(allow_tf32(EngineFamily::convolution) == AllowTf32::yes);
  for (const EngineFamily f : {EngineFamily::attention, EngineFamily::batch_norm})
    CHECK_THROWS_AS(set_allow_tf32(f, AllowTf32::yes), ConfigError);
}

TEST_CASE("whatever engine is chosen, products on a device are products") {
  DEVICE_OR_SKIP();
  const EnginesAsBefore as_before;
  Generator gen(1);
  // Small integers: sums are exact in any order and in TF32. With CUDA the library takes products of this size.
  const Tensor a = randint(-4, 5, {256, 192}, gen, device, DType::f32),
               b = randint(-4, 5, {192, 256}, gen, device, DType::f32);
  const std::vector<float> want = matmul(a.to(Device::cpu()), b.to(Device::cpu())).to_vector<float>();
  for (const EngineChoice choice : {EngineChoice::own, EngineChoice::first, EngineChoice::timed}) {
    for (const AllowTf32 allow : {AllowTf32::no, AllowTf32::yes}) {
      set_engine_choice(EngineFamily::product, choice);
      set_allow_tf32(EngineFamily::product, allow);
      CHECK(matmul(a, b).to_vector<float>() == want);
    }
  }
}
