// Describes a checkpoint that may be damaged: the values of its state, and what differs from its hashes.
#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "train/checkpoint/json.h"
#include "train/checkpoint/text.h"

namespace levin::train {
namespace {

using Kind = JsonValue::Kind;

// Turns members of objects into dotted names. A word becomes its text, every other value JSON.
class Flattened final : public JsonReader {
 public:
  Flattened(CheckpointInfo& to, const std::string& path, std::size_t text_bytes)
      : to_(to), file_(path), most_bytes_(4 * text_bytes + (std::size_t{1} << 20)) {}

  void value(JsonPath path, const JsonValue& v) override {
    if (inside_ > 0) return part(path.back(), json_of(v));
    if (path.size() == 1 && path[0].key == "global_step") to_.global_step = whole(v, 0);
    if (path.size() == 2 && path[0].key == "loops" && path[1].key == "epochs_completed")
      to_.epochs_completed = whole(v, 0);
    put(path, v.kind == Kind::word ? std::string(v.word) : json_of(v));
  }
  void begins(JsonPath path, JsonKind kind) override {
    const char bracket = kind == JsonKind::array ? '[' : '{';
    if (inside_ > 0) {
      part(path.back(), std::string(1, bracket));
    } else if (kind == JsonKind::array) {
      list_ = bracket;
    } else {
      return;
    }
    ++inside_;
  }
  void ends(JsonPath path, JsonKind kind, std::int64_t count) override {
    if (inside_ == 0) {
      if (count == 0) put(path, "{}");
      return;
    }
    list_ += kind == JsonKind::array ? ']' : '}';
    if (--inside_ == 0) put(path, std::exchange(list_, {}));
  }

 private:
  // Adds an element to the array, whose JSON is one value.
  void part(const JsonStep& at, const std::string& value) {
    if (list_.back() != '[' && list_.back() != '{') list_ += ',';
    if (at.index < 0) list_ += json_of(at.key) + ":";
    list_ += value;
  }
  void put(JsonPath path, std::string value) {
    std::string name;
    for (const JsonStep& step : path) name += (name.empty() ? "" : ".") + step.key;
    bytes_ += name.size() + value.size();
    if (to_.state.size() >= static_cast<std::size_t>(kMostEntries) || bytes_ > most_bytes_)
      fail<FormatError>(file_, ": \"levin.state\" has more than ", kMostEntries,
                        " values, or names of several times its length");
    to_.state.emplace_back(std::move(name), std::move(value));
  }

  CheckpointInfo& to_;
  const std::string& file_;
  std::size_t bytes_ = 0, most_bytes_;
  int inside_ = 0;  // brackets that are open since the beginning of an array
  std::string list_;
};

// Keeps the hashes of known names. Counts unknown names, and keeps the first kShown.
class HashReader final : public JsonReader {
 public:
  struct Known {
    std::string_view name;
    std::optional<std::string> hash{};
  };
  static constexpr std::size_t kShown = 1000;
  std::vector<Known> known;  // ascending by name
  std::vector<std::string> unknown;
  std::size_t more = 0;

  void value(JsonPath path, const JsonValue& v) override {
    if (path.size() != 1 || path[0].index >= 0) return;
    const std::string& name = path[0].key;
    const auto at = std::lower_bound(known.begin(), known.end(), std::string_view(name),
                                     [](const Known& k, std::string_view n) { return k.name < n; });
    if (at != known.end() && at->name == name) {
      at->hash.reset();
      if (v.kind == Kind::word) at->hash.emplace(v.word.substr(0, 64));
    } else if (unknown.size() < kShown) {
      unknown.push_back(name);
    } else {
      ++more;
    }
  }
};

}  // namespace

void describe_state(CheckpointInfo& to, const std::string& path, const std::string& text) {
  Flattened reader(to, path, text.size());
  read_json(path, kState, text, reader);
}

std::vector<CheckpointInfo::Damage> find_damage(const std::string& path, const TensorFile& file,
                                                const std::string& state, const std::string& hashes) {
  HashReader reader;
  reader.known.push_back({.name = kState});
  for (const auto& [name, tensor] : file.tensors) reader.known.push_back({.name = name});
  const auto by_name = [](const HashReader::Known& a, const HashReader::Known& b) { return a.name < b.name; };
  std::sort(reader.known.begin(), reader.known.end(), by_name);
  read_json(path, "levin.hashes", hashes, reader);

  std::vector<CheckpointInfo::Damage> found;
  const auto check = [&](const std::string& name, const std::string& actual) {
    const auto at =
        std::lower_bound(reader.known.begin(), reader.known.end(), HashReader::Known{.name = name}, by_name);
    if (!at->hash)
      found.push_back({name, "has no hash in the file"});
    else if (*at->hash != actual)
      found.push_back({name, "has hash " + actual + ", expected " + *at->hash});
  };
  check(kState, content_hash(state));
  for (const auto& [name, tensor] : file.tensors) check(name, content_hash(name, tensor));
  for (const std::string& name : reader.unknown) found.push_back({name, "has a hash and is not there"});
  if (reader.more > 0) found.push_back({"levin.hashes", "has " + text(reader.more) + " names more that are not there"});
  return found;
}

}  // namespace levin::train
