// The kernels of attention_hopper_device.cuh for compute capability 9.0 alone: wgmma and setmaxnreg exist in no other.
#include "kernels/attention/attention_hopper.h"
#include "kernels/attention/attention_hopper_device.cuh"
#include "kernels/executor/gpu.h"
#include "levin/error.h"
#include "tensor/device/hardware.h"

namespace levin::kernels {

namespace {

TensorMap boxes_of(const LibraryAttention& c, const LibraryAttention::Operand& o, int box_rows) {
  return tensor_map({.data = o.data,
                     .dtype = c.dtype,
                     .columns = o.sizes[3],
                     .rows = o.sizes[2],
                     .row_bytes = o.strides[2] * 2,
                     .box_columns = gpu::kPanelColumns,
                     .box_rows = box_rows,
                     .heads = {o.sizes[1], o.strides[1] * 2},
                     .batches = {o.sizes[0], o.strides[0] * 2}});
}

template <class T, int kWidth>
void launch(const LibraryAttention& c, Stream stream) {
  using Head = gpu::HopperHead<kWidth>;
  const gpu::HopperRows s{.rows = int(c.q.sizes[2]),
                          .cols = int(c.k.sizes[2]),
                          .heads = int(c.q.sizes[1]),
                          .row_tiles = int((c.q.sizes[2] + Head::kRows - 1) / Head::kRows),
                          .scale = c.scale,
                          .causal = c.causal};
  const Grid grid{
      .blocks = unsigned(c.q.sizes[0] * c.q.sizes[1] * s.row_tiles), .threads = Head::kThreads, .shared = Head::kBytes};
  Gpu{stream}.launch(gpu::attention_hopper<T, kWidth>, grid, boxes_of(c, c.q, Head::kRows),
                     boxes_of(c, c.k, gpu::kHopperKeys), boxes_of(c, c.v, gpu::kHopperKeys), boxes_of(c, c.y, 64), s,
                     static_cast<float*>(c.lse.data));
}

template <class T>
void launch_width(const LibraryAttention& c, Stream stream) {
  c.q.sizes[3] == 128 ? launch<T, 128>(c, stream) : launch<T, 64>(c, stream);
}

}  // namespace

void hopper_attention(const LibraryAttention& call, Stream stream) {
  if (const auto why = hopper_refusal(call)) fail<UnsupportedError>("hopper_attention: ", *why);
  call.dtype == DType::f16 ? launch_width<f16>(call, stream) : launch_width<bf16>(call, stream);
}

bool hopper_made(const std::optional<LibraryAttention>& call, Stream stream) {
  if (!call || !fills_hopper(*call) || hopper_refusal(*call) ||
      levin::detail::compute_capability(stream.device()) != 90)
    return false;
  hopper_attention(*call, stream);
  return true;
}

}  // namespace levin::kernels
