// Levin as a dependency of another project: the tests build examples/embed against an installed Levin and with Levin as
// a subproject, and measure the cost. The work folder lies in the build folder, so a second run rebuilds only what
// changed.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "tests/skip.h"
#include "tests/where.h"

namespace {

namespace fs = std::filesystem;

const fs::path kSource = levin::test::source_dir();
const fs::path kWork = fs::path(levin::test::build_dir()) / "embed";

struct Result {
  int status;
  std::string output;  // stdout and stderr
  double user_seconds;
};

double children_user_seconds() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec) + 1e-6 * static_cast<double>(usage.ru_utime.tv_usec);
}

Result shell(const std::string& command) {
  const double before = children_user_seconds();
  Result result{-1, "", 0};
  FILE* pipe = popen(("( " + command + " ) 2>&1").c_str(), "r");
  if (pipe == nullptr) return result;
  char buffer[4096];
  while (const std::size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) result.output.append(buffer, n);
  result.status = pclose(pipe);
  result.user_seconds = children_user_seconds() - before;
  return result;
}

// Runs a command that must succeed; a failed check shows the command's output.
Result must(const std::string& command) {
  Result result = shell(command);
  INFO(command, "\n", result.output);
  REQUIRE(result.status == 0);
  return result;
}

std::string quoted(const fs::path& path) { return "'" + path.string() + "'"; }

std::string trimmed(std::string text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.pop_back();
  return text;
}

int nonblank_lines(const std::string& text) {
  std::istringstream lines(text);
  int n = 0;
  for (std::string line; std::getline(lines, line);) n += line.find_first_not_of(" \t\r") != std::string::npos ? 1 : 0;
  return n;
}

double megabytes(const fs::path& file) { return static_cast<double>(fs::file_size(file)) / 1e6; }

// Where this process installs Levin, until it ends: several processes share the tests.
const fs::path& install_root() {
  static const struct Root {
    ~Root() {
      std::error_code error;
      if (::getpid() == process) fs::remove_all(path, error);
    }
    pid_t process = ::getpid();
    fs::path path = kWork / ("root-" + std::to_string(process));
  } root;
  return root.path;
}

// Installs the release build below install_root(). Returns the shell text that makes pkg-config find this Levin and no
// other.
std::string installed() {
  static const std::string environment = [] {
    fs::remove_all(install_root());
    fs::create_directories(kWork);
    must("DESTDIR=" + quoted(install_root()) + " meson install --no-rebuild --quiet -C " +
         quoted(fs::path(levin::test::build_dir())));
    const std::string found = trimmed(must("find " + quoted(install_root()) + " -name levin.pc").output);
    return "PKG_CONFIG_PATH=" + quoted(fs::path(found).parent_path());
  }();
  return environment;
}

// The compile line of a program that uses the installed Levin, with strict warnings.
std::string compile_line(const std::string& what) {
  const std::string flags = trimmed(must(installed() + " pkg-config --cflags levin").output);
  return std::string("c++ -std=c++20 -Wall -Wextra -Wconversion -Werror ") + flags + " " + what;
}

// These tests compile for minutes, and their measurements mean something in the default build alone.
bool skipped() {
  if (!levin::test::runs_everything()) {
    levin::test::skip("builds Levin into another project; ./run test --all runs it");
    return true;
  }
  if (!LEVIN_OPTIMIZED) {
    levin::test::skip("measured at optimization=2, the default");
    return true;
  }
  return false;
}

void setup(const fs::path& build, const fs::path& project, const std::string& environment, const std::string& options) {
  if (fs::exists(build / "build.ninja")) return;
  must(environment + " meson setup " + options + " " + quoted(build) + " " + quoted(project));
}

}  // namespace

TEST_CASE("a stand-alone project builds and trains against an installed Levin, through pkg-config") {
  if (skipped()) return;
  const std::string environment = installed();
  const fs::path build = kWork / "installed";
  fs::remove_all(build);  // its inputs were installed again
  setup(build, kSource / "examples" / "embed", environment, "-Dbuildtype=release --wrap-mode=nofallback");
  must("ninja -C " + quoted(build));
  const Result run = must(quoted(build / "embed"));
  MESSAGE("examples/embed printed: ", trimmed(run.output));
}

