// What cuDNN says of a call for a device that is described to it: how tests without one learn whether it would be taken.
#pragma once

#include <cstdint>
#include <string>

namespace levin::kernels::lib {

// The plans that cuDNN makes for a device that is described (in cuDNN's JSON) and need not be here.
struct CudnnPlans {
  int engines = 0;             // named by the heuristics
  int refused = 0;             // of these: bits that vary, or sums or products in less than f32
  int plans = 0;               // of the others: made for the device
  int unloaded = 0;            // or compiled for it, and not loaded because there is no driver
  std::int64_t workspace = 0;  // bytes, of the first
  std::string why;             // what cuDNN said last where there is neither
};

}  // namespace levin::kernels::lib
