#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "levin/train/loggers.h"
#include "tensor/files/file.h"
#include "train/loggers/folder.h"
#include "train/logs/csv.h"

namespace levin {
namespace {

constexpr std::size_t kMostWaiting = 10'000;  // records in memory while the disk refuses them
constexpr int kGivenUp = 1000;                // how many of the oldest are then dropped

// As YAML reads it: numbers and true/false as they are, everything else in double quotes.
std::string yaml(const std::string& text) {
  if (train::plain_number(text) || text == "true" || text == "false") return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      constexpr std::string_view kHex = "0123456789abcdef";
      out += "\\x";
      out += {kHex[static_cast<unsigned char>(c) >> 4], kHex[static_cast<unsigned char>(c) & 15]};
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace

struct CsvLogger::File {
  explicit File(CsvLoggerOptions o)
      : folder(std::move(o.save_dir), std::move(o.name), std::move(o.version)), flush_every(o.flush_every) {}

  [[nodiscard]] std::string path() { return folder.path() + "/metrics.csv"; }
  void go_on(std::int64_t completed_steps, std::int64_t completed_records);
  void add(const LogRecord& record) {
    for (const auto& [name, value] : record.values) names.insert(name);
    waiting.push_back(record);
  }
  void write();
  void flush();

  train::LogFolder folder;
  std::int64_t flush_every;
  std::int64_t since_flush = 0;
  bool begun = false;           // the file is this run's; false: the first flush replaces it
  train::Names columns, names;  // in the file; of all records
  std::vector<LogRecord> waiting;
  bool others = false;                 // evaluations of this logger append to the lines of an earlier run
  std::vector<LogRecord> evaluations;  // these: a new fit keeps them and drops the earlier run
  Metadata hparams;
  train::Attempts attempts{"CsvLogger"};
};

// Takes over the file without lines that will be written again: those after the run's records. If a full disk lost some
// records, the kept lines may end with steps that are trained again, which are removed too. Lines of single batches of
// an evaluation count batches and not steps, so every line before one of a trained step stays.
void CsvLogger::File::go_on(std::int64_t completed_steps, std::int64_t completed_records) {
  const std::string file = path();
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return;
  const std::string text = read_file(file, std::numeric_limits<std::size_t>::max());
  const train::CsvText csv = train::read_csv(file, text);
  columns = train::Names(csv.names.begin(), csv.names.end());
  std::string kept = train::csv_header(columns);
  const bool sorted = std::is_sorted(csv.names.begin(), csv.names.end()) && columns.size() == csv.names.size();
  if (!sorted) fail<FormatError>(file, ": its columns are not sorted, so it is not ours; move it out of the way");
  bool whole = !csv.cut;
  const std::int64_t last_step = std::max<std::int64_t>(0, completed_steps - 1);
  std::size_t stay = 0;
  for (std::size_t i = 0; i < csv.lines.size(); ++i) {
    (void)train::cells_of(file, csv, csv.lines[i]);
    const std::int64_t step = train::step_of(file, csv.lines[i]);
    if (std::cmp_less(i, completed_records) && step <= last_step) stay = i + 1;
  }
  for (std::size_t i = 0; i < stay; ++i) kept.append(csv.lines[i]).append("\n");
  whole &= stay == csv.lines.size();
  if (!whole) write_file_atomically(file, kept);
  names.insert(columns.begin(), columns.end());
  begun = true;
}

// Writes all waiting records: appends them, or rewrites the file with a new header.
void CsvLogger::File::write() {
  const std::string file = path();
  std::error_code ignored;
  const bool exists = begun && std::filesystem::exists(file, ignored);
  std::string rows;
  for (const LogRecord& record : waiting) rows += train::csv_row(record, names);
  if (exists && columns == names) {
    detail::append_to_file(file, rows);
  } else {
    std::string content = train::csv_header(names);
    if (exists) {
      const std::string text = read_file(file, std::numeric_limits<std::size_t>::max());
      const train::CsvText csv = train::read_csv(file, text);
      std::vector<std::size_t> from;  // the column in the file of each name, or one that is always empty
      for (const std::string& name : names) {
        const auto at = std::find(csv.names.begin(), csv.names.end(), name);
        from.push_back(static_cast<std::size_t>(at - csv.names.begin()) + 2);
      }
      for (const std::string_view line : csv.lines) {
        std::vector<std::string_view> cells = train::cells_of(file, csv, line);
        cells.emplace_back();
        content.append(cells[0]).append(",").append(cells[1]);
        for (const std::size_t i : from) content.append(",").append(cells[i]);
        content += '\n';
      }
    }
    write_file_atomically(file, content + rows);
  }
  columns = names;
  begun = true;
}

void CsvLogger::File::flush() {
  since_flush = 0;
  if (waiting.empty()) return;
  if (attempts.attempt([&] { write(); })) waiting.clear();
}

CsvLogger::CsvLogger(CsvLoggerOptions options) : file_(std::make_unique<File>(std::move(options))) {
  if (file_->flush_every < 1)
    fail<ConfigError>("CsvLogger: flush_every is ", file_->flush_every, ", expected 1 or more records");
}

CsvLogger::~CsvLogger() {
  try {
    finalize("");
  } catch (...) {}  // no memory for the text
}

void CsvLogger::start(std::int64_t completed_steps, std::int64_t completed_records) {
  (void)log_dir();
  File& f = *file_;
  f.flush();
  std::vector<LogRecord> evaluations = std::exchange(f.evaluations, {});
  if (std::exchange(f.others, false) && completed_steps == 0) {
    f.begun = false;
    f.names.clear();
    f.waiting.clear();
    for (const LogRecord& record : evaluations) f.add(record);
    return;
  }
  if (completed_records > 0 || completed_steps > 0) f.go_on(completed_steps, completed_records);
}
void CsvLogger::start_evaluation(std::int64_t, std::int64_t) {
  (void)log_dir();
  file_->flush();
  if (file_->begun) return;
  constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
  file_->go_on(kAll, kAll);
  file_->others = file_->begun;
}

void CsvLogger::log_metrics(const LogRecord& record) {
  File& f = *file_;
  f.add(record);
  if (f.others) f.evaluations.push_back(record);
  if (f.waiting.size() > kMostWaiting) {
    f.waiting.erase(f.waiting.begin(), f.waiting.begin() + kGivenUp);
    f.attempts.lose(kGivenUp);
  }
  ++f.since_flush;
  // The more records wait for a full disk, the rarer are the attempts, because each formats all of them.
  const std::int64_t refused = std::max<std::int64_t>(0, std::ssize(f.waiting) - f.since_flush);
  if (f.since_flush >= f.flush_every + refused / 64) f.flush();
}

void CsvLogger::log_hparams(const Metadata& hparams) {
  File& f = *file_;
  for (const auto& [name, value] : hparams) {
    const auto known = std::find_if(f.hparams.begin(), f.hparams.end(), [&](const auto& h) { return h.first == name; });
    if (known == f.hparams.end())
      f.hparams.emplace_back(name, value);
    else
      known->second = value;
  }
  std::string text;
  for (const auto& [name, value] : f.hparams) text += yaml(name) + ": " + yaml(value) + "\n";
  (void)f.attempts.attempt([&] { write_file_atomically(f.folder.path() + "/hparams.yaml", text); });
}

void CsvLogger::save() { file_->flush(); }

void CsvLogger::finalize(std::string_view) {
  save();
  file_->attempts.finish(static_cast<std::int64_t>(file_->waiting.size()));
  file_->waiting.clear();
}

std::string CsvLogger::log_dir() { return file_->folder.path(); }
std::string CsvLogger::version() { return file_->folder.version(); }

}  // namespace levin
