#include "levin/nn/call.h"

#include <utility>

#include "levin/nn/module.h"
#include "tensor/device/launching.h"

namespace levin::nn {
namespace {
CallWatch*& of_thread() noexcept {
  static thread_local constinit CallWatch* watch = nullptr;
  return watch;
}
}  // namespace

CallWatch::CallWatch() noexcept : outer_(std::exchange(of_thread(), this)) {}
CallWatch::~CallWatch() { of_thread() = outer_; }

CallWatch* Call::enter() {
  here_.path = module_.path_id();
  if (!here_.path) here_.path = detail::module_path_id();  // a root that another module calls
  here_.outer = detail::set_module_call(&here_);
  // A watch may provide the originals' memory: then after it was told.
  if (CallWatch* const watch = of_thread()) return watch;
  if (module_.refresh_) [[unlikely]] {
    try {
      module_.refresh_(module_);
    } catch (...) {
      detail::set_module_call(here_.outer);
      throw;
    }
  }
  return nullptr;
}
void Call::begin(std::initializer_list<const Tensor*> inputs) const {
  try {
    for (CallWatch* w = watch_; w; w = w->outer_) w->called(module_, inputs);
    if (module_.refresh_) module_.refresh_(module_);
  } catch (...) {  // of a constructor: there will be no destructor
    detail::set_module_call(here_.outer);
    throw;
  }
}
void Call::tell(std::initializer_list<const Tensor*> outputs) const {
  for (CallWatch* w = watch_; w; w = w->outer_) w->returned(module_, outputs);
}
void Call::leave() const noexcept {
  for (CallWatch* w = watch_; w; w = w->outer_) w->left(module_);
  detail::set_module_call(here_.outer);
}

}  // namespace levin::nn