TEST_CASE("a stand-alone project builds and trains against an installed Levin, through find_package of CMake") {
  if (skipped()) return;
  if (shell("cmake --version").status != 0) return levin::test::skip("no cmake");
  installed();
  const std::string found = trimmed(must("find " + quoted(install_root()) + " -name levin-config.cmake").output);
  const fs::path build = kWork / "cmake";
  fs::remove_all(build);
  const std::string configure = "cmake -S " + quoted(kSource / "examples" / "embed") + " -B " + quoted(build) +
                                " -DCMAKE_BUILD_TYPE=Release -Dlevin_DIR=" + quoted(fs::path(found).parent_path());
  must(configure);
  must("cmake --build " + quoted(build));
  must(quoted(build / "embed"));
  // Another minor version is another interface before 1.0.
  fs::create_directories(kWork / "older");
  std::ofstream(kWork / "older" / "CMakeLists.txt") << "cmake_minimum_required(VERSION 3.16)\nproject(older CXX)\n"
                                                       "find_package(levin 0.0.9 REQUIRED)\n";
  const Result refused = shell("cmake -S " + quoted(kWork / "older") + " -B " + quoted(kWork / "older" / "build") +
                               " -Dlevin_DIR=" + quoted(fs::path(found).parent_path()));
  CHECK(refused.status != 0);
  CHECK(refused.output.find("0.1.0") != std::string::npos);
}

TEST_CASE("a stand-alone project compiles with Levin as a subproject, tests and examples off") {
  if (skipped()) return;
  const fs::path project = kWork / "project";
  fs::create_directories(project / "subprojects");
  for (const char* name : {"meson.build", "main.cpp"}) {
    fs::copy_file(kSource / "examples" / "embed" / name, project / name, fs::copy_options::update_existing);
  }
  if (!fs::is_symlink(project / "subprojects" / "levin")) {
    fs::create_directory_symlink(kSource, project / "subprojects" / "levin");
  }
  const fs::path build = kWork / "subproject";
  // Not optimised, for one instruction set: only success matters. One part of the library and one generated source
  // stand for all, which take minutes; .ci/bare builds the whole and runs it.
  setup(build, project, "env",
        "--force-fallback-for=levin -Doptimization=0 -Dlevin:optimization=0 -Ddebug=false -Dlevin:x86_levels=base");
  const std::string library = "subprojects/levin/lib";
  must("ninja -j2 -C " + quoted(build) + " embed.p/main.cpp.o " + library + "levin_host.a " + library +
       "levin_kernels.a.p/meson-generated_.._autograd_ops_index_search_cu.cpp.o");
  must("ninja -n -C " + quoted(build) + " embed");  // the rest has all it is made from
  const std::string targets = must("ninja -C " + quoted(build) + " -t targets all").output;
  CHECK(targets.find("levin_tests") == std::string::npos);
  CHECK(targets.find("bench_") == std::string::npos);
}

TEST_CASE("levin/levin.h has at most 60,000 preprocessed lines and shows no vendor's header") {
  if (skipped()) return;
  const fs::path file = kWork / "umbrella.cpp";
  installed();
  must("echo '#include <levin/levin.h>' > " + quoted(file));
  const int lines = nonblank_lines(must(compile_line("-E -P " + quoted(file))).output);
  CHECK(lines > 1000);
  CHECK(lines <= 60000);
  const std::string headers = must(compile_line("-M " + quoted(file))).output;
  CHECK(headers.find("levin/levin.h") != std::string::npos);
  for (const char* vendor : {"/tbb/", "/oneapi/", "/Eigen/", "/eigen3/", "/fmt/", "/nlohmann/", "cuda_", "cuda.h",
                             "cudnn", "nccl", "zlib.h", "png.h", "xxhash.h"}) {
    INFO(vendor);
    CHECK(headers.find(vendor) == std::string::npos);
  }
  double seconds = 1e9;  // the least of three: the others were disturbed
  for (int i = 0; i < 3; ++i) {
    seconds = std::min(seconds, must(compile_line("-fsyntax-only " + quoted(file))).user_seconds);
  }
  const double program =
      must(compile_line("-O2 -c -o /dev/null " + quoted(kSource / "examples/embed/main.cpp"))).user_seconds;
  MESSAGE("levin/levin.h: ", lines, " lines, ", seconds, " s to parse; examples/embed compiles in ", program, " s");
}

// The libraries that a link line asks for only where something needs them.
std::string optional_libraries(const std::string& line) {
  const std::size_t begin = line.find("-Wl,--push-state");
  return begin == std::string::npos ? "" : line.substr(begin, line.find(' ', begin) - begin);
}

