// The conformance suite's input: each op has a case, registered by the test file beside it.
//
//   LEVIN_OP_CASE(layer_norm) {
//     OpCase c{.ops = {"layer_norm", "layer_norm_backward"}, .dtypes = kFloatDTypes, .sums = 1000};
//     for (const Shape& s : {Shape{1, 1}, Shape{3, 5}, Shape{0, 4}}) {
//       c.samples.push_back({.inputs = {real(s), real({s.back()}), real({s.back()})},
//                            .call = [](const Tensors& in) { return Tensors{layer_norm(in[0], in[1], in[2])}; },
//                            .reference = [](const Tensors& in) { return Tensors{...the definition, in f64...}; }});
//     }
//     c.errors.push_back({"weight of the wrong shape", [] { (void)layer_norm(...); }, throws<ShapeError>,
//                         "layer_norm: weight"});
//     return c;
//   }
//
// For every sample the suite then checks:
// - values against the reference in each dtype;
// - strided, transposed, unaligned and expanded inputs; 1 and 3 threads; the meta device;
// - gradcheck and gradgradcheck; each need mask; a write to an input between forward and backward;
// - undefined inputs, which are a StateError unless optional; unlisted dtypes; the error cases.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin::testing {

inline const std::vector<DType> kFloatDTypes{DType::f32, DType::f64, DType::f16, DType::bf16};
inline const std::vector<DType> kNumberDTypes{DType::f32, DType::f64, DType::f16, DType::bf16,
                                              DType::i32, DType::i64, DType::u8};
// For ops that compute, and for ops that move elements or compare them: these take i8 and i16, too.
inline const std::vector<DType> kComputedDTypes{DType::f32, DType::f64, DType::f16, DType::bf16,
                                                DType::i32, DType::i64, DType::u8,  DType::b8};
inline const std::vector<DType> kAllDTypes{DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32,
                                           DType::i64, DType::u8,  DType::b8,  DType::i8,   DType::i16};

// A random input. `real` ones take the dtype under test and get gradients, `constant` ones only take the dtype; `index`
// is i64 in [0, bound), `mask` is bool, `fixed` is the tensor given.
struct Input {
  enum class Kind { real, constant, index, mask, fixed } kind = Kind::real;
  Shape shape{};
  double low = -2, high = 2;  // values are drawn from [low, high); integers for integer dtypes and Kind::index
  Tensor value{};             // Kind::fixed
  bool optional = false;      // the op accepts an undefined tensor here, as ops.h says
  // Not random: special_values() of the dtype, one a row or one a column.
  enum class Special { no, rows, columns } special = Special::no;
  std::vector<double> kinks{};
};
// NaN, both infinities, zeros, largest, smallest normal and smallest subnormal numbers, then `kinks`, the places where
// the op's formula changes. For integer dtypes some small numbers.
std::vector<double> special_values(DType dtype, const std::vector<double>& kinks);
// One input gets these as a row; two inputs get them by rows and by columns, so every pair meets.
Input special_row(const std::vector<double>& kinks);
std::array<Input, 2> special_pairs(const std::vector<double>& a, const std::vector<double>& b);
inline Input real(Shape shape, double low = -2, double high = 2) { return {Input::Kind::real, shape, low, high, {}}; }
inline Input constant(Shape shape, double low = -2, double high = 2) {
  return {Input::Kind::constant, shape, low, high, {}};
}
inline Input index(Shape shape, std::int64_t bound) { return {Input::Kind::index, shape, 0, double(bound), {}}; }
inline Input mask(Shape shape) { return {Input::Kind::mask, shape, 0, 2, {}}; }
// An operand that may be undefined by ops.h.
inline Input optional(Input in) {
  in.optional = true;
  return in;
}
inline Input fixed(Tensor t) { return {Input::Kind::fixed, t.shape(), 0, 0, t}; }

struct OpSample {
  std::vector<Input> inputs;
  std::function<Tensors(const Tensors&)> call;       // the public function; must be pure
  std::function<Tensors(const Tensors&)> reference;  // its definition: gets the same inputs with reals as f64
  bool gradcheck = true;       // off for samples at a kink or where the numeric derivative is meaningless
  std::optional<DType> one{};  // the dtype of checks in one dtype; else the first of the case
  // For a pointwise op: its derivative in each input, as a function of the reference's arguments, NaN where there is
  // none. Inputs have the output's shape. Values and derivatives are then compared element by element, each relative to
  // its own size, or to `floor` where its size is below.
  std::function<Tensors(const Tensors&)> slopes{};
  double floor = 0;
  // The size of the terms that cancel in every element of a gradient: the gradient is their rounding errors, and what
  // differs between devices is relative to the terms.
  double cancelled_terms = 0;
};

// The sample under autocast, in bf16 where one dtype is checked.
inline OpSample under_autocast(OpSample s) {
  s.call = [f = std::move(s.call)](const Tensors& in) {
    const Autocast on(DType::bf16);
    return f(in);
  };
  s.one = DType::bf16;
  return s;
}

struct OpError {
  std::string what;
  std::function<void()> call;
  std::function<bool(const Error&)> is;  // throws<ShapeError>
  std::string contains;                  // a part of the message: the op's name and the values
};
template <class E>
bool throws(const Error& e) {
  return dynamic_cast<const E*>(&e) != nullptr;
}

struct OpCase {
  std::vector<std::string> ops;  // the covered entries of the op table
  std::vector<DType> dtypes;     // of the real inputs; a typed error must refuse every other dtype
  double ulps = 4;               // allowed error of the largest value, in eps of the dtype ...
  double sums = 1;               // ... times sqrt of this many added terms
  bool differentiable = true;    // some output has a gradient
  bool layout_changes_sums =
      false;                    // strided inputs are added in another order: equal within the tolerance, not in bits
  bool values_on_meta = false;  // needs values: meta is refused with UnsupportedError
  bool needs_device = false;    // runs its ops only where a device launches kernels
  bool on_cpu_alone = false;    // a device that launches kernels is refused with UnsupportedError
  std::string no_empty{};       // why no sample has a tensor without elements
  std::string no_single{};      // why no sample has one element only
  std::vector<OpSample> samples{};
  std::vector<OpError> errors{};
};

using OpCaseMaker = OpCase (*)();
struct NamedCase {
  const char* name;
  OpCaseMaker make;
};
std::vector<NamedCase>& op_cases();
struct RegisterCase {
  RegisterCase(const char* name, OpCaseMaker make) { op_cases().push_back({name, make}); }
};

#define LEVIN_OP_CASE(name)                                                                 \
  static ::levin::testing::OpCase op_case_##name();                                         \
  static const ::levin::testing::RegisterCase register_case_##name(#name, &op_case_##name); \
  static ::levin::testing::OpCase op_case_##name()

// out[i] = f(a[i], ...) in plain double loops over broadcast inputs: an independent reference for pointwise ops.
Tensor map_reference(const Tensor& a, const std::function<double(double)>& f);
Tensor map_reference(const Tensor& a, const Tensor& b, const std::function<double(double, double)>& f);

}  // namespace levin::testing
