#include "train/checkpoint/json.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "levin/error.h"

namespace levin::train {
namespace {

using Json = nlohmann::json;
using Kind = JsonValue::Kind;

constexpr std::size_t kMaxDepth = 32;  // the texts of checkpoints have 4

class Walk final : public nlohmann::json_sax<Json> {
 public:
  Walk(const std::string& file, const char* entry, JsonReader& reader) : file_(file), entry_(entry), reader_(reader) {}

  bool null() override { return take({.kind = Kind::null}); }
  bool boolean(bool x) override { return take({.kind = Kind::flag, .flag = x}); }
  bool number_integer(number_integer_t x) override { return take({.kind = Kind::negative, .negative = x}); }
  bool number_unsigned(number_unsigned_t x) override { return take({.kind = Kind::natural, .natural = x}); }
  bool number_float(number_float_t x, const string_t&) override { return take({.kind = Kind::real, .real = x}); }
  bool string(string_t& x) override { return take({.kind = Kind::word, .word = x}); }
  bool binary(binary_t&) override { return false; }  // not in texts
  bool start_object(std::size_t) override { return begin(JsonKind::object); }
  bool start_array(std::size_t) override { return begin(JsonKind::array); }
  bool key(string_t& name) override {
    path_.back().key = name;
    return true;
  }
  bool end_object() override { return end(JsonKind::object); }
  bool end_array() override { return end(JsonKind::array); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    fail<FormatError>(file_, ": \"", entry_, "\" is not JSON at its byte ", position);
  }

 private:
  bool take(const JsonValue& value) {
    step();
    reader_.value(path_, value);
    return true;
  }
  void step() {
    if (path_.empty()) return;
    ++counts_.back();
    if (kinds_.back() == JsonKind::array) path_.back().index = counts_.back() - 1;
  }
  bool begin(JsonKind kind) {
    step();
    if (path_.size() == kMaxDepth) fail<FormatError>(file_, ": \"", entry_, "\" is nested deeper than ", kMaxDepth);
    reader_.begins(path_, kind);
    path_.emplace_back();
    counts_.push_back(0);
    kinds_.push_back(kind);
    return true;
  }
  bool end(JsonKind kind) {
    const std::int64_t count = counts_.back();
    path_.pop_back();
    counts_.pop_back();
    kinds_.pop_back();
    reader_.ends(path_, kind, count);
    return true;
  }

  const std::string& file_;
  const char* entry_;
  JsonReader& reader_;
  std::vector<JsonStep> path_;
  std::vector<std::int64_t> counts_;
  std::vector<JsonKind> kinds_;
};

}  // namespace

void read_json(const std::string& path, const char* key, std::string_view text, JsonReader& reader) {
  Walk walk(path, key, reader);
  (void)Json::sax_parse(text, &walk);
}

std::string json_of(std::string_view word) { return Json(word).dump(-1, ' ', false, Json::error_handler_t::replace); }
std::string json_of(double x) { return Json(x).dump(); }
std::string json_of(const JsonValue& value) {
  switch (value.kind) {
    case Kind::null: break;
    case Kind::flag: return value.flag ? "true" : "false";
    case Kind::negative: return text(value.negative);
    case Kind::natural: return text(value.natural);
    case Kind::real: return json_of(value.real);
    case Kind::word: return json_of(value.word);
  }
  return "null";
}

std::int64_t whole(const JsonValue& v, std::int64_t otherwise) {
  if (v.kind == JsonValue::Kind::negative) return v.negative;
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  return v.kind == JsonValue::Kind::natural && v.natural <= kMost ? static_cast<std::int64_t>(v.natural) : otherwise;
}
double real(const JsonValue& v) {
  if (v.kind == JsonValue::Kind::real) return v.real;
  if (v.kind == JsonValue::Kind::null) return std::numeric_limits<double>::quiet_NaN();  // JSON has no NaN
  return v.kind == JsonValue::Kind::negative ? static_cast<double>(v.negative) : static_cast<double>(v.natural);
}

}  // namespace levin::train
