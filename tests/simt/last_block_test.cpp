// The last block of a kernel finishes what all have begun.
#include <doctest/doctest.h>

#include "kernels/device/last_block.cuh"
#include "tests/simt/launch.h"

using namespace levin;

namespace {

// parts[block] = block + 1; the last of the blocks with one number of z adds the parts of that number in order.
__global__ void add_by_last(int* parts, int* sums, int* finished, unsigned* tickets) {
  const unsigned block = blockIdx.z * gridDim.x + blockIdx.x;
  if (threadIdx.x == 0) parts[block] = int(block) + 1;
  if (!kernels::gpu::is_last_block(tickets + blockIdx.z, gridDim.x)) return;
  if (threadIdx.x != 0) return;
  ++finished[blockIdx.z];
  for (unsigned b = 0; b < gridDim.x; ++b) sums[blockIdx.z] = 3 * sums[blockIdx.z] + parts[blockIdx.z * gridDim.x + b];
}

}  // namespace

TEST_CASE("simt: one block of each group comes last, sees what all have written, and leaves the counter at 0") {
  int want[2] = {};
  for (int z = 0; z < 2; ++z)
    for (int b = 0; b < 5; ++b) want[z] = 3 * want[z] + z * 5 + b + 1;
  unsigned tickets[2] = {};
  test::on_every_schedule([&](simt::Schedule, std::uint64_t) {
    for (int again = 0; again < 2; ++again) {
      int parts[10] = {}, sums[2] = {}, finished[2] = {};
      test::launch(add_by_last, dim3(5, 1, 2), dim3(64), 0, parts, sums, finished, tickets);
      for (int z = 0; z < 2; ++z) {
        CHECK(sums[z] == want[z]);
        CHECK(finished[z] == 1);
        CHECK(tickets[z] == 0);
      }
    }
  });
}
