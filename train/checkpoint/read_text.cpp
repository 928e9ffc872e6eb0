#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>
#include <string_view>

#include "train/checkpoint/json.h"
#include "train/checkpoint/text.h"

namespace levin::train {
namespace {

using Kind = JsonValue::Kind;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class VersionReader final : public JsonReader {
 public:
  std::optional<std::int64_t> version;
  void value(JsonPath path, const JsonValue& v) override {
    if (path.size() != 1 || path[0].key != "version") return;
    const std::int64_t n = whole(v, -1);
    if (n >= 0) version = n;
  }
};

// The enumerator of a name, or of an index, which files of version 3 have.
template <class E, std::size_t N>
E enumerator(const std::string& path, const char* field, const std::array<const char*, N>& names, const JsonValue& v) {
  for (std::size_t i = 0; v.kind == Kind::word && i < N; ++i) {
    if (v.word == names[i]) return static_cast<E>(i);
  }
  const std::int64_t number = whole(v, -1);
  if (v.kind != Kind::word && number >= 0 && number < static_cast<std::int64_t>(N)) return static_cast<E>(number);
  std::string known;
  for (const char* const name : names) known += (known.empty() ? "" : ", ") + std::string(name);
  fail<FormatError>("resume: ", path, ": \"", field, "\" is ",
                    v.kind == Kind::word ? json_of(std::string_view(v.word).substr(0, 64)) : json_of(v),
                    ", expected one of ", known);
}

class StateReader final : public JsonReader {
 public:
  explicit StateReader(Checkpoint& to) : to_(to) {}

  void value(JsonPath path, const JsonValue& v) override {
    if (path.empty()) lacks("an object");
    const std::string& top = path[0].key;
    const std::size_t depth = path.size();
    if (depth == 1) {
      if (top == "global_step") take(to_.progress.global_step, top, v);
      if (top == "lr_schedulers") {
        std::int64_t n = 0;
        take(n, top, v);
        if (n < 0) lacks(top);
        to_.schedulers = static_cast<std::size_t>(n);
      }
    } else if (top == "loops") {
      loops(path, v);
    } else if (top == "optimizers" && depth == 2) {
      bound(to_.optimizers.size());
      to_.optimizers.push_back(word(top, v));
    } else if (top == "log" && depth == 3) {
      log(path[2].key, v);
    } else if ((top == "metrics" || top == "hparams") && depth == 3) {
      pair(top, path[2].index, v);
    } else if (top == "callbacks" && depth == 3) {
      bound(++values_);
      to_.callbacks[path[1].key].emplace_back(path[2].key, word(top, v));
    } else if (top == "generators" && depth == 3 && path[2].index >= 0 && path[2].index < 2) {
      if (v.kind != Kind::natural) lacks(top);
      RandomRange& state = to_.generators[path[1].key];
      (path[2].index == 0 ? state.seed : state.offset) = v.natural;
    } else if (depth == 2 && (top == "log" || top == "metrics" || top == "hparams" || top == "callbacks")) {
      lacks(top);
    }
  }
  void begins(JsonPath path, JsonKind kind) override {
    if (path.empty()) return;
    const std::string& top = path[0].key;
    if (path.size() == 1) {
      if (std::find(kLists.begin(), kLists.end(), top) != kLists.end()) seen_.insert(top);
      return;
    }
    if (path.size() == 3 && top != "loops" && std::find(kLists.begin(), kLists.end(), top) != kLists.end()) lacks(top);
    if (path.size() != 2) return;
    if (top == "optimizers") lacks(top);
    if (top == "callbacks") {
      if (kind != JsonKind::object) lacks(top);
      bound(to_.callbacks.size());
      (void)to_.callbacks[path[1].key];  // also without values, because a state may be tensors alone
    } else if (top == "generators") {
      bound(to_.generators.size());
    } else if (top == "log") {
      if (kind != JsonKind::object) lacks(top);
      bound(to_.log.size());
      to_.log.emplace_back();
      fields_ = 0;
    }
  }
  void ends(JsonPath path, JsonKind, std::int64_t count) override {
    if (path.size() != 2) return;
    const std::string& top = path[0].key;
    if (top == "log" && fields_ != kLogFields) lacks(top);
    if ((top == "metrics" || top == "hparams" || top == "generators") && count != 2) lacks(top);
  }

  void check_complete() const {
    for (const char* name : kLists) {
      if (name != kOptional && !seen_.contains(name)) lacks(name);
    }
    Progress::each_counter(to_.progress, [&](const char* name, std::int64_t, std::int64_t, bool needed) {
      if (needed && !seen_.contains(name)) lacks(name);
    });
    for (const char* name : {"global_step", "lr_schedulers", "accumulate", "due"}) {
      if (!seen_.contains(name)) lacks(name);
    }
  }

 private:
  static constexpr unsigned kLogFields = 0x3ff;  // one bit for each field that every file has
  static constexpr std::string_view kOptional = "hparams";
  static constexpr std::array kLists = {"loops", "optimizers", "log", "metrics", "hparams", "callbacks", "generators"};

