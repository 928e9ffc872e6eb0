// What the loader keeps to itself, and its tests look at.
#pragma once

#include <atomic>

#include "levin/data.h"

namespace levin::data {

// Seconds after which a loop that waits for a worker says so, and again each time they have passed. Tests lower it.
extern std::atomic<double> wait_notice_seconds;

// Throws ConfigError for options out of range or in contradiction, and warns of what is allowed and of no use.
void check_options(const DatasetRef& dataset, const DataLoaderOptions& options);
[[nodiscard]] bool can_pin();  // whether there is a device that page-locked memory serves

}  // namespace levin::data
