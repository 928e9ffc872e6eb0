#include "autograd/replica_values.h"

#include <algorithm>

#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin::detail {
namespace {

// The same elements under another CPU device's name.
Tensor on_cpu(const Tensor& t, Device device) {
  const TensorImpl& from = t.get();
  const Ref<Storage> storage = Storage::carve(from.storage, 0, from.storage->bytes);
  storage->device = device;
  auto* impl = new TensorImpl;
  impl->dtype = from.dtype;
  impl->contiguous = from.contiguous;
  impl->storage = storage;
  impl->offset = from.offset;
  impl->shape = from.shape;
  impl->strides = from.strides;
  return Tensor(Ref<TensorImpl>::adopt(impl));
}

}  // namespace

Tensors values_on(Device device, const Tensors& values) {
  const NoGrad off;
  Tensors there(values.size());
  std::vector<std::size_t> rest;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!values[i].defined()) continue;
    const Device from = values[i].device();
    if (from == device)
      there[i] = values[i].detach();
    else if (from.is_cpu() && device.is_cpu())
      there[i] = on_cpu(values[i], device);
    else
      rest.push_back(i);
  }
  while (!rest.empty()) {
    const DType dtype = values[rest.front()].dtype();
    const auto same =
        std::stable_partition(rest.begin(), rest.end(), [&](std::size_t i) { return values[i].dtype() == dtype; });
    Tensors flat;
    for (auto it = rest.begin(); it != same; ++it) flat.push_back(reshape(values[*it].detach(), {values[*it].numel()}));
    const Tensor all = cat(std::span<const Tensor>(flat)).to(device);
    std::int64_t at = 0;
    for (auto it = rest.begin(); it != same; ++it) {
      const std::int64_t n = values[*it].numel();
      there[*it] = reshape(slice(all, 0, at, at + n), Dims(values[*it].shape().dims())).clone();  // memory of its own
      at += n;
    }
    rest.erase(rest.begin(), same);
  }
  return there;
}

}  // namespace levin::detail
