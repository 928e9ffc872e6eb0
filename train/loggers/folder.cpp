#include "train/loggers/folder.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "levin/train/loggers.h"
#include "levin/warning.h"

namespace levin {

Logger::~Logger() = default;
void Logger::start(std::int64_t, std::int64_t) {}
void Logger::start_evaluation(std::int64_t completed_steps, std::int64_t completed_records) {
  start(completed_steps, completed_records);
}
void Logger::log_hparams(const Metadata&) {}
void Logger::save() {}
void Logger::finalize(std::string_view) { save(); }
std::string Logger::log_dir() { return {}; }
std::string Logger::version() { return {}; }

namespace train {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kVersion = "version_";

[[noreturn]] void cannot_make(const fs::path& folder, const std::error_code& error) {
  fail<FileError>("logger: folder \"", folder.string(), "\" can not be made: ", error.message());
}

bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// One above the highest version_N in `base`.
std::int64_t next_version(const fs::path& base) {
  std::int64_t next = 0;
  std::error_code error;
  for (fs::directory_iterator it(base, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::int64_t n = 0;
    if (!name.starts_with(kVersion) || !is_number(std::string_view(name).substr(kVersion.size()))) continue;
    const auto [rest, ec] = std::from_chars(name.data() + kVersion.size(), name.data() + name.size(), n);
    if (ec == std::errc()) next = std::max(next, n + 1);
  }
  return next;
}

}  // namespace

std::optional<double> plain_number(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) return {};
  return number;
}

LogFolder::LogFolder(std::string save_dir, std::string name, std::optional<std::string> version)
    : save_dir_(save_dir.empty() ? "." : std::move(save_dir)), name_(std::move(name)), version_(std::move(version)) {}

const std::string& LogFolder::path() {
  if (!path_.empty()) return path_;
  fs::path folder = fs::path(save_dir_) / name_;
  if (version_) folder /= (is_number(*version_) ? std::string(kVersion) : std::string()) + *version_;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) cannot_make(folder, error);
  if (!version_) {
    // If two processes start at the same time, one makes the folder and the other takes the next number.
    for (std::int64_t n = next_version(folder);; ++n) {
      const fs::path mine = folder / (std::string(kVersion) + std::to_string(n));
      if (fs::create_directory(mine, error)) {
        version_ = std::to_string(n);
        folder = mine;
        break;
      }
      if (error && error != std::errc::file_exists) cannot_make(mine, error);
    }
  }
  // Absolute, so that a program that changes its folder continues to write here.
  path_ = fs::absolute(folder, error).lexically_normal().string();
  if (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  return path_;
}

const std::string& LogFolder::version() {
  if (!version_) (void)path();
  return *version_;
}

void Attempts::failed(const Error& error) {
  if (told_) return;
  told_ = true;
  warn("W-LOGGER-FILE", WarningCategory::runtime,
       logger_ + ": records can not be written now; the run goes on and they are tried again: " + error.what(),
       Repeat::yes);
}

void Attempts::finish(std::int64_t still_waiting) {
  const std::int64_t lost = lost_ + still_waiting;
  lost_ = 0;
  if (lost == 0) return;
  warn("W-LOGGER-LOST", WarningCategory::runtime,
       logger_ + ": " + std::to_string(lost) + " records could not be written and are lost", Repeat::yes);
}

}  // namespace train
}  // namespace levin
