// Slices that lie elsewhere than the module: Note [Offload] in offload.h.
#include <algorithm>
#include <utility>

#include "levin/ops.h"
#include "levin/stream.h"
#include "train/strategy/flat_parameters.h"

namespace levin::train {

bool FlatParameters::steps_on_host() const {
  return std::any_of(buckets_.begin(), buckets_.end(),
                     [](const Bucket& b) { return b.host.defined() && b.device.launches(); });
}

bool FlatParameters::offloads_parameters(const Bucket& b) const {
  return b.sharded && b.host.defined() && options_.offload.params != Offload::none;
}

// Gives the bucket a slice for the optimizer outside of its own device or memory, if that is wanted.
void FlatParameters::offload(Bucket& bucket) {
  const OffloadOptions& to = options_.offload;
  const bool there = bucket.device.launches() && to.optimizer != Offload::none;
  const bool in_file =
      to.params == Offload::nvme || (there && to.params == Offload::none && to.optimizer == Offload::nvme);
  if (!there && !in_file) return;
  if (in_file)
    bucket.host = options_.file->allocate({bucket.slice}, bucket.dtype);
  else if (to.pin_memory)
    bucket.host = detail::empty_pinned({bucket.slice}, bucket.dtype);
  else
    bucket.host = empty({bucket.slice}, Device::cpu(), bucket.dtype);
  const std::int64_t at = group_->rank() * bucket.slice;
  copy_(bucket.host, slice(bucket.values, 0, at, at + bucket.slice));
  gathered(bucket);
  remember_versions(bucket);
}

// What this rank gives to a gather of sharded parameters.
Tensor FlatParameters::slice_to_gather(const Bucket& b) const {
  return b.shard.defined() ? b.shard : b.host.to(b.device, NonBlocking::yes);
}

// The host's slice has been read.
void FlatParameters::gathered(const Bucket& b) const noexcept {
  if (options_.file && b.host.defined()) options_.file->rest(b.host);
}

void FlatParameters::release_host() noexcept {
  options_.file.reset();
  for (Bucket& b : buckets_) b.host = {};
  for (Parameter& p : parameters_) p.piece = {};
}

void FlatParameters::remember_versions(const Bucket& b) {
  for (const std::size_t i : b.parameters) parameters_[i].version = parameters_[i].of.value.version();
}

// A hook may write to whole parameters, whose new values the optimizer then starts from.
void FlatParameters::refresh_host() {
  const NoGrad off;
  for (Bucket& b : buckets_) {
    if (b.sharded) continue;
    const auto written = [&](std::size_t i) { return parameters_[i].version != parameters_[i].of.value.version(); };
    if (!b.host.defined() || std::none_of(b.parameters.begin(), b.parameters.end(), written)) continue;
    const std::int64_t at = group_->rank() * b.slice;
    copy_(b.host, slice(b.values, 0, at, at + b.slice));
    gathered(b);
    remember_versions(b);
  }
}

void FlatParameters::send_gradients(Bucket& bucket) {
  bucket.host_gradients = bucket.reduced.to(Device::cpu(), NonBlocking::yes);
  held_ -= slice_bytes(bucket, bucket.dtype);
}

// The one wait of a pass.
void FlatParameters::receive_gradients() {
  Device waited = Device::cpu();
  for (Bucket& b : buckets_) {
    if (!b.host_gradients.defined()) continue;
    if (b.device != waited) Stream::current(waited = b.device).synchronize();
    take_over(b, std::exchange(b.host_gradients, {}));
  }
}

// Copies the optimizer's values to the device, where ranks gather them.
dist::Work FlatParameters::bring_back(Bucket& b) {
  if (offloads_parameters(b)) {
    gathered(b);
    return {};
  }
  const Tensor mine = b.host.to(b.device, NonBlocking::yes);
  gathered(b);
  if (!b.sharded) return group_->all_gather(b.values, mine);
  b.shard = mine;
  return {};
}

}  // namespace levin::train
