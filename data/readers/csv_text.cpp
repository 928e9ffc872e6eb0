#include "data/readers/csv_text.h"

#include <cstring>

namespace levin::data {

CsvText::CsvText(detail::Source& source, char delimiter, char quote, std::size_t block)
    : source_(source),
      delimiter_(delimiter),
      quote_(quote),
      buffer_(static_cast<std::size_t>(std::min<std::uint64_t>(source.size(), std::max(block, kCsvRecord + 2)))),
      begin_(buffer_.data()),
      at_(begin_),
      end_(begin_) {
  for (const char c : {delimiter, quote, '\n'}) stops_[static_cast<unsigned char>(c)] = c != '\0';
  move_window();
  constexpr std::string_view kMark = "\xef\xbb\xbf";  // UTF-8's byte order mark
  if (std::string_view(begin_, end_).starts_with(kMark)) begin_ = at_ = begin_ + kMark.size();
}

// The record's begin becomes the window's, and the window is filled.
void CsvText::move_window() {
  const auto kept = static_cast<std::size_t>(end_ - begin_);
  if (kept) std::memmove(buffer_.data(), begin_, kept);
  const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(buffer_.size() - kept, source_.size() - next_));
  source_.read(next_, buffer_.data() + kept, n);
  next_ += n;
  begin_ = at_ = buffer_.data();
  end_ = begin_ + kept + n;
}

bool CsvText::next_record() {
  if (static_cast<std::size_t>(at_ - begin_) > kCsvRecord + 2) refuse_length();
  line_ += lines_;
  lines_ = field_ = 0;
  begin_ = at_;
  while (true) {
    if (static_cast<std::size_t>(end_ - begin_) <= kCsvRecord + 1 && !is_last()) move_window();
    if (begin_ == end_) return false;
    bool more = false;
    const char* p = begin_;
    if (*p == delimiter_ || !end_field(p, more)) {
      if (*p != '\r' || p + 1 != end_) break;
      ++p;  // the file ends in a bare CR
    }
    begin_ = at_ = p;
    ++line_;
  }
  lines_ = 1;
  return true;
}

void CsvText::restart_record() {
  at_ = begin_;
  field_ = 0;
  lines_ = 1;
}

CsvField CsvText::next_field() {
  ++field_;
  if (at_ < end_ && *at_ == quote_ && quote_ != '\0') return quoted_field();
  const char* p = at_;
  while (p < end_ && !stops_[static_cast<unsigned char>(*p)]) ++p;
  if (p < end_ && *p != delimiter_ && *p != '\n') {
    refuse(
        "a quote inside of a field that does not begin with one; double it in a quoted field, or read quotes as "
        "text with CsvSchema::quote = 0");
  }
  CsvField field;
  field.value = {at_, static_cast<std::size_t>(p - at_)};
  if (p == end_ && !is_last()) refuse_length();
  if ((p == end_ || *p == '\n') && field.value.ends_with('\r')) field.value.remove_suffix(1);
  (void)end_field(p, field.more);
  at_ = p;
  return field;
}

CsvField CsvText::quoted_field() {
  CsvField field;
  field.quoted = true;
  const char *p = at_ + 1, *begin = p;
  bool doubled = false;
  while (true) {
    const char* const quote = static_cast<const char*>(std::memchr(p, quote_, static_cast<std::size_t>(end_ - p)));
    if (quote == nullptr || quote + 1 == end_) {
      if (!is_last()) refuse_length();
      if (quote == nullptr) refuse("a quoted field does not end");
    }
    lines_ += static_cast<std::uint64_t>(std::count(p, quote, '\n'));
    p = quote + 1;
    if (p == end_ || *p != quote_) break;
    if (!doubled) scratch_.clear();
    doubled = true;
    scratch_.append(begin, p);  // one of the two quotes
    begin = ++p;
  }
  field.value = {begin, static_cast<std::size_t>(p - 1 - begin)};
  if (doubled) field.value = scratch_.append(field.value);
  if (p + 1 == end_ && *p == '\r' && is_last()) ++p;
  if (!end_field(p, field.more)) refuse("bytes follow a closing quote; double a quote that belongs to the field");
  at_ = p;
  return field;
}

std::string CsvText::place() const {
  const std::size_t k = std::max<std::size_t>(field_, 1) - 1;
  const std::string name = names_ && k < names_->size() ? " (" + shown((*names_)[k]) + ")" : std::string();
  return source_.name() + ": line " + text(line_) + ", column " + text(k + 1) + name + ": ";
}

void CsvText::refuse_length() const {
  fail<FormatError>(source_.name(), ": line ", line_, ": the record has more than ", kCsvRecord,
                    " bytes; is a closing quote missing?");
}

std::string shown(std::string_view value) {
  constexpr std::size_t kMost = 40;
  std::string out = "'";
  for (const char c : value.substr(0, kMost)) out += static_cast<unsigned char>(c) < ' ' ? '?' : c;
  return out + (value.size() > kMost ? "...'" : "'");
}

}  // namespace levin::data
