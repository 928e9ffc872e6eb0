#include "train/data/transfer.h"

#include <algorithm>

#include "levin/autograd.h"
#include "tensor/core/counted.h"
#include "tensor/device/in_stream.h"

namespace levin::train {

std::atomic<bool> forget_arrivals{false};

Batch move_batch(Batch batch, Device device) {
  for (Tensor& t : batch.fields) {
    if (t.defined() && t.device() != device) t = t.to(device, device.launches() ? NonBlocking::yes : NonBlocking::no);
  }
  return batch;
}

namespace {

bool travels(const Tensor& t) { return t.defined() && t.device().is_cpu() && !t.requires_grad(); }

// Copies dense host memory into a dense tensor on the current stream of its device. The host does not wait.
void copy_into(const Tensor& to, const Tensor& from) {
  using detail::runtime::Copy;
  const Stream stream = Stream::current(to.device());
  const std::size_t bytes = static_cast<std::size_t>(from.numel()) * itemsize(from.dtype());
  if (bytes == 0) return;
  std::byte* const target = detail::address_in_stream(to);
  const std::byte* const source = detail::address_in_stream(from);
  if (from.is_pinned()) {
    from.get().storage->used_on(stream);
    detail::count_copy(Copy::to_device, bytes);
    detail::runtime::copy(target, source, bytes, Copy::to_device, stream);
  } else {
    detail::upload(target, source, bytes, stream);
  }
  to.get().storage->wrote("to");
}

}  // namespace

void Transfer::move(Batch& batch, Device device, const Tensors* into) {
  if (std::none_of(batch.fields.begin(), batch.fields.end(), travels)) return;
  const Stream steps = Stream::current(device);
  if (!line_ || line_->copies.device() != device)
    line_.emplace(Line{Stream::next_of(device), Event(device), Event(device)});
  {
    const StreamGuard on(line_->copies);
    if (into) {
      line_->step.record(steps);
      line_->step.block(line_->copies);
    }
    for (std::size_t i = 0; i < batch.fields.size(); ++i) {
      Tensor& t = batch.fields[i];
      if (into) {
        copy_into((*into)[i], t.contiguous((*into)[i].suggest_memory_format()));
        t = (*into)[i];
      } else if (travels(t)) {
        t = t.to(device, NonBlocking::yes);
      }
    }
    line_->arrived.record(line_->copies);
  }
  if (!forget_arrivals) line_->arrived.block(steps);
}

}  // namespace levin::train
