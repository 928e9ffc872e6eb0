// The layout of flat parameters, and what checkpoints read. Note [Flat parameters] is in flat_parameters.h.
#include "train/strategy/flat_parameters.h"

#include <algorithm>
#include <utility>

#include "autograd/home.h"
#include "autograd/leaf_dtype.h"
#include "levin/nn/module.h"
#include "levin/ops.h"

namespace levin::train {
namespace {

constexpr std::int64_t kLine = 64;  // bytes: kernels load whole cache lines

std::int64_t size_of(const Tensor& t) { return static_cast<std::int64_t>(itemsize(t.dtype())); }
std::int64_t elements_aligned(const Tensor& t) {
  const std::int64_t line = kLine / size_of(t);
  return (t.numel() + line - 1) / line * line;
}

}  // namespace

FlatParameters::FlatParameters(std::shared_ptr<dist::ProcessGroup> group, std::vector<Member> members, Options options)
    : group_(std::move(group)), options_(std::move(options)) {
  for (Member& m : members) {
    report_.parameters += m.value.numel() * size_of(m.value);
    parameters_.push_back({.of = std::move(m)});
  }
  units_.resize(options_.units.size() + 1);
  for (std::size_t u = 0; u < options_.units.size(); ++u) unit_of_.emplace(options_.units[u], u + 1);
  const NoGrad off;
  build();
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    parameters_[i].hook = on_gradient_complete(parameters_[i].of.value, [this, i](const Tensor&) { arrived(i); });
}

FlatParameters::~FlatParameters() { release(); }

void FlatParameters::release() noexcept {
  if (std::exchange(released_, true)) return;
  for (Parameter& p : parameters_) {
    p.hook.remove();
    if (!options_.reduces_each_batch) set_gradient_home(p.of.value, {});
  }
  for (Bucket& b : buckets_) {
    b.work = {};
    b.gradients = b.reduced = b.host_gradients = {};
  }
  under_way_ = nullptr;
  held_ = 0;
  if (!options_.shards_parameters) return;
  try {
    const NoGrad off;
    for (std::size_t u = 0; u < units_.size(); ++u) gather_whole(u);
    for (Bucket& b : buckets_) {
      if (!b.sharded) continue;
      for (const std::size_t i : b.parameters) {
        Parameter& p = parameters_[i];
        p.of.value.get().storage = place_in(whole_values(b), p).get().storage;
      }
      b.values = b.wide = {};
    }
  } catch (...) {  // a rank is lost: the parameters stay on meta
    for (std::size_t u = 0; u < units_.size(); ++u) drop_memory(u);
    for (Bucket& b : buckets_) {
      if (!b.sharded) continue;
      displace(b);
      b.wide = {};
      for (const std::size_t i : b.parameters) set_leaf_dtype(parameters_[i].of.value, b.dtype);
    }
  }
}

void FlatParameters::build() {
  std::vector<std::size_t> open;  // buckets that take more
  const auto alike = [&](const Bucket& b, const Parameter& p) {
    return b.dtype == p.of.value.dtype() && b.device == p.of.value.device() && b.unit == p.of.unit &&
           b.sharded == (options_.shards_parameters && !p.of.ignored);
  };
  for (std::size_t i = parameters_.size(); i-- > 0;) {
    Parameter& p = parameters_[i];
    const std::int64_t n = elements_aligned(p.of.value), most = options_.bucket_bytes / size_of(p.of.value);
    auto at = std::find_if(open.begin(), open.end(), [&](std::size_t b) { return alike(buckets_[b], p); });
    if (at != open.end() && buckets_[*at].slice + n > most) {
      open.erase(at);
      at = open.end();
    }
    if (at == open.end()) {
      buckets_.push_back({.parameters = {},
                          .unit = p.of.unit,
                          .device = p.of.value.device(),
                          .dtype = p.of.value.dtype(),
                          .sharded = options_.shards_parameters && !p.of.ignored,
                          .computes = p.of.value.dtype(),
                          .reduces = p.of.value.dtype()});
      at = open.insert(open.end(), buckets_.size() - 1);
    }
    Bucket& b = buckets_[*at];
    if (b.sharded) {
      b.computes = options_.param.value_or(b.dtype);
      b.reduces = options_.reduce.value_or(b.computes);
    }
    p.bucket = *at;
    p.at = std::exchange(b.slice, b.slice + n);  // the length so far; a slice of it below
    b.parameters.push_back(i);
  }
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    units_[buckets_[b].unit].buckets.push_back(b);
    move_in(buckets_[b]);
  }
  for (std::size_t u = units_.size(); u-- > 0;)
    issue_order_.insert(issue_order_.end(), units_[u].buckets.begin(), units_[u].buckets.end());
  report_.buckets = static_cast<std::int64_t>(buckets_.size());
}

