// What an op says about itself. Kernels and optimizers name their op in errors with it, so it stands below autograd.
#pragma once

#include <cstdint>

namespace levin {

// What autocast does to an op's floating inputs: `lower` to the 16-bit dtype, `full` to f32, `widest` to the widest
// among them, `keep` leaves them alone.
enum class AutocastPolicy : std::uint8_t { keep, lower, full, widest };

struct OpInfo {
  const char* name;
  AutocastPolicy autocast = AutocastPolicy::keep;
  bool float_atomics = false;  // a CUDA body whose float sums have no fixed order
};

}  // namespace levin
