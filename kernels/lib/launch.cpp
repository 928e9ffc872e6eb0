// Launching by the CUDA runtime.
#include <cuda_runtime.h>

#include "kernels/gpu.h"
#include "levin/error.h"
#include "tensor/launching.h"

namespace levin::kernels::lib {

void launch_kernel(const void* kernel, const Grid& grid, void** arguments, Stream stream) {
  int before = 0;
  (void)cudaGetDevice(&before);
  if (before != stream.device().index()) (void)cudaSetDevice(stream.device().index());
  // More than 48 KiB of dynamic shared memory must be asked for, once a kernel.
  cudaError_t code = cudaSuccess;
  if (grid.shared > 48u * 1024u) {
    code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(grid.shared));
  }
  if (code == cudaSuccess) {
    code = cudaLaunchKernel(kernel, grid.blocks, grid.threads, arguments, grid.shared,
                            static_cast<cudaStream_t>(stream.handle()));
  }
  if (before != stream.device().index()) (void)cudaSetDevice(before);
  if (code == cudaSuccess) [[likely]]
    return;
  (void)cudaGetLastError();
  fail<CudaError>("launch: ", cudaGetErrorString(code), " (", cudaGetErrorName(code), "), grid ", grid.blocks.x, " x ",
                  grid.blocks.y, " x ", grid.blocks.z, " blocks of ", grid.threads.x * grid.threads.y * grid.threads.z,
                  " threads, ", grid.shared, " bytes of shared memory", levin::detail::late_error_hint(code));
}

}  // namespace levin::kernels::lib
