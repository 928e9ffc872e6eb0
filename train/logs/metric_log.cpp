#include "train/logs/metric_log.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin {

std::vector<train::MetricState> detail::MetricHandle::states(const Metric& metric) {
  std::vector<train::MetricState> out;
  for (const Metric::State& s : metric.states_) {
    if (static_cast<const Tensor*>(s.value) == &metric.batch_value_) continue;
    out.push_back({.across = s.across, .values = s.value->detach().to(DType::f64).to_vector<double>()});
  }
  return out;
}
detail::MetricHandle::Swapped::Swapped(Metric& metric, const std::vector<train::MetricState>& states) {
  std::size_t next = 0;
  Tensors others;
  for (const Metric::State& s : metric.states_) {
    Tensor& state = *s.value;
    if (&state == &metric.batch_value_) continue;
    own_.emplace_back(&state, state);
    others.push_back(from_data<double>(states.at(next++).values, state.shape(), Device::cpu()).to(state.device()));
  }
  for (std::size_t i = 0; i < own_.size(); ++i) *own_[i].first = std::move(others[i]);
}
detail::MetricHandle::Swapped::~Swapped() {
  for (auto& [state, before] : own_) *state = std::move(before);
}
double detail::MetricHandle::compute(Metric& metric, const std::vector<train::MetricState>& states) {
  const NoGrad off;
  const Swapped swapped(metric, states);
  return metric.compute().item();
}

namespace train {

void set_metric(Metrics& metrics, std::string_view name, double value) {
  for (auto& [known, old] : metrics) {
    if (known == name) {
      old = value;
      return;
    }
  }
  metrics.emplace_back(name, value);
}

namespace {

// The numbers of f64 cells. The cells of one device take one copy.
std::vector<double> numbers_of(const Tensors& cells) {
  std::vector<double> numbers(cells.size());
  std::map<std::string, std::vector<std::size_t>> by_device;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (cells[i].device().launches())
      by_device[text(cells[i].device())].push_back(i);
    else
      numbers[i] = cells[i].item();
  }
  for (const auto& [device, which] : by_device) {
    Tensors some;
    for (const std::size_t i : which) some.push_back(cells[i]);
    const std::vector<double> values = stack(some, 0).to_vector<double>();
    for (std::size_t k = 0; k < which.size(); ++k) numbers[which[k]] = values[k];
  }
  return numbers;
}
constexpr std::string_view kLoader = "/dataloader_idx_";

// "x_step/dataloader_idx_1", of an entry or a value.
template <class E>
std::string named(const E& e, const char* level = "") {
  return e.name + level + (e.loader < 0 ? "" : std::string(kLoader) + text(e.loader));
}

Metric* metric_of(const MetricLog::Entry& e) { return e.metric ? *e.metric : nullptr; }
// Whether the open epoch has a value of the entry; the cell of it; the value by the number in that cell.
bool has_value(const MetricLog::Entry& e) {
  return e.on_epoch && e.weight > 0 && (e.path.empty() && !e.metric ? e.sum.defined() : metric_of(e) != nullptr);
}
Tensor cell_of(const MetricLog::Entry& e) {
  const Metric* const metric = metric_of(e);
  return metric ? reshape(metric->compute().detach(), Dims(std::initializer_list<std::int64_t>{})).to(DType::f64)
                : e.sum;
}
double result_of(const MetricLog::Entry& e, double sum) {
  return !e.metric && e.reduce == EpochReduce::mean ? sum / e.weight : sum;
}

}  // namespace

BatchWeight weight_of(const Batch& batch) {
  BatchWeight found{.size = 0};
  for (const Tensor& t : batch.fields) {
    if (!t.defined()) continue;
    const std::int64_t size = t.rank() == 0 ? 1 : t.size(0);
    if (found.size == 0) found.size = size;
    found.ambiguous |= size != found.size;
  }
  return found;
}

std::vector<std::pair<std::string, Metric*>> metrics_of(nn::Module* tree) {
  std::vector<std::pair<std::string, Metric*>> found;
  if (!tree) return found;
  tree->visit([&](const std::string& path, nn::Module& m) {
    if (auto* metric = dynamic_cast<Metric*>(&m)) found.emplace_back(path, metric);
  });
  return found;
}

std::vector<nn::BufferRef> buffers_of_model(nn::Module* tree) {
  std::vector<nn::BufferRef> found;
  if (!tree) return found;
  std::set<const Tensor*> counted;
  for (const auto& [path, metric] : metrics_of(tree)) {
    for (const nn::BufferRef& b : metric->buffers()) counted.insert(b.value);
  }
  for (nn::BufferRef& b : tree->buffers()) {
    if (b.value->defined() && !counted.contains(b.value)) found.push_back(std::move(b));
  }
  return found;
}

