// The circumstances of a figure: device, driver, clocks, commit.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "levin/device.h"

namespace levin::bench {

// Names and values for the head of a report, without those that this machine does not report.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> facts(Device device);

// State of a GPU at this moment; 0 where the driver does not report it.
struct Clocks {
  double sm_mhz = 0, memory_mhz = 0, watts = 0;
};
[[nodiscard]] Clocks clocks(Device device);

}  // namespace levin::bench
