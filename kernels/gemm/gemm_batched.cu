// The kernels of gemm_batched (gemm_device.cuh), for all who multiply strided matrices.
#include "kernels/gemm/gemm_device.cuh"

#if LEVIN_LAUNCHES
namespace levin::kernels::gpu {

LEVIN_GEMM_BATCHED()

}  // namespace levin::kernels::gpu
#endif
