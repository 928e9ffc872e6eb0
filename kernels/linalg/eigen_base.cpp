// Eigen for every CPU.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include <Eigen/Dense>

#include "kernels/linalg/linalg.h"

#define LEVIN_LEVEL base
#include "kernels/linalg/eigen_level.h"
