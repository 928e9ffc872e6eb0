#include "levin/train/ddp_strategy.h"

#include <algorithm>
#include <set>
#include <utility>

#include "levin/autograd.h"
#include "train/strategy/flat_copies.h"
#include "train/strategy/reducer.h"

namespace levin {

struct DdpStrategy::Buckets {
  train::Reducer reducer;
};

DdpStrategy::DdpStrategy(DdpOptions options) : ProcessStrategy(options.process), options_(std::move(options)) {
  if (!(options_.bucket_cap_mb > 0))
    fail<ConfigError>("ddp: bucket_cap_mb is ", options_.bucket_cap_mb, ", expected more than 0");
}
DdpStrategy::~DdpStrategy() = default;

void DdpStrategy::attach_model(TrainModule& module, nn::Module* tree, Stage stage) {
  ProcessStrategy::attach_model(module, tree, stage);
  buffers_.clear();
  if (!tree || stage != Stage::fit || !options_.broadcast_buffers || ranks().size == 1) return;
  std::set<std::string> parameters;
  for (const ParamRef& p : tree->parameters()) parameters.insert(p.name);
  for (const auto& [name, t] : tree->state_dict()) {
    if (!parameters.contains(name)) buffers_.emplace_back(name, t);
  }
}

void DdpStrategy::attach_optimizers(std::span<const std::shared_ptr<optim::Optimizer>> optimizers) {
  buckets_.reset();
  if (ranks().size == 1) return;
  std::vector<ParamRef> parameters;
  std::set<const Tensor*> seen;
  for (const auto& o : optimizers) {
    for (ParamRef& p : o->model_parameters()) {
      if (seen.insert(p.value).second) parameters.push_back(std::move(p));
    }
  }
  constexpr double kMb = 1 << 20;
  const auto bytes = static_cast<std::int64_t>(options_.bucket_cap_mb * kMb);
  buckets_.reset(new Buckets{{std::move(parameters), *group(), std::min<std::int64_t>(1 << 20, bytes), bytes,
                              options_.find_unused_parameters}});
}

void DdpStrategy::detach() noexcept {
  buckets_.reset();
  buffers_.clear();
}

void DdpStrategy::begin_step() {
  if (!buffers_.empty()) train::broadcast(*group(), buffers_);
}

void DdpStrategy::backward(const Tensor& loss, SyncGrad sync) {
  if (!buckets_ || sync == SyncGrad::no) return levin::backward(loss);
  buckets_->reducer.begin();
  try {
    levin::backward(loss);
  } catch (...) {
    buckets_->reducer.forget();
    throw;
  }
  buckets_->reducer.finish();
}

// Gradients are averages over ranks, so the weight that divides them is one, too.
void DdpStrategy::merge_weight(Tensor& weight) {
  if (ranks().size == 1 || !weight.defined()) return;
  const NoGrad off;
  weight = weight.clone();
  all_reduce(weight, dist::ReduceOp::average);
}

}  // namespace levin
