// A tensor as a plain array of doubles by coordinates, in which tests write references.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "levin/ops.h"

namespace levin::testing {

using At = std::vector<std::int64_t>;  // coordinates

class Plain {
 public:
  explicit Plain(const Tensor& x) : shape(x.shape()), values(x.detach().to(DType::f64).to_vector<double>()) {}
  explicit Plain(const Shape& s, double value = 0) : shape(s), values(static_cast<std::size_t>(s.numel()), value) {}
  // value(coordinates) everywhere.
  Plain(const Shape& s, const std::function<double(const At&)>& value) : Plain(s) {
    each([&](const At& at) { (*this)(at) = value(at); });
  }
  double& operator()(const At& at) { return values[flat(at)]; }
  double operator()(const At& at) const { return values[flat(at)]; }
  // In row-major order.
  void each(const std::function<void(const At&)>& visit) const {
    At at(static_cast<std::size_t>(shape.rank()));
    for (std::int64_t i = 0; i < shape.numel(); ++i) {
      std::int64_t rest = i;
      for (int d = shape.rank() - 1; d >= 0; --d) {
        at[static_cast<std::size_t>(d)] = rest % shape[d];
        rest /= shape[d];
      }
      visit(at);
    }
  }
  [[nodiscard]] Tensor tensor(DType dtype = DType::f64) const {
    return from_data(std::span<const double>(values), shape, Device::cpu()).to(dtype);
  }

  Shape shape;
  std::vector<double> values;

 private:
  [[nodiscard]] std::size_t flat(const At& at) const {
    std::int64_t i = 0;
    for (int d = 0; d < shape.rank(); ++d) i = i * shape[d] + at[static_cast<std::size_t>(d)];
    return static_cast<std::size_t>(i);
  }
};

inline At with(At at, int dim, double value) {
  at[static_cast<std::size_t>(dim)] = static_cast<std::int64_t>(value);
  return at;
}

}  // namespace levin::testing