NamedTensors metric_states(nn::Module* tree) {
  NamedTensors states;
  for (const auto& [path, metric] : metrics_of(tree)) {
    for (const nn::BufferRef& b : metric->buffers()) states.emplace_back(path + "." + b.name, *b.value);
  }
  return states;
}

MetricGuard::MetricGuard(nn::Module* tree) : states_(metric_states(tree)) {
  const NoGrad off;
  for (const auto& [name, t] : states_) before_.emplace_back(name, t.clone());
}
MetricGuard::~MetricGuard() {
  try {
    const NoGrad off;
    for (std::size_t i = 0; i < states_.size(); ++i) copy_(states_[i].second, before_[i].second);
  } catch (...) {}  // no memory; the error that is being thrown matters more
}

// ---- Entries

// Returns the entry of this name and hook, and makes a new one if there is none.
MetricLog::Entry& MetricLog::entry(std::string_view name, const LogOptions& options, const Place& place,
                                   Device device) {
  const std::string_view hook = place.hook.name;
  const bool epochs_only = place.hook.logs == Logs::epochs;
  const bool in_step = place.scope == LogScope::train_batch && !epochs_only;
  const bool on_step = options.on_step.value_or(in_step), on_epoch = options.on_epoch.value_or(!in_step);
  if (!on_step && !on_epoch)
    fail<ConfigError>("log: \"", name, "\" has on_step = false and on_epoch = false; switch one on");
  if (on_step && epochs_only)
    fail<ConfigError>("log: \"", name, "\" has on_step = true in ", hook,
                      ", which belongs to no step; leave it out there");
  if (options.enable_graph)
    fail<ConfigError>("log: \"", name,
                      "\" has enable_graph = true, and what is logged becomes a number; keep the tensor itself where "
                      "its graph is needed");
  if (options.batch_size && *options.batch_size < 1)
    fail<ConfigError>("log: \"", name, "\" has batch_size ", *options.batch_size, ", expected 1 or more");
  if (options.add_dataloader_idx && name.find(kLoader) != std::string_view::npos)
    fail<ConfigError>("log: \"", name, "\" names a loader itself; give another name, or add_dataloader_idx = false");

  auto it = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) {
    return e.name == name && e.loader == place.loader &&
           (e.hook == hook || e.hook.empty());  // empty: from a file that has no hooks
  });
  if (recording_ && device != *recording_)
    fail<CaptureError>("log: \"", name, "\" is a value on ", device,
                       ", which a replay of the step can not tell; log a tensor on ", *recording_,
                       ", or log it in on_train_batch_end");
  if (recording_ && it == entries_.end())
    fail<CaptureError>("log: \"", name, "\" was not logged by the steps before; log the same names in every step");
  if (it == entries_.end()) {
    entries_.push_back({.name = std::string(name),
                        .hook = std::string(hook),
                        .loader = place.loader,
                        .on_step = on_step,
                        .on_epoch = on_epoch,
                        .prog_bar = options.prog_bar,
                        .logger = options.logger,
                        .sync_dist = options.sync_dist,
                        .rank_zero_only = options.rank_zero_only,
                        .of_epochs = epochs_only,
                        .reduce = options.reduce});
    return entries_.back();
  }
  if (it->on_step != on_step || it->on_epoch != on_epoch || it->prog_bar != options.prog_bar ||
      it->logger != options.logger || it->reduce != options.reduce)
    fail<ConfigError>("log: \"", name, "\" is logged in ", hook.empty() ? "one place" : hook,
                      " with two sets of options; give it the same");
  if (it->hook.empty()) it->hook = hook;
  it->sync_dist = options.sync_dist;
  it->rank_zero_only = options.rank_zero_only;
  it->of_epochs = epochs_only;
  return *it;
}

