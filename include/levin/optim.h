// Optimizers, gradient clipping, learning-rate schedules. An optimizer is given references to parameters and knows no
// module.
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

// The base of all. A parameter without a gradient is left as it is. Parameters are f32 or f64, dense, each belongs to
// one group and a group to one device (cpu, or cuda and simt except for LBFGS); anything else, or an option out of
// range, is a ConfigError when the group is added.
class LEVIN_API Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // One update of every parameter from its gradient. Throws StateError when a parameter was converted (dtype, device)
  // since its last update.
  virtual void step() = 0;
  // Optimizers that evaluate the loss several times (LBFGS) call `closure`, which clears gradients, computes the loss,
  // runs backward and returns the loss; the others call it once and then step().
  virtual Tensor step(const Function<Tensor()>& closure);
  void zero_grad();  // gradients become undefined
  // For a step recorded in a Graph: writes numbers that changed since (lr, momentum) to the device, where replays read
  // them. Call it before each replay. step() does it itself.
  void prepare_replay();

  [[nodiscard]] int groups() const { return static_cast<int>(groups_.size()); }
  [[nodiscard]] const Parameters& parameters(int group) const { return group_at(group).parameters; }
  [[nodiscard]] std::vector<ParamRef> parameters() const;  // of all groups, in order
  [[nodiscard]] double lr(int group = 0) const { return group_at(group).lr; }
  void set_lr(int group, double lr);  // throws ConfigError below 0
  // SGD's and RMSprop's momentum, Adam's beta1: what one-cycle schedules move. Empty where there is none; setting it
  // there, or out of range, is a ConfigError. A group that is not there is an IndexError, as for lr.
  [[nodiscard]] virtual std::optional<double> momentum(int group) const;
  virtual void set_momentum(int group, double value);

  // Everything that the next step depends on besides parameters and gradients: state tensors by parameter name, step
  // counts, and each group's numbers. Loading checks names, shapes, dtypes and the numbers' ranges first (ConfigError)
  // and copies bit for bit.
  [[nodiscard]] NamedTensors state_dict() const;
  void load_state_dict(const NamedTensors& state);
  [[nodiscard]] virtual const char* name() const = 0;  // "sgd", "adamw"

 protected:
  static constexpr int kMaxState = 3;
  struct State {  // of one parameter; undefined tensors until its first update
    std::array<Tensor, kMaxState> tensors;
    std::int64_t step = 0;
  };
  struct Group {
    Parameters parameters;
    std::vector<State> state;
    double lr = 0;
    std::optional<double> initial_lr;  // set by the first schedule: later ones start from it too
    // On a device that launches kernels: the parameters' step counts (State::step only says that there are some), {lr,
    // momentum}, and what was last written there.
    Tensor steps, numbers;
    std::array<double, 2> written{};
  };
  friend class Scheduler;
  friend struct Updates;
  Optimizer() = default;
  // For messages it is told its optimizer's name: constructors call it, and name() is pure until they are done.
  void add(const char* optimizer, Parameters parameters, double lr);
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
};

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;
};
// b = momentum b + (1 - dampening) g;  p -= lr b, or lr (g + momentum b) with nesterov. g includes weight_decay p.
class LEVIN_API SGD final : public Optimizer {
 public:
  explicit SGD(Parameters parameters, SGDOptions options = {});
  void add_group(Parameters parameters, SGDOptions options);
  using Optimizer::step;
  void step() override;
  std::optional<double> momentum(int group) const override;
  void set_momentum(int group, double value) override;
  const char* name() const override { return "sgd"; }

 private:
  std::array<const char*, kMaxState> state_names(int group) const override;
  std::vector<std::pair<const char*, double*>> numbers(int group) override;
  void check_numbers(int group) const override;
  std::vector<SGDOptions> options_;
};

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool amsgrad = false, maximize = false;
};
// m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
// p -= lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps). Kingma & Ba, 2015. weight_decay is added to g.
class LEVIN_API Adam : public Optimizer {
 public:
  explicit Adam(Parameters parameters, AdamOptions options = {});
  void add_group(Parameters parameters, AdamOptions options);
  using Optimizer::step;
  void step() override;
  std::optional<double> momentum(int group) const override;
  void set_momentum(int group, double value) override;
  const char* name() const override { return "adam"; }

 protected:
  enum class Decay : bool { coupled, decoupled };
  Adam(Parameters parameters, AdamOptions options, Decay decay);

