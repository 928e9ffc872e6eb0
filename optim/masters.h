// f32 master weights of 16-bit parameters, and the copies between masters and model.
#pragma once

#include <vector>

#include "kernels/update/loss_scale.h"
#include "levin/optim/optimizer.h"

namespace levin::optim {

struct Masters {
  // Where backward wrote a gradient, and where the update reads it: one tensor, except for masters.
  struct Gradient {
    Tensor from, to;
  };
  enum class Which : bool { masters, all };
  // The defined gradients, dense, in the order of the parameters. A master whose parameter has no gradient loses its
  // own. The caller writes the values of `to`, under the name `writer`.
  static std::vector<Gradient> gradients(Optimizer& optimizer, Which which, const char* writer);
  // The defined gradients that backward wrote, dense, as `from`, for passes that only read them. Masters lose theirs.
  static std::vector<Gradient> sources(Optimizer& optimizer);
  // Makes the group's masters, values included, in `memory` if there is one.
  static void make(Optimizer::Group& group, StateMemory* memory);
  // Throws StateError when a parameter was converted since its master was made.
  static void check(const Optimizer& optimizer);
  // Rounds masters into the model's parameters, unless *found_inf on the device is not 0, or the update has done it.
  static void round(Optimizer& optimizer, const float* found_inf);
};

// Gradients as the kernels of devices take them.
class GradientLists {
 public:
  explicit GradientLists(const std::vector<Masters::Gradient>& gradients);
  [[nodiscard]] kernels::GradientMoves moves() const { return {single_, wide_, half_, brain_}; }

 private:
  std::vector<kernels::Move<float, float>> single_;
  std::vector<kernels::Move<double, double>> wide_;
  std::vector<kernels::Move<f16, float>> half_;
  std::vector<kernels::Move<bf16, float>> brain_;
};

}  // namespace levin::optim
