// Parts of a batch, for strategies that share one batch among devices or microbatches.
#pragma once

#include <cstdint>
#include <vector>

#include "levin/autograd.h"
#include "levin/data.h"
#include "levin/train/module.h"

namespace levin::train {

struct Part {
  Batch batch;
  std::int64_t samples = 0;
};

// The batch along dim 0 in parts of ceil(n / most) samples, n the size of its tensors: 10 in at most 4 parts are 3, 3,
// 3, 1. Tensors without a dimension are in every part as they are. Throws `op: ...`, ShapeError for tensors of several
// sizes, ConfigError for a batch without a tensor to cut or without a sample.
[[nodiscard]] std::vector<Part> cut(const char* op, const Batch& batch, std::int64_t most);

// A module whose training_step is `step`: StepCall::forward runs it under the run's precision and in its hook.
struct InStep final : TrainModuleOf<InStep> {
  explicit InStep(Function<StepOutput()> run) : run_(std::move(run)) {}
  StepOutput training_step(const Batch&, std::int64_t) override { return run_(); }

 private:
  Function<StepOutput()> run_;
};

// The same values without history.
[[nodiscard]] StepOutput detached(const StepOutput& output);

// The dtype of autocast in the thread that made it, for another thread.
class SameAutocast {
 public:
  SameAutocast() : dtype_(autocast_dtype()) {}
  template <class F>
  decltype(auto) run(F&& f) const {
    if (dtype_ == DType::f32) return f();
    const Autocast on(dtype_);
    return f();
  }

 private:
  DType dtype_;
};

// While it lives, this thread runs a step of a replica: its module logs nothing, without a warning.
class ReplicaThread {
 public:
  ReplicaThread();
  ~ReplicaThread();
  ReplicaThread(const ReplicaThread&) = delete;
  ReplicaThread& operator=(const ReplicaThread&) = delete;
  [[nodiscard]] static bool here();

 private:
  bool before_;
};

}  // namespace levin::train
