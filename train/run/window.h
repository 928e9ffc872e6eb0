// Accumulation: the batches between two optimizer steps.
#pragma once

#include <cstdint>

#include "levin/train.h"
#include "train/run/progress.h"

namespace levin::train {

// A window of accumulate_grad_batches batches. The end of an epoch closes it. With manual optimization there is none.
class Window {
 public:
  Window(const TrainerOptions& options, const Progress& progress, const std::int64_t& batches, const bool& manual)
      : options_(options), progress_(progress), batches_(batches), manual_(manual) {}

  // These three are about the batch at hand, or the next one.
  [[nodiscard]] bool opens() const { return progress_.batches_done % options_.accumulate_grad_batches == 0; }
  [[nodiscard]] bool closes() const {
    const std::int64_t done = progress_.batches_done + 1;
    return done % options_.accumulate_grad_batches == 0 || done >= batches_;
  }
  [[nodiscard]] bool is_open() const { return !manual_ && !opens() && progress_.batches_done < batches_; }

  // Exact weighting: add() adds a batch's weight, and the sum divides the gradients of the window's sums.
  [[nodiscard]] bool weighs_exactly() const { return options_.accumulate_weighting == AccumulateWeighting::exact; }
  void add(const StepOutput& output);
  [[nodiscard]] Tensor divisor() const;  // f64 []; 1 where the sum is 0, as the gradients are then
  // The loss that a batch gives to backward: its sum with exact weighting, its share of the window's mean without.
  // Throws ConfigError for a loss without its weight.
  [[nodiscard]] Tensor share(const StepOutput& output) const;

  Tensor weight;  // f64 []: the sum of the window that is open or was last; undefined: none
  // From the backward of a batch until the batch counts. An exception in between leaves part of its gradients in those
  // of the window.
  bool gradients_torn = false;
  bool batch_torn = false;  // from the forward pass until the batch counts, or the fit ends

 private:
  const TrainerOptions& options_;
  const Progress& progress_;
  const std::int64_t& batches_;  // of an epoch
  const bool& manual_;
};

}  // namespace levin::train
