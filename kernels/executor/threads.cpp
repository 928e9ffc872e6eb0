// The public face of the thread seam.
#include "kernels/executor/cpu.h"
#include "levin/device.h"

namespace levin {

void set_num_threads(int n) {
  // More than any machine has. The memory of a pool grows with the threads that it may have.
  constexpr int kMost = 4096;
  if (n < 1 || n > kMost) fail<ConfigError>("set_num_threads: ", n, " threads are asked for, expected 1 to ", kMost);
  kernels::set_num_threads(n);
}
int num_threads() { return kernels::num_threads(); }

}  // namespace levin
