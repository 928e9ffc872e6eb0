#include "levin/train/data_parallel_strategy.h"

#include <algorithm>
#include <map>
#include <utility>

#include "autograd/replica_values.h"
#include "levin/autograd.h"
#include "levin/ops.h"
#include "levin/train/trainer.h"
#include "tensor/core/team.h"
#include "tensor/errors/warn.h"
#include "train/run/borrowed.h"
#include "train/strategy/local_devices.h"
#include "train/strategy/parts.h"

namespace levin {
namespace {

// One output of a training step, by replica.
struct Output {
  std::string name;
  Tensors theirs{};  // on the replicas' devices, with their history
  Tensors ours{};    // on the root, leaves where a gradient flows back

  [[nodiscard]] Tensor joined() const {
    return ours.front().rank() == 0 ? stack(std::span<const Tensor>(ours)) : cat(std::span<const Tensor>(ours));
  }
};

// Outputs by name; the loss, or the sum of StepOutput::sum, is "loss". Throws ConfigError for replicas that differ.
std::vector<Output> by_name(const std::vector<StepOutput>& outputs, Device root) {
  std::vector<NamedTensors> lists;
  for (const StepOutput& o : outputs) {
    NamedTensors list;
    if (o.loss().defined()) list.emplace_back("loss", o.summed().defined() ? o.summed() : o.loss());
    for (const auto& [name, t] : o.outputs()) {
      if (name != "loss") list.emplace_back(name, t);
    }
    lists.push_back(std::move(list));
  }
  std::vector<Output> all;
  for (std::size_t j = 0; j < lists[0].size(); ++j) all.push_back({.name = lists[0][j].first});
  for (std::size_t k = 0; k < lists.size(); ++k) {
    bool same = lists[k].size() == all.size() && outputs[k].weight().defined() == outputs[0].weight().defined();
    for (std::size_t j = 0; same && j < all.size(); ++j) same = lists[k][j].first == all[j].name;
    if (!same)
      fail<ConfigError>("fit: strategy dp: training_step of replica ", k, " returned ", lists[k].size(),
                        " outputs, that of replica 0 ", all.size(),
                        "; return the same names for every part of a batch");
    for (std::size_t j = 0; j < all.size(); ++j) {
      const Tensor& t = lists[k][j].second;
      Tensor here = t.detach().to(root);
      if (t.requires_grad()) here.requires_grad_();
      all[j].theirs.push_back(t);
      all[j].ours.push_back(std::move(here));
    }
  }
  return all;
}

// The mean of the losses by samples, or the sum of sums, and the outputs as they are.
StepOutput combined(const std::vector<Output>& outputs, const NamedTensors& gathered,
                    const std::vector<train::Part>& parts, const Tensor& weight) {
  Tensor total;
  std::int64_t samples = 0;
  for (std::size_t k = 0; k < parts.size(); ++k) {
    const Tensor& one = outputs.front().ours[k];
    const Tensor share = weight.defined() ? one : one * static_cast<double>(parts[k].samples);
    total = total.defined() ? total + share : share;
    samples += parts[k].samples;
  }
  if (weight.defined()) return StepOutput::sum(total, weight);
  NamedTensors named = gathered;
  named.front().second = total / static_cast<double>(samples);
  return StepOutput(std::move(named));
}

}  // namespace

// Note [Replicas]
// A replica is a module of its own, so its threads share no leaf, no generator and no buffer with others. Before each
// step its parameters become leaves over the root's values: on a CPU device over the same memory, elsewhere over a
// copy. Backward passes of the replicas return gradients instead of adding them to leaves; the root's leaves get the
// sum, in the order of the replicas.
struct DataParallelStrategy::Replicas {
  struct One {
    Device device = Device::cpu();
    std::unique_ptr<TrainModule> owned{};  // null for the root
    TrainModule* module = nullptr;
    std::vector<ParamRef> parameters{};
    std::vector<nn::BufferRef> buffers{};
    std::vector<std::pair<std::string, Generator*>> generators{};
    std::vector<nn::Module*> modules{};
  };
  explicit Replicas(int size) : team(size) {}
  detail::Team team;
  std::vector<One> all;

