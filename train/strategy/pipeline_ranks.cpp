#include "levin/train/pipeline_ranks_strategy.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "levin/train/averaging.h"
#include "levin/train/options.h"
#include "levin/train/trainer.h"
#include "train/run/packed.h"
#include "train/strategy/names.h"
#include "train/strategy/parts.h"
#include "train/strategy/stages.h"

namespace levin {
namespace {

constexpr int kActivations = 1, kGradients = 2;  // tags of messages
// A message's dtype, rank and sizes come before its elements; dtype -1: no tensor.
constexpr std::int64_t kHead = 2 + kMaxRank;

Tensor head_of(const Tensor& t) {
  std::vector<std::int64_t> head(static_cast<std::size_t>(kHead), 0);
  head[0] = t.defined() ? static_cast<std::int64_t>(t.dtype()) : -1;
  if (t.defined()) {
    head[1] = t.rank();
    for (int d = 0; d < t.rank(); ++d) head[static_cast<std::size_t>(2 + d)] = t.size(d);
  }
  return from_data<std::int64_t>(head, {kHead}, Device::cpu());
}
Tensor room_of(const Tensor& head, Device device) {
  const std::vector<std::int64_t> numbers = head.to_vector<std::int64_t>();
  if (numbers[0] < 0) return {};
  const std::span<const std::int64_t> dims(numbers.data() + 2, static_cast<std::size_t>(numbers[1]));
  return empty(Shape(dims), device, static_cast<DType>(numbers[0]));
}

void send(dist::ProcessGroup& group, const Tensor& t, int to, int tag, std::vector<dist::Work>& sent) {
  sent.push_back(group.send(head_of(t), to, tag));
  if (t.defined() && t.numel() > 0) sent.push_back(group.send(t.contiguous(), to, tag));
}
Tensor receive(dist::ProcessGroup& group, int from, int tag, Device device) {
  const Tensor head = zeros({kHead}, Device::cpu(), DType::i64);
  group.recv(head, from, tag).wait();
  Tensor t = room_of(head, device);
  if (t.defined() && t.numel() > 0) group.recv(t, from, tag).wait();
  return t;
}
// t of rank `root`, on every rank.
Tensor shared(dist::ProcessGroup& group, const Tensor& t, int root, Device device) {
  const bool mine = group.rank() == root;
  const Tensor head = mine ? head_of(t) : zeros({kHead}, Device::cpu(), DType::i64);
  group.broadcast(head, root).wait();
  Tensor there = mine ? t.detach().contiguous() : room_of(head, device);
  if (there.defined() && there.numel() > 0) group.broadcast(there, root).wait();
  return there;
}

// Note [Stages that are ranks]
// Messages of a pair of ranks arrive in the order of their sends, and both ends follow one schedule, so that a message
// needs no number. Sends return at once and are waited for at the end of a step. Their order cannot lock two ranks:
// the first stage waits for gradients alone and the last for activations alone, which ends every chain of waits.
class RankLinks final : public train::StageLinks {
 public:
  RankLinks(dist::ProcessGroup& group, Device device, std::vector<dist::Work>& sent)
      : group_(group), device_(device), sent_(sent) {}
  Tensor take_input(std::size_t) override { return receive(group_, group_.rank() + 1, kActivations, device_); }
  void give_output(std::size_t, const Tensor& y) override { send(group_, y, group_.rank() - 1, kActivations, sent_); }
  Tensor take_gradient(std::size_t) override { return receive(group_, group_.rank() - 1, kGradients, device_); }
  void give_gradient(std::size_t, const Tensor& g) override { send(group_, g, group_.rank() + 1, kGradients, sent_); }