// Levin's weight as a shared library: without an archive's relocations and names.
double stripped_megabytes(const std::string& libraries) {
  const fs::path shared = kWork / "stripped.so", built = fs::path(levin::test::build_dir()) / "liblevin.a";
  must("c++ -shared -s " LEVIN_SHARED_ARGS " -o " + quoted(shared) + " -Wl,--whole-archive " + quoted(built) +
       " -Wl,--no-whole-archive -ltbb -lz -lpng " + optional_libraries(libraries));
  return megabytes(shared);
}

constexpr const char* kOfEveryProgram[] = {"libc.", "libm.", "libstdc++.", "libgcc_s.", "ld-linux"};

// Of the shared objects that ldd names, without those that every C++ program has.
double megabytes_of_libraries(const std::string& needed) {
  std::istringstream words(needed);
  double sum = 0;
  for (std::string word; words >> word;) {
    if (word.front() != '/') continue;
    const std::string name = fs::path(word).filename().string();
    const bool of_every_program = std::any_of(std::begin(kOfEveryProgram), std::end(kOfEveryProgram),
                                              [&](const char* begin) { return name.rfind(begin, 0) == 0; });
    if (!of_every_program) sum += megabytes(fs::canonical(word));
  }
  return sum;
}

TEST_CASE("a small program needs at most 10 shared objects and 6 MB, and links no op that it does not call") {
  if (skipped()) return;
  const std::string libraries = trimmed(must(installed() + " pkg-config --static --libs levin").output);
  const fs::path program = kWork / "hello", archive = kWork / "stripped.a";
  must(compile_line("-O2 -s -o " + quoted(program) + " " + quoted(kSource / "examples/embed/main.cpp") + " " +
                    libraries));
  const std::string needed = must("ldd " + quoted(program)).output;
  const int objects = nonblank_lines(needed);
  CHECK(objects > 0);
  CHECK(objects <= 10);
  CHECK(libraries.find("-Wl,--gc-sections") != std::string::npos);
  const double own = megabytes(program), needs = megabytes_of_libraries(needed);
  CHECK(needs > 0);
#if !defined(LEVIN_CUDA)  // kernels for GPUs and their libraries determine the size otherwise
  CHECK(own <= 1.0);
  CHECK(own + needs <= 6.0);
#endif
  // Ops that neither the program nor the engine calls are not linked.
  const fs::path named = kWork / "hello_with_names";
  must(compile_line("-O2 -o " + quoted(named) + " " + quoted(kSource / "examples/embed/main.cpp") + " " + libraries));
  const std::string functions = must("nm -C " + quoted(named)).output;
  CHECK(functions.find(" T levin::backward(") != std::string::npos);
  for (const char* op : {"scatter", "gather", "sort", "cumsum", "clamp", "where", "cat", "index_select"}) {
    CAPTURE(op);
    CHECK(functions.find(std::string(" T levin::") + op + "(") == std::string::npos);
  }
  // The libraries of readers come only with the readers.
  CHECK(needed.find("libjpeg") == std::string::npos);
  CHECK(needed.find("liblzma") == std::string::npos);
  const std::string optional = optional_libraries(libraries);
  const fs::path reader = kWork / "reader.cpp";
  std::ofstream(reader) << "#include <levin/levin.h>\nint main(int, char** paths) {\n"
                           "  (void)levin::data::load_jpeg(paths[1]);\n"
                           "  (void)levin::data::load_cifar10_files({paths[1]});\n}\n";
  must(compile_line("-O1 -o " + quoted(kWork / "reader") + " " + quoted(reader) + " " + libraries));
  const std::string reader_needs = must("ldd " + quoted(kWork / "reader")).output;
  for (const char* name : {"jpeg", "lzma"}) {
    const bool built = optional.find(std::string("-l") + name) != std::string::npos;
    CHECK((reader_needs.find(std::string("lib") + name) != std::string::npos) == built);
  }
  must("strip --strip-unneeded -o " + quoted(archive) + " $(readlink -f " +
       quoted(fs::path(levin::test::build_dir()) / "liblevin.a") + ")");
  const double shared = stripped_megabytes(libraries);
#if !defined(LEVIN_CUDA)
  CHECK(shared <= 16.0);
#endif
  MESSAGE("hello: ", own, " MB stripped, ", objects, " shared objects, ", needs,
          " MB of them beside those of every C++ program; library: ", shared, " MB as a stripped shared object, ",
          megabytes(archive), " MB as a stripped archive");
}