  // Values, flags, buffers and random streams of replica k become those of the root.
  void refresh(std::size_t k) {
    const One& root = all[0];
    One& one = all[k];
    const NoGrad off;
    Tensors values, buffers;
    for (const ParamRef& p : root.parameters) values.push_back(p.value->detach());
    for (const nn::BufferRef& b : root.buffers) buffers.push_back(b.value->defined() ? b.value->detach() : Tensor());
    values = detail::values_on(one.device, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i].requires_grad_(root.parameters[i].value->requires_grad());
      *one.parameters[i].value = values[i];
    }
    for (std::size_t i = 0; i < buffers.size(); ++i)
      *one.buffers[i].value = buffers[i].defined() ? buffers[i].to(one.device) : buffers[i];
    for (std::size_t i = 0; i < root.generators.size(); ++i) {
      const RandomRange state = root.generators[i].second->state();
      const Generator stream = Generator(state.seed).fork("replica " + text(k));
      one.generators[i].second->set_state({.seed = stream.seed(), .offset = state.offset});
    }
    for (std::size_t i = 0; i < root.modules.size() && i < one.modules.size(); ++i)
      one.modules[i]->set_training_flag(root.modules[i]->is_training());
  }
};

StepOutput DataParallelModule::training_step_end(const NamedTensors&) { return {}; }

DataParallelStrategy::DataParallelStrategy(DataParallelOptions options) : options_(std::move(options)) {
  train::check_local_devices("DataParallelStrategy", options_.devices);
}
DataParallelStrategy::~DataParallelStrategy() = default;

void DataParallelStrategy::check(const TrainerOptions& o) const {
  (void)train::local_devices("dp", options_.devices, o);
}
void DataParallelStrategy::connect(const TrainerOptions& o) {
  devices_ = train::local_devices("dp", options_.devices, o);
}
std::optional<Device> DataParallelStrategy::device() const {
  return devices_.empty() ? std::nullopt : std::optional(devices_.front());
}

void DataParallelStrategy::attach_model(TrainModule& module, nn::Module* tree, Stage stage) {
  replicas_.reset();
  if (stage != Stage::fit || !tree) return;
  if (!module.automatic_optimization())
    fail<ConfigError>("fit: strategy dp shares the automatic step, and the module optimizes manually; use ddp");
  warn("I-TRAIN-DP", WarningCategory::info,
       "fit: strategy dp trains on " + train::words(devices_) +
           (devices_.size() == 1
                ? ", which is one device; single_device is faster"
                : " by threads of one process; ddp, a process for each device, is faster, also on one machine"));
  std::map<const void*, std::string> taken;
  for (const ParamRef& p : tree->parameters()) {
    if (const auto [at, fresh] = taken.emplace(p.value->impl(), p.name); !fresh)
      fail<ConfigError>("fit: strategy dp copies parameters one by one, and ", at->second, " and ", p.name,
                        " are one tensor; use ddp");
  }
  auto replicas = std::make_unique<Replicas>(static_cast<int>(devices_.size()));
  const auto* const base = dynamic_cast<const DataParallelModule*>(&module);
  for (std::size_t k = 0; k < devices_.size(); ++k) {
    Replicas::One one{.device = devices_[k], .module = &module};
    if (k > 0) {
      if (!options_.replica && !base)
        fail<ConfigError>("fit: strategy dp copies the module, and ", module.type_name(),
                          " can not be copied; derive it from DataParallelModule, or give "
                          "DataParallelOptions::replica");
      const nn::Options with{.gen = module.fork("replica"), .device = devices_[k], .dtype = module.dtype()};
      one.owned = options_.replica ? options_.replica(with) : base->replica(with);
      if (!one.owned) fail<ConfigError>("fit: strategy dp: the function that makes a replica returned null");
      one.module = one.owned.get();
      one.owned->configure_model();
      const NamedTensors own = one.owned->state_dict();
      NamedTensors state = module.state_dict();
      for (auto& [name, t] : state) {
        const auto it = std::find_if(own.begin(), own.end(), [&, &n = name](const auto& o) { return o.first == n; });
        if (it != own.end()) t = t.detach().to(it->second.dtype());
      }
      try {
        one.owned->load_state_dict(state);
      } catch (const ConfigError& e) {
        fail<ConfigError>("fit: strategy dp: replica ", k, " has other parameters than the module: ", e.what());
      }
      Trainer::Borrowed::attach(*one.owned, &module.trainer());
    }
    one.parameters = one.module->parameters();
    one.buffers = one.module->buffers();
    one.generators = one.module->generators();
    if (one.generators.size() != module.generators().size())
      fail<ConfigError>("fit: strategy dp: replica ", k, " has ", one.generators.size(),
                        " modules that draw random numbers, the module has ", module.generators().size(),
                        "; make the replica like the module");
    one.module->visit([&](const std::string&, nn::Module& m) { one.modules.push_back(&m); });
    replicas->all.push_back(std::move(one));
  }
  replicas_ = std::move(replicas);
}
void DataParallelStrategy::detach() noexcept { replicas_.reset(); }

