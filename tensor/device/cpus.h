// How many CPUs a process may use.
#pragma once

namespace levin::detail {

// Those of its affinity mask, and at most what cgroup v2 grants it. At least 1.
[[nodiscard]] int usable_cpus();

// The number of threads that CPU kernels start with: LEVIN_NUM_THREADS, else OMP_NUM_THREADS, where it is a number from
// 1 to 4096. 0: none of them says.
[[nodiscard]] int threads_by_environment();

}  // namespace levin::detail
