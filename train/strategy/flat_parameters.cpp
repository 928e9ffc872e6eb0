// Note [Flat parameters] is in flat_parameters.h.
#include "train/strategy/flat_parameters.h"

#include <algorithm>
#include <utility>

#include "autograd/home.h"
#include "levin/nn/module.h"
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
std::string text_of(const nn::Module& module) {
  const std::string path = module.path();
  return path.empty() ? module.type_name() : path;
}
void wrote(const Tensor& t) { t.get().storage->wrote("all_gather"); }

}  // namespace

// Reports the calls of a pass on this thread.
class FlatParameters::Watch final : public nn::CallWatch {
 public:
  explicit Watch(FlatParameters& flat) : flat_(flat) {}
  void called(const nn::Module& module, std::span<const Tensor* const>) override { flat_.called(module); }
  void returned(const nn::Module&, std::span<const Tensor* const>) override {}
  void left(const nn::Module& module) noexcept override { flat_.left(module); }

 private:
  FlatParameters& flat_;
};

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
    for (std::size_t u = 0; u < units_.size(); ++u) gather_unit(u);
    for (Bucket& b : buckets_) {
      for (const std::size_t i : b.parameters) {
        Parameter& p = parameters_[i];
        p.of.value.get().storage = place_in(b.values, p).get().storage;
      }
      b.values = {};
    }
  } catch (...) {  // a rank is lost: the parameters stay on meta
    for (Bucket& b : buckets_) {
      if (!b.values.defined()) continue;
      for (const std::size_t i : b.parameters) {
        detail::Storage& own = *parameters_[i].of.value.get().storage;
        own.data = nullptr;
        own.device = Device::meta();
      }
      b.values = {};
    }
  }
}

void FlatParameters::build() {
  std::vector<std::size_t> open;  // buckets that take more
  const auto alike = [&](const Bucket& b, const Parameter& p) {
    return b.dtype == p.of.value.dtype() && b.device == p.of.value.device() && b.unit == p.of.unit;
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
      buckets_.push_back(
          {.parameters = {}, .unit = p.of.unit, .device = p.of.value.device(), .dtype = p.of.value.dtype()});
      at = open.insert(open.end(), buckets_.size() - 1);
    }
    Bucket& b = buckets_[*at];
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
      hold(bytes_of(bucket));
    }
    set_gradient_home(p.of.value, place_in(bucket.gradients, p));
    (void)move_gradient_home(p.of.value);
  }
  report_.largest_bucket = std::max(report_.largest_bucket, bytes_of(bucket));
  offload(bucket);
  if (!options_.shards_parameters) return hold_parameters(bytes_of(bucket));
  if (!offloads_parameters(bucket)) {
    const std::int64_t at = group_->rank() * bucket.slice;
    bucket.shard = slice(bucket.values, 0, at, at + bucket.slice).clone();
    hold_parameters(slice_bytes(bucket));
  }
  bucket.values = {};
  for (const std::size_t i : bucket.parameters) {
    detail::TensorImpl& own = parameters_[i].of.value.get();
    own.storage = detail::Storage::wrap(nullptr, own.storage->bytes, Device::meta(), {}, "sharded parameter");
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
  return options_.shards_parameters ? b.shard : slice(b.values, 0, at, at + b.slice);
}

// ---- The memory of units

void FlatParameters::hold_parameters(std::int64_t bytes) {
  parameter_bytes_ += bytes;
  report_.peak_parameters = std::max(report_.peak_parameters, parameter_bytes_);
}

void FlatParameters::gather_unit(std::size_t unit) {
  if (!options_.shards_parameters || units_[unit].gathered) return;
  const NoGrad off;
  for (const std::size_t k : units_[unit].buckets) {
    Bucket& b = buckets_[k];
    b.values = empty({group_->size() * b.slice}, b.device, b.dtype);
    hold_parameters(bytes_of(b));
    group_->all_gather(b.values, slice_to_gather(b)).wait();
    gathered(b);
    std::byte* const memory = b.values.get().storage->data;
    for (const std::size_t i : b.parameters) {
      detail::Storage& own = *parameters_[i].of.value.get().storage;
      own.data = memory + parameters_[i].at * size_of(b.values);
      own.device = b.device;
    }
  }
  units_[unit].gathered = true;
}

