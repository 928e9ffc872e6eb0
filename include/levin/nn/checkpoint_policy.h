// Activation checkpointing by a policy: which modules run in levin::checkpoint(), told from outside of them.
//
//   const nn::CheckpointPolicy policy([](const nn::Module& m) { return dynamic_cast<const Block*>(&m) != nullptr; });
//   backward(loss_of(model(x)));  // blocks keep their inputs alone, and run again in backward
#pragma once

#include <span>

#include "levin/autograd.h"
#include "levin/function.h"
#include "levin/nn/call.h"
#include "levin/nn/module.h"

namespace levin::nn {

// While it lives, the modules of this thread that `takes` takes run in checkpoint(): outside of one that does already.
// A module is called as its struct declares, so its caller has to ask the policy: nn::Sequential does for its children,
// other modules call children by run(). A module that is taken and called otherwise throws ConfigError. Of several
// policies the newest counts.
class LEVIN_API CheckpointPolicy final : private CallWatch {
 public:
  explicit CheckpointPolicy(Function<bool(const Module&)> takes);
  ~CheckpointPolicy() override;
  // Whether the policy of this thread, if there is one, takes the module at this place.
  [[nodiscard]] static bool takes(const Module& module);
  // checkpoint(call, x) of a module that is taken.
  [[nodiscard]] static Tensor apply(Function<Tensor(const Tensor&)> call, const Tensor& x);

 private:
  void called(const Module& module, std::span<const Tensor* const> inputs) override;
  void returned(const Module& module, std::span<const Tensor* const> outputs) override;
  Function<bool(const Module&)> takes_;
  CheckpointPolicy* outer_;
  int regions_ = 0;  // that are running
};

// module(x), in a checkpoint where a policy takes the module.
template <class M>
[[nodiscard]] Tensor run(const M& module, const Tensor& x) {
  if (!CheckpointPolicy::takes(module)) return module(x);
  return CheckpointPolicy::apply([&module](const Tensor& in) { return module(in); }, x);
}

}  // namespace levin::nn
