// Options of ZeRO in files of DeepSpeed's shape.
#include "train/strategy/zero_config.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "levin/error.h"
#include "train/checkpoint/json.h"

namespace levin {
namespace {

using train::JsonKind;
using train::JsonPath;
using train::JsonValue;

constexpr double kMib = 1 << 20;
constexpr std::string_view kObjects[] = {"", "zero_optimization", "zero_optimization.offload_optimizer",
                                         "zero_optimization.offload_param"};
bool is_object(std::string_view name) { return std::ranges::find(kObjects, name) != std::end(kObjects); }

// "zero_optimization.stage"; "a[2].b" within arrays.
std::string name_of(JsonPath path) {
  std::string name;
  for (const train::JsonStep& step : path) {
    if (step.index >= 0)
      name += "[" + text(step.index) + "]";
    else
      name += (name.empty() ? "" : ".") + step.key;
  }
  return name;
}

class ConfigReader final : public train::JsonReader {
 public:
  ZeroOptions options;
  std::optional<int> stage;
  std::vector<std::string> unknown{}, wrong{};

  explicit ConfigReader(ZeroOptions first) : options(std::move(first)) {}

  void begins(JsonPath path, JsonKind kind) override {
    const std::string name = name_of(path);
    if (kind == JsonKind::object && is_object(name)) return;
    if (is_object(name))
      wrong.push_back((name.empty() ? "the file" : name) + " is an array, expected an object");
    else if (is_object(parent_of(path)) || kind == JsonKind::object)
      unknown_at(path);
  }
  void value(JsonPath path, const JsonValue& v) override {
    const std::string name = name_of(path);
    if (is_object(name)) {
      wrong.push_back((name.empty() ? "the file" : name) + " is " + json_of(v) + ", expected an object");
      return;
    }
    const std::string parent = parent_of(path);
    if (parent.empty()) return take_top(name, path, v);
    const std::string& key = path.back().key;
    if (parent == "zero_optimization") return take_zero(key, name, path, v);
    if (parent == "zero_optimization.offload_optimizer")
      return take_offload(key, name, path, v, options.offload_optimizer);
    if (parent == "zero_optimization.offload_param") return take_offload(key, name, path, v, options.offload_params);
    unknown_at(path);
  }
  void finish() {
    if (!reduce_ && !gather_) return;
    constexpr double kMost = 9e15;
    options.bucket_cap_mb = std::min(reduce_.value_or(kMost), gather_.value_or(kMost)) * 4 / kMib;
  }

