// Conformance cases of pointwise ops: from a value and its derivatives in f64, samples of every shape and of special
// values.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "tests/ops/samples.h"

namespace levin::testing {

using F1 = double (*)(double);
using F2 = double (*)(double, double);

// The range of random samples. A further sample is drawn from the default range, without gradcheck, since the op may
// have no derivative there.
struct Domain {
  double low = -9, high = 9;
  std::vector<double> kinks{};  // where the op's formula changes; tried with the special values
  double floor = 0;             // see OpSample
  bool wide = true;             // false: no sample from the default range, which the op refuses for integers
};

// One derivative per input, NaN where there is none.
struct Unary {
  F1 value, slope;
};
struct Binary {
  F2 value, slope_a, slope_b;
};

inline OpCase unary_case(std::vector<std::string> ops, Tensor (*f)(const Tensor&), Unary want,
                         std::vector<DType> dtypes, const Domain& d = {}) {
  OpCase c{.ops = std::move(ops), .dtypes = std::move(dtypes)};
  const auto add = [&](Input in, bool gradcheck) {
    c.samples.push_back({.inputs = {std::move(in)},
                         .call = [f](const Tensors& x) { return Tensors{f(x[0])}; },
                         .reference = [want](const Tensors& x) { return Tensors{map_reference(x[0], want.value)}; },
                         .gradcheck = gradcheck,
                         .slopes = [want](const Tensors& x) { return Tensors{map_reference(x[0], want.slope)}; },
                         .floor = d.floor});
  };
  for (const Shape& s : {Shape{}, Shape{1}, Shape{0}, Shape{7}, Shape{3, 5}, Shape{2, 0, 3}, Shape{70, 1000}})
    add(real(s, d.low, d.high), true);
  add(real({50, 3}, -9, 9), false);
  add(special_row(d.kinks), false);
  c.errors.push_back({"bool has no kernel", [f] { (void)f(zeros({2}, Device::cpu(), DType::b8)); },
                      throws<UnsupportedError>, "bool on cpu; has"});
  return c;
}

inline OpCase binary_case(const char* op, Tensor (*f)(const Tensor&, const Tensor&), Binary want,
                          std::vector<DType> dtypes, const Domain& a = {}, const Domain& b = {}) {
  OpCase c{.ops = {op}, .dtypes = std::move(dtypes)};
  const auto add = [&](Input x, Input y, bool gradcheck = true) {
    OpSample s{.inputs = {std::move(x), std::move(y)},
               .call = [f](const Tensors& in) { return Tensors{f(in[0], in[1])}; },
               .reference = [want](const Tensors& in) { return Tensors{map_reference(in[0], in[1], want.value)}; },
               .gradcheck = gradcheck,
               .floor = a.floor};
    if (s.inputs[0].shape == s.inputs[1].shape) {
      s.slopes = [want](const Tensors& in) {
        return Tensors{map_reference(in[0], in[1], want.slope_a), map_reference(in[0], in[1], want.slope_b)};
      };
    }
    c.samples.push_back(std::move(s));
  };
  const auto drawn = [&](Shape x, Shape y) { add(real(x, a.low, a.high), real(y, b.low, b.high)); };
  drawn({1}, {1});
  drawn({0}, {0});
  drawn({7}, {7});
  drawn({3, 5}, {5});
  drawn({3, 1}, {1, 4});
  drawn({}, {2, 3});
  drawn({2, 1, 3}, {4, 1});
  drawn({65, 1030}, {65, 1030});
  if (a.wide) add(real({50, 3}, -9, 9), real({50, 3}, -9, 9), false);
  const std::array<Input, 2> specials = special_pairs(a.kinks, b.kinks);
  add(specials[0], specials[1], false);
  const std::string name = op;
  c.errors.push_back({"shapes that do not broadcast",
                      [f] {
                        (void)f(zeros({2, 3}, Device::cpu()), zeros({4}, Device::cpu()));
                      },
                      throws<ShapeError>, name + ": shapes [2, 3] and [4] do not broadcast"});
  c.errors.push_back({"two dtypes", [f] { (void)f(zeros({2}, Device::cpu()), zeros({2}, Device::cpu(), DType::f64)); },
                      throws<DTypeError>, name + ": tensors are f32 and f64"});
  c.errors.push_back({"two devices", [f] { (void)f(zeros({2}, Device::cpu()), zeros({2}, Device::meta())); },
                      throws<DeviceError>, name + ": tensors are on cpu and meta"});
  return c;
}

}  // namespace levin::testing
