#include "levin/tensor.h"

#include <algorithm>
#include <cstring>

#include "tensor/core/undefined.h"
#include "tensor/memory/read_only.h"

namespace levin {
namespace {

using detail::Ref;
using detail::Storage;
using detail::TensorImpl;

// Dense row-major: each stride is the product of the sizes after it; dimensions of size 1 do not matter.
bool dense(const Shape& shape, const Strides& strides) {
  if (shape.numel() <= 1) return true;
  std::int64_t step = 1;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    if (shape[d] == 1) continue;
    if (strides[d] != step) return false;
    step *= shape[d];
  }
  return true;
}

void check_rank_of(MemoryFormat format, const char* op, const Shape& shape) {
  if (format == MemoryFormat::channels_last && shape.rank() != 4)
    fail<ShapeError>(op, ": the shape is ", shape, ", expected 4 dimensions [N, C, H, W] for channels_last");
}

}  // namespace

std::int64_t Tensor::size(std::int64_t d) const { return shape()[wrap_dim("size", d, rank())]; }
std::int64_t Tensor::stride(std::int64_t d) const { return strides()[wrap_dim("stride", d, rank())]; }

namespace {
constexpr const char* kUndefined = ": an undefined tensor is used; it holds nothing (was it moved from, or never set?)";
}
void Tensor::throw_undefined() { fail<detail::UndefinedTensor>("tensor", kUndefined); }
void detail::fail_undefined(const char* op) { fail<StateError>(op, kUndefined); }

bool Tensor::is_contiguous(MemoryFormat format) const {
  if (format == MemoryFormat::contiguous) return is_contiguous();
  const Shape& s = shape();
  if (s.rank() != 4) return false;
  if (s.numel() <= 1) return true;
  std::int64_t step = 1;
  for (const int d : {1, 3, 2, 0}) {
    if (s[d] == 1) continue;
    if (strides()[d] != step) return false;
    step *= s[d];
  }
  return true;
}
MemoryFormat Tensor::format_of_strides() const {
  return is_contiguous(MemoryFormat::channels_last) ? MemoryFormat::channels_last : MemoryFormat::contiguous;
}

void Tensor::check_host_access(const char* what, DType asked) const {
  if (dtype() != asked) fail<DTypeError>(what, ": the tensor is ", dtype(), ", asked for ", asked);
  if (!device().is_cpu())
    fail<DeviceError>(what, ": the tensor is on ", device(), ", expected cpu; copy it with to(Device::cpu())");
  if (what[0] == 'm') detail::check_writable(what, *this);  // mutable_data
}

namespace {
void share_data(TensorImpl& to, const TensorImpl& from) {
  to.dtype = from.dtype;
  to.contiguous = from.contiguous;
  to.storage = from.storage;
  to.offset = from.offset;
  to.shape = from.shape;
  to.strides = from.strides;
}
}  // namespace

Tensor Tensor::detach() const {
  const TensorImpl& from = get();
  auto* impl = new TensorImpl;
  share_data(*impl, from);
  return Tensor(Ref<TensorImpl>::adopt(impl));
}

void detail::detach_into(Tensor& to, const Tensor& of) {
  const bool ours = to.defined() && to.impl()->refs.load(std::memory_order_acquire) == 1 && !to.impl()->meta;
  if (ours)
    share_data(*to.impl(), of.get());
  else
    to = of.detach();
}

Scalar Tensor::item_scalar(const std::source_location& where) const {
  const detail::WaitsHere waits("item", where);
  if (numel() != 1) fail<ShapeError>("item: the tensor has shape ", shape(), ", expected one element");
  if (device().is_meta()) fail<UnsupportedError>("item: a meta tensor has no values");
  const Tensor host = device().is_cpu() ? *this : to(Device::cpu());
  switch (host.dtype()) {
    case DType::f32: return *host.data<float>();
    case DType::f64: return *host.data<double>();
    case DType::f16: return static_cast<float>(*host.data<f16>());
    case DType::bf16: return static_cast<float>(*host.data<bf16>());
    case DType::i32: return *host.data<std::int32_t>();
    case DType::i64: return *host.data<std::int64_t>();
    case DType::u8: return *host.data<std::uint8_t>();
    case DType::b8: return *host.data<bool>();
    case DType::i8: return *host.data<std::int8_t>();
    case DType::i16: return *host.data<std::int16_t>();
  }
  return 0;
}

void Tensor::check_copy_to_host(DType asked) const {
  if (dtype() != asked) fail<DTypeError>("to_vector: the tensor is ", dtype(), ", asked for ", asked);
  if (device().is_meta()) fail<UnsupportedError>("to_vector: a meta tensor has no values");
}

void Tensor::copy_to_host(void* out, DType asked) const {
  const Tensor host = (device().is_cpu() ? detach() : detach().to(Device::cpu())).contiguous();
  if (numel() == 0) return;
  const std::size_t size = itemsize(asked);
  std::memcpy(out, host.get().storage->data + static_cast<std::size_t>(host.offset()) * size,
              static_cast<std::size_t>(numel()) * size);
}

namespace {

Tensor dense_over(Ref<Storage> storage, const Shape& shape, DType dtype) {
  auto* impl = new TensorImpl;
  impl->dtype = dtype;
  impl->storage = std::move(storage);
  impl->shape = shape;
  std::int64_t step = 1;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    impl->strides[d] = step;
    step *= std::max<std::int64_t>(shape[d], 1);
  }
  return Tensor(Ref<TensorImpl>::adopt(impl));
}
// A new dense tensor in that format.
void lay_out(TensorImpl& impl, MemoryFormat format) {
  if (format == MemoryFormat::contiguous) return;
  std::int64_t step = 1;
  for (const int d : {1, 3, 2, 0}) {
    impl.strides[d] = step;
    step *= std::max<std::int64_t>(impl.shape[d], 1);
  }
  impl.contiguous = dense(impl.shape, impl.strides);
}
std::size_t bytes_of(const Shape& shape, DType dtype) {
  return static_cast<std::size_t>(shape.numel()) * itemsize(dtype);
}

}  // namespace

