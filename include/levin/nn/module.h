// Module: a node of a named tree that is built by construction. Members take (*this, "name", options) and register
// themselves once, in the order of their declaration.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/function.h"
#include "levin/generator.h"
#include "levin/serialize.h"
#include "levin/tensor.h"

namespace levin::nn {

class Module;

// A root's options, which its children inherit. Only the seed of `gen` is read, and the generator does not move: two
// roots with one generator start equal; give each a fork, {.gen = gen.fork("critic"), ...}, when they should not.
struct Options {
  Generator gen;
  Device device;
  DType dtype = DType::f32;  // of parameters; floating
};

// Fills a parameter with its first values.
using Initializer = Function<void(Tensor& value, Generator& generator)>;

// A trained leaf: a Tensor that is a member of a module and requires grad. Throws ConfigError when the name is empty,
// holds '.', or is taken in the module.
class LEVIN_API Parameter : public Tensor {
 public:
  Parameter() = default;  // absent (a layer without bias): undefined and not registered
  // The generator is a fork of the root's by the full name ("conv1.weight"): values depend on names, never on order.
  Parameter(Module& owner, std::string_view name, const Shape& shape, const Initializer& initializer);
  // `value` detached and converted to the module's device and dtype.
  Parameter(Module& owner, std::string_view name, const Tensor& value);
  ~Parameter();
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

 private:
  friend class Module;
  Module* owner_ = nullptr;
};

enum class Persistent : bool { no, yes };

// A tensor that moves with its module and is not trained. state_dict has the persistent ones.
class LEVIN_API Buffer : public Tensor {
 public:
  Buffer() = default;  // absent
  // `value` detached, on the module's device; its dtype stays.
  Buffer(Module& owner, std::string_view name, const Tensor& value, Persistent persistent = Persistent::yes);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

 private:
  friend class Module;
  Module* owner_ = nullptr;
};

// The random stream of a module whose call draws: a fork of the root's generator by the full name.
class LEVIN_API ModuleGenerator : public Generator {
 public:
  ModuleGenerator(Module& owner, std::string_view name);
  ~ModuleGenerator();
  ModuleGenerator(const ModuleGenerator&) = delete;
  ModuleGenerator& operator=(const ModuleGenerator&) = delete;

 private:
  friend class Module;
  Module* owner_ = nullptr;
};

// A buffer in a list, as ParamRef is a parameter.
struct BufferRef {
  Tensor* value = nullptr;
  std::string name;
  Persistent persistent = Persistent::yes;
};

struct ParameterCount {
  std::int64_t trainable = 0, frozen = 0;  // elements that require grad, and that do not
  [[nodiscard]] std::int64_t total() const { return trainable + frozen; }
};

enum class Strict : bool { no, yes };

// How a state differs from a module.
struct LoadReport {
  std::vector<std::string> missing;     // names the module has and the state has not
  std::vector<std::string> unexpected;  // names the state has and the module has not
  std::vector<std::string> mismatched;  // "fc.weight: f32 [2, 3] given, f32 [3, 3] expected"
  [[nodiscard]] bool complete() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
};

// A named part of a model. There is no virtual forward: a module is called as its struct declares. Modules are neither
// copied nor moved, so addresses are stable. Names below are relative to this module, joined by '.'.
class LEVIN_API Module {
 public:
  // A root. Throws DTypeError unless the dtype is floating.
  explicit Module(Options options);
  // A child. Throws ConfigError when the name is empty, holds '.', or is taken in the parent.
  Module(Module& parent, std::string_view name);
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // ---- The tree
  [[nodiscard]] const std::string& name() const { return name_; }  // empty for a root
  [[nodiscard]] std::string path() const;                          // from the root: "encoder.0.linear1"
  [[nodiscard]] std::string type_name() const;                     // of the struct, without namespaces: "Linear"
  // Expires with this module: for code that remembers a module without owning it.
  [[nodiscard]] std::weak_ptr<const void> alive() const;
  [[nodiscard]] Module* parent() { return parent_; }
  [[nodiscard]] Module& root();
  [[nodiscard]] std::span<Module* const> children() { return children_; }
  [[nodiscard]] std::span<const Module* const> children() const { return {children_.data(), children_.size()}; }
  // fn(const std::string& path, Module&) for this module (path "") and all below, parents before children.
  template <class F>
  void visit(F&& fn) {
    walk(*this, std::string(), fn);
  }
  template <class F>
  void visit(F&& fn) const {
    walk(*this, std::string(), fn);
  }

