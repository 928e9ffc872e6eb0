// Optimizers and gradient clipping. An optimizer takes references to parameters and knows no module.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "levin/function.h"
#include "levin/serialize.h"
#include "levin/tensor.h"

namespace levin::optim {

using Parameters = std::vector<ParamRef>;

struct Updates;  // optim/updates.h: one group's update
struct Masters;  // optim/masters.h: copies between masters and the model

// How the new value of a 16-bit parameter is rounded from f32. `nearest` loses changes of less than half a step (bf16
// has 8 bits: 1 part in 512). `stochastic` chooses one of the two neighbours with the probability that makes the mean
// exact (Gupta et al., 2015), by random bits of parameter, element and step count alone: a repeated or resumed run has
// the same bits, on every device.
enum class Rounding : std::uint8_t { nearest, stochastic };

enum class SetToNone : bool { no, yes };

// Memory for an optimizer's state that is not the CPU's own, such as a file that is mapped. For one thread at a time.
class LEVIN_API StateMemory {
 public:
  virtual ~StateMemory();
  // A dense tensor of zeros on the CPU; its memory is free for the next one when the last handle goes. Throws
  // OutOfMemoryError, FileError.
  [[nodiscard]] virtual Tensor allocate(const Shape& shape, DType dtype) = 0;
  // How many elements of parameters a step updates between two calls of `rest`; above 0.
  [[nodiscard]] virtual std::int64_t elements_at_once() const = 0;
  struct Part {
    const void* begin = nullptr;
    std::size_t bytes = 0;
  };
  // What was read or written since the last call, and is not used before the next step: it may leave the memory of the
  // process until then, and its values stay. Some parts may belong to other memory.
  virtual void rest(std::span<const Part> parts) noexcept = 0;
};

// The base of all optimizers. A step leaves a parameter without a gradient as it is. Parameters are dense floats
// (LBFGS: f32 or f64); each belongs to one group, and a group to one device (cpu, or cuda and simt except for LBFGS; on
// meta a step does nothing). Adding a group of others, or with an option out of range, throws ConfigError. For f16 and
// bf16 arithmetic and state are f32.
class LEVIN_API Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Updates every parameter from its gradient. Throws StateError when a parameter was converted (dtype, device) since
  // its last update.
  void step();
  // step() where found_inf, one f32 element on the parameters' device, is 0; otherwise parameters, state and step
  // counts stay. On a device that launches kernels, the kernels read found_inf and the host does not wait, so a
  // recorded step skips, too. GradScaler calls this. Throws ShapeError, DeviceError; ConfigError from LBFGS, which
  // cannot skip.
  void step_unless(const Tensor& found_inf);
  // clip_grad_norm_ and step(), with the same bits in parameters and state but for the case named last: gradients are
  // multiplied by min(1, max_norm / (norm + 1e-6)), norm being their 2-norm. Returns norm, a f64 scalar on the
  // gradients' device (0 on cpu without gradients). Where fuses_clipping(), one pass finds the norm, the update
  // multiplies gradients as it reads them, and memory keeps what backward left; masters get no gradients. Elsewhere the
  // gradients in memory are clipped. Throws ConfigError for a limit below 0 and from LBFGS, and what step() throws.
  // With masters beside f32 parameters the norm adds gradients of one dtype after the other, so its last bit may
  // differ.
  Tensor step_clipped(double max_norm);
  // Whether step_clipped, and GradScaler::step with options, take two passes over gradients and two launches (LAMB:
  // three), and more launches for a further group or dtype and for 384 parameters more. Masters then need no launch of
  // their own: step(), too, reads the model's 16-bit gradients unless gather_gradients() was called, and the update
  // rounds each master into its parameter. True for Levin's optimizers except for LBFGS, Muon, Adafactor and
  // SparseAdam, on one device that launches kernels, without pieces; false for classes that derive from them.
  [[nodiscard]] bool fuses_clipping() const;
  // Optimizers that evaluate the loss several times (LBFGS) call `closure`, which clears gradients, computes the loss,
  // runs backward and returns the loss; the others call it once and then step().
  virtual Tensor step(const Function<Tensor()>& closure);
  // Makes gradients undefined, those of masters too. The next step then leaves their parameters as they are, whereas a
  // gradient of 0 moves them by momentum and weight decay. SetToNone::no fills defined gradients with 0 in place, as a
  // recorded step needs it.
  void zero_grad(SetToNone set_to_none = SetToNone::yes);

