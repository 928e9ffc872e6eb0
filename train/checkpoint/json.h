// The JSON of checkpoints, read value by value. No tree of it is built: a hostile text can not grow in memory, and what is thrown while
// it is read, no memory for example, meets no destructor that needs memory itself.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace levin::train {

// A number: a whole one, `otherwise` where the value is none or does not fit; a real one, NaN for null.
struct JsonValue;
[[nodiscard]] std::int64_t whole(const JsonValue& v, std::int64_t otherwise);
[[nodiscard]] double real(const JsonValue& v);

// Where a value stands in one of the objects and arrays around it.
struct JsonStep {
  std::string key;          // in an object
  std::int64_t index = -1;  // in an array; -1: in an object
};
using JsonPath = std::span<const JsonStep>;  // from the outside in; empty: the text's own value

struct JsonValue {
  enum class Kind : std::uint8_t { null, flag, negative, natural, real, word } kind = Kind::null;
  bool flag = false;
  std::int64_t negative = 0;
  std::uint64_t natural = 0;
  double real = 0;
  std::string_view word{};
};

enum class JsonKind : std::uint8_t { object, array };

class JsonReader {
 public:
  virtual ~JsonReader() = default;
  virtual void value(JsonPath path, const JsonValue& value) = 0;
  virtual void begins(JsonPath, JsonKind) {}
  virtual void ends(JsonPath, JsonKind, std::int64_t /*count*/) {}  // count: of its values
};

// Gives the reader what stands in `text`, which is the entry `key` of the file `path`. Throws FormatError for what is not JSON or is nested
// deeper than 32, and what the reader throws.
void read_json(const std::string& path, const char* key, std::string_view text, JsonReader& reader);

// Values as JSON; a number that is not finite is null. Text that is not UTF-8 has U+FFFD in the place of wrong bytes.
[[nodiscard]] std::string json_of(std::string_view word);
[[nodiscard]] std::string json_of(double x);
[[nodiscard]] std::string json_of(const JsonValue& value);

}  // namespace levin::train
