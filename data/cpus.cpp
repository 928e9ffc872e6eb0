#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include "data/loader.h"
#include "levin/data.h"

namespace levin::data {

int available_cpus() {
  cpu_set_t set;
  int cpus = ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  // cgroup v2: "max 100000" or "150000 100000", microseconds of CPU time in each period.
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (file >> quota >> period && quota > 0 && period > 0) {
    cpus = std::min(cpus, static_cast<int>(std::ceil(quota / period)));
  }
  return std::max(1, cpus);
}

int workers_for(int cpus, int local_processes) { return std::max(1, cpus / local_processes - 1); }
int suggested_workers(int local_processes) {
  if (local_processes < 1) {
    fail<ConfigError>("suggested_workers: local_processes is ", local_processes, ", expected 1 or more");
  }
  return workers_for(available_cpus(), local_processes);
}

}  // namespace levin::data
