// The test program: doctest with Levin's closing line `N passed, N failed, N skipped` (test cases, not checks).
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "tests/device.h"
#include "tests/skip.h"
#include "train/inspect.h"

namespace {

struct Counts {
  int passed = 0, failed = 0, skipped = 0;
};
Counts counts;
std::string current_name;
bool current_skipped = false;

// Listens beside doctest's console reporter. A test case with subcases is entered several times and ends once.
struct Counter : doctest::IReporter {
  explicit Counter(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_start(const doctest::TestCaseData& test) override {
    current_name = test.m_name;
    current_skipped = false;
  }
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats& stats) override {
    if (!stats.testCaseSuccess) {
      ++counts.failed;
    } else if (current_skipped) {
      ++counts.skipped;
    } else {
      ++counts.passed;
    }
  }
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};
REGISTER_LISTENER("levin_counts", 1, Counter);

constexpr const char* kUsage =
    "usage: levin_tests [--filter TEXT] [--device cuda|simt] [--list] [--durations]\n"
    "  --filter TEXT  run the tests whose name contains TEXT\n"
    "  --device NAME  run the tests of kernels that are launched, on cuda or simt; without it all tests run\n"
    "  --list         print the names\n"
    "  --durations    print the seconds of each test\n";

// doctest separates filters with commas; a comma of the text is escaped.
std::string filter_of(const std::string& text) {
  std::string filter = "*";
  for (const char c : text) {
    if (c == ',' || c == '\\') filter += '\\';
    filter += c;
  }
  return filter + "*";
}

[[noreturn]] void usage_error(const std::string& message) {
  std::fprintf(stderr, "levin_tests: %s\n%s", message.c_str(), kUsage);
  std::exit(2);
}

}  // namespace

void levin::test::skip(const std::string& reason) {
  current_skipped = true;
  std::printf("SKIPPED %s: %s\n", current_name.c_str(), reason.c_str());
}

int main(int argc, char** argv) {
  levin::train::suggested_workers_instead = 1;  // what tests hear does not depend on how many CPUs there are
  doctest::Context context;
  context.setOption("no-intro", true);
  context.setOption("no-version", true);
  bool list = false;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const auto value = [&] {
      if (++i == argc) usage_error(arg + " needs a value");
      return std::string(argv[i]);
    };
    if (arg == "--filter") {
      context.addFilter("test-case", filter_of(value()).c_str());
    } else if (arg == "--device") {
      const std::string device = value();
      const auto found = levin::test::launching_device();
      if (!found || (device != "cuda" && device != "simt") || !levin::text(*found).starts_with(device)) {
        usage_error("--device " + device + ": this build and machine launch kernels on " +
                    (found ? levin::text(*found) : "no device"));
      }
      // Tests that launch kernels have one of these words in their names.
      context.addFilter("test-case", "*device*");
      context.addFilter("test-case", "*simt*");
    } else if (arg == "--list") {
      list = true;
    } else if (arg == "--durations") {
      context.setOption("duration", true);
    } else if (arg == "--help") {
      std::fputs(kUsage, stdout);
      return 0;
    } else {
      usage_error("unknown argument " + arg);
    }
  }
  if (list) {
    const char* query[] = {"levin_tests", "--list-test-cases"};
    context.applyCommandLine(2, query);
    return context.run();
  }
  const int rc = context.run();
  const bool none = counts.passed + counts.failed + counts.skipped == 0;
  if (none) std::fprintf(stderr, "levin_tests: no test has such a name; --list prints them\n");
  std::printf("%d passed, %d failed, %d skipped\n", counts.passed, counts.failed, counts.skipped);
  return rc != 0 || counts.failed != 0 || none ? 1 : 0;
}