void FlatParameters::free_unit(std::size_t unit) noexcept {
  if (!options_.shards_parameters || unsharded_ > 0 || !std::exchange(units_[unit].gathered, false)) return;
  for (const std::size_t k : units_[unit].buckets) {
    Bucket& b = buckets_[k];
    for (const std::size_t i : b.parameters) {
      detail::Storage& own = *parameters_[i].of.value.get().storage;
      own.data = nullptr;
      own.device = Device::meta();
    }
    b.values = {};
    hold_parameters(-bytes_of(b));
  }
}

void FlatParameters::unshard() {
  if (unsharded_++ > 0 || released_) return;
  for (std::size_t u = 0; u < units_.size(); ++u) gather_unit(u);
}

void FlatParameters::reshard() {
  if (--unsharded_ > 0 || !options_.shards_parameters || released_) return;
  const NoGrad off;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    for (const std::size_t k : units_[u].buckets) {
      Bucket& b = buckets_[k];
      if (!units_[u].gathered) continue;
      const std::int64_t at = group_->rank() * b.slice;
      for (Tensor* own : {&b.shard, &b.host}) {
        if (own->defined()) copy_(*own, slice(b.values, 0, at, at + b.slice));
      }
      gathered(b);
    }
    free_unit(u);
  }
}

void FlatParameters::called(const nn::Module& module) {
  const auto at = unit_of_.find(&module);
  if (at == unit_of_.end()) return;
  Unit& unit = units_[at->second];
  ++unit.open;
  if (!in_backward_) {
    order_.push_back(at->second);
    ++unit.calls;
  }
  gather_unit(at->second);
}

void FlatParameters::left(const nn::Module& module) noexcept {
  const auto at = unit_of_.find(&module);
  if (at == unit_of_.end()) return;
  Unit& unit = units_[at->second];
  if (--unit.open > 0 || in_backward_ || !options_.frees_after_forward) return;
  if (order_.size() == before_.size() && at->second == order_.back()) return;  // backward begins with it
  free_unit(at->second);
}

StepOutput FlatParameters::forward(const Function<StepOutput()>& run) {
  if (!options_.shards_parameters) return run();
  order_.clear();
  for (std::size_t u = 0; u < units_.size(); ++u) {
    units_[u].calls = 0;
    units_[u].open = 0;
    if (u != kRest) free_unit(u);
  }
  gather_unit(kRest);
  const Watch watch(*this);
  try {
    return run();
  } catch (const DeviceError& e) {
    check_gathered(e.what());
    throw;
  }
}

// After an op's error: throws if it may have met a parameter without memory.
void FlatParameters::check_gathered(const char* error) const {
  std::string names;
  int count = 0;
  for (std::size_t u = 1; u < units_.size(); ++u) {
    if (units_[u].gathered || units_[u].buckets.empty()) continue;
    if (count++ < 3) names += (names.empty() ? "" : ", ") + text_of(*options_.units[u - 1]);
  }
  if (count == 0) return;
  const std::string what =
      std::string(error) + "; the parameters of " + names + (count > 3 ? " and others" : "") +
      " are not gathered: a module is gathered while it runs, if it reports its calls (nn::Call), and in its backward";
  group_->abort(what);
  fail<StateError>(what);
}

// Ranks that called units in different orders have gathered slices of different parameters.
void FlatParameters::compare_order() {
  if (order_ == before_) return;
  std::string mine;
  for (const std::size_t u : order_) mine += (mine.empty() ? "" : ", ") + text_of(*options_.units[u - 1]);
  const std::vector<std::string> all = group_->gather_text(mine);
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] != all[0])
      fail<CommError>("fit: ranks 0 and ", r, " of a group call their modules in different orders: ", all[0], " and ",
                      all[r], "; sharded parameters need the same calls on every rank");
  }
  before_ = order_;
  // Backward completes the units in the reverse order of their first calls, and the rest last.
  issue_order_.clear();
  const auto add = [&](std::size_t unit) {
    for (const std::size_t b : units_[unit].buckets) {
      if (std::find(issue_order_.begin(), issue_order_.end(), b) == issue_order_.end()) issue_order_.push_back(b);
    }
  };
  std::vector<std::size_t> first;
  for (const std::size_t u : order_) {
    if (std::find(first.begin(), first.end(), u) == first.end()) first.push_back(u);
  }
  for (std::size_t k = first.size(); k-- > 0;) add(first[k]);
  for (std::size_t u = units_.size(); u-- > 0;) add(u);
}

bool FlatParameters::trains(const Unit& u) const {
  return std::any_of(u.buckets.begin(), u.buckets.end(), [&](std::size_t b) { return buckets_[b].takes_part; });
}
bool FlatParameters::completed(const Unit& u) const {
  return std::all_of(u.buckets.begin(), u.buckets.end(), [&](std::size_t b) { return buckets_[b].waiting == 0; });
}

