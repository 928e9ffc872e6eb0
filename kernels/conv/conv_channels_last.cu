// The kernels of conv_channels_last_device.cuh, apart from those of contiguous images: nvcc takes minutes for each.
#include "kernels/conv/conv_channels_last_device.cuh"

#if LEVIN_LAUNCHES
namespace levin::kernels::gpu {

LEVIN_CONV_LAST(, float)
LEVIN_CONV_LAST(, double)
LEVIN_CONV_LAST(, f16)
LEVIN_CONV_LAST(, bf16)

}  // namespace levin::kernels::gpu
#endif
