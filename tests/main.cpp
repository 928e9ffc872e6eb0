// The test program: doctest with Levin's progress and its closing line `N passed, N failed, N skipped` (test cases, not
// checks). The output of a passing test is dropped, that of a failing test is shown (tests/capture.h).
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "comm/job/spawned_test.h"
#include "levin/warning.h"
#include "tests/capture.h"
#include "tests/device.h"
#include "tests/ops/samples.h"
#include "tests/skip.h"
#include "train/data/loader_advice.h"

namespace {

struct Counts {
  int passed = 0, failed = 0, skipped = 0;
};
Counts counts;
std::map<std::string, int> skips;  // by reason
std::string current_name;
bool current_skipped = false;
bool everything = false;
levin::test::Capture* capture = nullptr;  // null: --verbose
std::string unexpected;                   // ids of warnings that the test case did not capture

// Warnings that may be false alarms or merely inform depend on the machine and its load; a test must expect every other
// one.
void hear_warnings() {
  unexpected.clear();
  levin::set_warning_handler([](const levin::Warning& w) {
    std::fprintf(stderr, "%s [%s]\n", w.text.c_str(), w.id.c_str());
    if (w.category != levin::WarningCategory::possible_user && w.category != levin::WarningCategory::info)
      unexpected += " " + w.id;
  });
}

// Listens before doctest's console reporter. A test case with subcases starts several times and ends once.
struct Progress : doctest::IReporter {
  explicit Progress(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_start(const doctest::TestCaseData& test) override {
    current_name = test.m_name;
    current_skipped = false;
    hear_warnings();
    if (capture) capture->start();
  }
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats& stats) override {
    const bool passed = stats.testCaseSuccess && unexpected.empty();
    if (capture) capture->end(passed ? levin::test::Output::dropped : levin::test::Output::shown);
    if (!passed) {
      ++counts.failed;
      std::printf("FAILED %s\n", current_name.c_str());
      if (!unexpected.empty())
        std::printf("  warnings that the test does not capture (tests/warnings.h):%s\n", unexpected.c_str());
    } else if (current_skipped) {
      ++counts.skipped;
    } else {
      ++counts.passed;
    }
    constexpr int kTestsPerLine = 100;
    if (const int done = counts.passed + counts.failed + counts.skipped; done % kTestsPerLine == 0)
      std::printf("levin_tests: %d tests done\n", done);
    std::fflush(stdout);
  }
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};
REGISTER_LISTENER("levin_progress", 1, Progress);

constexpr const char* kUsage =
    "usage: levin_tests [--all] [--filter TEXT | --name NAME] [--file TEXT] [--device cuda|simt] [--list | "
    "--list-ops]\n"
    "                   [--durations] [--verbose]\n"
    "  --all          also the tests that build Levin into other projects, for minutes\n"
    "  --filter TEXT  run the tests whose name contains TEXT\n"
    "  --name NAME    run the test of this name; with --device, on that device\n"
    "  --file TEXT    run the tests of the source files whose path contains TEXT, as in train/callbacks\n"
    "  --device NAME  run the tests of kernels that are launched, on cuda or simt; without it all tests run\n"
    "  --list         print the names\n"
    "  --list-ops     print the cases of the op table; LEVIN_OPS=REGEX of the environment chooses among them, on a "
    "device\n"
    "  --durations    print the seconds of each test\n"
    "  --verbose      print what passing tests print, and the reason of each skip\n";

// doctest separates filters with commas; a comma of the text is escaped.
std::string escaped(const std::string& text) {
  std::string filter;
  for (const char c : text) {
    if (c == ',' || c == '\\') filter += '\\';
    filter += c;
  }
  return filter;
}
std::string filter_of(const std::string& text) { return "*" + escaped(text) + "*"; }

[[noreturn]] void usage_error(const std::string& message) {
  std::fprintf(stderr, "levin_tests: %s\n%s", message.c_str(), kUsage);
  std::exit(2);
}

}  // namespace

void levin::test::skip(const std::string& reason) {
  current_skipped = true;
  ++skips[reason];
  std::printf("SKIPPED %s: %s\n", current_name.c_str(), reason.c_str());
}
bool levin::test::runs_everything() { return everything; }

int main(int argc, char** argv) {
  levin::test::start_zygote();                  // before any thread exists
  levin::train::suggested_workers_instead = 1;  // warnings in tests do not depend on the number of CPUs
  doctest::Context context;
  context.setOption("no-intro", true);
  context.setOption("no-version", true);
  bool list = false, verbose = false, by_name = false, by_device = false;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const auto value = [&] {
      if (++i == argc) usage_error(arg + " needs a value");
      return std::string(argv[i]);
    };
    if (arg == "--filter") {
      context.addFilter("test-case", filter_of(value()).c_str());
    } else if (arg == "--name") {
      by_name = true;
      context.addFilter("test-case", escaped(value()).c_str());
    } else if (arg == "--file") {
      context.addFilter("source-file", filter_of(value()).c_str());
    } else if (arg == "--device") {
      const std::string device = value();
      const auto found = levin::test::launching_device();
      if (!found || (device != "cuda" && device != "simt") || !levin::text(*found).starts_with(device)) {
        usage_error("--device " + device + ": this build and machine launch kernels on " +
                    (found ? levin::text(*found) : "no device"));
      }
      by_device = true;
    } else if (arg == "--all") {
      everything = true;
    } else if (arg == "--verbose") {
      verbose = true;
    } else if (arg == "--list") {
      list = true;
    } else if (arg == "--list-ops") {
      for (const levin::testing::NamedCase& c : levin::testing::op_cases()) std::printf("%s\n", c.name);
      return 0;
    } else if (arg == "--durations") {
      context.setOption("duration", true);
    } else if (arg == "--help") {
      std::fputs(kUsage, stdout);
      return 0;
    } else {
      usage_error("unknown argument " + arg);
    }
  }
  if (by_device && !by_name) {  // names of tests that launch kernels have one of these words
    context.addFilter("test-case", "*device*");
    context.addFilter("test-case", "*simt*");
  }
  if (list) {
    const char* query[] = {"levin_tests", "--list-test-cases"};
    context.applyCommandLine(2, query);
    return context.run();
  }
  context.setOption("minimal", !verbose);  // omits doctest's own closing lines
  levin::test::Capture captured;
  if (!verbose) capture = &captured;
  const int rc = context.run();
  for (const auto& [reason, n] : skips) std::printf("%d skipped: %s\n", n, reason.c_str());
  const bool none = counts.passed + counts.failed + counts.skipped == 0;
  if (none) std::fprintf(stderr, "levin_tests: no test has such a name; --list prints them\n");
  if (const char* ops = std::getenv("LEVIN_OPS"))
    std::printf("LEVIN_OPS=%s chose among the cases of the op table, on a device\n", ops);
  std::printf("%d passed, %d failed, %d skipped\n", counts.passed, counts.failed, counts.skipped);
  return rc != 0 || counts.failed != 0 || none ? 1 : 0;
}
