// The state of an optimizer: what there is, what is saved, and how it is loaded.
#include <algorithm>
#include <string>
#include <vector>

#include "levin/optim.h"
#include "optim/masters.h"
#include "optim/options.h"
#include "optim/updates.h"

namespace levin::optim {
namespace {

Tensor number(double x) { return tensor({x}, Device::cpu()); }

// "group0.lr", "fc1.weight.exp_avg", "fc1.weight.step".
std::string group_key(int group, const char* what) { return "group" + text(group) + "." + what; }

}  // namespace

Tensors Optimizer::planned_state() const {
  Tensors all;
  for (int g = 0; g < groups(); ++g) {
    const Group& group = group_at(g);
    const auto names = state_names(g);
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      const Tensor& value = *group.parameters[i].value;
      const auto add = [&](const Shape& shape, DType dtype) { all.push_back(empty(shape, Device::meta(), dtype)); };
      if (!group.masters.empty() && group.masters[i]) {
        add(value.shape(), DType::f32);
        add(value.shape(), DType::f32);
      }
      if (!value.requires_grad()) continue;
      for (int k = 0; k < kMaxState; ++k) {
        if (!names[static_cast<std::size_t>(k)]) continue;
        if (const auto shape = state_shape(g, k, value.shape())) add(*shape, Updates::state_dtype(value.dtype()));
      }
    }
  }
  return all;
}

std::vector<std::size_t> Optimizer::state_sizes() const {
  std::vector<std::size_t> all;
  const auto add = [&](const Tensor& t) {
    if (t.defined()) all.push_back(static_cast<std::size_t>(t.numel()) * itemsize(t.dtype()));
  };
  for (const Group& group : groups_) {
    for (const State& s : group.state) {
      for (const Tensor& t : s.tensors) add(t);
    }
    for (const auto& master : group.masters) {
      if (!master) continue;
      add(master->value);
      add(master->gradient);
    }
  }
  return all;
}

NamedTensors Optimizer::state_dict() const {
  NamedTensors out = state_refs();
  for (auto& [name, t] : out) t = t.clone();
  return out;
}

NamedTensors Optimizer::state_refs() const {
  NamedTensors out;
  for (int g = 0; g < groups(); ++g) {
    const Group& group = group_at(g);
    out.emplace_back(group_key(g, "lr"), number(group.lr));
    if (group.initial_lr) out.emplace_back(group_key(g, "initial_lr"), number(*group.initial_lr));
    for (const auto& [key, value] : number_values(g)) out.emplace_back(group_key(g, key), number(value));
    const auto names = state_names(g);
    // On a device the counts live there: a replayed step moves them without the host.
    const std::vector<std::int64_t> steps =
        group.steps.defined() ? group.steps.to_vector<std::int64_t>() : std::vector<std::int64_t>();
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      const State& s = group.state[i];
      if (!group.masters.empty() && group.masters[i])
        out.emplace_back(group.parameters[i].name + ".master", group.masters[i]->value.detach());
      // One that has skipped every step so far has made none.
      const std::int64_t step = steps.empty() ? s.step : steps[i];
      if (step == 0) continue;
      out.emplace_back(group.parameters[i].name + ".step", tensor({step}, Device::cpu()));
      for (std::size_t k = 0; k < names.size(); ++k) {
        if (names[k] && s.tensors[k].defined())
          out.emplace_back(group.parameters[i].name + "." + names[k], s.tensors[k]);
      }
    }
  }
  for (auto& named : extra_state()) out.push_back(std::move(named));
  return out;
}

// A state on its way into an optimizer: everything is read and checked into copies, and only then anything changes.
struct Optimizer::Loading {
  Optimizer& optimizer;
  const NamedTensors& state;
  using Names = std::array<const char*, kMaxState>;
  const std::string op = optimizer.name();
  std::vector<char> used = std::vector<char>(state.size(), 0);
  std::vector<Group> groups = optimizer.groups_;
  std::vector<std::pair<double*, double>> numbers{};  // place and new value
  std::vector<std::pair<Master*, Tensor>> masters{};

  // Null when the state has no such entry.
  const Tensor* find(const std::string& key, DType dtype, const Shape& shape) {
    for (std::size_t i = 0; i < state.size(); ++i) {
      if (state[i].first != key) continue;
      used[i] = 1;
      const Tensor& t = state[i].second;
      if (t.dtype() != dtype || t.shape() != shape)
        fail<ConfigError>(op, ": state ", key, " is ", t, ", expected ", dtype, " ", shape);
      return &t;
    }
    return nullptr;
  }
  const Tensor& get(const std::string& key, DType dtype, const Shape& shape, const char* otherwise) {
    const Tensor* const t = find(key, dtype, shape);
    if (!t) fail<ConfigError>(op, ": state has no ", key, "; ", otherwise);
    return *t;
  }

