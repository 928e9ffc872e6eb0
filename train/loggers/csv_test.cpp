#include <doctest/doctest.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <vector>

#include "levin/train/loggers.h"
#include "levin/warning.h"
#include "tests/temporary.h"
#include "tests/warnings.h"

using namespace levin;
using namespace levin::test;

namespace {

constexpr std::size_t kMost = 1 << 20;

LogRecord record(std::int64_t step, Metrics values, std::int64_t epoch = 0) {
  return {.step = step, .epoch = epoch, .values = std::move(values)};
}
// Writes into the folder itself.
CsvLoggerOptions in(const TemporaryFolder& folder, std::int64_t flush_every = 100) {
  return {.save_dir = folder.path(), .name = "", .version = "", .flush_every = flush_every};
}
std::string metrics(const TemporaryFolder& folder) { return read_file(folder / "metrics.csv", kMost); }

}  // namespace

TEST_CASE("a CSV logger keeps its header sorted when a name comes late, and earlier lines get empty cells") {
  const TemporaryFolder folder;
  CsvLogger csv(in(folder, 1));
  for (std::int64_t step = 0; step < 20; ++step) csv.log_metrics(record(step, {{"loss", 0.5}}));
  csv.log_metrics(record(20, {{"zeta", 2}, {"acc", 0.25}, {"loss", 1.0 / 3}}, 1));
  csv.log_metrics(record(21, {{"zeta", 3}}, 1));
  std::string expected = "step,epoch,acc,loss,zeta\n";
  for (int step = 0; step < 20; ++step) expected += std::to_string(step) + ",0,,0.5,\n";
  CHECK(metrics(folder) == expected + "20,1,0.25,0.33333333333333331,2\n21,1,,,3\n");
}

TEST_CASE("what a CSV logger wrote line by line is what write_metrics_csv writes at once") {
  const TemporaryFolder folder;
  std::vector<LogRecord> records;
  for (std::int64_t step = 0; step < 30; ++step) {
    records.push_back(record(step, {{"a,\"b\"\nc", 1e300 / static_cast<double>(step + 1)}}));
    if (step % 7 == 3) records.push_back(record(step, {{"val", -0.0}, {"m" + std::to_string(step), NAN}}));
  }
  write_metrics_csv(folder / "at_once.csv", records);
  for (const std::int64_t every : {1, 4, 100}) {
    {
      CsvLogger csv(in(folder, every));
      for (const LogRecord& r : records) csv.log_metrics(r);
    }  // the destructor saves
    CHECK(metrics(folder) == read_file(folder / "at_once.csv", kMost));
  }
}

TEST_CASE("a CSV logger writes after flush_every records, and all of them on save") {
  const TemporaryFolder folder;
  CsvLogger csv(in(folder, 3));
  csv.log_metrics(record(0, {{"x", 0}}));
  csv.log_metrics(record(1, {{"x", 1}}));
  CHECK(!std::filesystem::exists(folder / "metrics.csv"));
  csv.log_metrics(record(2, {{"x", 2}}));
  CHECK(metrics(folder) == "step,epoch,x\n0,0,0\n1,0,1\n2,0,2\n");
  csv.log_metrics(record(3, {{"x", 3}}));
  csv.save();
  CHECK(metrics(folder) == "step,epoch,x\n0,0,0\n1,0,1\n2,0,2\n3,0,3\n");
  CHECK_THROWS_AS(CsvLogger({.flush_every = 0}), ConfigError);
}