namespace {

// Both copy the value into e.last, and with a weight into e.sum, so a later write to the value changes neither.
void keep_on_device(MetricLog::Entry& e, const Tensor& value, double weight) {
  const Tensor now = reshape(value.detach(), Dims(std::initializer_list<std::int64_t>{})).to(DType::f64);
  copy_(e.last, now);
  if (weight == 0) return;
  switch (e.reduce) {
    case EpochReduce::mean: add_(e.sum, now, weight); break;
    case EpochReduce::sum: add_(e.sum, now, 1); break;
    case EpochReduce::min: copy_(e.sum, minimum(e.sum, now)); break;
    case EpochReduce::max: copy_(e.sum, maximum(e.sum, now)); break;
  }
}
// The same without an op: ops would cost more than all callbacks of a small step.
void keep_on_host(MetricLog::Entry& e, double now, double weight) {
  *e.last.mutable_data<double>() = now;
  if (weight == 0) return;
  double& sum = *e.sum.mutable_data<double>();
  switch (e.reduce) {
    case EpochReduce::mean: sum += weight * now; break;
    case EpochReduce::sum: sum += now; break;
    case EpochReduce::min: sum = now < sum || now != now ? now : sum; break;  // a NaN stays
    case EpochReduce::max: sum = now > sum || now != now ? now : sum; break;
  }
}

}  // namespace

void MetricLog::log(std::string_view name, const Tensor& value, const LogOptions& options, const Place& place) {
  if (value.numel() != 1)
    fail<ShapeError>("log: \"", name, "\" has shape ", value.shape(), ", expected one element; take its mean");
  Entry& e = entry(name, options, place, value.device());
  const NoGrad off;
  double weight = e.on_epoch ? 1 : 0;
  const bool reduced = e.on_epoch && e.path.empty() && !e.metric;
  if (reduced) weight = static_cast<double>(options.batch_size.value_or(place.batch_size));
  const Device device = value.device();
  if (!e.last.defined() || e.last.device() != device) e.last = full({}, 0, device, DType::f64);
  if (reduced && !e.sum.defined()) e.sum = full({}, start_of(e.reduce), device, DType::f64);
  if (reduced && e.sum.device() != device) e.sum = e.sum.to(device);
  if (device.is_cpu())
    keep_on_host(e, value.item(), reduced ? weight : 0);
  else
    keep_on_device(e, value, reduced ? weight : 0);
  const Noted note{.entry = static_cast<std::size_t>(&e - entries_.data()), .weight = weight};
  if (recording_)
    noted_.push_back(note);
  else
    replayed({&note, 1});
}

void MetricLog::log(std::string_view name, const Metric& metric, nn::Module* tree, const LogOptions& options,
                    const Place& place) {
  Entry& e = entry(name, options, place, metric.batch_value().device());
  if (!e.metric && e.weight > 0)
    fail<ConfigError>("log: \"", name, "\" is logged as a number and as a Metric; give them two names");
  if (Metric* const known = metric_of(e); known && known != &metric)
    fail<ConfigError>("log: \"", name, "\" stands for two Metric objects; give them two names");
  if (!metric_of(e)) {
    e.metric = detail::MetricHandle::of(metric);
    for (const auto& [path, known] : metrics_of(tree)) {
      if (known == &metric) e.path = path;
    }
    if (e.path.empty())
      warn("W-LOG-METRIC", WarningCategory::user,
           "log: the Metric \"" + std::string(name) +
               "\" is no part of the module, so that checkpoints do not keep it; make it a member of the module");
  }
  log(name, metric.batch_value(), options, {place.scope, place.hook, place.loader});
}

bool MetricLog::logs(const Metric& metric) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& e) { return metric_of(e) == &metric; });
}

bool MetricLog::synchronizes() const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const Entry& e) { return e.on_step && e.sync_dist && e.logger; });
}

void MetricLog::begin_recording(Device device) {
  recording_ = device;
  noted_.clear();
}
std::vector<MetricLog::Noted> MetricLog::end_recording() {
  recording_.reset();
  return std::move(noted_);
}
void MetricLog::replayed(std::span<const Noted> noted) {
  for (const Noted& n : noted) {
    Entry& e = entries_[n.entry];
    e.fresh = true;
    e.weight += n.weight;
  }
}

MetricLog::Step MetricLog::take_step(const Tensor& beside) {
  Step out;
  Tensors cells;
  std::vector<std::string> names;
  for (Entry& e : entries_) {
    if (e.on_step && e.fresh && e.logger) {
      names.push_back(named(e, e.on_epoch ? "_step" : ""));
      cells.push_back(e.last);
      if (e.sync_dist) out.synced.emplace_back(names.back(), 0);
    }
    e.fresh = false;
  }
  if (names.empty()) return out;
  if (beside.defined()) cells.push_back(beside);
  const std::vector<double> values = numbers_of(cells);
  for (std::size_t i = 0; i < names.size(); ++i) set_metric(out.values, names[i], values[i]);
  if (beside.defined()) out.beside = values.back();
  for (auto& [name, value] : out.synced) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (names[i] == name) value = values[i];
    }
  }
  return out;
}

// ---- Values of an epoch

