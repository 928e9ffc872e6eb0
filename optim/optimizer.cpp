#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <typeinfo>

#include "levin/optim.h"
#include "levin/stream.h"
#include "optim/gradients.h"
#include "optim/masters.h"
#include "optim/options.h"
#include "optim/updates.h"
#include "tensor/device/one_memory.h"
#include "tensor/device/runtime.h"
#include "tensor/text/type_name.h"

namespace levin::optim {

void Updates::round_into(const Tensor& to, const Tensor& from) {
  const Tensor rounded = laid_out_as(to, from.detach()).to(to.dtype());
  std::memcpy(first<std::byte>(to), first<std::byte>(rounded),
              static_cast<std::size_t>(to.numel()) * itemsize(to.dtype()));
}

Tensor Updates::filled(const Tensor& like, const Shape& shape, double value, StateMemory* memory) {
  const DType dtype = state_dtype(like.dtype());
  Tensor t = shape != like.shape() ? empty(shape, like.device(), dtype)
             : memory              ? allocated(*memory, like, dtype)
                                   : empty_like(like, dtype);
  if (t.numel() == 0 || (memory && value == 0)) return t;
#if LEVIN_LAUNCHES
  if (const Device device = t.device(); device.launches()) {
    if (is_capturing(device))  // each replay would reset the state
      fail<CaptureError>(
          "optimizer: a parameter's first update makes its state; make a step with all gradients before one is "
          "recorded");
    const kernels::Slot<float> single[] = {{.p = first<float>(t), .n = t.numel()}};
    const kernels::Slot<double> wide[] = {{.p = first<double>(t), .n = t.numel()}};
    kernels::GradientSlots slots;
    if (t.dtype() == DType::f32)
      slots.single = single;
    else
      slots.wide = wide;
    kernels::fill_gradients({Stream::current(device)}, slots, value);
    return t;
  }
#endif
  const auto n = static_cast<std::size_t>(t.numel());
  if (t.dtype() == DType::f32)
    std::fill_n(first<float>(t), n, static_cast<float>(value));
  else
    std::fill_n(first<double>(t), n, value);
  if (memory) rests(*memory, t);
  return t;
}

void Updates::zero_gradients(const Parameters& parameters) {
  constexpr const char* op = "zero_grad";
  for (const ParamRef& p : parameters) {
    if (row_grad(*p.value).rows.defined()) continue;
    if (const Tensor g = p.value->grad(); g.defined() && g.requires_grad()) p.value->set_grad(g.detach());
  }
  const Gradients gradients(op, parameters, op);
  if (gradients.device().is_meta()) return;
#if LEVIN_LAUNCHES
  if (const Device device = gradients.device(); device.launches())
    return kernels::fill_gradients({Stream::current(device)}, gradients.slots(), 0);
#endif
  gradients.each([]<class T>(std::span<const kernels::Slot<T>> slots) {
    for (const auto& s : slots) std::fill_n(s.p, static_cast<std::size_t>(s.n), T(0.0f));
  });
}

void Updates::prepare(Optimizer::Group& g, Device device, double momentum) {
  if (!g.steps.defined() || g.steps.device() != device) {
    std::vector<std::int64_t> steps;
    for (const Optimizer::State& s : g.state) steps.push_back(s.step);
    g.steps = from_data(steps, {static_cast<std::int64_t>(steps.size())}, device);
    g.numbers = {};
  }
  const std::array<double, 2> now{g.lr, momentum};
  if (g.numbers.defined() && now == g.written) return;
  // In place: a recorded step reads this address.
  if (!g.numbers.defined()) g.numbers = empty({2}, device, DType::f64);
  if (is_capturing(device))
    fail<CaptureError>("optimizer: lr or momentum changed; set them before a step is recorded, or between its replays");
  detail::runtime::Words words{.count = 1};
  words.at[0] = std::bit_cast<std::array<std::uint64_t, 2>>(now);
  detail::runtime::set_words(first<std::uint64_t>(g.numbers), words, Stream::current(device));
  g.written = now;
}

Optimizer::~Optimizer() = default;

void Optimizer::step() { step_groups(nullptr); }

// A plan of memory runs steps on meta, where the model has no values.
bool Optimizer::on_meta() const {
  if (groups_.empty()) return false;
  return groups_.front().source(0).device().is_meta();
}

void Optimizer::step_groups(const float* found_inf, const double* factors) {
  if (on_meta()) return;
  if (masters_) Masters::check(*this);
  struct Scope {
    Optimizer& of;
    ~Scope() { of.factors_ = nullptr, of.rounds_ = of.reads_model_ = false; }
  } const scope{*this};
  rounds_ = masters_ && fuses_clipping();
  reads_model_ = factors || (rounds_ && !gathered_);
  factors_ = factors;
  if (!reads_model_)
    gather_gradients();
  else if (!factors)
    (void)Masters::sources(*this);
  for (int g = 0; g < groups(); ++g) update(g, found_inf);
  Masters::round(*this, found_inf);
  gathered_ = false;
}

void Optimizer::step_unless(const Tensor& found_inf) {
  check_skippable();
  if (found_inf.dtype() != DType::f32 || found_inf.numel() != 1)
    fail<ShapeError>(std::string(name()), ": found_inf is ", found_inf, ", expected one f32 element");
  const Device device = found_inf.device();
  for (const Group& g : groups_) {
    const ParamRef& p = g.parameters.front();
    if (!detail::one_memory(p.value->device(), device))
      fail<DeviceError>(std::string(name()), ": found_inf is on ", device, ", parameter ", p.name, " is on ",
                        p.value->device(), "; check the gradients where they are");
  }
  const float* const found = Updates::first<float>(found_inf);
  if (device.launches()) return step_groups(found);
  if (*found == 0) return step_groups(nullptr);
  gathered_ = false;
}

void Optimizer::check_skippable() const {
  if (reads_device_numbers()) return;
  for (const Group& g : groups_) {
    const Device device = g.parameters.front().value->device();
    if (!device.launches()) continue;
    fail<ConfigError>(std::string(name()), ": a step on ", device, " is to be skipped without a look, and ",
                      type_name(),
                      " does not say that it can; train it without loss scaling, or override reads_device_numbers()");
  }
}

Tensor Optimizer::step(const Function<Tensor()>& closure) {
  if (!closure)
    fail<ConfigError>(std::string(name()), ": step() is given an empty closure, expected one that returns the loss");
  Tensor loss = closure();
  step();
  return loss;
}

void Optimizer::zero_grad(SetToNone set_to_none) {
  for (const Group& g : groups_) {
    Parameters pieces;
    for (const auto& p : g.pieces) pieces.push_back({.value = &p->values, .name = "a piece"});
    for (const Parameters* some : {&g.parameters, &g.model, static_cast<const Parameters*>(&pieces)}) {
      if (set_to_none == SetToNone::no) {
        Updates::zero_gradients(*some);
        continue;
      }
      for (const ParamRef& p : *some) {
        if (has_grad(*p.value)) p.value->set_grad({});  // a frozen one may have no slot to clear
      }
    }
  }
  gathered_ = false;
}

void Optimizer::prepare_replay() {
  for (int g = 0; g < groups(); ++g) {
    const Device device = group_at(g).parameters.front().value->device();
    if (device.launches()) Updates::prepare(groups_[static_cast<std::size_t>(g)], device, momentum(g).value_or(0));
  }
}

std::vector<ParamRef> Optimizer::parameters() const {
  std::vector<ParamRef> all;
  for (const Group& g : groups_) all.insert(all.end(), g.parameters.begin(), g.parameters.end());
  return all;
}

std::size_t Optimizer::index_of(int group) const {
  if (group < 0 || group >= groups())
    fail<IndexError>(std::string(name()), ": group ", group, " is asked for, there are ", groups());
  return static_cast<std::size_t>(group);
}

void Optimizer::set_lr(int group, double lr) {
  Group& g = groups_[index_of(group)];
  check_not_negative(name(), "lr", lr);
  g.lr = lr;
}

std::optional<double> Optimizer::momentum(int) const { return {}; }
void Optimizer::set_momentum(int, double) { fail<ConfigError>(std::string(name()), ": it has no momentum"); }
std::optional<double> Optimizer::weight_decay(int group) const {
  for (const auto& [key, value] : number_values(group)) {
    if (std::string_view(key) == "weight_decay") return value;
  }
  return {};
}
std::vector<std::pair<const char*, double>> Optimizer::number_values(int group) const {
  (void)index_of(group);  // a user's numbers() need not check
  std::vector<std::pair<const char*, double>> values;
  // numbers() gives places to write to; reading through them changes nothing.
  for (const auto& [key, place] : const_cast<Optimizer*>(this)->numbers(group)) values.emplace_back(key, *place);
  return values;
}
std::string Optimizer::type_name() const { return detail::type_name(typeid(*this)); }
std::weak_ptr<const void> Optimizer::alive() const {
  if (!alive_) alive_ = std::make_shared<char>();
  return alive_;
}
std::optional<Shape> Optimizer::state_shape(int, int, const Shape& parameter) const { return parameter; }
double Optimizer::initial_state(int, int) const { return 0; }
std::vector<std::pair<const char*, double*>> Optimizer::numbers(int) { return {}; }
void Optimizer::check_numbers(int) const {}
NamedTensors Optimizer::extra_state() const { return {}; }
void Optimizer::load_extra_state(const NamedTensors&) {}

void Optimizer::add(const char* optimizer, Parameters parameters, double lr, Rounding rounding) {
  const std::string op = optimizer;
  if (parameters.empty()) fail<ConfigError>(op, ": the parameter list is empty");
  if (!groups_.empty() && !groups_.front().pieces.empty())
    fail<StateError>(op, ": a group is added after use_pieces(); add all groups before");
  check_not_negative(op, "lr", lr);
  std::set<const Tensor*> known;
  std::map<const void*, std::string> leaves;  // of the groups before; parameters may share a tensor
  std::set<std::string> names;
  for (const Group& g : groups_) {
    for (const ParamRef& p : g.model.empty() ? g.parameters : g.model) {
      known.insert(p.value);
      leaves.emplace(p.value->impl(), p.name);
      names.insert(p.name);
    }
  }
  std::size_t position = known.size();
  for (ParamRef& p : parameters) {
    if (p.name.empty()) p.name = "param" + text(position);
    ++position;
    if (!p.value || !p.value->defined()) fail<ConfigError>(op, ": parameter ", p.name, " is undefined");
    if (!known.insert(p.value).second) fail<ConfigError>(op, ": parameter ", p.name, " is given twice");
    if (!names.insert(p.name).second)
      fail<ConfigError>(op, ": two parameters are called ", p.name, "; names must differ");
    if (const auto other = leaves.find(p.value->impl()); other != leaves.end())
      fail<ConfigError>(op, ": parameter ", p.name, " is the tensor of ", other->second,
                        ", which another group has; give it to one of them");
    if (!p.value->is_leaf())
      fail<ConfigError>(
          op, ": parameter ", p.name,
          " is the result of an op, which gets no gradient of its own; give the leaf it was made from, or "
          "detach() it and call requires_grad_()");
    if (!is_float(p.value->dtype()))
      fail<ConfigError>(op, ": parameter ", p.name, " is ", p.value->dtype(), ", expected f32, f64, f16 or bf16");
    if (!Updates::is_dense(*p.value))
      fail<ConfigError>(op, ": parameter ", p.name, " of shape ", p.value->shape(), " is not contiguous");
    const Device device = p.value->device(), first = parameters.front().value->device();
    if (!detail::one_memory(device, first))
      fail<ConfigError>(op, ": parameter ", p.name, " is on ", device, ", the group's first on ", first,
                        "; give each device a group of its own");
  }
  // Parameters of a module that share a tensor: one update, under the first name.
  std::set<const void*> once;
  std::erase_if(parameters, [&](const ParamRef& p) { return !once.insert(p.value->impl()).second; });
  Group group;
  group.state.resize(parameters.size());
  group.parameters = std::move(parameters);
  group.lr = lr;
  group.rounding = rounding;
  if (masters_) Masters::make(group, memory_.get());
  groups_.push_back(std::move(group));
  ++layout_;
}

}  // namespace levin::optim
