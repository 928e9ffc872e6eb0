#include "levin/optim/lists.h"

#include <string>
#include <vector>

#include "kernels/executor/copy.h"
#include "kernels/update/bucket_device.h"
#include "levin/stream.h"
#include "optim/updates.h"

namespace levin::optim {
namespace {

std::byte* bytes_of(const Tensor& t) { return Updates::first<std::byte>(t); }
std::int64_t byte_count(const Tensor& t) { return t.numel() * static_cast<std::int64_t>(itemsize(t.dtype())); }

void copy(Device device, const std::vector<kernels::Copy>& copies) {
#if LEVIN_LAUNCHES
  if (device.launches()) return kernels::copy_on_device({Stream::current(device)}, copies);
#endif
  (void)device;
  kernels::cpu::copy_list(kernels::Cpu{}, copies);
}

void check_average(const Tensor& average, const Tensor& value, const Tensor& decay, std::size_t i) {
  const std::string pair = "ema_update_: tensor " + text(i) + ": ";
  if (average.shape() != value.shape()) fail<ShapeError>(pair + "the average is ", average, ", the value ", value);
  const bool wider = average.dtype() == DType::f32 && is_float(value.dtype()) && itemsize(value.dtype()) == 2;
  if (average.dtype() != value.dtype() && !wider)
    fail<DTypeError>(pair + "the average is ", average, ", the value ", value,
                     ", expected the same dtype or an f32 average");
  if (!Updates::is_dense(average)) fail<ShapeError>(pair + "the average is not dense");
  for (const Tensor& t : {average, value}) {
    if (t.device() != decay.device())
      fail<DeviceError>(pair + "it is on ", t.device(), ", decay is on ", decay.device());
  }
}

// The averages of one pair of types.
template <class From, class To>
void update_averages(const Tensors& averages, const Tensors& values, const Tensor& decay) {
  std::vector<kernels::Average<From, To>> list;
  for (std::size_t i = 0; i < averages.size(); ++i) {
    if (averages[i].dtype() != dtype_of<To> || values[i].dtype() != dtype_of<From> || averages[i].numel() == 0)
      continue;
    list.push_back({Updates::first<From>(values[i]), Updates::first<To>(averages[i]), averages[i].numel()});
  }
  const std::span<const kernels::Average<From, To>> all(list);
#if LEVIN_LAUNCHES
  if (decay.device().launches())
    return kernels::average_on_device({Stream::current(decay.device())}, all, Updates::first<double>(decay));
#endif
  kernels::cpu::average(kernels::Cpu{}, all, decay.item());
}

constexpr std::int64_t kAlign = 16;  // bytes
std::int64_t padded(std::int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

void check_alike(const char* op, const Tensors& tensors) {
  if (tensors.empty()) fail<ShapeError>(op, ": the list of tensors is empty");
  for (const Tensor& t : tensors) {
    if (t.dtype() != tensors[0].dtype())
      fail<DTypeError>(op, ": one tensor is ", t, ", the first ", tensors[0], "; give each dtype a buffer of its own");
    if (t.device() != tensors[0].device())
      fail<DeviceError>(op, ": one tensor is ", t, ", the first ", tensors[0],
                        "; give each device a buffer of its own");
  }
}
void check_flat(const char* op, const Tensor& flat, const Tensors& tensors) {
  check_alike(op, tensors);
  const Shape shape{flat_numel(tensors)};
  if (flat.dtype() != tensors[0].dtype())
    fail<DTypeError>(op, ": the buffer is ", flat, ", the tensors are ", tensors[0]);
  if (flat.device() != tensors[0].device())
    fail<DeviceError>(op, ": the buffer is ", flat, ", the tensors are ", tensors[0]);
  if (flat.shape() != shape || !flat.is_contiguous())
    fail<ShapeError>(op, ": the buffer is ", flat, ", expected contiguous ", shape, " for these tensors");
}

}  // namespace

void ema_update_(const Tensors& averages, const Tensors& values, const Tensor& decay) {
  if (averages.size() != values.size())
    fail<ShapeError>("ema_update_: there are ", averages.size(), " averages and ", values.size(), " values");
  if (decay.dtype() != DType::f64 || decay.numel() != 1)
    fail<ShapeError>("ema_update_: decay is ", decay, ", expected one f64 element");
  for (std::size_t i = 0; i < averages.size(); ++i) check_average(averages[i], values[i], decay, i);
  Tensors dense;
  std::vector<kernels::Copy> copies;
  for (std::size_t i = 0; i < averages.size(); ++i) {
    dense.push_back(Updates::laid_out_as(averages[i], values[i].detach()));
    averages[i].get().storage->wrote("ema_update_");
    if (!is_float(averages[i].dtype()))
      copies.push_back({bytes_of(dense[i]), bytes_of(averages[i]), byte_count(dense[i])});
  }
  copy(decay.device(), copies);
  update_averages<float, float>(averages, dense, decay);
  update_averages<double, double>(averages, dense, decay);
  update_averages<f16, f16>(averages, dense, decay);
  update_averages<bf16, bf16>(averages, dense, decay);
  update_averages<f16, float>(averages, dense, decay);
  update_averages<bf16, float>(averages, dense, decay);
}

void copy_all_(const Tensors& to, const Tensors& from) {
  if (to.size() != from.size())
    fail<ShapeError>("copy_all_: there are ", to.size(), " targets and ", from.size(), " sources");
  for (std::size_t i = 0; i < to.size(); ++i) {
    const std::string pair = "copy_all_: tensor " + text(i) + ": ";
    if (to[i].shape() != from[i].shape()) fail<ShapeError>(pair + "the target is ", to[i], ", the source ", from[i]);
    if (to[i].dtype() != from[i].dtype()) fail<DTypeError>(pair + "the target is ", to[i], ", the source ", from[i]);
    if (!Updates::is_dense(to[i])) fail<ShapeError>(pair + "the target is not dense");
    for (const Tensor& t : {to[i], from[i]}) {
      if (t.device() != to[0].device())
        fail<DeviceError>(pair + "it is on ", t.device(), ", the first target on ", to[0].device());
    }
  }
  Tensors dense;
  std::vector<kernels::Copy> copies;
  for (std::size_t i = 0; i < to.size(); ++i) {
    dense.push_back(Updates::laid_out_as(to[i], from[i].detach()));
    to[i].get().storage->wrote("copy_all_");
    copies.push_back({bytes_of(dense[i]), bytes_of(to[i]), byte_count(to[i])});
  }
  if (!copies.empty()) copy(to[0].device(), copies);
}

std::int64_t flat_numel(const Tensors& tensors) {
  check_alike("flat_numel", tensors);
  std::int64_t bytes = 0;
  for (const Tensor& t : tensors) bytes += padded(byte_count(t));
  return bytes / static_cast<std::int64_t>(itemsize(tensors[0].dtype()));
}

Tensor flatten(const Tensors& tensors) {
  check_alike("flatten", tensors);
  Tensor flat = empty({flat_numel(tensors)}, tensors[0].device(), tensors[0].dtype());
  flatten_into_(flat, tensors);
  return flat;
}

void flatten_into_(Tensor& flat, const Tensors& tensors) {
  check_flat("flatten_into_", flat, tensors);
  flat.get().storage->wrote("flatten_into_");
  const Device device = flat.device();
  Tensors dense;
  std::vector<kernels::Copy> copies;
  std::byte* to = bytes_of(flat);
  for (const Tensor& t : tensors) {
    dense.push_back(Updates::dense(t));
    const std::int64_t bytes = byte_count(t), gap = padded(bytes) - bytes;
    copies.push_back({bytes_of(dense.back()), to, bytes, static_cast<int>(gap)});
    to += bytes + gap;
  }
  copy(device, copies);
}

void unflatten_into_(const Tensors& tensors, const Tensor& flat) {
  check_flat("unflatten_into_", flat, tensors);
  for (const Tensor& t : tensors) {
    if (!t.is_contiguous()) fail<ShapeError>("unflatten_into_: a tensor of shape ", t.shape(), " is not contiguous");
  }
  std::vector<kernels::Copy> copies;
  const std::byte* from = bytes_of(flat);
  for (const Tensor& t : tensors) {
    t.get().storage->wrote("unflatten_into_");
    copies.push_back({from, bytes_of(t), byte_count(t)});
    from += padded(byte_count(t));
  }
  copy(flat.device(), copies);
}

}  // namespace levin::optim