  // f32 master weights for f16 and bf16 parameters: the optimizer updates f32 copies, which take the place of the
  // model's in parameters() (same names and owners), and each step rounds them into the model's. So small updates add
  // up, and clipping sees f32 gradients. f32 and f64 parameters stay as they are; groups added later get masters, too.
  // The state has them as NAME.master. Load weights before this call: each step overwrites the model's 16-bit
  // parameters. Throws StateError after the first step. Micikevicius et al., 2018.
  void use_master_weights();
  [[nodiscard]] std::vector<ParamRef> model_parameters() const;  // as given, in order
  // A part of a parameter: `values`, 1-D and contiguous, floats on any device, are its elements from `begin` on. It may
  // be empty.
  struct Piece {
    Tensor values;
    std::int64_t begin = 0;
  };
  // For ranks that share the update: this optimizer updates a piece of each parameter, whose state is as small as the
  // piece, and another rank's optimizer the others. The pieces, or their f32 masters, take the place of the model's in
  // parameters(), with their names and owners; step() reads the gradient of the piece. Each element is updated, and
  // stochastically rounded, as in the whole parameter, so this is for optimizers whose rule treats each element by
  // itself. Throws StateError after the first step, ConfigError unless elementwise() and for a piece that is no part of
  // its parameter. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020.
  void use_pieces(const Function<Piece(const ParamRef&)>& piece_of);
  // Whether the rule treats each element by itself, as sharding needs: false for LBFGS, LAMB, Muon, Adafactor and
  // SparseAdam. Your own optimizers override it.
  [[nodiscard]] virtual bool elementwise() const { return true; }
  // The pieces, in the order of model_parameters(), with the tensors that step() reads gradients of; empty without.
  [[nodiscard]] std::vector<ParamRef> pieces() const;
  // Keeps the state, masters included, in `memory`. A step then updates elements_at_once() elements after another, so
  // that the rest of the state need not be in memory; every element gets the same bits. Parameters, or their pieces,
  // are on the CPU. Throws StateError after the first step, ConfigError for another device and unless elementwise().
  void keep_state_in(std::shared_ptr<StateMemory> memory);
  // Copies the model's 16-bit gradients to the masters, where clipping and step() read them. Call it between backward
  // and clipping; GradScaler::unscale_ does it in its pass, and step() if it was not done and not fuses_clipping().
  // Works once between two steps or zero_grad calls, and with masters only.
  void gather_gradients();
  // The most state that a step of all parameters needs, as tensors on meta, for a plan of memory: masters too, and
  // their gradients, which a step that fuses_clipping() does not make; without the histories of LBFGS.
  [[nodiscard]] Tensors planned_state() const;
  // Bytes of each of the state's tensors that exist.
  [[nodiscard]] std::vector<std::size_t> state_sizes() const;
  // For a step recorded in a Graph: writes changed numbers (lr, momentum) to the device, where replays read them. Call
  // it before each replay. step() does it itself.
  void prepare_replay();
  // Rises when a recorded step is out of date and must be recorded again: a state was loaded, a group added, masters
  // made, or a momentum became other than 0.
  [[nodiscard]] std::uint64_t layout() const { return layout_; }

  [[nodiscard]] int groups() const { return static_cast<int>(groups_.size()); }
  [[nodiscard]] const Parameters& parameters(int group) const { return group_at(group).parameters; }
  [[nodiscard]] std::vector<ParamRef> parameters() const;  // of all groups, in order
  [[nodiscard]] double lr(int group = 0) const { return group_at(group).lr; }
  void set_lr(int group, double lr);  // throws ConfigError below 0
  // What one-cycle schedules move: the momentum of SGD, RMSprop and Muon, beta1 of Adam, AdamW, NAdam, RAdam, Adamax,
  // SparseAdam, LAMB and Lion. Empty for others. Setting it throws ConfigError for others and out of range; both throw
  // IndexError for an unknown group, as lr does.
  [[nodiscard]] virtual std::optional<double> momentum(int group) const;
  virtual void set_momentum(int group, double value);
  [[nodiscard]] std::optional<double> weight_decay(int group) const;  // empty where there is none

