// The code of gemm.cuh: its users see declarations, so that they compile fast.
#define LEVIN_COMPILE_GEMM
#include "kernels/gemm/gemm.cuh"
