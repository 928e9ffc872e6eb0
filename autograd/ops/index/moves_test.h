// Samples of ops that move elements: where each element of the result comes from.
#pragma once

#include <functional>
#include <optional>

#include "autograd/ops/pointwise/plain_test.h"
#include "tests/ops/samples.h"

namespace levin::testing {

// y(at) = x(from(at)), or `otherwise` where from gives no index.
using From = std::function<std::optional<At>(const At&)>;
inline Tensor moved(const Tensor& t, const Shape& to, const From& from, double otherwise = 0) {
  const Plain x(t);
  return Plain(to,
               [&](const At& at) {
                 const std::optional<At> source = from(at);
                 return source ? x(*source) : otherwise;
               })
      .tensor();
}
inline void add_move(OpCase& c, const Shape& x, const std::function<Tensor(const Tensor&)>& call, const Shape& to,
                     const From& from, double otherwise = 0) {
  c.samples.push_back({.inputs = {real(x, 0, 8)},
                       .call = [=](const Tensors& in) { return Tensors{call(in[0])}; },
                       .reference = [=](const Tensors& in) { return Tensors{moved(in[0], to, from, otherwise)}; }});
}

}  // namespace levin::testing
