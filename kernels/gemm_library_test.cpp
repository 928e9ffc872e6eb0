// What is said to the vendor's library is the product that was asked for: its contract in plain loops, on the host.
#include "kernels/gemm_library.h"

#include <doctest/doctest.h>

#include <array>
#include <utility>
#include <vector>

using namespace levin;
using namespace levin::kernels;

namespace {

// What a library does with the words of a LibraryProduct.
void multiply(const LibraryProduct& p) {
  const auto at = [](const LibraryProduct::Operand& o, int64_t batch, int64_t row, int64_t col) {
    if (o.transposed) std::swap(row, col);
    return static_cast<const float*>(o.data)[batch * o.apart + row + col * o.ld];
  };
  const auto fits = [](const LibraryProduct::Operand& o, int64_t rows, int64_t cols) {
    return o.rows <= o.ld && (o.transposed ? o.rows == cols && o.cols == rows : o.rows == rows && o.cols == cols);
  };
  REQUIRE(fits(p.x, p.rows, p.depth));
  REQUIRE(fits(p.y, p.depth, p.cols));
  for (int64_t b = 0; b < p.batches; ++b) {
    for (int64_t row = 0; row < p.rows; ++row) {
      for (int64_t col = 0; col < p.cols; ++col) {
        float sum = p.bias ? static_cast<const float*>(p.bias)[row] : 0.0f;
        for (int64_t k = 0; k < p.depth; ++k) sum += at(p.x, b, row, k) * at(p.y, b, k, col);
        static_cast<float*>(p.d)[b * p.apart + row + col * p.ld] = sum;
      }
    }
  }
}

struct alignas(16) Chunk {
  float v[4];
};
std::vector<Chunk> small_integers(int64_t n, std::uint32_t seed) {
  std::vector<Chunk> v(static_cast<size_t>(n / 4 + 1));
  for (Chunk& c : v) {
    for (float& x : c.v) {
      seed = seed * 1664525u + 1013904223u;
      x = float(int(seed >> 24) % 5 - 2);
    }
  }
  return v;
}

constexpr GemmSize kSize{32, 64, 512};  // with its batches just enough work for the library
constexpr int64_t kBatches = 4;

}  // namespace

TEST_CASE("a product in the library's terms is the product that was asked for, whichever way its operands lie") {
  const auto [m, n, k] = kSize;
  auto a_data = small_integers(m * k * kBatches, 1), b_data = small_integers(n * k * kBatches, 2),
       bias = small_integers(n, 3), c_data = small_integers(m * n * kBatches, 4);
  const float* const a0 = a_data.data()->v;
  const float* const b0 = b_data.data()->v;
  float* const c0 = c_data.data()->v;
  for (const bool a_by_rows : {true, false}) {
    for (const bool b_by_rows : {true, false}) {
      for (const bool same_b : {true, false}) {
        const Matrix<float> a{a0, a_by_rows ? k : 1, a_by_rows ? 1 : m}, b{b0, b_by_rows ? n : 1, b_by_rows ? 1 : k};
        const int64_t b_step = same_b ? 0 : k * n;
        const std::array<BatchDim, 2> batch{BatchDim{2, 2 * m * k, 2 * b_step, 2 * m * n},
                                            BatchDim{2, m * k, b_step, m * n}};
        const auto product = library_product<float>(batch, kSize, a, b, c0, n, bias.data()->v);
        REQUIRE(product);
        CHECK(product->batches == kBatches);
        multiply(*product);
        int64_t wrong = 0;
        for (int64_t s = 0; s < kBatches; ++s) {
          for (int64_t i = 0; i < m; i += 7) {
            for (int64_t j = 0; j < n; j += 5) {
              float want = bias.data()->v[j];
              for (int64_t l = 0; l < k; ++l)
                want += a0[s * m * k + i * a.row + l * a.col] * b0[s * b_step + l * b.row + j * b.col];
              wrong += c0[s * m * n + i * n + j] != want;
            }
          }
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("products that the library would refuse or that are small stay with the own kernels") {
  auto data = small_integers(1 << 20, 1);
  float* const p = data.data()->v;
  const auto takes = [&](GemmSize size, Matrix<float> a, Matrix<float> b, float* c, int64_t row_step) {
    return library_product<float>({}, size, a, b, c, row_step, nullptr).has_value();
  };
  const GemmSize size{256, 256, 256};
  const Matrix<float> dense{p, 256, 1};
  CHECK(takes(size, dense, dense, p, 256));
  CHECK_FALSE(takes({16, 16, 16}, dense, dense, p, 256));    // small
  CHECK_FALSE(takes(size, {p + 1, 256, 1}, dense, p, 256));  // not aligned
  CHECK_FALSE(takes(size, {p, 257, 1}, dense, p, 256));      // rows not aligned
  CHECK_FALSE(takes(size, {p, 512, 2}, dense, p, 256));      // no direction is contiguous
  CHECK_FALSE(takes(size, {p, 0, 1}, dense, p, 256));        // one row for all
  CHECK_FALSE(takes(size, dense, dense, p + 2, 256));        // the result is not aligned
  CHECK_FALSE(takes(size, dense, dense, p, 258));            // nor its rows
  CHECK_FALSE(takes({256, 256, 0}, dense, dense, p, 256));   // nothing to add up
  const std::array<BatchDim, 2> apart{BatchDim{2, 0, 65536, 131072}, BatchDim{2, 65536, 0, 65536}};
  CHECK_FALSE(library_product<float>(apart, size, dense, dense, p, 256, nullptr));  // two dimensions are not one
}