 private:
  static std::string parent_of(JsonPath path) { return name_of(path.first(path.size() - 1)); }
  // Names the outermost key that is not known, once.
  void unknown_at(JsonPath path) {
    std::size_t n = 1;
    while (n < path.size() && is_object(name_of(path.first(n)))) ++n;
    const std::string name = name_of(path.first(n));
    if (std::ranges::find(unknown, name) == unknown.end()) unknown.push_back(name);
  }
  void expect(const std::string& name, const JsonValue& v, const char* what) {
    wrong.push_back(name + " is " + json_of(v) + ", expected " + what);
  }
  void take_flag(const std::string& name, const JsonValue& v, bool& to) {
    if (v.kind != JsonValue::Kind::flag) return expect(name, v, "true or false");
    to = v.flag;
  }
  // A number of elements, which may be written as 2e8.
  void take_count(const std::string& name, const JsonValue& v, const Function<void(double)>& set) {
    const bool number = v.kind == JsonValue::Kind::natural || v.kind == JsonValue::Kind::real;
    const double x = number ? train::real(v) : 0;
    if (!(x >= 1 && x <= 9e15 && x == std::floor(x))) return expect(name, v, "a whole number of 1 or more");
    set(x);
  }
  void take_top(const std::string& name, JsonPath path, const JsonValue& v) {
    if (name == "gradient_accumulation_steps")
      wrong.push_back(name + " is the trainer's accumulate_grad_batches; set it there");
    else if (name == "gradient_clipping")
      wrong.push_back(name + " is the trainer's gradient_clip_val; set it there");
    else
      unknown_at(path);
    (void)v;
  }
  void take_zero(const std::string& key, const std::string& name, JsonPath path, const JsonValue& v) {
    if (key == "stage") {
      const std::int64_t n = train::whole(v, -1);
      if (n < 1 || n > 3) return expect(name, v, "1, 2 or 3; without sharding the strategy is ddp");
      options.stage = static_cast<int>(n);
      stage = options.stage;
    } else if (key == "reduce_bucket_size") {
      take_count(name, v, [&](double n) { reduce_ = n; });
    } else if (key == "allgather_bucket_size") {
      take_count(name, v, [&](double n) { gather_ = n; });
    } else if (key == "sub_group_size") {
      take_count(name, v, [&](double n) { options.sub_group_size = static_cast<std::int64_t>(n); });
    } else if (key == "overlap_comm") {
      take_flag(name, v, options.overlap_comm);
    } else if (key == "contiguous_gradients") {
      bool on = true;
      take_flag(name, v, on);
      if (!on) wrong.push_back(name + " is false, and gradients always lie in one buffer; drop it");
    } else {
      unknown_at(path);
    }
  }
  void take_offload(const std::string& key, const std::string& name, JsonPath path, const JsonValue& v, Offload& to) {
    const bool word = v.kind == JsonValue::Kind::word;
    if (key == "device") {
      if (word && v.word == "none")
        to = Offload::none;
      else if (word && v.word == "cpu")
        to = Offload::cpu;
      else if (word && v.word == "nvme")
        to = Offload::nvme;
      else
        expect(name, v, "none, cpu or nvme");
    } else if (key == "nvme_path") {
      if (!word) return expect(name, v, "a folder");
      if (path_ && *path_ != v.word)
        wrong.push_back(name + " is " + json_of(v) + ", and another one is given; one folder serves both");
      path_ = options.nvme_path = v.word;
    } else if (key == "pin_memory") {
      take_flag(name, v, options.pin_memory);
      if (pinned_ && *pinned_ != options.pin_memory)
        wrong.push_back(name + " differs from the other one; both share it");
      pinned_ = options.pin_memory;
    } else {
      unknown_at(path);
    }
  }
  std::optional<double> reduce_, gather_;  // elements
  std::optional<std::string> path_;
  std::optional<bool> pinned_;
};

struct Parsed {
  ZeroOptions options;
  std::optional<int> stage;
};
Parsed parse(std::string_view json, const std::string& name, const ZeroOptions& otherwise) {
  ConfigReader reader(otherwise);
  train::read_json(name, "zero_optimization", json, reader);
  reader.finish();
  std::string all;
  const auto add = [&](const std::string& what) { all += (all.empty() ? "" : "; ") + what; };
  if (!reader.unknown.empty()) {
    std::string list;
    for (const std::string& key : reader.unknown) list += (list.empty() ? "" : ", ") + key;
    add("unknown: " + list + " (known are zero_optimization with stage, allgather_bucket_size, reduce_bucket_size, " +
        "overlap_comm, contiguous_gradients, sub_group_size, offload_optimizer and offload_param)");
  }
  for (const std::string& what : reader.wrong) add(what);
  if (!all.empty()) fail<ConfigError>(name, ": ", all);
  return {reader.options, reader.stage};
}

std::string text_of_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string all;
  for (char part[4096]; file.read(part, sizeof part) || file.gcount() > 0;)
    all.append(part, static_cast<std::size_t>(file.gcount()));
  if (!file.eof())
    fail<FileError>("read_zero_config: can not read ", path, ": ",
                    errno ? std::generic_category().message(errno) : "it is no file with text");
  return all;
}

}  // namespace

ZeroOptions parse_zero_config(std::string_view json, const std::string& name) { return parse(json, name, {}).options; }
ZeroOptions read_zero_config(const std::string& path) { return parse_zero_config(text_of_file(path), path); }

ZeroOptions train::zero_options_of(const ZeroOptions& named, NamesStage names_stage) {
  const char *const own = std::getenv("LEVIN_ZERO_CONFIG"), *const other = std::getenv("PL_DEEPSPEED_CONFIG_PATH");
  const std::string first = own ? own : "", second = other ? other : "";
  if (!first.empty() && !second.empty() && first != second)
    fail<ConfigError>("Trainer: LEVIN_ZERO_CONFIG is ", first, " and PL_DEEPSPEED_CONFIG_PATH is ", second,
                      "; set one of them");
  const std::string path = first.empty() ? second : first;
  if (path.empty()) return named;
  const Parsed parsed = parse(text_of_file(path), path, named);
  if (names_stage == NamesStage::yes && parsed.stage && *parsed.stage != named.stage)
    fail<ConfigError>("Trainer: strategy names stage ", named.stage, " and ", path, " says stage ", *parsed.stage,
                      R"(; use strategy = "deepspeed", or drop the stage of the file)");
  return parsed.options;
}

}  // namespace levin
