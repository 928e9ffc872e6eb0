// What TrainerOptions::precision means for a run: dtypes of parameters and inputs, autocast, and the loss scale.
#pragma once

#include <optional>
#include <string>

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
class Precision {
 public:
  // Throws ConfigError for an unknown name or combination.
  explicit Precision(const TrainerOptions& options);
  // Converts the module, before optimizers are made. A second call changes nothing. f16 under autocast needs a device
  // that launches kernels: for a module on the cpu 16-mixed becomes bf16-mixed, with a warning, until the next call.
  // Throws and warns as check_hardware.
  void convert(nn::Module* tree, Device device);
  // The result of convert(). A caller that converts another module in between restores it by set_mixed.
  struct Mixed {
    std::string name;
    std::optional<DType> autocast;  // of steps and evaluations; nullopt: off
    bool scales = false;
  };
  [[nodiscard]] const Mixed& mixed() const { return now_; }
  void set_mixed(Mixed before) { now_ = std::move(before); }
  // Gives the optimizer masters, and makes the scaler if there is none. Throws ConfigError for an optimizer that the
  // precision does not allow.
  void adopt(optim::Optimizer& optimizer);

  [[nodiscard]] const std::string& name() const { return now_.name; }
  // Moves a batch to the device and converts its floating fields to the precision's dtype.
  void inputs(Batch& batch, Device device) const;
  // Converts an output of a step: f16 becomes f32 in 16-o2.
  [[nodiscard]] Tensor output(Tensor t) const { return masters_ && t.dtype() == DType::f16 ? t.to(DType::f32) : t; }
  // Runs a step or an evaluation under autocast, if this precision has it.
  template <class F>
  auto run(F&& f) const {
    if (!now_.autocast) return f();
    const Autocast on(*now_.autocast);
    return f();
  }

  [[nodiscard]] optim::GradScaler* scaler() { return now_.scales && scaler_ ? &*scaler_ : nullptr; }
  [[nodiscard]] const optim::GradScaler* scaler() const { return now_.scales && scaler_ ? &*scaler_ : nullptr; }

 private:
  Mixed asked_, now_;                         // by the options; for the current module
  std::optional<DType> parameters_, inputs_;  // nullopt: not converted
  bool masters_ = false;
  optim::GradScalerOptions scaler_options_;
  std::optional<optim::GradScaler> scaler_;
};

}  // namespace levin::train