TEST_CASE("versions of a logger count up, also where one was removed, and a given one is taken") {
  const TemporaryFolder folder;
  const auto dir = [&](std::optional<std::string> version) {
    return CsvLogger({.save_dir = folder.path(), .version = std::move(version)}).log_dir();
  };
  CHECK(dir({}) == folder / "levin_logs/version_0");
  CHECK(dir({}) == folder / "levin_logs/version_1");
  std::filesystem::create_directory(folder / "levin_logs/version_7");
  std::filesystem::create_directory(folder / "levin_logs/version_x");
  std::filesystem::create_directory(folder / "levin_logs/version_");
  CHECK(dir({}) == folder / "levin_logs/version_8");
  CHECK(dir("3") == folder / "levin_logs/version_3");
  CHECK(dir("best") == folder / "levin_logs/best");
  CHECK(dir("") == folder / "levin_logs");
  CsvLogger csv({.save_dir = folder.path(), .name = "a/b"});
  CHECK(csv.version() == "0");
  CHECK(csv.log_dir() == folder / "a/b/version_0");
}

TEST_CASE("loggers of two processes that start together get two folders") {
  const TemporaryFolder folder;
  constexpr int kChildren = 8;
  std::vector<pid_t> children;
  for (int i = 0; i < kChildren; ++i) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      int rc = 1;
      try {
        CsvLogger csv({.save_dir = folder.path(), .name = "n"});
        csv.log_metrics(record(i, {{"x", 1}}));
        csv.save();
        rc = 0;
      } catch (...) {}
      ::_exit(rc);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    CHECK(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  for (int i = 0; i < kChildren; ++i)
    CHECK(std::filesystem::exists(folder / ("n/version_" + std::to_string(i) + "/metrics.csv")));
}

TEST_CASE("a resumed run appends to metrics.csv and neither loses nor doubles a line") {
  const TemporaryFolder folder;
  std::vector<LogRecord> records;  // two equal validations in one step, as inside an accumulation window
  for (std::int64_t step = 0; step < 20; ++step) {
    if (step % 2 == 1) records.push_back(record(step, {{"loss", 0.125 * static_cast<double>(step)}}, step / 10));
    if (step % 5 == 4) records.insert(records.end(), 2, record(step, {{"acc", 0.5}, {"val_loss", 2}}, step / 10));
  }
  const auto log = [&](CsvLogger& csv, std::size_t from, std::size_t to) {
    for (; from < to; ++from) csv.log_metrics(records[from]);
  };
  write_metrics_csv(folder / "whole.csv", records);
  for (std::size_t saved = 1; saved < records.size(); ++saved) {
    for (std::int64_t completed = records[saved - 1].step + 1; completed <= records[saved].step + 1; ++completed) {
      CAPTURE(saved);
      CAPTURE(completed);
      {
        CsvLogger killed(in(folder, 1));
        killed.start(0, 0);
        log(killed, 0, records.size() - 1);
      }
      CsvLogger csv(in(folder));
      csv.start(completed, static_cast<std::int64_t>(saved));
      log(csv, saved, records.size());
      csv.save();
      CHECK(metrics(folder) == read_file(folder / "whole.csv", kMost));
    }
  }
}

TEST_CASE("where a full disk cost some records, a resumed run still takes away the steps that come again") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "metrics.csv", "step,epoch,x\n0,0,0\n3,0,3\n4,0,4\n");
  CsvLogger csv(in(folder));
  csv.start(4, 4);
  CHECK(metrics(folder) == "step,epoch,x\n0,0,0\n3,0,3\n");
}

TEST_CASE("a run that starts anew replaces metrics.csv, one that fits a second time appends to it") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "metrics.csv", "step,epoch,old\n0,0,1\n");
  CsvLogger csv(in(folder));
  csv.start(0, 0);
  csv.log_metrics(record(1, {{"x", 1}}));
  csv.finalize("success");
  CHECK(metrics(folder) == "step,epoch,x\n1,0,1\n");
  csv.start(2, 1);
  csv.log_metrics(record(2, {{"x", 2}}));
  csv.finalize("success");
  CHECK(metrics(folder) == "step,epoch,x\n1,0,1\n2,0,2\n");
}

