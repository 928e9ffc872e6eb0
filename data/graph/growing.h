// Lists of unknown length in the memory of tensors, which the next batch uses again.
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>

#include "levin/tensor.h"
#include "tensor/core/sole_owner.h"

namespace levin::gnn {

// Whether no other sees a write to its memory, which is of the host and starts with the first element.
inline bool is_reusable(const Tensor& t) {
  return levin::detail::is_sole_owner(t) && t.device().is_cpu() && !t.is_pinned() && t.get().offset == 0;
}

// A tensor of this shape whose elements are to be written, in the memory of `spare` where that is large enough.
inline Tensor resized(Tensor spare, const Shape& shape, DType dtype) {
  const auto bytes = static_cast<std::size_t>(shape.numel()) * itemsize(dtype);
  if (!is_reusable(spare) || spare.dtype() != dtype || spare.get().storage->bytes < bytes) {
    Shape room = shape;
    if (room.rank() > 0) room = room.removed(0).inserted(0, shape[0] + shape[0] / 8);
    spare = empty(room, Device::cpu(), dtype);
  }
  levin::detail::TensorImpl& impl = spare.get();
  impl.shape = shape;
  impl.strides = contiguous_strides(shape);
  impl.contiguous = true;
  impl.storage->wrote("sample");
  return spare;
}

// A list of T that becomes a tensor [n]. Memory grows by an eighth more than is needed, so that batches of similar size
// allocate nothing.
template <class T>
class Growing {
 public:
  explicit Growing(Tensor spare) {
    if (!is_reusable(spare) || spare.dtype() != dtype_of<T>) return;
    memory_ = std::move(spare);
    capacity_ = static_cast<std::int64_t>(memory_.get().storage->bytes / sizeof(T));
    data_ = reinterpret_cast<T*>(memory_.get().storage->data);
  }
  // Room for `n` elements; the first `used` keep their values.
  T* reserve(std::int64_t n, std::int64_t used = 0) {
    if (n <= capacity_ && memory_.defined()) return data_;
    Tensor larger = empty({n + n / 8}, Device::cpu(), dtype_of<T>);
    T* const to = reinterpret_cast<T*>(larger.get().storage->data);
    used = std::min(used, capacity_);
    if (used > 0) std::memcpy(to, data_, static_cast<std::size_t>(used) * sizeof(T));
    memory_ = std::move(larger);
    capacity_ = n + n / 8;
    return data_ = to;
  }
  [[nodiscard]] T* data() const { return data_; }
  // The first n elements, for which there is room.
  [[nodiscard]] Tensor finish(std::int64_t n) {
    (void)reserve(n);
    levin::detail::TensorImpl& impl = memory_.get();
    impl.shape = Shape{n};
    impl.strides = Strides{1};
    impl.contiguous = true;
    impl.storage->wrote("sample");
    return std::move(memory_);
  }

 private:
  Tensor memory_;
  std::int64_t capacity_ = 0;
  T* data_ = nullptr;
};

}  // namespace levin::gnn
