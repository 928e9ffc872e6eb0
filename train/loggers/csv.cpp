#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <system_error>

#include "levin/train/loggers.h"
#include "tensor/file.h"
#include "train/csv.h"
#include "train/loggers/folder.h"

namespace levin {
namespace {

constexpr std::size_t kMostWaiting = 10'000;  // records in memory while the disk refuses them
constexpr int kGivenUp = 1000;                // of the oldest, when there are more

// As YAML reads back: numbers and true/false as they are, everything else in double quotes.
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

// Of a line that another run wrote, or of a record that came twice.
struct Seen {
  std::int64_t epoch = 0;
  train::Names names;
};

train::Names names_of(const LogRecord& record) {
  train::Names names;
  for (const auto& [name, value] : record.values) names.insert(name);
  return names;
}

}  // namespace

struct CsvLogger::File {
  explicit File(CsvLoggerOptions o)
      : folder(std::move(o.save_dir), std::move(o.name), std::move(o.version)), flush_every(o.flush_every) {}

  [[nodiscard]] std::string path() { return folder.path() + "/metrics.csv"; }
  void go_on(std::int64_t completed_steps);
  void write();
  void flush();

  train::LogFolder folder;
  std::int64_t flush_every;
  std::int64_t since_flush = 0;
  bool begun = false;           // the file is this run's, not one that the first flush replaces
  train::Names columns, names;  // on file; of all records
  std::vector<LogRecord> waiting;
  std::int64_t last_step = -1;  // before the run went on, with its records on file
  std::vector<Seen> last;
  Metadata hparams;
  train::Attempts attempts{"CsvLogger"};
};

// Takes over what is on file, without the steps that will be trained again. The end of the epoch of the last step may come
// again, too: its records are remembered.
void CsvLogger::File::go_on(std::int64_t completed_steps) {
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
  last_step = completed_steps - 1;
  last.clear();
  for (const std::string_view line : csv.lines) {
    const std::int64_t step = train::step_of(file, line);
    if (step >= completed_steps) {
      whole = false;
      continue;
    }
    kept.append(line).append("\n");
    if (step != last_step) continue;
    const std::vector<std::string_view> cells = train::cells_of(file, csv, line);
    Seen seen;
    (void)std::from_chars(cells[1].data(), cells[1].data() + cells[1].size(), seen.epoch);
    for (std::size_t i = 0; i < csv.names.size(); ++i) {
      if (!cells[i + 2].empty()) seen.names.insert(csv.names[i]);
    }
    last.push_back(std::move(seen));
  }
  if (!whole) write_file_atomically(file, kept);
  names.insert(columns.begin(), columns.end());
  begun = true;
}

// All waiting records, behind what is on file: appended, or with a new header in front.
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
      std::vector<std::size_t> from;  // the column on file of each name, or one that is always empty
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

void CsvLogger::start(std::int64_t completed_steps) {
  (void)log_dir();
  file_->flush();
  if (completed_steps > 0) file_->go_on(completed_steps);
}

void CsvLogger::log_metrics(const LogRecord& record) {
  File& f = *file_;
  train::Names mine = names_of(record);
  if (record.step == f.last_step && std::any_of(f.last.begin(), f.last.end(), [&](const Seen& seen) {
        return seen.epoch == record.epoch && seen.names == mine;
      }))
    return;
  f.names.merge(mine);
  f.waiting.push_back(record);
  if (f.waiting.size() > kMostWaiting) {
    f.waiting.erase(f.waiting.begin(), f.waiting.begin() + kGivenUp);
    f.attempts.lose(kGivenUp);
  }
  if (++f.since_flush >= f.flush_every) f.flush();
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
