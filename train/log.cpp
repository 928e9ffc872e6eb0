#include "train/log.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin {
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

double start_of(EpochReduce reduce) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return reduce == EpochReduce::min ? kInfinity : reduce == EpochReduce::max ? -kInfinity : 0;
}
// The numbers of f64 cells; those of one device come in one copy.
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
double result_of(const MetricLog::Entry& e, double sum) { return e.reduce == EpochReduce::mean ? sum / e.weight : sum; }
double result_of(const MetricLog::Entry& e) { return result_of(e, e.sum.item()); }

}  // namespace

void MetricLog::log(std::string_view name, const Tensor& value, const LogOptions& options, LogScope scope,
                    std::int64_t batch_size) {
  if (value.numel() != 1)
    fail<ShapeError>("log: \"", name, "\" has shape ", value.shape(), ", expected one element; take its mean");
  const bool on_step = options.on_step.value_or(scope == LogScope::train_batch);
  const bool on_epoch = options.on_epoch.value_or(scope != LogScope::train_batch);
  if (!on_step && !on_epoch)
    fail<ConfigError>("log: \"", name, "\" has on_step = false and on_epoch = false; switch one on");
  if (options.batch_size && *options.batch_size < 1)
    fail<ConfigError>("log: \"", name, "\" has batch_size ", *options.batch_size, ", expected 1 or more");

  auto it = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.name == name; });
  if (recording_ && value.device() != *recording_)
    fail<CaptureError>("log: \"", name, "\" is a value on ", value.device(),
                       ", which a replay of the step can not tell; log a tensor on ", *recording_,
                       ", or log it in on_train_batch_end");
  if (recording_ && it == entries_.end())
    fail<CaptureError>("log: \"", name, "\" was not logged by the steps before; log the same names in every step");
  if (it == entries_.end()) {
    entries_.push_back({.name = std::string(name),
                        .on_step = on_step,
                        .on_epoch = on_epoch,
                        .prog_bar = options.prog_bar,
                        .logger = options.logger,
                        .reduce = options.reduce});
    it = entries_.end() - 1;
  } else if (it->on_step != on_step || it->on_epoch != on_epoch || it->prog_bar != options.prog_bar ||
             it->logger != options.logger || it->reduce != options.reduce) {
    fail<ConfigError>("log: \"", name, "\" is logged with two sets of options; give it the same everywhere");
  }
  const NoGrad off;
  const Tensor now = reshape(value.detach(), Dims(std::initializer_list<std::int64_t>{})).to(DType::f64);
  // A copy: a value that its owner changes in place later must not change here.
  if (!it->last.defined() || it->last.device() != now.device()) it->last = empty_like(now);
  copy_(it->last, now);
  double weight = 0;
  if (on_epoch) {
    weight = static_cast<double>(options.batch_size.value_or(batch_size));
    if (!it->sum.defined()) it->sum = full({}, start_of(it->reduce), now.device(), DType::f64);
    if (it->sum.device() != now.device()) it->sum = it->sum.to(now.device());
    switch (it->reduce) {
      case EpochReduce::mean: add_(it->sum, now, weight); break;
      case EpochReduce::sum: add_(it->sum, now, 1); break;
      case EpochReduce::min: copy_(it->sum, minimum(it->sum, now)); break;
      case EpochReduce::max: copy_(it->sum, maximum(it->sum, now)); break;
    }
  }
  const Noted note{.entry = static_cast<std::size_t>(it - entries_.begin()), .weight = weight};
  if (recording_)
    noted_.push_back(note);
  else
    replayed({note});
}

void MetricLog::begin_recording(Device device) {
  recording_ = device;
  noted_.clear();
}
std::vector<MetricLog::Noted> MetricLog::end_recording() {
  recording_.reset();
  return std::move(noted_);
}
void MetricLog::replayed(const std::vector<Noted>& noted) {
  for (const Noted& n : noted) {
    Entry& e = entries_[n.entry];
    e.fresh = true;
    e.weight += n.weight;
  }
}

Metrics MetricLog::take_step() {
  Metrics out;
  Tensors cells;
  for (Entry& e : entries_) {
    if (e.on_step && e.fresh && e.logger) {
      out.emplace_back(e.on_epoch ? e.name + "_step" : e.name, 0);
      cells.push_back(e.last);
    }
    e.fresh = false;
  }
  const std::vector<double> values = numbers_of(cells);
  for (std::size_t i = 0; i < out.size(); ++i) out[i].second = values[i];
  return out;
}

Metrics MetricLog::take_epoch(Metrics& hidden) {
  Metrics out;
  Tensors cells;
  for (const Entry& e : entries_) {
    if (e.on_epoch && e.weight > 0) cells.push_back(e.sum);
  }
  const std::vector<double> sums = numbers_of(cells);
  std::size_t next = 0;
  for (Entry& e : entries_) {
    if (e.on_epoch && e.weight > 0)
      (e.logger ? out : hidden).emplace_back(e.on_step ? e.name + "_epoch" : e.name, result_of(e, sums[next++]));
    if (e.sum.defined()) fill_(e.sum, start_of(e.reduce));  // in place: a recorded step adds to this address
    e.weight = 0;
  }
  return out;
}

void MetricLog::reset() { entries_.clear(); }

void MetricLog::newest(Metrics& into) const {
  for (const Entry& e : entries_) {
    if (!e.last.defined()) continue;
    const bool both = e.on_step && e.on_epoch;
    const bool mean = e.on_epoch && e.weight > 0;
    if (e.on_step) set_metric(into, both ? e.name + "_step" : e.name, e.last.item());
    if (mean) {
      set_metric(into, e.name, result_of(e));
      if (both) set_metric(into, e.name + "_epoch", result_of(e));
    }
  }
}

void MetricLog::progress(Metrics& into) const {
  for (const Entry& e : entries_) {
    if (!e.prog_bar || !e.last.defined()) continue;
    if (e.on_step)
      into.emplace_back(e.name, e.last.item());
    else if (e.weight > 0)
      into.emplace_back(e.name, result_of(e));
  }
}

std::vector<MetricLog::Saved> MetricLog::save() const {
  std::vector<Saved> out;
  for (const Entry& e : entries_) {
    out.push_back({.name = e.name,
                   .on_step = e.on_step,
                   .on_epoch = e.on_epoch,
                   .prog_bar = e.prog_bar,
                   .logger = e.logger,
                   .reduce = e.reduce,
                   .sum = e.sum.defined() ? e.sum.item() : 0,
                   .weight = e.weight,
                   .last = e.last.defined() ? e.last.item() : 0,
                   .fresh = e.fresh});
  }
  return out;
}

void MetricLog::load(const std::vector<Saved>& saved) {
  entries_.clear();
  for (const Saved& s : saved) {
    Entry e{.name = s.name,
            .on_step = s.on_step,
            .on_epoch = s.on_epoch,
            .prog_bar = s.prog_bar,
            .logger = s.logger,
            .reduce = s.reduce};
    e.last = full({}, s.last, Device::cpu(), DType::f64);
    if (s.weight > 0) e.sum = full({}, s.sum, Device::cpu(), DType::f64);
    e.weight = s.weight;
    e.fresh = s.fresh;
    entries_.push_back(std::move(e));
  }
}

}  // namespace train
}  // namespace levin
