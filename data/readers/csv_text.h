// The records and fields of CSV text (RFC 4180), read in blocks.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/files/file.h"

namespace levin::data {

inline constexpr std::size_t kCsvRecord = std::size_t{1} << 20;  // the most bytes of a record
inline constexpr std::size_t kCsvColumns = 100'000;

struct CsvField {
  std::string_view value{};  // without its quotes; holds until the next field is read
  bool quoted = false;
  bool more = false;  // another field follows
};

// A cursor over the text, in a window that holds the whole record at the cursor.
class CsvText {
 public:
  CsvText(detail::Source& source, char delimiter, char quote, std::size_t block);
  CsvText(const CsvText&) = delete;
  CsvText& operator=(const CsvText&) = delete;

  // Moves to the next record that is not empty; false at the end.
  [[nodiscard]] bool next_record();
  // Back to the record's first field.
  void restart_record();
  // The next field of the record. Throws FormatError by refuse().
  [[nodiscard]] CsvField next_field();
  // Where that field begins, for a reader that finds its end itself: take(end, more) takes [position(), end) as a field
  // and returns true when a field can end there.
  [[nodiscard]] const char* position() const { return at_; }
  [[nodiscard]] const char* window_end() const { return end_; }
  // Of the record's beginning, in the file.
  [[nodiscard]] std::uint64_t offset() const { return next_ - static_cast<std::uint64_t>(end_ - begin_); }
  [[nodiscard]] bool take(const char* end, bool& more) {
    if (end == end_ && !is_last()) return false;
    if (!end_field(end, more)) return false;
    at_ = end;
    ++field_;
    return true;
  }

  // `file: line 3, column 2 ('age'): ...`, of the field read last or being read.
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail<FormatError>(place(), parts...);
  }
  [[nodiscard]] std::uint64_t line() const { return line_; }  // of the record's beginning
  void set_names(const std::vector<std::string>* names) { names_ = names; }

 private:
  [[nodiscard]] bool is_last() const { return next_ == source_.size(); }
  [[nodiscard]] std::string place() const;
  [[noreturn]] void refuse_length() const;
  [[nodiscard]] CsvField quoted_field();
  void move_window();
  // Moves `p` past a delimiter or line end; false where something else is there.
  [[nodiscard]] bool end_field(const char*& p, bool& more) const {
    more = false;
    if (p == end_) return true;
    if (*p == delimiter_) {
      more = true;
    } else if (*p == '\r' && p + 1 < end_ && p[1] == '\n') {
      ++p;
    } else if (*p != '\n') {
      return false;
    }
    ++p;
    return true;
  }

  detail::Source& source_;
  char delimiter_, quote_;
  std::vector<char> buffer_;
  std::uint64_t next_ = 0;              // the first byte of the file after the window
  const char* begin_;                   // of the record
  const char* at_;                      // of the field
  const char* end_;                     // of the window
  std::size_t field_ = 0;               // fields of the record that were read
  std::uint64_t line_ = 1, lines_ = 0;  // of the record: its first, and how many
  std::array<bool, 256> stops_{};       // bytes at which a field without quotes may end
  std::string scratch_{};               // a field without its doubled quotes
  const std::vector<std::string>* names_ = nullptr;
};

// A value in a message: short, on one line.
[[nodiscard]] std::string shown(std::string_view value);

}  // namespace levin::data
