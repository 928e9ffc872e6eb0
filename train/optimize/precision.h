// The precision of a run: the modes of TrainerOptions::precision, or a PrecisionPlugin of the user.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "levin/autograd.h"
#include "levin/train.h"

namespace levin::train {

// Checks the 16-bit dtype `lower` of a precision on a device of this compute capability. Throws UnsupportedError for
// f16 without hardware. Warns of bf16 without hardware, which is emulated.
void check_hardware(const std::string& precision, DType lower, Device device, int capability);

// Note [Precisions]
// name         parameters                     compute         loss scale
// 32-true      f32                            f32             no
// 64-true      f64, floating inputs too       f64             no
// 16-mixed     f32                            autocast f16    yes
// bf16-mixed   f32                            autocast bf16   no
// 16-true      f16, floating inputs too       f16             no
// bf16-true    bf16, floating inputs too      bf16            no
// 16-o2        f16, batch norms f32, inputs   autocast f16    yes, at most 2^24; the optimizer has f32 masters
//              f16, outputs f32
// Names are read without regard to case. In 16-o2 autocast makes losses and norms f32, while products meet 16-bit
// parameters, cast nothing and return 16 bits. The outputs that become f32 are those of training_step and predict_step;
// inside of a step a module's result has the dtype of its last op.
// Source: Micikevicius et al., "Mixed Precision Training", 2018; Apex' levels O0 to O3.
// Each mode is a PrecisionPlugin; so the run knows plug-ins alone.
class Precision {
 public:
  // Throws ConfigError for an unknown name or combination, and for a plug-in beside an option that says the same.
  explicit Precision(const TrainerOptions& options);
  // Converts the module, before optimizers are made. A second call changes nothing. f16 under autocast needs a device
  // that launches kernels: for a module on the cpu 16-mixed becomes bf16-mixed, with a warning, until the next call.
  // Throws and warns as check_hardware.
  void convert(nn::Module* tree, Device device);
  // The result of convert(). A caller that converts another module in between restores it by set_mixed.
  struct Mixed {
    std::string name;
    std::optional<DType> autocast;  // of steps and evaluations; nullopt: off. Of the built-in modes
    bool scales = false;
  };
  [[nodiscard]] const Mixed& mixed() const { return now_; }
  void set_mixed(Mixed before);
  // Whether steps under a built-in mode's autocast cast their parameters together (CastPlan), so that all gradients are
  // complete at the end of backward. false forgets the parameters.
  void cast_together(bool on);
  // Prepares the optimizer, and makes the scaler if there is none. Throws ConfigError for an optimizer that the
  // precision does not allow.
  void adopt(optim::Optimizer& optimizer);

  [[nodiscard]] const std::string& name() const { return now_.name; }
  // Moves a batch to the device and converts its fields.
  void inputs(Batch& batch, Device device) const;
  // Converts an output of a step, without recording.
  [[nodiscard]] Tensor output(Tensor t) const {
    const NoGrad off;
    return plugin_->convert_output(std::move(t));
  }
  // What backward differentiates, before the loss scale.
  [[nodiscard]] Tensor objective(Tensor loss) const { return plugin_->pre_backward(std::move(loss)); }
  void before_step(optim::Optimizer& optimizer) const;
  void after_step(optim::Optimizer& optimizer) const;
  // Runs a step or an evaluation.
  template <class F>
  auto run(F&& f) const {
    using Result = std::invoke_result_t<F&>;
    if constexpr (std::is_void_v<Result>) {
      bool ran = false;
      plugin_->forward_context([&] {
        f();
        ran = true;
      });
      check_ran(ran);
    } else {
      std::optional<Result> result;
      plugin_->forward_context([&] { result.emplace(f()); });
      check_ran(result.has_value());
      return std::move(*result);
    }
  }

  [[nodiscard]] optim::GradScaler* scaler() { return now_.scales && scaler_ ? &*scaler_ : nullptr; }
  [[nodiscard]] const optim::GradScaler* scaler() const { return now_.scales && scaler_ ? &*scaler_ : nullptr; }
  // Of the user; null: a mode of TrainerOptions::precision, which has no state of its own.
  [[nodiscard]] PrecisionPlugin* plugin() const { return mode_ ? nullptr : plugin_.get(); }

 private:
  class BuiltIn;
  void check_ran(bool ran) const;
  std::shared_ptr<BuiltIn> mode_;  // null: a plug-in of the user
  std::shared_ptr<PrecisionPlugin> plugin_;
  Mixed now_;
  std::optional<optim::GradScalerOptions> scaling_;  // as asked for last
  std::optional<optim::GradScaler> scaler_;
};

}  // namespace levin::train
