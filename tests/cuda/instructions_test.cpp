// The instructions that each memory-bound kernel issues per element are compared with
// bench/results/instructions_sm90.md (bench/instructions.py), by the machine code of a build with CUDA.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/skip.h"
#include "tests/temporary.h"
#include "tests/where.h"

namespace {

constexpr int kNoDisassembler = 77;  // as in bench/instructions.py

// The output of bench/instructions.py for a folder of objects and a table.
struct Checked {
  int code;
  std::string said;
};
Checked check(const std::string& build, const std::string& table, const std::string& more) {
  const levin::test::TemporaryFolder folder;
  const std::string said = folder / "said";
  const std::string line = "python3 '" + levin::test::source_dir() + "/bench/instructions.py' '" + build +
                           "' --check '" + table + "' " + more + " >" + said + " 2>&1";
  const int status = std::system(line.c_str());
  std::ifstream file(said);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, {std::istreambuf_iterator<char>(file), {}}};
}
bool have_python() { return std::system("python3 -c pass 2>/dev/null && c++filt --version >/dev/null 2>&1") == 0; }
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Machine code as cuobjdump prints it.
class Code {
 public:
  explicit Code(const std::string& mangled) { text_ = "\t\tFunction : " + mangled + "\n\t.headerflags\t@\"SM90\"\n"; }
  // The address of the first of `count` such instructions.
  int add(const std::string& instruction, int count = 1) {
    const int first = at_;
    for (int i = 0; i < count; ++i, at_ += 16) {
      char address[16];
      std::snprintf(address, sizeof address, "%04x", static_cast<unsigned>(at_));
      text_ += "        /*" + std::string(address) + "*/    " + instruction +
               " ;    /* 0x0 */\n                               /* 0x0 */\n";
    }
    return first;
  }
  int branch(const std::string& guard, int to) {
    char address[16];
    std::snprintf(address, sizeof address, "0x%x", static_cast<unsigned>(to));
    return add(guard + " BRA " + address);
  }
  [[nodiscard]] int here() const { return at_; }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
  int at_ = 0;
};

constexpr const char* kRows = "_ZN5levin7kernels3gpu18cross_entropy_rowsIfLi256EEEvPT_";  // <float, 256>(float*)
constexpr const char* kBackward = "_ZN5levin7kernels3gpu27cross_entropy_rows_backwardIfLi256EEEvPT_";

// A loop over vectors of four f32: 10 instructions and `more` for each of `vectors` of them, and four for the loop. A
// slow path of `slow` instructions and a loop over single elements stand beside.
std::string loop(int more, int vectors = 1, int slow = 40) {
  Code code(kRows);
  code.add("S2R R0, SR_TID.X");
  const int head = code.add("ISETP.GE.AND P1, PT, R0, R9, PT");
  const int after_slow = code.here() + 16;
  code.branch("@!P1", after_slow + (vectors * (10 + more) + 3) * 16);
  for (int k = 0; k < vectors; ++k) {
    code.add("LDG.E.128.CONSTANT R4, desc[UR4][R2.64]");
    code.add("FADD R4, R4, -R8", 5 + more);
    code.add("MUFU.EX2 R4, R4", 4);
  }
  code.add("IADD3 R2, P0, R2, 0x10, RZ");
  code.branch("@P0", head);
  code.add("EXIT");
  REQUIRE(code.here() == after_slow + (vectors * (10 + more) + 3) * 16);
  code.add("FMUL R4, R4, R4", slow);
  code.branch("", after_slow);
  const int single = code.add("LDG.E R4, desc[UR4][R2.64]");
  code.add("MUFU.EX2 R4, R4");
  code.branch("@P0", single);
  code.add("EXIT");
  return code.text();
}
// A loop with vector stores of four f32, of 8 instructions.
std::string stores() {
  Code code(kBackward);
  const int head = code.add("LDG.E.128 R4, desc[UR4][R2.64]");
  code.add("FADD R4, R4, -R8", 5);
  code.add("STG.E.128 desc[UR4][R2.64], R4");
  code.branch("@P0", head);
  code.add("EXIT");
  return code.text();
}

}  // namespace

