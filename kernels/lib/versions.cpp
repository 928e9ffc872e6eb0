#include "kernels/lib/versions.h"

#include <tbb/version.h>

#ifdef LEVIN_CUDA
#include <cublasLt.h>
#include <cuda_runtime.h>
#endif
#ifdef LEVIN_CUDNN
#include <cudnn_graph.h>
#endif

namespace levin::kernels::lib {
namespace {

// 13010, with the minor version in thousands or tens, as the library has it: 13.1.0.
[[maybe_unused]] std::string dotted(std::size_t number, std::size_t major_unit, std::size_t minor_unit) {
  return std::to_string(number / major_unit) + "." + std::to_string(number % major_unit / minor_unit) + "." +
         std::to_string(number % minor_unit);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> versions() {
  std::vector<std::pair<std::string, std::string>> all = {{"oneTBB", TBB_runtime_version()}};
#ifdef LEVIN_CUDA
  int runtime = 0;
  if (cudaRuntimeGetVersion(&runtime) == cudaSuccess)
    all.emplace_back("CUDA runtime", dotted(static_cast<std::size_t>(runtime), 1000, 10));
  all.emplace_back("cuBLASLt", dotted(cublasLtGetVersion(), 10000, 100));
#endif
#ifdef LEVIN_CUDNN
  all.emplace_back("cuDNN", dotted(cudnnGetVersion(), 10000, 100));
#endif
  return all;
}

}  // namespace levin::kernels::lib