 private:
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
};
// v = alpha v + (1 - alpha) g^2;  p -= lr g / (sqrt(v) + eps); centered subtracts the squared mean from v.
class LEVIN_API RMSprop final : public Optimizer {
 public:
  explicit RMSprop(Parameters parameters, RMSpropOptions options = {});
  void add_group(Parameters parameters, RMSpropOptions options);
  using Optimizer::step;
  void step() override;
  std::optional<double> momentum(int group) const override;
  void set_momentum(int group, double value) override;
  const char* name() const override { return "rmsprop"; }

 private:
  std::array<const char*, kMaxState> state_names(int group) const override;
  std::vector<std::pair<const char*, double*>> numbers(int group) override;
  void check_numbers(int group) const override;
  std::vector<RMSpropOptions> options_;
};

struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0, weight_decay = 0, initial_accumulator_value = 0, eps = 1e-10;
  bool maximize = false;
};
// s += g^2;  p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps). Duchi et al., 2011.
class LEVIN_API Adagrad final : public Optimizer {
 public:
  explicit Adagrad(Parameters parameters, AdagradOptions options = {});
  void add_group(Parameters parameters, AdagradOptions options);
  using Optimizer::step;
  void step() override;
  const char* name() const override { return "adagrad"; }

 private:
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
  void step() override;
  Tensor step(const Function<Tensor()>& closure) override;  // returns the first loss
  const char* name() const override { return "lbfgs"; }

 private:
  struct Memory;
  std::array<const char*, kMaxState> state_names(int group) const override;
  NamedTensors extra_state() const override;
  void load_extra_state(const NamedTensors& state) override;
  LBFGSOptions options_;
  std::unique_ptr<Memory> memory_;
};

// Scales all gradients by min(1, max_norm / (norm + 1e-6)), norm being the p-norm of all of them together; returns it,
// a f64 scalar on the gradients' device (without gradients 0 on cpu); on a device nothing waits unless ErrorIfNonfinite
// asks. ErrorIfNonfinite::yes throws StateError before anything is scaled. Both
// functions throw ConfigError for a limit below 0 (or p not above 0), UnsupportedError for gradients other than f32 and
// f64.
enum class ErrorIfNonfinite : bool { no, yes };
LEVIN_API Tensor clip_grad_norm_(const Parameters& parameters, double max_norm, double p = 2,
                                 ErrorIfNonfinite check = ErrorIfNonfinite::no);
// Clamps every gradient element to [-limit, limit].
LEVIN_API void clip_grad_value_(const Parameters& parameters, double limit);

// ---- Schedules. Each sets every group's lr from the lr the group had when the schedule was made ("base"), as a
// function of t, the number of step() calls so far (0 at construction). Formulas are PyTorch's closed forms.
// Constructors throw ConfigError for numbers out of range.
class LEVIN_API Scheduler {
 public:
  virtual ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;
  virtual void step();               // t += 1, then the groups' lr
  virtual void step(double metric);  // plateau schedules look at the metric; the others ignore it
  [[nodiscard]] virtual bool needs_metric() const { return false; }
  [[nodiscard]] std::int64_t steps() const { return t_; }
  [[nodiscard]] double last_lr(int group = 0) const;
  [[nodiscard]] Optimizer& optimizer() const { return *optimizer_; }
  [[nodiscard]] virtual NamedTensors state_dict() const;
  virtual void load_state_dict(const NamedTensors& state);  // throws ConfigError on another set of names
  [[nodiscard]] virtual double lr_at(int group, std::int64_t t) const = 0;

 protected:
  explicit Scheduler(Optimizer& optimizer);
  void apply();  // sets the groups' lr for t
  [[nodiscard]] double base(int group) const { return base_[static_cast<std::size_t>(group)]; }
  Optimizer* optimizer_;
  std::vector<double> base_;
  std::int64_t t_ = 0;
};

// base * gamma^floor(t / step_size)
class LEVIN_API StepLR final : public Scheduler {
 public:
  StepLR(Optimizer& optimizer, std::int64_t step_size, double gamma = 0.1);
  double lr_at(int group, std::int64_t t) const override;

 private:
  std::int64_t step_size_;
  double gamma_;
};
// base * gamma^(milestones <= t)
class LEVIN_API MultiStepLR final : public Scheduler {
 public:
  MultiStepLR(Optimizer& optimizer, std::vector<std::int64_t> milestones, double gamma = 0.1);
  double lr_at(int group, std::int64_t t) const override;

 private:
  std::vector<std::int64_t> milestones_;
  double gamma_;
};
// base * gamma^t
class LEVIN_API ExponentialLR final : public Scheduler {
 public:
  ExponentialLR(Optimizer& optimizer, double gamma);
  double lr_at(int group, std::int64_t t) const override;

