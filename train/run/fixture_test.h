// A small problem for the trainer's tests: points in the plane, a net with dropout, a loader that shuffles.
#pragma once

#include <string>
#include <vector>

#include "levin/autograd.h"
#include "levin/nn.h"
#include "levin/ops.h"
#include "levin/train.h"
#include "tests/temporary.h"

namespace levin::test {

struct Net : nn::Module {
  using Module::Module;
  nn::Linear fc1{*this, "fc1", {.in = 2, .out = 16}};
  nn::Dropout drop{*this, "drop", {.p = 0.25}};
  nn::Linear fc2{*this, "fc2", {.in = 16, .out = 1}};
  Tensor operator()(const Tensor& x) const { return fc2(drop(tanh(fc1(x)))); }
};

inline data::DatasetRef points(std::int64_t n) {
  Generator gen(5);
  const Tensor x = randn({n, 2}, gen, Device::cpu());
  return data::tensor_dataset({x, slice(x, 1, 0, 1) * slice(x, 1, 1, 2)});
}
inline data::DataLoader loader(std::int64_t n = 40, std::int64_t batch_size = 4) {
  return data::DataLoader(points(n), {.batch_size = batch_size, .shuffle = true, .generator = Generator(9)});
}

inline Tensor squared_error(const Tensor& y, const Tensor& target) { return mean(square(y - target)); }

inline std::vector<float> weights_of(const nn::Module& net) {
  std::vector<float> all;
  for (const auto& [name, t] : net.state_dict()) {
    const std::vector<float> values = t.to_vector<float>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

// Options of a run that writes and prints nothing.
inline TrainerOptions silent() {
  TrainerOptions options;
  options.logger = false;
  options.enable_checkpointing = false;
  options.enable_progress_bar = false;
  options.enable_model_summary = false;
  options.handle_signals = false;
  options.num_sanity_val_steps = 0;
  options.log_every_n_steps = 1;
  return options;
}

}  // namespace levin::test
