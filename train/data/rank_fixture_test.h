// Ranks that are threads, each with a trainer of its own.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "comm/group/local.h"
#include "levin/train/process_strategy.h"
#include "train/run/fixture_test.h"

namespace levin::test {

// Averages gradients after the backward pass.
class Averaging : public ProcessStrategy {
 public:
  explicit Averaging(const std::shared_ptr<dist::ProcessGroup>& group) : ProcessStrategy({.group = group}) {}
  void attach_optimizers(std::span<const std::shared_ptr<optim::Optimizer>> all) override {
    optimizers_.assign(all.begin(), all.end());
  }
  void detach() noexcept override { optimizers_.clear(); }
  void backward(const Tensor& loss, SyncGrad sync) override {
    levin::backward(loss);
    if (sync == SyncGrad::no) return;
    const NoGrad off;
    for (const auto& o : optimizers_) {
      for (const ParamRef& p : o->parameters()) {
        const Tensor gradient = p.value->grad();
        if (gradient.defined()) all_reduce(gradient, dist::ReduceOp::average);
      }
    }
  }

 private:
  std::vector<std::shared_ptr<optim::Optimizer>> optimizers_;
};

// Calls f(rank, options) on `size` threads. The options are silent() with the strategy of the rank.
template <class F>
void on_ranks(int size, const F& f) {
  dist::run_local(size, [&](const std::shared_ptr<dist::ProcessGroup>& group) {
    TrainerOptions options = silent();
    options.max_epochs = 1;
    options.strategy = std::make_shared<Averaging>(group);
    f(group->rank(), options);
  });
}

}  // namespace levin::test