 private:
  double gamma_;
};
// eta_min + (base - eta_min) (1 + cos(pi t / t_max)) / 2. Loshchilov & Hutter, SGDR, 2017, without restarts.
class LEVIN_API CosineAnnealingLR final : public Scheduler {
 public:
  CosineAnnealingLR(Optimizer& optimizer, std::int64_t t_max, double eta_min = 0);
  double lr_at(int group, std::int64_t t) const override;

 private:
  std::int64_t t_max_;
  double eta_min_;
};
// The same, started again after t_0 steps, then t_0 t_mult, t_0 t_mult^2, ...
class LEVIN_API CosineAnnealingWarmRestarts final : public Scheduler {
 public:
  CosineAnnealingWarmRestarts(Optimizer& optimizer, std::int64_t t_0, std::int64_t t_mult = 1, double eta_min = 0);
  double lr_at(int group, std::int64_t t) const override;

 private:
  std::int64_t t_0_, t_mult_;
  double eta_min_;
};
// base * (start + (end - start) min(t, total_iters) / total_iters): a linear warm-up.
class LEVIN_API LinearLR final : public Scheduler {
 public:
  LinearLR(Optimizer& optimizer, double start_factor, double end_factor, std::int64_t total_iters);
  double lr_at(int group, std::int64_t t) const override;

 private:
  double start_, end_;
  std::int64_t total_;
};
// base * (1 - min(t, total_iters) / total_iters)^power
class LEVIN_API PolynomialLR final : public Scheduler {
 public:
  PolynomialLR(Optimizer& optimizer, std::int64_t total_iters, double power = 1);
  double lr_at(int group, std::int64_t t) const override;

 private:
  std::int64_t total_;
  double power_;
};
// base * factor(t)
class LEVIN_API LambdaLR final : public Scheduler {
 public:
  LambdaLR(Optimizer& optimizer, Function<double(std::int64_t t)> factor);
  double lr_at(int group, std::int64_t t) const override;

 private:
  Function<double(std::int64_t)> factor_;
};
enum class Anneal : std::uint8_t { cosine, linear };
struct OneCycleOptions {
  double max_lr;
  std::int64_t total_steps;
  double pct_start = 0.3;
  Anneal anneal = Anneal::cosine;
  bool cycle_momentum = true;
  double base_momentum = 0.85, max_momentum = 0.95;
  double div_factor = 25, final_div_factor = 1e4;
};
// Up from max_lr / div_factor to max_lr, then down to that start / final_div_factor; momentum the other way round.
// Smith & Topin, "Super-Convergence", 2018. Throws StateError past total_steps.
class LEVIN_API OneCycleLR final : public Scheduler {
 public:
  OneCycleLR(Optimizer& optimizer, OneCycleOptions options);
  using Scheduler::step;
  void step() override;
  double lr_at(int group, std::int64_t t) const override;
  [[nodiscard]] double momentum_at(std::int64_t t) const;
  [[nodiscard]] bool cycles_momentum() const { return options_.cycle_momentum; }

 private:
  [[nodiscard]] double between(double start, double peak, double end, std::int64_t t) const;
  void apply_momentum();
  OneCycleOptions options_;
};
enum class PlateauMode : std::uint8_t { min, max };
enum class ThresholdMode : std::uint8_t { rel, abs };
struct PlateauOptions {
  PlateauMode mode = PlateauMode::min;
  double factor = 0.1;
  int patience = 10;
  double threshold = 1e-4;
  ThresholdMode threshold_mode = ThresholdMode::rel;
  int cooldown = 0;
  double min_lr = 0, eps = 1e-8;
};
// lr *= factor after more than `patience` calls of step(metric) without improvement. step() without a metric
// throws StateError.
class LEVIN_API ReduceLROnPlateau final : public Scheduler {
 public:
  explicit ReduceLROnPlateau(Optimizer& optimizer, PlateauOptions options = {});
  void step() override;
  void step(double metric) override;
  bool needs_metric() const override { return true; }
  double lr_at(int group, std::int64_t t) const override;
  NamedTensors state_dict() const override;
  void load_state_dict(const NamedTensors& state) override;

 private:
  PlateauOptions options_;
  double best_;
  std::int64_t bad_ = 0, cooling_ = 0;
};
// The k-th schedule from step milestones[k - 1] on, each counting its own t from there. All must belong to the
// optimizer; one that needs a metric or moves the momentum is a ConfigError.
class LEVIN_API SequentialLR final : public Scheduler {
 public:
  SequentialLR(Optimizer& optimizer, std::vector<std::unique_ptr<Scheduler>> schedules,
               std::vector<std::int64_t> milestones);
  double lr_at(int group, std::int64_t t) const override;

 private:
  std::vector<std::unique_ptr<Scheduler>> schedules_;
  std::vector<std::int64_t> milestones_;
};

}  // namespace levin::optim
