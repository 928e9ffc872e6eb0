// Learning-rate schedules.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "levin/function.h"
#include "levin/optim/optimizer.h"
#include "levin/serialize.h"

namespace levin::optim {

// Sets each group's lr as a function of t, the number of step() calls so far, from "base": the lr that the group had
// when its first schedule was made. Formulas are PyTorch's closed forms. Constructors throw ConfigError for
// numbers out of range; all but SwaLr's and ReduceLROnPlateau's set the lr for t = 0. The optimizer must outlive its
// schedules.
//
// Of two schedules on one optimizer the one that steps last decides, because each forms the lr from base alone. Those
// of ChainedScheduler multiply.
class LEVIN_API Scheduler {
 public:
  virtual ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;
  virtual void step();               // t += 1, then the groups' lr
  virtual void step(double metric);  // for plateau schedules; the others ignore the metric
  [[nodiscard]] virtual bool needs_metric() const { return false; }
  [[nodiscard]] std::int64_t steps() const { return t_; }
  [[nodiscard]] double last_lr(int group = 0) const;  // of the optimizer; throws IndexError for an unknown group
  [[nodiscard]] Optimizer& optimizer() const { return *optimizer_; }
  [[nodiscard]] virtual NamedTensors state_dict() const;
  virtual void load_state_dict(const NamedTensors& state);  // throws ConfigError on another set of names
  // The lr after t steps. Throws IndexError for a group that the optimizer did not have when the schedule was made.
  [[nodiscard]] virtual double lr_at(int group, std::int64_t t) const = 0;
  [[nodiscard]] virtual bool cycles_momentum() const { return false; }  // whether step() moves the momentum, too

 protected:
  explicit Scheduler(Optimizer& optimizer);
  void apply();                                  // sets the groups' lr for t
  [[nodiscard]] double base(int group) const;    // throws IndexError
  void set_base_of_later(int group, double lr);  // of schedules made after this call
  // Throws ConfigError for a part that is null, belongs to another optimizer, needs a metric or moves the momentum.
  void check_part(const char* who, const Scheduler* part) const;
  // What `part` makes of its base: lr_at / base, 0 for a base of 0.
  [[nodiscard]] static double factor_at(const Scheduler& part, int group, std::int64_t t);
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
// CosineAnnealingLR with t_max = t_0, started again after t_0 steps, then after t_0 t_mult, t_0 t_mult^2, ...
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
  explicit LinearLR(Optimizer& optimizer, double start_factor = 1.0 / 3, double end_factor = 1,
                    std::int64_t total_iters = 5);
  double lr_at(int group, std::int64_t t) const override;

 private:
  double start_, end_;
  std::int64_t total_;
};
// base * factor for the first total_iters steps, then base
class LEVIN_API ConstantLR final : public Scheduler {
 public:
  explicit ConstantLR(Optimizer& optimizer, double factor = 1.0 / 3, std::int64_t total_iters = 5);
  double lr_at(int group, std::int64_t t) const override;

 private:
  double factor_;
  std::int64_t total_;
};
// base * (1 - min(t, total_iters) / total_iters)^power
class LEVIN_API PolynomialLR final : public Scheduler {
 public:
  explicit PolynomialLR(Optimizer& optimizer, std::int64_t total_iters = 5, double power = 1);
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
// base * factor(1) factor(2) ... factor(t). `factor` is a function of its argument alone: a resumed schedule calls it
// again for every step so far.
class LEVIN_API MultiplicativeLR final : public Scheduler {
 public:
  MultiplicativeLR(Optimizer& optimizer, Function<double(std::int64_t t)> factor);
  double lr_at(int group, std::int64_t t) const override;

 private:
  Function<double(std::int64_t)> factor_;
  // The product of the first `known_` factors.
  mutable double product_ = 1;
  mutable std::int64_t known_ = 0;
};
enum class CyclicMode : std::uint8_t {
  triangular,   // each cycle goes up to max_lr
  triangular2,  // each goes half as far above base_lr as the one before
  exp_range,    // step t goes gamma^t as far
};
enum class ScaleMode : std::uint8_t { cycle, iterations };  // what scale_fn gets: the cycle from 1 on, or t
struct CyclicOptions {
  double base_lr, max_lr;
  std::int64_t step_size_up = 2000;
  std::int64_t step_size_down = 0;  // 0: as many as up
  CyclicMode mode = CyclicMode::triangular;
  double gamma = 1;
  Function<double(double)> scale_fn{};  // in place of the mode's: 1, 2^(1 - cycle) or gamma^t
  ScaleMode scale_mode = ScaleMode::cycle;
  bool cycle_momentum = true;  // ConfigError for an optimizer without momentum
  double base_momentum = 0.8, max_momentum = 0.9;
};
// base_lr + (max_lr - base_lr) h s for all groups: h goes from 0 to 1 in step_size_up steps, back in step_size_down,
// and again; s is the scale of the mode. The momentum is max_momentum - (max_momentum - base_momentum) h s. Smith,
// "Cyclical Learning Rates for Training Neural Networks", 2017.
class LEVIN_API CyclicLR final : public Scheduler {
 public:
  CyclicLR(Optimizer& optimizer, CyclicOptions options);
  using Scheduler::step;
  void step() override;
  double lr_at(int group, std::int64_t t) const override;
  [[nodiscard]] double momentum_at(std::int64_t t) const;
  bool cycles_momentum() const override { return options_.cycle_momentum; }

