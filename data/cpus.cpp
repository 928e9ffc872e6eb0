#include <algorithm>
#include <string>

#include "data/loader.h"
#include "levin/data.h"
#include "tensor/device/cpus.h"

namespace levin::data {

int available_cpus() { return detail::usable_cpus(); }

int workers_for(int cpus, int local_processes) { return std::max(1, cpus / local_processes - 1); }
int suggested_workers(int local_processes) {
  if (local_processes < 1) {
    fail<ConfigError>("suggested_workers: local_processes is ", local_processes, ", expected 1 or more");
  }
  return workers_for(available_cpus(), local_processes);
}

}  // namespace levin::data