TEST_CASE("an evaluation of another process appends to metrics.csv, and a new fit after it keeps its line alone") {
  const std::string old = "step,epoch,loss\n0,0,1\n7,1,0.5\n";
  const TemporaryFolder folder;
  write_file_atomically(folder / "metrics.csv", old);
  {
    CsvLogger csv(in(folder));
    csv.start_evaluation(0, 0);
    CHECK(metrics(folder) == old);
    csv.log_metrics(record(0, {{"loss", 0.25}}));
    csv.finalize("success");
    CHECK(metrics(folder) == old + "0,0,0.25\n");
    csv.start_evaluation(0, 1);  // again, with another name
    csv.log_metrics(record(0, {{"acc", 1}}));
    csv.finalize("success");
    CHECK(metrics(folder) == "step,epoch,acc,loss\n0,0,,1\n7,1,,0.5\n0,0,,0.25\n0,0,1,\n");
  }
  const auto evaluate = [&](CsvLogger& csv) {
    write_file_atomically(folder / "metrics.csv", old);
    csv.start_evaluation(0, 0);
    csv.log_metrics(record(0, {{"acc", 1}}));
    csv.finalize("success");
  };
  CsvLogger fits(in(folder)), goes_on(in(folder));
  evaluate(fits);
  fits.start(0, 1);
  fits.log_metrics(record(1, {{"x", 2}}));
  fits.finalize("success");
  CHECK(metrics(folder) == "step,epoch,acc,x\n0,0,1,\n1,0,,2\n");
  fits.start_evaluation(2, 2);
  fits.start(2, 2);
  CHECK(metrics(folder) == "step,epoch,acc,x\n0,0,1,\n1,0,,2\n");
  evaluate(goes_on);
  goes_on.start(1, 1);  // from a checkpoint of the earlier run
  CHECK(metrics(folder) == "step,epoch,acc,loss\n0,0,,1\n");
}

TEST_CASE("a run that resumes keeps lines of evaluation batches before its last trained step, for any count in them") {
  const TemporaryFolder folder;
  {
    CsvLogger csv(in(folder));
    csv.log_metrics(record(0, {{"x", 0}}));
    for (std::int64_t batch = 7; batch < 9; ++batch) csv.log_metrics(record(batch, {{"val", 1}}));
    csv.log_metrics(record(1, {{"x", 1}}));
    csv.log_metrics(record(2, {{"x", 2}}));  // written again
  }
  CsvLogger csv(in(folder));
  csv.start(2, 5);
  CHECK(metrics(folder) == "step,epoch,val,x\n0,0,,0\n7,0,1,\n8,0,1,\n1,0,,1\n");
}

TEST_CASE("a last line that a kill cut short is removed when the run resumes") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "metrics.csv", "step,epoch,x\n0,0,1\n1,0,0.12");
  CsvLogger csv(in(folder));
  csv.start(2, 1);
  CHECK(metrics(folder) == "step,epoch,x\n0,0,1\n");
  csv.log_metrics(record(2, {{"x", 2}, {"y", 3}}));
  csv.save();
  CHECK(metrics(folder) == "step,epoch,x,y\n0,0,1,\n2,0,2,3\n");
}

TEST_CASE("a metrics.csv that is none stops a run that would go on in it, and stays") {
  for (const std::string content : {"", "step,epoch", "epoch,step,x\n", "time\n1\n", "step,epoch,x\nhello\n",
                                    "step,epoch,x\n0,0\n", "step,epoch,b,a\n0,0,1,2\n"}) {
    const TemporaryFolder folder;
    write_file_atomically(folder / "metrics.csv", content);
    CsvLogger csv(in(folder));
    CHECK_THROWS_AS(csv.start(1, 1), FormatError);
    CHECK_THROWS_AS(csv.start_evaluation(0, 0), FormatError);
    CHECK(metrics(folder) == content);
  }
}

