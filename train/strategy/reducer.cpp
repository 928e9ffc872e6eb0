// Note [Buckets] is in reducer.h.
#include "train/strategy/reducer.h"

#include <algorithm>
#include <set>
#include <unordered_set>
#include <utility>

#include "autograd/home.h"
#include "levin/ops.h"
#include "train/run/scope.h"

namespace levin::train {
namespace {

constexpr std::int64_t kFirstBytes = 1 << 20;
constexpr std::int64_t kAlign = 64;  // bytes: kernels load whole cache lines

std::int64_t bytes_of(const Tensor& t) { return t.numel() * static_cast<std::int64_t>(itemsize(t.dtype())); }
std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// A part of `flat` like `like`, with a version counter of its own.
Tensor part_of(const Tensor& flat, std::int64_t byte, const Tensor& like) {
  const auto size = static_cast<std::int64_t>(itemsize(flat.dtype()));
  Tensor t = view(slice(flat, 0, byte / size, byte / size + like.numel()), Dims(like.shape().dims()));
  const detail::Ref<detail::Storage> whole = flat.get().storage;
  t.get().storage =
      detail::Storage::carve(whole, static_cast<std::size_t>(byte), static_cast<std::size_t>(bytes_of(like)));
  t.get().offset = 0;
  return t;
}

DType travels_as(CommHook hook, DType dtype) {
  if (hook == CommHook::none || hook == CommHook::powersgd || itemsize(dtype) <= 2) return dtype;
  return hook == CommHook::fp16 ? DType::f16 : DType::bf16;
}

}  // namespace

Reducer::Reducer(std::shared_ptr<dist::ProcessGroup> group, std::vector<Member> members, const DdpOptions& options)
    : group_(std::move(group)), options_(options) {
  std::set<std::uint64_t> sets;
  for (Member& m : members) {
    sets.insert(m.optimizers);
    parameters_.push_back({.of = std::move(m)});
  }
  admit();
  if (options_.comm_hook == CommHook::powersgd) power_sgd_.emplace(group_, options_.powersgd);
  if (!options_.find_unused_parameters || options_.static_graph) passes_before_rebuild_ = sets.size();
  if (!parameters_.empty())
    used_ = zeros({static_cast<std::int64_t>(parameters_.size())}, parameters_.front().of.value.device(), DType::u8);
}

Reducer::~Reducer() {
  for (Parameter& p : parameters_) {
    if (!p.has_home) continue;
    p.hook.remove();
    set_gradient_home(p.of.value, {});
  }
}

// Fills buckets with the parameters in this order. Gradients that are set move along.
void Reducer::build(const std::vector<std::size_t>& order) {
  struct Key {
    DType dtype;
    Device device;
    std::uint64_t optimizers;
    bool operator==(const Key&) const = default;
  };
  struct Open {
    Key key;
    std::size_t bucket;
    std::int64_t bytes, most;
  };
  const auto cap = static_cast<std::int64_t>(options_.bucket_cap_mb * (1 << 20));
  std::vector<Bucket> made;
  std::vector<Open> open;
  for (const std::size_t i : order) {
    const Tensor& value = parameters_[i].of.value;
    const Key key{value.dtype(), value.device(), parameters_[i].of.optimizers};
    const std::int64_t bytes = aligned(bytes_of(value));
    auto at = std::find_if(open.begin(), open.end(), [&](const Open& o) { return o.key == key; });
    if (at == open.end()) {
      made.emplace_back();
      at = open.insert(open.end(), {key, made.size() - 1, 0, std::min(kFirstBytes, cap)});
    } else if (at->bytes > 0 && at->bytes + bytes > at->most) {
      made.emplace_back();
      *at = {key, made.size() - 1, 0, cap};
    }
    made[at->bucket].parameters.push_back(i);
    at->bytes += bytes;
  }
  for (std::size_t b = 0; b < made.size(); ++b) {
    Bucket& bucket = made[b];
    const Tensor& first = parameters_[bucket.parameters.front()].of.value;
    std::int64_t bytes = 0;
    for (const std::size_t i : bucket.parameters) bytes += aligned(bytes_of(parameters_[i].of.value));
    // Zeros, because all of a bucket travels, also what lies between its parts.
    bucket.flat = zeros({bytes / static_cast<std::int64_t>(itemsize(first.dtype()))}, first.device(), first.dtype());
    std::int64_t at = 0;
    for (const std::size_t i : bucket.parameters) {
      Parameter& p = parameters_[i];
      p.home = part_of(bucket.flat, at, p.of.value);
      p.bucket = b;
      at += aligned(bytes_of(p.of.value));
      set_gradient_home(p.of.value, p.home);
      (void)move_gradient_home(p.of.value);
      if (!std::exchange(p.has_home, true))
        p.hook = on_gradient_complete(p.of.value, [this, i](const Tensor&) { arrived(i); });
    }
  }
  buckets_ = std::move(made);
  report_.buckets = static_cast<std::int64_t>(buckets_.size());
}

void Reducer::admit() {
  const auto begins = [](const Parameter& p) { return !p.has_home && p.of.value.requires_grad(); };
  if (std::none_of(parameters_.begin(), parameters_.end(), begins)) return;
  std::vector<std::size_t> order;
  for (std::size_t i = parameters_.size(); i-- > 0;) {
    if (parameters_[i].has_home || begins(parameters_[i])) order.push_back(i);
  }
  build(order);
}

void Reducer::rebuild() {
  std::string mine;
  for (const std::size_t i : completed_) mine += text(i) + " ";
  const std::string first = group_->broadcast_text(mine);
  std::vector<std::size_t> order;
  std::vector<char> listed(parameters_.size(), 0);
  const auto take = [&](std::size_t i) {
    if (i < parameters_.size() && parameters_[i].has_home && !std::exchange(listed[i], 1)) order.push_back(i);
  };
  std::size_t number = 0;
  for (const char c : first) {
    if (c == ' ') {
      take(number);
      number = 0;
    } else {
      number = number * 10 + static_cast<std::size_t>(c - '0');
    }
  }
  for (std::size_t i = parameters_.size(); i-- > 0;) take(i);
  build(order);
}

void Reducer::backward(const Tensor& loss, SyncGrad sync) {
  admit();
  if (sync == SyncGrad::no) return levin::backward(loss);
  if (std::exchange(rebuild_due_, false) && buckets_.size() > 1) rebuild();
  const Restore reducing(active_, true);
  begin(loss);
  levin::backward(loss);
  finish();
}

std::string Reducer::signature() const {
  std::string flags;
  for (const Parameter& p : parameters_) flags += p.part == Part::outside ? '0' : '1';
  return flags;
}

void Reducer::begin(const Tensor& loss) {
  next_ = 0;
  for (Bucket& b : buckets_) {
    b.waiting = 0;
    b.takes_part = false;
    b.work = {};
    b.sent = {};
    b.round.reset();
  }
  newest_.reset();
  compresses_ = power_sgd_ && passes_++ >= options_.powersgd.start_powerSGD_iter;
  for (Parameter& p : parameters_) p.part = p.of.value.requires_grad() ? Part::awaited : Part::outside;
  for (Parameter& p : parameters_) {
    if (p.part == Part::outside) continue;
    buckets_[p.bucket].takes_part = true;
    ++buckets_[p.bucket].waiting;
  }
  if (options_.static_graph) {
    const std::string now = signature();
    const auto known = std::find_if(learnt_.begin(), learnt_.end(), [&](const auto& l) { return l.first == now; });
    if (known != learnt_.end()) {
      for (std::size_t i = 0; i < parameters_.size(); ++i) {
        if (known->second[i] == '1') leave_out(parameters_[i]);
      }
    }
  } else if (options_.find_unused_parameters) {
    find_unused(loss);
  }
  issue_complete();
}

// The leaves that the loss does not lead to receive nothing.
void Reducer::find_unused(const Tensor& loss) {
  std::unordered_set<const Node*> seen;
  std::vector<Node*> open;
  const auto meet = [&](const Edge& e) {
    if (e.node && seen.insert(e.node.get()).second) open.push_back(e.node.get());
  };
  const Edge root = edge_of(loss);
  meet(root);
  while (!open.empty()) {
    Node* const node = open.back();
    open.pop_back();
    for (const Edge& e : node->edges()) meet(e);
  }
  for (Parameter& p : parameters_) {
    if (p.part == Part::awaited && !seen.contains(edge_of(p.of.value).node.get())) leave_out(p);
  }
}

// A gradient of an earlier batch of the window counts as it is.
void Reducer::leave_out(Parameter& p) {
  p.part = Part::unused;
  if (p.of.value.grad().defined())
    (void)move_gradient_home(p.of.value);
  else
    fill_(p.home, 0);
  --buckets_[p.bucket].waiting;
}

void Reducer::arrived(std::size_t parameter) {
  if (!active_) return;
  Parameter& p = parameters_[parameter];
  if (p.part == Part::unused && options_.static_graph)
    fail<StateError>("backward: ", p.of.name, " gets a gradient on rank ", group_->rank(),
                     " and got none in the first pass, and static_graph promises that this stays; set "
                     "find_unused_parameters instead");
  if (p.part != Part::awaited) return;
  (void)move_gradient_home(p.of.value);
  p.part = Part::arrived;
  if (passes_before_rebuild_ > 0 && std::find(completed_.begin(), completed_.end(), parameter) == completed_.end())
    completed_.push_back(parameter);
  --buckets_[p.bucket].waiting;
  issue_complete();
}

void Reducer::issue_complete() {
  for (; next_ < buckets_.size() && buckets_[next_].waiting == 0; ++next_) {
    if (buckets_[next_].takes_part) issue(buckets_[next_]);
  }
}

void Reducer::issue(Bucket& bucket) {
  if (compresses_) return issue_compressed(bucket);
  const NoGrad off;
  const DType as = travels_as(options_.comm_hook, bucket.flat.dtype());
  if (as == bucket.flat.dtype()) {
    bucket.sent = bucket.flat;
    bucket.work = group_->all_reduce(bucket.sent, dist::ReduceOp::average);
  } else {
    // Divided first: a sum of 16-bit gradients may overflow where their average does not.
    bucket.sent = (bucket.flat / static_cast<double>(group_->size())).to(as);
    bucket.work = group_->all_reduce(bucket.sent);
  }
  ++report_.reductions;
  report_.bytes += bytes_of(bucket.sent);
}

// Gradients of other passes that lie in the bucket are averages already, and go as they are.
void Reducer::issue_compressed(Bucket& bucket) {
  std::vector<PowerSgd::Gradient> gradients;
  for (const std::size_t i : bucket.parameters) {
    const Parameter& p = parameters_[i];
    gradients.push_back({.parameter = i, .home = p.home, .compresses = p.part != Part::outside});
  }
  bucket.round = power_sgd_->begin(std::move(gradients));
  if (newest_) power_sgd_->turn(*newest_);
  newest_ = bucket.round;
  ++report_.reductions;
  report_.bytes += PowerSgd::bytes(*bucket.round);
}

// The group is aborted at once: other ranks may wait for a bucket that this one never issues.
void Reducer::fail_missing(const std::vector<std::size_t>& missing) const {
  constexpr std::size_t kMost = 8;
  std::string names;
  for (std::size_t k = 0; k < std::min(kMost, missing.size()); ++k)
    names += (k > 0 ? ", " : "") + parameters_[missing[k]].of.name;
  if (missing.size() > kMost) names += " and " + text(missing.size() - kMost) + " more";
  const std::string what =
      "backward: rank " + text(group_->rank()) + " has no gradient for " + names +
      (options_.static_graph
           ? "; the first pass had, and static_graph promises that this stays: set find_unused_parameters instead"
           : "; freeze what the loss does not use, or set find_unused_parameters (strategy = "
             "\"ddp_find_unused_parameters_true\")");
  group_->abort(what);
  fail<StateError>(what);
}

// What backward left out, although it was awaited.
void Reducer::settle_missing() {
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].part == Part::awaited) missing.push_back(i);
  }
  bool may_miss = options_.find_unused_parameters;  // the graph led to a leaf, and nothing flowed there
  if (options_.static_graph) {
    const std::string now = signature();
    may_miss = std::none_of(learnt_.begin(), learnt_.end(), [&](const auto& l) { return l.first == now; });
    if (may_miss) {
      std::string unused(parameters_.size(), '0');
      for (const std::size_t i : missing) unused[i] = '1';
      learnt_.emplace_back(now, std::move(unused));
    }
  }
  if (missing.empty()) return;
  if (!may_miss) fail_missing(missing);
  for (const std::size_t i : missing) leave_out(parameters_[i]);
  issue_complete();
}

