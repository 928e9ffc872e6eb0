#include "data/readers/csv.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <type_traits>

#include "data/readers/csv_text.h"
#include "tensor/core/formats.h"

namespace levin::data {
namespace {

DType dtype_of(const CsvColumn& column) {
  switch (column.kind) {
    case CsvKind::f32: return DType::f32;
    case CsvKind::f64: return DType::f64;
    case CsvKind::i32: return DType::i32;
    case CsvKind::i64:
    case CsvKind::category: return DType::i64;
    case CsvKind::u8: return DType::u8;
    case CsvKind::boolean: return DType::b8;
  }
  fail<ConfigError>("load_csv: column '", column.name, "' has kind ", static_cast<int>(column.kind),
                    ", expected one of CsvKind");
}
bool is_float(const CsvColumn& column) { return column.kind == CsvKind::f32 || column.kind == CsvKind::f64; }

// ---- Checks of a schema

void check_missing(const CsvColumn& column) {
  if (!column.missing || is_float(column)) return;
  constexpr double kExact = 9007199254740992;  // 2^53: doubles below are exact
  double least = -kExact, most = kExact;
  if (column.kind == CsvKind::i32) least = -2147483648., most = 2147483647.;
  if (column.kind == CsvKind::u8) least = 0, most = 255;
  if (column.kind == CsvKind::boolean) least = 0, most = 1;
  // The indices of words that are still to be found are not known.
  if (column.kind == CsvKind::category) least = -1, most = static_cast<double>(column.categories.size()) - 1;
  const double m = *column.missing;
  if (!(m >= least && m <= most && m == std::floor(m))) {
    fail<ConfigError>("load_csv: column '", column.name, "' has ", m,
                      " for missing values, expected a whole number from ", least, " to ", most);
  }
}

void check_schema(const CsvSchema& schema) {
  const auto wrong = [](char c) {
    const auto u = static_cast<unsigned char>(c);
    return (u >= '0' && u <= '9') || (u >= 'a' && u <= 'z') || (u >= 'A' && u <= 'Z') || u == '+' || u == '-' ||
           u == '.' || u == '\n' || u == '\r' || u > 126;
  };
  const char d = schema.delimiter, q = schema.quote;
  if (wrong(d) || wrong(q) || d == '\0' || d == q || q == ' ') {
    fail<ConfigError>("load_csv: delimiter ", shown({&d, 1}), " and quote ", shown({&q, 1}),
                      ", expected different ASCII characters that occur in no number and end no line");
  }
  if (schema.columns.empty() && !schema.header) {
    fail<ConfigError>("load_csv: without a header the schema must have a column for each of the file's");
  }
  std::set<std::string_view> names;
  for (const CsvColumn& column : schema.columns) {
    (void)dtype_of(column);
    if (!names.insert(column.name).second) {
      fail<ConfigError>("load_csv: column '", column.name, "' is in the schema twice");
    }
    if (!column.categories.empty() && column.kind != CsvKind::category) {
      fail<ConfigError>("load_csv: column '", column.name, "' has categories, and its kind is not category");
    }
    if (std::set<std::string_view>(column.categories.begin(), column.categories.end()).size() !=
        column.categories.size()) {
      fail<ConfigError>("load_csv: column '", column.name, "' has a category twice");
    }
    check_missing(column);
  }
}

// ---- Numbers

std::string_view trimmed(std::string_view s) {
  const auto space = [](char c) { return c == ' ' || c == '\t'; };
  while (!s.empty() && space(s.front())) s.remove_prefix(1);
  while (!s.empty() && space(s.back())) s.remove_suffix(1);
  return s;
}

// Whether a decimal number outside of every type's range is close to 0.
bool is_small(std::string_view s) {
  const std::size_t e = std::min(s.find_first_of("eE"), s.size());
  const std::string_view digits = s.substr(0, e);
  const auto first = static_cast<std::int64_t>(std::min(digits.find_first_of("123456789"), digits.size()));
  const auto point = static_cast<std::int64_t>(std::min(digits.find('.'), digits.size()));
  std::int32_t exponent = 0;
  if (e < s.size()) {
    s.remove_prefix(e + (s[e + 1] == '+' ? 2 : 1));
    if (std::from_chars(s.data(), s.data() + s.size(), exponent).ec != std::errc()) return s[0] == '-';
  }
  return exponent + point < first;
}

// A number outside of T's range, by a wider type: a small one becomes 0, a large one does not fit.
template <class T>
bool read_extreme(std::string_view s, T& value) {
  std::conditional_t<std::is_same_v<T, float>, double, long double> wide{};
  if (std::from_chars(s.data(), s.data() + s.size(), wide).ec != std::errc()) {
    value = s[0] == '-' ? -T{0} : T{0};
    return is_small(s);
  }
  if (std::abs(wide) > std::numeric_limits<T>::max()) return false;
  value = static_cast<T>(wide);
  return true;
}

template <class T>
bool read_number(std::string_view s, T& value) {
  if (s.size() > 1 && s[0] == '+' && s[1] != '-') s.remove_prefix(1);
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
  if (end != s.data() + s.size()) return false;
  if constexpr (std::is_floating_point_v<T>) {
    if (error == std::errc::result_out_of_range) return read_extreme(s, value);
  }
  return error == std::errc();
}

// ---- The reader

struct Column {
  const CsvColumn* schema = nullptr;
  Tensor values{};
  void* data = nullptr;
  using Words = std::map<std::string, std::int64_t, std::less<>>;  // each with its index
  Words words{};
  std::array<const Words::value_type*, 64> recent{};  // words seen lately, by length and ends
};

class Reader {
 public:
  Reader(detail::Source& source, const CsvSchema& schema, std::size_t block)
      : source_(source), schema_(schema), text_(source, schema.delimiter, schema.quote, block) {
    for (const std::string& word : schema.missing_words) {
      missing_numbers_ |= !word.empty() && (word[0] == '-' || (word[0] >= '0' && word[0] <= '9'));
    }
  }

