// DdpStrategy: when its reducer is made, and what it is asked.
#include "levin/train/ddp_strategy.h"

#include <map>
#include <utility>

#include "levin/ops.h"
#include "train/strategy/flat_copies.h"
#include "train/strategy/reducer.h"

namespace levin {

DdpStrategy::DdpStrategy(DdpOptions options) : ProcessStrategy(options.process), ddp_(std::move(options)) {
  if (!(ddp_.bucket_cap_mb > 0))
    fail<ConfigError>("DdpStrategy: bucket_cap_mb is ", ddp_.bucket_cap_mb, ", expected more than 0");
}
DdpStrategy::~DdpStrategy() = default;

void DdpStrategy::attach_model(TrainModule& module, nn::Module* tree, Stage stage) {
  ProcessStrategy::attach_model(module, tree, stage);
  tree_ = stage == Stage::fit ? tree : nullptr;
  stale_ = true;
}

// The module's parameters and those that optimizers alone have, in the order of their registration.
void DdpStrategy::attach_optimizers(std::span<const std::shared_ptr<optim::Optimizer>> optimizers) {
  if (ranks().size == 1) return;
  std::vector<train::Reducer::Member> members;
  std::map<const void*, std::size_t> place;  // by tensor
  const auto add = [&](const ParamRef& p) -> train::Reducer::Member* {
    if (!p.value->is_leaf() || !is_float(p.value->dtype())) return nullptr;
    const auto [at, fresh] = place.try_emplace(p.value->impl(), members.size());
    if (fresh) members.push_back({.name = p.name, .value = *p.value});
    return &members[at->second];
  };
  if (tree_) {
    for (const ParamRef& p : tree_->parameters()) add(p);
  }
  for (std::size_t k = 0; k < optimizers.size(); ++k) {
    for (const ParamRef& p : optimizers[k]->model_parameters()) {
      if (train::Reducer::Member* const m = add(p)) m->optimizers |= std::uint64_t{1} << (k & 63);
    }
  }
  reducer_ = std::make_unique<train::Reducer>(group(), std::move(members), ddp_);
}

void DdpStrategy::detach() noexcept {
  before_ = report();
  reducer_.reset();
  tree_ = nullptr;
}

void DdpStrategy::begin_step() {
  if (!ddp_.broadcast_buffers || !tree_ || !std::exchange(stale_, false) || ranks().size == 1) return;
  NamedTensors buffers;
  for (const nn::BufferRef& b : tree_->buffers()) {
    if (b.value->defined()) buffers.emplace_back(b.name, *b.value);
  }
  if (!buffers.empty()) train::broadcast(*group(), buffers);
}

void DdpStrategy::backward(const Tensor& loss, SyncGrad sync) {
  if (!reducer_) return levin::backward(loss);
  reducer_->backward(loss, sync);
  if (sync == SyncGrad::yes) stale_ = true;
}

// Gradients are averages over ranks, so the weight that divides them is the average, too.
void DdpStrategy::merge_weight(Tensor& weight) {
  if (ranks().size == 1) return;
  const NoGrad off;
  weight = weight.clone();
  all_reduce(weight, dist::ReduceOp::average);
}

std::string DdpStrategy::prevents_capture() const {
  if (ranks().size == 1 || group()->capturable()) return {};
  return "the ranks' gradients are reduced by " + std::string(group()->backend()) + ", which no graph can record";
}

DdpStrategy::Report DdpStrategy::report() const {
  Report all = before_;
  if (reducer_) {
    const Report& now = reducer_->report();
    all = {.buckets = now.buckets, .reductions = all.reductions + now.reductions, .bytes = all.bytes + now.bytes};
  }
  return all;
}

}  // namespace levin
