#include "levin/train/averaging.h"

#include <algorithm>
#include <utility>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "levin/optim.h"
#include "levin/stream.h"
#include "train/logs/metric_log.h"

namespace levin {
namespace {

// Buffers of metrics are no part of the model: they count what training and validations of the average saw.
struct Buffers {
  std::vector<nn::BufferRef> of_model;
  std::vector<std::string> of_metrics;
};
Buffers buffers_of(nn::Module& module) {
  Buffers found{.of_model = train::buffers_of_model(&module), .of_metrics = {}};
  for (auto& [name, state] : train::metric_states(&module)) found.of_metrics.push_back(std::move(name));
  return found;
}

// f32 for 16-bit floats, which would round small changes away.
DType dtype_of_average(DType dtype) { return is_float(dtype) && itemsize(dtype) == 2 ? DType::f32 : dtype; }

// Copies dense tensors with the device and dtype of their source in one pass, and the others one by one.
void copy_over(const Tensors& to, const Tensors& from) {
  Tensors alike, sources;
  for (std::size_t i = 0; i < to.size(); ++i) {
    Tensor target = to[i];
    if (target.device() == from[i].device() && target.dtype() == from[i].dtype() &&
        target.is_contiguous(target.suggest_memory_format()) &&
        (alike.empty() || alike[0].device() == target.device())) {
      alike.push_back(target);
      sources.push_back(from[i]);
    } else {
      copy_(target, from[i]);
    }
  }
  optim::copy_all_(alike, sources);
}

}  // namespace

AvgFn swa_avg() { return {}; }
AvgFn ema_avg(double decay) {
  if (!(decay >= 0 && decay <= 1)) fail<ConfigError>("ema_avg: decay is ", decay, ", expected 0 to 1");
  AvgFn f;
  f.decay_ = decay;
  return f;
}

AveragedModel::AveragedModel(nn::Module& module, AveragedModelOptions options)
    : AveragedModel(module, std::make_shared<const AveragedModelOptions>(std::move(options))) {}
AveragedModel::AveragedModel(nn::Module& module, std::shared_ptr<const AveragedModelOptions> options)
    : options_(std::move(options)) {
  const std::vector<ParamRef> parameters = module.parameters();
  const auto [buffers, counted] = buffers_of(module);
  left_out_ = counted;
  if (parameters.empty() && buffers.empty())
    fail<ConfigError>("AveragedModel: the module has no parameters and no buffers, there is nothing to average");
  device_ = options_->device.value_or((parameters.empty() ? buffers[0].value : parameters[0].value)->device());
  const NoGrad off;
  const auto add = [&](const std::string& name, const Tensor& value, bool averaged, bool persistent) {
    // A conversion returns the tensor itself when there is nothing to convert.
    Tensor copy =
        value.detach().contiguous(value.suggest_memory_format()).to(device_).to(dtype_of_average(value.dtype()));
    if (copy.get().storage == value.get().storage) copy = copy.clone();
    entries_.push_back({name, std::move(copy), averaged && is_float(value.dtype()), persistent});
  };
  for (const ParamRef& p : parameters) add(p.name, *p.value, true, true);
  for (const nn::BufferRef& b : buffers)
    add(b.name, *b.value, options_->use_buffers, b.persistent == nn::Persistent::yes);
}

std::vector<Tensor*> AveragedModel::tensors_of(nn::Module& module, const char* op) const {
  std::vector<Tensor*> all;
  const auto add = [&](const std::string& name, Tensor* value) {
    const std::size_t i = all.size();
    const bool fits = i < entries_.size() && entries_[i].name == name && entries_[i].value.shape() == value->shape() &&
                      entries_[i].value.dtype() == dtype_of_average(value->dtype());
    if (!fits)
      fail<ConfigError>("AveragedModel: ", op, ": the module has ", name, ", ", *value, ", where the average has ",
                        i < entries_.size() ? entries_[i].name + ", " + text(entries_[i].value) : "nothing",
                        "; give the module that was averaged, or one built alike");
    all.push_back(value);
  };
  for (const ParamRef& p : module.parameters()) add(p.name, p.value);
  for (const nn::BufferRef& b : buffers_of(module).of_model) add(b.name, b.value);
  if (all.size() < entries_.size())
    fail<ConfigError>("AveragedModel: ", op, ": the module has no ", entries_[all.size()].name,
                      "; give the module that was averaged, or one built alike");
  return all;
}

void AveragedModel::update(nn::Module& module) {
  const std::vector<Tensor*> live = tensors_of(module, "update");
  if (swapped_ > 0)
    fail<StateError>(
        "AveragedModel: update: the averages are swapped into a module; leave the scope of swap_into first");
  if (is_capturing(device_))
    fail<CaptureError>("AveragedModel: update: the number of updates can not be recorded; call it after the replay");
  const NoGrad off;
  Tensors averages, values, copies, copied;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const bool averaged = entries_[i].averaged && n_ > 0;
    (averaged ? averages : copies).push_back(entries_[i].value);
    (averaged ? values : copied).push_back(live[i]->detach());
  }
  average(averages, std::move(values));  // comes first, because it may refuse what the user's function returned
  copy_over(copies, copied);
  ++n_;
}

