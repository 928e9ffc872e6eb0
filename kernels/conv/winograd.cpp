// The code of winograd.cuh: its users see declarations, so that they compile fast.
#define LEVIN_COMPILE_WINOGRAD
#include "kernels/conv/winograd.cuh"