  CsvTable read() {
    choose_columns();
    while (text_.next_record()) read_row();
    CsvTable table;
    for (Column& column : columns_) {
      table.categories.push_back(words_of(column));
      table.columns.emplace_back(column.schema->name, rows_of(column));
    }
    return table;
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  // The first record gives the number of fields, and with a header their names.
  void choose_columns() {
    std::vector<std::string> names;
    if (text_.next_record()) {
      bool more = true;
      while (more) {
        if (names.size() == kCsvColumns) text_.refuse("more than ", kCsvColumns, " columns");
        const CsvField field = text_.next_field();
        if (schema_.header && !detail::valid_utf8(field.value)) text_.refuse("the name is not UTF-8");
        names.emplace_back(schema_.header ? field.value : std::string_view());
        more = field.more;
      }
      if (!schema_.header) text_.restart_record();
      if (!schema_.header && names.size() != schema_.columns.size()) {
        fail<FormatError>(source_.name(), ": line ", text_.line(), ": has ", names.size(), " fields, expected the ",
                          schema_.columns.size(), " of the schema");
      }
    } else if (schema_.header) {
      fail<FormatError>(source_.name(), ": is empty, expected a header");
    } else {
      names.resize(schema_.columns.size());
    }
    if (schema_.columns.empty()) {
      for (const std::string& name : names) all_.push_back({name, CsvKind::f32, {}, {}});
    }
    const std::vector<CsvColumn>& wanted = schema_.columns.empty() ? all_ : schema_.columns;
    place_.assign(names.size(), kNone);
    columns_.resize(wanted.size());
    std::map<std::string_view, std::size_t> at;
    for (std::size_t k = 0; k < names.size() && schema_.header; ++k) {
      const auto [entry, is_new] = at.emplace(names[k], k);
      if (!is_new) entry->second = kNone;
    }
    for (std::size_t k = 0; k < wanted.size(); ++k) {
      place_[schema_.header ? find(at, names, wanted[k].name) : k] = k;
      columns_[k].schema = &wanted[k];
      for (const std::string& word : wanted[k].categories) {
        columns_[k].words.emplace(word, static_cast<std::int64_t>(columns_[k].words.size()));
      }
    }
    names_ = std::move(names);
    if (schema_.header) text_.set_names(&names_);
  }
  std::size_t find(const std::map<std::string_view, std::size_t>& at, const std::vector<std::string>& names,
                   const std::string& name) const {
    const auto found = at.find(name);
    if (found == at.end()) {
      std::string known;
      for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), 20); ++i) known += " " + shown(names[i]);
      fail<FormatError>(source_.name(), ": line ", text_.line(), ": has no column ", shown(name), ", the first are",
                        known);
    }
    if (found->second == kNone) {
      fail<FormatError>(source_.name(), ": line ", text_.line(), ": has column ", shown(name), " more than once");
    }
    return found->second;
  }

