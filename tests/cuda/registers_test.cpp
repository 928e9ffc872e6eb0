// A kernel whose registers do not fit is an error of a build with CUDA (kernels/device/nvcc.sh). Besides, the share of
// a multiprocessor that each kernel takes is compared with bench/results/registers_sm90.md (bench/registers.py).
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "tests/skip.h"
#include "tests/temporary.h"
#include "tests/where.h"

namespace {

#if defined(LEVIN_NVCC)
// Each thread keeps 64 numbers. Two blocks of `threads` threads must be resident at once: with 256 each thread may have
// 128 registers, with 1024 only 32.
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
  const std::string line = std::string("'" + levin::test::source_dir() + "/kernels/device/nvcc.sh' ") + object + " " +
                           object + ".d " + LEVIN_NVCC + " -c " + source + " 2>" + said;
  const bool ended_well = std::system(line.c_str()) == 0;
  std::ifstream file(said);
  return {ended_well && std::filesystem::exists(object), {std::istreambuf_iterator<char>(file), {}}};
}
#endif

// The output of bench/registers.py for a folder of *.ptxas and a table.
struct Checked {
  int code;
  std::string said;
};
Checked check(const std::string& build, const std::string& table, const std::string& nvcc) {
  const levin::test::TemporaryFolder folder;
  const std::string said = folder / "said";
  const std::string line = "python3 '" + levin::test::source_dir() + "/bench/registers.py' '" + build + "' --check '" +
                           table + "' " + nvcc + " >" + said + " 2>&1";
  const int status = std::system(line.c_str());
  std::ifstream file(said);
  return {status, {std::istreambuf_iterator<char>(file), {}}};
}
bool have_python() { return std::system("python3 -c pass 2>/dev/null && c++filt --version >/dev/null 2>&1") == 0; }
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The report of ptxas on an instance of kernels/made_up.cu.
std::string instance(const std::string& mangled, int registers, int shared, int spilled = 0) {
  return "ptxas info    : Compiling entry function '" + mangled + "' for 'sm_90'\n" +
         "ptxas info    : Function properties for " + mangled + "\n    0 bytes stack frame, " +
         std::to_string(spilled) + " bytes spill stores, 0 bytes spill loads\nptxas info    : Used " +
         std::to_string(registers) + " registers, used 1 barriers" +
         (shared > 0 ? ", " + std::to_string(shared) + " bytes smem" : "") + "\n";
}
constexpr const char* kFloat =
    "_ZN5levin7kernels3gpu4fillIfEEvPT_l";  // void levin::kernels::gpu::fill<float>(float*, long)
constexpr const char* kDouble = "_ZN5levin7kernels3gpu4fillIdEEvPT_l";  // of double
constexpr const char* kOther = "_ZN5levin12_GLOBAL__N_14copyEPf";       // levin::(anonymous namespace)::copy(float*)

}  // namespace

TEST_CASE("what kernels take of a multiprocessor is what the committed table says, within its slack") {
#if defined(LEVIN_NVCC)
  if (!have_python()) return levin::test::skip("no python3 or no c++filt");
  if (std::string(LEVIN_NVCC).find("code=sm_90") == std::string::npos)
    return levin::test::skip("the table is of sm_90, and this build is not");
  const std::string nvcc = std::string(LEVIN_NVCC).substr(0, std::string(LEVIN_NVCC).find(' '));
  const Checked now =
      check(levin::test::build_dir(), levin::test::source_dir() + "/bench/results/registers_sm90.md", "--nvcc " + nvcc);
  INFO(now.said);
  CHECK(now.code == 0);
#else
  return levin::test::skip("this build has no nvcc, or does not optimise");
#endif
}

