// Optimizers and gradient clipping. An optimizer is given references to parameters and knows no module.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "levin/function.h"
#include "levin/serialize.h"
#include "levin/tensor.h"

namespace levin::optim {

using Parameters = std::vector<ParamRef>;

struct Updates;  // optim/updates.h: the list of one group's updates
struct Masters;  // optim/masters.h: between masters and the model

// How a 16-bit parameter takes its new value, which is computed in f32. `nearest` loses changes of less than half a step
// (bf16 has 8 bits: 1 part in 512); `stochastic` goes to one of the two neighbours with the probability that makes the mean
// exact (Gupta et al., 2015), by random bits that depend on parameter, element and step count alone: a run that is repeated
// or resumed has the same bits, on every device.
enum class Rounding : std::uint8_t { nearest, stochastic };

enum class SetToNone : bool { no, yes };

// The base of all. A parameter without a gradient is left as it is. Parameters are floats (LBFGS: f32 or f64), dense, each
// belongs to one group and a group to one device (cpu, or cuda and simt except for LBFGS; on meta a step does nothing);
// anything else, or an option out of range, is a ConfigError when the group is added. For f16 and bf16 all arithmetic and
// state is f32.
class LEVIN_API Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // One update of every parameter from its gradient. Throws StateError when a parameter was converted (dtype, device)
  // since its last update.
  void step();
  // The same where found_inf, one f32 element on the parameters' device, is 0; else nothing changes: parameters, state,
  // step counts. On a device that launches kernels these look at it and the host does not wait, so that a recorded step
  // skips, too. GradScaler calls it. Throws ShapeError, DeviceError; ConfigError from LBFGS, whose step can not be skipped.
  void step_unless(const Tensor& found_inf);
  // Optimizers that evaluate the loss several times (LBFGS) call `closure`, which clears gradients, computes the loss,
  // runs backward and returns the loss; the others call it once and then step().
  virtual Tensor step(const Function<Tensor()>& closure);
  // Gradients become undefined, those of masters too: their parameters are then left as they are, where a gradient of 0 still moves
  // them by momentum and weight decay. With SetToNone::no those that are there are filled with 0, in
  // their memory: whoever holds one sees it, and a step that is recorded can begin so.
  void zero_grad(SetToNone set_to_none = SetToNone::yes);

  // f32 master weights for f16 and bf16 parameters: from now on the optimizer updates f32 copies, which parameters() names
  // in their place (same names and owners), and each step rounds them into the model's. So small updates add up, and
  // clipping sees f32 gradients. Parameters of f32 and f64 stay as they are; groups added later get masters, too. The
  // state holds them as NAME.master. What others write to the model's parameters later the next step overwrites: load
  // weights before. Throws StateError after the first step. Micikevicius et al., 2018.
  void use_master_weights();
  [[nodiscard]] std::vector<ParamRef> model_parameters() const;  // those given, in order
  // Copies the model's 16-bit gradients to the masters', where clipping and step() look. Call it between backward and
  // clipping; GradScaler::unscale_ does it in its pass, step() itself where nobody did. Once between two steps or
  // zero_grad calls: a later call does nothing. Without masters neither.
  void gather_gradients();
  // The state that a step of all parameters needs, masters and their gradients too, as tensors on meta, whether it is there
  // already or not: for a plan of memory. The histories of LBFGS are no tensors.
  [[nodiscard]] Tensors planned_state() const;
  // Bytes of the state's tensors that are there, one number a tensor.
  [[nodiscard]] std::vector<std::size_t> state_sizes() const;
  // For a step recorded in a Graph: writes numbers that changed since (lr, momentum) to the device, where replays read
  // them. Call it before each replay. step() does it itself.
  void prepare_replay();
  // Rises when a recorded step is no longer this optimizer's: a state was loaded, a group added, masters made, or a momentum
  // became other than 0. Record it again then.
  [[nodiscard]] std::uint64_t layout() const { return layout_; }

  [[nodiscard]] int groups() const { return static_cast<int>(groups_.size()); }
  [[nodiscard]] const Parameters& parameters(int group) const { return group_at(group).parameters; }
  [[nodiscard]] std::vector<ParamRef> parameters() const;  // of all groups, in order
  [[nodiscard]] double lr(int group = 0) const { return group_at(group).lr; }
  void set_lr(int group, double lr);  // throws ConfigError below 0
  // SGD's and RMSprop's momentum, Adam's beta1: what one-cycle schedules move. Empty where there is none; setting it
  // there, or out of range, is a ConfigError. A group that is not there is an IndexError, as for lr.
  [[nodiscard]] virtual std::optional<double> momentum(int group) const;
  virtual void set_momentum(int group, double value);
  [[nodiscard]] std::optional<double> weight_decay(int group) const;  // empty where there is none

