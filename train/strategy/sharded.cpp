// What sharded strategies do beside the buckets of flat_parameters.h.
#include "levin/train/sharded_strategy.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>

#include "levin/autograd.h"
#include "levin/nn/checkpoint_policy.h"
#include "levin/nn/parametrize.h"
#include "levin/ops.h"
#include "levin/train/averaging.h"
#include "levin/train/trainer.h"
#include "train/strategy/flat_copies.h"
#include "train/strategy/flat_parameters.h"
#include "train/strategy/lowered.h"
#include "train/strategy/offload.h"

namespace levin {

namespace {

// Of the modules that `takes` takes, and of those below them.
std::set<const void*> parameters_of(const nn::Module* tree, const Function<bool(const nn::Module&)>& takes) {
  std::set<const void*> all;
  if (!tree || !takes) return all;
  tree->visit([&](const std::string&, const nn::Module& m) {
    if (!takes(m)) return;
    for (const auto& [path, t] : m.named_parameters()) all.insert(t.impl());
  });
  return all;
}

// Of the state in a file: what the optimizer will make, and masters of 16-bit pieces, which it may get later.
std::int64_t bytes_of_state(const optim::Optimizer& optimizer) {
  std::int64_t all = 0;
  const auto add = [&](std::int64_t elements, DType dtype) {
    constexpr std::int64_t kLine = train::OffloadFile::kAlignment;
    all += (elements * static_cast<std::int64_t>(itemsize(dtype)) + kLine - 1) / kLine * kLine;
  };
  for (const Tensor& t : optimizer.planned_state()) add(t.numel(), t.dtype());
  for (const ParamRef& p : optimizer.pieces()) {
    if (itemsize(p.value->dtype()) == 2) add(p.value->numel(), DType::f32);
  }
  return all;
}

}  // namespace

struct ShardedStrategy::Attached {
  std::unique_ptr<train::FlatParameters> flat;
  std::unique_ptr<train::Lowered> lowered;  // what mixed precision converts beside `flat`
  int unsharded = 0;
  std::weak_ptr<optim::Optimizer> optimizer;
  std::shared_ptr<train::OffloadFile> file;  // during a fit
  train::OffloadFile::Report of_file{};      // after it
};

ShardedStrategy::ShardedStrategy(ProcessOptions options, Sharding sharding)
    : ProcessStrategy(std::move(options)), sharding_(std::move(sharding)), attached_(std::make_unique<Attached>()) {}
ShardedStrategy::~ShardedStrategy() = default;

void ShardedStrategy::check(const TrainerOptions& o) const {
  ProcessStrategy::check(o);
  if (shards_checkpoints() && o.plugins.checkpoint_io)
    fail<ConfigError>("Trainer: strategy is ", name(),
                      " with state_dict_type = sharded, and plugins has a checkpoint_io, ",
                      "which writes files; leave one of them out");
  if (shards_checkpoints() && (sharding_.param || sharding_.buffer))
    fail<ConfigError>("Trainer: strategy is ", name(),
                      " with mixed_precision and state_dict_type = sharded, whose files would have frozen parameters "
                      "and buffers as mixed_precision rounds them; use state_dict_type = full");
}

void ShardedStrategy::attach_model(TrainModule& module, nn::Module* tree, Stage stage) {
  if (stage == Stage::fit && !module.automatic_optimization())
    fail<ConfigError>("fit: strategy is ", name(),
                      ", which optimizes automatically alone, and the module optimizes manually; use ddp");
  if (stage == Stage::fit && sharding_.parameters) {
    for (const std::shared_ptr<Callback>& c : module.trainer().callbacks()) {
      if (dynamic_cast<const WeightAveraging*>(c.get()) || dynamic_cast<const StochasticWeightAveraging*>(c.get()))
        fail<ConfigError>("fit: strategy is ", name(),
                          ", whose ranks share the parameters, and a callback averages weights, which it reads whole "
                          "after each step; use zero_stage_2, or drop the callback");
    }
  }
  ProcessStrategy::attach_model(module, tree, stage);
  tree_ = stage == Stage::fit ? tree : nullptr;
  stale_ = true;
}

void ShardedStrategy::attach_optimizers(std::span<const std::shared_ptr<optim::Optimizer>> optimizers) {
  *attached_ = {};
  optim::Optimizer& optimizer = *optimizers.front();  // automatic optimization has one
  if (!optimizer.elementwise())
    fail<ConfigError>("fit: strategy is ", name(), " and the optimizer is ", optimizer.name(),
                      ", which updates all elements together; use another optimizer");
  const bool offloading = offloads(optimizer);
  if (ranks().size == 1 && !offloading && !mixed()) return;
  make_groups();
  const std::vector<const nn::Module*> modules = units();
  std::map<const void*, std::size_t> unit;  // by tensor, from 1 on
  for (std::size_t u = 0; u < modules.size(); ++u) {
    for (const auto& [path, t] : modules[u]->named_parameters()) {
      // What two units share belongs to the rest, which stays during the whole pass.
      if (const auto [at, fresh] = unit.emplace(t.impl(), u + 1); !fresh && at->second != u + 1) at->second = 0;
    }
  }
  // In the order of registration, then those that the optimizer alone has.
  std::set<const void*> its, taken;
  for (const ParamRef& p : optimizer.model_parameters()) its.insert(p.value->impl());
  const std::set<const void*> ignored = parameters_of(tree_, sharding_.ignores);
  std::vector<train::FlatParameters::Member> members;
  const auto add = [&](const ParamRef& p) {
    if (!its.contains(p.value->impl()) || !taken.insert(p.value->impl()).second) return;
    const auto in = unit.find(p.value->impl());
    const bool ignores = ignored.contains(p.value->impl());
    members.push_back(
        {.name = p.name, .value = *p.value, .unit = ignores || in == unit.end() ? 0 : in->second, .ignored = ignores});
    if (mixed() && !ignores && p.value->dtype() != DType::f32)
      fail<ConfigError>("fit: strategy is ", name(), " with mixed_precision, which casts f32 parameters, and ", p.name,
                        " is ", p.value->dtype(), "; use precision = \"32-true\", or leave mixed_precision out");
  };
  if (tree_) {
    for (const ParamRef& p : tree_->parameters()) add(p);
  }
  for (const ParamRef& p : optimizer.model_parameters()) add(p);
  const OffloadOptions& to = sharding_.offload;
  std::shared_ptr<train::OffloadFile> file;
  if (offloading && (to.optimizer == Offload::nvme || to.params == Offload::nvme))
    file = train::OffloadFile::make(to.nvme_path, to.sub_group_size);
  std::unordered_set<const void*> others(ignored.begin(), ignored.end());
  for (const train::FlatParameters::Member& m : members) others.insert(m.value.impl());
  attached_->flat = std::make_unique<train::FlatParameters>(
      shared_, std::move(members),
      train::FlatParameters::Options{
          .bucket_bytes = sharding_.parameters
                              ? std::numeric_limits<std::int64_t>::max()
                              : static_cast<std::int64_t>(std::min(sharding_.bucket_cap_mb, 1e9) * (1 << 20)),
          .reduces_each_batch = sharding_.reduces_each_batch,
          .shards_parameters = sharding_.parameters,
          .frees_after_forward = sharding_.frees_after_forward,
          .units = modules,
          .forward_prefetch = sharding_.forward_prefetch,
          .backward_prefetch = sharding_.backward_prefetch,
          .param = sharding_.param,
          .reduce = sharding_.reduce,
          .copies = copies_,
          .offload = to,
          .file = file,
          .overlaps = sharding_.overlaps});
  if (mixed() && tree_)
    attached_->lowered = std::make_unique<train::Lowered>(*tree_, sharding_.param, sharding_.buffer, others);
  attached_->flat->share(optimizer);
  attached_->optimizer = optimizers.front();
  attached_->file = file;
  if (to.optimizer != Offload::nvme) return;
  optimizer.keep_state_in(file);
  file->reserve(bytes_of_state(optimizer));
}

// Whether something of this model lies elsewhere than the model: on the CPU only a file is elsewhere.
bool ShardedStrategy::offloads(const optim::Optimizer& optimizer) const {
  const OffloadOptions& to = sharding_.offload;
  if (to.optimizer == Offload::nvme || to.params == Offload::nvme) return true;
  return to.optimizer == Offload::cpu && optimizer.model_parameters().front().value->device().launches();
}

// Groups of neighbours share one copy: a launcher numbers the ranks of a node one after another.
void ShardedStrategy::make_groups() {
  if (shared_) return;
  const int size = ranks().size, rank = ranks().rank;
  int one = sharding_.group_size == 0 ? size : sharding_.group_size;
  if (one < 0) one = ranks().local_size;
  if (size % one != 0)
    fail<ConfigError>("fit: strategy is ", name(), " with groups of ", one,
                      " ranks that share parameters, and there are ", size, " ranks, expected a multiple");
  if (one == size) {
    shared_ = group();
    return;
  }
  shared_ = group()->split(rank / one, rank);
  copies_ = group()->split(rank % one, rank);
}

// The outermost modules that the policy takes, with sharded parameters.
std::vector<const nn::Module*> ShardedStrategy::units() const {
  std::vector<const nn::Module*> all;
  if (!sharding_.parameters || !tree_) return all;
  const auto within = [&](const nn::Module& m) {
    for (const nn::Module* at = &m; at; at = const_cast<nn::Module*>(at)->parent()) {
      if (std::find(all.begin(), all.end(), at) != all.end()) return true;
    }
    return false;
  };
  // Nobody calls these: the layer's call computes them.
  const auto called = [](const nn::Module& m) {
    return !dynamic_cast<const nn::Parametrization*>(&m) && m.name() != "parametrizations";
  };
  std::as_const(*tree_).visit([&](const std::string& path, const nn::Module& m) {
    if (!path.empty() && called(m) && !within(m) && sharding_.is_unit && sharding_.is_unit(m) &&
        !m.named_parameters().empty())
      all.push_back(&m);
  });
  return all;
}

void ShardedStrategy::leave() noexcept {
  *attached_ = {};
  shared_.reset();
  copies_.reset();
  ProcessStrategy::leave();
}

// The layout stays: a checkpoint may be written after the fit.
void ShardedStrategy::detach() noexcept {
  attached_->lowered.reset();
  if (attached_->flat) {
    attached_->flat->release();
    attached_->flat->release_host();
  }
  if (attached_->file) attached_->of_file = attached_->file->report();
  attached_->file.reset();
  tree_ = nullptr;
}

void ShardedStrategy::begin_step() {
  if (!attached_->flat || !std::exchange(stale_, false)) return;
  train::broadcast_buffers(*group(), tree_);
}

StepOutput ShardedStrategy::training_step(const StepCall& call) {
  std::optional<nn::CheckpointPolicy> policy;
  if (sharding_.checkpoints) policy.emplace(sharding_.checkpoints);
  if (!attached_->flat) return Strategy::training_step(call);
  if (!sharding_.param) return attached_->flat->forward([&] { return Strategy::training_step(call); });
  Batch batch = call.batch;
  for (Tensor& t : batch.fields) {
    if (t.defined() && is_float(t.dtype())) t = t.to(*sharding_.param);
  }
  return attached_->flat->forward([&] { return call.forward(call.module, batch); });
}

void ShardedStrategy::backward(const Tensor& loss, SyncGrad sync) {
  if (!attached_->flat) return levin::backward(loss);
  attached_->flat->backward(loss, sync);
  if (sync == SyncGrad::yes) stale_ = true;
}

// Gradients are averages over ranks, so the weight that divides them is the average, too.
void ShardedStrategy::merge_weight(Tensor& weight) {
  if (!attached_->flat) return;
  const NoGrad off;
  weight = weight.clone();
  if (ranks().size > 1) all_reduce(weight, dist::ReduceOp::average);
  if (attached_->flat->steps_on_host()) weight = weight.to(Device::cpu());
}

void ShardedStrategy::merge_squared_norm(Tensor& sum) {
  if (attached_->flat) shared_->all_reduce_now(sum);
}

void ShardedStrategy::merge_found_inf(Tensor& found) {
  if (attached_->flat && ranks().size > 1) all_reduce(found, dist::ReduceOp::max);
}

void ShardedStrategy::finish_step() {
  if (attached_->flat) attached_->flat->gather();
}

std::string ShardedStrategy::prevents_capture() const {
  if (ranks().size > 1) return "a sharded step waits for the other ranks";
  if (mixed()) return "a step in mixed precision casts slices";
  return attached_->flat ? "an offloaded optimizer steps on the CPU" : "";
}

Tensor ShardedStrategy::whole(const Tensor& piece, const Tensor& of) {
  return attached_->flat ? attached_->flat->whole(piece, of) : piece;
}
Tensor ShardedStrategy::piece(const Tensor& whole, const Tensor& of) {
  return attached_->flat ? attached_->flat->piece(whole, of) : whole;
}

std::pair<std::int64_t, std::int64_t> ShardedStrategy::piece_range(const Tensor& of) const {
  return attached_->flat ? attached_->flat->piece_range(of) : Strategy::piece_range(of);
}

void ShardedStrategy::unshard() {
  if (!attached_->flat) return;
  if (attached_->unsharded++ == 0 && attached_->lowered) attached_->lowered->widen();
  attached_->flat->unshard();
}
void ShardedStrategy::reshard() {
  if (!attached_->flat) return;
  attached_->flat->reshard();
  if (--attached_->unsharded == 0 && attached_->lowered) attached_->lowered->narrow();
}

ShardedStrategy::Report ShardedStrategy::report() const {
  Report all;
  if (attached_->flat) {
    const train::FlatParameters::Report flat = attached_->flat->report();
    all = {.buckets = flat.buckets,
           .largest_bucket = flat.largest_bucket,
           .parameters = flat.parameters,
           .peak_gradients = flat.peak_gradients,
           .peak_parameters = flat.peak_parameters,
           .held_parameters = flat.held_parameters,
           .held_gradients = flat.held_gradients,
           .gathered = flat.gathered,
           .reduced = flat.reduced};
  }
  const train::OffloadFile::Report file = attached_->file ? attached_->file->report() : attached_->of_file;
  all.file = file.bytes;
  all.peak_file_part = file.peak_part;
  if (const auto o = attached_->optimizer.lock()) {
    for (const std::size_t bytes : o->state_sizes()) all.optimizer_state += static_cast<std::int64_t>(bytes);
  }
  return all;
}

}  // namespace levin
