// Clips gradients for gradient_clip_val and TrainModule::clip_gradients. Optimizers::prepare calls it before each
// update, through TrainModule::configure_gradient_clipping. optim/clip.cpp has the arithmetic.
#include <algorithm>
#include <limits>

#include "levin/ops.h"
#include "train/run/run.h"

namespace levin::train {

void Optimizers::clip(optim::Optimizer& of, std::optional<double> value, std::optional<ClipAlgorithm> algorithm) {
  const double told = run_.options.gradient_clip_val.value_or(0);
  if (told > 0 && value && *value != told)
    fail<ConfigError>("clip_gradients: gradient_clip_val is ", *value, " and the trainer was told ", told,
                      "; give it to one of them");
  const double limit = value.value_or(0);
  if (!(limit > 0)) return;
  if (run_.borrowed.manual && scaler())
    unscale_once(of);
  else if (run_.borrowed.manual)
    of.gather_gradients();
  const optim::Parameters parameters = of.parameters();
  if (algorithm.value_or(ClipAlgorithm::norm) == ClipAlgorithm::value)
    return optim::clip_grad_value_(parameters, limit);
  const bool any =
      std::any_of(parameters.begin(), parameters.end(), [](const ParamRef& p) { return has_grad(*p.value); });
  if (!any) return;
  if (!of.pieces().empty()) {
    // No gradient exceeds the largest double, so nothing is scaled.
    const Tensor mine = norm_known_by_ ? norm_known_by_->grad_norm(of)
                                       : optim::clip_grad_norm_(parameters, std::numeric_limits<double>::max());
    Tensor squares = square(mine);
    run_.strategy->merge_squared_norm(squares);
    return optim::clip_grads_with_norm_(parameters, limit, sqrt(squares));
  }
  if (norm_known_by_)
    optim::clip_grads_with_norm_(parameters, limit, norm_known_by_->grad_norm(of));
  else
    optim::clip_grad_norm_(parameters, limit);
}

}  // namespace levin::train
