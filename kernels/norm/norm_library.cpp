#include "kernels/norm/norm_library.h"

#include <limits>

#include "kernels/lib/library_operand.h"

namespace levin::kernels {
namespace {

// Memory of the image, where it lies as `layout` says.
void* image_bytes(const Tensor& t, const Tensor& like, MemoryFormat layout) {
  if (!t.defined() || t.dtype() != like.dtype() || t.shape() != like.shape()) return nullptr;
  if (layout == MemoryFormat::contiguous ? !t.is_contiguous() : t.suggest_memory_format() != layout) return nullptr;
  return aligned16(bytes_of(t)) ? bytes_of(t) : nullptr;
}
void* row_bytes(const Tensor& t, std::int64_t channels) {
  if (!t.defined() || t.dtype() != DType::f32 || t.shape() != Shape{channels} || !t.is_contiguous()) return nullptr;
  return aligned16(bytes_of(t)) ? bytes_of(t) : nullptr;
}

}  // namespace

std::optional<LibraryBatchNorm> library_batch_norm(const BatchNormTensors& t, double eps) {
  const DType dtype = t.x.dtype();
  if (t.x.rank() != 4 || (dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16)) return {};
  // What 32 bits do not count is left alone: cuDNN does not say how its engines count.
  if (t.x.numel() < 1 || t.x.numel() > std::numeric_limits<std::int32_t>::max()) return {};
  const std::int64_t c = t.x.size(1), h = t.x.size(2), w = t.x.size(3);
  constexpr std::int64_t kChannelBytes = 16;  // of a pixel, or a multiple: cuDNN 9.19 has no engine for others
  if (c * static_cast<std::int64_t>(itemsize(dtype)) % kChannelBytes != 0) return {};
  const MemoryFormat layout = t.x.suggest_memory_format();
  LibraryBatchNorm call{.backward = t.gx.defined(), .dtype = dtype, .eps = float(eps), .sizes = {t.x.size(0), c, h, w}};
  if (layout == MemoryFormat::contiguous)
    call.strides = {c * h * w, h * w, w, 1};
  else
    call.strides = {h * w * c, 1, w * c, c};
  call.x = image_bytes(t.x, t.x, layout), call.y = image_bytes(t.y, t.x, layout);
  call.w = row_bytes(t.w, c), call.mean = row_bytes(t.mean, c), call.rstd = row_bytes(t.rstd, c);
  if (!call.x || !call.y || !call.w || !call.mean || !call.rstd) return {};
  if (call.backward) {
    call.gx = image_bytes(t.gx, t.x, layout), call.gw = row_bytes(t.gw, c), call.gb = row_bytes(t.gb, c);
    if (!call.gx || !call.gw || !call.gb) return {};
  } else {
    call.b = row_bytes(t.b, c);
    if (!call.b) return {};
  }
  return call;
}

LibraryCallText said(const LibraryBatchNorm& c) {
  const bool last = c.strides[1] == 1 && c.sizes[1] > 1;
  return {c.backward ? "batch_norm_backward" : "batch_norm",
          sizes_text("x", c.sizes) + " in " + name(c.dtype) + ", channels " + (last ? "last" : "first")};
}

}  // namespace levin::kernels
