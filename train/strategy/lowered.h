// Tensors of a module that have another dtype during training: mixed precision beside the sharded parameters.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

#include "levin/nn/module.h"

namespace levin::train {

// Floating buffers in one dtype and parameters in another, from narrow() to widen(); between them they have their own.
// The tensors, leaves and hooks stay. A value that was written in one dtype is converted to the other. Metrics stay as
// they are.
class Lowered {
 public:
  // Without a dtype those tensors stay. `others` are parameters that stay, too.
  Lowered(nn::Module& tree, std::optional<DType> parameters, std::optional<DType> buffers,
          const std::unordered_set<const void*>& others);
  ~Lowered();
  Lowered(const Lowered&) = delete;
  Lowered& operator=(const Lowered&) = delete;
  void narrow();
  void widen();

 private:
  struct One {
    Tensor value;          // the module's
    Tensor original, low;  // its memory in each dtype
    std::uint32_t seen;    // the version of the memory that it has, when it got that
  };
  void add(const Tensor& value, DType dtype);
  std::vector<One> all_;
  bool narrow_ = false;
};

}  // namespace levin::train
