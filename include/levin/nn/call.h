// Calls of modules report their inputs and outputs, because modules have no virtual forward to override. All modules of
// levin/nn report.
#pragma once

#include <initializer_list>
#include <span>

#include "levin/op_info.h"
#include "levin/tensor.h"

namespace levin::nn {

class Module;

// Receives the calls that this thread's modules report while it lives; of several watches the newest comes first. A
// call inside of another one is reported between called() and returned() of that one. The call throws what a watch
// throws.
class LEVIN_API CallWatch {
 public:
  CallWatch() noexcept;
  virtual ~CallWatch();
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;
  virtual void called(const Module& module, std::span<const Tensor* const> inputs) = 0;
  virtual void returned(const Module& module, std::span<const Tensor* const> outputs) = 0;
  virtual void left(const Module&) noexcept {}  // after returned(), and when an exception ended the call

 private:
  friend class Call;
  CallWatch* outer_;
};

// Reports a call of a module. Costs a few stores without a watch. nn::Sequential reports its children.
//
// Put it first in the call operator of your own modules. While it lives, each levin::Error begins with the path of the
// innermost module, "in encoder.3.linear1: linear: ...", and so do errors of the backward of ops that ran in the call
// (Error::module_path()). SyncGuard records the path, too.
//
//   Tensor operator()(const Tensor& x) const {
//     const nn::Call call(*this, x);
//     return call.gives(x + fc2(relu(fc1(x))));
//   }
class LEVIN_API Call {
 public:
  // The inputs; undefined tensors are absent ones.
  template <class... T>
  explicit Call(const Module& module, const T&... inputs) : module_(module), watch_(enter()) {
    if (watch_) [[unlikely]]
      begin({static_cast<const Tensor*>(&inputs)...});
  }
  ~Call() { leave(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  // The outputs: returns the only one, or reports several.
  [[nodiscard]] Tensor gives(Tensor y) const {
    if (watch_) [[unlikely]]
      tell({&y});
    return y;
  }
  template <class... T>
  void gave(const T&... outputs) const {
    if (watch_) [[unlikely]]
      tell({static_cast<const Tensor*>(&outputs)...});
  }

 private:
  [[nodiscard]] CallWatch* enter();
  void begin(std::initializer_list<const Tensor*> inputs) const;
  void tell(std::initializer_list<const Tensor*> outputs) const;
  void leave() const noexcept;
  const Module& module_;
  detail::ModuleCall here_;
  CallWatch* watch_;  // the newest when the call began: this one and older ones see the end
};

}  // namespace levin::nn
