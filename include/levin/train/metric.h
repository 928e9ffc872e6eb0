// Metrics as objects: each sums over batches, on the device, and computes one number of all of them.
//
//   struct Net : TrainModuleOf<Net> {
//     Accuracy right{*this, "right"};
//     void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
//       right.update(fc(b[0]), b[1]);
//       log("val_accuracy", right);  // the epoch's record: the share of all samples, not a mean of batches' shares
//     }
//   };
//
// A metric that is a member of the module moves with it and is part of checkpoints, so a run that resumes within an
// epoch has the same sums. It is in no state_dict. Training and validation need one each. An update launches kernels
// and does not wait for them. With several ranks each updates its own states, and what the epoch logs is computed of
// all ranks' states together; a call of compute() elsewhere sees this rank's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "levin/nn/module.h"
#include "levin/tensor.h"

namespace levin {

namespace detail {
struct MetricHandle;
}

// The base of metrics. A derived class makes its states in the constructor. Its update begins with keep_f64(), changes
// the states in place, and ends with set_batch_value().
class LEVIN_API Metric : public nn::Module {
 public:
  // How the states of several ranks become one, element by element. At the end of an epoch compute() sees that one.
  enum class Across : std::uint8_t { sum, max, min };

  Metric(nn::Module& parent, std::string_view name);
  explicit Metric(const nn::Options& options);  // part of no module: log() warns that no checkpoint keeps it
  ~Metric() override;

  // Sets the states to their start. A trainer that logs the metric calls it at the end of each epoch and evaluation.
  void reset();
  // The value of all updates since the reset: f64 [].
  [[nodiscard]] virtual Tensor compute() const = 0;
  // The value of the newest update alone: f64 [], NaN before the first. Records of steps have it.
  [[nodiscard]] const Tensor& batch_value() const { return batch_value_; }

 protected:
  // Makes a state: f64, filled with `start`, to which reset() sets it. Change it in place: a captured step writes to
  // its memory.
  [[nodiscard]] Tensor& add_state(std::string_view name, double start, const Shape& shape = {},
                                  Across across = Across::sum);
  void set_batch_value(const Tensor& value);  // one element
  // Makes states f64 again that Module::to(DType) has converted. Call it first in an update.
  void keep_f64();

 private:
  friend struct detail::MetricHandle;
  struct State {
    nn::Buffer* value;
    double start;
    Across across;
  };
  std::vector<State> states_;
  Tensor& batch_value_;
  std::shared_ptr<Metric*> self_;  // set to null by the destructor: the log may outlive the metric
};

// The mean, sum w x / sum w over all elements of all updates; NaN before the first.
class LEVIN_API MeanMetric : public Metric {
 public:
  MeanMetric(nn::Module& parent, std::string_view name) : Metric(parent, name) {}
  explicit MeanMetric(const nn::Options& options) : Metric(options) {}
  // values: any shape and dtype. A replay of a captured step uses the weight at its recording: a weight that changes
  // must be a tensor.
  void update(const Tensor& values, double weight = 1);
  // weights: a shape that broadcasts to the shape of values. Throws ShapeError.
  void update(const Tensor& values, const Tensor& weights);
  [[nodiscard]] Tensor compute() const override;

 private:
  void add(const Tensor& sum, const Tensor& weight);
  Tensor& sum_ = add_state("sum", 0);
  Tensor& weight_ = add_state("weight", 0);
};

// The share of samples whose greatest score is that of their class, over all samples of all updates; NaN before the
// first.
class LEVIN_API Accuracy : public Metric {
 public:
  Accuracy(nn::Module& parent, std::string_view name) : Metric(parent, name) {}
  explicit Accuracy(const nn::Options& options) : Metric(options) {}
  // scores: floating [N, C], or the classes themselves, an integer [N]. classes: an integer [N]. Throws ShapeError,
  // DTypeError.
  void update(const Tensor& scores, const Tensor& classes);
  [[nodiscard]] Tensor compute() const override;

 private:
  Tensor& right_ = add_state("right", 0);
  Tensor& seen_ = add_state("seen", 0);
};

// The maximum of all elements of all updates; -infinity before the first.
class LEVIN_API MaxMetric : public Metric {
 public:
  MaxMetric(nn::Module& parent, std::string_view name);
  explicit MaxMetric(const nn::Options& options);
  void update(const Tensor& values);
  [[nodiscard]] Tensor compute() const override;

 private:
  Tensor& most_;
};

// The minimum of all elements of all updates; infinity before the first.
class LEVIN_API MinMetric : public Metric {
 public:
  MinMetric(nn::Module& parent, std::string_view name);
  explicit MinMetric(const nn::Options& options);
  void update(const Tensor& values);
  [[nodiscard]] Tensor compute() const override;

 private:
  Tensor& least_;
};

}  // namespace levin
