// A window of accumulation: the batches between two optimizer steps.
#pragma once

#include <cstdint>

#include "levin/train.h"
#include "train/run/progress.h"

namespace levin::train {

// A window has accumulate_grad_batches batches, and the end of an epoch closes it. Manual optimization has none.
class Window {
 public:
  Window(const TrainerOptions& options, const Progress& progress, const std::int64_t& batches, const bool& manual)
      : options_(options), progress_(progress), batches_(batches), manual_(manual) {}

  // opens, closes: whether the current batch (between batches: the next one) is the first or the last of a window.
  // is_open: whether a window has batches and waits for more.
  [[nodiscard]] bool opens() const { return progress_.batches_done % options_.accumulate_grad_batches == 0; }
  [[nodiscard]] bool closes() const {
    const std::int64_t done = progress_.batches_done + 1;
    return done % options_.accumulate_grad_batches == 0 || done >= batches_;
  }
  [[nodiscard]] bool is_open() const { return !manual_ && !opens() && progress_.batches_done < batches_; }

  // With exact weighting add() sums the weights of batches, and the sum divides the window's gradients.
  [[nodiscard]] bool weighs_exactly() const { return options_.accumulate_weighting == AccumulateWeighting::exact; }
  void add(const StepOutput& output);
  [[nodiscard]] Tensor divisor() const;  // f64 []: the sum; 1 if that is 0, because the gradients are then 0 too
  // The loss that backward gets of a batch: with exact weighting its sum, otherwise its share of the window's mean.
  // Undefined if the step returned no loss. Throws ConfigError for a loss without the weight that it needs.
  [[nodiscard]] Tensor share(const StepOutput& output) const;

  Tensor weight;  // f64 []: the sum of the open or last window; undefined: none
  // From the backward pass of a batch until the batch counts. An exception in between leaves a part of its gradients in
  // those of the window.
  bool gradients_torn = false;
  bool batch_torn = false;  // from the forward pass of a batch until the batch counts

 private:
  const TrainerOptions& options_;
  const Progress& progress_;
  const std::int64_t& batches_;  // of an epoch
  const bool& manual_;
};

}  // namespace levin::train