  // All that the next step depends on besides parameters and gradients: state tensors by parameter name, step counts,
  // and each group's numbers. Loading first checks names, shapes, dtypes and the numbers' ranges (ConfigError), then
  // copies bit for bit.
  [[nodiscard]] NamedTensors state_dict() const;
  // state_dict() without copies: the next step writes to these tensors.
  [[nodiscard]] NamedTensors state_refs() const;
  void load_state_dict(const NamedTensors& state);
  [[nodiscard]] virtual const char* name() const = 0;  // "sgd", "adamw"
  [[nodiscard]] std::string type_name() const;         // of the class, without namespaces: "AdamW"
  // Expires with this optimizer: for code that remembers an optimizer without owning it.
  [[nodiscard]] std::weak_ptr<const void> alive() const;
  // For your own optimizers. true promises that update() reads found_inf, the learning rate and step counts from the
  // device's memory when parameters are on a device, as Levin's optimizers do: a step can then be skipped without a
  // wait (step_unless, loss scaling) and be replayed by a capture. With false step_unless throws ConfigError on a
  // device, and a training is not captured, with a warning. The cpu needs no promise.
  [[nodiscard]] virtual bool reads_device_numbers() const { return false; }

 protected:
  static constexpr int kMaxState = 3;
  struct State {  // of one parameter; undefined tensors until its first update
    std::array<Tensor, kMaxState> tensors;
    std::int64_t step = 0;
    DType dtype = DType::f32;  // the parameter's, then
  };
  struct Master {  // of a 16-bit parameter; `gradient` keeps its address when zero_grad clears value.grad()
    Tensor value, gradient;
  };
  struct Group {
    Parameters parameters;
    // With masters or pieces: the given parameters.
    Parameters model;
    std::vector<std::shared_ptr<Master>> masters;  // one a parameter, null for f32 and f64
    std::vector<std::shared_ptr<Piece>> pieces;
    // Of parameter i: the tensor that backward's gradient belongs to, and its first element in the parameter.
    [[nodiscard]] Tensor& source(std::size_t i) const;
    [[nodiscard]] std::int64_t first_element(std::size_t i) const { return pieces.empty() ? 0 : pieces[i]->begin; }
    std::vector<State> state;
    double lr = 0;
    Rounding rounding = Rounding::nearest;
    std::optional<double> initial_lr;  // set by the first schedule, and the base of later ones
    // On a device that launches kernels: the parameters' step counts (State::step is then only 0 or more), {lr,
    // momentum}, and the last values written there.
    Tensor steps, numbers;
    std::array<double, 2> written{};
  };
  friend class Scheduler;
  friend class GradScaler;
  friend struct Masters;
  friend struct Updates;
  Optimizer() = default;
  // Steps one group, unless *found_inf, in the memory of the group's device, is not 0. Null on cpu, and for step().
  virtual void update(int group, const float* found_inf) = 0;
  virtual void check_skippable() const;  // throws ConfigError where step_unless is impossible
  // `optimizer` is the name for messages: constructors call add(), and name() is pure until they are done.
  void add(const char* optimizer, Parameters parameters, double lr, Rounding rounding = Rounding::nearest);
  [[nodiscard]] std::size_t index_of(int group) const;  // throws IndexError for an unknown group
  [[nodiscard]] const Group& group_at(int group) const { return groups_[index_of(group)]; }
  // PyTorch's names of the state tensors ("momentum_buffer", "exp_avg"), null for unused ones.
  [[nodiscard]] virtual std::array<const char*, kMaxState> state_names(int group) const = 0;
  // The shape of a state tensor of a parameter: the parameter's. None: the parameter has no such state.
  [[nodiscard]] virtual std::optional<Shape> state_shape(int group, int which, const Shape& parameter) const;
  // The value that a state tensor starts with: 0.
  [[nodiscard]] virtual double initial_state(int group, int which) const;
  // Numbers of a group besides lr, saved with the state: {"momentum", &options.momentum}, ...
  [[nodiscard]] virtual std::vector<std::pair<const char*, double*>> numbers(int group);
  // Throws ConfigError when one of them is out of its constructor's range.
  virtual void check_numbers(int group) const;
  // Further state under names of the optimizer's own; loading gets exactly the names that extra_state gave.
  [[nodiscard]] virtual NamedTensors extra_state() const;
  virtual void load_extra_state(const NamedTensors& state);

  std::vector<Group> groups_;
  std::uint64_t layout_ = 0;

