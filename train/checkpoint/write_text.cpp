#include <algorithm>
#include <array>
#include <string_view>

#include "train/checkpoint/json.h"
#include "train/checkpoint/text.h"
#include "train/run/run.h"

namespace levin::train {
namespace {

template <std::size_t N, class E>
std::string name_of(const std::array<const char*, N>& names, E value) {
  return json_of(std::string_view(names[static_cast<std::size_t>(value)]));
}

// Builds objects and arrays of values that are JSON already.
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
  if (const auto* held = dynamic_cast<const HasHParams*>(run.borrowed.tree)) hparams = held->hparams();
  const std::size_t of_module = hparams.size();
  for (const auto& pair : run.borrowed.data_module ? run.borrowed.data_module->hparams() : HParams{}) {
    const auto end = hparams.begin() + static_cast<std::ptrdiff_t>(of_module);
    if (std::none_of(hparams.begin(), end, [&](const auto& h) { return h.first == pair.first; }))
      hparams.push_back(pair);
  }
  Listed all = array();  // of pairs, to keep the order
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
  Progress::each_counter(run.progress, [&](const char* name, std::int64_t counter, std::int64_t, bool) {
    all.add(name, number(counter));
  });
  return all.add("batches_ahead", numbers(run.progress.position.ahead))
      .add("batches_per_epoch", number(run.loaders.batches == kUnknownBatches ? 0 : run.loaders.batches))
      .add("batch_size", number(run.loaders.batch_size))
      .add("world_size", number(run.strategy->ranks().size))
      .add("global_batch", number(run.loaders.batch_size * run.strategy->share().replicas))
      .add("train_loaded_at", number(run.loaders.train_loaded_at))
      .add("val_loaded_at", number(run.loaders.val_loaded_at))
      .add("accumulate", number(run.window.is_open() ? run.options.accumulate_grad_batches : 1))
      .add("batches_validated", numbers(run.logs.batches_evaluated[0]))
      .add("stop", flag(run.files.cut ? run.files.cut->stop_kept : run.stop.kept))
      .add("stopped_by", json_of(run.stop.by))
      .add("max_epochs", number(run.stop.max_epochs()))
      .add("max_steps", number(run.options.max_steps))
      .add("training", flag(run.files.training))
      .add("closing", flag(run.progress.closing))
      .add("due", name_of(kDueNames, run.progress.due))
      .add("writers_to_come", words(run.hooks.writers_to_come()))
      .text();
}

}  // namespace

std::string state_text(const Trainer::Run& run, const std::vector<std::pair<std::string, CallbackState>>& states,
                       const std::vector<MetricLog::Saved>& log) {
  Listed generators = object(), metrics = array(), optimizers = array(), callbacks = object();
  if (run.borrowed.tree) {
    for (const auto& [name, generator] : run.borrowed.tree->generators())
      generators.add(name, array().add(text(generator->state().seed)).add(text(generator->state().offset)).text());
  }
  for (const auto& [name, value] : run.logs.epoch) metrics.add(array().add(json_of(name)).add(json_of(value)).text());
  for (const auto& o : run.optimizers.all) optimizers.add(json_of(o->name()));
  for (const auto& [key, state] : states) {
    Listed values = object();
    for (const auto& [name, value] : state.values) values.add(name, json_of(value));
    callbacks.add(key, values.text());
  }
  return object()
      .add("version", number(kVersion))
      .add("epoch", number(run.progress.epoch))
      .add("global_step", number(run.progress.global_step))
      .add("loops", loops_text(run))
      .add("optimizers", optimizers.text())
      .add("lr_schedulers", text(run.optimizers.schedulers.size()))
      .add("callbacks", callbacks.text())
      .add("hparams", hparams_text(run))
      .add("generators", generators.text())
      .add("log", log_text(log))
      .add("metrics", metrics.text())
      .text();
}

std::string hashes_text(const std::vector<std::pair<std::string, std::string>>& hashes) {
  Listed out = object();
  for (const auto& [name, hash] : hashes) out.add(name, json_of(hash));
  return out.text();
}

}  // namespace levin::train
