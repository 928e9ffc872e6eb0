// Eigen for CPUs with AVX2 and FMA, under a name of its own: of two functions of one name the linker would take either
// for both levels. Standard headers stand before the pragma, so that their functions have the code of every CPU. g++ 12
// does not define the macros of the level, by which Eigen chooses its vectors.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iosfwd>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/linalg/linalg.h"

#pragma GCC target("arch=x86-64-v3")
#ifndef __AVX2__
#define __SSE3__ 1
#define __SSSE3__ 1
#define __SSE4_1__ 1
#define __SSE4_2__ 1
#define __AVX__ 1
#define __AVX2__ 1
#define __FMA__ 1
#endif
#define Eigen EigenV3
#include <Eigen/Dense>

#define LEVIN_LEVEL v3
#include "kernels/linalg/eigen_level.h"
