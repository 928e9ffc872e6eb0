#include "optim/options.h"
#include "optim/updates.h"

namespace levin::optim {
namespace {

void check_beta(const char* op, const char* which, double beta) {
  if (!(beta >= 0 && beta < 1)) fail<ConfigError>(op, ": ", which, " is ", beta, ", expected at least 0 and below 1");
}
void check(const char* op, const AdamOptions& o) {
  check_beta(op, "beta1", o.beta1);
  check_beta(op, "beta2", o.beta2);
  check_not_negative(op, "eps", o.eps);
  check_not_negative(op, "weight_decay", o.weight_decay);
}

AdamOptions as_adam(const AdamWOptions& o) {
  return {.lr = o.lr,
          .beta1 = o.beta1,
          .beta2 = o.beta2,
          .eps = o.eps,
          .weight_decay = o.weight_decay,
          .amsgrad = o.amsgrad,
          .maximize = o.maximize,
          .rounding = o.rounding};
}

}  // namespace

Adam::Adam(Parameters parameters, AdamOptions options) : Adam(std::move(parameters), options, Decay::coupled) {}
Adam::Adam(Parameters parameters, AdamOptions options, Decay decay) : decay_(decay) {
  Adam::add_group(std::move(parameters), options);
}

void Adam::add_group(Parameters parameters, AdamOptions options) {
  // Not name(): while Adam is constructed, an AdamW is none yet.
  const char* const optimizer = decay_ == Decay::decoupled ? "adamw" : "adam";
  check(optimizer, options);
  add(optimizer, std::move(parameters), options.lr, options.rounding);
  options_.push_back(options);
}

void Adam::update(int g, const float* found_inf) {
  const AdamOptions& o = options_[static_cast<std::size_t>(g)];
  Updates::run(*this, g,
               kernels::AdamRule{&groups_[static_cast<std::size_t>(g)].lr, o.beta1, o.beta2, o.eps, o.weight_decay,
                                 decay_ == Decay::decoupled, o.amsgrad, o.maximize},
               decay_ == Decay::decoupled ? "adamw_step" : "adam_step", found_inf);
}

std::optional<double> Adam::momentum(int group) const {
  (void)group_at(group);
  return options_[static_cast<std::size_t>(group)].beta1;
}
void Adam::set_momentum(int group, double value) {
  (void)group_at(group);
  check_beta(name(), "beta1", value);
  options_[static_cast<std::size_t>(group)].beta1 = value;
}

std::array<const char*, Optimizer::kMaxState> Adam::state_names(int group) const {
  return {"exp_avg", "exp_avg_sq", options_[static_cast<std::size_t>(group)].amsgrad ? "max_exp_avg_sq" : nullptr};
}

std::vector<std::pair<const char*, double*>> Adam::numbers(int group) {
  AdamOptions& o = options_[static_cast<std::size_t>(group)];
  return {{"beta1", &o.beta1}, {"beta2", &o.beta2}, {"eps", &o.eps}, {"weight_decay", &o.weight_decay}};
}

void Adam::check_numbers(int group) const { check(name(), options_[static_cast<std::size_t>(group)]); }

AdamW::AdamW(Parameters parameters, AdamWOptions options)
    : Adam(std::move(parameters), as_adam(options), Decay::decoupled) {}
void AdamW::add_group(Parameters parameters, AdamWOptions options) {
  Adam::add_group(std::move(parameters), as_adam(options));
}

}  // namespace levin::optim
