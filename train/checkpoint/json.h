// Reads and writes the JSON of checkpoints, value by value. A reader builds no tree, so a hostile text cannot grow in
// memory, and no destructor of a tree needs memory while an exception is thrown.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace levin::train {

// The value as a whole number, `otherwise` if it is none or does not fit; the value as a real number, NaN for null.
struct JsonValue;
[[nodiscard]] std::int64_t whole(const JsonValue& v, std::int64_t otherwise);
[[nodiscard]] double real(const JsonValue& v);

// The place of a value in one of the objects and arrays around it.
struct JsonStep {
  std::string key;          // in an object
  std::int64_t index = -1;  // in an array; -1: in an object
};
using JsonPath = std::span<const JsonStep>;  // from the outside in; empty: the value that is the whole text

// A value that is no object and no array, of the member that `kind` names.
struct JsonValue {
  enum class Kind : std::uint8_t { null, flag, negative, natural, real, word } kind = Kind::null;
  bool flag = false;
  std::int64_t negative = 0;
  std::uint64_t natural = 0;
  double real = 0;
  std::string_view word{};
};

enum class JsonKind : std::uint8_t { object, array };

// Receives values, objects and arrays in the order of the text.
class JsonReader {
 public:
  virtual ~JsonReader() = default;
  virtual void value(JsonPath path, const JsonValue& value) = 0;
  virtual void begins(JsonPath, JsonKind) {}
  virtual void ends(JsonPath, JsonKind, std::int64_t /*count*/) {}  // count: values in it
};

// Calls the reader with the values of `text`, the entry `key` of the file `path`. Throws FormatError for a text that is
// not JSON or is nested deeper than 32, and what the reader throws.
void read_json(const std::string& path, const char* key, std::string_view text, JsonReader& reader);

// Return a value as JSON. A number that is not finite becomes null, a byte that is not UTF-8 becomes U+FFFD.
[[nodiscard]] std::string json_of(std::string_view word);
[[nodiscard]] std::string json_of(double x);
[[nodiscard]] std::string json_of(const JsonValue& value);

}  // namespace levin::train