  // Room for the rows that the file has if they are as long as those so far, or as those at its beginning. Never more
  // than its bytes can hold: each field ends in one, and the one field of a row is not empty.
  void make_room() {
    const std::uint64_t bytes_each = std::max<std::uint64_t>(place_.size(), 2);
    const std::uint64_t most = (source_.size() + 1) / bytes_each;
    std::uint64_t lines = rows_, bytes = text_.offset();
    if (rows_ == 0) {
      const char* const begin = text_.position();
      bytes = std::min<std::uint64_t>(static_cast<std::uint64_t>(text_.window_end() - begin), 1 << 14);
      lines = static_cast<std::uint64_t>(std::count(begin, begin + bytes, '\n')) + 1;
    }
    const double expected = static_cast<double>(source_.size()) * static_cast<double>(lines) /
                            static_cast<double>(std::max<std::uint64_t>(bytes, 1));
    // A little more than expected, and at least a quarter more than before.
    std::uint64_t room = std::max(static_cast<std::uint64_t>(1.02 * expected) + 16, std::uint64_t{rows_} + rows_ / 4);
    room = std::min(room, most);
    if (room <= rows_) fail<FileError>(source_.name(), ": was changed while it was read");
    const Shape shape =
        detail::checked_shape(source_.name() + ": its rows:", std::array{static_cast<std::int64_t>(room)});
    for (Column& column : columns_) {
      Tensor values = empty(shape, Device::cpu(), dtype_of(*column.schema));
      std::byte* const data = values.get().storage->data;
      if (rows_) std::memcpy(data, column.data, rows_ * itemsize(values.dtype()));
      column.values = std::move(values);
      column.data = data;
    }
    room_ = static_cast<std::size_t>(room);
  }

  void read_row() {
    if (rows_ == room_) make_room();
    const std::size_t count = place_.size();
    for (std::size_t k = 0; k < count; ++k) {
      bool more = false;
      if (place_[k] == kNone) {
        more = text_.next_field().more;
      } else if (Column& column = columns_[place_[k]]; !read_plain(column, more)) {
        const CsvField field = text_.next_field();
        store(column, field);
        more = field.more;
      }
      if (more != (k + 1 < count)) refuse_count(k + 1, more);
    }
    ++rows_;
  }
  [[noreturn]] void refuse_count(std::size_t fields, bool more) {
    for (; more && fields <= kCsvColumns; ++fields) more = text_.next_field().more;
    fail<FormatError>(source_.name(), ": line ", text_.line(), ": has ", fields, " fields, expected ", place_.size());
  }

  // ---- Values

  // A number of digits alone, whose end the conversion finds. False for all else, with nothing taken.
  bool read_plain(Column& column, bool& more) {
    const char *p = text_.position(), *const end = text_.window_end();
    if (p < end && *p == '-') ++p;
    if (p == end || *p < '0' || *p > '9' || missing_numbers_) return false;
    switch (column.schema->kind) {
      case CsvKind::f32: return read_plain_as<float>(column, more);
      case CsvKind::f64: return read_plain_as<double>(column, more);
      case CsvKind::i32: return read_plain_as<std::int32_t>(column, more);
      case CsvKind::i64: return read_plain_as<std::int64_t>(column, more);
      default: return false;
    }
  }
  template <class T>
  bool read_plain_as(Column& column, bool& more) {
    T value{};
    const auto [end, error] = std::from_chars(text_.position(), text_.window_end(), value);
    if (error != std::errc() || !text_.take(end, more)) return false;
    put(column, value);
    return true;
  }

