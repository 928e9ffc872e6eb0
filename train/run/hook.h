// The table of hooks and steps that the trainer calls: the name of each, and what log() may do in it.
// on_load_checkpoint has no row: it runs before anything may be logged.
#pragma once

#include <cstdint>
#include <exception>

#include "levin/train.h"

namespace levin {
namespace train {

// What a value that a hook logs belongs to.
enum class Logs : std::uint8_t {
  nothing,  // log() throws StateError
  epochs,   // the epoch alone: on_step throws ConfigError, a value weighs 1
  batches,  // the current batch
};
// A row of the table.
struct HookInfo {
  const char* name;  // in messages, profilers and checkpoints
  Logs logs;
  bool in_step = false;  // runs inside of a step: an override prevents the capture of the step
};
// A row with the member function of class Hooks.
template <class F>
struct Hook : HookInfo {
  F function;
};
template <class F>
Hook(HookInfo, F) -> Hook<F>;

inline constexpr HookInfo kOutside{"", Logs::batches};  // no hook runs; the LogScope decides about log()

}  // namespace train

struct HookTable {
  using enum train::Logs;

  static constexpr train::Hook setup{{"setup", nothing}, &Hooks::setup};
  static constexpr train::HookInfo teardown{"teardown", nothing};
  static constexpr train::HookInfo on_exception{"on_exception", nothing};
  static constexpr train::HookInfo on_save_checkpoint{"on_save_checkpoint", nothing};

  static constexpr train::Hook on_fit_start{{"on_fit_start", nothing}, &Hooks::on_fit_start};
  static constexpr train::Hook on_sanity_check_start{{"on_sanity_check_start", nothing}, &Hooks::on_sanity_check_start};
  static constexpr train::Hook on_sanity_check_end{{"on_sanity_check_end", nothing}, &Hooks::on_sanity_check_end};
  static constexpr train::Hook on_train_start{{"on_train_start", epochs}, &Hooks::on_train_start};
  static constexpr train::Hook on_train_epoch_start{{"on_train_epoch_start", epochs}, &Hooks::on_train_epoch_start};
  static constexpr train::HookInfo on_train_batch_start{"on_train_batch_start", batches};
  static constexpr train::HookInfo training_step{"training_step", batches};
  static constexpr train::Hook on_before_zero_grad{{"on_before_zero_grad", batches, true}, &Hooks::on_before_zero_grad};
  static constexpr train::Hook on_before_backward{{"on_before_backward", batches, true}, &Hooks::on_before_backward};
  static constexpr train::Hook on_after_backward{{"on_after_backward", batches, true}, &Hooks::on_after_backward};
  static constexpr train::Hook on_before_optimizer_step{{"on_before_optimizer_step", batches, true},
                                                        &Hooks::on_before_optimizer_step};
  static constexpr train::HookInfo on_train_batch_end{"on_train_batch_end", batches};
  static constexpr train::HookInfo on_train_epoch_end{"on_train_epoch_end", epochs};
  static constexpr train::Hook on_train_end{{"on_train_end", nothing}, &Hooks::on_train_end};
  static constexpr train::Hook on_fit_end{{"on_fit_end", nothing}, &Hooks::on_fit_end};

  static constexpr train::Hook on_validation_start{{"on_validation_start", epochs}, &Hooks::on_validation_start};
  static constexpr train::Hook on_validation_epoch_start{{"on_validation_epoch_start", epochs},
                                                         &Hooks::on_validation_epoch_start};
  static constexpr train::Hook on_validation_batch_start{{"on_validation_batch_start", batches},
                                                         &Hooks::on_validation_batch_start};
  static constexpr train::HookInfo validation_step{"validation_step", batches};
  static constexpr train::Hook on_validation_batch_end{{"on_validation_batch_end", batches},
                                                       &Hooks::on_validation_batch_end};
  static constexpr train::Hook on_validation_epoch_end{{"on_validation_epoch_end", epochs},
                                                       &Hooks::on_validation_epoch_end};
  static constexpr train::Hook on_validation_end{{"on_validation_end", nothing}, &Hooks::on_validation_end};

  static constexpr train::Hook on_test_start{{"on_test_start", epochs}, &Hooks::on_test_start};
  static constexpr train::Hook on_test_epoch_start{{"on_test_epoch_start", epochs}, &Hooks::on_test_epoch_start};
  static constexpr train::Hook on_test_batch_start{{"on_test_batch_start", batches}, &Hooks::on_test_batch_start};
  static constexpr train::HookInfo test_step{"test_step", batches};
  static constexpr train::Hook on_test_batch_end{{"on_test_batch_end", batches}, &Hooks::on_test_batch_end};
  static constexpr train::Hook on_test_epoch_end{{"on_test_epoch_end", epochs}, &Hooks::on_test_epoch_end};
  static constexpr train::Hook on_test_end{{"on_test_end", nothing}, &Hooks::on_test_end};

  static constexpr train::Hook on_predict_start{{"on_predict_start", nothing}, &Hooks::on_predict_start};
  static constexpr train::Hook on_predict_epoch_start{{"on_predict_epoch_start", nothing},
                                                      &Hooks::on_predict_epoch_start};
  static constexpr train::Hook on_predict_batch_start{{"on_predict_batch_start", nothing},
                                                      &Hooks::on_predict_batch_start};
  static constexpr train::HookInfo predict_step{"predict_step", nothing};
  static constexpr train::Hook on_predict_batch_end{{"on_predict_batch_end", nothing}, &Hooks::on_predict_batch_end};
  static constexpr train::Hook on_predict_epoch_end{{"on_predict_epoch_end", nothing}, &Hooks::on_predict_epoch_end};
  static constexpr train::Hook on_predict_end{{"on_predict_end", nothing}, &Hooks::on_predict_end};
};

namespace train {
using hooks = HookTable;
}

}  // namespace levin
