// Which calls of batch norm in training can go to the vendor's library in a build with CUDA, and how they read in
// its terms. Plain host code, so that every build tests it; kernels/norm/cudnn_norm.cpp makes the call.
//
// The library's statistics are ours: the mean and 1 / sqrt(var + eps) of the batch with the biased variance, in f32. So
// each direction can be computed by either. It is not asked for running statistics: what they need is the unbiased
// variance, which a kernel of our own takes from 1 / sqrt(var + eps) (unbiased_variance in channel_norm_device.cuh).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/lib/cudnn_plans.h"
#include "levin/stream.h"
#include "levin/tensor.h"

namespace levin::kernels {

// y = (x - mean) rstd w + b, and the batch's mean and rstd; with `backward` gx, gw and gb from gy, x, w and these
// instead. Strides are in elements and in the order of the sizes [N, C, H, W], for any layout of the memory; all else
// is f32 [C].
struct LibraryBatchNorm {
  bool backward = false;
  DType dtype = DType::f16;  // of x, y and gx
  float eps = 0;             // forward
  std::array<std::int64_t, 4> sizes{}, strides{};
  void *x = nullptr, *y = nullptr;  // backward: y is gy
  void* gx = nullptr;               // backward
  void *w = nullptr, *mean = nullptr, *rstd = nullptr;
  void* b = nullptr;                  // forward
  void *gw = nullptr, *gb = nullptr;  // backward
};

struct BatchNormTensors {
  Tensor x, y, w, mean, rstd;  // backward: y is gy
  Tensor b{};                  // forward
  Tensor gx{}, gw{}, gb{};     // backward: all three
};

// None where the library cannot take it: it requires x, y and gx [N, C, H, W] of one dtype and dense in one layout,
// channels first or last; f32 with a multiple of 4 channels, or f16 or bf16 with one of 8; and weight, bias, statistics
// and gradients in f32, none of them absent. `eps` is the forward's.
[[nodiscard]] std::optional<LibraryBatchNorm> library_batch_norm(const BatchNormTensors& t, double eps);

[[nodiscard]] LibraryCallText said(const LibraryBatchNorm& call);

namespace lib {
// Enqueues the call; false where our kernels are to compute it: engine_choice says so, or cuDNN has no engine that is
// taken (Note [Engines that are taken]). Plans are made once a shape and kept; CaptureError as Note [Plans and
// recordings] says.
[[nodiscard]] bool cudnn_batch_norm(const LibraryBatchNorm& call, Stream stream);

[[nodiscard]] CudnnPlans cudnn_plans(const LibraryBatchNorm& call, std::string_view device);
}  // namespace lib

}  // namespace levin::kernels
