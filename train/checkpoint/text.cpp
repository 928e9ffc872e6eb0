#include "train/checkpoint/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <string_view>

#include "train/checkpoint/json.h"

namespace levin::train {
namespace {

using Kind = JsonValue::Kind;

constexpr std::int64_t kVersion = 4, kOldestVersion = 3;  // 3: enumerators are numbers
constexpr const char* kState = "levin.state";
// Of one text, each of some hundred bytes in memory at most; numbers of batches have eight.
constexpr std::int64_t kMostEntries = 100'000, kMostBatches = 1'000'000;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Enumerators have names in files. Files of version 3 have the places of these arrays: a further name goes to the end.
constexpr std::array kReduce = {"mean", "sum", "min", "max"};
static_assert(kReduce.size() == static_cast<std::size_t>(EpochReduce::max) + 1);
template <std::size_t N, class E>
std::string name_of(const std::array<const char*, N>& names, E value) {
  return json_of(std::string_view(names[static_cast<std::size_t>(value)]));
}

// ---- Writing

// Objects and arrays of values that are JSON already.
class Listed {
 public:
  explicit Listed(JsonKind kind) : kind_(kind), out_(1, kind == JsonKind::object ? '{' : '[') {}
  Listed& add(std::string_view name, const std::string& value) { return put(json_of(name) + ":" + value); }
  Listed& add(const std::string& value) { return put(value); }
  [[nodiscard]] std::string text() const { return out_ + (kind_ == JsonKind::object ? '}' : ']'); }

