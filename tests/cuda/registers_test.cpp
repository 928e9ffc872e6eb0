// A kernel whose registers do not fit is an error of a build with CUDA; see kernels/nvcc.sh.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/skip.h"
#include "tests/temporary.h"

namespace {

#if defined(LEVIN_NVCC)
// Each thread keeps 64 numbers. Two blocks of `threads` must be resident at once: of 256, each thread may have 128
// registers, of 1024 only 32.
std::string kernel(int threads) {
  return "__global__ void __launch_bounds__(" + std::to_string(threads) + R"(, 2) many(float* p, int n) {
  float v[64];
  for (int i = 0; i < 64; ++i) v[i] = p[i * 1024 + threadIdx.x];
  for (int k = 0; k < n; ++k)
#pragma unroll
    for (int i = 0; i < 64; ++i) v[i] = v[i] * v[(i + 7) % 64] + 1.0f;
  for (int i = 0; i < 64; ++i) p[i * 1024 + threadIdx.x] = v[i];
})";
}

struct Compiled {
  bool made;
  std::string said;
};
Compiled compile(int threads) {
  const levin::test::TemporaryFolder folder;
  const std::string source = folder / "many.cu", object = folder / "many.o", said = folder / "said";
  std::ofstream(source) << kernel(threads);
  const std::string line = std::string("'" LEVIN_SOURCE_DIR "/kernels/nvcc.sh' ") + object + " " + object + ".d " +
                           LEVIN_NVCC + " -c " + source + " 2>" + said;
  const bool ended_well = std::system(line.c_str()) == 0;
  std::ifstream file(said);
  return {ended_well && std::filesystem::exists(object), {std::istreambuf_iterator<char>(file), {}}};
}
#endif

}  // namespace

TEST_CASE("a kernel that spills does not compile with this build's nvcc line, which says its name") {
#if defined(LEVIN_NVCC)
  const Compiled fits = compile(256);
  INFO(fits.said);
  CHECK(fits.made);
  const Compiled spills = compile(1024);
  CHECK(!spills.made);
  CHECK(spills.said.find("many") != std::string::npos);
  CHECK(spills.said.find("spill") != std::string::npos);
#else
  return levin::test::skip("this build has no nvcc, or does not optimise");
#endif
}
