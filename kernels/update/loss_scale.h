// Dynamic loss scaling: how the scale moves, on the host and on devices, and the kernels of devices that launch them
// (loss_scale_device.cu). Micikevicius et al., "Mixed precision training", 2018.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/executor/gpu.h"
#include "kernels/executor/hd.h"
#include "kernels/update/update_device.h"
#include "levin/dtype.h"

namespace levin::kernels {

struct LossScaleRule {
  double growth, backoff;
  std::int64_t interval;  // updates in a row without an overflow, after which the scale grows
  float most;             // it does not grow beyond
};

// The scale after an update that did or did not see an overflow. It stays a normal number, so 1 / scale is finite and a
// scale that fell can grow again.
LEVIN_HD void next_scale(const LossScaleRule& r, bool found, float& scale, std::int64_t& tracker) {
  constexpr double least = 0x1p-126;
  if (found) {
    const double lower = static_cast<double>(scale) * r.backoff;
    scale = static_cast<float>(lower > least ? lower : least);
    tracker = 0;
  } else if (++tracker >= r.interval) {
    const double higher = static_cast<double>(scale) * r.growth;
    if (higher <= static_cast<double>(r.most)) scale = static_cast<float>(higher);
    tracker = 0;
  }
}

// Where the verdicts of an update's optimizers lie, and whether each made its step, that is, skipped it where its
// verdict is not 0.
struct Verdicts {
  static constexpr int kMost = 256;
  int count = 0;
  const float* found[kMost];
  bool stepped[kMost];
};

// What loss scaling keeps in the device's memory.
struct LossScale {
  float* scale;
  std::int64_t* tracker;
  std::int64_t* skipped;  // steps of optimizers
};

// Gradients, and where they go: to themselves, from 16 bits to the f32 gradients of master weights, or, null, nowhere.
template <class From, class To>
struct Move {
  const From* from;
  To* to;
  std::int64_t n;
};
struct GradientMoves {
  std::span<const Move<float, float>> single;
  std::span<const Move<double, double>> wide;
  std::span<const Move<f16, float>> half;
  std::span<const Move<bf16, float>> brain;
};

// Doubles of work memory that unscale_on_device needs.
[[nodiscard]] std::int64_t unscale_workspace(const GradientMoves& gradients);
// What the unscaling also makes of its verdict, for an update that reads the gradients as they are: the update's
// factors, and the scale that follows where `state` has one. `state.scale` may be the scale that the pass reads.
struct StepVerdict {
  Factors factors;
  LossScaleRule rule;
  LossScale state;
};
// to = from * 1 / *scale, 1 / scale formed in double; *found_inf = whether one of the results is not finite, 0 or 1;
// *norm = the 2-norm of the results, summed in double in a fixed order. One pass over the gradients, which only reads
// those without `to`.
void unscale_on_device(const Gpu& on, const GradientMoves& gradients, const float* scale, double* workspace,
                       float* found_inf, double* norm, const StepVerdict& step = {});
// to = from, rounded once where `to` has 16 bits; not where *found_inf is not 0 (null: always). (From, To): f32 and one
// of 16 bits, either way.
template <class From, class To>
void convert_on_device(const Gpu& on, std::span<const Move<From, To>> moves, const float* found_inf = nullptr);
// Counts what was skipped and moves the scale by whether any verdict is not 0.
void update_scale_on_device(const Gpu& on, const Verdicts& verdicts, const LossScaleRule& rule, const LossScale& state);

}  // namespace levin::kernels
