// What is said to the vendor's library is the product that was asked for: its contract in plain loops, on the host.
#include "kernels/gemm/gemm_library.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "tests/device.h"

using namespace levin;
using namespace levin::kernels;

namespace {

float gelu(float z) { return z / 2 * (1 + std::tanh(0.7978845608f * (z + 0.044715f * z * z * z))); }

// What a library does with the words of a LibraryProduct.
void multiply(const LibraryProduct& p) {
  using Epilogue = LibraryProduct::Epilogue;
  REQUIRE((p.epilogue == Epilogue::bias || p.batches == 1));
  const auto at = [](const LibraryProduct::Operand& o, int64_t batch, int64_t row, int64_t col) {
    if (o.transposed) std::swap(row, col);
    return static_cast<const float*>(o.data)[batch * o.apart + row + col * o.ld];
  };
  const auto fits = [](const LibraryProduct::Operand& o, int64_t rows, int64_t cols) {
    return o.rows <= o.ld && (o.transposed ? o.rows == cols && o.cols == rows : o.rows == rows && o.cols == cols);
  };
  REQUIRE(fits(p.x, p.rows, p.depth));
  REQUIRE(fits(p.y, p.depth, p.cols));
  auto* const sums = static_cast<float*>(p.sums);
  for (int64_t i = 0; sums && i < p.cols; ++i) sums[i] = 0;
  if (p.epilogue == Epilogue::y_sums) {
    for (int64_t col = 0; col < p.cols; ++col)
      for (int64_t k = 0; k < p.depth; ++k) sums[col] += at(p.y, 0, k, col);
  }
  for (int64_t b = 0; b < p.batches; ++b) {
    for (int64_t row = 0; row < p.rows; ++row) {
      for (int64_t col = 0; col < p.cols; ++col) {
        float sum = p.bias ? static_cast<const float*>(p.bias)[row] : 0.0f;
        for (int64_t k = 0; k < p.depth; ++k) sum += at(p.x, b, row, k) * at(p.y, b, k, col);
        float* const aux = p.aux ? static_cast<float*>(p.aux) + row + col * p.aux_ld : nullptr;
        if (p.epilogue == Epilogue::gelu) {
          if (aux) *aux = sum;
          sum = gelu(sum);
        }
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
  CHECK_FALSE(takes({16, 16, 16}, dense, dense, p, 256));  // small
  CHECK(takes(size, {p + 1, 256, 1}, dense, p, 256));      // it has kernels for any alignment
  CHECK(takes(size, {p, 257, 1}, dense, p + 2, 258));
  CHECK_FALSE(takes(size, {p, 512, 2}, dense, p, 256));     // no direction is contiguous
  CHECK_FALSE(takes(size, {p, 0, 1}, dense, p, 256));       // one row for all
  CHECK_FALSE(takes(size, dense, dense, p, 255));           // rows of the result overlap
  CHECK_FALSE(takes({256, 256, 0}, dense, dense, p, 256));  // nothing to add up
  const std::array<BatchDim, 2> apart{BatchDim{2, 0, 65536, 131072}, BatchDim{2, 65536, 0, 65536}};
  CHECK_FALSE(library_product<float>(apart, size, dense, dense, p, 256, nullptr));  // two dimensions are not one
}

TEST_CASE("the library hears the largest alignment that all rows of all batches have") {
  alignas(16) static const char memory[64] = {};
  CHECK(library_alignment(memory, 768, 0, DType::bf16) == 16);
  CHECK(library_alignment(memory, 50257, 0, DType::bf16) == 2);  // a vocabulary
  CHECK(library_alignment(memory, 1433, 0, DType::f32) == 4);
  CHECK(library_alignment(memory, 100, 0, DType::f16) == 8);
  CHECK(library_alignment(memory, 768, 6, DType::f16) == 4);
  CHECK(library_alignment(memory + 8, 768, 768, DType::f32) == 8);
  CHECK(library_alignment(memory, 3, 0, DType::f64) == 8);
}

TEST_CASE("an epilogue in the library's terms is the one that was asked for") {
  const GemmSize size{64, 128, 512};
  const auto [m, n, k] = size;
  auto a_data = small_integers(m * k, 1), b_data = small_integers(n * k, 2), bias = small_integers(n, 3),
       c_data = small_integers(m * n, 4), z_data = small_integers(m * n, 5), sums_data = small_integers(n, 6);
  const float *const a0 = a_data.data()->v, *const b0 = b_data.data()->v;
  float *const c = c_data.data()->v, *const z = z_data.data()->v, *const sums = sums_data.data()->v;
  const Matrix<float> a{a0, k, 1}, b{b0, 1, k};
  const auto dot = [&](int64_t i, int64_t j) {
    float sum = 0;
    for (int64_t l = 0; l < k; ++l) sum += a0[i * k + l] * b0[j * k + l];
    return sum;
  };
  const auto plain = library_product<float>({}, size, a, b, c, n, nullptr);
  const auto biased = library_product<float>({}, size, a, b, c, n, bias.data()->v);
  REQUIRE(plain);
  REQUIRE(biased);
  int64_t wrong = 0;
  SUBCASE("GELU, which keeps what it is taken of") {
    const auto product = with_gelu(biased, z);
    REQUIRE(product);
    multiply(*product);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        const float want = dot(i, j) + bias.data()->v[j];
        wrong += z[i * n + j] != want || c[i * n + j] != gelu(want);
      }
    }
  }
  SUBCASE("GELU that keeps nothing") {
    const auto product = with_gelu(plain, nullptr);
    REQUIRE(product);
    multiply(*product);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) wrong += c[i * n + j] != gelu(dot(i, j));
  }
  SUBCASE("the sums of A's rows, the gradient of a bias beside that of its weight") {
    const auto product = with_row_sums(plain, sums);
    REQUIRE(product);
    multiply(*product);
    for (int64_t i = 0; i < m; ++i) {
      float sum = 0;
      for (int64_t l = 0; l < k; ++l) sum += a0[i * k + l];
      wrong += sums[i] != sum;
      for (int64_t j = 0; j < n; ++j) wrong += c[i * n + j] != dot(i, j);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("epilogues that the library would refuse are not asked of it") {
  auto data = small_integers(1 << 20, 1);
  float* const p = data.data()->v;
  const auto product = [&]<class T>(T* t, int64_t n, int64_t batches) {
    const BatchDim dim{batches, 256 * 256, 256 * 256, 256 * n};
    return library_product<T>({&dim, 1}, {256, n, 256}, {t, 256, 1}, {t, n, 1}, t, n, nullptr);
  };
  const auto good = product(p, 256, 1);
  CHECK(with_gelu(good, p));
  CHECK(with_row_sums(good, p));
  CHECK_FALSE(with_gelu({}, p));        // no product
  CHECK_FALSE(with_gelu(good, p + 1));  // z is not aligned
  CHECK_FALSE(with_row_sums(good, p + 1));
  REQUIRE(product(p, 252, 1));
  CHECK_FALSE(with_gelu(product(p, 252, 1), p));  // rows of z are no multiple of eight
  CHECK(with_row_sums(product(p, 252, 1), p));
  REQUIRE(product(p, 256, 4));
  CHECK_FALSE(with_gelu(product(p, 256, 4), p));  // a batch
  CHECK_FALSE(with_row_sums(product(p, 256, 4), p));
  auto* const wide = reinterpret_cast<double*>(p);
  REQUIRE(product(wide, 256, 1));
  CHECK_FALSE(with_gelu(product(wide, 256, 1), wide));  // double
  CHECK_FALSE(with_row_sums(product(wide, 256, 1), wide));
}

TEST_CASE("cuBLASLt adds the parts of a cut product neither in the result nor in the result's type") {
#if defined(LEVIN_CUDA)
  CHECK(lib::cublas_sums_of_parts() == lib::kSumsInTheirType);
#else
  test::skip("no cuBLASLt in this build");
#endif
}

TEST_CASE("on a device cuBLASLt adds the parts of weights' gradients in f32") {
  DEVICE_OR_SKIP();
#if defined(LEVIN_CUDA)
  const auto check = [&]<class T>(T, int64_t m, int64_t n, int64_t k) {
    const T* const p = nullptr;  // only the shape is looked at
    const auto product = library_product<T>({}, {m, n, k}, Matrix<T>{p, 1, m}, Matrix<T>{p, n, 1}, nullptr, n, nullptr);
    REQUIRE(product);
    const auto parts = lib::cublas_parts(*product, device);
    REQUIRE(parts);
    CAPTURE(m);
    CAPTURE(n);
    CAPTURE(k);
    CAPTURE(parts->count);
    CHECK((parts->sums == 0 || parts->sums == lib::kSumsInTheirType));
  };
  for (const int64_t m : {16, 64, 256}) {
    for (const int64_t n : {16, 128, 512}) {
      for (const int64_t k : {65536, 524288}) check(f16{}, m, n, k), check(bf16{}, m, n, k);
    }
  }
#else
  (void)device;
  test::skip("no cuBLASLt in this build");
#endif
}