  template <class T>
  void put(Column& column, T value) {
    static_cast<T*>(column.data)[rows_] = value;
  }
  template <class T>
  void put_number(Column& column, std::string_view value) {
    T number{};
    if (!read_number(trimmed(value), number)) text_.refuse(shown(value), " is no ", dtype_of(*column.schema));
    put(column, number);
  }
  void put_missing(Column& column) {
    if (!column.schema->missing && !is_float(*column.schema)) {
      text_.refuse("the value is missing; set CsvColumn::missing, or read the column as f32 or f64");
    }
    const double value = column.schema->missing.value_or(std::numeric_limits<double>::quiet_NaN());
    switch (column.schema->kind) {
      case CsvKind::f32: return put(column, static_cast<float>(value));
      case CsvKind::f64: return put(column, value);
      case CsvKind::i32: return put(column, static_cast<std::int32_t>(value));
      case CsvKind::i64:
      case CsvKind::category: return put(column, static_cast<std::int64_t>(value));
      case CsvKind::u8:
      case CsvKind::boolean: return put(column, static_cast<std::uint8_t>(value));
    }
  }
  void store(Column& column, const CsvField& field) {
    const auto& missing = schema_.missing_words;
    if (!field.quoted && std::find(missing.begin(), missing.end(), trimmed(field.value)) != missing.end()) {
      return put_missing(column);
    }
    switch (column.schema->kind) {
      case CsvKind::f32: return put_number<float>(column, field.value);
      case CsvKind::f64: return put_number<double>(column, field.value);
      case CsvKind::i32: return put_number<std::int32_t>(column, field.value);
      case CsvKind::i64: return put_number<std::int64_t>(column, field.value);
      case CsvKind::u8: return put_number<std::uint8_t>(column, field.value);
      case CsvKind::boolean: return put(column, boolean(trimmed(field.value)));
      case CsvKind::category: return put(column, index_of(column, field.value));
    }
  }
  std::uint8_t boolean(std::string_view value) const {
    constexpr std::string_view kTrue[] = {"true", "True", "TRUE", "1"}, kFalse[] = {"false", "False", "FALSE", "0"};
    if (std::find(std::begin(kTrue), std::end(kTrue), value) != std::end(kTrue)) return 1;
    if (std::find(std::begin(kFalse), std::end(kFalse), value) != std::end(kFalse)) return 0;
    text_.refuse(shown(value), " is no boolean, expected true, True, TRUE, 1, false, False, FALSE or 0");
  }
  std::int64_t index_of(Column& column, std::string_view word) const {
    const std::size_t mix =
        word.empty() ? 0 : static_cast<unsigned char>(word.front()) * 7u + static_cast<unsigned char>(word.back());
    const Column::Words::value_type*& recent = column.recent[(mix + word.size()) % column.recent.size()];
    if (recent && recent->first == word) return recent->second;
    const auto found = column.words.find(word);
    if (found != column.words.end()) return (recent = &*found)->second;
    if (!column.schema->categories.empty()) {
      text_.refuse(shown(word), " is none of the column's ", column.words.size(), " categories");
    }
    if (column.words.size() == kCsvWords) text_.refuse("the column has more than ", kCsvWords, " different words");
    if (!detail::valid_utf8(word)) text_.refuse("the word is not UTF-8");
    return column.words.emplace(word, static_cast<std::int64_t>(column.words.size())).first->second;
  }

  // ---- The result

  // The words by their indices; found words get indices in sorted order in place of that of their first rows.
  std::vector<std::string> words_of(Column& column) const {
    if (column.schema->kind != CsvKind::category || !column.schema->categories.empty()) {
      return column.schema->categories;
    }
    std::vector<std::string> words;
    std::vector<std::int64_t> rank(column.words.size());
    for (const auto& [word, index] : column.words) {
      rank[static_cast<std::size_t>(index)] = static_cast<std::int64_t>(words.size());
      words.push_back(word);
    }
    auto* values = static_cast<std::int64_t*>(column.data);
    for (std::size_t i = 0; i < rows_; ++i) {
      if (values[i] >= 0) values[i] = rank[static_cast<std::size_t>(values[i])];  // -1: missing
    }
    return words;
  }
  // The part of the values that was filled; a copy if there is much more room.
  Tensor rows_of(Column& column) const {
    const Shape shape{static_cast<std::int64_t>(rows_)};
    if (rows_ > 0 && rows_ + rows_ / 16 + 16 >= room_)
      return as_strided(column.values, shape, contiguous_strides(shape), 0);
    Tensor rows = empty(shape, Device::cpu(), dtype_of(*column.schema));
    if (rows_) std::memcpy(rows.get().storage->data, column.data, rows_ * itemsize(rows.dtype()));
    column.values = {};
    return rows;
  }

  detail::Source& source_;
  const CsvSchema& schema_;
  CsvText text_;
  std::vector<CsvColumn> all_{};      // the columns of an empty schema
  std::vector<Column> columns_{};     // in the schema's order
  std::vector<std::size_t> place_{};  // for each of the file's columns: which of columns_, or kNone
  std::vector<std::string> names_{};  // of the file's columns
  std::size_t rows_ = 0, room_ = 0;
  bool missing_numbers_ = false;  // a missing word may look like a number
};

}  // namespace

CsvTable read_csv(detail::Source& source, const CsvSchema& schema, std::size_t block) {
  check_schema(schema);
  return Reader(source, schema, block).read();
}

CsvTable load_csv(const std::string& path, const CsvSchema& schema) {
  detail::FileSource source(path);
  return read_csv(source, schema);
}

const Tensor& CsvTable::operator[](std::string_view name) const {
  const auto found = std::find_if(columns.begin(), columns.end(), [&](const auto& c) { return c.first == name; });
  if (found == columns.end()) fail<IndexError>("CsvTable: has no column ", shown(name));
  return found->second;
}

}  // namespace levin::data