  [[noreturn]] void lacks(std::string_view what) const {
    fail<FormatError>("resume: ", to_.path, ": \"levin.state\" lacks what it should hold (", what.substr(0, 64),
                      " is missing or of another type)");
  }
  void bound(std::size_t count, std::int64_t most = kMostEntries) const {
    if (static_cast<std::int64_t>(count) >= most)
      fail<FormatError>("resume: ", to_.path, ": \"levin.state\" has a list of more than ", most, " values");
  }
  void take(std::int64_t& to, const std::string& name, const JsonValue& v) {
    constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::min();
    const std::int64_t n = whole(v, kNone);
    if (n == kNone) lacks(name);
    to = n;
    seen_.insert(name);
  }
  std::string word(std::string_view name, const JsonValue& v) const {
    if (v.kind != Kind::word) lacks(name);
    return std::string(v.word);
  }
  bool flag_of(std::string_view name, const JsonValue& v) const {
    if (v.kind != Kind::flag) lacks(name);
    return v.flag;
  }
  double number_of(std::string_view name, const JsonValue& v) const {
    if (v.kind == Kind::flag || v.kind == Kind::word) lacks(name);
    return real(v);
  }

  void loops(JsonPath path, const JsonValue& v) {
    const std::string& name = path[1].key;
    if (path.size() == 3) {
      for (const auto& [list, to] : {std::pair("batches_ahead", &to_.progress.position.ahead),
                                     std::pair("batches_validated", &to_.batches_validated)}) {
        if (name != list) continue;
        bound(to->size(), kMostBatches);
        to->push_back(0);
        take(to->back(), name, v);
      }
      if (name == "writers_to_come") {
        bound(to_.writers_to_come.size());
        to_.writers_to_come.push_back(word(name, v));
      }
      return;
    }
    if (path.size() != 2) return;
    Progress::each_counter(to_.progress, [&](const char* counter, std::int64_t& to, std::int64_t, bool) {
      if (name == counter) take(to, name, v);
    });
    const std::pair<const char*, std::int64_t*> counters[] = {
        {"train_loaded_at", &to_.train_loaded_at}, {"val_loaded_at", &to_.val_loaded_at},
        {"accumulate", &to_.accumulate},           {"batches_per_epoch", &to_.batches_per_epoch},
        {"batch_size", &to_.batch_size},           {"world_size", &to_.world_size},
        {"global_batch", &to_.global_batch}};
    for (const auto& [counter, to] : counters) {
      if (name == counter) take(*to, name, v);
    }
    if (name == "due") {
      to_.progress.due = enumerator<Due>(to_.path, "due", kDueNames, v);
      seen_.insert(name);
    }
    if (name == "stop") to_.stop = flag_of(name, v);
    if (name == "closing") to_.progress.closing = flag_of(name, v);
    if (name == "training") to_.training = flag_of(name, v);
    if (name == "stopped_by") to_.stopped_by = word(name, v);
    for (const auto& [limit, to] : {std::pair("max_epochs", &to_.max_epochs), std::pair("max_steps", &to_.max_steps)}) {
      if (name == limit) take(to->emplace(), name, v);
    }
  }

  void log(const std::string& name, const JsonValue& v) {
    MetricLog::Saved& e = to_.log.back();
    const std::pair<const char*, bool*> flags[] = {{"on_step", &e.on_step},
                                                   {"on_epoch", &e.on_epoch},
                                                   {"prog_bar", &e.prog_bar},
                                                   {"logger", &e.logger},
                                                   {"fresh", &e.fresh}};
    const std::pair<const char*, double*> sums[] = {{"sum", &e.sum}, {"weight", &e.weight}, {"last", &e.last}};
    unsigned bit = 1;
    for (const auto& [known, to] : flags) {
      if (name == known) *to = flag_of(name, v), fields_ |= bit;
      bit <<= 1;
    }
    for (const auto& [known, to] : sums) {
      if (name == known) *to = number_of(name, v), fields_ |= bit;
      bit <<= 1;
    }
    if (name == "name") e.name = word(name, v), fields_ |= bit;
    bit <<= 1;
    if (name == "reduce") {
      e.reduce = enumerator<EpochReduce>(to_.path, "reduce", kReduce, v);
      fields_ |= bit;
    }
    if (name == "hook") e.hook = word(name, v);
    if (name == "metric") e.metric = word(name, v);
  }

  void pair(const std::string& top, std::int64_t index, const JsonValue& v) {
    const bool metric = top == "metrics";
    if (index == 0) {
      bound(metric ? to_.epoch_metrics.size() : to_.hparams.size());
      if (metric)
        to_.epoch_metrics.emplace_back(word(top, v), kNaN);
      else
        to_.hparams.emplace_back(word(top, v), kNaN);
    } else if (index == 1 && metric) {
      to_.epoch_metrics.back().second = number_of(top, v);
    } else if (index == 1) {
      HParam& to = to_.hparams.back().second;
      const std::int64_t n = whole(v, 0);
      if (v.kind == Kind::flag)
        to = HParam(v.flag);
      else if (v.kind == Kind::word)
        to = HParam(std::string(v.word));
      else if (v.kind == Kind::negative || (v.kind == Kind::natural && static_cast<std::uint64_t>(n) == v.natural))
        to = HParam(n);
      else
        to = HParam(real(v));
    } else {
      lacks(top);
    }
  }

  Checkpoint& to_;
  std::set<std::string> seen_;
  std::size_t values_ = 0;
  unsigned fields_ = 0;  // fields that the current entry of the log has
};

}  // namespace

void read_state(Checkpoint& to, const std::string& text) {
  VersionReader of;
  read_json(to.path, kState, text, of);
  if (!of.version) fail<FormatError>("resume: ", to.path, ": \"levin.state\" has no version");
  if (*of.version < kOldestVersion || *of.version > kVersion)
    fail<FormatError>("resume: ", to.path, ": version ", *of.version, ", this Levin reads ", kOldestVersion, " to ",
                      kVersion, "; use the Levin that wrote it");
  StateReader reader(to);
  read_json(to.path, kState, text, reader);
  reader.check_complete();
}

}  // namespace levin::train