 private:
  struct Loading;
  [[nodiscard]] bool on_meta() const;
  // `factors`: kernels::Factors, which multiply the model's gradients.
  void step_groups(const float* found_inf, const double* factors = nullptr);
  [[nodiscard]] std::vector<std::pair<const char*, double>> number_values(int group) const;
  bool masters_ = false, gathered_ = false;
  // Of the running step_groups. The update reads gradients of source() in place of the masters', rounds masters into
  // source().
  bool reads_model_ = false, rounds_ = false;
  const double* factors_ = nullptr;
  std::shared_ptr<StateMemory> memory_;        // null: the device's own
  mutable std::shared_ptr<const void> alive_;  // made by alive()
};

// What all but LBFGS share: groups with options of their own. Parameters of a group that share a tensor (tied weights)
// get one update, under the first name. Options out of range, and a tensor that another group has, throw ConfigError.
template <class Options>
class LEVIN_API OptimizerOf : public Optimizer {
 public:
  explicit OptimizerOf(Parameters parameters, Options options = {});
  void add_group(Parameters parameters, Options options);
  std::optional<double> momentum(int group) const override;
  void set_momentum(int group, double value) override;
  const char* name() const override;
  bool reads_device_numbers() const override { return true; }

 private:
  void update(int group, const float* found_inf) override;
  std::array<const char*, kMaxState> state_names(int group) const override;
  std::optional<Shape> state_shape(int group, int which, const Shape& parameter) const override;
  double initial_state(int group, int which) const override;
  std::vector<std::pair<const char*, double*>> numbers(int group) override;
  void check_numbers(int group) const override;
  [[nodiscard]] bool has_state(std::size_t group, std::size_t which) const;
  std::vector<Options> options_;
};

// In the formulas below g is the gradient, negated with `maximize`, plus weight_decay p. `rounding` is for 16-bit
// parameters without masters. Gradients of rows (row_grad) become dense, but not with SGD without momentum and weight
// decay, nor with Adagrad without weight decay, which update these rows alone, to the same bits.

// SGD: b = momentum b + (1 - dampening) g, b = g in the first step;  p -= lr b, or lr (g + momentum b) with nesterov.
struct LEVIN_API SGDOptions {
  double lr = 1e-3;
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;  // nesterov needs momentum above 0 and dampening 0
  Rounding rounding = Rounding::nearest;
};
extern template class OptimizerOf<SGDOptions>;
class LEVIN_API SGD final : public OptimizerOf<SGDOptions> {
 public:
  using OptimizerOf::OptimizerOf;
};

enum class WeightDecay : bool { coupled, decoupled };
// amsgrad: p moves by the largest v so far.
template <WeightDecay decay>
struct LEVIN_API AdamOptionsOf {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = decay == WeightDecay::decoupled ? 1e-2 : 0;
  bool amsgrad = false, maximize = false;
  Rounding rounding = Rounding::nearest;
};
using AdamOptions = AdamOptionsOf<WeightDecay::coupled>;
using AdamWOptions = AdamOptionsOf<WeightDecay::decoupled>;
extern template class OptimizerOf<AdamOptions>;
extern template class OptimizerOf<AdamWOptions>;
// m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
// p -= lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps). Kingma & Ba, 2015.
class LEVIN_API Adam : public OptimizerOf<AdamOptions> {
 public:
  using OptimizerOf::OptimizerOf;
};
// Adam whose weight decay shrinks p by lr weight_decay p instead of joining g. Loshchilov & Hutter, 2019.
class LEVIN_API AdamW final : public OptimizerOf<AdamWOptions> {
 public:
  using OptimizerOf::OptimizerOf;
};

// Adam for tables whose gradients are rows (EmbeddingOptions::sparse): a step updates these rows of p, m and v alone,
// so the m and v of others do not shrink. p -= lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps), t counting the
// steps of the table. A step throws StateError where a gradient is dense, which masters, hooks and strategies of
// several ranks make it; use_pieces and keep_state_in throw ConfigError. 16-bit tables are rounded to the nearest.
struct LEVIN_API SparseAdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  bool maximize = false;
};
extern template class OptimizerOf<SparseAdamOptions>;
class LEVIN_API SparseAdam final : public OptimizerOf<SparseAdamOptions> {
 public:
  using OptimizerOf::OptimizerOf;
  bool elementwise() const override { return false; }
};

