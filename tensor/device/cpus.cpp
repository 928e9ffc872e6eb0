#include "tensor/device/cpus.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace levin::detail {

int usable_cpus() {
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

int threads_by_environment() {
  for (const char* name : {"LEVIN_NUM_THREADS", "OMP_NUM_THREADS"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr) continue;
    // OMP_NUM_THREADS may be a list, one number a level of nesting; the first one counts here.
    int number = 0;
    const auto [end, error] = std::from_chars(value, value + std::strlen(value), number);
    constexpr int kMost = 4096;  // as set_num_threads
    if (error == std::errc() && (*end == '\0' || *end == ',') && number >= 1 && number <= kMost) return number;
  }
  return 0;
}

}  // namespace levin::detail
