#include "train/strategy/reducer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "levin/ops.h"

namespace levin::train {
namespace {

constexpr std::int64_t kAlign = 64;  // bytes; kernels read whole cache lines

Dims dims_of(const Tensor& t) { return Dims(std::span(t.shape().begin(), t.shape().end())); }

}  // namespace

Reducer::Reducer(std::vector<ParamRef> parameters, dist::ProcessGroup& group, std::int64_t first_bytes,
                 std::int64_t bytes, bool finds_unused)
    : group_(group), finds_unused_(finds_unused) {
  const NoGrad off;
  std::reverse(parameters.begin(), parameters.end());
  for (std::size_t begin = 0; begin < parameters.size();) {
    const DType dtype = parameters[begin].value->dtype();
    const Device device = parameters[begin].value->device();
    const auto item = static_cast<std::int64_t>(itemsize(dtype));
    const std::int64_t most = buckets_.empty() ? first_bytes : bytes;
    std::vector<std::int64_t> at;  // of each place, in elements
    std::int64_t count = 0;
    std::size_t end = begin;
    for (; end < parameters.size(); ++end) {
      const Tensor& p = *parameters[end].value;
      if (p.dtype() != dtype || p.device() != device) break;
      if (end > begin && (count + p.numel()) * item > most) break;
      at.push_back(count);
      count += (p.numel() * item + kAlign - 1) / kAlign * kAlign / item;
    }
    Bucket& bucket = buckets_.emplace_back();
    bucket.flat = zeros({count}, device, dtype);
    for (std::size_t i = begin; i < end; ++i) {
      const Tensor& p = *parameters[i].value;
      const std::int64_t from = at[i - begin];
      Place place;
      place.parameter = parameters[i];
      place.slot = view(slice(bucket.flat, 0, from, from + p.numel()), dims_of(p));
      place.hook = on_gradient_complete(
          p, [this, b = buckets_.size() - 1, k = i - begin](const Tensor& gradient) { completed(b, k, gradient); });
      bucket.places.push_back(std::move(place));
    }
    begin = end;
  }
}
Reducer::~Reducer() {
  for (Bucket& b : buckets_) {
    for (Place& p : b.places) p.hook.remove();
  }
}

void Reducer::begin() {
  forget();
  running_ = true;
  for (Bucket& b : buckets_) {
    for (Place& p : b.places) {
      p.complete = false;
      p.waited_for = p.parameter.value->requires_grad();
      b.waiting += p.waited_for;
    }
    b.used = b.waiting > 0;
  }
}

void Reducer::forget() {
  running_ = false;
  next_ = 0;
  for (Bucket& b : buckets_) {
    b.waiting = 0;
    b.work = {};
  }
}

void Reducer::completed(std::size_t bucket, std::size_t place, const Tensor& gradient) {
  Bucket& b = buckets_[bucket];
  Place& p = b.places[place];
  if (!running_ || !p.waited_for || p.complete) return;
  const NoGrad off;
  copy_(p.slot, gradient.detach());
  p.complete = true;
  if (--b.waiting == 0) issue_complete();
}

void Reducer::issue_complete() {
  for (; next_ < buckets_.size() && buckets_[next_].waiting == 0; ++next_) {
    Bucket& b = buckets_[next_];
    if (b.used) b.work = group_.all_reduce(b.flat, dist::ReduceOp::average);
  }
}

std::string Reducer::missing_text() const {
  std::string names;
  for (const Bucket& b : buckets_) {
    for (const Place& p : b.places) {
      if (p.waited_for && !p.complete) names += (names.empty() ? "" : ", ") + p.parameter.name;
    }
  }
  return names;
}

void Reducer::finish() {
  const NoGrad off;
  const std::string missing = missing_text();
  if (!finds_unused_ && !missing.empty()) {
    const std::string what = "backward: rank " + text(group_.rank()) + " has no gradient for " + missing +
                             "; freeze what the loss does not use, or set find_unused_parameters (strategy = "
                             "\"ddp_find_unused_parameters_true\")";
    group_.abort(what);
    forget();
    fail<StateError>(what);
  }
  std::vector<Tensor> used;  // f32 [places] of each bucket: 1 where a rank has a gradient
  if (finds_unused_) {
    for (Bucket& b : buckets_) {
      Tensor marks = zeros({static_cast<std::int64_t>(b.places.size())}, Device::cpu());
      for (std::size_t i = 0; i < b.places.size(); ++i) {
        Place& p = b.places[i];
        if (p.waited_for && !p.complete) fill_(p.slot, 0);
        marks.mutable_data<float>()[i] = p.complete ? 1.0f : 0.0f;
      }
      b.waiting = 0;
      used.push_back(b.used ? marks : Tensor());
    }
    issue_complete();
    for (const Tensor& marks : used) {
      if (marks.defined()) group_.all_reduce(marks, dist::ReduceOp::max).wait();
    }
  }
  for (std::size_t k = 0; k < buckets_.size(); ++k) {
    Bucket& b = buckets_[k];
    if (!b.used) continue;
    b.work.wait();
    b.work = {};
    for (std::size_t i = 0; i < b.places.size(); ++i) {
      const Place& p = b.places[i];
      if (!p.waited_for) continue;
      const bool any = !finds_unused_ || used[k].data<float>()[i] > 0;
      p.parameter.value->set_grad(any ? p.slot : Tensor());
    }
  }
  running_ = false;
  next_ = 0;
}

}  // namespace levin::train
