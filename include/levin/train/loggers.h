// Loggers: write the records of a run.
//
//   auto board = std::make_shared<TensorBoardLogger>(TensorBoardLoggerOptions{.save_dir = "runs"});
//   auto csv = std::make_shared<CsvLogger>(CsvLoggerOptions{.save_dir = "runs"});
//   Trainer trainer({.logger = std::vector<std::shared_ptr<Logger>>{board, csv}});  // runs/levin_logs/version_0/...
//
// A logger is called in rank 0 alone, by one thread at a time. A disk that is full or gone does not end a run: the
// first FileError while records are written is a warning (W-LOGGER-FILE), the newest records (10,000 rows, 16 MB) wait
// in memory for the next attempt, and finalize reports how many were lost.
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

// The base of loggers. A derived class must have log_metrics; other functions without a stated default do nothing.
class LEVIN_API Logger {
 public:
  Logger() = default;
  virtual ~Logger();
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  // Called before the first record of a fit. Counts above 0: the run resumes, from a checkpoint or an earlier fit,
  // after so many optimizer steps, which gave so many records. Later records in the file are not of this run and are
  // removed. Throws FileError if the logger cannot write, FormatError if the file it should continue is not its own.
  virtual void start(std::int64_t completed_steps, std::int64_t completed_records);
  // Called before the first record of a validate or test outside of fit, with the trainer's counts; 0 and 0 in a
  // process that only evaluates. Removes no record of an earlier training. Default: start().
  virtual void start_evaluation(std::int64_t completed_steps, std::int64_t completed_records);
  virtual void log_metrics(const LogRecord& record) = 0;
  // Hyper-parameters by name. A known name gets the new value.
  virtual void log_hparams(const Metadata& hparams);
  // Writes all records to the file. The trainer calls it before it writes a checkpoint, so that a run that is killed
  // and resumed lacks no record.
  virtual void save();
  // Called at the end of a fit, validate or test, with "success", "interrupted" or "failed". Default: save().
  virtual void finalize(std::string_view status);
  // The folder for files of this run, also for checkpoints; the first call makes it. Empty: none. Throws FileError.
  [[nodiscard]] virtual std::string log_dir();
  [[nodiscard]] virtual std::string version();  // for the progress bar: "0", "run1"; empty: none
};

// A logger writes into <save_dir>/<name>/<version folder>. Version "3" is the folder version_3, other text is the
// folder's name, empty text is no folder, and unset is version_N with N one above the highest there. Empty name and
// version write into save_dir itself.
struct CsvLoggerOptions {
  std::string save_dir{};  // default: the current folder
  std::string name = "levin_logs";
  std::optional<std::string> version{};
  std::int64_t flush_every = 100;  // records between two writes; 1 writes each at once
};
// Writes metrics.csv, with one line for each record and one column for each name, sorted: "step,epoch,name,...". A cell
// is empty if a record lacks the name. hparams.yaml has one line for each hyper-parameter, "name: value".
//   Lines are appended. A new name rewrites the file, whole or not at all.
//   After a kill the file has every record up to the last flush; start() removes a last line that was cut off.
//   A new fit replaces the file, an evaluation appends to it. A run that resumes into the same folder loses no line and
//   doubles none; lines that evaluations of other processes wrote after its checkpoint are removed.
// The constructor touches no file; it throws ConfigError for flush_every below 1.
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
  double flush_seconds = 10;  // the longest that a record waits in memory while others follow
};
// Writes event files for TensorBoard, one for each start of a run; scalars are f32 there. A run that resumes makes
// TensorBoard forget the steps that are trained again. Hyper-parameters appear under HPARAMS; numbers and true/false
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

  // Beside the trainer's records: text, histograms and images.
  void log_text(std::string_view tag, std::string_view markdown, std::int64_t step);
  // The finite values in 64 bins of equal width between the smallest and the greatest; any shape and dtype. Waits for
  // the device.
  void log_histogram(std::string_view tag, const Tensor& values, std::int64_t step);
  // u8 [H, W] grey or [H, W, 3] RGB, on any device. Throws ShapeError, DTypeError.
  void log_image(std::string_view tag, const Tensor& image, std::int64_t step);

 private:
  struct File;
  std::unique_ptr<File> file_;
};

}  // namespace levin
