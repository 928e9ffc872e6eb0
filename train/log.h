// What a run logged: values of the step at hand, running means of the epoch, and the records made of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levin/train.h"

namespace levin::train {

// Where log() was called: decides its defaults and which epoch a mean belongs to.
enum class LogScope : std::uint8_t { none, train_batch, train_epoch, eval };

// The names of a run. Values and sums are f64 cells on the value's device, written in place: logging never waits, and
// a step that was recorded goes on logging.
class MetricLog {
 public:
  struct Entry {
    std::string name;
    bool on_step = false, on_epoch = false, prog_bar = false, logger = true;
    EpochReduce reduce = EpochReduce::mean;
    Tensor last{};       // f64 []
    Tensor sum{};        // f64 []: of value * weight; of values; the least; the greatest
    double weight = 0;   // sum of batch sizes
    bool fresh = false;  // logged since the last step record
  };

  void log(std::string_view name, const Tensor& value, const LogOptions& options, LogScope scope,
           std::int64_t batch_size);
  // What a recorded step logs: between the two calls log() notes down what its replay has to tell the host, and refuses what
  // a replay could not repeat (CaptureError: a value of the host, a name that is new).
  struct Noted {
    std::size_t entry;
    double weight;  // 0: not in the epoch's mean
  };
  void begin_recording(Device device);
  [[nodiscard]] std::vector<Noted> end_recording();
  void replayed(const std::vector<Noted>& noted);
  // Values of the step: every entry with on_step that was logged since the last call.
  [[nodiscard]] Metrics take_step();
  // Means of the epoch; starts the next one. `hidden` gets those that no record has.
  [[nodiscard]] Metrics take_epoch(Metrics& hidden);
  void reset();
  // The newest value of each name under all the names it has.
  void newest(Metrics& into) const;
  void progress(Metrics& into) const;

  // The sums of an open epoch, for a checkpoint.
  struct Saved {
    std::string name;
    bool on_step = false, on_epoch = false, prog_bar = false, logger = true;
    EpochReduce reduce = EpochReduce::mean;
    double sum = 0, weight = 0, last = 0;
    bool fresh = false;
  };
  [[nodiscard]] std::vector<Saved> save() const;
  void load(const std::vector<Saved>& saved);

 private:
  std::vector<Entry> entries_;       // few: found by a walk, kept in the order of logging
  std::optional<Device> recording_;  // of the step that is recorded
  std::vector<Noted> noted_;
};

void set_metric(Metrics& metrics, std::string_view name, double value);

}  // namespace levin::train