  // ---- Parts: this module's own first, then its children's, in the order of their declaration
  [[nodiscard]] std::vector<ParamRef> parameters();
  [[nodiscard]] std::vector<std::pair<std::string, Tensor>> named_parameters() const;
  [[nodiscard]] std::vector<BufferRef> buffers();
  [[nodiscard]] std::vector<std::pair<std::string, Generator*>> generators();
  [[nodiscard]] ParameterCount parameter_count() const;

  // ---- Training and evaluation: a flag of each module, on at first
  virtual void train(bool on = true);  // this module and all below; override it to keep a part frozen
  void eval() { train(false); }
  [[nodiscard]] bool is_training() const { return training_; }
  void set_training_flag(bool on) { training_ = on; }  // of this module alone

  // ---- Parameters as a whole
  void zero_grad();                     // gradients become undefined
  void requires_grad_(bool on = true);  // false freezes: no gradient is recorded or written
  // Moves or converts values, gradients (of frozen parameters, too) and buffers, all of them or none; `to(dtype)`
  // leaves integer buffers alone. A ParamRef sees the new values, and hooks on gradients move with the parameters;
  // tensors copied from parameters, and graphs recorded before, keep the old values.
  void to(Device device);
  // Modules for which keep(module) is true stay as they are; keep decides for each module below them by itself. Throws
  // DTypeError unless dtype is floating.
  void to(DType dtype, const Function<bool(const Module&)>& keep = {});
  // Lays out 4-d floats, the weights of 2-d convolutions: for channels_last, also give the first layer its images so
  // (images.contiguous(MemoryFormat::channels_last)). States keep their names, and are saved and loaded in either
  // format. Optimizers are made after it. Of several processes: DDP adds gradients up in row-major memory, which costs
  // two transposes a weight; ZeRO and FSDP lay parameters out row-major again.
  void to(MemoryFormat format);
  [[nodiscard]] Device device() const;
  [[nodiscard]] DType dtype() const;

  // ---- State: names as PyTorch gives them, parameters before buffers within a module. The tensors share the module's
  // memory; clone() what must not change with it.
  [[nodiscard]] NamedTensors state_dict() const;
  // Copies values from any device into the module. Everything is checked before anything changes: Strict::yes throws
  // ConfigError with a list of all differences of names, shapes and dtypes; Strict::no copies what fits.
  LoadReport load_state_dict(const NamedTensors& state, Strict strict = Strict::yes);

  // ---- For modules whose parts are known only at run time; the references live as long as the module
  Parameter& register_parameter(std::string_view name, const Shape& shape, const Initializer& initializer);
  Buffer& register_buffer(std::string_view name, const Tensor& value, Persistent persistent = Persistent::yes);
  // The root's generator for `name` below this module's path.
  [[nodiscard]] Generator fork(std::string_view name) const;

 protected:
  Module() = default;  // a root without generator and device: it can hold no parameters

 private:
  friend class Parameter;
  friend class Buffer;
  friend class ModuleGenerator;
  friend class Call;
  friend class Parametrization;
  struct Context {
    Generator gen;
    Device device;
    DType dtype;
  };
  struct Slot {
    std::string name;
    Tensor* value;
    Persistent persistent = Persistent::yes;
  };
  template <class M, class F>
  static void walk(M& module, const std::string& path, F& fn) {
    fn(path, module);
    for (auto* child : module.children()) walk(*child, path.empty() ? child->name() : path + "." + child->name(), fn);
  }
  template <class Convert>
  void convert_all(Convert convert);
  [[nodiscard]] const Context& context() const;
  void check_new_name(const char* kind, std::string_view name) const;
  [[nodiscard]] std::uint32_t path_id() const;  // of path(): see detail::ModuleCall

  std::string name_;
  Module* parent_ = nullptr;
  std::optional<Context> context_;
  bool training_ = true;
  void (*refresh_)(const Module&) = nullptr;       // sets parameters before each call: Parametrization
  mutable std::shared_ptr<const void> alive_;      // made by alive()
  mutable std::atomic<std::uint32_t> path_id_{0};  // 0 until path_id() is called
  std::vector<Module*> children_;
  std::vector<Slot> parameters_, buffers_;
  std::vector<std::pair<std::string, ModuleGenerator*>> generators_;
  std::vector<std::unique_ptr<Parameter>> owned_parameters_;
  std::vector<std::unique_ptr<Buffer>> owned_buffers_;
};

// The module a parameter belongs to; null for a bare tensor.
[[nodiscard]] LEVIN_API Module* owner_of(const ParamRef& parameter);

}  // namespace levin::nn
