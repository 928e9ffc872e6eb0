// Loggers: where the records of a run go.
//
//   auto csv = std::make_shared<CsvLogger>(CsvLoggerOptions{.save_dir = "runs"});  // runs/levin_logs/version_0/metrics.csv
//   auto board = std::make_shared<TensorBoardLogger>(TensorBoardLoggerOptions{.save_dir = "runs"});
//
// Rank 0 alone calls them, from one thread at a time. A disk that is full or gone does not end a run: the first FileError
// while records are written is a warning (W-LOGGER-FILE), the newest records (10,000 rows, 16 MB) wait in memory for the
// next attempt, and finalize tells how many were lost.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "levin/serialize.h"
#include "levin/tensor.h"
#include "levin/train/records.h"

namespace levin {

class LEVIN_API Logger {
 public:
  Logger() = default;
  virtual ~Logger();
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  // Before the first record of a fit. Above 0: the run goes on after so many optimizer steps, of which it gave so
  // many records, from a checkpoint or from an earlier fit; what is on file behind them is not part of it any more and is taken away.
  // Throws FileError when the logger can not write where it should, FormatError when what it should go on with is not its own.
  virtual void start(std::int64_t completed_steps, std::int64_t completed_records);
  // Before the first record of a validate or test outside of a fit, with the trainer's own counts: in a process that evaluates alone 0
  // and 0, whatever an earlier training left on file, and nothing of that is to go. By default it calls start.
  virtual void start_evaluation(std::int64_t completed_steps, std::int64_t completed_records);
  virtual void log_metrics(const LogRecord& record) = 0;
  // What was chosen before the run: name and value. A name that comes again replaces its value.
  virtual void log_hparams(const Metadata& hparams);
  // Puts all records on file. To be called before a checkpoint is written: otherwise a run that is killed and resumed
  // lacks the records that were still in memory.
  virtual void save();
  // The end of a fit: "success", "interrupted" or "failed". Saves.
  virtual void finalize(std::string_view status);
  // The folder for files of this run (checkpoints too), made by the first call; empty: none. Throws FileError.
  [[nodiscard]] virtual std::string log_dir();
  [[nodiscard]] virtual std::string version();  // for the progress bar: "0", "run1"; empty: none
};

// Where a logger writes: <save_dir>/<name>/<version folder>. Without a version it is version_N, N one above the highest
// there; a number n means version_n, other text is the folder's name, and empty text no folder. So an empty name and an
// empty version write straight into save_dir.
struct CsvLoggerOptions {
  std::string save_dir{};  // default: the current folder
  std::string name = "levin_logs";
  std::optional<std::string> version{};
  std::int64_t flush_every = 100;  // records; 1 writes each at once
};
// metrics.csv as write_metrics_csv has it: "step,epoch,name,...", one line a record, names sorted, an empty cell where a
// record lacks a name. Lines are appended; a name that is new rewrites the file, whole or not at all, and earlier lines
// get an empty cell. After a kill the file has every record up to the last flush; a last line that was cut is removed by
// start. A new fit replaces the file, an evaluation appends to it. A resumed run that writes into the same folder loses no line and
// doubles none; what evaluations of other processes wrote behind its checkpoint goes. hparams.yaml: one "name: value" a line. The
// constructor touches no file; it throws ConfigError for flush_every below 1.
class LEVIN_API CsvLogger : public Logger {
 public:
  explicit CsvLogger(CsvLoggerOptions options = {});
  ~CsvLogger() override;  // saves
  void start(std::int64_t completed_steps, std::int64_t completed_records) override;
  void start_evaluation(std::int64_t completed_steps, std::int64_t completed_records) override;
  void log_metrics(const LogRecord& record) override;
  void log_hparams(const Metadata& hparams) override;
  void save() override;
  void finalize(std::string_view status) override;
  [[nodiscard]] std::string log_dir() override;
  [[nodiscard]] std::string version() override;

 private:
  struct File;
  std::unique_ptr<File> file_;
};

struct TensorBoardLoggerOptions {
  std::string save_dir{};
  std::string name = "levin_logs";
  std::optional<std::string> version{};
  double flush_seconds = 10;  // how old a record may get in memory while others come
};
// Event files for TensorBoard. Scalars are f32 there. Each start of a run makes a file of its own; one that goes on tells
// TensorBoard to forget the steps that are trained again. Hyperparameters appear under HPARAMS; numbers and true/false
// keep their type.
class LEVIN_API TensorBoardLogger : public Logger {
 public:
  explicit TensorBoardLogger(TensorBoardLoggerOptions options = {});  // throws ConfigError
  ~TensorBoardLogger() override;                                      // saves
  void start(std::int64_t completed_steps, std::int64_t completed_records) override;
  void start_evaluation(std::int64_t completed_steps, std::int64_t completed_records) override;
  void log_metrics(const LogRecord& record) override;
  void log_hparams(const Metadata& hparams) override;
  void save() override;
  void finalize(std::string_view status) override;
  [[nodiscard]] std::string log_dir() override;
  [[nodiscard]] std::string version() override;

  void log_text(std::string_view tag, std::string_view markdown, std::int64_t step);
  // The distribution of the finite values, in 64 bins of one width between the least and the greatest; any shape and
  // dtype. Waits for the device.
  void log_histogram(std::string_view tag, const Tensor& values, std::int64_t step);
  // u8 [H, W] grey or [H, W, 3] RGB, on any device. Throws ShapeError, DTypeError.
  void log_image(std::string_view tag, const Tensor& image, std::int64_t step);

 private:
  struct File;
  std::unique_ptr<File> file_;
};

}  // namespace levin
