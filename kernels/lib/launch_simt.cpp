// Launching on the host, by the shim.
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "kernels/executor/gpu.h"
#include "kernels/simt/overlap.h"

namespace levin::kernels::lib {

void launch_kernel(std::function<void()> thread, const GridAt& to, Stream stream) {
  const Grid& grid = to.grid;
  const simt::Launch launch{.blocks = grid.blocks,
                            .threads = grid.threads,
                            .shared_bytes = grid.shared,
                            .cluster = grid.cluster,
                            .large_cluster = grid.large_cluster,
                            .follows = grid.overlap == Overlap::follows};
  if (grid.overlap == Overlap::none) {
    auto run = [launch, where = to.where, thread = std::move(thread)] {
      const std::string name = levin::detail::place_of(where);
      simt::run_grid(launch, simt::Body(thread), name.c_str());
    };
    return levin::detail::runtime::enqueue(stream, std::move(run), to.where);
  }
  auto make = [launch, where = to.where, thread = std::move(thread)] {
    return std::make_unique<simt::OverlappingGrid>(launch, thread, levin::detail::place_of(where));
  };
  levin::detail::runtime::enqueue(stream, {.make = std::move(make), .follows = launch.follows}, to.where);
}

}  // namespace levin::kernels::lib
