// When units of parameters have memory: Note [Units of parameters] in flat_parameters.h.
#include <algorithm>
#include <utility>

#include "autograd/leaf_dtype.h"
#include "levin/nn/module.h"
#include "levin/ops.h"
#include "train/run/scope.h"
#include "train/strategy/flat_parameters.h"

namespace levin::train {
namespace {

std::string text_of(const nn::Module& module) {
  const std::string path = module.path();
  return path.empty() ? module.type_name() : path;
}

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

// ---- The memory of units

void FlatParameters::hold_parameters(std::int64_t bytes) {
  parameter_bytes_ += bytes;
  report_.peak_parameters = std::max(report_.peak_parameters, parameter_bytes_);
}

// Gives the bucket's parameters memory in `values`, and its dtype.
void FlatParameters::place(Bucket& b, const Tensor& values) {
  std::byte* const memory = values.get().storage->data;
  for (const std::size_t i : b.parameters) {
    const Tensor& value = parameters_[i].of.value;
    detail::Storage& own = *value.get().storage;
    own.data = memory + parameters_[i].at * static_cast<std::int64_t>(itemsize(values.dtype()));
    own.bytes = static_cast<std::size_t>(value.numel()) * itemsize(values.dtype());
    own.device = values.device();
    if (value.dtype() != values.dtype()) set_leaf_dtype(value, values.dtype());
  }
}

void FlatParameters::displace(Bucket& b) noexcept {
  for (const std::size_t i : b.parameters) {
    detail::Storage& own = *parameters_[i].of.value.get().storage;
    own.data = nullptr;
    own.device = Device::meta();
  }
}

// Begins to gather a unit that has no memory.
void FlatParameters::start_gather(std::size_t unit) {
  Unit& u = units_[unit];
  if (u.gathered || std::exchange(u.on_its_way, true)) return;
  const NoGrad off;
  try {
    for (const std::size_t k : u.buckets) {
      Bucket& b = buckets_[k];
      if (!b.sharded) continue;
      b.values = empty({group_->size() * b.slice}, b.device, b.computes);
      hold_parameters(bytes_of(b, b.computes));
      b.gathering = group_->all_gather(b.values, slice_to_gather(b).to(b.computes));
      report_.gathered += bytes_of(b, b.computes);
    }
  } catch (...) {
    drop_memory(unit);
    throw;
  }
}

void FlatParameters::have_memory(std::size_t unit) {
  Unit& u = units_[unit];
  if (u.gathered) return;
  start_gather(unit);
  try {
    for (const std::size_t k : u.buckets) {
      Bucket& b = buckets_[k];
      if (!b.sharded) continue;
      std::exchange(b.gathering, {}).wait();
      gathered(b);
      if (!b.wide.defined()) place(b, b.values);
    }
  } catch (...) {
    drop_memory(unit);
    throw;
  }
  u.on_its_way = false;
  u.gathered = true;
}

void FlatParameters::gather_unit(std::size_t unit) {
  if (!options_.shards_parameters) return;
  units_[unit].wanted = true;
  have_memory(unit);
}

void FlatParameters::drop_memory(std::size_t unit) noexcept {
  Unit& u = units_[unit];
  if (!u.gathered && !u.on_its_way) return;
  for (const std::size_t k : u.buckets) {
    Bucket& b = buckets_[k];
    if (!b.sharded || !b.values.defined()) continue;
    try {
      std::exchange(b.gathering, {}).wait();  // it reads the slice, which the optimizer changes
    } catch (...) {                           // the next collective throws it, too
    }
    if (!b.wide.defined()) displace(b);
    b.values = {};
    hold_parameters(-bytes_of(b, b.computes));
  }
  u.gathered = u.on_its_way = false;
}

void FlatParameters::free_unit(std::size_t unit) noexcept {
  units_[unit].wanted = false;
  if (unsharded_ == 0) drop_memory(unit);
}

void FlatParameters::end_units() noexcept {
  for (std::size_t u = 0; u < units_.size(); ++u) free_unit(u);
}

void FlatParameters::unshard() {
  if (unsharded_++ > 0 || !options_.shards_parameters || released_) return;
  for (std::size_t u = 0; u < units_.size(); ++u) gather_whole(u);
}

// All elements as slices have them, in their dtype.
void FlatParameters::gather_whole(std::size_t unit) {
  if (!converts()) return have_memory(unit);
  const NoGrad off;
  for (const std::size_t k : units_[unit].buckets) {
    Bucket& b = buckets_[k];
    if (!b.sharded || b.wide.defined()) continue;
    const Tensor wide = empty({group_->size() * b.slice}, b.device, b.dtype);
    group_->all_gather(wide, slice_to_gather(b)).wait();
    gathered(b);
    b.wide = wide;
    hold_parameters(bytes_of(b, b.dtype));
    report_.gathered += bytes_of(b, b.dtype);
    place(b, wide);
  }
}

// Units that a pass has open keep their memory: a module may save a checkpoint within its step.
void FlatParameters::reshard() {
  if (--unsharded_ > 0 || !options_.shards_parameters || released_) return;
  const NoGrad off;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    for (const std::size_t k : units_[u].buckets) {
      Bucket& b = buckets_[k];
      if (!b.sharded || !whole_values(b).defined()) continue;
      const std::int64_t at = group_->rank() * b.slice;
      if (converts() || units_[u].gathered) {
        for (Tensor* own : {&b.shard, &b.host}) {
          if (own->defined()) copy_(*own, slice(whole_values(b), 0, at, at + b.slice));
        }
        gathered(b);
      }
      if (!converts()) continue;
      if (units_[u].gathered) {
        copy_(b.values, b.wide.to(b.computes));
        place(b, b.values);
      } else {
        displace(b);
        for (const std::size_t i : b.parameters) set_leaf_dtype(parameters_[i].of.value, b.computes);
      }
      b.wide = {};
      hold_parameters(-bytes_of(b, b.dtype));
    }
    if (!units_[u].wanted) drop_memory(u);
  }
}

void FlatParameters::called(const nn::Module& module) {
  const auto at = unit_of_.find(&module);
  if (at == unit_of_.end()) return;
  const std::size_t unit = at->second;
  if (++units_[unit].open > 1) return;  // nn::Sequential reports its children, and they report themselves
  if (in_backward_) return gather_unit(unit);
  // Ranks that predict a call in vain all do: they make the same calls.
  if (const std::size_t predicted = std::exchange(prefetched_, kRest); predicted != kRest && predicted != unit) {
    if (!units_[predicted].wanted) free_unit(predicted);
  }
  const std::size_t call = order_.size();
  follows_ = follows_ && call < before_.size() && before_[call] == unit;
  order_.push_back(unit);
  ++units_[unit].calls;
  gather_unit(unit);
  if (!options_.forward_prefetch || !follows_ || call + 1 == before_.size()) return;
  prefetched_ = before_[call + 1];
  start_gather(prefetched_);
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
  follows_ = true;
  prefetched_ = kRest;
  for (Unit& u : units_) u.calls = u.open = 0;
  end_units();  // of a pass that an exception ended
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

// Ranks that called units in different orders have gathered slices of different parameters, and copies would average
// different gradients.
void FlatParameters::compare_order() {
  if (order_ == before_) return;
  std::string mine;
  for (const std::size_t u : order_) mine += (mine.empty() ? "" : ", ") + text_of(*options_.units[u - 1]);
  const auto compare = [&](dist::ProcessGroup& among, const char* who, const char* of) {
    const std::vector<std::string> all = among.gather_text(mine);
    for (std::size_t r = 1; r < all.size(); ++r) {
      if (all[r] != all[0])
        fail<CommError>("fit: ", who, " 0 and ", r, " of ", of, " call their modules in different orders: ", all[0],
                        " and ", all[r], "; sharded parameters need the same calls on every rank");
    }
  };
  compare(*group_, "ranks", "a group");
  if (options_.copies) compare(*options_.copies, "copies", "the parameters");
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

// Gathers what backward needs, and begins to gather what it needs after that.
void FlatParameters::advance() {
  if (!options_.shards_parameters) return;
  bool present = false;
  for (std::size_t k = order_.size(); k-- > 0;) {
    const Unit& unit = units_[order_[k]];
    const bool announces = trains(unit);
    if (announces && completed(unit)) continue;
    if (present) return start_gather(order_[k]);
    gather_unit(order_[k]);
    if (!announces || unit.calls != 1) continue;
    if (!options_.backward_prefetch) return;
    present = true;
  }
}

void FlatParameters::backward(const Tensor& loss, SyncGrad sync) {
  leave_homes();
  if (sync == SyncGrad::no && !options_.reduces_each_batch) return levin::backward(loss);
  const Restore reducing(active_, true);
  compare_order();
  begin();
  if (options_.shards_parameters) {
    const Restore there(in_backward_, true);
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

}  // namespace levin::train