// RMSprop: v = alpha v + (1 - alpha) g^2;  b = momentum b + g / (sqrt(v) + eps);  p -= lr b. centered subtracts the
// squared mean of g from v. Tieleman & Hinton, 2012.
struct LEVIN_API RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0;
  bool centered = false, maximize = false;
  Rounding rounding = Rounding::nearest;
};
extern template class OptimizerOf<RMSpropOptions>;
class LEVIN_API RMSprop final : public OptimizerOf<RMSpropOptions> {
 public:
  using OptimizerOf::OptimizerOf;
};

// Adagrad: s += g^2, from initial_accumulator_value;  p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps). Duchi et
// al., 2011.
struct LEVIN_API AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0, weight_decay = 0, initial_accumulator_value = 0, eps = 1e-10;
  bool maximize = false;
  Rounding rounding = Rounding::nearest;
};
extern template class OptimizerOf<AdagradOptions>;
class LEVIN_API Adagrad final : public OptimizerOf<AdagradOptions> {
 public:
  using OptimizerOf::OptimizerOf;
};

// NAdam: Adam with Nesterov's momentum. With mu_t = beta1 (1 - 0.96^(t momentum_decay) / 2), M_t = mu_1 ... mu_t and m
// and v as Adam's, p -= lr ((1 - mu_t) / (1 - M_t) g + mu_{t+1} / (1 - M_{t+1}) m) / (sqrt(v / (1 - beta2^t)) + eps).
// decoupled_weight_decay shrinks p as AdamW does. M follows from t and the present beta1, and is no state of its own as
// PyTorch's mu_product is. Dozat, 2016.
struct LEVIN_API NAdamOptions {
  double lr = 2e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0, momentum_decay = 4e-3;
  bool decoupled_weight_decay = false, maximize = false;
  Rounding rounding = Rounding::nearest;
};
extern template class OptimizerOf<NAdamOptions>;
class LEVIN_API NAdam final : public OptimizerOf<NAdamOptions> {
 public:
  using OptimizerOf::OptimizerOf;
};

// RAdam: Adam whose steps are as long as the variance of v allows. With n = 2 / (1 - beta2) - 1 and
// r = n - 2 t beta2^t / (1 - beta2^t), p -= lr m / (1 - beta1^t) c, where c is
// sqrt((r - 4) (r - 2) n / ((n - 4) (n - 2) r)) sqrt(1 - beta2^t) / (sqrt(v) + eps) for r above 5, and 1 otherwise. Liu
// et al., 2020.
struct LEVIN_API RAdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0;
  bool decoupled_weight_decay = false, maximize = false;
  Rounding rounding = Rounding::nearest;
};
extern template class OptimizerOf<RAdamOptions>;
class LEVIN_API RAdam final : public OptimizerOf<RAdamOptions> {
 public:
  using OptimizerOf::OptimizerOf;
};

// Adamax: m as Adam's;  u = max(beta2 u, |g| + eps);  p -= lr m / ((1 - beta1^t) u). Kingma & Ba, 2015, 7.1.
struct LEVIN_API AdamaxOptions {
  double lr = 2e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0;
  bool maximize = false;
  Rounding rounding = Rounding::nearest;
};
extern template class OptimizerOf<AdamaxOptions>;
class LEVIN_API Adamax final : public OptimizerOf<AdamaxOptions> {
 public:
  using OptimizerOf::OptimizerOf;
};

// Adadelta: v = rho v + (1 - rho) g^2;  d = sqrt(u + eps) / sqrt(v + eps) g;  u = rho u + (1 - rho) d^2;  p -= lr d.
// Zeiler, 2012.
struct LEVIN_API AdadeltaOptions {
  double lr = 1;
  double rho = 0.9, eps = 1e-6, weight_decay = 0;
  bool maximize = false;
  Rounding rounding = Rounding::nearest;
};
extern template class OptimizerOf<AdadeltaOptions>;
class LEVIN_API Adadelta final : public OptimizerOf<AdadeltaOptions> {
 public:
  using OptimizerOf::OptimizerOf;
};

// Lion, with g without weight decay: p -= lr (sign(beta1 m + (1 - beta1) g) + weight_decay p);
// m = beta2 m + (1 - beta2) g. PyTorch has none; names and defaults are the authors'. Chen et al., "Symbolic Discovery
// of Optimization Algorithms", 2023.
struct LEVIN_API LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9, beta2 = 0.99, weight_decay = 0;
  bool maximize = false;
  Rounding rounding = Rounding::nearest;
};
extern template class OptimizerOf<LionOptions>;
class LEVIN_API Lion final : public OptimizerOf<LionOptions> {
 public:
  using OptimizerOf::OptimizerOf;
};