Tensor empty(const Shape& shape, Device device, DType dtype) {
  return dense_over(Storage::allocate(bytes_of(shape, dtype), device), shape, dtype);
}
Tensor detail::empty_pinned(const Shape& shape, DType dtype, MemoryFormat format) {
  check_rank_of(format, "empty_pinned", shape);
  Tensor t = dense_over(Storage::allocate_pinned(bytes_of(shape, dtype)), shape, dtype);
  lay_out(t.get(), format);
  return t;
}

Tensor empty(const Shape& shape, Device device, DType dtype, MemoryFormat format) {
  check_rank_of(format, "empty", shape);
  Tensor t = empty(shape, device, dtype);
  lay_out(t.get(), format);
  return t;
}

Tensor empty_like(const Tensor& x) { return empty_like(x, x.dtype()); }
Tensor empty_like(const Tensor& x, DType dtype) {
  return x.is_contiguous() ? empty(x.shape(), x.device(), dtype)
                           : empty(x.shape(), x.device(), dtype, x.suggest_memory_format());
}

Tensor as_strided(const Tensor& x, const Shape& shape, const Strides& strides, std::int64_t offset) {
  const TensorImpl& from = x.get();
  // Checked even for unused strides: kernels count in bytes.
  constexpr std::int64_t kMost = 2 * kMaxNumel;
  if (offset < -kMost || offset > kMost)
    fail<ShapeError>("as_strided: the offset is ", offset, ", expected at most 2^49");
  for (int d = 0; d < shape.rank(); ++d) {
    if (strides[d] < -kMost || strides[d] > kMost)
      fail<ShapeError>("as_strided: stride ", d, " is ", strides[d], ", expected at most 2^49");
  }
  if (shape.numel() > 0) {
    std::int64_t low = offset, high = offset;
    for (int d = 0; d < shape.rank(); ++d) {
      std::int64_t reach = 0;
      if (__builtin_mul_overflow(shape[d] - 1, strides[d], &reach) ||
          __builtin_add_overflow(reach < 0 ? low : high, reach, reach < 0 ? &low : &high)) {
        fail<ShapeError>("as_strided: strides of shape ", shape, " overflow");
      }
    }
    const auto elements = static_cast<std::int64_t>(from.storage->bytes / itemsize(from.dtype));
    if (low < 0 || high >= elements) {
      fail<ShapeError>("as_strided: shape ", shape, " reaches elements ", low, " to ", high, ", the storage has ",
                       elements);
    }
  }
  auto* impl = new TensorImpl;
  impl->dtype = from.dtype;
  impl->storage = from.storage;
  impl->offset = offset;
  impl->shape = shape;
  impl->strides = strides;
  impl->contiguous = dense(shape, strides);
  return Tensor(Ref<TensorImpl>::adopt(impl));
}

Tensor Tensor::pin_memory() const {
  if (device() != Device::cpu()) fail<DeviceError>("pin_memory: the tensor is on ", device(), ", expected cpu");
  if (device_count(DeviceType::cuda) + device_count(DeviceType::simt) == 0) {
    fail<UnsupportedError>("pin_memory: no device is usable here that page-locked memory would serve; leave it out");
  }
  if (is_pinned()) return detach();
  const MemoryFormat format = suggest_memory_format();
  const Tensor from = detach().contiguous(format);
  Tensor out = detail::empty_pinned(from.shape(), from.dtype(), format);
  Storage& to = *out.get().storage;
  const std::size_t first = static_cast<std::size_t>(from.offset()) * itemsize(from.dtype());
  if (to.bytes) std::memcpy(to.data, from.get().storage->data + first, to.bytes);
  return out;
}

Tensor from_blob(void* data, const Shape& shape, DType dtype, std::shared_ptr<void> owner, std::string source) {
  if (!data && shape.numel() > 0) fail<ShapeError>("from_blob: ", source, " is a null pointer, shape is ", shape);
  if (reinterpret_cast<std::uintptr_t>(data) % itemsize(dtype) != 0) {
    fail<ShapeError>("from_blob: ", source, " is not aligned to its ", dtype, " elements; copy it with from_data");
  }
  auto* impl = new TensorImpl;
  Tensor result(Ref<TensorImpl>::adopt(impl));
  impl->dtype = dtype;
  impl->storage = Storage::wrap(data, static_cast<std::size_t>(shape.numel()) * itemsize(dtype), Device::cpu(),
                                std::move(owner), std::move(source));
  impl->shape = shape;
  impl->strides = contiguous_strides(shape);
  return result;
}

namespace detail {
Tensor copy_from_host(const void* data, std::size_t count, const Shape& shape, Device device, DType dtype,
                      const std::source_location& where) {
  if (count != static_cast<std::size_t>(shape.numel())) {
    fail<ShapeError>("from_data: ", count, " values are given, shape ", shape, " holds ", shape.numel());
  }
  const WaitsHere waits("from_data", where);
  Tensor host = empty(shape, device.is_meta() ? device : Device::cpu(), dtype);
  if (count && !device.is_meta()) std::memcpy(host.get().storage->data, data, count * itemsize(dtype));
  return host.to(device);
}
}  // namespace detail

}  // namespace levin