 private:
  [[nodiscard]] double height(std::int64_t t) const;  // h s
  void apply_momentum();
  CyclicOptions options_;
};
enum class Anneal : std::uint8_t { cosine, linear };
struct OneCycleOptions {
  double max_lr;
  std::int64_t total_steps;
  double pct_start = 0.3;  // the share of the steps that rise, 0 to 1
  Anneal anneal = Anneal::cosine;
  bool cycle_momentum = true;  // ConfigError for an optimizer without momentum
  bool three_phase = false;    // down to start in as many steps as up, then on to the end
  double base_momentum = 0.85, max_momentum = 0.95;
  double div_factor = 25, final_div_factor = 1e4;
};
// From start = max_lr / div_factor up to max_lr, then down to start / final_div_factor; the momentum from max_momentum
// down to base_momentum and up again. Smith & Topin, "Super-Convergence", 2018. step() throws StateError past
// total_steps.
class LEVIN_API OneCycleLR final : public Scheduler {
 public:
  OneCycleLR(Optimizer& optimizer, OneCycleOptions options);
  using Scheduler::step;
  void step() override;
  double lr_at(int group, std::int64_t t) const override;
  [[nodiscard]] double momentum_at(std::int64_t t) const;
  bool cycles_momentum() const override { return options_.cycle_momentum; }

 private:
  [[nodiscard]] double between(double start, double peak, double middle, double end, std::int64_t t) const;
  void apply_momentum();
  OneCycleOptions options_;
};
// lr = swa_lr a + lr0 (1 - a) with a = (1 - cos(pi s)) / 2, or a = s when linear, and s = min(1, t / anneal_epochs):
// from lr0, the group's lr at construction, to swa_lr, and constant from there; swa_lr from the first step on for 0
// epochs. When a group's lr was set since the last step, lr0 becomes the value that leads to it. swa_lr is one number,
// or one for each group, 0 or more; schedules made after the first step have it as base. For the last part of a
// training, whose weights are averaged. Izmailov et al., "Averaging Weights Leads to Wider Optima", 2018.
class LEVIN_API SwaLr final : public Scheduler {
 public:
  SwaLr(Optimizer& optimizer, double swa_lr, std::int64_t anneal_epochs = 10, Anneal anneal = Anneal::cosine);
  SwaLr(Optimizer& optimizer, std::vector<double> swa_lr, std::int64_t anneal_epochs = 10,
        Anneal anneal = Anneal::cosine);
  using Scheduler::step;
  void step() override;
  double lr_at(int group, std::int64_t t) const override;

 private:
  [[nodiscard]] double share(std::int64_t t) const;  // a
  std::vector<double> swa_lr_;
  std::int64_t anneal_epochs_;
  Anneal anneal_;
};
enum class PlateauMode : std::uint8_t { min, max };
enum class ThresholdMode : std::uint8_t { rel, abs };
struct PlateauOptions {
  PlateauMode mode = PlateauMode::min;  // whether a smaller or a larger metric is better
  double factor = 0.1;                  // between 0 and 1
  int patience = 10;                    // calls without improvement that change nothing
  double threshold = 1e-4;              // the least improvement: of best (1 -+ threshold), or best -+ it
  ThresholdMode threshold_mode = ThresholdMode::rel;
  int cooldown = 0;               // calls after a change that do not count
  double min_lr = 0, eps = 1e-8;  // changes of eps or less are not made
};
// lr = max(lr factor, min_lr) after more than `patience` calls of step(metric) without improvement. step() without a
// metric throws StateError.
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
// Schedule k from step milestones[k - 1] on, with its own t counted from there. Milestones ascend, one fewer than
// schedules. Throws ConfigError for a schedule of another optimizer, and for one that needs a metric or moves the
// momentum.
class LEVIN_API SequentialLR final : public Scheduler {
 public:
  SequentialLR(Optimizer& optimizer, std::vector<std::unique_ptr<Scheduler>> schedules,
               std::vector<std::int64_t> milestones);
  double lr_at(int group, std::int64_t t) const override;

 private:
  std::vector<std::unique_ptr<Scheduler>> schedules_;
  std::vector<std::int64_t> milestones_;
};
// Several schedules at once, which multiply: base * product of (lr_at(t) / base) of each. All count their t together.
// Equal to PyTorch's for schedules that multiply base (step, multi-step, exponential, constant, linear, polynomial,
// multiplicative, cosine with eta_min 0 up to its t_max). Others, such as LambdaLR, multiply here as well; PyTorch's
// overwrite what those before them made. A base of 0 stays 0. Throws ConfigError for no schedules and for those that
// SequentialLR refuses.
class LEVIN_API ChainedScheduler final : public Scheduler {
 public:
  ChainedScheduler(Optimizer& optimizer, std::vector<std::unique_ptr<Scheduler>> schedules);
  double lr_at(int group, std::int64_t t) const override;

 private:
  std::vector<std::unique_ptr<Scheduler>> schedules_;
};

}  // namespace levin::optim
