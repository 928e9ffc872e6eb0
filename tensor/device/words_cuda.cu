// Sets words on the device from the arguments of a kernel. Built with CUDA alone.
#include <cuda_runtime.h>

#include "levin/error.h"
#include "tensor/device/launching.h"
#include "tensor/device/runtime.h"

namespace levin::detail::runtime {
namespace {

__global__ void store_words(unsigned long long* to, Words words) {
  if (threadIdx.x < 2 * words.count) to[threadIdx.x] = words.at[threadIdx.x / 2][threadIdx.x % 2];
}

}  // namespace

void set_words(std::uint64_t* to, const Words& words, Stream stream) {
  auto* out = reinterpret_cast<unsigned long long*>(to);
  Words values = words;
  void* arguments[] = {&out, &values};
  int before = 0;
  (void)cudaGetDevice(&before);
  if (before != stream.device().index()) (void)cudaSetDevice(stream.device().index());
  const cudaError_t code =
      cudaLaunchKernel(reinterpret_cast<const void*>(&store_words), dim3(1), dim3(2 * kWordsAtOnce), arguments, 0,
                       static_cast<cudaStream_t>(stream.handle()));
  if (before != stream.device().index()) (void)cudaSetDevice(before);
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();
  if (breaks_recording(code)) fail<CaptureError>("launch: setting words: ", cudaGetErrorString(code));
  fail<CudaError>("launch: setting words failed: ", cudaGetErrorString(code), late_error_hint(code));
}

}  // namespace levin::detail::runtime