std::size_t MetricLog::find(const LogPart& part) const {
  const auto it = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) {
    return e.name == part.name && e.hook == part.hook && e.loader == part.loader;
  });
  return it == entries_.end() ? npos : static_cast<std::size_t>(it - entries_.begin());
}

std::vector<LogPart> MetricLog::parts() const {
  Tensors cells;
  for (const Entry& e : entries_) {
    if (has_value(e) && !metric_of(e)) cells.push_back(e.sum);
  }
  const std::vector<double> sums = numbers_of(cells);
  std::vector<LogPart> out;
  std::size_t next = 0;
  for (const Entry& e : entries_) {
    const bool known = has_value(e);
    const Metric* const metric = metric_of(e);
    if (!known && !(e.elsewhere && (e.path.empty() || metric))) continue;
    LogPart& p = out.emplace_back();
    p.name = e.name;
    p.hook = e.hook;
    p.loader = e.loader;
    p.on_step = e.on_step;
    p.prog_bar = e.prog_bar;
    p.logger = e.logger;
    p.of_epochs = e.of_epochs;
    p.rank_zero_only = e.rank_zero_only;
    p.reduce = e.reduce;
    p.weight = e.weight;
    p.is_metric = metric != nullptr;
    if (metric)
      p.states = detail::MetricHandle::states(*metric);
    else
      p.sum = known ? sums[next++] : start_of(e.reduce);
  }
  return out;
}

std::vector<MetricLog::Value> MetricLog::values(const Exchange& ranks) const {
  std::vector<Value> out;
  if (!ranks) {
    Tensors cells;
    for (const Entry& e : entries_) {
      if (has_value(e)) cells.push_back(cell_of(e));
    }
    const std::vector<double> sums = numbers_of(cells);
    std::size_t next = 0;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const Entry& e = entries_[i];
      if (has_value(e)) out.push_back({e.name, e.loader, e.on_step, e.logger, result_of(e, sums[next++]), i});
    }
    return out;
  }
  const std::vector<LogPart> all = merged(parts(), ranks);
  std::vector<std::pair<bool, double>> computed;  // of metrics
  bool complete = true;
  for (const LogPart& p : all) {
    const std::size_t i = find(p);
    Metric* const metric = i == npos || !p.is_metric ? nullptr : metric_of(entries_[i]);
    double value = p.reduce == EpochReduce::mean ? p.sum / p.weight : p.sum;
    if (metric) value = detail::MetricHandle::compute(*metric, p.states);
    if (p.is_metric) computed.emplace_back(metric != nullptr, value);
    complete &= !p.is_metric || p.everywhere;
    out.push_back({p.name, p.loader, p.on_step, p.logger, value, i});
  }
  if (!complete) {  // a rank without data may lack the object
    fill_from_ranks(computed, ranks);
    std::size_t next = 0;
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (all[k].is_metric) out[k].value = computed[next++].second;
    }
  }
  return out;
}

std::vector<MetricLog::Mean> MetricLog::take_epoch(const Exchange& ranks) {
  std::vector<Mean> out, hidden;
  // One name has one value: the newest.
  const auto set = [](std::vector<Mean>& means, Mean mean) {
    const auto known = std::find_if(means.begin(), means.end(), [&](const Mean& m) { return m.name == mean.name; });
    if (known == means.end())
      means.push_back(std::move(mean));
    else
      known->value = mean.value;
  };
  for (const Value& v : values(ranks)) {
    set(v.logger ? out : hidden, {named(v, v.on_step ? "_epoch" : ""), v.value, v.loader, v.logger});
    if (v.on_step) set(hidden, {named(v), v.value, v.loader, false});
    if (v.entry != npos) entries_[v.entry].finished = v.value;
  }
  for (Entry& e : entries_) {
    if (e.sum.defined()) fill_(e.sum, start_of(e.reduce));  // in place: a recorded step adds to this address
    e.weight = 0;
    e.elsewhere = false;
  }
  for (const Entry& e : entries_) {  // after all values are read, because a metric may have two names
    if (Metric* const metric = metric_of(e)) metric->reset();
  }
  std::move(hidden.begin(), hidden.end(), std::back_inserter(out));
  return out;
}

void MetricLog::reset() {
  for (const Entry& e : entries_) {
    if (Metric* const metric = metric_of(e)) metric->reset();
  }
  entries_.clear();
}