// ASGD: p = (1 - lambd e) p - e g with e = lr / (1 + lambd lr (t - 1))^alpha;  ax += (p - ax) / max(1, t - 1 - t0), the
// mean of p from step t0 on, which the state has as NAME.ax. e and the factor of ax follow from t and the present lr,
// and are no state of their own; PyTorch forms e a step ahead, so there a change of lr acts one step later. Polyak &
// Juditsky, 1992.
struct LEVIN_API ASGDOptions {
  double lr = 1e-2;
  double lambd = 1e-4, alpha = 0.75, t0 = 1e6, weight_decay = 0;
  bool maximize = false;
  Rounding rounding = Rounding::nearest;
};
extern template class OptimizerOf<ASGDOptions>;
class LEVIN_API ASGD final : public OptimizerOf<ASGDOptions> {
 public:
  using OptimizerOf::OptimizerOf;
};

// Rprop: p -= sign(g) s. s starts with the lr of the first step, and is multiplied by eta_plus where g has the sign
// that it had before, by eta_minus where it has the other, within [step_size_min, step_size_max]; there g counts as 0.
// For gradients of all data. Later changes of lr do nothing. Riedmiller & Braun, 1993.
struct LEVIN_API RpropOptions {
  double lr = 1e-2;
  double eta_minus = 0.5, eta_plus = 1.2;
  double step_size_min = 1e-6, step_size_max = 50;
  bool maximize = false;
  Rounding rounding = Rounding::nearest;
};
extern template class OptimizerOf<RpropOptions>;
class LEVIN_API Rprop final : public OptimizerOf<RpropOptions> {
 public:
  using OptimizerOf::OptimizerOf;
};

// LAMB: with m and v as Adam's of g without weight decay, u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) +
// weight_decay p;  p -= lr |p| / |u| u, with the 2-norms over all elements of the parameter, or lr u where one of them
// is 0. For large batches. Two launches on a device. Its elements depend on each other, so use_pieces and keep_state_in
// throw ConfigError. PyTorch has none. You et al., "Large Batch Optimization for Deep Learning", 2020.
struct LEVIN_API LAMBOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-6, weight_decay = 1e-2;
  bool maximize = false;
  Rounding rounding = Rounding::nearest;
};
extern template class OptimizerOf<LAMBOptions>;
class LEVIN_API LAMB final : public OptimizerOf<LAMBOptions> {
 public:
  using OptimizerOf::OptimizerOf;
  bool elementwise() const override { return false; }
};

enum class AdjustLr : std::uint8_t {
  original,         // s = sqrt(max(1, rows / columns))
  match_rms_adamw,  // s = 0.2 sqrt(max(rows, columns)): rates of AdamW serve
};
// Muon, for matrices (ConfigError for other parameters): b += (1 - momentum) (g - b);  u = g + momentum (b - g), or b
// without nesterov;  p -= lr (s O + weight_decay p), O being u with all singular values near 1: x = u / max(|u|, eps),
// then ns_steps times x = a x + (b x x^T + c (x x^T)^2) x with ns_coefficients a, b, c (Newton-Schulz). As in PyTorch x
// is bf16, so values agree with PyTorch's to some bf16 steps of O. Its elements depend on each other: use_pieces and
// keep_state_in throw ConfigError. On a device a matrix takes some thirty launches. Jordan et al., 2024.
struct LEVIN_API MuonOptions {
  double lr = 1e-3;
  double weight_decay = 0.1, momentum = 0.95;
  bool nesterov = true;
  std::array<double, 3> ns_coefficients{3.4445, -4.775, 2.0315};
  double eps = 1e-7;
  int ns_steps = 5;  // 1 to 99
  AdjustLr adjust_lr_fn = AdjustLr::original;
  Rounding rounding = Rounding::nearest;
};
extern template class OptimizerOf<MuonOptions>;
class LEVIN_API Muon final : public OptimizerOf<MuonOptions> {
 public:
  using OptimizerOf::OptimizerOf;
  bool elementwise() const override { return false; }
};