// Note [A step of replicas]
// The forward passes run side by side. Their outputs meet on the root as leaves, so the objective's gradient with
// respect to them seeds backward passes that run side by side again.
StepOutput DataParallelStrategy::training_step(const StepCall& call) {
  if (!replicas_) fail<StateError>("DataParallelStrategy: training_step is called outside of a fit of a module");
  Replicas& r = *replicas_;
  const Device root = r.all[0].device;
  std::vector<train::Part> parts = train::cut("dp", call.batch, static_cast<std::int64_t>(r.all.size()));
  for (std::size_t k = 0; k < parts.size(); ++k) {
    for (Tensor& t : parts[k].batch.fields) {
      if (t.defined()) t = t.to(r.all[k].device);
    }
  }
  std::vector<StepOutput> theirs(parts.size());
  std::vector<Output> outputs;
  const auto forward = [&]() -> StepOutput {
    for (std::size_t k = 1; k < parts.size(); ++k) r.refresh(k);
    const train::SameAutocast autocast;
    r.team.run([&](int member) {
      const auto k = static_cast<std::size_t>(member);
      if (k >= parts.size()) return;
      const Replicas::One& one = r.all[k];
      std::optional<train::ReplicaThread> replica;
      if (k > 0) replica.emplace();
      theirs[k] = autocast.run([&] { return one.module->training_step(parts[k].batch, call.batch_idx); });
    });
    outputs = by_name(theirs, root);
    if (!theirs[0].loss().defined()) return {};
    NamedTensors gathered;
    for (const Output& o : outputs) gathered.emplace_back(o.name, o.joined());
    Tensor weight;
    for (const StepOutput& o : theirs) {
      if (!o.weight().defined()) continue;
      const Tensor here = o.weight().to(root);
      weight = weight.defined() ? weight + here : here;
    }
    if (auto* const base = dynamic_cast<DataParallelModule*>(&call.module)) {
      if (StepOutput own = base->training_step_end(gathered); own.loss().defined()) return own;
    }
    return combined(outputs, gathered, parts, weight);
  };
  train::InStep inside(forward);
  const StepOutput output = call.forward(inside, call.batch);
  if (!output.loss().defined()) return {};
  const Tensor objective = call.objective(output);
  if (!objective.requires_grad()) levin::backward(objective);  // throws, with its reason

  // Seeds of each replica's outputs, from one backward pass on the root.
  Tensors leaves;
  for (const Output& o : outputs) {
    for (const Tensor& t : o.ours) {
      if (t.requires_grad()) leaves.push_back(t);
    }
  }
  const Tensors seeds = leaves.empty() ? Tensors() : grad(std::span(&objective, 1), leaves, {}, {.allow_unused = true});
  std::vector<Tensors> from(parts.size()), with(parts.size());
  std::size_t at = 0;
  for (const Output& o : outputs) {
    for (std::size_t k = 0; k < parts.size(); ++k) {
      if (!o.ours[k].requires_grad()) continue;
      const Tensor& seed = seeds[at++];
      if (!seed.defined()) continue;
      from[k].push_back(o.theirs[k]);
      with[k].push_back(seed.to(r.all[k].device));
    }
  }
  outputs.clear();

  std::vector<Tensors> gradients(parts.size());  // by replica, of the parameters that require grad
  r.team.run([&](int member) {
    const auto k = static_cast<std::size_t>(member);
    if (k >= parts.size() || from[k].empty()) return;
    Tensors trained;
    for (const ParamRef& p : r.all[k].parameters) {
      if (p.value->requires_grad()) trained.push_back(*p.value);
    }
    gradients[k] = grad(from[k], trained, with[k], {.allow_unused = true});
  });
  Tensors sums;
  {
    const NoGrad off;
    for (const Tensors& part : gradients) {
      if (part.empty()) continue;
      const Tensors here = detail::values_on(root, part);
      sums.resize(here.size());
      for (std::size_t i = 0; i < here.size(); ++i) {
        if (here[i].defined()) sums[i] = sums[i].defined() ? sums[i] + here[i] : here[i];
      }
    }
  }
  std::vector<Edge> edges;
  Tensors given;
  std::size_t i = 0;
  for (const ParamRef& p : r.all[0].parameters) {
    if (!p.value->requires_grad() || i >= sums.size()) continue;
    if (sums[i].defined()) {
      edges.push_back(edge_of(*p.value));
      given.push_back(std::move(sums[i]));
    }
    ++i;
  }
  detail::run_backward(edges, std::move(given), {}, /*retain_graph=*/false, /*create_graph=*/false);
  return train::detached(output);
}

std::string DataParallelStrategy::prevents_capture() const {
  return "strategy dp runs a step on several devices by threads";
}

}  // namespace levin
