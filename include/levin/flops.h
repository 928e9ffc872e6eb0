// What products cost: floating-point operations, counted while they run.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "levin/export.h"

namespace levin {

struct OpFlops {
  const char* op = "";  // "matmul", "conv2d"
  std::int64_t flops = 0;
};

// Counts this thread's multiplications while the counter lives, as torch.utils.flop_counter does: 2 for each product
// that is added up, in matmul, linear, convolutions, attention, sddmm, spmm with values, and in ops made of them
// (gelu_mlp, linear_cross_entropy, einsum, recurrent layers). Other ops count 0: pointwise ops, sums, norms, softmax,
// biases. A backward counts the products that it makes, and the forward of linear_cross_entropy those of its gradients.
// Zeros count as other numbers do: those of a convolution's padding, and those that a causal mask leaves out. Shapes
// decide, so on meta ops are counted without computing; a replayed graph runs no ops and counts nothing. Counters may
// be nested: all of them count.
//
//   FlopCounter flops;
//   matmul(a, b);    // [2, 4] [4, 3]
//   flops.total();   // 48
class LEVIN_API FlopCounter {
 public:
  FlopCounter() noexcept;
  ~FlopCounter();
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;
  [[nodiscard]] std::int64_t total() const { return total_; }
  [[nodiscard]] const std::vector<OpFlops>& by_op() const { return by_op_; }  // in the order of their first product
  // For the forward of your own op (levin/extend.h): adds the product of these numbers, or INT64_MAX where it is
  // larger, to this thread's counters: count("mine", {2, m, n, k}). `op` must live as long as a literal.
  static void count(const char* op, std::initializer_list<std::int64_t> factors) {
    if (FlopCounter* const counter = newest()) [[unlikely]]
      counter->add(op, factors);
  }

 private:
  [[nodiscard]] static FlopCounter* newest() noexcept;
  void add(const char* op, std::initializer_list<std::int64_t> factors);
  FlopCounter* outer_;
  std::int64_t total_ = 0;
  std::vector<OpFlops> by_op_;
};

}  // namespace levin
