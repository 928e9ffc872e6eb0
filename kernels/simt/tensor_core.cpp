// Copies that end later, matrix loads and the tensor core, as the PTX ISA documents them ("Matrix multiply-accumulate
// operation using mma instruction", "Warp-level matrix load instruction: ldmatrix", "cp.async").
#include <algorithm>
#include <cstring>

#include "kernels/simt/block.h"
#include "levin/dtype.h"

namespace levin::simt {
namespace {

// What a lane brings and takes; its address is the lane's input, since a lane that waits keeps its stack.
struct MatrixLoad {
  std::uint16_t row[8];
  std::uint32_t (*r)[4];
};
struct Product {
  const std::uint32_t* a;
  const std::uint32_t* b;
  const float* c;
  float* d;
};

template <class T>
T& lane_data(const LaneInput& in) {
  return *reinterpret_cast<T*>(static_cast<std::uintptr_t>(in.value));
}
template <class T>
LaneInput as_input(T& data) {
  return {reinterpret_cast<std::uintptr_t>(&data)};
}

std::uint32_t pair(std::uint16_t low, std::uint16_t high) { return std::uint32_t{low} | std::uint32_t{high} << 16; }

// Lane 8 m + i brings row i of matrix m. Register m of lane l gets elements 2 (l % 4) and the next of row l / 4 of
// matrix m; transposed: of its column l / 4.
template <bool kTransposed>
void load_matrices_of(const LaneInput (&in)[32], std::uint64_t (&)[32], std::uint32_t) {
  for (int m = 0; m < 4; ++m) {
    const auto element = [&](int row, int column) { return lane_data<MatrixLoad>(in[8 * m + row]).row[column]; };
    for (int l = 0; l < 32; ++l) {
      const int i = l / 4, j = l % 4 * 2;
      (*lane_data<MatrixLoad>(in[l]).r)[m] =
          kTransposed ? pair(element(j, i), element(j + 1, i)) : pair(element(i, j), element(i, j + 1));
    }
  }
}

// d = a b + c for a [16, 16] by rows, b [16, 8] by columns, c and d [16, 8] by rows. With g = lane / 4, t = lane % 4:
//   a: registers {row g, row g + 8, row g of the right half, row g + 8 of it}, columns 2 t, 2 t + 1 of the half
//   b: registers {rows 2 t, 2 t + 1 of the upper half, the same of the lower half}, column g
//   c, d: {(g, 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1)}
// Products are exact; the sum is taken in double and rounded once, where a tensor core truncates a little in between.
template <class T>
void multiply(const LaneInput (&in)[32], std::uint64_t (&)[32], std::uint32_t) {
  float a[16][16], b[16][8];
  const auto half = [](std::uint32_t r, int which) {
    T x;
    x.bits = static_cast<std::uint16_t>(r >> 16 * which);
    return static_cast<float>(x);
  };
  for (int l = 0; l < 32; ++l) {
    const Product& p = lane_data<Product>(in[l]);
    const int g = l / 4, t = l % 4;
    for (int which = 0; which < 2; ++which) {
      for (int r = 0; r < 4; ++r) a[g + r % 2 * 8][r / 2 * 8 + 2 * t + which] = half(p.a[r], which);
      for (int r = 0; r < 2; ++r) b[r * 8 + 2 * t + which][g] = half(p.b[r], which);
    }
  }
  for (int l = 0; l < 32; ++l) {
    const Product& p = lane_data<Product>(in[l]);
    for (int i = 0; i < 4; ++i) {
      const int row = l / 4 + i / 2 * 8, column = l % 4 * 2 + i % 2;
      double sum = double(p.c[i]);
      for (int k = 0; k < 16; ++k) sum += double(a[row][k]) * double(b[k][column]);
      p.d[i] = static_cast<float>(sum);
    }
  }
}

}  // namespace

void load_matrices(std::uint32_t (&r)[4], const void* row, bool transposed, Site at) {
  check_aligned(row, 16, at);
  MatrixLoad load;
  std::memcpy(load.row, row, sizeof load.row);  // now: what another lane has yet to write needs a __syncwarp before
  load.r = &r;
  warp_collective(~0u, transposed ? "ldmatrix_x4_trans" : "ldmatrix_x4", at, as_input(load),
                  transposed ? load_matrices_of<true> : load_matrices_of<false>);
}

void mma_m16n8k16(Half type, float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                  const float (&c)[4], Site at) {
  float result[4];  // d may be c
  Product product{a, b, c, result};
  warp_collective(~0u, "mma_m16n8k16", at, as_input(product), type == Half::f16 ? multiply<f16> : multiply<bf16>);
  std::copy(result, result + 4, d);
}

// A copy happens at the wait that covers it. Until then its target reads as NaN, so that a forgotten wait shows.
void copy_async_16(void* shared, const void* global, bool valid, Site at) {
  check_aligned(shared, 16, at);
  if (valid) check_aligned(global, 16, at);
  std::memset(shared, 0xff, 16);
  Thread& thread = in_kernel("cp_async_16").running();
  thread.copies.push_back({shared, valid ? global : nullptr, thread.copy_group});
}

void copy_async_commit() { ++in_kernel("cp_async_commit").running().copy_group; }

void copy_async_wait(int groups_left) {
  Thread& thread = in_kernel("cp_async_wait").running();
  const auto late = std::find_if(thread.copies.begin(), thread.copies.end(),
                                 [&](const AsyncCopy& copy) { return copy.group >= thread.copy_group - groups_left; });
  for (auto copy = thread.copies.begin(); copy != late; ++copy) {
    if (copy->from != nullptr) {
      std::memcpy(copy->to, copy->from, 16);
    } else {
      std::memset(copy->to, 0, 16);
    }
  }
  thread.copies.erase(thread.copies.begin(), late);
}

}  // namespace levin::simt
