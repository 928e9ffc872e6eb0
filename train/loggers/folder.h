// Helpers of loggers that write files: their folder, and what they do when the disk refuses a write.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "levin/error.h"

namespace levin::train {

// The number if all of `text` is a finite one.
[[nodiscard]] std::optional<double> plain_number(std::string_view text);

// <save_dir>/<name>/<version>, made at the first call of path().
class LogFolder {
 public:
  LogFolder(std::string save_dir, std::string name, std::optional<std::string> version);
  // Throws FileError if it cannot be made.
  [[nodiscard]] const std::string& path();
  [[nodiscard]] const std::string& version();

 private:
  std::string save_dir_, name_, path_;
  std::optional<std::string> version_;
};

// Attempts to write whose failure must not end a run. The first failure is a warning, and finish() reports what was
// lost.
class Attempts {
 public:
  explicit Attempts(std::string logger) : logger_(std::move(logger)) {}
  // Returns false if `write` threw.
  template <class F>
  [[nodiscard]] bool attempt(F&& write) {
    try {
      write();
      return true;
    } catch (const Error& e) {
      failed(e);
      return false;
    }
  }
  void lose(std::int64_t records) { lost_ += records; }
  void finish(std::int64_t still_waiting);  // a warning when records are lost

 private:
  void failed(const Error& error);
  std::string logger_;
  bool told_ = false;
  std::int64_t lost_ = 0;
};

}  // namespace levin::train
