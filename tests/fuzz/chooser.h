// Arguments of ops from bytes: most fit, some are edge cases, a few are absurd.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "levin/ops.h"
#include "tests/fuzz/target.h"

namespace levin::fuzz {

class Chooser {
 public:
  explicit Chooser(Bytes in) : in_(in) {}
  [[nodiscard]] bool used_up() const { return at_ == in_.size(); }
  // The next byte; 0 after the end.
  std::uint8_t byte() { return at_ < in_.size() ? in_[at_++] : std::uint8_t{0}; }
  // 0 <= result < n <= 256.
  std::size_t below(std::size_t n) { return byte() % n; }
  bool one_in(std::size_t n) { return below(n) == n - 1; }
  template <class T, std::size_t N>
  T of(const std::array<T, N>& all) {
    return all[below(N)];
  }

  // A dimension, an index, a count or a step.
  std::int64_t integer() {
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    constexpr std::array<std::int64_t, 16> kEdges{
        -4, 5, 7, 8, 16, 31, 64, 100, 1 << 15, 70000, 1LL << 31, 1LL << 32, 1LL << 40, kMost, -kMost, -kMost - 1};
    const std::uint8_t b = byte();
    return b < 224 ? b % 8 - 3 : kEdges[b % 16];
  }
  // The size of a dimension.
  std::int64_t size() {
    constexpr std::array<std::int64_t, 8> kEdges{0, 6, 9, 17, 33, 64, 70, 130};
    const std::uint8_t b = byte();
    return b < 224 ? 1 + b % 4 : kEdges[b % 8];
  }
  double real() {
    constexpr std::array<double, 16> kEdges{0,
                                            1,
                                            -1,
                                            0.5,
                                            2,
                                            1e-5,
                                            1e-12,
                                            1e10,
                                            1e40,
                                            -1e40,
                                            1e308,
                                            5e-324,
                                            -0.0,
                                            20,
                                            std::numeric_limits<double>::infinity(),
                                            std::numeric_limits<double>::quiet_NaN()};
    return of(kEdges);
  }
  Scalar scalar() { return one_in(3) ? Scalar(integer()) : Scalar(real()); }
  Shape shape() {
    const std::uint8_t b = byte();
    const std::size_t rank = b < 240 ? b % 5 : b % 9;
    std::vector<std::int64_t> dims(rank);
    for (auto& d : dims) d = rank < 5 ? size() : 1 + static_cast<std::int64_t>(below(2));
    return Shape(dims);
  }
  // Dimensions, sizes or pads as a caller might write them, some of them wrong.
  Dims dims() {
    std::array<std::int64_t, kMaxRank> all{};
    const std::size_t n = below(one_in(16) ? 9 : 4);
    for (std::size_t i = 0; i < n; ++i) all[i] = integer();
    return Dims(std::span<const std::int64_t>(all).first(n));
  }
  std::array<std::int64_t, 2> pair() {
    const std::int64_t first = integer();
    return {first, one_in(3) ? integer() : first};
  }
  // Values along the axes of an image: most are in the range that conv2d takes.
  std::array<std::int64_t, 2> positive_pair() {
    if (one_in(8)) return pair();
    return {1 + static_cast<std::int64_t>(below(3)), 1 + static_cast<std::int64_t>(below(3))};
  }
  // Bytes over the last multiple of 12 are i8 and i16.
  DType dtype() {
    constexpr std::array<DType, 12> kAll{DType::f32, DType::f32,  DType::f32, DType::f32, DType::f64, DType::f64,
                                         DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8,  DType::b8};
    const std::uint8_t b = byte();
    return b < 252 ? kAll[b % kAll.size()] : b % 2 == 0 ? DType::i8 : DType::i16;
  }
  KeepDim keep() { return KeepDim{one_in(2)}; }
  Reduction reduction() { return Reduction(below(3)); }
  template <class E>
  E choice(std::size_t n) {
    return static_cast<E>(below(n));
  }

 private:
  Bytes in_;
  std::size_t at_ = 0;
};

// The tensors that calls take and return.
class Pool {
 public:
  explicit Pool(Chooser& choose) : choose_(choose) {}
  // A tensor of the pool, or a new one; rarely an undefined one.
  Tensor any();
  Tensor optional() { return choose_.one_in(2) ? any() : Tensor(); }
  // Positions: i64, mostly small.
  Tensor index();
  Tensor mask();
  // A tensor like `like`, so that more calls of two tensors succeed.
  Tensor matching(const Tensor& like);
  Tensor of(const Shape& shape, DType dtype);
  void keep(const Tensor& x);
  [[nodiscard]] const std::vector<Tensor>& all() const { return all_; }

 private:
  Chooser& choose_;
  std::vector<Tensor> all_{};
};

struct Form {
  const char* name;
  Tensors (*call)(Chooser& choose, Pool& pool);
};
[[nodiscard]] std::span<const Form> forms();

}  // namespace levin::fuzz
