#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "levin/train/pipeline_ranks_strategy.h"
#include "levin/train/pipeline_strategy.h"
#include "levin/train/trainer.h"
#include "tensor/core/team.h"
#include "train/run/run.h"
#include "train/strategy/local_devices.h"
#include "train/strategy/parts.h"
#include "train/strategy/stages.h"

namespace levin {
namespace {

using Kind = PipelineSlot::Kind;

// Tensors on their way between two stages, by microbatch: activations to the next stage, gradients back. Sending never
// waits.
class Mail {
 public:
  explicit Mail(std::size_t microbatches) : activations_(microbatches), gradients_(microbatches) {}
  void send(Kind kind, std::size_t i, Tensor t) {
    const std::lock_guard lock(mutex_);
    box(kind)[i] = std::move(t);
    changed_.notify_all();
  }
  // Throws Closed after close().
  struct Closed {};
  [[nodiscard]] Tensor take(Kind kind, std::size_t i) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return box(kind)[i].has_value() || closed_; });
    if (!box(kind)[i]) throw Closed();
    return *std::exchange(box(kind)[i], std::nullopt);
  }
  void close() noexcept {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  std::vector<std::optional<Tensor>>& box(Kind kind) { return kind == Kind::forward ? activations_ : gradients_; }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::optional<Tensor>> activations_, gradients_;  // an undefined tensor: no gradient flows back
  bool closed_ = false;
};

// The links of a stage that is a thread.
class ThreadLinks final : public train::StageLinks {
 public:
  ThreadLinks(Mail* before, Device there_before, Mail* after, Device there_after)
      : before_(before), after_(after), there_before_(there_before), there_after_(there_after) {}
  Tensor take_input(std::size_t i) override { return before_->take(Kind::forward, i); }
  void give_output(std::size_t i, const Tensor& y) override { after_->send(Kind::forward, i, y.to(there_after_)); }
  Tensor take_gradient(std::size_t i) override { return after_->take(Kind::backward, i); }
  void give_gradient(std::size_t i, const Tensor& g) override {
    before_->send(Kind::backward, i, g.defined() ? g.to(there_before_) : g);
  }

 private:
  Mail *before_, *after_;
  Device there_before_, there_after_;
};

}  // namespace

struct PipelineStrategy::Stages {
  explicit Stages(int size) : team(size) {}
  detail::Team team;
  PipelineModule* module = nullptr;
  std::vector<train::PipelineStage> all;
};

// ---- PipelineModule

void PipelineModule::on_step_output(const StepOutput&) {}
Tensor PipelineModule::operator()(const Tensor& x) {
  if (PipelineRanksStrategy* const ranks = train::ranks_of(*this)) return ranks->through_all(x);
  nn::Sequential& net = layers();
  Tensor y = x;
  for (std::int64_t i = 0; i < net.size(); ++i) {
    // A layer whose parameters a strategy has shared out is on meta until its call gathers them.
    const Device there = train::device_of_layer(net[i], y.device());
    y = net.run(there.is_meta() ? y : y.to(there), i, i + 1);
  }
  return y;
}
StepOutput PipelineModule::whole_step(const Batch& batch) {
  const Tensor y = (*this)(input_of(batch));
  Batch there = batch;
  for (Tensor& t : there.fields) {
    if (t.defined()) t = t.to(y.device());
  }
  StepOutput output = loss_of(y, there);
  on_step_output(output);
  return output;
}
StepOutput PipelineModule::training_step(const Batch& batch, std::int64_t) { return whole_step(batch); }

StepOutput PipelineModule::forward_backward(const Batch& batch) {
  Trainer::Run& run = Trainer::Run::of(trainer());
  if (!run.borrowed.manual)
    fail<StateError>(
        "forward_backward: the module optimizes automatically, where the trainer calls it; let "
        "automatic_optimization() return false");
  if (!run.in_training_step) fail<StateError>("forward_backward: called outside of training_step");
  if (!run.strategy->fuses_backward()) {
    const StepOutput output = whole_step(batch);
    manual_backward(output.loss());
    return train::detached(output);
  }
  const Function<StepOutput(TrainModule&, const Batch&)> forward = [](TrainModule& module, const Batch& b) {
    return module.training_step(b, 0);
  };
  const Function<Tensor(const StepOutput&)> objective = [&run](const StepOutput& output) {
    return run.optimizers.scaled(output.loss());
  };
  run.optimizers.move_scale(train::Optimizers::BatchEnds::no);
  run.window.gradients_torn = true;
  StepOutput output = run.strategy->training_step(
      {.module = *this, .batch = batch, .batch_idx = 0, .closes = true, .forward = forward, .objective = objective});
  run.hooks.call(train::hooks::on_before_backward, run.optimizers.scaled(output.loss()));
  run.hooks.call(train::hooks::on_after_backward);
  return output;
}

// ---- The options

PipelineStrategy::PipelineStrategy(PipelineOptions options) : options_(std::move(options)) {
  train::check_local_devices("PipelineStrategy", options_.devices);
  train::check_pipeline("PipelineStrategy", options_);
}
PipelineStrategy::~PipelineStrategy() = default;

