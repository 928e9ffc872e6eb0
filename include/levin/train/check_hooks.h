// Checks while a class is compiled that it overrides the hooks that it means to override.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <type_traits>

#include "levin/train/hooks.h"

namespace levin::detail {

// Whether a class has a function of its own in place of the one that it inherits: the two pointers then differ in type.
template <class Own, class Inherited>
[[nodiscard]] constexpr bool overrides(Own /*&Derived::f*/, Inherited /*&Base::f*/) {
  return !std::is_same_v<Own, Inherited>;
}

// Fails if a member of D has the hook's name and cannot override it: another signature, or no function at all. Private
// members pass, and so do overloads if one has the hook's signature.
#define LEVIN_CHECK_HOOK(name, signature, ...)                                     \
  static_assert(                                                                   \
      !requires { &D::name; } || requires { static_cast<__VA_ARGS__>(&D::name); }, \
      "a member named " #name " hides the hook instead of overriding it; its signature has to be " signature)

// The hooks of class Hooks.
template <class D>
consteval void check_hooks() {
  using Plain = void (D::*)();
  using OfBatch = void (D::*)(const StepInfo&);
  LEVIN_CHECK_HOOK(setup, "void setup(Stage)", void(D::*)(Stage));
  LEVIN_CHECK_HOOK(teardown, "void teardown(Stage)", void(D::*)(Stage));
  LEVIN_CHECK_HOOK(on_fit_start, "void on_fit_start()", Plain);
  LEVIN_CHECK_HOOK(on_fit_end, "void on_fit_end()", Plain);
  LEVIN_CHECK_HOOK(on_sanity_check_start, "void on_sanity_check_start()", Plain);
  LEVIN_CHECK_HOOK(on_sanity_check_end, "void on_sanity_check_end()", Plain);
  LEVIN_CHECK_HOOK(on_train_start, "void on_train_start()", Plain);
  LEVIN_CHECK_HOOK(on_train_end, "void on_train_end()", Plain);
  LEVIN_CHECK_HOOK(on_train_epoch_start, "void on_train_epoch_start()", Plain);
  LEVIN_CHECK_HOOK(on_train_epoch_end, "void on_train_epoch_end()", Plain);
  LEVIN_CHECK_HOOK(on_train_batch_start, "BatchStart on_train_batch_start(const StepInfo&)",
                   BatchStart(D::*)(const StepInfo&));
  LEVIN_CHECK_HOOK(on_train_batch_end, "void on_train_batch_end(const StepInfo&)", OfBatch);
  LEVIN_CHECK_HOOK(on_validation_start, "void on_validation_start()", Plain);
  LEVIN_CHECK_HOOK(on_validation_end, "void on_validation_end()", Plain);
  LEVIN_CHECK_HOOK(on_validation_epoch_start, "void on_validation_epoch_start()", Plain);
  LEVIN_CHECK_HOOK(on_validation_epoch_end, "void on_validation_epoch_end()", Plain);
  LEVIN_CHECK_HOOK(on_validation_batch_start, "void on_validation_batch_start(const StepInfo&)", OfBatch);
  LEVIN_CHECK_HOOK(on_validation_batch_end, "void on_validation_batch_end(const StepInfo&)", OfBatch);
  LEVIN_CHECK_HOOK(on_test_start, "void on_test_start()", Plain);
  LEVIN_CHECK_HOOK(on_test_end, "void on_test_end()", Plain);
  LEVIN_CHECK_HOOK(on_test_epoch_start, "void on_test_epoch_start()", Plain);
  LEVIN_CHECK_HOOK(on_test_epoch_end, "void on_test_epoch_end()", Plain);
  LEVIN_CHECK_HOOK(on_test_batch_start, "void on_test_batch_start(const StepInfo&)", OfBatch);
  LEVIN_CHECK_HOOK(on_test_batch_end, "void on_test_batch_end(const StepInfo&)", OfBatch);
  LEVIN_CHECK_HOOK(on_predict_start, "void on_predict_start()", Plain);
  LEVIN_CHECK_HOOK(on_predict_end, "void on_predict_end()", Plain);
  LEVIN_CHECK_HOOK(on_predict_epoch_start, "void on_predict_epoch_start()", Plain);
  LEVIN_CHECK_HOOK(on_predict_epoch_end, "void on_predict_epoch_end()", Plain);
  LEVIN_CHECK_HOOK(on_predict_batch_start, "void on_predict_batch_start(const StepInfo&)", OfBatch);
  LEVIN_CHECK_HOOK(on_predict_batch_end, "void on_predict_batch_end(const StepInfo&)", OfBatch);
  LEVIN_CHECK_HOOK(on_save_checkpoint, "void on_save_checkpoint(CheckpointContent&)", void(D::*)(CheckpointContent&));
  LEVIN_CHECK_HOOK(on_load_checkpoint, "void on_load_checkpoint(CheckpointContent&)", void(D::*)(CheckpointContent&));
  LEVIN_CHECK_HOOK(on_exception, "void on_exception(const std::exception&)", void(D::*)(const std::exception&));
  LEVIN_CHECK_HOOK(on_before_zero_grad, "void on_before_zero_grad(optim::Optimizer&)", void(D::*)(optim::Optimizer&));
  LEVIN_CHECK_HOOK(on_before_backward, "void on_before_backward(const Tensor&)", void(D::*)(const Tensor&));
  LEVIN_CHECK_HOOK(on_after_backward, "void on_after_backward()", Plain);
  LEVIN_CHECK_HOOK(on_before_optimizer_step, "void on_before_optimizer_step(optim::Optimizer&)",
                   void(D::*)(optim::Optimizer&));
}

// The type of a member function of D that overrides this one of its base B.
template <class D, class R, class B, class... P>
consteval auto in(R (B::*)(P...)) -> R (D::*)(P...);
template <class D, class R, class B, class... P>
consteval auto in(R (B::*)(P...) const) -> R (D::*)(P...) const;

// The hooks of class Hooks, and those that TrainModule adds. M is TrainModule, which is not complete here.
#define LEVIN_CHECK_SAME(name)                                                                           \
  static_assert(                                                                                         \
      !requires { &D::name; } || requires { static_cast<decltype(in<D>(&M::name))>(&D::name); },         \
      "a member named " #name                                                                            \
      " hides the function of TrainModule instead of overriding it; its signature has to be the one in " \
      "levin/train/module.h")
#define LEVIN_CHECK_SPELLED(wrong, right)                                                    \
  static_assert(                                                                             \
      !requires { &D::wrong; } || !std::is_same_v<decltype(&D::right), decltype(&M::right)>, \
      "a member named " #wrong " is called by nobody; the function of TrainModule is " #right)
template <class D, class M>
consteval void check_module_hooks() {
  check_hooks<D>();
  LEVIN_CHECK_SAME(training_step);
  LEVIN_CHECK_SAME(validation_step);
  LEVIN_CHECK_SAME(test_step);
  LEVIN_CHECK_SAME(predict_step);
  LEVIN_CHECK_SAME(example_input);
  LEVIN_CHECK_SAME(example_forward);
  LEVIN_CHECK_SAME(configure_model);
  LEVIN_CHECK_SAME(configure_optimizers);
  LEVIN_CHECK_SAME(configure_callbacks);
  LEVIN_CHECK_SAME(train_loader);
  LEVIN_CHECK_SAME(val_loader);
  LEVIN_CHECK_SAME(test_loader);
  LEVIN_CHECK_SAME(predict_loader);
  LEVIN_CHECK_SAME(on_before_batch_transfer);
  LEVIN_CHECK_SAME(transfer_batch_to_device);
  LEVIN_CHECK_SAME(on_after_batch_transfer);
  LEVIN_CHECK_SAME(automatic_optimization);
  LEVIN_CHECK_SAME(optimizer_step);
  LEVIN_CHECK_SAME(optimizer_zero_grad);
  LEVIN_CHECK_SAME(on_validation_model_zero_grad);
  LEVIN_CHECK_SAME(on_validation_model_eval);
  LEVIN_CHECK_SAME(on_test_model_eval);
  LEVIN_CHECK_SAME(on_predict_model_eval);
  LEVIN_CHECK_SAME(configure_gradient_clipping);
  LEVIN_CHECK_SPELLED(train_step, training_step);
  LEVIN_CHECK_SPELLED(val_step, validation_step);
  LEVIN_CHECK_SPELLED(configure_optimizer, configure_optimizers);
  LEVIN_CHECK_SPELLED(train_dataloader, train_loader);
  LEVIN_CHECK_SPELLED(val_dataloader, val_loader);
  LEVIN_CHECK_SPELLED(test_dataloader, test_loader);
  LEVIN_CHECK_SPELLED(predict_dataloader, predict_loader);
}
#undef LEVIN_CHECK_SPELLED
#undef LEVIN_CHECK_SAME
#undef LEVIN_CHECK_HOOK

}  // namespace levin::detail
