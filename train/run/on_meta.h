// Moves a module to the meta device for a scope.
#pragma once

#include <utility>
#include <vector>

#include "levin/nn/module.h"

namespace levin::train {

// On meta the module's values are shapes. The end of the scope restores its tensors, gradients and generators.
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
