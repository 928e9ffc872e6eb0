// Which products of 16-bit matrices the kernels for compute capability 9.0 take, and how they read in their terms.
// Plain host code; kernels/gemm/gemm_hopper.cu launches.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/gemm/gemm.cuh"
#include "kernels/lib/tensor_map.h"
#include "levin/dtype.h"
#include "levin/stream.h"

namespace levin::kernels {

// y [m, n] = epilogue(sum over k of a (i, k) b (j, k), plus bias [j]), or gelu'(z) times the sum. An operand's elements
// lie side by side along k, or along its lines, which `along_lines` says; neighbouring rows of its memory are `step`
// elements apart.
struct HopperProduct {
  struct Operand {
    const void* data;
    std::int64_t step;
    bool along_lines;
  };
  DType dtype;  // f16 or bf16
  GemmSize size;
  Operand a, b;
  const void* bias;  // [n] or null
  void* y;
  std::int64_t y_step;
  // y = sum + bias; gelu(sum + bias) of either form, whose operands lie along k; sum * gelu'(z) of either form, without
  // bias, whose a lies along k and b along its lines.
  enum class End : std::uint8_t { bias, gelu_erf, gelu_tanh, gelu_erf_slope, gelu_tanh_slope };
  End end = End::bias;
  void* before = nullptr;  // as y lies: sum + bias of gelu, null where it is not kept; z, which is read
};

// The tiles of y are [128, columns], columns 128 or 256; `blocks` blocks go through them, in clusters of `peers`, 1 or
// 2, that share the tiles of b.
struct HopperPlan {
  int columns, blocks, peers = 1;
};

// Fewer tiles than multiprocessors, of an H100 or H200, leave some idle, and gemm_device.cuh splits long sums: none
// then. Clusters of two where they take no more rounds over the tiles than single blocks.
[[nodiscard]] std::optional<HopperPlan> plan_hopper(const GemmSize& size);

// The first limit that the product does not meet, as text; none where it meets all.
[[nodiscard]] std::optional<std::string> hopper_refusal(const HopperProduct& product);

// C [m, n] = A B + col_bias in these terms; none where an operand has no side of stride 1.
template <class T>
std::optional<HopperProduct> hopper_product(const GemmSize& size, const Matrix<T>& a, const Matrix<T>& b, T* c,
                                            std::int64_t row_step, const T* col_bias) {
  const auto operand = [](const T* data, std::int64_t line, std::int64_t k) -> std::optional<HopperProduct::Operand> {
    if (k == 1) return {{data, line, false}};
    if (line == 1) return {{data, k, true}};
    return {};
  };
  const auto left = operand(a.data, a.row, a.col), right = operand(b.data, b.col, b.row);
  if (!left || !right) return {};
  return HopperProduct{
      .dtype = dtype_of<T>, .size = size, .a = *left, .b = *right, .bias = col_bias, .y = c, .y_step = row_step};
}

// Enqueues the product on a device of compute capability 9.0. Throws UnsupportedError for one that hopper_refusal
// names.
void hopper_multiply(const HopperProduct& product, const HopperPlan& plan, Stream stream);

// The same where the device has compute capability 9.0, plan_hopper has a plan and no limit is in the way; else nothing
// happens. Returns whether the product was enqueued.
[[nodiscard]] bool hopper_made(const std::optional<HopperProduct>& product, Stream stream);

}  // namespace levin::kernels
