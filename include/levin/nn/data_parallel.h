// DataParallel: a sub-module whose call shares its batch among several devices of one process.
//
//   struct Net : TrainModuleOf<Net> {
//     using TrainModuleOf::TrainModuleOf;
//     nn::DataParallel<Encoder> encoder{*this, "encoder", {Device::cuda(0), Device::cuda(1)}, {.width = 512}};
//     nn::DataParallel<Decoder> decoder{*this, "decoder", {Device::cuda(2), Device::cuda(3)}, {.width = 512}};
//     Tensor operator()(const Tensor& x) const { return decoder(encoder(x).to(Device::cuda(2))); }
//     ...
//   };
//
// A call cuts x along dim 0 into parts of ceil(n / D) samples, 10 over 4 are 3, 3, 3, 1, and runs the module on each
// device's part, a thread for each device. The results are joined along dim 0 on the first device; results without a
// dimension become [D]. Copies on the other devices get the module's values, flags and buffers before each call. Their
// gradients are added to those of the module on the first device, in the order of devices, so bits do not depend on the
// threads' timing. Buffers that the copies write are lost. Random numbers of a copy are its own in each call.
//
// The parameters are the module's, below "module", and lie on the first device. Where the whole training step can be
// shared out, the strategies dp and ddp are faster. After torch.nn.DataParallel.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "levin/function.h"
#include "levin/nn/call.h"
#include "levin/nn/module.h"

namespace levin::nn {

namespace detail {
// The copies of a module and their threads.
class LEVIN_API Replicas {
 public:
  using Call = Function<Tensor(const Tensor&)>;
  // Throws ConfigError without a device, for one that is listed twice, and for meta.
  Replicas(Module& owner, std::vector<Device> devices);
  ~Replicas();
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;
  // The module that the next copy is made in; nothing: there is one for each further device.
  [[nodiscard]] Module* next_root();
  // The first is the module, the others are copies of it in the order of devices. Throws ConfigError for a copy with
  // other parameters, buffers or modules that draw.
  void add(Module& module, Call call);
  [[nodiscard]] Tensor run(const Tensor& x) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};
}  // namespace detail

template <class T>
class DataParallel : public Module {
 public:
  // T(*this, "module", options) on devices[0]; the copies are made by the same arguments. Throws ConfigError for no
  // device, and for one that is listed twice.
  template <class U = T>
  DataParallel(Module& parent, std::string_view name, std::vector<Device> devices, const typename U::Options& options)
      : Module(parent, name), replicas_(*this, std::move(devices)), module_(*this, "module", options) {
    copy(options);
  }
  // T(*this, "module", args...).
  template <class... Args>
  requires std::is_constructible_v<T, Module&, std::string_view, const Args&...> DataParallel(
      Module& parent, std::string_view name, std::vector<Device> devices, const Args&... args)
      : Module(parent, name), replicas_(*this, std::move(devices)), module_(*this, "module", args...) {
    copy(args...);
  }
  // Throws DeviceError for x or parameters that are not on devices[0], ShapeError for x without a dimension,
  // AutogradError for derivatives of second order.
  [[nodiscard]] Tensor operator()(const Tensor& x) const { return Call(*this, x).gives(replicas_.run(x)); }
  [[nodiscard]] T& module() { return module_; }

 private:
  template <class... Args>
  void copy(const Args&... args) {
    replicas_.add(module_, [this](const Tensor& x) { return module_(x); });
    while (Module* const root = replicas_.next_root()) {
      copies_.push_back(std::make_unique<T>(*root, "module", args...));
      replicas_.add(*copies_.back(), [copy = copies_.back().get()](const Tensor& x) { return (*copy)(x); });
    }
  }
  detail::Replicas replicas_;
  T module_;
  std::vector<std::unique_ptr<T>> copies_;
};

}  // namespace levin::nn
