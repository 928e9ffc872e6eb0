// DdpStrategy: checks, and what makes a reducer or virtual ranks when.
#include "levin/train/ddp_strategy.h"

#include <bit>
#include <map>
#include <utility>

#include "levin/ops.h"
#include "train/optimize/precision.h"
#include "train/strategy/flat_copies.h"
#include "train/strategy/names.h"
#include "train/strategy/reducer.h"
#include "train/strategy/virtual_ranks.h"

namespace levin {
namespace {
void check_divides(int virtual_ranks, std::int64_t ranks) {
  if (virtual_ranks > 0 && virtual_ranks % ranks != 0)
    fail<ConfigError>("Trainer: virtual_ranks is ", virtual_ranks, " and there are ", ranks,
                      " ranks, expected a divisor");
}
void check_powersgd(const PowerSgdOptions& p) {
  if (p.matrix_approximation_rank < 1)
    fail<ConfigError>("DdpStrategy: powersgd.matrix_approximation_rank is ", p.matrix_approximation_rank,
                      ", expected 1 or more");
  if (p.start_powerSGD_iter < 2)
    fail<ConfigError>("DdpStrategy: powersgd.start_powerSGD_iter is ", p.start_powerSGD_iter, ", expected 2 or more");
  if (!(p.min_compression_rate > 0))
    fail<ConfigError>("DdpStrategy: powersgd.min_compression_rate is ", p.min_compression_rate,
                      ", expected more than 0");
}
}  // namespace

struct DdpStrategy::Reducers {
  std::unique_ptr<train::Reducer> plain;
  std::unique_ptr<train::VirtualRanks> virtual_ranks;  // instead
};

DdpStrategy::DdpStrategy(DdpOptions options)
    : ProcessStrategy(options.process), ddp_(std::move(options)), reducers_(std::make_unique<Reducers>()) {
  if (!(ddp_.bucket_cap_mb > 0))
    fail<ConfigError>("DdpStrategy: bucket_cap_mb is ", ddp_.bucket_cap_mb, ", expected more than 0");
  const int v = ddp_.virtual_ranks;
  if (v < 0 || (v > 0 && !std::has_single_bit(static_cast<unsigned>(v))))
    fail<ConfigError>("DdpStrategy: virtual_ranks is ", v, ", expected a power of two, or 0 for none");
  if (v > 0 && ddp_.comm_hook != CommHook::none)
    fail<ConfigError>("DdpStrategy: virtual_ranks is ", v,
                      " and comm_hook is set; a rounded gradient depends on the ranks, so give one of them");
  if (ddp_.comm_hook == CommHook::powersgd) check_powersgd(ddp_.powersgd);
}
DdpStrategy::~DdpStrategy() = default;

void DdpStrategy::check(const TrainerOptions& o) const {
  ProcessStrategy::check(o);
  if (ddp_.virtual_ranks > 0 && train::ranks_have_cuda(o))
    fail<UnsupportedError>(
        "Trainer: virtual_ranks is ", ddp_.virtual_ranks,
        " and ranks have CUDA devices; sums of virtual ranks are trees, which NCCL does not make; use "
        "the CPU, or set virtual_ranks to 0");
  if (ddp_.virtual_ranks > 0 && (o.sync_batchnorm || o.plugins.layer_sync))
    fail<ConfigError>("Trainer: ", o.sync_batchnorm ? "sync_batchnorm is on" : "plugins has a LayerSync",
                      " and virtual_ranks is ", ddp_.virtual_ranks,
                      ", which take their own statistics; switch one off");
  if (ddp_.comm_hook == CommHook::powersgd && train::Precision(o).mixed().scales)
    fail<ConfigError>("Trainer: comm_hook is powersgd and precision is \"", o.precision,
                      "\", whose loss scale changes, and powersgd adds to a gradient what it left out of the last; use "
                      "bf16-mixed");
  // Before processes are started, where their number is known.
  if (!ddp_.process.group && o.devices.count())
    check_divides(ddp_.virtual_ranks, *o.devices.count() * o.num_nodes.value());
}

void DdpStrategy::connect(const TrainerOptions& o) {
  ProcessStrategy::connect(o);
  check_divides(ddp_.virtual_ranks, ranks().size);
}

DataShare DdpStrategy::share() const {
  DataShare own = ProcessStrategy::share();
  if (ddp_.virtual_ranks > 0) own.shards = ddp_.virtual_ranks / ranks().size;
  return own;
}

void DdpStrategy::attach_model(TrainModule& module, nn::Module* tree, Stage stage) {
  if (stage == Stage::fit && ddp_.virtual_ranks > 0 && !module.automatic_optimization())
    fail<ConfigError>("fit: virtual_ranks is ", ddp_.virtual_ranks,
                      " and the module optimizes manually; virtual ranks run automatic optimization alone");
  ProcessStrategy::attach_model(module, tree, stage);
  tree_ = stage == Stage::fit ? tree : nullptr;
  stale_ = true;
}

// The module's parameters and those that optimizers alone have, in the order of their registration.
void DdpStrategy::attach_optimizers(std::span<const std::shared_ptr<optim::Optimizer>> optimizers) {
  state_before_.clear();
  if (ranks().size == 1 && ddp_.virtual_ranks == 0) return;
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
  if (ddp_.virtual_ranks > 0)
    reducers_->virtual_ranks = std::make_unique<train::VirtualRanks>(group(), std::move(members), tree_, share().shards,
                                                                     ddp_.find_unused_parameters);
  else
    reducers_->plain = std::make_unique<train::Reducer>(group(), std::move(members), ddp_);
}

void DdpStrategy::detach() noexcept {
  before_ = report();
  state_before_ = state();
  *reducers_ = {};
  tree_ = nullptr;
}

void DdpStrategy::begin_step() {
  if (reducers_->virtual_ranks || !ddp_.broadcast_buffers || !tree_ || !std::exchange(stale_, false) ||
      ranks().size == 1)
    return;
  train::broadcast_buffers(*group(), tree_);
}

StepOutput DdpStrategy::training_step(const StepCall& call) {
  return reducers_->virtual_ranks ? reducers_->virtual_ranks->training_step(call) : Strategy::training_step(call);
}

void DdpStrategy::backward(const Tensor& loss, SyncGrad sync) {
  if (reducers_->virtual_ranks)
    fail<ConfigError>("fit: virtual_ranks is ", ddp_.virtual_ranks,
                      " and the module optimizes manually; virtual ranks run automatic optimization alone");
  if (!reducers_->plain) return levin::backward(loss);
  reducers_->plain->backward(loss, sync);
  if (sync == SyncGrad::yes) stale_ = true;
}

// Gradients are averages over ranks, so the weight that divides them is the average, too.
void DdpStrategy::merge_weight(Tensor& weight) {
  if (ranks().size == 1) return;
  const NoGrad off;
  weight = weight.clone();
  all_reduce(weight, dist::ReduceOp::average);
}

NamedTensors DdpStrategy::state() const { return reducers_->plain ? reducers_->plain->state() : state_before_; }
void DdpStrategy::load_state(const NamedTensors& state) {
  if (reducers_->plain) reducers_->plain->load_state(state);
}

std::string DdpStrategy::prevents_capture() const {
  if (ddp_.virtual_ranks > 0) return "virtual_ranks runs several passes a step";
  if (ranks().size == 1 || group()->capturable()) return {};
  return "the ranks' gradients are reduced by " + std::string(group()->backend()) + ", which no graph can record";
}

DdpStrategy::Report DdpStrategy::report() const {
  Report all = before_;
  if (reducers_->plain || reducers_->virtual_ranks) {
    const Report& now = reducers_->plain ? reducers_->plain->report() : reducers_->virtual_ranks->report();
    all = {.buckets = now.buckets, .reductions = all.reductions + now.reductions, .bytes = all.bytes + now.bytes};
  }
  return all;
}

}  // namespace levin