  void read_group(int g) {
    Group& group = groups[static_cast<std::size_t>(g)];
    const auto number = [&](const char* key, const char* otherwise) {
      return get(group_key(g, key), DType::f64, {1}, otherwise).item();
    };
    group.lr = number("lr", "it belongs to an optimizer with other groups");
    check_not_negative(op, "the state's lr", group.lr);
    const Tensor* const initial = find(group_key(g, "initial_lr"), DType::f64, {1});
    group.initial_lr = initial ? std::optional<double>(initial->item()) : std::nullopt;
    if (initial) check_not_negative(op, "the state's initial_lr", *group.initial_lr);
    const std::size_t first = numbers.size();
    for (const auto& [key, place] : optimizer.numbers(g))
      numbers.emplace_back(place, number(key, "it was saved by another optimizer"));
    // The state's numbers decide which tensors it must hold: without a momentum SGD has none. A momentum that passed
    // through 0 has left a buffer, which the present numbers name.
    const auto exchange_own = [&] {
      for (std::size_t i = first; i < numbers.size(); ++i) std::swap(*numbers[i].first, numbers[i].second);
    };
    const Names present = optimizer.state_names(g);
    exchange_own();
    const Names needed = optimizer.state_names(g);
    exchange_own();
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      const ParamRef& p = group.parameters[i];
      group.state[i] = state_of(g, p, needed, present);
      if (group.masters.empty() || !group.masters[i]) continue;
      const Tensor& master =
          get(p.name + ".master", DType::f32, p.value->shape(), "it was saved without use_master_weights()");
      masters.emplace_back(group.masters[i].get(), copied(master, p));
    }
    group.steps = group.numbers = {};  // made again from the state at the next step
  }
  State state_of(int group, const ParamRef& p, const Names& needed, const Names& present) {
    State s;
    if (const Tensor* step = find(p.name + ".step", DType::i64, {1})) s.step = step->item<std::int64_t>();
    if (s.step < 0) fail<ConfigError>(op, ": state ", p.name, ".step is ", s.step, ", expected 0 or more");
    for (std::size_t k = 0; k < needed.size(); ++k) {
      const char* const name = needed[k] ? needed[k] : present[k];
      if (!name) continue;
      const auto shape = optimizer.state_shape(group, static_cast<int>(k), p.value->shape());
      if (!shape) continue;
      const std::string key = p.name + "." + name;
      const DType dtype = Updates::state_dtype(p.value->dtype());
      const Tensor* const t = needed[k] && s.step > 0 ? &get(key, dtype, *shape, "it was saved by another optimizer")
                                                      : find(key, dtype, *shape);
      if (t) s.tensors[k] = copied(*t, p);
    }
    s.dtype = p.value->dtype();
    return s;
  }
  [[nodiscard]] Tensor copied(const Tensor& t, const ParamRef& p) const {
    const Tensor values =
        t.shape() == p.value->shape() ? Updates::laid_out_as(*p.value, t.detach()) : Updates::dense(t);
    if (optimizer.memory_) return Updates::kept(values, Device::cpu(), optimizer.memory_.get());
    return values.clone().to(p.value->device());
  }

  // The entries that only load_extra_state knows.
  [[nodiscard]] NamedTensors rest() const {
    NamedTensors rest;
    const NamedTensors extra = optimizer.extra_state();
    for (std::size_t i = 0; i < state.size(); ++i) {
      if (used[i]) continue;
      if (std::ranges::none_of(extra, [&](const auto& e) { return e.first == state[i].first; }))
        fail<ConfigError>(op, ": state ", state[i].first,
                          " is unknown here; it was saved by another optimizer or for other parameters");
      rest.push_back(state[i]);
    }
    return rest;
  }
  // The numbers are checked in their places; one out of range puts the old ones back.
  void exchange() {
    for (auto& [place, value] : numbers) std::swap(*place, value);
  }
};

void Optimizer::load_state_dict(const NamedTensors& state) {
  if (masters_) Masters::check(*this);
  Loading loading{*this, state};
  for (int g = 0; g < groups(); ++g) loading.read_group(g);
  const NamedTensors rest = loading.rest();
  loading.exchange();
  try {
    for (int g = 0; g < groups(); ++g) check_numbers(g);
    load_extra_state(rest);
  } catch (...) {
    loading.exchange();
    throw;
  }
  groups_ = std::move(loading.groups);
  ++layout_;
  for (auto& [master, value] : loading.masters) {
    master->value = std::move(value);
    master->value.requires_grad_();
  }
  Masters::round(*this, nullptr);
}

}  // namespace levin::optim
