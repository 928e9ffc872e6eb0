// An H100 for cuDNN to compile for, without one.
#pragma once

#if defined(LEVIN_CUDNN)
#include <dlfcn.h>
#endif

namespace levin::kernels {

// An H100 SXM, as cuDNN 9.19 writes it down.
inline constexpr const char* kH100 =
    R"({"deviceName":"NVIDIA H100 80GB HBM3","deviceVer":900,"driverVer":13000,"cudaDeviceId":0,"pciDeviceId":0,)"
    R"("isTccDriver":0,"supportCoopLaunch":1,"multiProcessorCount":132,"warpSize":32,"maxGridSize":[2147483647,65535,)"
    R"(65535],"maxBlockSize":[1024,1024,64],"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"maxCtasPerSM":32,)"
    R"("regsPerBlock":65536,"maxRegistersPerSM":65536,"maxSharedMemoryPerBlock":49152,)"
    R"("maxSharedMemoryPerBlockOptin":232448,"reservedSharedMemoryPerBlock":1024,"totalGlobalMem":85029158912,)"
    R"("l2CacheSize":52428800,"smClockRateKHz":1980000,"memClockRateKHz":2619000})";

#if defined(LEVIN_CUDNN)
// cuDNN's engines that compile their kernels ask for libcuda by name. Where there is no driver, the toolkit's stub
// answers to that name once it is loaded: kernels are then compiled, and refused when they are loaded.
inline bool driver_or_its_stub() {
  return dlopen("libcuda.so.1", RTLD_NOW) || dlopen("/usr/local/cuda/lib64/stubs/libcuda.so", RTLD_NOW);
}
#endif

}  // namespace levin::kernels
