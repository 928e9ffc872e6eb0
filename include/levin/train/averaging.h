// Averages of a model's weights over its training, and the batch-norm statistics that fit them.
//
//   AveragedModel average(net, {.avg_fn = ema_avg(0.999)});
//   for (const Batch& b : train) {
//     ...
//     opt.step();
//     average.update(net);
//   }
//   {
//     const auto swapped = average.swap_into(net);  // net computes with the averages
//     accuracy = trainer.evaluate(net, test, f);
//   }
//   average.copy_to(net);
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "levin/data.h"
#include "levin/function.h"
#include "levin/nn/module.h"
#include "levin/serialize.h"
#include "levin/tensor.h"

namespace levin {

// How an average takes the n + 1st value, n >= 1: swa_avg(), ema_avg(decay), or a function of yours that is given one average
// and the value, both on the average's device and of its dtype, and returns the new average. The first two update all tensors in
// one pass, on a device one launch for 400 of them.
class LEVIN_API AvgFn {
 public:
  AvgFn() = default;  // swa_avg()
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, AvgFn> &&
           std::is_invocable_r_v<Tensor, F&, const Tensor&, const Tensor&, std::int64_t>) AvgFn(F&& f)
      : each_(std::forward<F>(f)) {}

 private:
  friend class AveragedModel;
  friend LEVIN_API AvgFn ema_avg(double decay);
  std::optional<double> decay_;
  Function<Tensor(const Tensor& average, const Tensor& value, std::int64_t n)> each_;
};
// average + (value - average) / (n + 1): all values weigh the same. Izmailov et al., "Averaging Weights Leads to Wider Optima",
// 2018.
[[nodiscard]] LEVIN_API AvgFn swa_avg();
// decay average + (1 - decay) value: a value's weight falls with its age. Throws ConfigError outside of [0, 1].
// Polyak & Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992.
[[nodiscard]] LEVIN_API AvgFn ema_avg(double decay = 0.999);

// The same for all tensors that are averaged together: writes averages[i], whose memory stays, from values[i].
using MultiAvgFn = Function<void(const Tensors& averages, const Tensors& values, std::int64_t n)>;

struct AveragedModelOptions {
  std::optional<Device> device{};  // where the averages lie; default: where the module's first parameter is
  AvgFn avg_fn{};
  MultiAvgFn multi_avg_fn{};  // instead of avg_fn
  bool use_buffers = false;   // floating buffers are averaged, too; otherwise they are copied at each update
};

// The averages of a module's parameters, and its buffers, by their names; they require no gradient. Those of f16 and bf16 values
// are f32, which does not lose small changes, and are rounded where the module gets them. Integers are copied, never averaged.
// With the averages where the module is, nothing waits for the device; averages on the CPU of a module on a device wait at
// each update.
// All functions throw ConfigError for a module whose names or shapes are not those at construction.
class LEVIN_API AveragedModel {
 public:
  // Starts with copies of the module's tensors, and with n_averaged() == 0. Throws ConfigError for a module without any.
  explicit AveragedModel(nn::Module& module, AveragedModelOptions options = {});
  AveragedModel(const AveragedModel&) = delete;
  AveragedModel& operator=(const AveragedModel&) = delete;

  // The first call copies the module's values, later ones follow avg_fn. Throws StateError while the averages are swapped into
  // a module, CaptureError in a Graph's recording: the count would stand still in its replays; ShapeError or DTypeError when
  // avg_fn returns another shape or dtype than the average's.
  void update(nn::Module& module);
  [[nodiscard]] std::int64_t n_averaged() const { return n_; }

  // Exchanges handles: until the scope ends the module's parameters and buffers are the averages, without gradients, and what
  // it writes to its buffers stays with them. Training goes on afterwards as if nothing had been. On the same device and with
  // the same dtype nothing is copied. Module and averages outlive the scope; scopes end in the order opposite to their begin.
  class LEVIN_API Swap {
   public:
    ~Swap();
    Swap(const Swap&) = delete;
    Swap& operator=(const Swap&) = delete;

   private:
    friend class AveragedModel;
    Swap(AveragedModel& of, nn::Module& module);
    struct Exchanged {
      Tensor* place;
      Tensor live, lent;
      std::uint32_t version;  // of `lent`, then
    };
    AveragedModel* of_;
    std::vector<Exchanged> exchanged_;
  };
  [[nodiscard]] Swap swap_into(nn::Module& module) { return Swap(*this, module); }

  // Writes the averages into the module's own tensors.
  void copy_to(nn::Module& module) const;

  // "n_averaged" and "module.NAME" for what stands in the module's state_dict, as PyTorch names them. The tensors share the
  // averages' memory.
  [[nodiscard]] NamedTensors state() const;
  // Copies values, from any device, after all is checked. Throws ConfigError for other names, shapes or kinds of dtype.
  void load(const NamedTensors& state);

 private:
  struct Entry {
    std::string name;
    Tensor value;
    bool averaged;    // or copied
    bool persistent;  // stands in state()
  };
  // The module's tensors in the order of entries_; checked.
  [[nodiscard]] std::vector<Tensor*> tensors_of(nn::Module& module, const char* op) const;
  void average(const Tensors& averages, Tensors values);

  AveragedModelOptions options_;
  Device device_ = Device::cpu();
  std::vector<Entry> entries_;
  Tensor decay_;  // one f64 element on device_
  std::int64_t n_ = 0;
  int swapped_ = 0;
};

// Gives the module's batch norms that are trained new running statistics: the mean over one pass of the loader, in which
// `forward` is called on each batch, moved to the module's device, in training mode and without recording. For weights that were
// not trained but computed, as averages are. Modes and momenta are afterwards as before; statistics as well when something throws.
// Without batch norms nothing is loaded. Throws DataError when the loader gives no batch.
LEVIN_API void update_bn(data::DataLoader& loader, nn::Module& module, const Function<void(const Batch&)>& forward);
// The same with module(batch[0]).
template <std::derived_from<nn::Module> M>
requires std::invocable<M&, const Tensor&>
void update_bn(data::DataLoader& loader, M& module) {
  update_bn(loader, module, [&](const Batch& batch) { (void)module(batch[0]); });
}

}  // namespace levin
