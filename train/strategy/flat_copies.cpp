#include "train/strategy/flat_copies.h"

#include <vector>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "train/logs/metric_log.h"

namespace levin::train {

void broadcast(dist::ProcessGroup& group, const NamedTensors& tensors) {
  constexpr std::int64_t kMost = 25 << 20;  // bytes of a buffer; PyTorch's DDP takes the same
  const NoGrad off;
  for (std::size_t begin = 0; begin < tensors.size();) {
    const DType dtype = tensors[begin].second.dtype();
    const Device device = tensors[begin].second.device();
    std::int64_t count = 0;
    std::size_t end = begin;
    while (
        end < tensors.size() && tensors[end].second.dtype() == dtype && tensors[end].second.device() == device &&
        (end == begin || (count + tensors[end].second.numel()) * static_cast<std::int64_t>(itemsize(dtype)) <= kMost))
      count += tensors[end++].second.numel();
    const Tensor flat = empty({count}, device, dtype);
    const auto each = [&](auto&& f) {
      std::int64_t at = 0;
      for (std::size_t i = begin; i < end; ++i) {
        const Tensor& t = tensors[i].second;
        f(t.detach(), view(slice(flat, 0, at, at + t.numel()), Dims(std::span(t.shape().begin(), t.shape().end()))));
        at += t.numel();
      }
    };
    each([](const Tensor& t, Tensor place) { copy_(place, t); });
    group.broadcast(flat).wait();
    if (group.rank() != 0) each([](Tensor t, const Tensor& place) { copy_(t, place); });
    begin = end;
  }
}

void broadcast_buffers(dist::ProcessGroup& group, nn::Module* tree) {
  NamedTensors buffers;
  for (const nn::BufferRef& b : buffers_of_model(tree)) buffers.emplace_back(b.name, *b.value);
  if (!buffers.empty()) broadcast(group, buffers);
}

}  // namespace levin::train
