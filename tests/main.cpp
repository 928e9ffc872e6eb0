// The test program: doctest with Levin's progress and its closing line `N passed, N failed, N skipped` (test cases, not
// checks). The output of a passing test is dropped, that of a failing test is shown (tests/capture.h).
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "comm/job/spawned_test.h"
#include "levin/warning.h"
#include "tensor/device/cpus.h"
#include "tests/capture.h"
#include "tests/device.h"
#include "tests/ops/samples.h"
#include "tests/skip.h"
#include "tests/workers.h"
#include "train/data/loader_advice.h"

namespace {

using levin::test::Counts;
levin::test::Workers* workers = nullptr;
int begun = 0;  // tests of this process
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
    ++begun;
    workers->begins(test.m_name);
    hear_warnings();
    if (capture) capture->start();
  }
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats& stats) override {
    workers->exclusively([&] { report(stats.testCaseSuccess && unexpected.empty()); });
  }
  void report(bool passed) {
    if (capture) capture->end(passed ? levin::test::Output::dropped : levin::test::Output::shown);
    if (!passed) {
      std::printf("FAILED %s\n", current_name.c_str());
      if (!unexpected.empty())
        std::printf("  warnings that the test does not capture (tests/warnings.h):%s\n", unexpected.c_str());
    }
    const bool skipped = passed && current_skipped;
    const Counts all = workers->ends({.passed = passed && !skipped, .failed = !passed, .skipped = skipped});
    constexpr int kTestsPerLine = 100;
    if (all.all() % kTestsPerLine == 0) std::printf("levin_tests: %d tests done\n", all.all());
    std::fflush(stdout);
    if (capture && workers->several()) capture->start();  // doctest's totals, which are of this test alone
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
    "                   [--jobs N] [--durations] [--verbose]\n"
    "  --all          also the tests that build Levin into other projects, for minutes, and those of benchmarks\n"
    "  --filter TEXT  run the tests whose name contains TEXT\n"
    "  --name NAME    run the test of this name; with --device, on that device\n"
    "  --file TEXT    run the tests of the source files whose path contains TEXT, as in train/callbacks\n"
    "  --device NAME  run the tests of kernels that are launched, on cuda or simt; without it all tests run\n"
    "  --list         print the names\n"
    "  --list-ops     print the cases of the op table; LEVIN_OPS=REGEX of the environment chooses among them, on a "
    "device\n"
    "  --jobs N       processes that share the tests; without it as many as cores, 4 at most. One with --name, "
    "--verbose\n"
    "                 and --device cuda\n"
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
  workers->skipped(reason);
  std::printf("SKIPPED %s: %s\n", current_name.c_str(), reason.c_str());
}
bool levin::test::runs_everything() { return everything; }

namespace {

struct Arguments {
  bool list = false, list_ops = false, help = false, verbose = false, durations = false;
  std::string name, filter, file, device;
  int jobs = 0;  // 0: not given
};

Arguments read_arguments(int argc, char** argv) {
  Arguments out;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const auto value = [&] {
      if (++i == argc) usage_error(arg + " needs a value");
      return std::string(argv[i]);
    };
    if (arg == "--filter") {
      out.filter = value();
    } else if (arg == "--name") {
      out.name = value();
    } else if (arg == "--file") {
      out.file = value();
    } else if (arg == "--device") {
      out.device = value();
    } else if (arg == "--jobs") {
      const std::string jobs = value();
      const auto [end, error] = std::from_chars(jobs.data(), jobs.data() + jobs.size(), out.jobs);
      if (error != std::errc() || end != jobs.data() + jobs.size() || out.jobs < 1)
        usage_error("--jobs " + jobs + ": expected a number from 1");
    } else if (arg == "--all") {
      everything = true;
    } else if (arg == "--verbose") {
      out.verbose = true;
    } else if (arg == "--list") {
      out.list = true;
    } else if (arg == "--list-ops") {
      out.list_ops = true;
    } else if (arg == "--durations") {
      out.durations = true;
    } else if (arg == "--help") {
      out.help = true;
    } else {
      usage_error("unknown argument " + arg);
    }
  }
  if (!out.name.empty() || out.device == "cuda" || out.verbose || out.list)
    out.jobs = 1;
  else if (out.jobs == 0)
    out.jobs = std::clamp(levin::detail::usable_cpus(), 1, 4);
  return out;
}