// Adafactor, whose state is the size of a row and a column: with e = t^beta2_decay and the means of g^2 (without weight
// decay) over rows and columns of the last two dimensions, R += e (mean over a row - R);  C += e (mean over a column -
// C);  V = R C / max(mean of R over the rows, eps1);  of a vector V += e (g^2 - V);  u = g / max(sqrt(V), eps1);
// p -= lr weight_decay p + max(eps2, rms(p)) min(lr, 1 / sqrt(t)) u / max(1, rms(u) / d), rms(x) being
// sqrt(mean of x^2). The state is NAME.row_var and NAME.col_var, or NAME.variance. Its elements depend on each other:
// use_pieces and keep_state_in throw ConfigError. On a device a matrix takes five launches, a vector three. As PyTorch
// does it; Shazeer & Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", 2018.
struct LEVIN_API AdafactorOptions {
  double lr = 1e-2;
  double beta2_decay = -0.8;     // 0 or below
  std::optional<double> eps1{};  // none: the smallest step of 1 in the parameter's dtype
  double eps2 = 1e-3, d = 1;     // d: 1 or above
  double weight_decay = 0;
  bool maximize = false;
  Rounding rounding = Rounding::nearest;
};
extern template class OptimizerOf<AdafactorOptions>;
class LEVIN_API Adafactor final : public OptimizerOf<AdafactorOptions> {
 public:
  using OptimizerOf::OptimizerOf;
  bool elementwise() const override { return false; }
};

enum class LineSearch : std::uint8_t { none, strong_wolfe };
struct LBFGSOptions {
  double lr = 1;      // the step length, or the first one that a line search tries
  int max_iter = 20;  // directions in a step
  int max_eval = 0;   // evaluations of the loss in a step; 0: max_iter * 5 / 4
  // A step ends when the largest gradient, or the change of the loss or of the values, is not above these.
  double tolerance_grad = 1e-7, tolerance_change = 1e-9;
  int history_size = 100;  // pairs of changes that the inverse Hessian is made of
  LineSearch line_search = LineSearch::none;
};
// Limited-memory BFGS of one group, computed on the host in f64. step() without a closure throws StateError. Nocedal &
// Wright, "Numerical Optimization", 2006, 7.2.
class LEVIN_API LBFGS final : public Optimizer {
 public:
  explicit LBFGS(Parameters parameters, LBFGSOptions options = {});
  ~LBFGS() override;
  using Optimizer::step;
  Tensor step(const Function<Tensor()>& closure) override;  // returns the first loss
  const char* name() const override { return "lbfgs"; }
  bool elementwise() const override { return false; }

 private:
  struct Memory;
  void update(int group, const float* found_inf) override;
  void check_skippable() const override;
  std::array<const char*, kMaxState> state_names(int group) const override;
  NamedTensors extra_state() const override;
  void load_extra_state(const NamedTensors& state) override;
  LBFGSOptions options_;
  std::unique_ptr<Memory> memory_;
};

// Divides all gradients by `divisor`, one f64 element on their device, without a wait: multiplies them by 1 / divisor,
// formed in f64, and rounds once. Throws ShapeError, DeviceError.
LEVIN_API void divide_gradients_(const Parameters& parameters, const Tensor& divisor);

enum class ErrorIfNonfinite : bool { no, yes };

// The three clipping functions sum and scale 16-bit gradients in f32 or f64, round once, and throw ConfigError for a
// limit below 0.

// Scales all gradients by min(1, max_norm / (norm + 1e-6)), norm being the p-norm of all of them together. Returns
// norm, a f64 scalar on the gradients' device (0 on cpu without gradients). Waits for a device only with
// ErrorIfNonfinite::yes, which throws StateError before anything is scaled. Throws ConfigError unless p is above 0.
LEVIN_API Tensor clip_grad_norm_(const Parameters& parameters, double max_norm, double p = 2,
                                 ErrorIfNonfinite check = ErrorIfNonfinite::no);
// The scaling alone, with a known norm: of clip_grad_norm_, or GradScaler::grad_norm. Throws ShapeError, DeviceError
// unless total_norm is one f64 element on the gradients' device.
LEVIN_API void clip_grads_with_norm_(const Parameters& parameters, double max_norm, const Tensor& total_norm);
// Clamps every gradient element to [-limit, limit].
LEVIN_API void clip_grad_value_(const Parameters& parameters, double limit);

}  // namespace levin::optim