TEST_CASE("memory-bound kernels issue as few instructions per element as the committed table says") {
#if defined(LEVIN_NVCC)
  if (!have_python()) return levin::test::skip("no python3 or no c++filt");
  if (std::string(LEVIN_NVCC).find("code=sm_90") == std::string::npos)
    return levin::test::skip("the table is of sm_90, and this build is not");
  const std::string nvcc = std::string(LEVIN_NVCC).substr(0, std::string(LEVIN_NVCC).find(' '));
  const Checked now = check(levin::test::build_dir(), levin::test::source_dir() + "/bench/results/instructions_sm90.md",
                            "--nvcc " + nvcc);
  if (now.code == kNoDisassembler) return levin::test::skip(now.said);
  INFO(now.said);
  CHECK(now.code == 0);
#else
  return levin::test::skip("this build has no nvcc, or does not optimise");
#endif
}

TEST_CASE("the table of instructions names a kernel that grew, is above the bar, is new or is gone") {
  if (!have_python()) return levin::test::skip("no python3 or no c++filt");
  const levin::test::TemporaryFolder folder;
  const std::string table = folder / "table.md", object = folder / "autograd_ops_reduce_cross_entropy_cu.o";
  // 14 instructions for four numbers, and 8.
  std::ofstream(table) << "nvcc 13.0.88, made up\n\n"
                          "| cross_entropy float | autograd/ops/reduce/cross_entropy.cu | 4 | 3.5 | 1.0 | 11 | 26 | |\n"
                          "| cross_entropy backward float | autograd/ops/reduce/cross_entropy.cu | 8 | 2.0 | 0.0 | 3 "
                          "| 0 | |\n";
  const auto said_of = [&](const std::string& text, const std::string& nvcc = "13.0.88") {
    std::ofstream(object) << text;
    return check(folder.path(), table, "--disassembler cat --nvcc-version " + nvcc);
  };
  const auto let_pass = [&](const std::string& text) {
    const Checked c = said_of(text);
    INFO(c.said);
    CHECK(c.code == 0);
  };
  let_pass(loop(0) + stores());
  let_pass(loop(2) + stores());          // 4.0: within the slack
  let_pass(loop(0, 4) + stores());       // unrolled: fewer instructions for the loop itself
  let_pass(loop(0, 1, 400) + stores());  // a longer slow path
  const auto refused = [&](const std::string& text, const std::string& why) {
    const Checked c = said_of(text);
    INFO(c.said);
    CHECK(c.code == 1);
    CHECK(has(c.said, why));
    CHECK(has(c.said, "bench/instructions.py " + folder.path() + " > " + table));
  };
  refused(loop(4) + stores(),
          "cross_entropy float of autograd/ops/reduce/cross_entropy.cu takes 4.5 instructions an element; the table "
          "has 3.5");
  refused(loop(0), "cross_entropy backward float of autograd/ops/reduce/cross_entropy.cu is in the table and not in");
  refused(loop(88) + stores(), "cross_entropy float of autograd/ops/reduce/cross_entropy.cu issues for 82 % of its");
  // Another compiler makes other code; the bar holds for it, too.
  CHECK(said_of(loop(4) + stores(), "13.1.2").code == 0);
  CHECK(has(said_of(loop(88) + stores(), "13.1.2").said, "issues for 82 % of its"));
  std::ofstream(table) << "nvcc 13.0.88, made up\n\n"
                          "| cross_entropy float | autograd/ops/reduce/cross_entropy.cu | 4 | 3.5 | 1.0 | 11 | 26 "
                          "| |\n";
  refused(loop(0) + stores(), "cross_entropy backward float of autograd/ops/reduce/cross_entropy.cu is not in the");
}
