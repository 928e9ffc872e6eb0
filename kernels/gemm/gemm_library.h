// Which products go to the vendor's library in a build with CUDA, and how they read in its terms. Plain host code,
// so that every build tests it; kernels/gemm/cublas.cpp makes the call.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include "kernels/gemm/gemm.cuh"
#include "levin/dtype.h"
#include "levin/stream.h"

namespace levin::kernels {

// Column-major: d [rows, cols] = op(x) op(y) + bias, the same for each batch. The rows of C are the columns of d.
struct LibraryProduct {
  // What is done to a sum s on its way to d, and what comes out beside it.
  enum class Epilogue : uint8_t {
    bias,    // d = s + bias
    gelu,    // d = gelu(s + bias), tanh form; aux = s + bias
    y_sums,  // d = s; sums = op(y) added up over depth
  };
  struct Operand {
    const void* data;
    int64_t rows, cols, ld;  // as it lies in memory
    bool transposed;
    int64_t apart;  // elements from batch to batch, 0 for the same matrix
  };
  DType dtype;
  Operand x, y;
  void* d;
  int64_t rows, cols, depth, ld, apart, batches;
  const void* bias;  // [rows] or null
  Epilogue epilogue = Epilogue::bias;
  void* aux = nullptr;  // [rows, cols], columns aux_ld apart; null where gelu need not keep it
  int64_t aux_ld = 0;
  void* sums = nullptr;  // [cols] of y_sums
};

// Less work than this is over before the library's larger tiles are full.
inline constexpr double kLibraryFlops = 1 << 23;
inline constexpr int64_t kLibraryAlignment = 16;  // bytes; more helps no kernel of the library

// The largest power of two, up to kLibraryAlignment, that divides the address of every row of every batch. The library
// has kernels for each: those of 16 bytes are the fastest, and a vocabulary of 50,257 words leaves 2.
inline int64_t library_alignment(const void* data, int64_t ld, int64_t apart, DType dtype) {
  const auto bytes = int64_t(itemsize(dtype));
  const uint64_t all =
      reinterpret_cast<uintptr_t>(data) | uint64_t(ld * bytes) | uint64_t(apart * bytes) | uint64_t(kLibraryAlignment);
  return int64_t(all & (~all + 1));
}

namespace detail {
inline bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % kLibraryAlignment == 0; }

// A matrix whose element (i, j) is at i * i_step + j * j_step, i < i_size, in column-major terms.
template <class T>
std::optional<LibraryProduct::Operand> library_operand(const T* data, int64_t i_step, int64_t i_size, int64_t j_step,
                                                       int64_t j_size, int64_t apart) {
  if (i_step == 1 && j_step >= i_size) return {{data, i_size, j_size, j_step, false, apart}};
  if (j_step == 1 && i_step >= j_size) return {{data, j_size, i_size, i_step, true, apart}};
  return {};
}
}  // namespace detail

// C [m, n] = A B + col_bias for each batch index, with C's rows `row_step` apart; none where the library cannot take
// it or need not.
template <class T>
std::optional<LibraryProduct> library_product(std::span<const BatchDim> batch, const GemmSize& size, const Matrix<T>& a,
                                              const Matrix<T>& b, T* c, int64_t row_step, const T* col_bias) {
  const auto [m, n, k] = size;
  BatchDim all{1, 0, 0, 0};  // the batch dimensions as one
  for (size_t d = batch.size(); d-- > 0;) {
    const BatchDim& dim = batch[d];
    if (dim.size == 1) continue;
    if (all.size == 1)
      all = dim;
    else if (dim.a == all.a * all.size && dim.b == all.b * all.size && dim.c == all.c * all.size)
      all.size *= dim.size;
    else
      return {};
  }
  if (m < 1 || n < 1 || k < 1 || all.size < 1 || all.size > std::numeric_limits<int32_t>::max()) return {};
  if (2.0 * double(m) * double(n) * double(k) * double(all.size) < kLibraryFlops) return {};
  if (!detail::aligned(col_bias) || row_step < n) return {};
  const auto x = detail::library_operand(b.data, b.col, n, b.row, k, all.b);
  const auto y = detail::library_operand(a.data, a.col, k, a.row, m, all.a);
  if (!x || !y) return {};
  return LibraryProduct{.dtype = dtype_of<T>,
                        .x = *x,
                        .y = *y,
                        .d = c,
                        .rows = n,
                        .cols = m,
                        .depth = k,
                        .ld = row_step,
                        .apart = all.c,
                        .batches = all.size,
                        .bias = col_bias};
}

// The same product with an epilogue, for C [m, n] of one product; none where there is none or the library has no such
// form. `z` lies as a dense C.
namespace detail {
inline constexpr int64_t kAuxStep = 8;  // the columns of aux are a multiple of it apart
inline bool takes_epilogue(const std::optional<LibraryProduct>& p) {
  return p && p->batches == 1 && p->dtype != DType::f64;
}
}  // namespace detail
// C = gelu(A B + col_bias), tanh form, and z what it is taken of; z may be null.
inline std::optional<LibraryProduct> with_gelu(std::optional<LibraryProduct> p, void* z) {
  if (!detail::takes_epilogue(p) || !detail::aligned(z) || p->rows % detail::kAuxStep != 0) return {};
  p->epilogue = LibraryProduct::Epilogue::gelu;
  p->aux = z;
  p->aux_ld = z ? p->rows : 0;
  return p;
}
// C = A B for a product without bias, and sums [m]: the rows of A added up over k.
inline std::optional<LibraryProduct> with_row_sums(std::optional<LibraryProduct> p, void* sums) {
  if (!detail::takes_epilogue(p) || !detail::aligned(sums)) return {};
  p->epilogue = LibraryProduct::Epilogue::y_sums;
  p->sums = sums;
  return p;
}

namespace lib {
inline constexpr int64_t kCublasWorkspace = int64_t{32} << 20;  // bytes; what NVIDIA advises for Hopper
// Enqueues the product; false where cuBLASLt has no algorithm for it. Plans are made once a shape and alignment, and
// kept. EngineChoice::timed keeps the fastest of the library's first eight algorithms: the first call, unless it is
// recorded, runs each of them several times and waits for the device.
bool cublas_multiply(const LibraryProduct& product, void* workspace, Stream stream);

// How cuBLASLt adds the parts of a product that it cuts along its depth; a set of these is a mask, and that a product
// is not cut is always in it. Note [Sums of a cut product] says which are taken.
inline constexpr std::uint32_t kSumsInPlace = 1, kSumsInTheirType = 2, kSumsInTypeOfResult = 4;
// The mask that the heuristic is given, as the library reads it back; needs no device.
[[nodiscard]] std::uint32_t cublas_sums_of_parts();
// What the algorithm does that was chosen for a product; none where there is none.
struct CublasParts {
  std::int32_t count;
  std::uint32_t sums;  // 0 where there is one part
};
[[nodiscard]] std::optional<CublasParts> cublas_parts(const LibraryProduct& product, Device device);
}  // namespace lib

}  // namespace levin::kernels
