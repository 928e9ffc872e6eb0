// The kernels of attention_hopper_device.cuh and attention_hopper_backward_device.cuh for compute capability 9.0 alone:
// wgmma and setmaxnreg exist in no other.
#include <type_traits>

#include "kernels/attention/attention_hopper.h"
#include "kernels/attention/attention_hopper_backward_device.cuh"
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
gpu::HopperLines<T> lines_of(const LibraryAttention::Operand& o) {
  return {static_cast<T*>(o.data), o.strides[0], o.strides[1], o.strides[2]};
}

template <class T, int kWidth>
void launch_backward(const LibraryAttention& c, float* memory, Stream stream) {
  using Head = gpu::HopperBackward<kWidth>;
  const auto up = [](std::int64_t a, std::int64_t b) { return int((a + b - 1) / b); };
  const gpu::HopperColumns s{.rows = int(c.q.sizes[2]),
                             .cols = int(c.k.sizes[2]),
                             .heads = int(c.q.sizes[1]),
                             .row_tiles = up(c.q.sizes[2], Head::kRows),
                             .key_tiles = up(c.k.sizes[2], gpu::kHopperKeys),
                             .scale = c.scale,
                             .causal = c.causal};
  const std::int64_t heads = c.q.sizes[0] * c.q.sizes[1], tiles = heads * s.row_tiles, terms = tiles * Head::kRows;
  float *const logs = memory + tiles * 2 * gpu::kHopperSums, *const deltas = logs + terms;
  int* const turns = reinterpret_cast<int*>(deltas + terms);
  const gpu::HopperScratch scratch{
      .sums = memory, .logs = logs, .deltas = deltas, .turns = turns, .ticket = turns + tiles};
  const Gpu gpu{stream};
  gpu.launch(
      gpu::attention_hopper_terms<T, kWidth>,
      Grid{.blocks = blocks_for(terms * (kWidth / 8), gpu::kHopperTermThreads), .threads = gpu::kHopperTermThreads}, s,
      lines_of<const T>(c.gy), lines_of<const T>(c.y), static_cast<const float*>(c.lse.data), scratch, int(tiles));
  const auto rows = [&](const LibraryAttention::Operand& o) { return boxes_of(c, o, Head::kRows); };
  const auto keys = [&](const LibraryAttention::Operand& o) { return boxes_of(c, o, gpu::kHopperKeys); };
  gpu.launch(gpu::attention_hopper_backward<T, kWidth>,
             Grid{.blocks = unsigned(heads * s.key_tiles), .threads = Head::kThreads, .shared = Head::kBytes},
             rows(c.q), keys(c.k), keys(c.v), rows(c.gy), boxes_of(c, c.gk, 64), boxes_of(c, c.gv, 64), s, scratch);
  gpu.launch(gpu::attention_hopper_gq<T, kWidth>, Grid{.blocks = unsigned(tiles), .threads = gpu::kHopperSums / 8}, s,
             static_cast<const float*>(scratch.sums), lines_of<T>(c.gq));
}

// f(T{}, width as a constant)
template <class F>
void with_kernel(const char* name, const LibraryAttention& c, F&& f) {
  if (const auto why = hopper_refusal(c)) fail<UnsupportedError>(name, ": ", *why);
  const auto with_width = [&]<class T>(T) {
    if (c.q.sizes[3] == 128)
      f(T{}, std::integral_constant<int, 128>{});
    else
      f(T{}, std::integral_constant<int, 64>{});
  };
  c.dtype == DType::f16 ? with_width(f16{}) : with_width(bf16{});
}

}  // namespace

std::optional<LibraryAttention> hopper_call(const Shape& batch, double scale, bool causal, const AttentionTensors& t) {
  if (levin::detail::compute_capability(t.q.device()) != 90) return {};
  auto call = library_attention(batch, scale, causal, t);
  if (!call || !fills_hopper(*call) || hopper_refusal(*call)) return {};
  return call;
}

void hopper_attention(const LibraryAttention& call, Stream stream) {
  with_kernel("hopper_attention", call,
              [&]<class T, int kWidth>(T, std::integral_constant<int, kWidth>) { launch<T, kWidth>(call, stream); });
}

void hopper_attention_backward(const LibraryAttention& call, float* scratch, Stream stream) {
  with_kernel("hopper_attention_backward", call, [&]<class T, int kWidth>(T, std::integral_constant<int, kWidth>) {
    launch_backward<T, kWidth>(call, scratch, stream);
  });
}

}  // namespace levin::kernels
