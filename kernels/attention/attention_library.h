// Which calls of attention can go to the vendor's library in a build with CUDA, and how they read in its terms.
// Plain host code, so that every build tests it; kernels/attention/cudnn_attention.cpp makes the call.
//
// The library's row statistic is ours: the natural logarithm of the sum of a row's exponentials, in f32. So each
// direction can be computed by either.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/lib/cudnn_plans.h"
#include "levin/stream.h"
#include "levin/tensor.h"

namespace levin::kernels {

// y = softmax(scale q k^T) v for each batch and head, and with `backward` the gradients gq, gk, gv from gy instead.
// Sizes and strides, in elements, are of [batch, heads, rows of the matrix, its columns].
struct LibraryAttention {
  struct Operand {
    void* data = nullptr;
    std::array<std::int64_t, 4> sizes{}, strides{};
  };
  bool backward = false;
  DType dtype = DType::f16;
  float scale = 1;
  bool causal = false;  // row i sees columns 0 .. i
  Operand q{}, k{}, v{}, y{};
  Operand lse{};                   // f32 [batch, heads, rows, 1]
  Operand gy{}, gq{}, gk{}, gv{};  // backward
  Operand means{};                 // backward, f32 as lse: scratch for the sums of gy * y along the rows
};

// What a call of the fused op is made of. `batch` is the shape that the leading dimensions of all tensors broadcast to;
// y, lse and the gradients of q, k, v have all of it.
struct AttentionTensors {
  Tensor q, k, v, y, lse;
  Tensor gy{}, gq{}, gk{}, gv{};  // backward: all four
  Tensor means{};                 // backward by the library
};

// None where the library cannot take it: it requires f16 or bf16, heads whose widths are multiples of 8 and lie dense,
// rows that begin at multiples of 16 bytes, no broadcast matrix, and batch dimensions that are two or fold into two;
// for causal gradients also no more columns than rows.
[[nodiscard]] std::optional<LibraryAttention> library_attention(const Shape& batch, double scale, bool causal,
                                                                const AttentionTensors& t);

[[nodiscard]] LibraryCallText said(const LibraryAttention& call);

namespace lib {
// Enqueues the call; false where our kernels are to compute it: engine_choice says so, or cuDNN has no engine for it or
// none whose bits repeat (Note [Gradients that repeat]). Plans are made once a shape and kept; CaptureError as Note
// [Plans and recordings] says.
[[nodiscard]] bool cudnn_attention(const LibraryAttention& call, Stream stream);

[[nodiscard]] CudnnPlans cudnn_plans(const LibraryAttention& call, std::string_view device);
}  // namespace lib

}  // namespace levin::kernels