// Gathers what backward needs next.
void FlatParameters::advance() {
  if (!options_.shards_parameters) return;
  for (std::size_t k = order_.size(); k-- > 0;) {
    const Unit& unit = units_[order_[k]];
    const bool announces = trains(unit);
    if (announces && completed(unit)) continue;
    gather_unit(order_[k]);
    if (announces && unit.calls == 1) return;
  }
}

// ---- A pass

void FlatParameters::hold(std::int64_t bytes) {
  held_ += bytes;
  report_.peak_gradients = std::max(report_.peak_gradients, held_);
}

void FlatParameters::backward(const Tensor& loss, SyncGrad sync) {
  if (sync == SyncGrad::no && !options_.reduces_each_batch) return levin::backward(loss);
  const Restore reducing(active_, true);
  compare_order();
  begin();
  if (options_.shards_parameters) {
    const Restore there(in_backward_, true);
    gather_unit(kRest);  // a checkpoint that a hook has written frees it
    advance();
    const Watch watch(*this);
    try {
      levin::backward(loss);
    } catch (const DeviceError& e) {
      check_gathered(e.what());
      throw;
    }
  } else {
    levin::backward(loss);
  }
  finish();
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
    if (!b.host.defined() && std::any_of(b.parameters.begin(), b.parameters.end(), kept)) hold(slice_bytes(b));
    if (b.gradients.defined() && !options_.reduces_each_batch)
      hold(bytes_of(b));
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
  if (options_.reduces_each_batch) {
    const NoGrad off;
    if (!b.gradients.defined()) {
      b.gradients = zeros({group_->size() * b.slice}, b.device, b.dtype);
      hold(bytes_of(b));
    }
    Tensor to = view(slice(b.gradients, 0, p.at, p.at + p.of.value.numel()), Dims(p.of.value.shape().dims()));
    copy_(to, p.of.value.grad().detach());
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
  bucket.reduced = empty({bucket.slice}, bucket.device, bucket.dtype);
  hold(slice_bytes(bucket));
  bucket.work = group_->reduce_scatter(bucket.reduced, bucket.gradients, dist::ReduceOp::average);
  under_way_ = &bucket;
  if (!options_.overlaps) settle(*std::exchange(under_way_, nullptr));
}

// Takes the average over to the pieces.
void FlatParameters::settle(Bucket& bucket) {
  bucket.work.wait();
  bucket.work = {};
  if (options_.copies) options_.copies->all_reduce(bucket.reduced, dist::ReduceOp::average).wait();
  if (bucket.host.defined() && bucket.device.launches())
    send_gradients(bucket);
  else
    take_over(bucket, bucket.reduced);
  if (options_.reduces_each_batch) {
    held_ -= bytes_of(bucket);
    bucket.gradients = {};
  }
  bucket.reduced = {};
  bucket.changed = true;
}

void FlatParameters::take_over(Bucket& bucket, const Tensor& average) {
  bool adds = false;
  for (const std::size_t i : bucket.parameters) {
    Parameter& p = parameters_[i];
    if (p.part != Part::arrived) continue;
    const Range r = piece_range(p, group_->rank());
    const std::int64_t begin = r.begin == r.end ? 0 : p.at + r.begin - group_->rank() * bucket.slice;
    const Tensor mine = slice(average, 0, begin, begin + r.end - r.begin);
    if (Tensor before = p.piece.grad(); before.defined()) {
      add_(before, mine);
      adds = true;
    } else {
      p.piece.set_grad(mine);
    }
    if (!options_.reduces_each_batch) p.of.value.set_grad({});
  }
  if (adds && average.device() == bucket.device) held_ -= slice_bytes(bucket);
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
  for (std::size_t u = 0; u < units_.size(); ++u) free_unit(u);
}

void FlatParameters::gather() {
  const NoGrad off;
  std::vector<std::pair<Bucket*, dist::Work>> works;
  for (Bucket& b : buckets_) {
    if (!std::exchange(b.changed, false)) continue;
    if (b.host.defined())
      works.emplace_back(&b, bring_back(b));
    else
      works.emplace_back(&b, options_.shards_parameters ? dist::Work() : group_->all_gather(b.values, shard_of(b)));
  }
  for (const auto& [bucket, work] : works) {
    work.wait();
    for (const std::size_t i : bucket->parameters) wrote(parameters_[i].of.value);
    remember_versions(*bucket);
  }
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

}  // namespace levin::train