void check_device(const std::string& device) {
  const auto found = levin::test::launching_device();
  if (!found || (device != "cuda" && device != "simt") || !levin::text(*found).starts_with(device)) {
    usage_error("--device " + device + ": this build and machine launch kernels on " +
                (found ? levin::text(*found) : "no device"));
  }
}

void add_filters(doctest::Context& context, const Arguments& arguments) {
  const auto add = [&](const char* kind, const std::string& pattern) { context.addFilter(kind, pattern.c_str()); };
  if (!arguments.filter.empty()) add("test-case", filter_of(arguments.filter));
  if (!arguments.name.empty()) add("test-case", escaped(arguments.name));
  if (!arguments.file.empty()) add("source-file", filter_of(arguments.file));
  if (!arguments.device.empty() && arguments.name.empty()) {  // names of tests that launch kernels have one of these
    add("test-case", "*device*");
    add("test-case", "*simt*");
  }
}

// Runs tests until none is left. The result is doctest's.
int run_tests(doctest::Context& context, const Arguments& arguments) {
  levin::test::Capture captured;
  if (!arguments.verbose) capture = &captured;
  if (!workers->several()) return context.run();
  int rc = 0;
  for (;;) {
    const int number = workers->claim(), before = begun;
    context.setOption("first", number);
    context.setOption("last", number);
    rc |= context.run();
    if (begun == before) break;
    captured.end(levin::test::Output::dropped);
  }
  workers->finishes();
  return rc;
}

int print_summary() {
  std::map<std::string, int> skips;  // by reason
  for (const std::string& reason : workers->reasons()) ++skips[reason];
  for (const auto& [reason, n] : skips) std::printf("%d skipped: %s\n", n, reason.c_str());
  const Counts counts = workers->counts();
  if (counts.all() == 0) std::fprintf(stderr, "levin_tests: no test has such a name; --list prints them\n");
  if (const char* ops = std::getenv("LEVIN_OPS"))
    std::printf("LEVIN_OPS=%s chose among the cases of the op table, on a device\n", ops);
  std::printf("%d passed, %d failed, %d skipped\n", counts.passed, counts.failed, counts.skipped);
  return counts.failed != 0 || counts.all() == 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments = read_arguments(argc, argv);
  if (arguments.help) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  if (arguments.list_ops) {
    for (const levin::testing::NamedCase& c : levin::testing::op_cases()) std::printf("%s\n", c.name);
    return 0;
  }
  if (arguments.device != "cuda" && !arguments.device.empty()) check_device(arguments.device);
  levin::test::Workers all(arguments.jobs);
  workers = &all;
  if (all.is_parent() && !all.wait()) return print_summary();
  levin::test::start_zygote();                  // before any thread exists
  levin::train::suggested_workers_instead = 1;  // warnings in tests do not depend on the number of CPUs
  if (arguments.device == "cuda") check_device(arguments.device);  // starts threads
  doctest::Context context;
  context.setOption("no-intro", true);
  context.setOption("no-version", true);
  context.setOption("duration", arguments.durations);
  context.setOption("minimal", !arguments.verbose);  // omits doctest's own closing lines
  add_filters(context, arguments);
  if (arguments.list) {
    const char* query[] = {"levin_tests", "--list-test-cases"};
    context.applyCommandLine(2, query);
    return context.run();
  }
  const int rc = run_tests(context, arguments);
  return all.several() ? rc : std::max(print_summary(), rc);
}