// Moves the parameters into the bucket's memory.
void FlatParameters::move_in(Bucket& bucket) {
  const std::int64_t ranks = group_->size(), line = kLine / static_cast<std::int64_t>(itemsize(bucket.dtype));
  bucket.slice = (bucket.slice + ranks * line - 1) / (ranks * line) * line;
  bucket.values = zeros({ranks * bucket.slice}, bucket.device, bucket.dtype);
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
    if (options_.reduces_each_batch) continue;
    if (!bucket.gradients.defined()) {
      bucket.gradients = zeros_like(bucket.values);
      hold(bytes_of(bucket, bucket.dtype));
    }
    set_gradient_home(p.of.value, place_in(bucket.gradients, p));
    (void)move_gradient_home(p.of.value);
  }
  report_.largest_bucket = std::max(report_.largest_bucket, bytes_of(bucket, bucket.dtype));
  offload(bucket);
  if (!bucket.sharded) return hold_parameters(bytes_of(bucket, bucket.dtype));
  if (!offloads_parameters(bucket)) {
    const std::int64_t at = group_->rank() * bucket.slice;
    bucket.shard = slice(bucket.values, 0, at, at + bucket.slice).clone();
    hold_parameters(slice_bytes(bucket, bucket.dtype));
  }
  bucket.values = {};
  for (const std::size_t i : bucket.parameters) {
    detail::TensorImpl& own = parameters_[i].of.value.get();
    own.storage = detail::Storage::wrap(nullptr, own.storage->bytes, Device::meta(), {}, "sharded parameter");
    if (bucket.computes != bucket.dtype) set_leaf_dtype(parameters_[i].of.value, bucket.computes);
  }
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
    const Bucket& b = buckets_[own->bucket];
    const std::int64_t first = r.begin == r.end ? 0 : own->at + r.begin - group_->rank() * b.slice;
    return optim::Optimizer::Piece{slice(shard_of(b), 0, first, first + r.end - r.begin), r.begin};
  });
  const std::vector<ParamRef> model = optimizer.model_parameters(), pieces = optimizer.pieces();
  for (std::size_t i = 0; i < model.size(); ++i) {
    for (Parameter& p : parameters_) {
      if (p.of.value.impl() == model[i].value->impl()) p.piece = *pieces[i].value;
    }
  }
}

// This rank's slice: what its optimizers update.
Tensor FlatParameters::shard_of(const Bucket& b) const {
  if (b.host.defined()) return b.host;
  const std::int64_t at = group_->rank() * b.slice;
  return b.sharded ? b.shard : slice(b.values, 0, at, at + b.slice);
}

FlatParameters::Report FlatParameters::report() const {
  Report all = report_;
  const auto bytes = [](const Tensor& t) {
    return t.defined() ? t.numel() * static_cast<std::int64_t>(itemsize(t.dtype())) : 0;
  };
  for (const Bucket& b : buckets_) {
    all.held_parameters += bytes(b.values) + bytes(b.wide) + bytes(b.shard);
    all.held_gradients += bytes(b.gradients) + bytes(b.reduced);
    if (!options_.reduces_each_batch) continue;  // gradients of pieces lie in the homes
    for (const std::size_t i : b.parameters) {
      if (const Tensor& piece = parameters_[i].piece; piece.defined()) all.held_gradients += bytes(piece.grad());
    }
  }
  return all;
}

// ---- For checkpoints

Tensor FlatParameters::whole(const Tensor& piece, const Tensor& of) {
  const Parameter* const p = find(of);
  if (!p) return piece;
  const NoGrad off;
  std::int64_t most = 0;
  for (int r = 0; r < group_->size(); ++r) most = std::max(most, piece_range(*p, r).end - piece_range(*p, r).begin);
  const Device device = buckets_[p->bucket].device;  // of offloaded pieces, too
  Tensor mine = zeros({most}, device, piece.dtype());
  Tensor place = slice(mine, 0, 0, piece.numel());
  copy_(place, piece.detach());
  if (options_.file) options_.file->rest(piece);
  const Tensor all = empty({group_->size() * most}, device, piece.dtype());
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

std::pair<std::int64_t, std::int64_t> FlatParameters::piece_range(const Tensor& of) const {
  const Parameter* const p = find(of);
  if (!p) return {0, of.numel()};
  const Range r = piece_range(*p, group_->rank());
  return {r.begin, r.end};
}

}  // namespace levin::train
