// Launching by the CUDA runtime.
#include <cuda_runtime.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/executor/gpu.h"
#include "levin/error.h"
#include "tensor/device/launching.h"

namespace levin::kernels::lib {

namespace {

// Note [More than 48 KiB of shared memory]
// A kernel has 48 KiB of shared memory a block, static and dynamic together, unless its attribute says more. A launch
// knows its dynamic bytes only, so asking from 48 dynamic KiB on would fail between (48 KiB - static) and 48 KiB. Levin
// asks once for each kernel and device, at its first launch with any dynamic bytes, for all that the device has. It is
// a limit: what a block takes is what its launch says.
cudaError_t allow_shared(const void* kernel, int device) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, bool> asked;
  const std::lock_guard lock(mutex);
  const auto at = asked.try_emplace({kernel, device}, false).first;
  if (at->second) return cudaSuccess;
  cudaFuncAttributes has{};
  int most = 0;
  cudaError_t code = cudaFuncGetAttributes(&has, kernel);
  if (code == cudaSuccess) code = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (code == cudaSuccess) {
    code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                most - static_cast<int>(has.sharedSizeBytes));
  }
  at->second = code == cudaSuccess;
  return code;
}

// What a launch asks for beside its sizes.
struct Attributes {
  cudaLaunchAttribute at[2] = {};
  unsigned count = 0;
};
Attributes attributes_of(const Grid& grid) {
  Attributes list;
  if (grid.cluster.x * grid.cluster.y * grid.cluster.z > 1) {
    cudaLaunchAttribute& cluster = list.at[list.count++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {grid.cluster.x, grid.cluster.y, grid.cluster.z};
  }
  if (grid.overlap == Overlap::follows) {
    cudaLaunchAttribute& follows = list.at[list.count++];
    follows.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    follows.val.programmaticStreamSerializationAllowed = 1;
  }
  return list;
}

}  // namespace

void launch_kernel(const void* kernel, const Grid& grid, void** arguments, Stream stream) {
  const int device = stream.device().index();
  int before = 0;
  (void)cudaGetDevice(&before);
  if (before != device) (void)cudaSetDevice(device);
  cudaError_t code = grid.shared > 0 ? allow_shared(kernel, device) : cudaSuccess;
  if (code == cudaSuccess && grid.large_cluster)
    code = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (code == cudaSuccess) {
    Attributes attributes = attributes_of(grid);
    const auto queue = static_cast<cudaStream_t>(stream.handle());
    const cudaLaunchConfig_t config{.gridDim = grid.blocks,
                                    .blockDim = grid.threads,
                                    .dynamicSmemBytes = grid.shared,
                                    .stream = queue,
                                    .attrs = attributes.at,
                                    .numAttrs = attributes.count};
    code = attributes.count == 0 ? cudaLaunchKernel(kernel, grid.blocks, grid.threads, arguments, grid.shared, queue)
                                 : cudaLaunchKernelExC(&config, kernel, arguments);
  }
  if (before != device) (void)cudaSetDevice(before);
  if (code == cudaSuccess) [[likely]]
    return;
  (void)cudaGetLastError();
  if (levin::detail::breaks_recording(code))
    fail<CaptureError>("launch: ", cudaGetErrorString(code), " (", cudaGetErrorName(code), ")");
  if (code == cudaErrorMemoryAllocation) {
    fail<OutOfMemoryError>("launch: ", stream.device(), " has no memory left for the kernel itself (",
                           cudaGetErrorName(code), "); release_cached_memory() gives back what Levin keeps");
  }
  const unsigned of_cluster = grid.cluster.x * grid.cluster.y * grid.cluster.z;
  const std::string clusters = of_cluster > 1 ? ", in clusters of " + text(of_cluster) : "";
  fail<CudaError>("launch: ", cudaGetErrorString(code), " (", cudaGetErrorName(code), "), grid ", grid.blocks.x, " x ",
                  grid.blocks.y, " x ", grid.blocks.z, " blocks of ", grid.threads.x * grid.threads.y * grid.threads.z,
                  " threads", clusters, ", ", grid.shared, " bytes of shared memory",
                  levin::detail::late_error_hint(code));
}

}  // namespace levin::kernels::lib