 private:
  Listed& put(const std::string& part) {
    if (out_.size() > 1) out_ += ',';
    out_ += part;
    return *this;
  }
  JsonKind kind_;
  std::string out_;
};
Listed object() { return Listed(JsonKind::object); }
Listed array() { return Listed(JsonKind::array); }

std::string number(std::int64_t n) { return levin::text(n); }
std::string flag(bool on) { return levin::text(on); }
std::string numbers(const std::vector<std::int64_t>& all) {
  Listed out = array();
  for (const std::int64_t n : all) out.add(number(n));
  return out.text();
}
std::string words(const std::vector<std::string>& all) {
  Listed out = array();
  for (const std::string& word : all) out.add(json_of(word));
  return out.text();
}

std::string hparams_text(const Trainer::Run& run) {
  HParams hparams;
  if (const auto* held = dynamic_cast<const HasHParams*>(run.tree)) hparams = held->hparams();
  const std::size_t of_module = hparams.size();
  for (const auto& pair : run.data_module ? run.data_module->hparams() : HParams{}) {
    const auto end = hparams.begin() + static_cast<std::ptrdiff_t>(of_module);
    if (std::none_of(hparams.begin(), end, [&](const auto& h) { return h.first == pair.first; }))
      hparams.push_back(pair);
  }
  Listed all = array();  // of pairs: the order is kept
  for (const auto& [name, h] : hparams) {
    std::string value;
    switch (h.kind()) {
      case HParam::Kind::flag: value = flag(h.number() != 0); break;
      case HParam::Kind::integer: value = number(h.integer()); break;
      case HParam::Kind::real: value = json_of(h.number()); break;
      case HParam::Kind::word: value = json_of(h.as_text()); break;
    }
    all.add(array().add(json_of(name)).add(value).text());
  }
  return all.text();
}

std::string log_text(const std::vector<MetricLog::Saved>& log) {
  Listed all = array();
  for (const MetricLog::Saved& e : log)
    all.add(object()
                .add("name", json_of(e.name))
                .add("on_step", flag(e.on_step))
                .add("on_epoch", flag(e.on_epoch))
                .add("prog_bar", flag(e.prog_bar))
                .add("logger", flag(e.logger))
                .add("reduce", name_of(kReduce, e.reduce))
                .add("sum", json_of(e.sum))
                .add("weight", json_of(e.weight))
                .add("last", json_of(e.last))
                .add("fresh", flag(e.fresh))
                .add("hook", json_of(e.hook))
                .add("metric", json_of(e.metric))
                .text());
  return all.text();
}

std::string loops_text(const Trainer::Run& run) {
  Listed all = object();
  Progress::each_counter(
      run, [&](const char* name, std::int64_t counter, std::int64_t, bool) { all.add(name, number(counter)); });
  return all.add("batches_ahead", numbers(run.position.ahead))
      .add("batches_per_epoch", number(run.batches))
      .add("batch_size", number(run.train_loader ? run.train_loader->batch_size().value_or(0) : 0))
      .add("train_loaded_at", number(run.train_loaded_at))
      .add("val_loaded_at", number(run.val_loaded_at))
      .add("accumulate", number(run.window_is_open() ? run.options.accumulate_grad_batches : 1))
      .add("batches_validated", numbers(run.eval_batches[0]))
      .add("stop", flag(run.cut ? run.cut->stop_kept : run.stop_kept))
      .add("stopped_by", json_of(run.stopped_by))
      .add("max_epochs", number(run.max_epochs()))
      .add("max_steps", number(run.options.max_steps))
      .add("training", flag(run.training))
      .add("closing", flag(run.closing))
      .add("due", name_of(kDue, run.due))
      .add("writers_to_come", words(run.writers_to_come()))
      .text();
}

// ---- Reading

std::int64_t whole(const JsonValue& v, std::int64_t otherwise) {
  if (v.kind == Kind::negative) return v.negative;
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  return v.kind == Kind::natural && v.natural <= kMost ? static_cast<std::int64_t>(v.natural) : otherwise;
}
double real(const JsonValue& v) {
  if (v.kind == Kind::real) return v.real;
  if (v.kind == Kind::null) return kNaN;  // JSON has none
  return v.kind == Kind::negative ? static_cast<double>(v.negative) : static_cast<double>(v.natural);
}

class VersionReader final : public JsonReader {
 public:
  std::optional<std::int64_t> version;
  void value(JsonPath path, const JsonValue& v) override {
    if (path.size() != 1 || path[0].key != "version") return;
    const std::int64_t n = whole(v, -1);
    if (n >= 0) version = n;
  }
};

// The enumerator of a name, or of a number as files of version 3 have it.
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
      (void)to_.callbacks[path[1].key];  // also without values: its state may be tensors alone
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
  static constexpr unsigned kLogFields = 0x3ff;  // a bit each, of those that every file has
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
    const std::pair<const char*, std::int64_t*> counters[] = {{"train_loaded_at", &to_.train_loaded_at},
                                                              {"val_loaded_at", &to_.val_loaded_at},
                                                              {"accumulate", &to_.accumulate},
                                                              {"batches_per_epoch", &to_.batches_per_epoch},
                                                              {"batch_size", &to_.batch_size}};
    for (const auto& [counter, to] : counters) {
      if (name == counter) take(*to, name, v);
    }
    if (name == "due") {
      to_.progress.due = enumerator<Due>(to_.path, "due", kDue, v);
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
  unsigned fields_ = 0;  // of the entry of the log at hand
};

// Objects become dotted names; what is in them is text as it is, or JSON.
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
  // Of an array that is one value.
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
  int inside_ = 0;  // so many brackets of an array
  std::string list_;
};

// Keeps the hashes of names that are known; counts the others, and keeps some.
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

std::string state_text(const Trainer::Run& run, const std::vector<std::pair<std::string, CallbackState>>& states) {
  Listed generators = object(), metrics = array(), optimizers = array(), callbacks = object();
  if (run.tree) {
    for (const auto& [name, generator] : run.tree->generators())
      generators.add(name, array().add(text(generator->state().seed)).add(text(generator->state().offset)).text());
  }
  for (const auto& [name, value] : run.epoch_metrics)
    metrics.add(array().add(json_of(name)).add(json_of(value)).text());
  for (const auto& o : run.optimizers) optimizers.add(json_of(o->name()));
  for (const auto& [key, state] : states) {
    Listed values = object();
    for (const auto& [name, value] : state.values) values.add(name, json_of(value));
    callbacks.add(key, values.text());
  }
  return object()
      .add("version", number(kVersion))
      .add("epoch", number(run.epoch))
      .add("global_step", number(run.global_step))
      .add("loops", loops_text(run))
      .add("optimizers", optimizers.text())
      .add("lr_schedulers", text(run.schedulers.size()))
      .add("callbacks", callbacks.text())
      .add("hparams", hparams_text(run))
      .add("generators", generators.text())
      .add("log", log_text(run.cut ? run.cut->log : run.train_log.save()))
      .add("metrics", metrics.text())
      .text();
}

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

void describe_state(CheckpointInfo& to, const std::string& path, const std::string& text) {
  Flattened reader(to, path, text.size());
  read_json(path, kState, text, reader);
}

std::string hashes_text(const std::vector<std::pair<std::string, std::string>>& hashes) {
  Listed out = object();
  for (const auto& [name, hash] : hashes) out.add(name, json_of(hash));
  return out.text();
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