TEST_CASE("the table of registers names a kernel that grew, spills, takes too much memory, is new or is gone") {
  if (!have_python()) return levin::test::skip("no python3 or no c++filt");
  const levin::test::TemporaryFolder folder;
  const std::string table = folder / "table.md", ptxas = folder / "kernels_made_up_cu.o.ptxas";
  std::ofstream(table) << "nvcc 13.0.88, made up\n\n| file | kernel |\n|---|---|\n"
                          "| kernels/made_up.cu | `fill` | 2 | 32 | 40 | 1024 | 0 | 0 |\n"
                          "| kernels/made_up.cu | `copy` | 1 | 24 | 24 | 0 | 0 | 0 |\n";
  const auto said_of = [&](const std::string& text, const std::string& nvcc = "13.0.88") {
    std::ofstream(ptxas) << text;
    return check(folder.path(), table, "--nvcc-version " + nvcc);
  };
  const std::string copy = instance(kOther, 24, 0), fill = instance(kFloat, 24, 1024);
  {
    const Checked same = said_of(fill + instance(kDouble, 40, 1024) + copy);
    INFO(same.said);
    CHECK(same.code == 0);
  }
  // 8 registers more are the hardware's next step; one instance more or less is no change.
  CHECK(said_of(fill + instance(kDouble, 48, 1024) + copy).code == 0);
  CHECK(said_of(fill + copy).code == 0);
  const auto refused = [&](const std::string& text, const std::string& why) {
    const Checked c = said_of(text);
    INFO(c.said);
    CHECK(c.code != 0);
    CHECK(has(c.said, why));
    CHECK(has(c.said, "bench/registers.py " + folder.path() + " > " + table));
  };
  refused(fill + instance(kDouble, 49, 1024) + copy, "fill of kernels/made_up.cu takes at most 49 registers");
  refused(instance(kFloat, 44, 1024) + instance(kDouble, 40, 1024) + copy,
          "fill of kernels/made_up.cu takes in the mean 42");
  refused(instance(kFloat, 24, 1024, 8) + copy, "fill of kernels/made_up.cu spills 8 bytes");
  refused(instance(kFloat, 24, 49153) + copy, "fill of kernels/made_up.cu declares 49153 bytes of shared memory");
  refused(fill + copy + instance("_ZN5levin7kernels3gpu5drainIfEEvPT_l", 16, 0),
          "drain of kernels/made_up.cu is not in");
  refused(fill, "copy of kernels/made_up.cu is in the table and not in this build");
  // Another compiler allocates registers differently; the other columns hold for it, too.
  CHECK(said_of(fill + instance(kDouble, 99, 1024) + copy, "13.1.2").code == 0);
  CHECK(has(said_of(fill, "13.1.2").said, "copy of kernels/made_up.cu is in the table and not in this build"));
}

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

TEST_CASE("a message of ptxas about wgmma or setmaxnreg fails the build, and other messages do not") {
  const levin::test::TemporaryFolder folder;
  const std::string compiler = folder / "compiler", object = folder / "made_up.o", said = folder / "said";
  // What a compiler is called with ends in "-o OBJECT -MD -MF DEPFILE -MT OBJECT".
  const auto build = [&](const std::string& message) {
    std::ofstream(compiler) << "echo 'ptxas info    : " << message << "' >&2\ntouch \"$2\"\n";
    const std::string line = "'" + levin::test::source_dir() + "/kernels/device/nvcc.sh' " + object + " " + object +
                             ".d bash " + compiler + " 2>" + said;
    const bool ended_well = std::system(line.c_str()) == 0;
    std::ifstream file(said);
    return std::pair{ended_well && std::filesystem::exists(object),
                     std::string(std::istreambuf_iterator<char>(file), {})};
  };
  for (const char* const code : {"C7508", "C7510", "C7514", "C7515", "C7519", "C7520"}) {
    const auto [made, output] = build("(" + std::string(code) + ") in function 'made_up'");
    INFO(output);
    CHECK(!made);
    CHECK(has(output, code));
    CHECK(has(output, "made_up"));
  }
  CHECK(build("Used 40 registers, used 1 barriers").first);
  CHECK(build("Used 40 registers, used 1 barriers").second == "");
  CHECK(build("(C7600) in function 'made_up'").first);
}