void Reducer::finish() {
  const NoGrad off;
  settle_missing();
  const bool may_miss = options_.find_unused_parameters || options_.static_graph;
  dist::Work of_used;
  std::vector<std::uint8_t> used;
  if (may_miss) {
    // A parameter that no rank used keeps no gradient: a gradient of 0 would move it by momentum and weight decay.
    used.resize(parameters_.size());
    for (std::size_t i = 0; i < used.size(); ++i) used[i] = parameters_[i].of.value.grad().defined() ? 1 : 0;
    copy_(used_, from_data(used, {static_cast<std::int64_t>(used.size())}, Device::cpu()));
    of_used = group_->all_reduce(used_, dist::ReduceOp::max);
  }
  if (newest_) power_sgd_->turn(*newest_);
  if (may_miss) {
    of_used.wait();
    used = used_.to_vector<std::uint8_t>();
  }
  for (Bucket& b : buckets_) {
    if (!b.takes_part) continue;
    if (b.round) power_sgd_->finish(*b.round, used);
    b.work.wait();
    if (b.sent.defined() && b.sent.impl() != b.flat.impl()) copy_(b.flat, b.sent);
    b.sent = {};
    b.work = {};
    b.round.reset();
    for (const std::size_t i : b.parameters) parameters_[i].home.get().storage->wrote("all_reduce");
  }
  for (std::size_t i = 0; i < used.size(); ++i) {
    Parameter& p = parameters_[i];
    if (p.part == Part::unused && used[i] != 0 && !p.of.value.grad().defined()) p.of.value.set_grad(p.home);
  }
  if (!options_.gradient_as_bucket_view) {
    for (Parameter& p : parameters_) {
      if (p.part != Part::outside && p.of.value.grad().defined()) p.of.value.set_grad(p.home.clone());
    }
  }
  if (passes_before_rebuild_ > 0) rebuild_due_ = --passes_before_rebuild_ == 0;
}

