// The kernels of conv_channels_last_device.cuh, apart from those of contiguous images: nvcc takes a minute for each.
#include "kernels/conv/conv_channels_last_device.cuh"

#if LEVIN_LAUNCHES
namespace levin::kernels::gpu {

LEVIN_CONV_LAST()

}  // namespace levin::kernels::gpu
#endif
