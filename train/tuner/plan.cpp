#include "train/tuner/plan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "levin/autograd.h"
#include "tensor/memory/allocator.h"
#include "train/run/on_meta.h"
#include "train/run/run.h"
#include "train/tuner/search.h"

namespace levin {
namespace train {
namespace {

std::size_t bytes_of(const Tensor& t) { return static_cast<std::size_t>(t.numel()) * itemsize(t.dtype()); }

// Reads the ledger at the end of the forward pass.
struct Watch final : Callback {
  Watch(const detail::PlannedMemory& l, nn::Module& t, std::int64_t held) : ledger(&l), tree(&t), without(held) {}
  const detail::PlannedMemory* ledger;
  nn::Module* tree;
  std::int64_t without, most = 0, most_gradients = 0;
  [[nodiscard]] std::int64_t gradients() const {
    std::int64_t sum = 0;
    for (const ParamRef& p : tree->parameters()) {
      if (const Tensor g = p.value->grad(); g.defined()) sum += ledger->size_of(bytes_of(g));
    }
    return sum;
  }
  void on_before_backward(const Tensor&) override { most = std::max(most, ledger->in_use() - without - gradients()); }
  // Manual optimization may clear them before the end.
  void on_before_optimizer_step(optim::Optimizer&) override { most_gradients = std::max(most_gradients, gradients()); }
};

// Fields that are on meta already are not in the ledger.
Batch counted(Batch batch) {
  for (Tensor& t : batch.fields) {
    if (t.defined() && t.device().is_meta()) t = empty_like(t);
  }
  return batch;
}

void evaluate(Trainer::Run& run, train::Loop loop, const Batch& batch) {
  const ModeGuard modes(run.borrowed.tree_of_active());
  run.borrowed.tree_of_active()->train(false);
  const NoGrad off;
  run.precision.run([&] {
    if (loop == train::Loop::validation)
      run.borrowed.active->validation_step(batch, 0, 0);
    else if (loop == train::Loop::test)
      run.borrowed.active->test_step(batch, 0, 0);
    else
      (void)run.borrowed.active->predict_step(batch, 0, 0);
  });
}

}  // namespace

MemoryPlan plan_step(Trainer::Run& run, std::optional<train::Loop> loop, const Batch& loaded, Device as) {
  nn::Module& tree = *run.borrowed.tree_of_active();
  MemoryPlan plan;
  const detail::PlannedMemory ledger(as);
  const OnMeta moved(tree);
  plan.parameters = ledger.in_use();
  Tensors state;
  if (!loop) {
    for (const auto& o : run.optimizers.all) {
      for (Tensor& t : o->planned_state()) state.push_back(std::move(t));
    }
  }
  plan.optimizer_state = ledger.in_use() - plan.parameters;

  const Restore planning(run.planning, true);
  const Restore on_meta(run.device, Device::meta());
  const Restore train_log(run.logs.train, MetricLog());
  const Restore eval_log(run.logs.eval, MetricLog());
  const Restore scope(run.logs.scope, loop ? LogScope::eval : LogScope::train_batch);
  const Restore size(run.logs.weight, weight_of(loaded));
  const Restore steps(run.progress.global_step, run.progress.global_step);
  const Restore weight(run.window.weight, Tensor());
  const Restore loss(run.seen_loss, Tensor());  // otherwise the next plan's ledger sees this one's release
  const Restore done(run.progress.batches_done, std::int64_t{0});
  const Restore in_batch(run.in_batch, true);
  const Restore in_step(run.in_training_step, true);
  constexpr std::int64_t kMany = 1000;
  const Restore batches(run.loaders.batches, kMany);
  Batch batch = counted(loaded);
  run.to_device(*run.borrowed.active, batch, run.device);
  plan.batch = ledger.in_use() - plan.parameters - plan.optimizer_state;

  const auto watch = std::make_shared<Watch>(ledger, tree, ledger.in_use());
  const Restore watching(run.hooks.callbacks, std::vector<std::shared_ptr<Callback>>{watch});
  if (loop) {
    evaluate(run, *loop, batch);
  } else {
    const std::int64_t window = std::min<std::int64_t>(run.options.accumulate_grad_batches, 2);
    const Restore of_two(run.options.accumulate_grad_batches, window);
    for (; run.progress.batches_done <= window; ++run.progress.batches_done) (void)run.step_now(run.info(&batch));
  }
  plan.activations = watch->most;
  plan.gradients = watch->most_gradients;
  plan.peak = ledger.peak();
  return plan;
}

std::int64_t planned_use(const Trainer::Run& run, const MemoryPlan& plan, Device device) {
  const detail::PlannedMemory sizes(device);
  std::int64_t here = plan.parameters;  // the part of the plan's bytes that is in use already
  for (const auto& o : run.in_fit ? run.optimizers.all : std::vector<std::shared_ptr<optim::Optimizer>>{}) {
    for (const std::size_t bytes : o->state_sizes()) here += sizes.size_of(bytes);
  }
  return memory_stats(device).in_use + plan.peak - std::min(here, plan.peak);
}

}  // namespace train

MemoryPlan Tuner::plan_memory(TrainModule& module, const Batch& batch, std::optional<Device> as) {
  Trainer::Run& run = Trainer::Run::of(*trainer_);
  train::check_free(run, "plan_memory");
  const Device on = run.device_of(&module);
  TrainerOptions quiet = run.options;
  quiet.capture = Capture::off;
  quiet.memory_limit = std::nullopt;
  quiet.profiler.reset();
  quiet.max_epochs = 1;
  quiet.limit_train_batches = quiet.limit_val_batches = std::nullopt;
  const train::Restore options(run.options, std::move(quiet));
  const train::Restore callbacks(run.hooks.own, std::vector<std::shared_ptr<Callback>>{});
  data::DataLoader unused(data::tensor_dataset({empty({1}, Device::cpu())}));
  MemoryPlan plan;
  run.fit(module, {.train = unused}, [&] { plan = train::plan_step(run, std::nullopt, batch, as.value_or(on)); });
  return plan;
}

}  // namespace levin
