#include "levin/nn/module.h"

#include <algorithm>
#include <mutex>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>

#include "autograd/leaf.h"
#include "levin/autograd.h"
#include "levin/ops.h"
#include "tensor/device/launching.h"
#include "tensor/text/type_name.h"

namespace levin::nn {
namespace {

std::string join(const std::string& path, const std::string& name) { return path.empty() ? name : path + "." + name; }

// A module's name in messages.
std::string quoted_path(const Module& m) {
  const std::string path = m.path();
  return path.empty() ? "the root module" : "module \"" + path + "\"";
}

void check_floating(const char* op, DType dtype) {
  if (!is_float(dtype)) fail<DTypeError>(op, ": dtype is ", dtype, ", expected f32, f64, f16 or bf16");
}

constexpr std::size_t kListed = 20;  // names in one message; more say less
void append_list(std::string& message, const char* title, const std::vector<std::string>& names) {
  if (names.empty()) return;
  message += std::string("; ") + title + ": ";
  for (std::size_t i = 0; i < std::min(names.size(), kListed); ++i) message += (i ? ", " : "") + names[i];
  if (names.size() > kListed) message += " and " + text(names.size() - kListed) + " more";
}

}  // namespace

// ---- Members that register themselves

Parameter::Parameter(Module& owner, std::string_view name, const Shape& shape, const Initializer& initializer) {
  const Module::Context& context = owner.context();
  owner.check_new_name("parameter", name);
  if (!initializer)
    fail<ConfigError>("module: the initializer of parameter \"", join(owner.path(), std::string(name)),
                      "\" is empty, expected"
                      " a function of value and generator");
  Tensor value = empty(shape, context.device, context.dtype);
  Generator gen = owner.fork(name);
  {
    NoGrad off;
    initializer(value, gen);
  }
  Tensor::operator=(value);
  requires_grad_();
  owner.parameters_.push_back({std::string(name), this});
  owner_ = &owner;
}
Parameter::Parameter(Module& owner, std::string_view name, const Tensor& value) {
  const Module::Context& context = owner.context();
  owner.check_new_name("parameter", name);
  Tensor::operator=(value.detach().to(context.device).to(context.dtype));
  requires_grad_();
  owner.parameters_.push_back({std::string(name), this});
  owner_ = &owner;
}
Parameter::~Parameter() {
  if (owner_) std::erase_if(owner_->parameters_, [&](const Module::Slot& s) { return s.value == this; });
}

Buffer::Buffer(Module& owner, std::string_view name, const Tensor& value, Persistent persistent) {
  owner.check_new_name("buffer", name);
  Tensor::operator=(value.detach().to(owner.device()));
  owner.buffers_.push_back({std::string(name), this, persistent});
  owner_ = &owner;
}
Buffer::~Buffer() {
  if (owner_) std::erase_if(owner_->buffers_, [&](const Module::Slot& s) { return s.value == this; });
}

ModuleGenerator::ModuleGenerator(Module& owner, std::string_view name) : Generator(owner.fork(name)) {
  owner.check_new_name("generator", name);
  owner.generators_.emplace_back(std::string(name), this);
  owner_ = &owner;
}
ModuleGenerator::~ModuleGenerator() {
  if (owner_) std::erase_if(owner_->generators_, [&](const auto& g) { return g.second == this; });
}

// ---- The tree

Module::Module(Options options) : context_(Context{options.gen, options.device, options.dtype}) {
  check_floating("module", options.dtype);
}
Module::Module(Module& parent, std::string_view name) : name_(name), context_(parent.context_) {
  parent.check_new_name("module", name);
  parent.children_.push_back(this);
  parent_ = &parent;
  training_ = parent.training_;
}
std::weak_ptr<const void> Module::alive() const {
  if (!alive_) alive_ = std::make_shared<char>();
  return alive_;
}
Module::~Module() {
  // Members of a derived struct are destroyed and unregistered here; the remaining ones outlive this module.
  owned_parameters_.clear();
  owned_buffers_.clear();
  for (const Slot& s : parameters_) static_cast<Parameter*>(s.value)->owner_ = nullptr;
  for (const Slot& s : buffers_) static_cast<Buffer*>(s.value)->owner_ = nullptr;
  for (const auto& [name, generator] : generators_) generator->owner_ = nullptr;
  for (Module* child : children_) child->parent_ = nullptr;
  if (parent_) std::erase(parent_->children_, this);
}

std::string Module::path() const { return parent_ ? join(parent_->path(), name_) : std::string(); }

std::uint32_t Module::path_id() const {
  if (!parent_) return 0;
  std::uint32_t id = path_id_.load(std::memory_order_relaxed);
  if (!id) [[unlikely]]
    path_id_.store(id = detail::path_id(path()), std::memory_order_relaxed);
  return id;
}

std::string Module::type_name() const { return detail::type_name(typeid(*this)); }

Module& Module::root() {
  Module* m = this;
  while (m->parent_) m = m->parent_;
  return *m;
}

const Module::Context& Module::context() const {
  if (!context_) {
    fail<ConfigError>("module: ", quoted_path(*this),
                      " has no generator and no device; construct the root with {.gen = ..., .device = ...}");
  }
  return *context_;
}

void Module::check_new_name(const char* kind, std::string_view name) const {
  const auto refuse = [&](std::string_view why) {
    fail<ConfigError>("module: the ", kind, " name \"", name, "\" in ", quoted_path(*this), " ", why);
  };
  if (name.empty()) refuse("is empty; every part of a module has a name");
  if (name.find('.') != std::string_view::npos) refuse("holds '.', which separates the names of a path; use '_'");
  const auto same = [&](const Slot& s) { return s.name == name; };
  if (std::any_of(parameters_.begin(), parameters_.end(), same) ||
      std::any_of(buffers_.begin(), buffers_.end(), same) ||
      std::any_of(children_.begin(), children_.end(), [&](const Module* m) { return m->name_ == name; }) ||
      std::any_of(generators_.begin(), generators_.end(), [&](const auto& g) { return g.first == name; })) {
    refuse("is taken; names of a module's parts differ");
  }
}

Generator Module::fork(std::string_view name) const { return context().gen.fork(join(path(), std::string(name))); }

Device Module::device() const { return context().device; }
DType Module::dtype() const { return context().dtype; }

// ---- Parts

std::vector<ParamRef> Module::parameters() {
  std::vector<ParamRef> out;
  visit([&](const std::string& at, Module& m) {
    for (const Slot& s : m.parameters_) out.push_back({s.value, join(at, s.name), static_cast<const Module*>(&m)});
  });
  return out;
}

std::vector<std::pair<std::string, Tensor>> Module::named_parameters() const {
  std::vector<std::pair<std::string, Tensor>> out;
  visit([&](const std::string& at, const Module& m) {
    for (const Slot& s : m.parameters_) out.emplace_back(join(at, s.name), *s.value);
  });
  return out;
}

std::vector<BufferRef> Module::buffers() {
  std::vector<BufferRef> out;
  visit([&](const std::string& at, Module& m) {
    for (const Slot& s : m.buffers_) out.push_back({s.value, join(at, s.name), s.persistent});
  });
  return out;
}

std::vector<std::pair<std::string, Generator*>> Module::generators() {
  std::vector<std::pair<std::string, Generator*>> out;
  visit([&](const std::string& at, Module& m) {
    for (const auto& [name, generator] : m.generators_) out.emplace_back(join(at, name), generator);
  });
  return out;
}

ParameterCount Module::parameter_count() const {
  ParameterCount count;
  std::unordered_set<const void*> counted;  // tensors that modules share count once
  visit([&](const std::string&, const Module& m) {
    for (const Slot& s : m.parameters_) {
      if (counted.insert(s.value->impl()).second)
        (s.value->requires_grad() ? count.trainable : count.frozen) += s.value->numel();
    }
  });
  return count;
}

Module* owner_of(const ParamRef& parameter) { return const_cast<Module*>(static_cast<const Module*>(parameter.owner)); }

// ---- Modes and conversions

void Module::train(bool on) {
  training_ = on;
  for (Module* child : children_) child->train(on);
}

void Module::zero_grad() {
  visit([](const std::string&, Module& m) {
    for (const Slot& s : m.parameters_) {
      if (has_grad(*s.value)) s.value->set_grad({});  // a frozen parameter may have one
    }
  });
}

void Module::requires_grad_(bool on) {
  visit([&](const std::string&, Module& m) {
    for (const Slot& s : m.parameters_) s.value->requires_grad_(on);
  });
}

// First makes all new tensors, which may throw, then assigns them, which cannot. convert(slot, x): x, a value or a
// gradient of the slot's tensor, as it is to be.
template <class Convert>
void Module::convert_all(Convert convert) {
  std::vector<std::pair<Tensor*, Tensor>> ready;
  std::unordered_map<const void*, Tensor> converted;  // tensors that modules share (tied weights) stay shared
  visit([&](const std::string&, Module& m) {
    for (const Slot& s : m.parameters_) {
      if (const auto found = converted.find(s.value->impl()); found != converted.end()) {
        ready.emplace_back(s.value, found->second);
        continue;
      }
      const Tensor old = s.value->detach();
      Tensor value = convert(*s.value, old);
      if (value.impl() == old.impl()) continue;
      if (detail::Leaf* leaf = detail::leaf_of(*s.value)) {
        value.requires_grad_();
        const Tensor grad = s.value->grad();
        if (grad.defined()) value.set_grad(convert(*s.value, grad.detach()));
        {
          const std::lock_guard lock(leaf->mutex);
          detail::leaf_of(value)->hooks = leaf->hooks;
        }
        value.requires_grad_(leaf->wants_grad());
      }
      converted.emplace(s.value->impl(), value);
      ready.emplace_back(s.value, std::move(value));
    }
    for (const Slot& s : m.buffers_) ready.emplace_back(s.value, convert(*s.value, *s.value));
  });
  for (auto& [slot, value] : ready) *slot = std::move(value);
}

void Module::to(Device device) {
  convert_all([&](const Tensor&, const Tensor& x) { return x.to(device); });
  visit([&](const std::string&, Module& m) {
    if (m.context_) m.context_->device = device;
  });
}

void Module::to(DType dtype, const Function<bool(const Module&)>& keep) {
  check_floating("to", dtype);
  std::unordered_set<const void*> kept;  // what a kept module shares with another one stays for both
  visit([&](const std::string&, Module& m) {
    if (!keep || !keep(m)) return;
    for (const Slot& s : m.parameters_) kept.insert(s.value->impl());
    for (const Slot& s : m.buffers_) kept.insert(s.value->impl());
  });
  convert_all([&](const Tensor& slot, const Tensor& x) {
    return is_float(x.dtype()) && !kept.contains(slot.impl()) ? x.to(dtype) : x;
  });
  visit([&](const std::string&, Module& m) {
    if (m.context_) m.context_->dtype = dtype;
  });
}

void Module::to(MemoryFormat format) {
  const NoGrad off;
  convert_all(
      [&](const Tensor&, const Tensor& x) { return x.rank() == 4 && is_float(x.dtype()) ? x.contiguous(format) : x; });
}

// ---- State

NamedTensors Module::state_dict() const {
  NamedTensors out;
  visit([&](const std::string& at, const Module& m) {
    for (const Slot& s : m.parameters_) out.emplace_back(join(at, s.name), s.value->detach());
    for (const Slot& s : m.buffers_) {
      if (s.persistent == Persistent::yes) out.emplace_back(join(at, s.name), s.value->detach());
    }
  });
  return out;
}

LoadReport Module::load_state_dict(const NamedTensors& state, Strict strict) {
  LoadReport report;
  std::unordered_map<std::string_view, const Tensor*> given;
  for (const auto& [name, value] : state) {
    if (!given.emplace(name, &value).second) report.mismatched.push_back(name + ": given twice");
  }
  NamedTensors own = state_dict();
  std::vector<std::pair<Tensor, const Tensor*>> copies;
  for (auto& [name, value] : own) {
    const auto found = given.find(name);
    if (found == given.end()) {
      report.missing.push_back(name);
      continue;
    }
    const Tensor& from = *found->second;
    given.erase(found);
    if (!from.defined()) {
      report.mismatched.push_back(name + ": an undefined tensor given, " + text(value) + " expected");
    } else if (from.shape() != value.shape() || from.dtype() != value.dtype()) {
      report.mismatched.push_back(name + ": " + text(from.dtype()) + " " + text(from.shape()) + " given, " +
                                  text(value.dtype()) + " " + text(value.shape()) + " expected");
    } else {
      copies.emplace_back(value, &from);
    }
  }
  for (const auto& [name, value] : state) {
    if (given.erase(name)) report.unexpected.push_back(name);
  }
  if (strict == Strict::yes && !report.complete()) {
    std::string message = "load_state_dict: the state does not fit the module";
    append_list(message, "missing", report.missing);
    append_list(message, "unexpected", report.unexpected);
    append_list(message, "mismatched", report.mismatched);
    const bool of_a_run = std::any_of(report.unexpected.begin(), report.unexpected.end(),
                                      [](const std::string& name) { return name.starts_with("levin."); });
    fail<ConfigError>(message, of_a_run ? "; names below levin. are a run's state, which a checkpoint holds beside the "
                                          "weights: give read_checkpoint_info(path).weights"
                                        : "; give a state of the same architecture and dtype, or Strict::no to take "
                                          "what fits");
  }
  NoGrad off;
  for (auto& [to, from] : copies) copy_(to, *from);
  return report;
}

Parameter& Module::register_parameter(std::string_view name, const Shape& shape, const Initializer& initializer) {
  owned_parameters_.push_back(std::make_unique<Parameter>(*this, name, shape, initializer));
  return *owned_parameters_.back();
}
Buffer& Module::register_buffer(std::string_view name, const Tensor& value, Persistent persistent) {
  owned_buffers_.push_back(std::make_unique<Buffer>(*this, name, value, persistent));
  return *owned_buffers_.back();
}

}  // namespace levin::nn
