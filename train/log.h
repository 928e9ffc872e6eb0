// What a run logged: values of the step at hand, running means of the epoch, and the records made of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "levin/train.h"

namespace levin::train {

// Where log() was called: decides its defaults and which epoch a mean belongs to.
enum class LogScope : std::uint8_t { none, train_batch, train_epoch, eval };

// Running mean of one metric. Sums are f64 on the value's device, so logging never waits.
class MetricLog {
 public:
  struct Entry {
    std::string name;
    bool on_step = false, on_epoch = false, prog_bar = false;
    Tensor last{};       // one element, detached
    Tensor sum{};        // f64: sum of value * weight
    double weight = 0;   // sum of batch sizes
    bool fresh = false;  // logged since the last step record
  };

  void log(std::string_view name, const Tensor& value, const LogOptions& options, LogScope scope,
           std::int64_t batch_size);
  // Values of the step: every entry with on_step that was logged since the last call.
  [[nodiscard]] Metrics take_step();
  // Means of the epoch; starts the next one.
  [[nodiscard]] Metrics take_epoch();
  void reset();
  // The newest value of each name under all the names it has.
  void newest(Metrics& into) const;
  void progress(Metrics& into) const;

  // The sums of an open epoch, for a checkpoint.
  struct Saved {
    std::string name;
    bool on_step = false, on_epoch = false, prog_bar = false;
    double sum = 0, weight = 0, last = 0;
  };
  [[nodiscard]] std::vector<Saved> save() const;
  void load(const std::vector<Saved>& saved);

 private:
  std::vector<Entry> entries_;  // few: found by a walk, kept in the order of logging
};

void set_metric(Metrics& metrics, std::string_view name, double value);

}  // namespace levin::train