// ---- For checkpoints

NamedTensors Reducer::state() const {
  if (!power_sgd_) return {};
  NamedTensors all = {{"powersgd.passes", from_data<std::int64_t>({passes_}, {1}, Device::cpu())}};
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    for (const auto& [name, t] : power_sgd_->state(i))
      all.emplace_back("powersgd.of." + parameters_[i].of.name + "." + name, t);
  }
  return all;
}

void Reducer::load_state(const NamedTensors& state) {
  if (!power_sgd_) return;
  std::int64_t passes = 0;
  std::vector<NamedTensors> parts(parameters_.size());
  for (const auto& [name, t] : state) {
    if (name == "powersgd.passes" && t.dtype() == DType::i64 && t.numel() == 1)
      passes = std::max<std::int64_t>(0, t.to_vector<std::int64_t>().front());
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const std::string prefix = "powersgd.of." + parameters_[i].of.name + ".";
      if (name.starts_with(prefix)) parts[i].emplace_back(name.substr(prefix.size()), t);
    }
  }
  PowerSgd loaded(group_, options_.powersgd);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].empty()) loaded.load(i, parameters_[i].of.value, parts[i]);
  }
  power_sgd_.emplace(std::move(loaded));
  passes_ = passes;
}

}  // namespace levin::train
