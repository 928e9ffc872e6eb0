// Whether this process uses a GPU's driver.
#pragma once

namespace levin::dist {

// Whether a descriptor of the folder, /proc/self/fd, leads to a device of the CUDA driver: the driver opens them when
// it is initialised, by Levin or by other code of the program.
[[nodiscard]] bool driver_is_open(const char* descriptors);

}  // namespace levin::dist
