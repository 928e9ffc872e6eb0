// Patterns as ops on them keep, check and transpose them. The functions are in pattern.cu.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/executor/dispatch.h"
#include "kernels/sparse/csr.cuh"
#include "levin/extend.h"
#include "levin/graph.h"
#include "levin/ops.h"

namespace levin {

// Scratch memory of a kernel; it lives as long as this object.
class Room {
 public:
  explicit Room(const Tensor& beside) : device_(beside.device()) {}
  void* operator()(std::int64_t bytes) const {
    kept_.push_back(empty({bytes}, device_, DType::u8));
    return ptr<std::uint8_t>(kept_.back());
  }

 private:
  Device device_;
  mutable std::vector<Tensor> kept_;
};

// Positions of columns and edges; offsets are i64.
inline constexpr Types<std::int32_t, std::int64_t> kPositions{};

// The longest row of a pattern that was examined, or -1.
[[nodiscard]] inline std::int64_t longest_row_of(const Csr& a) {
  const CsrFacts* const facts = a.known();
  return facts ? facts->longest_row : -1;
}

// A pattern as kernels read it. Segments have no columns.
struct DensePattern {
  Tensor crow, col, edge;
  kernels::CsrView view{};
  static Tensor dense(const Tensor& t) { return t.defined() ? t.contiguous() : t; }
  static kernels::Positions positions(const Tensor& t) {
    if (!t.defined()) return {};
    const bool is_wide = t.dtype() == DType::i64;
    return {is_wide ? static_cast<const void*>(ptr<const std::int64_t>(t)) : ptr<const std::int32_t>(t), is_wide};
  }
  DensePattern(const Csr& a, std::int64_t entries, std::int64_t longest_row)
      : crow(dense(a.crow)), col(dense(a.col)), edge(dense(a.edge)) {
    view = {ptr<const std::int64_t>(crow),    positions(col), positions(edge), a.rows(),
            col.defined() ? a.cols : entries, entries,        longest_row};
  }
};

// The pattern that a backward reads. Of segments it has the offsets alone.
struct SavedCsr {
  std::array<SavedInput, 6> parts{};
  std::int64_t cols = 0;
  std::shared_ptr<const CsrFacts> facts{};
  std::int64_t longest_row = -1;
  explicit SavedCsr(const Csr& a) : cols(a.cols), facts(a.facts), longest_row(longest_row_of(a)) {
    const std::array<const Tensor*, 6> from{&a.crow, &a.col, &a.edge, &a.t_crow, &a.t_col, &a.t_edge};
    for (std::size_t i = 0; i < 6; ++i) parts[i] = *from[i];
  }
  SavedCsr(const Tensor& offsets, std::int64_t longest_row_) : longest_row(longest_row_) { parts[0] = offsets; }
  [[nodiscard]] Csr get() const {
    return {.crow = parts[0].get(),
            .col = parts[1].get(),
            .edge = parts[2].get(),
            .cols = cols,
            .t_crow = parts[3].get(),
            .t_col = parts[4].get(),
            .t_edge = parts[5].get(),
            .facts = facts};
  }
};

// How errors of kernels name an op and its offsets.
struct Names {
  const char *op, *offsets;
};

// On the CPU 16-bit tensors are converted to f32, computed in f32 and rounded once.
[[nodiscard]] inline bool is_widened(const Tensor& x) {
  return x.device().is_cpu() && (x.dtype() == DType::f16 || x.dtype() == DType::bf16);
}
[[nodiscard]] inline Tensor wide(const Tensor& x) { return x.defined() ? x.to(DType::f32) : x; }

template <class T>
[[nodiscard]] const T* values_of(const Tensor& value) {
  return value.defined() ? ptr<const T>(value) : nullptr;
}

// Throws ShapeError: tensor `what` of `op` has not the expected shape.
[[noreturn]] void refuse_shape(const char* op, const char* what, const Shape& shape, const std::string& expected);
// Throws unless `a` is a pattern on x's device. Its positions are examined on the CPU, where they were not before.
void check_csr(const char* op, const Csr& a, const Tensor& x);
// Throws unless the offsets are those of segments of `entries` elements; longest_row: -1, or of an examined pattern.
void check_segments(const char* op, const Tensor& offsets, std::int64_t entries, std::int64_t longest_row,
                    const Tensor& x);
// The transposed matrix of a matrix whose entries were checked, with its facts.
[[nodiscard]] Csr swapped(const Csr& a);

}  // namespace levin
