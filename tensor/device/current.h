// The device that other libraries of the process work on.
#pragma once

#include "levin/device.h"

namespace levin::detail::runtime {

// Makes a device current for a scope: other code of the process may depend on its current device.
class Current {
 public:
  explicit Current(Device device);  // throws CudaError
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  int before_ = 0, now_ = 0;
};

}  // namespace levin::detail::runtime
