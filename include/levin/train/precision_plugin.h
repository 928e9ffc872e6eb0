// PrecisionPlugin: in which numbers a run keeps its module and computes.
//
//   struct Rounded final : PrecisionPlugin {  // weights are multiples of 1/64
//     std::string name() const override { return "rounded"; }
//     void after_step(optim::Optimizer& optimizer) override {
//       for (const ParamRef& p : optimizer.model_parameters()) copy_(*p.value, round(*p.value * 64.0) / 64.0);
//     }
//   };
//   Trainer trainer({.plugins = {.precision = std::make_shared<Rounded>()}});
//
// The modes that TrainerOptions::precision names are such plug-ins, too. A step, one optimizer:
//
//   convert_input of each field -> forward_context(training_step) -> convert_output of what is reported
//   -> pre_backward -> backward -> before_step -> on_before_optimizer_step, clipping -> update -> after_step
#pragma once

#include <optional>
#include <string>

#include "levin/device.h"
#include "levin/export.h"
#include "levin/function.h"
#include "levin/nn/module.h"
#include "levin/optim.h"
#include "levin/serialize.h"
#include "levin/tensor.h"

namespace levin {

// By default f32 throughout: nothing is converted. A plug-in serves one Trainer at a time, which calls it by one thread
// at a time. A captured step (TrainerOptions::capture) calls it once and repeats the ops that it issued. With several
// ranks each has a plug-in, of the same name.
class LEVIN_API PrecisionPlugin {
 public:
  PrecisionPlugin() = default;
  virtual ~PrecisionPlugin();
  PrecisionPlugin(const PrecisionPlugin&) = delete;
  PrecisionPlugin& operator=(const PrecisionPlugin&) = delete;

  [[nodiscard]] virtual std::string name() const = 0;  // in errors

  // ---- Before a stage

  // Converts the module, which is on `device`, before configure_optimizers. Called in each stage, so also for a module
  // that is converted already, and for another one that an evaluation gets. Null: the stage has no module.
  virtual void convert_module(nn::Module* module, Device device);
  // The loss scale, asked for when the Trainer is made, and again after convert_module; nothing: none. With one the run
  // multiplies the objective, divides gradients, skips steps whose gradients are not finite, and keeps the scale in
  // checkpoints.
  [[nodiscard]] virtual std::optional<optim::GradScalerOptions> grad_scaler();
  // Prepares an optimizer, for example by Optimizer::use_master_weights. Throws ConfigError for one that does not fit.
  virtual void setup_optimizer(optim::Optimizer& optimizer);

  // ---- A step or an evaluation

  // A defined field of a batch, on the device.
  [[nodiscard]] virtual Tensor convert_input(Tensor field);
  // Calls forward() once: training_step, validation_step, test_step, predict_step, or the function of
  // Trainer::evaluate. The place for guards of this thread, such as Autocast. The threads of the strategies pipeline
  // and dp take over Autocast alone.
  virtual void forward_context(const Function<void()>& forward);
  // What a step returned: its loss and outputs for logs and hooks, and predictions. Recording is off.
  [[nodiscard]] virtual Tensor convert_output(Tensor output);
  // The tensor that backward differentiates, from the loss or its share of a window of accumulation. What it multiplies
  // before_step divides.
  [[nodiscard]] virtual Tensor pre_backward(Tensor loss);
  // Gradients are those of all ranks and batches of the window, and loss scale and weights are divided out. The
  // optimizer updates parameters(): masters or this rank's pieces, where it has such. Recording is off.
  virtual void before_step(optim::Optimizer& optimizer);
  // After the update, also one that the loss scale skipped. Recording is off.
  virtual void after_step(optim::Optimizer& optimizer);

  // ---- Checkpoints: the tensors that a resumed run needs. Rank 0 saves its own, which all ranks load.

  [[nodiscard]] virtual NamedTensors state_dict();
  // Copies what state_dict() returned in another process. Not called for a file without such tensors.
  virtual void load_state_dict(const NamedTensors& state);
};

}  // namespace levin
