#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "levin/optim.h"
#include "optim/options.h"

namespace levin::optim {
namespace {

double cosine(double from, double to, double share) {
  return to + (from - to) * (1 + std::cos(std::numbers::pi * share)) / 2;
}
const Tensor& state_value(const char* who, const NamedTensors& state, const char* key) {
  for (const auto& [name, value] : state) {
    if (name == key) return value;
  }
  fail<ConfigError>(who, ": state has no ", key, "; it belongs to another schedule");
}

}  // namespace

Scheduler::Scheduler(Optimizer& optimizer) : optimizer_(&optimizer) {
  for (Optimizer::Group& g : optimizer.groups_) {
    if (!g.initial_lr) g.initial_lr = g.lr;
    base_.push_back(*g.initial_lr);
  }
}
Scheduler::~Scheduler() = default;

double Scheduler::base(int group) const {
  if (group < 0 || static_cast<std::size_t>(group) >= base_.size())
    fail<IndexError>("scheduler: group ", group, " is asked for, there are ", base_.size());
  return base_[static_cast<std::size_t>(group)];
}
void Scheduler::apply() {
  for (int g = 0; g < static_cast<int>(base_.size()); ++g) optimizer_->set_lr(g, lr_at(g, t_));
}
void Scheduler::step() {
  ++t_;
  apply();
}
void Scheduler::step(double) { step(); }
double Scheduler::last_lr(int group) const { return optimizer_->lr(group); }

void Scheduler::set_base_of_later(int group, double lr) {
  optimizer_->groups_[static_cast<std::size_t>(group)].initial_lr = lr;
}

NamedTensors Scheduler::state_dict() const {
  return {{"t", tensor({t_}, Device::cpu())},
          {"base", from_data(base_, {static_cast<std::int64_t>(base_.size())}, Device::cpu())}};
}

void Scheduler::load_state_dict(const NamedTensors& state) {
  const NamedTensors own = state_dict();
  for (const auto& [name, value] : state) {
    if (std::ranges::none_of(own, [&](const auto& e) { return e.first == name; }))
      fail<ConfigError>("scheduler: state ", name, " is unknown here; it was saved by another schedule");
  }
  const auto t = state_value("scheduler", state, "t").item<std::int64_t>();
  const std::vector<double> base = state_value("scheduler", state, "base").to_vector<double>();
  if (base.size() != base_.size())
    fail<ConfigError>("scheduler: state has ", base.size(), " groups, expected ", base_.size());
  if (t < 0) fail<ConfigError>("scheduler: state t is ", t, ", expected 0 or more");
  for (const double lr : base) check_finite("scheduler", "the state's base", lr);  // that of SwaLr may be negative
  t_ = t;
  base_ = base;
}

void Scheduler::check_part(const char* who, const Scheduler* part) const {
  if (!part) fail<ConfigError>(who, ": a schedule is null");
  if (part->optimizer_ != optimizer_) fail<ConfigError>(who, ": a schedule belongs to another optimizer");
  if (part->needs_metric()) fail<ConfigError>(who, ": a plateau schedule can not be part of it");
  // Only lr_at of a part is used: the momentum would stay where its cycle began.
  if (part->cycles_momentum())
    fail<ConfigError>(who, ": a schedule moves the momentum, expected the lr only; set cycle_momentum = false");
}
double Scheduler::factor_at(const Scheduler& part, int group, std::int64_t t) {
  const double base = part.base(group);
  return base == 0 ? 0 : part.lr_at(group, t) / base;
}

StepLR::StepLR(Optimizer& optimizer, std::int64_t step_size, double gamma)
    : Scheduler(optimizer), step_size_(step_size), gamma_(gamma) {
  check_at_least("step_lr", "step_size", step_size, 1);
  check_not_negative("step_lr", "gamma", gamma);
  apply();
}
double StepLR::lr_at(int group, std::int64_t t) const {
  return base(group) * std::pow(gamma_, static_cast<double>(t / step_size_));
}

MultiStepLR::MultiStepLR(Optimizer& optimizer, std::vector<std::int64_t> milestones, double gamma)
    : Scheduler(optimizer), milestones_(std::move(milestones)), gamma_(gamma) {
  check_not_negative("multi_step_lr", "gamma", gamma);
  std::sort(milestones_.begin(), milestones_.end());
  apply();
}
double MultiStepLR::lr_at(int group, std::int64_t t) const {
  const auto passed = std::upper_bound(milestones_.begin(), milestones_.end(), t) - milestones_.begin();
  return base(group) * std::pow(gamma_, static_cast<double>(passed));
}

ExponentialLR::ExponentialLR(Optimizer& optimizer, double gamma) : Scheduler(optimizer), gamma_(gamma) {
  check_not_negative("exponential_lr", "gamma", gamma);
  apply();
}
double ExponentialLR::lr_at(int group, std::int64_t t) const {
  return base(group) * std::pow(gamma_, static_cast<double>(t));
}

CosineAnnealingLR::CosineAnnealingLR(Optimizer& optimizer, std::int64_t t_max, double eta_min)
    : Scheduler(optimizer), t_max_(t_max), eta_min_(eta_min) {
  check_at_least("cosine_annealing_lr", "t_max", t_max, 1);
  check_not_negative("cosine_annealing_lr", "eta_min", eta_min);
  apply();
}
double CosineAnnealingLR::lr_at(int group, std::int64_t t) const {
  return cosine(base(group), eta_min_, static_cast<double>(t) / static_cast<double>(t_max_));
}

CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(Optimizer& optimizer, std::int64_t t_0, std::int64_t t_mult,
                                                         double eta_min)
    : Scheduler(optimizer), t_0_(t_0), t_mult_(t_mult), eta_min_(eta_min) {
  check_at_least("cosine_annealing_warm_restarts", "t_0", t_0, 1);
  check_at_least("cosine_annealing_warm_restarts", "t_mult", t_mult, 1);
  check_not_negative("cosine_annealing_warm_restarts", "eta_min", eta_min);
  apply();
}
double CosineAnnealingWarmRestarts::lr_at(int group, std::int64_t t) const {
  std::int64_t length = t_0_;
  if (t_mult_ == 1) {
    t %= t_0_;
  } else {
    while (t >= length) {
      t -= length;
      // A period whose end no count of steps reaches.
      if (__builtin_mul_overflow(length, t_mult_, &length)) length = std::numeric_limits<std::int64_t>::max();
    }
  }
  return cosine(base(group), eta_min_, static_cast<double>(t) / static_cast<double>(length));
}

LinearLR::LinearLR(Optimizer& optimizer, double start_factor, double end_factor, std::int64_t total_iters)
    : Scheduler(optimizer), start_(start_factor), end_(end_factor), total_(total_iters) {
  check_at_least("linear_lr", "total_iters", total_iters, 1);
  check_not_negative("linear_lr", "start_factor", start_);
  check_not_negative("linear_lr", "end_factor", end_);
  apply();
}
double LinearLR::lr_at(int group, std::int64_t t) const {
  return base(group) *
         (start_ + (end_ - start_) * static_cast<double>(std::min(t, total_)) / static_cast<double>(total_));
}

ConstantLR::ConstantLR(Optimizer& optimizer, double factor, std::int64_t total_iters)
    : Scheduler(optimizer), factor_(factor), total_(total_iters) {
  check_at_least("constant_lr", "total_iters", total_iters, 1);
  check_not_negative("constant_lr", "factor", factor);
  apply();
}
double ConstantLR::lr_at(int group, std::int64_t t) const { return base(group) * (t < total_ ? factor_ : 1); }

PolynomialLR::PolynomialLR(Optimizer& optimizer, std::int64_t total_iters, double power)
    : Scheduler(optimizer), total_(total_iters), power_(power) {
  check_at_least("polynomial_lr", "total_iters", total_iters, 1);
  check_not_negative("polynomial_lr", "power", power);
  apply();
}
double PolynomialLR::lr_at(int group, std::int64_t t) const {
  return base(group) * std::pow(1 - static_cast<double>(std::min(t, total_)) / static_cast<double>(total_), power_);
}

LambdaLR::LambdaLR(Optimizer& optimizer, Function<double(std::int64_t)> factor)
    : Scheduler(optimizer), factor_(std::move(factor)) {
  if (!factor_) fail<ConfigError>("lambda_lr: the factor is empty, expected a function of the step");
  apply();
}
double LambdaLR::lr_at(int group, std::int64_t t) const { return base(group) * factor_(t); }

MultiplicativeLR::MultiplicativeLR(Optimizer& optimizer, Function<double(std::int64_t)> factor)
    : Scheduler(optimizer), factor_(std::move(factor)) {
  if (!factor_) fail<ConfigError>("multiplicative_lr: the factor is empty, expected a function of the step");
  apply();
}
double MultiplicativeLR::lr_at(int group, std::int64_t t) const {
  const double lr = base(group);  // the check
  if (t < known_) known_ = 0, product_ = 1;
  for (; known_ < t; ++known_) product_ *= factor_(known_ + 1);
  return lr * product_;
}

CyclicLR::CyclicLR(Optimizer& optimizer, CyclicOptions options) : Scheduler(optimizer), options_(std::move(options)) {
  constexpr const char* who = "cyclic_lr";
  check_not_negative(who, "base_lr", options_.base_lr);
  check_not_negative(who, "max_lr", options_.max_lr);
  check_at_least(who, "step_size_up", options_.step_size_up, 1);
  check_at_least(who, "step_size_down", options_.step_size_down, 0);
  check_not_negative(who, "gamma", options_.gamma);
  if (options_.cycle_momentum) {
    check_not_negative(who, "base_momentum", options_.base_momentum);
    check_not_negative(who, "max_momentum", options_.max_momentum);
    if (!optimizer.momentum(0))
      fail<ConfigError>(who, ": ", optimizer.name(), " has no momentum to cycle; set cycle_momentum = false");
  }
  apply_momentum();
  apply();
}
double CyclicLR::height(std::int64_t t) const {
  const double at = static_cast<double>(t), up = static_cast<double>(options_.step_size_up),
               down = options_.step_size_down > 0 ? static_cast<double>(options_.step_size_down) : up;
  const double ratio = up / (up + down), cycle = std::floor(1 + at / (up + down)), x = 1 + at / (up + down) - cycle;
  const double h = x <= ratio ? x / ratio : (x - 1) / (ratio - 1);
  if (options_.scale_fn) return h * options_.scale_fn(options_.scale_mode == ScaleMode::cycle ? cycle : at);
  switch (options_.mode) {
    case CyclicMode::triangular: break;
    case CyclicMode::triangular2: return h * std::exp2(1 - cycle);
    case CyclicMode::exp_range: return h * std::pow(options_.gamma, at);
  }
  return h;
}
double CyclicLR::lr_at(int group, std::int64_t t) const {
  (void)base(group);  // the check
  return options_.base_lr + (options_.max_lr - options_.base_lr) * height(t);
}
double CyclicLR::momentum_at(std::int64_t t) const {
  return options_.max_momentum - (options_.max_momentum - options_.base_momentum) * height(t);
}
void CyclicLR::apply_momentum() {
  if (!options_.cycle_momentum) return;
  for (int g = 0; g < optimizer_->groups(); ++g) optimizer_->set_momentum(g, momentum_at(t_));
}
void CyclicLR::step() {
  Scheduler::step();
  apply_momentum();
}

OneCycleLR::OneCycleLR(Optimizer& optimizer, OneCycleOptions options) : Scheduler(optimizer), options_(options) {
  check_at_least("one_cycle_lr", "total_steps", options.total_steps, 1);
  if (!(options.pct_start >= 0 && options.pct_start <= 1))
    fail<ConfigError>("one_cycle_lr: pct_start is ", options.pct_start, ", expected 0 to 1");
  check_not_negative("one_cycle_lr", "max_lr", options.max_lr);
  for (const double factor : {options.div_factor, options.final_div_factor})
    check_finite("one_cycle_lr", "a division factor", factor);
  if (options.cycle_momentum) {
    check_not_negative("one_cycle_lr", "base_momentum", options.base_momentum);
    check_not_negative("one_cycle_lr", "max_momentum", options.max_momentum);
  }
  if (!(options.div_factor > 0 && options.final_div_factor > 0))
    fail<ConfigError>("one_cycle_lr: the division factors are ", options.div_factor, " and ", options.final_div_factor,
                      ", expected more than 0");
  if (options.cycle_momentum && !optimizer.momentum(0)) {
    fail<ConfigError>("one_cycle_lr: ", optimizer.name(), " has no momentum to cycle; set cycle_momentum = false");
  }
  apply_momentum();
  apply();
}
double OneCycleLR::between(double start, double peak, double middle, double end, std::int64_t t) const {
  // Phases whose borders are PyTorch's: pct_start * total - 1, 2 pct_start * total - 2 with three, and total - 1.
  const double total = static_cast<double>(options_.total_steps), top = options_.pct_start * total - 1,
               second = options_.three_phase ? 2 * options_.pct_start * total - 2 : total - 1, last = total - 1;
  const double at = static_cast<double>(t);
  // The step() after the last one asks for a further value: the last one.
  const auto part = [&](double from, double to, double begin, double until) {
    const double share = until > begin ? std::min(1.0, (at - begin) / (until - begin)) : 1;
    return options_.anneal == Anneal::cosine ? cosine(from, to, share) : from + (to - from) * share;
  };
  if (at <= top) return part(start, peak, 0, top);
  if (at <= second || second >= last) return part(peak, middle, top, second);
  return part(middle, end, second, last);
}
double OneCycleLR::lr_at(int group, std::int64_t t) const {
  (void)base(group);  // the check
  const double start = options_.max_lr / options_.div_factor, end = start / options_.final_div_factor;
  return between(start, options_.max_lr, options_.three_phase ? start : end, end, t);
}
double OneCycleLR::momentum_at(std::int64_t t) const {
  return between(options_.max_momentum, options_.base_momentum, options_.max_momentum, options_.max_momentum, t);
}
void OneCycleLR::apply_momentum() {
  if (!options_.cycle_momentum) return;
  for (int g = 0; g < optimizer_->groups(); ++g) optimizer_->set_momentum(g, momentum_at(t_));
}
void OneCycleLR::step() {
  if (t_ >= options_.total_steps) {
    fail<StateError>("one_cycle_lr: step ", t_ + 1, " is asked for, total_steps is ", options_.total_steps);
  }
  Scheduler::step();
  apply_momentum();
}

SwaLr::SwaLr(Optimizer& optimizer, double swa_lr, std::int64_t anneal_epochs, Anneal anneal)
    : SwaLr(optimizer, std::vector<double>(static_cast<std::size_t>(optimizer.groups()), swa_lr), anneal_epochs,
            anneal) {}
SwaLr::SwaLr(Optimizer& optimizer, std::vector<double> swa_lr, std::int64_t anneal_epochs, Anneal anneal)
    : Scheduler(optimizer), swa_lr_(std::move(swa_lr)), anneal_epochs_(anneal_epochs), anneal_(anneal) {
  if (swa_lr_.size() != base_.size())
    fail<ConfigError>("swa_lr: ", swa_lr_.size(), " rates are given, expected one, or one for each of ", base_.size(),
                      " groups");
  for (const double lr : swa_lr_) check_not_negative("swa_lr", "the rate", lr);
  check_at_least("swa_lr", "anneal_epochs", anneal_epochs_, 0);
  for (int g = 0; g < optimizer.groups(); ++g) base_[static_cast<std::size_t>(g)] = optimizer.lr(g);
}
double SwaLr::share(std::int64_t t) const {
  if (t >= anneal_epochs_) return t > 0 ? 1 : 0;
  const double s = static_cast<double>(t) / static_cast<double>(anneal_epochs_);
  return anneal_ == Anneal::cosine ? cosine(0, 1, s) : s;
}
double SwaLr::lr_at(int group, std::int64_t t) const {
  const double a = share(t), from = base(group);  // checks the group
  return swa_lr_[static_cast<std::size_t>(group)] * a + from * (1 - a);
}
void SwaLr::step() {
  const double a = share(t_);
  for (int g = 0; g < optimizer_->groups(); ++g) {
    const auto i = static_cast<std::size_t>(g);
    const double now = optimizer_->lr(g);
    set_base_of_later(g, swa_lr_[i]);
    if (a < 1 && now != lr_at(g, t_)) base_[i] = (now - swa_lr_[i] * a) / (1 - a);
  }
  Scheduler::step();
}

ReduceLROnPlateau::ReduceLROnPlateau(Optimizer& optimizer, PlateauOptions options)
    : Scheduler(optimizer),
      options_(options),
      best_(options.mode == PlateauMode::min ? std::numeric_limits<double>::infinity()
                                             : -std::numeric_limits<double>::infinity()) {
  if (!(options.factor > 0 && options.factor < 1))
    fail<ConfigError>("reduce_lr_on_plateau: factor is ", options.factor, ", expected between 0 and 1");
  check_at_least("reduce_lr_on_plateau", "patience", options.patience, 0);
  check_at_least("reduce_lr_on_plateau", "cooldown", options.cooldown, 0);
  check_finite("reduce_lr_on_plateau", "threshold", options.threshold);
  check_not_negative("reduce_lr_on_plateau", "min_lr", options.min_lr);
  check_not_negative("reduce_lr_on_plateau", "eps", options.eps);
}
void ReduceLROnPlateau::step() { fail<StateError>("reduce_lr_on_plateau: step() needs the metric; call step(metric)"); }
double ReduceLROnPlateau::lr_at(int group, std::int64_t) const { return optimizer_->lr(group); }
void ReduceLROnPlateau::step(double metric) {
  ++t_;
  const bool down = options_.mode == PlateauMode::min, relative = options_.threshold_mode == ThresholdMode::rel;
  const double sign = down ? -1 : 1;
  const double bound = relative ? best_ * (1 + sign * options_.threshold) : best_ + sign * options_.threshold;
  if (down ? metric < bound : metric > bound) {
    best_ = metric;
    bad_ = 0;
  } else {
    ++bad_;
  }
  if (cooling_ > 0) {
    --cooling_;
    bad_ = 0;
  }
  if (bad_ <= options_.patience) return;
  for (int g = 0; g < optimizer_->groups(); ++g) {
    const double now = optimizer_->lr(g), next = std::max(now * options_.factor, options_.min_lr);
    if (now - next > options_.eps) optimizer_->set_lr(g, next);
  }
  cooling_ = options_.cooldown;
  bad_ = 0;
}
NamedTensors ReduceLROnPlateau::state_dict() const {
  NamedTensors out = Scheduler::state_dict();
  out.emplace_back("best", tensor({best_}, Device::cpu()));
  out.emplace_back("bad", tensor({bad_}, Device::cpu()));
  out.emplace_back("cooling", tensor({cooling_}, Device::cpu()));
  return out;
}
void ReduceLROnPlateau::load_state_dict(const NamedTensors& state) {
  const double best = state_value("reduce_lr_on_plateau", state, "best").item();
  const auto bad = state_value("reduce_lr_on_plateau", state, "bad").item<std::int64_t>();
  const auto cooling = state_value("reduce_lr_on_plateau", state, "cooling").item<std::int64_t>();
  Scheduler::load_state_dict(state);
  best_ = best;
  bad_ = bad;
  cooling_ = cooling;
}

SequentialLR::SequentialLR(Optimizer& optimizer, std::vector<std::unique_ptr<Scheduler>> schedules,
                           std::vector<std::int64_t> milestones)
    : Scheduler(optimizer), schedules_(std::move(schedules)), milestones_(std::move(milestones)) {
  if (schedules_.empty() || milestones_.size() + 1 != schedules_.size()) {
    fail<ConfigError>("sequential_lr: ", schedules_.size(), " schedules and ", milestones_.size(),
                      " milestones are given, expected one milestone less");
  }
  if (!std::is_sorted(milestones_.begin(), milestones_.end()))
    fail<ConfigError>("sequential_lr: the milestones are not in ascending order");
  if (!milestones_.empty()) check_at_least("sequential_lr", "a milestone", milestones_.front(), 0);
  for (const auto& s : schedules_) check_part("sequential_lr", s.get());
  apply();
}
double SequentialLR::lr_at(int group, std::int64_t t) const {
  const auto k =
      static_cast<std::size_t>(std::upper_bound(milestones_.begin(), milestones_.end(), t) - milestones_.begin());
  return schedules_[k]->lr_at(group, k == 0 ? t : t - milestones_[k - 1]);
}

ChainedScheduler::ChainedScheduler(Optimizer& optimizer, std::vector<std::unique_ptr<Scheduler>> schedules)
    : Scheduler(optimizer), schedules_(std::move(schedules)) {
  if (schedules_.empty()) fail<ConfigError>("chained_scheduler: no schedules are given, expected one or more");
  for (const auto& s : schedules_) check_part("chained_scheduler", s.get());
  apply();
}
double ChainedScheduler::lr_at(int group, std::int64_t t) const {
  double lr = base(group);
  for (const auto& s : schedules_) lr *= factor_at(*s, group, t);
  return lr;
}

}  // namespace levin::optim
