// The code of conv.cuh: its users see declarations, so that they compile fast.
#define LEVIN_COMPILE_CONV
#include "kernels/conv/conv.cuh"
