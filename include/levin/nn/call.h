// Calls of modules, for those who want to know what goes in and what comes out: modules have no virtual forward, so they
// report. All modules of levin/nn do.
#pragma once

#include <initializer_list>
#include <span>

#include "levin/op_info.h"
#include "levin/tensor.h"

namespace levin::nn {

class Module;

// Is told of the calls that this thread's modules report while it lives; where several live, the newest first. A module that
// is called inside of another's call comes between the two tellings of that. What it throws, the call throws.
class LEVIN_API CallWatch {
 public:
  CallWatch() noexcept;
  virtual ~CallWatch();
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;
  virtual void called(const Module& module, std::span<const Tensor* const> inputs) = 0;
  virtual void returned(const Module& module, std::span<const Tensor* const> outputs) = 0;
  virtual void left(const Module&) noexcept {}  // behind it, and where the call ended by an exception

 private:
  friend class Call;
  CallWatch* outer_;
};

// Reports a call of a module. Costs a few stores where nobody listens. A module in an nn::Sequential is reported by that.
//
// Put it first in the call operator of your own modules: while it lives, every levin::Error begins with the path of the
// innermost module, "in encoder.3.linear1: linear: ...", and so does one that the backward of an op throws which ran in it
// (Error::module_path()). SyncGuard records the path, too.
//
//   Tensor operator()(const Tensor& x) const {
//     const nn::Call call(*this, x);
//     return call.gives(x + fc2(relu(fc1(x))));
//   }
class LEVIN_API Call {
 public:
  // The tensors that go in; undefined ones are absent.
  template <class... T>
  explicit Call(const Module& module, const T&... inputs) : module_(module), watch_(enter()) {
    if (watch_) [[unlikely]]
      begin({static_cast<const Tensor*>(&inputs)...});
  }
  ~Call() { leave(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  // What comes out: one tensor on its way, or several.
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
  CallWatch* watch_;  // the newest when the call began: it and those behind it see the end
};

}  // namespace levin::nn