  // Everything that the next step depends on besides parameters and gradients: state tensors by parameter name, step
  // counts, and each group's numbers. Loading checks names, shapes, dtypes and the numbers' ranges first (ConfigError)
  // and copies bit for bit.
  [[nodiscard]] NamedTensors state_dict() const;
  // The same, and what lies in memory as it is, without copies: the next step writes to it.
  [[nodiscard]] NamedTensors state_refs() const;
  void load_state_dict(const NamedTensors& state);
  [[nodiscard]] virtual const char* name() const = 0;  // "sgd", "adamw"
  [[nodiscard]] std::string type_name() const;         // of the class, without namespaces: "AdamW"
  // Expires when this is destroyed: for those who remember an optimizer that is not theirs.
  [[nodiscard]] std::weak_ptr<const void> alive() const;
  // For classes derived from this one. True promises that update() reads found_inf, the learning rate and step counts from
  // the device's memory whenever parameters are on one, as Levin's own do: then a step can be skipped without a look
  // (step_unless, loss scaling) and be replayed by a capture. False, the default, refuses the first by ConfigError and
  // keeps a training from being captured, with a warning; on the cpu nothing is needed.
  [[nodiscard]] virtual bool reads_device_numbers() const { return false; }

 protected:
  static constexpr int kMaxState = 3;
  struct State {  // of one parameter; undefined tensors until its first update
    std::array<Tensor, kMaxState> tensors;
    std::int64_t step = 0;
    DType dtype = DType::f32;  // the parameter's, then
  };
  struct Master {  // of a 16-bit parameter: the gradient keeps its address while the tensor's own comes and goes
    Tensor value, gradient;
  };
  struct Group {
    Parameters parameters;
    // With masters: what was given, and one a parameter, null for those that need none.
    Parameters model;
    std::vector<std::shared_ptr<Master>> masters;
    std::vector<State> state;
    double lr = 0;
    Rounding rounding = Rounding::nearest;
    std::optional<double> initial_lr;  // set by the first schedule: later ones start from it too
    // On a device that launches kernels: the parameters' step counts (State::step only says that there are some), {lr,
    // momentum}, and what was last written there.
    Tensor steps, numbers;
    std::array<double, 2> written{};
  };
  friend class Scheduler;
  friend class GradScaler;
  friend struct Masters;
  friend struct Updates;
  Optimizer() = default;
  // One group's step, unless *found_inf, in the memory of its device, is not 0 (null: never; always null on cpu).
  virtual void update(int group, const float* found_inf) = 0;
  virtual void check_skippable() const;  // throws ConfigError where step_unless can not be
  // For messages it is told its optimizer's name: constructors call it, and name() is pure until they are done.
  void add(const char* optimizer, Parameters parameters, double lr, Rounding rounding = Rounding::nearest);
  [[nodiscard]] const Group& group_at(int group) const;
  // State in use: names as PyTorch's ("momentum_buffer", "exp_avg"), null for unused.
  [[nodiscard]] virtual std::array<const char*, kMaxState> state_names(int group) const = 0;
  [[nodiscard]] virtual double initial_state(int group, int which) const;  // value a state tensor starts with: 0
  // Numbers of a group besides lr, saved with the state: {"momentum", &options.momentum}, ...
  [[nodiscard]] virtual std::vector<std::pair<const char*, double*>> numbers(int group);
  // Throws ConfigError when one of them is out of its constructor's range.
  virtual void check_numbers(int group) const;
  // What an optimizer keeps beyond that, under names of its own; loading gets exactly the names it gave.
  [[nodiscard]] virtual NamedTensors extra_state() const;
  virtual void load_extra_state(const NamedTensors& state);

  std::vector<Group> groups_;
  std::uint64_t layout_ = 0;

 private:
  [[nodiscard]] bool on_meta() const;
  void step_groups(const float* found_inf);
  bool masters_ = false, gathered_ = false;
  mutable std::shared_ptr<const void> alive_;  // made when it is asked for
};

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;
  Rounding rounding = Rounding::nearest;
};
// b = momentum b + (1 - dampening) g;  p -= lr b, or lr (g + momentum b) with nesterov. g includes weight_decay p.
class LEVIN_API SGD final : public Optimizer {
 public:
  explicit SGD(Parameters parameters, SGDOptions options = {});
  void add_group(Parameters parameters, SGDOptions options);
  std::optional<double> momentum(int group) const override;
  void set_momentum(int group, double value) override;
  const char* name() const override { return "sgd"; }
  bool reads_device_numbers() const override { return true; }

 private:
  void update(int group, const float* found_inf) override;
  std::array<const char*, kMaxState> state_names(int group) const override;
  std::vector<std::pair<const char*, double*>> numbers(int group) override;
  void check_numbers(int group) const override;
  std::vector<SGDOptions> options_;
};

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool amsgrad = false, maximize = false;
  Rounding rounding = Rounding::nearest;
};
// m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
// p -= lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps). Kingma & Ba, 2015. weight_decay is added to g.
class LEVIN_API Adam : public Optimizer {
 public:
  explicit Adam(Parameters parameters, AdamOptions options = {});
  void add_group(Parameters parameters, AdamOptions options);
  std::optional<double> momentum(int group) const override;
  void set_momentum(int group, double value) override;
  const char* name() const override { return "adam"; }
  bool reads_device_numbers() const override { return true; }

