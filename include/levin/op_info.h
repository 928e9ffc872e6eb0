// What an op says about itself. Kernels and optimizers name their op in errors with it, so it stands below autograd.
#pragma once

#include <cstddef>
#include <cstdint>

namespace levin {

class Tensor;

// What autocast does to an op's floating inputs: `lower` casts to the 16-bit dtype, `full` to f32, `widest` to the
// widest among them, `keep` casts nothing. `full_result` casts nothing either, and the result is f32: the op reads 16
// bits and computes as for f32, so neither the tape nor a device's memory holds a copy in f32. The op's function asks
// for the dtype of the result before apply() (full_result() in autograd/autocast.h), and the op keeps it.
enum class AutocastPolicy : std::uint8_t { keep, lower, full, widest, full_result };

struct OpInfo {
  const char* name;
  AutocastPolicy autocast = AutocastPolicy::keep;
  bool float_atomics = false;  // a CUDA body whose float sums have no fixed order
};

namespace detail {
// What apply() runs, for the messages of blocking launches.
struct Launching {
  const char* op = nullptr;
  const Tensor* inputs = nullptr;
  std::size_t count = 0;
};

// The call of a module that a thread is in, for the messages of errors and the records of SyncGuard. Layers below nn
// know no modules: a path is a number (tensor/device/launching.h), which outlives the module. 0 is no path.
struct ModuleCall {
  std::uint32_t path = 0;
  const ModuleCall* outer = nullptr;
};
}  // namespace detail

}  // namespace levin
