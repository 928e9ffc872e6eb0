// Note [Panels once]
// A CPU's product of many rows copies B into panels, as wide as a register tile: here once in place of at each product.
// A product with panels is one product a panel, which reads A once for each, and threads share out the panels. Of the
// LSTM of 64 steps, 32 sequences and 256 numbers, forward and backward, on two AMD cores with AVX2, that takes 48.0 ms
// down to 43.2; sums that start from what y holds, in place of a pass of their own, take it to 40.7. B^T is copied by
// rows where it makes no panels: a product of more than kRowsThatTurn rows would turn it each time.
#include "autograd/ops/products/repeated_factor.h"

#include <algorithm>
#include <array>
#include <span>

#include "autograd/ops/products/gemm_parts.h"
#include "kernels/executor/dispatch.h"
#include "kernels/gemm/gemm.cuh"
#include "levin/flops.h"
#include "levin/ops.h"

namespace levin {
namespace {

constexpr OpInfo kInfo{.name = "matmul"};
constexpr std::int64_t kRowsThatTurn = 16;  // up to so many are multiplied column by column: gemm_by_dots
constexpr std::int64_t kMostRows = 256;     // of more, copying B is little beside the product

// The columns of the panels of b, or 0 where b is better off whole.
std::int64_t columns_of_panels(const Tensor& b, std::int64_t rows, std::int64_t a_row) {
  if (rows > kMostRows) return 0;
  std::int64_t columns = 0;
  dispatch_dtype(kInfo, b, kFloats, [&]<class T>(T value) {
    constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
    columns = kernels::cpu::panel_columns(Cpu{}, value, rows, a_row * kSize, b.size(1) * kSize);
  });
  if (columns == 0 || b.size(1) % columns != 0) return 0;
  const std::int64_t panels = b.size(1) / columns;
  return panels >= std::max(8, 2 * kernels::num_threads()) ? columns : 0;
}

}  // namespace

RepeatedFactor::RepeatedFactor(const Tensor& b, std::int64_t rows, std::int64_t a_row, std::int64_t times) : b_(b) {
  if (!b.device().is_cpu() || times < 2 || rows <= kRowsThatTurn) return;
  if (const std::int64_t columns = columns_of_panels(b, rows, a_row); columns > 0) {
    b_ = permute(reshape(b, {b.size(0), b.size(1) / columns, columns}), {1, 0, 2}).contiguous();
  } else {
    b_ = b.contiguous();
  }
}

void RepeatedFactor::add_product_to(Tensor y, const Tensor& a) const {
  using kernels::BatchDim, kernels::GemmSize;
  if (!y.device().is_cpu()) return add_(y, matmul(a, b_));
  dispatch(kInfo, a, kFloats, [&]<class T>(const Cpu& on, T) {
    const kernels::GemmOptions<T> adds{.beta = 1};
    const GemmSize size{y.size(0), b_.size(-1), a.size(1)};
    if (b_.rank() == 2) return kernels::cpu::gemm(on, size, matrix<T>(a), matrix<T>(b_), ptr<T>(y), y.stride(0), adds);
    const std::array panels{BatchDim{b_.size(0), 0, b_.stride(0), size.n}};
    kernels::cpu::gemm_batched(on, std::span<const BatchDim>(panels), size, matrix<T>(a), matrix<T>(b_), ptr<T>(y),
                               y.stride(0), adds);
  });
  FlopCounter::count(kInfo.name, {2, y.numel(), a.size(1)});
}

}  // namespace levin
