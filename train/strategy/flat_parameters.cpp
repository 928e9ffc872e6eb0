// Note [Flat parameters] is in flat_parameters.h.
#include "train/strategy/flat_parameters.h"

#include <algorithm>
#include <utility>

#include "autograd/home.h"
#include "levin/ops.h"
#include "train/run/scope.h"

namespace levin::train {
namespace {

constexpr std::int64_t kLine = 64;  // bytes: kernels load whole cache lines

std::int64_t size_of(const Tensor& t) { return static_cast<std::int64_t>(itemsize(t.dtype())); }
std::int64_t elements_aligned(const Tensor& t) {
  const std::int64_t line = kLine / size_of(t);
  return (t.numel() + line - 1) / line * line;
}
void wrote(const Tensor& t) { t.get().storage->wrote("all_gather"); }

}  // namespace

FlatParameters::FlatParameters(std::shared_ptr<dist::ProcessGroup> group, std::vector<Member> members,
                               const Options& options)
    : group_(std::move(group)), each_batch_(options.reduces_each_batch) {
  for (Member& m : members) {
    report_.parameters += m.value.numel() * size_of(m.value);
    parameters_.push_back({.of = std::move(m)});
  }
  const NoGrad off;
  build(options);
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    parameters_[i].hook = on_gradient_complete(parameters_[i].of.value, [this, i](const Tensor&) { arrived(i); });
}

FlatParameters::~FlatParameters() { release(); }

void FlatParameters::release() noexcept {
  for (Parameter& p : parameters_) {
    p.hook.remove();
    if (!each_batch_) set_gradient_home(p.of.value, {});
  }
  for (Bucket& b : buckets_) {
    b.work = {};
    b.gradients = b.reduced = {};
  }
  under_way_ = nullptr;
  held_ = 0;
}

void FlatParameters::build(const Options& options) {
  std::vector<std::size_t> open;  // buckets that take more
  const auto alike = [&](const Bucket& b, const Parameter& p) {
    const Member& first = parameters_[b.parameters.front()].of;
    return first.value.dtype() == p.of.value.dtype() && first.value.device() == p.of.value.device();
  };
  for (std::size_t i = parameters_.size(); i-- > 0;) {
    Parameter& p = parameters_[i];
    const std::int64_t n = elements_aligned(p.of.value), most = options.bucket_bytes / size_of(p.of.value);
    auto at = std::find_if(open.begin(), open.end(), [&](std::size_t b) { return alike(buckets_[b], p); });
    if (at != open.end() && buckets_[*at].slice + n > most) {
      open.erase(at);
      at = open.end();
    }
    if (at == open.end()) {
      buckets_.emplace_back();
      at = open.insert(open.end(), buckets_.size() - 1);
    }
    Bucket& b = buckets_[*at];
    p.bucket = *at;
    p.at = std::exchange(b.slice, b.slice + n);  // the length so far; a slice of it below
    b.parameters.push_back(i);
  }
  for (Bucket& b : buckets_) move_in(b);
  report_.buckets = static_cast<std::int64_t>(buckets_.size());
}

// Moves the parameters into the bucket's memory.
void FlatParameters::move_in(Bucket& bucket) {
  const Tensor& first = parameters_[bucket.parameters.front()].of.value;
  const std::int64_t ranks = group_->size(), line = kLine / size_of(first);
  bucket.slice = (bucket.slice + ranks * line - 1) / (ranks * line) * line;
  bucket.values = zeros({ranks * bucket.slice}, first.device(), first.dtype());
  for (const std::size_t i : bucket.parameters) {
    Parameter& p = parameters_[i];
    const Tensor place = place_in(bucket.values, p);
    Tensor to = place;
    copy_(to, p.of.value.detach());
    detail::TensorImpl& own = p.of.value.get();
    own.storage = place.get().storage;
    own.offset = 0;
    own.strides = place.get().strides;
    own.contiguous = true;
    if (each_batch_) continue;
    if (!bucket.gradients.defined()) {
      bucket.gradients = zeros_like(bucket.values);
      hold(ranks * bucket.slice * size_of(first));
    }
    set_gradient_home(p.of.value, place_in(bucket.gradients, p));
    (void)move_gradient_home(p.of.value);
  }
  report_.largest_bucket = std::max(report_.largest_bucket, ranks * bucket.slice * size_of(first));
}

// The parameter's part of a bucket, with a version counter of its own.
Tensor FlatParameters::place_in(const Tensor& flat, const Parameter& p) const {
  const Tensor& like = p.of.value;
  Tensor t = view(slice(flat, 0, p.at, p.at + like.numel()), Dims(like.shape().dims()));
  const detail::Ref<detail::Storage> whole = flat.get().storage;
  t.get().storage = detail::Storage::carve(whole, static_cast<std::size_t>(p.at * size_of(flat)),
                                           static_cast<std::size_t>(like.numel() * size_of(flat)));
  t.get().offset = 0;
  return t;
}

FlatParameters::Range FlatParameters::piece_range(const Parameter& p, int rank) const {
  const std::int64_t slice = buckets_[p.bucket].slice, n = p.of.value.numel();
  const auto inside = [&](std::int64_t at) { return std::clamp(at - p.at, std::int64_t{0}, n); };
  return {inside(rank * slice), inside((rank + 1) * slice)};
}

const FlatParameters::Parameter* FlatParameters::find(const Tensor& value) const {
  const auto at = std::find_if(parameters_.begin(), parameters_.end(),
                               [&](const Parameter& p) { return p.of.value.impl() == value.impl(); });
  return at == parameters_.end() ? nullptr : &*at;
}

void FlatParameters::share(optim::Optimizer& optimizer) {
  const NoGrad off;
  optimizer.use_pieces([&](const ParamRef& p) {
    const Parameter* const own = find(*p.value);
    if (!own) fail<InternalError>("fit: parameter ", p.name, " is in no bucket");
    const Range r = piece_range(*own, group_->rank());
    return optim::Optimizer::Piece{slice(buckets_[own->bucket].values, 0, own->at + r.begin, own->at + r.end), r.begin};
  });
  const std::vector<ParamRef> model = optimizer.model_parameters(), pieces = optimizer.pieces();
  for (std::size_t i = 0; i < model.size(); ++i) {
    for (Parameter& p : parameters_) {
      if (p.of.value.impl() == model[i].value->impl()) p.piece = *pieces[i].value;
    }
  }
}

void FlatParameters::hold(std::int64_t bytes) {
  held_ += bytes;
  report_.peak_gradients = std::max(report_.peak_gradients, held_);
}

// ---- A pass

void FlatParameters::backward(const Tensor& loss, SyncGrad sync) {
  if (sync == SyncGrad::no && !each_batch_) return levin::backward(loss);
  const Restore reducing(active_, true);
  begin();
  levin::backward(loss);
  finish();
}

void FlatParameters::begin() {
  next_ = 0;
  under_way_ = nullptr;
  for (Bucket& b : buckets_) {
    b.work = {};
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
    if (std::any_of(b.parameters.begin(), b.parameters.end(), kept)) hold(b.slice * size_of(b.values));
    if (b.gradients.defined() && !each_batch_)
      hold(b.gradients.numel() * size_of(b.values));
    else
      b.gradients = {};  // of a pass that an exception ended
  }
  issue_complete();
}

void FlatParameters::arrived(std::size_t parameter) {
  if (!active_) return;
  Parameter& p = parameters_[parameter];
  if (p.part != Part::awaited) return;
  p.part = Part::arrived;
  Bucket& b = buckets_[p.bucket];
  if (each_batch_) {
    const NoGrad off;
    if (!b.gradients.defined()) {
      b.gradients = zeros_like(b.values);
      hold(b.gradients.numel() * size_of(b.values));
    }
    Tensor to = view(slice(b.gradients, 0, p.at, p.at + p.of.value.numel()), Dims(p.of.value.shape().dims()));
    copy_(to, p.of.value.grad().detach());
    p.of.value.set_grad({});
  } else {
    (void)move_gradient_home(p.of.value);
  }
  --b.waiting;
  issue_complete();
}

void FlatParameters::issue_complete() {
  for (; next_ < buckets_.size() && buckets_[next_].waiting == 0; ++next_) {
    if (buckets_[next_].takes_part) issue(buckets_[next_]);
  }
}

void FlatParameters::issue(Bucket& bucket) {
  const NoGrad off;
  if (under_way_) settle(*std::exchange(under_way_, nullptr));
  bucket.reduced = empty({bucket.slice}, bucket.values.device(), bucket.values.dtype());
  hold(bucket.slice * size_of(bucket.values));
  bucket.work = group_->reduce_scatter(bucket.reduced, bucket.gradients, dist::ReduceOp::average);
  under_way_ = &bucket;
}

// Takes the average over to the pieces.
void FlatParameters::settle(Bucket& bucket) {
  bucket.work.wait();
  bucket.work = {};
  bool adds = false;
  for (const std::size_t i : bucket.parameters) {
    Parameter& p = parameters_[i];
    if (p.part != Part::arrived) continue;
    const Range r = piece_range(p, group_->rank());
    const std::int64_t begin = r.begin == r.end ? 0 : p.at + r.begin - group_->rank() * bucket.slice;
    const Tensor mine = slice(bucket.reduced, 0, begin, begin + r.end - r.begin);
    if (Tensor before = p.piece.grad(); before.defined()) {
      add_(before, mine);
      adds = true;
    } else {
      p.piece.set_grad(mine);
    }
    if (!each_batch_) p.of.value.set_grad({});
  }
  if (each_batch_) {
    held_ -= bucket.gradients.numel() * size_of(bucket.values);
    bucket.gradients = {};
  }
  if (adds) held_ -= bucket.slice * size_of(bucket.values);
  bucket.reduced = {};
  bucket.changed = true;
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
}

void FlatParameters::gather() {
  const NoGrad off;
  std::vector<std::pair<Bucket*, dist::Work>> works;
  for (Bucket& b : buckets_) {
    if (!std::exchange(b.changed, false)) continue;
    const std::int64_t at = group_->rank() * b.slice;
    works.emplace_back(&b, group_->all_gather(b.values, slice(b.values, 0, at, at + b.slice)));
  }
  for (const auto& [bucket, work] : works) {
    work.wait();
    for (const std::size_t i : bucket->parameters) wrote(parameters_[i].of.value);
  }
}

// ---- For checkpoints

Tensor FlatParameters::whole(const Tensor& piece, const Tensor& of) {
  const Parameter* const p = find(of);
  if (!p) return piece;
  const NoGrad off;
  std::int64_t most = 0;
  for (int r = 0; r < group_->size(); ++r) most = std::max(most, piece_range(*p, r).end - piece_range(*p, r).begin);
  Tensor mine = zeros({most}, piece.device(), piece.dtype());
  Tensor place = slice(mine, 0, 0, piece.numel());
  copy_(place, piece.detach());
  const Tensor all = empty({group_->size() * most}, piece.device(), piece.dtype());
  group_->all_gather(all, mine).wait();
  if (group_->rank() != 0) return {};
  std::vector<Tensor> parts;
  for (int r = 0; r < group_->size(); ++r) {
    const Range range = piece_range(*p, r);
    parts.push_back(slice(all, 0, r * most, r * most + range.end - range.begin));
  }
  return reshape(cat(parts), Dims(of.shape().dims())).to(Device::cpu());
}

Tensor FlatParameters::piece(const Tensor& whole, const Tensor& of) const {
  const Parameter* const p = find(of);
  if (!p || whole.shape() != of.shape()) return whole;
  const NoGrad off;
  const Range r = piece_range(*p, group_->rank());
  return slice(reshape(whole.detach(), {whole.numel()}), 0, r.begin, r.end).clone();
}

}  // namespace levin::train
