// Internals of the loader that its tests use.
#pragma once

#include <atomic>

#include "levin/data.h"

namespace levin::data {

// Seconds between the notices of a loop that waits for a worker. Tests lower them.
extern std::atomic<double> wait_notice_seconds;

[[nodiscard]] int workers_for(int cpus, int local_processes);  // what suggested_workers gives on a machine of `cpus`

// Throws ConfigError for options out of range or in contradiction, and warns of useless ones.
void check_options(const DatasetRef& dataset, const DataLoaderOptions& options);
void check_options(const IterableDatasetRef& dataset, const DataLoaderOptions& options);
[[nodiscard]] bool can_pin();  // whether there is a device that page-locked memory serves

}  // namespace levin::data
