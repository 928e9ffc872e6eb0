#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>

#include "tests/layering/rules.h"
#include "tests/where.h"

using namespace levin::layering;

namespace {

std::string read(const std::string& path) {
  std::ifstream file(std::filesystem::path(levin::test::source_dir()) / path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// All violations as one text, so that a failing check prints them.
std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

struct Plant {
  const char* path;
  const char* text;
  const char* expected;  // a part of the violation; "" where the text is allowed
};

}  // namespace

TEST_CASE("every #include of the tree follows the table of layers") {
  std::vector<std::string> violations;
  const auto files = source_files(levin::test::source_dir());
  REQUIRE(files.size() > 1);
  for (const std::string& path : files) {
    const std::string text = read(path);
    for (const auto& v : include_violations(path, text)) violations.push_back(v);
    for (const Include& include : includes_of(text)) {
      if (include.angled || include.name.empty() || is_stop(path, include)) continue;
      const std::string target = include.name.rfind("levin/", 0) == 0 ? "include/" + include.name : include.name;
      if (!std::filesystem::exists(std::filesystem::path(levin::test::source_dir()) / target)) {
        violations.push_back(path + ":" + std::to_string(include.line) + ": \"" + include.name +
                             "\" is not a path from the source root");
      }
    }
  }
  CHECK(joined(violations) == "");
}

TEST_CASE("no file of the tree has assert, stream headers in headers, or an op outside the op table") {
  std::vector<std::string> violations;
  for (const std::string& path : source_files(levin::test::source_dir())) {
    for (const auto& v : text_violations(path, read(path))) violations.push_back(v);
  }
  CHECK(joined(violations) == "");
}

TEST_CASE("every function and class of the public headers has a comment, alone or with its group") {
  std::vector<std::string> violations;
  for (const std::string& path : source_files(levin::test::source_dir())) {
    if (!path.starts_with("include/")) continue;
    for (const auto& v : undocumented(path, read(path))) violations.push_back(v);
  }
  CHECK(joined(violations) == "");

  const auto names = [](const char* text) { return joined(undocumented("a.h", text)); };
  CHECK(names("[[nodiscard]] LEVIN_API Tensor\nexp(const Tensor& x);\n") == "a.h:1: exp has no comment\n");
  CHECK(names("// e^x.\nLEVIN_API Tensor exp(const Tensor& x);\n\nLEVIN_API Tensor log(const Tensor& x);\n") ==
        "a.h:4: log has no comment\n");
  CHECK(names("// ---- Pointwise\n  class LEVIN_API Node : public Base {\n") == "a.h:2: Node has no comment\n");
  CHECK(names("// e^x and log.\nLEVIN_API Tensor exp(Tensor x);\nLEVIN_API Tensor log(Tensor x);\n") == "");
  CHECK(names("LEVIN_API Tensor t(Tensor x);  // rank 2\nnamespace detail {\nLEVIN_API int f();\n}\n") == "");
}

TEST_CASE("levin/levin.h includes every public header") {
  std::set<std::string> reached;
  const auto visit = [&](const auto& self, const std::string& name) -> void {
    if (!reached.insert(name).second) return;
    for (const Include& include : includes_of(read("include/" + name))) {
      if (include.name.starts_with("levin/")) self(self, include.name);
    }
  };
  visit(visit, "levin/levin.h");
  std::string absent;
  for (const std::string& path : source_files(levin::test::source_dir())) {
    if (path.starts_with("include/") && !reached.contains(path.substr(sizeof("include/") - 1))) absent += path + "\n";
  }
  CHECK(reached.size() > 1);
  CHECK(absent == "");
}

TEST_CASE("headers do not include each other in a circle") {
  std::vector<std::pair<std::string, std::string>> headers;
  for (const std::string& path : source_files(levin::test::source_dir())) {
    // each_level.h includes a kernel file from within itself, which is its purpose.
    if (path.ends_with(".cpp") || path.ends_with(".cu") || path.ends_with("each_level.h")) continue;
    headers.emplace_back(path, read(path));
  }
  CHECK(include_cycle(headers) == "");
  CHECK(include_cycle({{"nn/a.h", "#include \"nn/b.h\"\n"}, {"nn/b.h", "#include \"nn/a.h\"\n"}}) ==
        "nn/a.h -> nn/b.h -> nn/a.h");
  CHECK(include_cycle(
            {{"nn/a.h", "#include \"nn/b.h\"\n#include \"nn/c.h\"\n"}, {"nn/b.h", "#include \"nn/c.h\"\n"}}) == "");
}

TEST_CASE("no two files of kernels/ share a name: errors name a kernel's line by its file alone") {
  std::set<std::string> names;
  std::string twice;
  for (const std::string& path : source_files(levin::test::source_dir()))
    if (path.starts_with("kernels/") && !names.insert(std::filesystem::path(path).filename().string()).second)
      twice += path + "\n";
  CHECK(names.size() > 1);
  CHECK(twice == "");
}

TEST_CASE("planted arrows against the table of layers are found") {
  const char* up = "points up or across the layers";
  const char* place = "does not belong here";
  const Plant plants[] = {
      {"tensor/core/storage.cpp", "#include \"kernels/executor/cpu.h\"\n", up},
      {"tensor/core/storage.cpp", "#include \"levin/ops.h\"\n", up},
      {"tensor/core/storage.cpp", "#include \"levin/tensor.h\"\n", ""},
      {"kernels/norm/norm.cuh", "#include \"autograd/node.h\"\n", up},
      {"kernels/norm/norm.cuh", "#include \"levin/dtype.h\"\n#include <cmath>\n", ""},
      {"autograd/engine.cpp", "#include \"nn/module.h\"\n", up},
      {"autograd/ops/reduce/norm.cu", "#include \"kernels/norm/norm.cuh\"\n", ""},
      {"nn/conv.cpp", "#include \"kernels/conv/conv.cuh\"\n", up},
      {"nn/conv.cpp", "#include \"levin/optim.h\"\n", up},
      {"nn/norm.cpp", "#include \"levin/comm.h\"\n", ""},
      {"nn/norm.cpp", "#include \"comm/group/group.h\"\n", up},
      {"optim/adam.cpp", "#include \"levin/nn.h\"\n", up},
      {"optim/adam.cpp", "#include \"levin/autograd.h\"\n", up},
      {"optim/adam.cpp", "#include \"kernels/update/update.cuh\"\n", ""},
      {"data/mnist.cpp", "#include \"levin/ops.h\"\n", up},
      {"data/mnist.cpp", "#include \"kernels/executor/cpu.h\"\n", up},
      {"train/run/trainer.cpp", "#include \"kernels/executor/cpu.h\"\n", up},
      {"train/run/trainer.cpp", "#include \"levin/engines.h\"\n", ""},
      {"nn/conv.cpp", "#include \"levin/engines.h\"\n", up},
      {"train/run/trainer.cpp", "#include \"nn/init.h\"\n", up},
      {"train/run/trainer.cpp", "#include \"nn/module.h\"\n#include \"comm/group/group.h\"\n", ""},
      {"train/run/trainer.cpp", "#include \"tests/skip.h\"\n", up},
      {"examples/mnist.cpp", "#include \"levin/levin.h\"\n#include <CLI/CLI.hpp>\n", ""},
      {"tensor/core/shape_test.cpp", "#include <doctest/doctest.h>\n#include \"nn/module.h\"\n", ""},
      {"include/levin/tensor.h", "#include \"levin/ops.h\"\n", up},
      {"include/levin/optim.h", "#include \"levin/nn.h\"\n", up},
      {"include/levin/nn/conv.h", "#include \"levin/ops.h\"\n", ""},
      {"include/levin/train.h", "#include \"levin/nn.h\"\n#include \"levin/data.h\"\n", ""},
      {"include/levin/ops.h", "#include \"levin/levin.h\"\n", up},
      {"include/levin/tensor.h", "#include \"tensor/storage.h\"\n", "internal"},
      {"include/levin/tensor.h", "#include <functional>\n", "<functional>"},
      {"include/levin/tensor.h", "#include <tbb/tbb.h>\n", "<tbb/tbb.h>"},
      {"include/levin/tensor.h", "#include <Eigen/Core>\n", "<Eigen/Core>"},
      {"include/levin/tensor.h", "#include <cuda_runtime.h>\n", "<cuda_runtime.h>"},
      {"include/levin/tensor.h", "#include <span>\n", ""},
      {"include/levin/surprise.h", "", "in no layer"},
      {"include/levin/export.h", "#include \"levin/stop/old_compiler\"\n", ""},
      {"include/levin/tensor.h", "#include \"levin/stop/old_compiler\"\n", "in no layer"},
      {"stray/file.cpp", "", "in no layer"},
      {"stray.cpp", "", "in no layer"},
      {"tensor/core/shape.cpp", "#include <fmt/format.h>\n", place},
      {"tensor/text/text.cpp", "#include <fmt/format.h>\n", ""},
      {"tensor/files/safetensors.cpp", "#include <nlohmann/json.hpp>\n", ""},
      {"train/run/trainer.cpp", "#include <nlohmann/json.hpp>\n", place},
      {"examples/levin.cpp", "#include <nlohmann/json.hpp>\n#include \"levin/levin.h\"\n", ""},
      {"kernels/norm/norm.cuh", "#include <tbb/parallel_for.h>\n", place},
      {"kernels/lib/tbb_rows.cpp", "#include <oneapi/tbb/parallel_for.h>\n", ""},
      {"kernels/gemm/cublas.cpp", "#include <cublasLt.h>\n", ""},
      {"kernels/gemm/gemm_library.h", "#include <cublasLt.h>\n", place},
      {"kernels/conv/cudnn_conv.cpp", "#include <cudnn_graph.h>\n", place},
      {"kernels/lib/gemm.cpp", "#include <Eigen/Core>\n", place},
      {"kernels/gemm/gemm_test.cpp", "#include <Eigen/Core>\n", ""},
      {"kernels/gemm/gemm.cuh", "#include <Eigen/Core>\n", place},
      {"kernels/norm/norm.cuh", "#include \"kernels/device/block.cuh\"\n", ""},
      {"kernels/device/block.cuh", "#include \"autograd/node.h\"\n", up},
      {"kernels/device/language.h", "#include \"kernels/simt/simt.h\"\n", ""},
      {"kernels/simt/run.cpp", "#include \"levin/error.h\"\n#include <sys/mman.h>\n", ""},
      {"kernels/simt/run.cpp", "#include \"levin/ops.h\"\n", up},
      {"kernels/simt/types.h", "#include <vector_types.h>\n", ""},
      {"kernels/norm/norm.cuh", "#include <vector_types.h>\n", place},
      {"nn/conv.cpp", "#include \"kernels/simt/run.h\"\n", up},
      {"data/loader.cpp", "#include <tbb/parallel_pipeline.h>\n", ""},
      {"data/mnist.cpp", "#include <zlib.h>\n", ""},
      {"train/logs/metric_log.cpp", "#include <png.h>\n", place},
      {"train/logs/metric_log.cpp", "#include <boost/any.hpp>\n", "in no table"},
      {"nn/conv.cpp", "#include <doctest/doctest.h>\n", place},
      {"nn/conv.cpp", "#include \"../tensor/storage.h\"\n", "relative path"},
      {"nn/conv.cpp", "#include NAME\n", "computed"},
      {"nn/conv.cpp", "  #  include \"levin/optim.h\"\n", up},
      {"nn/conv.cpp", "// #include \"levin/optim.h\"\n/*\n#include <png.h>\n*/\n", ""},
  };
  for (const Plant& plant : plants) {
    const std::string found = joined(include_violations(plant.path, plant.text));
    INFO(plant.path, ": ", plant.text);
    if (*plant.expected == '\0') {
      CHECK(found == "");
    } else {
      CHECK(found.find(plant.expected) != std::string::npos);
    }
  }
}

TEST_CASE(
    "planted asserts, streams, numbers by locale, ops without a table line and kernels out of the dialect are found") {
  const Plant plants[] = {
      {"nn/conv.cpp", "void f(int n) { assert(n > 0); }\n", "assert"},
      {"nn/conv_test.cpp",
       "\nTEST_CASE(\"a\") {\n  DEVICE_OR"
       "_SKIP();\n}\n",
       "nn/conv_test.cpp:2: a test that needs"},
      {"nn/conv_test.cpp",
       "\nTEST_CASE(\"a\") {\n}\nTEST_CASE(\"on a device b\") {\n  DEVICE_OR"
       "_SKIP();\n}\n",
       ""},
      {"nn/conv.cpp", "#include <cassert>\n", "assert"},
      {"train/logs/plot.cpp", "void f() { std::snprintf(line, 8, \"x %.3g\", x); }\n", "locale"},
      {"train/logs/plot.cpp", "void f() { std::snprintf(line, 8, \"%*.*f\", 1, 2, x); }\n", "locale"},
      {"train/logs/plot.cpp", "double x = std::strtod(text, nullptr);\n", "locale"},
      {"include/levin/train.h", "inline double f(std::string s) { return std::stod(s); }\n", "locale"},
      {"train/logs/plot.cpp", "// as %a\nvoid f() { std::snprintf(line, 8, \"%5d %% of %s\", n, s); }\n", ""},
      {"examples/mnist.cpp", "void f() { std::printf(\"%.3f\", x); }\n", ""},
      {"nn/conv.cpp", "static_assert(sizeof(int) == 4);\n// assert(n)\nconst char* s = \"assert(n)\";\n", ""},
      {"nn/conv.cpp", "constexpr int n = 1'000;  // it's\nvoid f() { assert (n); }\n", "nn/conv.cpp:2:"},
      {"nn/conv.h", "#include <iostream>\n", "<iostream>"},
      {"nn/conv.cpp", "#include <iostream>\n", ""},
      {"nn/conv.cpp", "std::vector<bool> mask;\n", "vector<bool>"},
      {"tensor/device/runtime_cuda.cpp", "void f() { check(cudaDeviceSynchronize()); }\n", "other threads record"},
      {"tensor/device/runtime_cuda.cpp", "void f() { check(cudaStreamSynchronize(s)); }\n", ""},
      {"include/levin/nn.h", "std::function<void()> f;\n", "std::function"},
      {"nn/conv.cpp", "std::function<void()> f;\n", ""},
      {"kernels/norm/norm.cuh", "__device__ void f() { asm(\"bar.sync 0;\"); }\n", "PTX"},
      {"kernels/device/mma.cuh", "__device__ void f() { asm(\"bar.sync 0;\"); }\n", ""},
      {"kernels/device/hardware_math.cuh", "__device__ void f() { asm(\"bar.sync 0;\"); }\n", ""},
      {"kernels/device/hopper.cuh", "__device__ void f() { asm(\"bar.sync 0;\"); }\n", ""},
      {"kernels/device/cluster.cuh", "__device__ void f() { asm(\"griddepcontrol.wait;\"); }\n", ""},
      {"kernels/device/hopper.cuh", "#include \"kernels/simt/hopper.h\"\n", ""},
      {"kernels/norm/norm.cuh", "__global__ void f() { __shared__ float x[32]; }\n", "LEVIN_SHARED"},
      {"kernels/norm/norm.cuh", "__global__ void f() { LEVIN_SHARED(float, x, 32); }  // not __shared__\n", ""},
      {"autograd/ops/reduce/norm.cu", "void f() { kernel<<<1, 32>>>(); }\n", "gpu.h"},
      {"kernels/norm/norm.cuh", "__device__ int f() { return __popc(__activemask()); }\n", "__activemask"},
      {"kernels/norm/norm.cuh", "#include \"kernels/simt/simt.h\"\n", "language.h"},
      {"autograd/ops/reduce/norm.cu", "struct Norm {\n  static constexpr OpInfo info{.name = \"norm\"};\n};\n",
       "op Norm"},
      {"autograd/ops/reduce/norm.cu",
       "struct Norm {\n  static constexpr OpInfo info{.name = \"norm\"};\n};\nLEVIN_OP_TABLE(NormBackward, 1);\n",
       "op Norm"},
      {"autograd/ops/reduce/norm.cu",
       "struct Norm {\n  static constexpr OpInfo info{.name = \"norm\"};\n};\nLEVIN_OP_TABLE(Norm, 1);\n", ""},
      {"autograd/ops/reduce/norm.cu",
       "struct Norm {\n  // why\n  static constexpr OpInfo info{.name = \"norm\"};\n};\n// LEVIN_OP_TABLE(Norm, 1);\n",
       "op Norm"},
      {"autograd/ops/reduce/norm.cu",
       "struct Norm {\n  int f() { return 1; }\n  static constexpr OpInfo info{.name = \"n\"};\n};\n", "op Norm "},
      {"autograd/ops/math.cu", "struct Exp {\n  static constexpr OpInfo info{.name = \"exp\"};\n};\n", "op Exp "},
      {"autograd/ops/math.cu",
       "struct Exp {\n  static constexpr OpInfo info{.name = \"exp\"};\n};\nLEVIN_OP_TABLE(Unary<Exp>)\n", ""},
      {"autograd/ops/pointwise/pointwise.h",
       "template <class F>\nstruct Unary {\n  static constexpr OpInfo info = F::info;\n};\n", ""},
      {"autograd/ops/pointwise/pointwise.h", "struct Exp {\n  static constexpr OpInfo info{.name = \"exp\"};\n};\n",
       "in a header"},
      {"nn/conv.cpp", "const char* s = R\"(assert(n) \" )\"; int x;\n", ""},
  };
  for (const Plant& plant : plants) {
    const std::string found = joined(text_violations(plant.path, plant.text));
    INFO(plant.path, ": ", plant.text);
    if (*plant.expected == '\0') {
      CHECK(found == "");
    } else {
      CHECK(found.find(plant.expected) != std::string::npos);
    }
  }
}

TEST_CASE("tests that launch kernels say so in their names and are in the lists that such runs compile") {
  const std::regex name(R"re(TEST_CASE\w*\(\s*"((?:[^"\\]|\\.|"\s*")*)")re"), launches("device|simt");
  const std::regex list(R"((\w*test_sources) \+= files\(([^)]*)\))"), quoted("'([^']+)'");
  const std::filesystem::path root = levin::test::source_dir();
  const auto each = [](const std::string& text, const std::regex& wanted, const auto& f) {
    for (std::sregex_iterator it(text.begin(), text.end(), wanted), end; it != end; ++it) f(*it);
  };
  std::set<std::string> of_devices;
  for (const auto& layer : std::filesystem::directory_iterator(root)) {
    if (!std::filesystem::exists(layer.path() / "meson.build")) continue;
    const std::string folder = layer.path().filename();
    each(read(folder + "/meson.build"), list, [&](const std::smatch& files) {
      if (!files[1].str().starts_with("device_")) return;
      each(files[2], quoted, [&](const std::smatch& file) { of_devices.insert(folder + "/" + file[1].str()); });
    });
  }
  REQUIRE(of_devices.contains("tests/ops/device_test.cpp"));
  std::string missing, nameless;
  for (const std::string& path : source_files(root)) {
    if (!path.ends_with("_test.cpp")) continue;
    const std::string text = read(path);
    const bool only_launches = path.ends_with("_device_test.cpp") || path.starts_with("tests/simt/");
    bool wanted = only_launches || text.find("\nLEVIN_OP_CASE") != std::string::npos;
    each(text, name, [&](const std::smatch& test) {
      const bool says_so = std::regex_search(test[1].str(), launches);
      wanted |= says_so;
      if (only_launches && !says_so) nameless += path + ": " + test[1].str() + "\n";
    });
    if (wanted && !of_devices.contains(path)) missing += path + "\n";
  }
  CHECK(missing == "");
  CHECK(nameless == "");
}