 protected:
  enum class Decay : bool { coupled, decoupled };
  Adam(Parameters parameters, AdamOptions options, Decay decay);

 private:
  void update(int group, const float* found_inf) override;
  std::array<const char*, kMaxState> state_names(int group) const override;
  std::vector<std::pair<const char*, double*>> numbers(int group) override;
  void check_numbers(int group) const override;
  std::vector<AdamOptions> options_;
  Decay decay_ = Decay::coupled;
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 1e-2;
  bool amsgrad = false, maximize = false;
  Rounding rounding = Rounding::nearest;
};
// Adam whose weight decay shrinks p by lr weight_decay instead of joining g. Loshchilov & Hutter, 2019.
class LEVIN_API AdamW final : public Adam {
 public:
  explicit AdamW(Parameters parameters, AdamWOptions options = {});
  void add_group(Parameters parameters, AdamWOptions options);
  const char* name() const override { return "adamw"; }
};

struct RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0;
  bool centered = false, maximize = false;
  Rounding rounding = Rounding::nearest;
};
// v = alpha v + (1 - alpha) g^2;  p -= lr g / (sqrt(v) + eps); centered subtracts the squared mean from v.
class LEVIN_API RMSprop final : public Optimizer {
 public:
  explicit RMSprop(Parameters parameters, RMSpropOptions options = {});
  void add_group(Parameters parameters, RMSpropOptions options);
  std::optional<double> momentum(int group) const override;
  void set_momentum(int group, double value) override;
  const char* name() const override { return "rmsprop"; }
  bool reads_device_numbers() const override { return true; }

 private:
  void update(int group, const float* found_inf) override;
  std::array<const char*, kMaxState> state_names(int group) const override;
  std::vector<std::pair<const char*, double*>> numbers(int group) override;
  void check_numbers(int group) const override;
  std::vector<RMSpropOptions> options_;
};

struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0, weight_decay = 0, initial_accumulator_value = 0, eps = 1e-10;
  bool maximize = false;
  Rounding rounding = Rounding::nearest;
};
// s += g^2;  p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps). Duchi et al., 2011.
class LEVIN_API Adagrad final : public Optimizer {
 public:
  explicit Adagrad(Parameters parameters, AdagradOptions options = {});
  void add_group(Parameters parameters, AdagradOptions options);
  const char* name() const override { return "adagrad"; }
  bool reads_device_numbers() const override { return true; }

 private:
  void update(int group, const float* found_inf) override;
  std::array<const char*, kMaxState> state_names(int group) const override;
  double initial_state(int group, int which) const override;
  std::vector<std::pair<const char*, double*>> numbers(int group) override;
  void check_numbers(int group) const override;
  std::vector<AdagradOptions> options_;
};

enum class LineSearch : std::uint8_t { none, strong_wolfe };
struct LBFGSOptions {
  double lr = 1;
  int max_iter = 20;
  int max_eval = 0;  // 0: max_iter * 5 / 4
  double tolerance_grad = 1e-7, tolerance_change = 1e-9;
  int history_size = 100;
  LineSearch line_search = LineSearch::none;
};
// Limited-memory BFGS, one group. step() without a closure throws StateError.
// Nocedal & Wright, "Numerical Optimization", 7.2.
class LEVIN_API LBFGS final : public Optimizer {
 public:
  explicit LBFGS(Parameters parameters, LBFGSOptions options = {});
  ~LBFGS() override;
  using Optimizer::step;
  Tensor step(const Function<Tensor()>& closure) override;  // returns the first loss
  const char* name() const override { return "lbfgs"; }

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

// Divides all gradients by `divisor`, one f64 element on their device, where nothing waits: they are multiplied by 1 / divisor,
// formed in double, and rounded once. Throws ShapeError, DeviceError.
LEVIN_API void divide_gradients_(const Parameters& parameters, const Tensor& divisor);

// Scales all gradients by min(1, max_norm / (norm + 1e-6)), norm being the p-norm of all of them together; returns it,
// a f64 scalar on the gradients' device (without gradients 0 on cpu); on a device nothing waits unless ErrorIfNonfinite
// asks. ErrorIfNonfinite::yes throws StateError before anything is scaled. All
// three functions throw ConfigError for a limit below 0 (or p not above 0). 16-bit gradients are summed and scaled in f32 or
// wider and rounded once.
enum class ErrorIfNonfinite : bool { no, yes };
LEVIN_API Tensor clip_grad_norm_(const Parameters& parameters, double max_norm, double p = 2,
                                 ErrorIfNonfinite check = ErrorIfNonfinite::no);
// The scaling alone, with a norm that is known: what clip_grad_norm_ returned, or GradScaler::grad_norm. Throws
// ShapeError, DeviceError for another norm than one f64 element on the gradients' device.
LEVIN_API void clip_grads_with_norm_(const Parameters& parameters, double max_norm, const Tensor& total_norm);
// Clamps every gradient element to [-limit, limit].
LEVIN_API void clip_grad_value_(const Parameters& parameters, double limit);

}  // namespace levin::optim
