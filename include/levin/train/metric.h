// Metrics that are objects: they sum up what batches show, on the device, and tell one number of all of them.
//
//   struct Net : TrainModuleOf<Net> {
//     Accuracy right{*this, "right"};
//     void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
//       right.update(fc(b[0]), b[1]);
//       log("val_accuracy", right);  // the epoch's record has that of all batches, not the mean of their means
//     }
//   };
//
// As part of a module a metric moves with it and stands in the checkpoints of its run, so that one that is cut in an epoch
// goes on with the same sums; it is in no state_dict. Training and validation need one each. An update launches kernels and
// waits for nothing.
#pragma once

#include <cstddef>
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

// The base: states, and what they say. Derive from it, make states in the constructor, change them in place in an update that
// begins with keep_f64 and ends with set_batch_value.
class LEVIN_API Metric : public nn::Module {
 public:
  Metric(nn::Module& parent, std::string_view name);
  explicit Metric(const nn::Options& options);  // on its own; log() warns that no checkpoint keeps it
  ~Metric() override;

  // All that was seen is forgotten. A trainer that logs the metric calls it at the end of each epoch and evaluation.
  void reset();
  // Of everything since the reset: f64 [].
  [[nodiscard]] virtual Tensor compute() const = 0;
  // Of the newest update alone: f64 [], NaN before the first. What log() writes in records of steps.
  [[nodiscard]] const Tensor& batch_value() const { return batch_value_; }

 protected:
  // f64, filled with `start`, which reset() writes again. Change it in place: a captured step writes to its memory.
  [[nodiscard]] Tensor& add_state(std::string_view name, double start, const Shape& shape = {});
  void set_batch_value(const Tensor& value);  // one element
  // To be called first in an update: states are f64 again where Module::to(DType) has converted them.
  void keep_f64();

 private:
  friend struct detail::MetricHandle;
  struct State {
    nn::Buffer* value;
    double start;
  };
  std::vector<State> states_;
  Tensor& batch_value_;
  std::shared_ptr<Metric*> self_;  // null when this is gone: whoever logs it may outlive it
};

// sum w x / sum w over all elements of all updates; NaN before the first.
class LEVIN_API MeanMetric : public Metric {
 public:
  MeanMetric(nn::Module& parent, std::string_view name) : Metric(parent, name) {}
  explicit MeanMetric(const nn::Options& options) : Metric(options) {}
  // Any shape and dtype. In a step that is captured a number is what it was when the step was recorded; one that changes
  // is a tensor.
  void update(const Tensor& values, double weight = 1);
  // weights: a shape that broadcasts to that of values. Throws ShapeError.
  void update(const Tensor& values, const Tensor& weights);
  [[nodiscard]] Tensor compute() const override;

 private:
  void add(const Tensor& sum, const Tensor& weight);
  Tensor& sum_ = add_state("sum", 0);
  Tensor& weight_ = add_state("weight", 0);
};

// The share of samples whose greatest score is that of their class, of all samples alike; NaN before the first.
class LEVIN_API Accuracy : public Metric {
 public:
  Accuracy(nn::Module& parent, std::string_view name) : Metric(parent, name) {}
  explicit Accuracy(const nn::Options& options) : Metric(options) {}
  // scores: floating [N, C], or the classes themselves, an integer [N]. classes: an integer [N]. Throws ShapeError, DTypeError.
  void update(const Tensor& scores, const Tensor& classes);
  [[nodiscard]] Tensor compute() const override;

 private:
  Tensor& right_ = add_state("right", 0);
  Tensor& seen_ = add_state("seen", 0);
};

// The greatest of all elements of all updates; -infinity before the first.
class LEVIN_API MaxMetric : public Metric {
 public:
  MaxMetric(nn::Module& parent, std::string_view name);
  explicit MaxMetric(const nn::Options& options);
  void update(const Tensor& values);
  [[nodiscard]] Tensor compute() const override;

 private:
  Tensor& most_;
};

// The least; infinity before the first.
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
