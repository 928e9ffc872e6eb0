// Puts a module on shapes alone.
#pragma once

#include <utility>
#include <vector>

#include "levin/nn/module.h"

namespace levin::train {

// Moves a module to meta for a scope. The end restores its tensors, gradients and generators.
class OnMeta {
 public:
  explicit OnMeta(nn::Module& tree);
  ~OnMeta() { restore(); }
  OnMeta(const OnMeta&) = delete;
  OnMeta& operator=(const OnMeta&) = delete;

 private:
  void restore() noexcept;
  nn::Module& tree_;
  Device device_;
  std::vector<std::pair<Tensor*, Tensor>> before_;
  std::vector<std::pair<Generator*, RandomRange>> generators_;
};

}  // namespace levin::train