 private:
  dist::ProcessGroup& group_;
  Device device_;
  std::vector<dist::Work>& sent_;
};

}  // namespace

struct PipelineRanksStrategy::Stages {
  PipelineModule* module = nullptr;  // in a fit
  std::weak_ptr<const void> alive{};
  std::vector<train::PipelineStage> all;
  std::vector<std::weak_ptr<optim::Optimizer>> optimizers{};
  // The rank that has parameter p.
  [[nodiscard]] int owner_of(const Tensor& p) const {
    if (alive.expired()) return 0;
    for (std::size_t s = 0; s < all.size(); ++s) {
      for (const ParamRef& r : all[s].parameters) {
        if (r.value->impl() == p.impl()) return static_cast<int>(all.size() - 1 - s);
      }
    }
    return 0;  // of no module: rank 0 updates it
  }
};

PipelineRanksStrategy::PipelineRanksStrategy(PipelineRanksOptions options)
    : ProcessStrategy(std::move(options.process)), pipeline_(std::move(options.pipeline)) {
  train::check_pipeline("PipelineRanksStrategy", pipeline_);
  if (!pipeline_.devices.empty())
    fail<ConfigError>("PipelineRanksStrategy: PipelineOptions::devices lists ", pipeline_.devices.size(),
                      " devices, and each process has one; leave it out, and give TrainerOptions::devices");
}
PipelineRanksStrategy::~PipelineRanksStrategy() { detach(); }

void PipelineRanksStrategy::check(const TrainerOptions& o) const {
  ProcessStrategy::check(o);
  if (train::ranks_have_cuda(o))
    fail<UnsupportedError>(
        "Trainer: strategy rpc_sequential and the accelerator is CUDA; its messages have tags, which NCCL's have not; "
        "use strategy pipeline, whose stages are of one process");
  if (process_options().launcher == Launcher::spawn)
    fail<ConfigError>(
        "Trainer: strategy rpc_sequential has the weights of each layer on one rank, and copies of this process bring "
        "back those of rank 0; use Launcher::script");
  if (o.sync_batchnorm || o.plugins.layer_sync)
    fail<ConfigError>(
        "Trainer: strategy rpc_sequential: ", o.sync_batchnorm ? "sync_batchnorm is on" : "plugins has a LayerSync",
        ", and each rank runs layers of its own; switch it off");
  if (const auto count = o.devices.count();
      count && !pipeline_.balance.empty() &&
      *count * o.num_nodes.value() != static_cast<std::int64_t>(pipeline_.balance.size()))
    fail<ConfigError>("Trainer: strategy rpc_sequential: balance is ", train::balance_words(pipeline_.balance), ", ",
                      pipeline_.balance.size(), " stages, and there are ", *count * o.num_nodes.value(),
                      " processes; start one for each stage");
  for (const auto& c : o.callbacks) {
    if (dynamic_cast<const WeightAveraging*>(c.get()) || dynamic_cast<const StochasticWeightAveraging*>(c.get()))
      fail<ConfigError>(
          "Trainer: strategy rpc_sequential has the weights of each layer on one rank, and a callback averages those "
          "of all; use strategy pipeline or ddp");
  }
}

void PipelineRanksStrategy::connect(const TrainerOptions& o) {
  ProcessStrategy::connect(o);
  exact_ = o.accumulate_weighting == AccumulateWeighting::exact;
  if (!pipeline_.balance.empty() && static_cast<int>(pipeline_.balance.size()) != ranks().size)
    fail<ConfigError>("fit: strategy rpc_sequential: balance is ", train::balance_words(pipeline_.balance), ", ",
                      pipeline_.balance.size(), " stages, and there are ", ranks().size,
                      " processes; start one for each stage");
}

void PipelineRanksStrategy::attach_model(TrainModule& module, nn::Module* tree, Stage stage) {
  if (stage != Stage::fit) return ProcessStrategy::attach_model(module, tree, stage);
  detach();
  stages_.reset();
  ProcessStrategy::attach_model(module, tree, stage);
  const auto p = static_cast<std::size_t>(ranks().size);
  PipelineModule& net = train::pipeline_module(module, p, train::kRankStages);
  if (!pipeline_.balance.empty()) {
    balance_ = pipeline_.balance;
  } else {
    train::Packed chosen;  // by rank 0, whose seconds are those of all
    if (ranks().rank == 0) {
      for (const std::int64_t n : train::chosen_balance(net, pipeline_, p, train::kRankStages)) chosen.add(n);
    }
    balance_.clear();
    const std::string bytes = from_rank_zero(chosen.bytes());
    for (train::Unpacked in(bytes); !in.empty();) balance_.push_back(in.take<std::int64_t>());
    train::tell_balance(balance_, train::kRankStages);
  }
  train::check_balance(balance_, p, net.layers().size(), train::kRankStages);
  auto stages = std::make_unique<Stages>();
  stages->module = &net;
  stages->alive = net.alive();
  stages->all = train::stages_of(net, balance_, train::kRankStages);
  const Device device = train::device_of_layer(net, net.device());
  for (train::PipelineStage& one : stages->all) one.device = device;
  stages_ = std::move(stages);
  train::set_ranks_of(net, this);
}

// Who owns what is known until the next fit: a checkpoint may be written after this one.
void PipelineRanksStrategy::detach() noexcept {
  if (!stages_ || !stages_->module) return;
  train::set_ranks_of(*stages_->module, nullptr);
  stages_->module = nullptr;
}

// The optimizer of a rank updates the parameters of its stage: all of each, and nothing of others.
void PipelineRanksStrategy::attach_optimizers(std::span<const std::shared_ptr<optim::Optimizer>> optimizers) {
  if (!stages_ || ranks().size == 1) return;
  const NoGrad off;
  for (const auto& o : optimizers) {
    o->use_pieces([&](const ParamRef& p) -> optim::Optimizer::Piece {
      const Tensor flat = reshape(p.value->detach(), -1);
      return {.values = stages_->owner_of(*p.value) == ranks().rank ? flat : slice(flat, 0, 0, 0)};
    });
    stages_->optimizers.push_back(o);
  }
}

namespace {

// The gradients of the leaves go to the pieces that the optimizers update. `used`: whether a parameter of `all` has a
// gradient on any rank; then the empty pieces of other ranks take the step, too, and count it.
void fill_pieces(optim::Optimizer& optimizer, const std::map<const void*, bool>& used) {
  const NoGrad off;
  const std::vector<ParamRef> model = optimizer.model_parameters(), pieces = optimizer.pieces();
  for (std::size_t k = 0; k < pieces.size(); ++k) {
    const Tensor gradient = model[k].value->grad();
    Tensor& piece = *pieces[k].value;
    if (gradient.defined()) {
      const Tensor flat = reshape(gradient.detach(), -1), before = piece.grad();
      piece.set_grad(before.defined() ? before + flat : flat);
      model[k].value->set_grad({});
    } else if (const auto at = used.find(model[k].value->impl());
               at != used.end() && at->second && !piece.grad().defined()) {
      piece.set_grad(zeros(piece.shape(), piece.device(), piece.dtype()));
    }
  }
}

}  // namespace

StepOutput PipelineRanksStrategy::training_step(const StepCall& call) {
  if (!stages_ || !stages_->module)
    fail<StateError>("PipelineRanksStrategy: training_step is called outside of a fit of a module");
  Stages& all = *stages_;
  dist::ProcessGroup& ranks_of_run = *group();
  const std::size_t p = all.all.size(), s = p - 1 - static_cast<std::size_t>(ranks().rank);
  const train::PipelineStage& mine = all.all[s];
  const std::vector<train::Part> parts = train::cut("rpc_sequential", call.batch, pipeline_.microbatches);
  const train::PipelineStep step{.module = *all.module,
                                 .options = pipeline_,
                                 .parts = parts,
                                 .objective = call.objective,
                                 .exact = exact_,
                                 .words = train::kRankStages};
  std::vector<StepOutput> outputs(parts.size());  // without history
  Tensors gradients;
  train::InStep inside([&]() -> StepOutput {
    std::vector<dist::Work> sent;
    RankLinks links(ranks_of_run, mine.device, sent);
    gradients = train::run_stage(step, mine, s, p, links, outputs);
    for (const dist::Work& work : sent) work.wait();
    const NoGrad off;
    StepOutput whole;
    std::vector<double> numbers(3, 0.0);  // whether there is a weight, the loss or its sum, the weight
    if (s + 1 == p) {
      whole = train::joined(step, outputs);
      const bool sums = whole.summed().defined();
      numbers = {sums ? 1.0 : 0.0, (sums ? whole.summed() : whole.loss()).to(DType::f64).item<double>(),
                 sums ? whole.weight().item<double>() : 0.0};
    }
    const Tensor loss = from_data<double>(numbers, {3}, Device::cpu());
    control().broadcast(loss).wait();
    if (s + 1 != p) {
      numbers = loss.to_vector<double>();
      const Tensor value =
          full({}, numbers[1], mine.device, all.module->dtype() == DType::f64 ? DType::f64 : DType::f32);
      whole = numbers[0] != 0 ? StepOutput::sum(value, numbers[2]) : StepOutput(value);
    }
    all.module->on_step_output(whole);
    return whole;
  });
  StepOutput whole = call.forward(inside, call.batch);
  train::deliver(mine, std::move(gradients));
  if (p == 1) return whole;

  const std::vector<ParamRef> parameters = all.module->parameters();
  std::vector<std::uint8_t> has;
  for (const ParamRef& r : parameters) has.push_back(r.value->grad().defined() ? 1 : 0);
  const Tensor any = from_data<std::uint8_t>(has, {static_cast<std::int64_t>(has.size())}, Device::cpu());
  if (!has.empty()) control().all_reduce_now(any, dist::ReduceOp::max);
  has = any.to_vector<std::uint8_t>();
  std::map<const void*, bool> used;
  for (std::size_t i = 0; i < parameters.size(); ++i) used[parameters[i].value->impl()] = has[i] != 0;
  for (const auto& weak : all.optimizers) {
    if (const auto o = weak.lock()) fill_pieces(*o, used);
  }
  return whole;
}

Tensor PipelineRanksStrategy::through_all(const Tensor& x) {
  const Stages& all = *stages_;
  dist::ProcessGroup& ranks_of_run = *group();
  const std::size_t p = all.all.size(), s = p - 1 - static_cast<std::size_t>(ranks().rank);
  const train::PipelineStage& mine = all.all[s];
  const NoGrad off;
  const Tensor in = s == 0 ? x : receive(ranks_of_run, ranks().rank + 1, kActivations, mine.device);
  const Tensor y = all.module->layers().run(in, mine.begin, mine.end);
  if (s + 1 < p) {
    std::vector<dist::Work> sent;
    send(ranks_of_run, y, ranks().rank - 1, kActivations, sent);
    for (const dist::Work& work : sent) work.wait();
  }
  return shared(ranks_of_run, y, 0, mine.device);
}

void PipelineRanksStrategy::merge_squared_norm(Tensor& sum) { all_reduce(sum, dist::ReduceOp::sum); }
void PipelineRanksStrategy::merge_found_inf(Tensor& found) { all_reduce(found, dist::ReduceOp::max); }
std::string PipelineRanksStrategy::prevents_capture() const {
  return "strategy rpc_sequential sends activations between processes";
}

// ---- The whole module

Tensor PipelineRanksStrategy::whole(const Tensor& piece, const Tensor& of) {
  if (!stages_ || ranks().size == 1) return ProcessStrategy::whole(piece, of);
  const NoGrad off;
  const int owner = stages_->owner_of(of), me = ranks().rank;
  Tensor flat = piece;
  if (owner != 0 && me == owner) {
    std::vector<dist::Work> sent;
    send(control(), piece.detach().to(Device::cpu()), 0, kActivations, sent);
    for (const dist::Work& work : sent) work.wait();
  }
  if (me != 0) return {};
  if (owner != 0) flat = receive(control(), owner, kActivations, Device::cpu());
  return reshape(flat.detach().to(Device::cpu()), Dims(of.shape().dims()));
}

Tensor PipelineRanksStrategy::piece(const Tensor& whole, const Tensor& of) {
  if (!stages_ || ranks().size == 1) return ProcessStrategy::piece(whole, of);
  const Tensor flat = reshape(whole, -1);
  return stages_->owner_of(of) == ranks().rank ? flat : slice(flat, 0, 0, 0);
}

std::pair<std::int64_t, std::int64_t> PipelineRanksStrategy::piece_range(const Tensor& of) const {
  if (!stages_ || ranks().size == 1) return ProcessStrategy::piece_range(of);
  return {0, stages_->owner_of(of) == ranks().rank ? of.numel() : 0};
}

void PipelineRanksStrategy::unshard() {
  if (!stages_ || !stages_->module || ranks().size == 1) return;  // at the end of a fit every rank has all
  const NoGrad off;
  const std::vector<train::PipelineStage>& all = stages_->all;
  for (std::size_t s = 0; s < all.size(); ++s) {
    Tensors values;
    for (const ParamRef& r : all[s].parameters) values.push_back(r.value->detach());
    for (const auto* const buffers : {&all[s].buffers, &all[s].buffers_of_loss}) {
      for (const Tensor* b : *buffers) {
        if (b->defined()) values.push_back(*b);
      }
    }
    for (Tensor& t : values) {
      if (t.numel() == 0) continue;
      const Tensor dense = t.contiguous();
      group()->broadcast(dense, static_cast<int>(all.size() - 1 - s)).wait();
      if (!t.is_contiguous()) copy_(t, dense);
    }
  }
  train::Packed mine;
  for (const Generator* g : all[all.size() - 1 - static_cast<std::size_t>(ranks().rank)].generators) {
    const RandomRange state = g->state();
    mine.add(state.seed).add(state.offset);
  }
  const std::vector<std::string> states = gather(mine.bytes());
  for (std::size_t r = 0; r < states.size(); ++r) {
    train::Unpacked in(states[r]);
    for (Generator* g : all[all.size() - 1 - r].generators) {
      const auto seed = in.take<std::uint64_t>();
      g->set_state({.seed = seed, .offset = in.take<std::uint64_t>()});
    }
  }
}

}  // namespace levin
