// A pass of flat parameters: gradients travel, and updated slices. Note [Flat parameters] is in flat_parameters.h.
#include <algorithm>
#include <utility>

#include "autograd/home.h"
#include "levin/ops.h"
#include "train/run/scope.h"
#include "train/strategy/flat_parameters.h"

namespace levin::train {
namespace {

void wrote(const Tensor& t) { t.get().storage->wrote("all_gather"); }

}  // namespace

// ---- A pass

void FlatParameters::hold(std::int64_t bytes) {
  held_ += bytes;
  report_.peak_gradients = std::max(report_.peak_gradients, held_);
}

// Before a pass that overwrites homes: gradients of pieces that an optimizer has not cleared leave them.
void FlatParameters::leave_homes() {
  if (options_.reduces_each_batch) return;
  const NoGrad off;
  for (Parameter& p : parameters_) {
    const Tensor grad = p.piece.grad();
    if (grad.defined() && grad.shares_storage(buckets_[p.bucket].gradients)) p.piece.set_grad(grad.clone());
  }
}

void FlatParameters::begin() {
  next_ = 0;
  under_way_ = nullptr;
  refresh_host();
  for (Bucket& b : buckets_) {
    b.work = {};
    b.host_gradients = {};
    b.waiting = 0;
    b.takes_part = false;
  }
  for (Parameter& p : parameters_) {
    p.part = p.of.value.requires_grad() ? Part::awaited : Part::outside;
    if (p.part == Part::outside) continue;
    buckets_[p.bucket].takes_part = true;
    ++buckets_[p.bucket].waiting;
  }
  // The slices of the window's earlier batches are the gradients of the pieces.
  held_ = 0;
  for (Bucket& b : buckets_) {
    const auto kept = [&](std::size_t i) { return parameters_[i].piece.grad().defined(); };
    if (!b.host.defined() && std::any_of(b.parameters.begin(), b.parameters.end(), kept)) hold(slice_bytes(b, b.dtype));
    if (options_.reduces_each_batch) {
      b.gradients = {};  // of a pass that an exception ended
      continue;
    }
    hold(bytes_of(b, b.dtype));
  }
  issue_complete();
}

void FlatParameters::arrived(std::size_t parameter) {
  if (!active_) return;
  Parameter& p = parameters_[parameter];
  if (p.part != Part::awaited) return;
  p.part = Part::arrived;
  Bucket& b = buckets_[p.bucket];
  if (options_.reduces_each_batch) {
    const NoGrad off;
    if (!b.gradients.defined()) {
      b.gradients = zeros({group_->size() * b.slice}, b.device, b.reduces);
      hold(bytes_of(b, b.reduces));
    }
    Tensor to = view(slice(b.gradients, 0, p.at, p.at + p.of.value.numel()), Dims(p.of.value.shape().dims()));
    copy_(to, p.of.value.grad().detach().to(b.reduces));
    p.of.value.set_grad({});
  } else {
    (void)move_gradient_home(p.of.value);
  }
  --b.waiting;
  issue_complete();
  if (b.unit == kRest || !completed(units_[b.unit])) return;
  free_unit(b.unit);
  advance();
}

void FlatParameters::issue_complete() {
  for (; next_ < issue_order_.size(); ++next_) {
    Bucket& b = buckets_[issue_order_[next_]];
    if (b.waiting > 0) return;
    if (b.takes_part) issue(b);
  }
}

void FlatParameters::issue(Bucket& bucket) {
  const NoGrad off;
  if (under_way_) settle(*std::exchange(under_way_, nullptr));
  bucket.reduced = empty({bucket.slice}, bucket.device, bucket.reduces);
  hold(slice_bytes(bucket, bucket.reduces));
  report_.reduced += bytes_of(bucket, bucket.reduces);
  bucket.work = group_->reduce_scatter(bucket.reduced, bucket.gradients, dist::ReduceOp::average);
  under_way_ = &bucket;
  if (!options_.overlaps) settle(*std::exchange(under_way_, nullptr));
}

// Takes the average over to the pieces.
void FlatParameters::settle(Bucket& bucket) {
  bucket.work.wait();
  bucket.work = {};
  if (options_.copies) options_.copies->all_reduce(bucket.reduced, dist::ReduceOp::average).wait();
  if (bucket.reduces != bucket.dtype) {
    bucket.reduced = bucket.reduced.to(bucket.dtype);
    hold(slice_bytes(bucket, bucket.dtype));
    held_ -= slice_bytes(bucket, bucket.reduces);
  }
  if (bucket.host.defined() && bucket.device.launches())
    send_gradients(bucket);
  else
    take_over(bucket, bucket.reduced);
  if (options_.reduces_each_batch) {
    held_ -= bytes_of(bucket, bucket.reduces);
    bucket.gradients = {};
  }
  bucket.reduced = {};
  bucket.changed = true;
}

void FlatParameters::take_over(Bucket& bucket, const Tensor& average) {
  const bool on_device = average.device() == bucket.device;
  Tensor from = average;
  if (!options_.reduces_each_batch && on_device) {  // it takes the place of this rank's slice in the homes
    const std::int64_t at = group_->rank() * bucket.slice;
    from = slice(bucket.gradients, 0, at, at + bucket.slice);
    copy_(from, average);
    held_ -= slice_bytes(bucket, bucket.dtype);
  }
  bool adds = false;
  for (const std::size_t i : bucket.parameters) {
    Parameter& p = parameters_[i];
    if (p.part != Part::arrived) continue;
    const Range r = piece_range(p, group_->rank());
    const std::int64_t begin = r.begin == r.end ? 0 : p.at + r.begin - group_->rank() * bucket.slice;
    const Tensor mine = slice(from, 0, begin, begin + r.end - r.begin);
    if (Tensor before = p.piece.grad(); before.defined()) {
      add_(before, mine);
      adds = true;
    } else {
      p.piece.set_grad(mine);
    }
    if (!options_.reduces_each_batch) p.of.value.set_grad({});
  }
  if (adds && options_.reduces_each_batch && on_device) held_ -= slice_bytes(bucket, bucket.dtype);
}

// The group is aborted at once: other ranks may wait for a bucket that this one never issues.
void FlatParameters::fail_missing(const std::string& names) const {
  const std::string what = "backward: rank " + text(group_->rank()) + " has no gradient for " + names +
                           "; freeze what the loss does not use, or use strategy = \"ddp_find_unused_parameters_true\"";
  group_->abort(what);
  fail<StateError>(what);
}

void FlatParameters::finish() {
  constexpr std::size_t kMost = 8;
  std::string names;
  std::size_t missing = 0;
  for (const Parameter& p : parameters_) {
    if (p.part != Part::awaited) continue;
    if (missing++ < kMost) names += (names.empty() ? "" : ", ") + p.of.name;
  }
  if (missing > kMost) names += " and " + text(missing - kMost) + " more";
  if (missing > 0) fail_missing(names);
  const NoGrad off;
  if (under_way_) settle(*std::exchange(under_way_, nullptr));
  receive_gradients();
  end_units();
}

void FlatParameters::gather() {
  const NoGrad off;
  // Units that a forward pass without a backward pass has left gathered are older than the slices now.
  if (options_.shards_parameters) end_units();
  std::vector<std::pair<Bucket*, dist::Work>> works;
  for (Bucket& b : buckets_) {
    if (!std::exchange(b.changed, false)) continue;
    if (b.host.defined())
      works.emplace_back(&b, bring_back(b));
    else
      works.emplace_back(&b, b.sharded ? dist::Work() : group_->all_gather(b.values, shard_of(b)));
  }
  for (const auto& [bucket, work] : works) {
    work.wait();
    for (const std::size_t i : bucket->parameters) wrote(parameters_[i].of.value);
    remember_versions(*bucket);
  }
}

}  // namespace levin::train