TEST_CASE("a run that is killed leaves whole lines up to the last flush") {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    try {
      CsvLogger csv(in(folder, 2));
      for (std::int64_t step = 0;; ++step) {
        csv.log_metrics(record(step, {{"x" + std::to_string(step % 3), static_cast<double>(step)}}));
        if (step == 10) ::kill(::getpid(), SIGKILL);
      }
    } catch (...) {}
    ::_exit(1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(metrics(folder) ==
        "step,epoch,x0,x1,x2\n0,0,0,,\n1,0,,1,\n2,0,,,2\n3,0,3,,\n4,0,,4,\n5,0,,,5\n6,0,6,,\n7,0,,7,\n8,0,,,8\n9,0,9,,"
        "\n");
}

TEST_CASE("a full disk is one warning: the run continues, and lines come when there is room again") {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("/dev/full", folder / "metrics.csv");
  Warnings warnings;
  CsvLogger csv(in(folder, 1));
  csv.start(0, 0);
  for (std::int64_t step = 0; step < 50; ++step) csv.log_metrics(record(step, {{"x", 1}}));
  CHECK(warnings.ids() == std::vector<std::string>{"W-LOGGER-FILE"});
  CHECK(warnings.all().front().text.find("metrics.csv: writing failed") != std::string::npos);

  SUBCASE("room again") {
    std::filesystem::remove(folder / "metrics.csv");
    csv.log_metrics(record(50, {{"x", 1}}));
    const std::string text = metrics(folder);
    CHECK(std::count(text.begin(), text.end(), '\n') == 52);
    csv.finalize("success");
    CHECK(warnings.ids().size() == 1);
  }
  SUBCASE("none to the end") {
    for (std::int64_t step = 50; step < 10'020; ++step) csv.log_metrics(record(step, {{"x", 1}}));
    csv.finalize("success");
    CHECK(warnings.ids() == std::vector<std::string>{"W-LOGGER-FILE", "W-LOGGER-LOST"});
    CHECK(warnings.all().back().text.find("10020 records") != std::string::npos);
    csv.finalize("success");
    CHECK(warnings.ids().size() == 2);
  }
}

TEST_CASE("an append that fails half way leaves the file as it was") {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    int rc = 1;
    try {
      Warnings warnings;
      std::signal(SIGXFSZ, SIG_IGN);
      CsvLogger csv(in(folder, 1));
      csv.log_metrics(record(0, {{"x", 1}}));
      const rlimit limit{.rlim_cur = 25, .rlim_max = 25};  // the file has 19 bytes, and the next line needs 8
      ::setrlimit(RLIMIT_FSIZE, &limit);
      csv.log_metrics(record(1, {{"x", 1.25}}));
      rc = warnings.ids().size() == 1 ? 0 : 2;
      csv.finalize("");
    } catch (...) {}
    ::_exit(rc);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(metrics(folder) == "step,epoch,x\n0,0,1\n");
}

TEST_CASE("a folder that cannot be made is an error before the run") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "file", "x");
  CsvLogger csv({.save_dir = folder / "file"});
  CHECK_THROWS_AS(csv.start(0, 0), FileError);
  CsvLogger given({.save_dir = folder.path(), .name = "", .version = "file"});
  CHECK_THROWS_AS(given.start(0, 0), FileError);
}

TEST_CASE("hparams.yaml holds a line a name, quoted where YAML would read something else") {
  const TemporaryFolder folder;
  CsvLogger csv(in(folder));
  csv.log_hparams({{"lr", "1e-3"}, {"name", "a \"b\"\\\n\x01"}, {"amp", "true"}, {"limit", "inf"}, {"empty", ""}});
  csv.log_hparams({{"lr", "0.5"}, {"no", "yes"}});
  CHECK(read_file(folder / "hparams.yaml", kMost) ==
        "\"lr\": 0.5\n\"name\": \"a \\\"b\\\"\\\\\\n\\x01\"\n\"amp\": true\n\"limit\": \"inf\"\n\"empty\": \"\"\n"
        "\"no\": \"yes\"\n");
}