void MetricLog::newest(Metrics& into, const Exchange& ranks) const {
  Tensors cells;
  for (const Entry& e : entries_) {
    if (e.on_step && e.last.defined()) cells.push_back(e.last);
    if (has_value(e) && !ranks) cells.push_back(cell_of(e));
  }
  const std::vector<double> numbers = numbers_of(cells);
  std::size_t next = 0;
  const auto set_epoch = [&](const auto& of, bool on_step, double value) {
    set_metric(into, named(of), value);
    if (on_step) set_metric(into, named(of, "_epoch"), value);
  };
  for (const Entry& e : entries_) {
    const bool both = e.on_step && e.on_epoch;
    if (e.on_step && e.last.defined()) set_metric(into, named(e, both ? "_step" : ""), numbers[next++]);
    if (has_value(e) && !ranks) set_epoch(e, both, result_of(e, numbers[next++]));
  }
  if (!ranks) return;
  for (const Value& v : values(ranks)) set_epoch(v, v.on_step, v.value);
}

void MetricLog::progress(Metrics& into) const {
  Tensors cells;
  const auto shows_last = [](const Entry& e) { return e.on_step && e.last.defined(); };
  for (const Entry& e : entries_) {
    if (!e.prog_bar) continue;
    if (shows_last(e))
      cells.push_back(e.last);
    else if (has_value(e))
      cells.push_back(cell_of(e));
  }
  const std::vector<double> values = numbers_of(cells);
  std::size_t next = 0;
  for (const Entry& e : entries_) {
    if (!e.prog_bar) continue;
    if (shows_last(e))
      set_metric(into, named(e), values[next++]);
    else if (has_value(e))
      set_metric(into, named(e), result_of(e, values[next++]));
    else if (e.finished)
      set_metric(into, named(e), *e.finished);
  }
}

std::vector<MetricLog::Saved> MetricLog::save(const Exchange& ranks) const {
  std::vector<Saved> out;
  const std::vector<LogPart> all = ranks ? merged(parts(), ranks) : std::vector<LogPart>();
  for (const Entry& e : entries_) {
    out.push_back({.name = e.name,
                   .on_step = e.on_step,
                   .on_epoch = e.on_epoch,
                   .prog_bar = e.prog_bar,
                   .logger = e.logger,
                   .reduce = e.reduce,
                   .sum = e.sum.defined() ? e.sum.item() : 0,
                   .weight = e.metric && e.path.empty() ? 0 : e.weight,  // no file keeps metrics outside of the module
                   .last = e.last.defined() ? e.last.item() : 0,
                   .fresh = e.fresh,
                   .hook = e.hook,
                   .metric = e.path});
  }
  for (const LogPart& p : all) {
    const std::size_t i = find(p);
    if (i == npos) {  // other ranks alone logged it; its metric is not known here
      if (!p.is_metric)
        out.push_back({.name = p.name,
                       .on_step = p.on_step,
                       .on_epoch = true,
                       .prog_bar = p.prog_bar,
                       .logger = p.logger,
                       .reduce = p.reduce,
                       .sum = p.sum,
                       .weight = p.weight,
                       .hook = p.hook});
      continue;
    }
    out[i].sum = p.is_metric ? out[i].sum : p.sum;
    if (!(entries_[i].metric && entries_[i].path.empty())) out[i].weight = p.weight;
  }
  return out;
}

void MetricLog::back_to(const std::vector<Saved>& saved) {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& e = entries_[i];
    const bool known = i < saved.size();
    if (known && e.metric && e.path.empty()) continue;  // save() has no weight of it
    e.weight = known ? saved[i].weight : 0;
    if (e.sum.defined()) fill_(e.sum, e.weight > 0 ? saved[i].sum : start_of(e.reduce));
  }
}

void MetricLog::load(const std::vector<Saved>& saved, nn::Module* tree, bool sums) {
  entries_.clear();
  const auto metrics = metrics_of(tree);
  for (const Saved& s : saved) {
    Entry e{.name = s.name,
            .hook = s.hook,
            .on_step = s.on_step,
            .on_epoch = s.on_epoch,
            .prog_bar = s.prog_bar,
            .logger = s.logger,
            .reduce = s.reduce};
    e.last = full({}, s.last, Device::cpu(), DType::f64);
    if (s.weight > 0 && s.metric.empty()) e.sum = full({}, s.sum, Device::cpu(), DType::f64);
    e.weight = s.weight;
    if (!sums && s.weight > 0) {
      e.weight = 0;
      e.elsewhere = true;
      if (e.sum.defined()) fill_(e.sum, start_of(e.reduce));
    }
    e.fresh = s.fresh;
    e.path = s.metric;
    for (const auto& [path, metric] : metrics) {
      if (path == s.metric) e.metric = detail::MetricHandle::of(*metric);
    }
    entries_.push_back(std::move(e));
  }
}

}  // namespace train
}  // namespace levin
