// The public face of the thread seam.
#include "kernels/cpu.h"
#include "levin/device.h"

namespace levin {

void set_num_threads(int n) {
  if (n < 1) fail<ConfigError>("set_num_threads: ", n, " threads are asked for, expected 1 or more");
  kernels::set_num_threads(n);
}
int num_threads() { return kernels::num_threads(); }

}  // namespace levin
