// Shapes and strides: inline arrays of at most 8 dimensions, passed to kernels by value.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

#include "levin/error.h"
#include "levin/export.h"

namespace levin {

inline constexpr int kMaxRank = 8;
inline constexpr std::int64_t kMaxDim = std::int64_t{1} << 40;  // one dimension
// The product of max(dim, 1): no later product can overflow.
inline constexpr std::int64_t kMaxNumel = std::int64_t{1} << 48;

// The sizes of a tensor's dimensions; rank 0 is a single element. Constructors throw ShapeError for a negative size and
// beyond the limits above.
class LEVIN_API Shape {
 public:
  constexpr Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const std::int64_t> dims);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] std::int64_t numel() const { return numel_; }
  [[nodiscard]] std::int64_t operator[](int d) const { return dims_[static_cast<std::size_t>(d)]; }  // 0 <= d < rank
  [[nodiscard]] std::int64_t back() const { return dims_[static_cast<std::size_t>(rank_ - 1)]; }     // rank >= 1
  [[nodiscard]] const std::int64_t* begin() const { return dims_.data(); }
  [[nodiscard]] const std::int64_t* end() const { return dims_.data() + rank_; }
  [[nodiscard]] std::span<const std::int64_t> dims() const { return {begin(), end()}; }
  friend bool operator==(const Shape& a, const Shape& b) {
    if (a.rank_ != b.rank_) return false;
    for (int d = 0; d < a.rank_; ++d) {
      if (a[d] != b[d]) return false;
    }
    return true;
  }

  // This shape with dimension d set, inserted, or removed. d counts from 0 (insert: up to rank).
  [[nodiscard]] Shape with(int d, std::int64_t size) const;
  [[nodiscard]] Shape inserted(int d, std::int64_t size) const;
  [[nodiscard]] Shape removed(int d) const;

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  std::int64_t numel_ = 1;
  std::int32_t rank_ = 0;
};
static_assert(std::is_trivially_copyable_v<Shape>);
[[nodiscard]] LEVIN_API std::string text(const Shape& s);  // "[2, 3]"

// Steps between neighbours along each dimension, in elements; 0 where a dimension is broadcast.
struct Strides {
  std::array<std::int64_t, kMaxRank> steps{};
  [[nodiscard]] std::int64_t operator[](int d) const { return steps[static_cast<std::size_t>(d)]; }
  [[nodiscard]] std::int64_t& operator[](int d) { return steps[static_cast<std::size_t>(d)]; }
};
static_assert(std::is_trivially_copyable_v<Strides>);

// Row-major strides of a dense tensor of this shape.
[[nodiscard]] LEVIN_API Strides contiguous_strides(const Shape& s);
// The shape two operands broadcast to (NumPy rules). Throws ShapeError naming `op` and both shapes.
[[nodiscard]] LEVIN_API Shape broadcast_shapes(std::string_view op, const Shape& a, const Shape& b);
// Dimension d, counted from the end when negative, as 0 .. rank-1. Throws IndexError naming `op`.
[[nodiscard]] LEVIN_API int wrap_dim(std::string_view op, std::int64_t d, int rank);
// A set of dimensions as a bit mask, negative ones wrapped; an empty list means all. Of rank 0, which has none, 0 and
// -1 may be given. Throws IndexError on a repeat.
[[nodiscard]] LEVIN_API std::uint32_t wrap_dims(std::string_view op, std::span<const std::int64_t> dims, int rank);

// A list of at most 8 dimensions, written as {0, 2} or as a single number.
class Dims {
 public:
  Dims() = default;
  Dims(std::int64_t d) : count_(1) { dims_[0] = d; }
  Dims(int d) : Dims(static_cast<std::int64_t>(d)) {}
  Dims(std::initializer_list<std::int64_t> dims) : Dims(std::span(dims.begin(), dims.size())) {}
  LEVIN_API explicit Dims(std::span<const std::int64_t> dims);  // throws ShapeError beyond 8
  [[nodiscard]] std::span<const std::int64_t> span() const { return {dims_.data(), static_cast<std::size_t>(count_)}; }
  [[nodiscard]] int count() const { return count_; }
  [[nodiscard]] std::int64_t operator[](int i) const { return dims_[static_cast<std::size_t>(i)]; }

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  int count_ = 0;
};

// Whether a reduced dimension goes or stays with size 1.
enum class KeepDim : bool { no, yes };

}  // namespace levin