void PipelineStrategy::check(const TrainerOptions& o) const {
  const std::size_t devices = train::local_devices("pipeline", options_.devices, o).size();
  if (!options_.balance.empty() && options_.balance.size() != devices)
    fail<ConfigError>("Trainer: strategy pipeline: balance is ", train::balance_words(options_.balance), ", ",
                      options_.balance.size(), " stages, and there are ", devices,
                      " devices; give one device for each stage");
}
void PipelineStrategy::connect(const TrainerOptions& o) {
  devices_ = train::local_devices("pipeline", options_.devices, o);
  exact_ = o.accumulate_weighting == AccumulateWeighting::exact;
}
std::optional<Device> PipelineStrategy::device() const {
  return devices_.empty() ? std::nullopt : std::optional(devices_.front());
}

// ---- The stages

void PipelineStrategy::attach_model(TrainModule& module, nn::Module*, Stage stage) {
  stages_.reset();
  if (stage != Stage::fit) return;
  const std::size_t p = devices_.size();
  PipelineModule& net = train::pipeline_module(module, p, train::kThreadStages);
  nn::Sequential& layers = net.layers();
  if (!options_.balance.empty()) {
    balance_ = options_.balance;
  } else {
    // A further fit of the module keeps its balance: the layers are in their places.
    const std::weak_ptr<const void> chosen_for = net.alive();
    const bool same = !chosen_for_.owner_before(chosen_for) && !chosen_for.owner_before(chosen_for_);
    std::int64_t known = 0;
    for (const std::int64_t n : balance_) known += n;
    if (!same || balance_.size() != p || known != layers.size())
      balance_ = train::chosen_balance(net, options_, p, train::kThreadStages);
    chosen_for_ = chosen_for;
    train::tell_balance(balance_, train::kThreadStages);
  }
  train::check_balance(balance_, p, layers.size(), train::kThreadStages);
  auto stages = std::make_unique<Stages>(static_cast<int>(p));
  stages->module = &net;
  stages->all = train::stages_of(net, balance_, train::kThreadStages);
  // All of the module goes to the last device, where loss_of runs, then each layer to its stage.
  module.to(devices_.back());
  for (std::size_t s = 0; s < p; ++s) {
    train::PipelineStage& one = stages->all[s];
    one.device = devices_[s];
    for (std::int64_t i = one.begin; i < one.end; ++i) layers[i].to(one.device);
  }
  stages_ = std::move(stages);
}
void PipelineStrategy::detach() noexcept { stages_.reset(); }

// Note [A step of stages]
// One loop runs any schedule: each stage's thread takes its passes in their order, and waits for what the pass needs.
// A microbatch enters a stage as a leaf, so its backward pass ends there; the leaf's gradient goes to the stage before.
// Gradients of parameters are added in the stage's order and reach the leaves once, when the step is complete, so hooks
// see whole gradients and an error leaves none.
StepOutput PipelineStrategy::training_step(const StepCall& call) {
  if (!stages_) fail<StateError>("PipelineStrategy: training_step is called outside of a fit of a module");
  Stages& all = *stages_;
  const std::size_t p = all.all.size();
  const std::vector<train::Part> parts = train::cut("pipeline", call.batch, options_.microbatches);
  const train::PipelineStep step{.module = *all.module,
                                 .options = options_,
                                 .parts = parts,
                                 .objective = call.objective,
                                 .exact = exact_,
                                 .words = train::kThreadStages};
  std::vector<std::unique_ptr<Mail>> mail;  // between stage s and s + 1
  for (std::size_t s = 0; s + 1 < p; ++s) mail.push_back(std::make_unique<Mail>(parts.size()));
  std::vector<StepOutput> outputs(parts.size());  // without history
  std::vector<Tensors> gradients(p);

  train::InStep inside([&]() -> StepOutput {
    const train::SameAutocast autocast;
    std::exception_ptr cause;
    std::mutex mutex;
    // The last stage, with the loss and what the module logs, runs on this thread.
    all.team.run([&](int member) {
      const std::size_t s = (static_cast<std::size_t>(member) + p - 1) % p;
      const bool first = s == 0, last = s + 1 == p;
      ThreadLinks links(first ? nullptr : mail[s - 1].get(), all.all[first ? s : s - 1].device,
                        last ? nullptr : mail[s].get(), all.all[last ? s : s + 1].device);
      try {
        autocast.run([&] { gradients[s] = train::run_stage(step, all.all[s], s, p, links, outputs); });
      } catch (const Mail::Closed&) {  // of another stage's error
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!cause) cause = std::current_exception();
        for (const auto& box : mail) box->close();
      }
    });
    if (cause) std::rethrow_exception(cause);
    const NoGrad off;
    StepOutput whole = train::joined(step, outputs);
    all.module->on_step_output(whole);
    return whole;
  });
  const StepOutput whole = call.forward(inside, call.batch);
  for (std::size_t s = 0; s < p; ++s) train::deliver(all.all[s], std::move(gradients[s]));
  return whole;
}

std::string PipelineStrategy::prevents_capture() const {
  return "strategy pipeline runs a step on several devices by threads";
}

}  // namespace levin
