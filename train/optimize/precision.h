// What `precision` means for a run: which dtype parameters and inputs have, whether autocast is on, whether the loss is scaled.
#pragma once

#include <optional>
#include <string>

#include "levin/autograd.h"
#include "levin/train.h"

namespace levin::train {

// Of a precision with a 16-bit dtype on a device of this compute capability: without hardware for f16 an UnsupportedError,
// without it for bf16, which is then emulated, a warning.
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
// Spellings are read without regard to case. Autocast in 16-o2 is what makes losses and norms f32 there; products meet 16-bit
// parameters, cast nothing and give 16-bit results. Its outputs are what training_step and predict_step return: a module is whatever
// can be called, so what it gives inside of a step is as its last op made it.
// Source: Micikevicius et al., "Mixed Precision Training", 2018; Apex' levels O0 to O3.
class Precision {
 public:
  // Throws ConfigError for a name or a combination that is not known.
  explicit Precision(const TrainerOptions& options);
  // Before optimizers are made: the module as this precision wants it. A second call changes nothing. f16 under autocast needs
  // a device that launches kernels: for a module on the cpu 16-mixed is bf16-mixed, with a warning, until it is told of another.
  // 16 bits that the device's hardware has not: see check_hardware.
  void convert(nn::Module* tree, Device device);
  // What that decided, for one who tells it of another module in between.
  struct Mixed {
    std::string name;
    std::optional<DType> autocast;  // of steps and evaluations; none: off
    bool scales = false;
  };
  [[nodiscard]] const Mixed& mixed() const { return now_; }
  void set_mixed(Mixed before) { now_ = std::move(before); }
  // Once the optimizer is there: masters, and the scaler if it has none yet. Throws ConfigError where the two do not fit.
  void adopt(optim::Optimizer& optimizer);

  [[nodiscard]] const std::string& name() const { return now_.name; }
  // A batch for the step: on the device, floating fields in the precision's dtype.
  void inputs(Batch& batch, Device device) const;
  // What a step gave.
  [[nodiscard]] Tensor output(Tensor t) const { return masters_ && t.dtype() == DType::f16 ? t.to(DType::f32) : t; }
  // Runs a step or an evaluation of the user's under autocast, where this precision has it.
  template <class F>
  auto run(F&& f) const {
    if (!now_.autocast) return f();
    const Autocast on(*now_.autocast);
    return f();
  }

  [[nodiscard]] optim::GradScaler* scaler() { return now_.scales && scaler_ ? &*scaler_ : nullptr; }
  [[nodiscard]] const optim::GradScaler* scaler() const { return now_.scales && scaler_ ? &*scaler_ : nullptr; }

 private:
  Mixed asked_, now_;                         // by the options; for the module at hand
  std::optional<DType> parameters_, inputs_;  // unset: as they are
  bool masters_ = false;
  optim::GradScalerOptions scaler_options_;
  std::optional<optim::GradScaler> scaler_;
};

}  // namespace levin::train
