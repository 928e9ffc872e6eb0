#include "levin/nn/call.h"

#include <utility>

namespace levin::nn {
namespace {
CallWatch*& of_thread() noexcept {
  static thread_local constinit CallWatch* watch = nullptr;
  return watch;
}
}  // namespace

CallWatch::CallWatch() noexcept : outer_(std::exchange(of_thread(), this)) {}
CallWatch::~CallWatch() { of_thread() = outer_; }

CallWatch* Call::newest() noexcept { return of_thread(); }
void Call::begin(std::initializer_list<const Tensor*> inputs) const {
  for (CallWatch* w = watch_; w; w = w->outer_) w->called(module_, inputs);
}
void Call::tell(std::initializer_list<const Tensor*> outputs) const {
  for (CallWatch* w = watch_; w; w = w->outer_) w->returned(module_, outputs);
}
void Call::end() const noexcept {
  for (CallWatch* w = watch_; w; w = w->outer_) w->left(module_);
}

}  // namespace levin::nn