void AveragedModel::average(const Tensors& averages, Tensors values) {
  if (averages.empty()) return;
  const bool own = options_->multi_avg_fn || options_->avg_fn.each_;
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = values[i].to(device_);
    if (own) values[i] = values[i].to(averages[i].dtype());
  }
  if (options_->multi_avg_fn) return options_->multi_avg_fn(averages, values, n_);
  if (options_->avg_fn.each_) {
    Tensors next;
    for (std::size_t i = 0; i < averages.size(); ++i) {
      next.push_back(options_->avg_fn.each_(averages[i], values[i], n_).detach());
      if (next[i].shape() != averages[i].shape())
        fail<ShapeError>("AveragedModel: avg_fn returned ", next[i], ", expected the average's ", averages[i]);
      if (next[i].dtype() != averages[i].dtype())
        fail<DTypeError>("AveragedModel: avg_fn returned ", next[i], ", expected the average's ", averages[i]);
    }
    return copy_over(averages, next);
  }
  // A constant decay stays on the device.
  if (!options_->avg_fn.decay_ || !decay_.defined()) {
    const auto n = static_cast<double>(n_);
    decay_ = full({1}, options_->avg_fn.decay_.value_or(n / (n + 1)), device_, DType::f64);
  }
  optim::ema_update_(averages, values, decay_);
}

AveragedModel::Swap::Swap(AveragedModel& of, nn::Module& module) : of_(&of) {
  const std::vector<Tensor*> places = of.tensors_of(module, "swap_into");
  const NoGrad off;
  for (std::size_t i = 0; i < places.size(); ++i) {
    Tensor lent = of.entries_[i].value.to(places[i]->device()).to(places[i]->dtype()).detach();
    if (const Tensor gradient = places[i]->grad(); gradient.defined()) {
      lent.requires_grad_();
      lent.set_grad(gradient);
      lent.requires_grad_(false);
    }
    exchanged_.push_back({places[i], *places[i], lent, lent.version()});
  }
  for (const Exchanged& e : exchanged_) *e.place = e.lent;
  ++of.swapped_;
}
AveragedModel::Swap::~Swap() {
  const NoGrad off;
  for (std::size_t i = 0; i < exchanged_.size(); ++i) {
    Exchanged& e = exchanged_[i];
    Tensor& own = of_->entries_[i].value;
    const bool converted = e.lent.get().storage != own.get().storage;
    if (converted && e.lent.version() != e.version) copy_(own, e.lent);
    *e.place = std::move(e.live);
  }
  --of_->swapped_;
}

NamedTensors AveragedModel::Swap::own_state() const {
  NamedTensors out;
  for (std::size_t i = 0; i < exchanged_.size(); ++i) {
    const Entry& e = of_->entries_[i];
    if (e.persistent) out.emplace_back(e.name, exchanged_[i].live.detach());
  }
  return out;
}

void AveragedModel::copy_to(nn::Module& module) const {
  const NoGrad off;
  Tensors to, from;
  for (const Tensor* t : tensors_of(module, "copy_to")) {
    from.push_back(entries_[to.size()].value);
    to.push_back(t->detach());
  }
  copy_over(to, from);
}

NamedTensors AveragedModel::state() const {
  NamedTensors out{{"n_averaged", tensor({n_}, Device::cpu())}};
  for (const Entry& e : entries_) {
    if (e.persistent) out.emplace_back("module." + e.name, e.value);
  }
  return out;
}

void AveragedModel::load(const NamedTensors& state) {
  if (swapped_ > 0)
    fail<StateError>("AveragedModel: load: the averages are swapped into a module; leave the scope of swap_into first");
  Tensors to, from;
  std::int64_t n = -1;
  std::size_t known = 0;
  const NamedTensors own = this->state();
  for (const auto& [name, value] : own) {
    const auto found = std::find_if(state.begin(), state.end(), [&](const auto& given) { return given.first == name; });
    if (found == state.end()) fail<ConfigError>("AveragedModel: load: the state has no ", name, ", expected ", value);
    const Tensor& given = found->second;
    ++known;
    if (name == "n_averaged") {
      if (is_float(given.dtype()) || given.numel() != 1 || (n = given.to(DType::i64).item<std::int64_t>()) < 0)
        fail<ConfigError>("AveragedModel: load: the state's n_averaged is ", given, ", expected a count of 0 or more");
      continue;
    }
    const bool alike = is_float(given.dtype()) && is_float(value.dtype());
    if (given.shape() != value.shape() || (!alike && given.dtype() != value.dtype()))
      fail<ConfigError>("AveragedModel: load: the state's ", name, " is ", given, ", expected ", value);
    to.push_back(value);
    from.push_back(given.detach());
  }
  for (const std::string& name : left_out_)  // a file of version 3 may hold them
    known += std::any_of(state.begin(), state.end(), [&](const auto& t) { return t.first == "module." + name; });
  if (known != state.size())
    fail<ConfigError>("AveragedModel: load: the state has ", state.size(), " tensors, expected the ", known,
                      " of this module; give a state of the same architecture");
  const NoGrad off;
  copy_over(to, from);
  n_ = n;
}

}  // namespace levin
