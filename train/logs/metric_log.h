// What a run logged: values of the step at hand, running means of the epoch, and the records made of them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/train.h"
#include "train/run/hook.h"

// What outlives a metric, and knows when it is gone.
struct levin::detail::MetricHandle {
  [[nodiscard]] static std::shared_ptr<Metric*> of(const Metric& metric) { return metric.self_; }
};

namespace levin::train {

// Where log() was called: decides its defaults and which epoch a mean belongs to.
enum class LogScope : std::uint8_t { none, train_batch, train_epoch, eval };

// The names of a run. Values and sums are f64 cells on the value's device, written in place: logging never waits, and
// a step that was recorded goes on logging.
class MetricLog {
 public:
  struct Entry {
    std::string name, hook;  // logged in another hook it is another entry
    int loader = -1;         // in an evaluation of several: which; -1: of all
    bool on_step = false, on_epoch = false, prog_bar = false, logger = true;
    EpochReduce reduce = EpochReduce::mean;
    Tensor last{};                      // f64 []
    Tensor sum{};                       // f64 []: of value * weight; of values; the least; the greatest
    double weight = 0;                  // sum of batch sizes
    bool fresh = false;                 // logged since the last step record
    std::shared_ptr<Metric*> metric{};  // of a Metric: it says what the epoch's value is; holds null when it is gone
    std::string path{};                 // of the Metric in the module
    std::optional<double> finished{};   // what the last epoch gave
  };

  // Where log() is called.
  struct Place {
    LogScope scope;
    const HookInfo& hook;
    int loader = -1;              // see Entry
    std::int64_t batch_size = 1;  // the weight where the options say none
  };
  void log(std::string_view name, const Tensor& value, const LogOptions& options, const Place& place);
  // The newest batch's value, and from now on the metric's at the end of the epoch; warns
  // once of one that is not below `tree`.
  void log(std::string_view name, const Metric& metric, nn::Module* tree, const LogOptions& options,
           const Place& place);
  [[nodiscard]] bool logs(const Metric& metric) const;
  // What a recorded step logs: between the two calls log() notes down what its replay has to tell the host, and refuses
  // what a replay could not repeat (CaptureError: a value of the host, a name that is new).
  struct Noted {
    std::size_t entry;
    double weight;  // 0: not in the epoch's mean
  };
  void begin_recording(Device device);
  [[nodiscard]] std::vector<Noted> end_recording();
  void replayed(std::span<const Noted> noted);
  // Values of the step: every entry with on_step that was logged since the last call. Where there are any, the number
  // in `beside`, an f64 cell, is read in the same copy.
  struct Step {
    Metrics values;
    std::optional<double> beside;
  };
  [[nodiscard]] Step take_step(const Tensor& beside = {});
  struct Mean {
    std::string name;  // with its loader's number
    double value;
    int loader;
    bool logger;  // records have it
  };
  // Means of the epoch; starts the next one. Those for records come first; the others are names with logger = false,
  // and the plain name of those that have a value for steps as well.
  [[nodiscard]] std::vector<Mean> take_epoch();
  void reset();  // forgets all names; metrics are reset
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
    std::string hook{}, metric{};  // metric: its path in the module; empty: none
  };
  [[nodiscard]] std::vector<Saved> save() const;
  void load(const std::vector<Saved>& saved, nn::Module* tree);
  void back_to(const std::vector<Saved>& saved);  // of this one, earlier: without what hooks of epochs logged since

 private:
  Entry& entry(std::string_view name, const LogOptions& options, const Place& place, Device device);
  std::vector<Entry> entries_;       // few: found by a walk, kept in the order of logging
  std::optional<Device> recording_;  // of the step that is recorded
  std::vector<Noted> noted_;
};

void set_metric(Metrics& metrics, std::string_view name, double value);

// What a batch weighs in the mean of an epoch: size(0) of its first tensor, 1 where that has no dimension.
struct BatchWeight {
  std::int64_t size = 1;   // 0: no tensor was found
  bool ambiguous = false;  // fields differ in it
};
[[nodiscard]] BatchWeight weight_of(const Batch& batch);

// The metrics of a tree by path, and their states by "path.state".
[[nodiscard]] std::vector<std::pair<std::string, Metric*>> metrics_of(nn::Module* tree);
[[nodiscard]] NamedTensors metric_states(nn::Module* tree);

// What the metrics of a tree hold, put back at the end.
class MetricGuard {
 public:
  explicit MetricGuard(nn::Module* tree);
  ~MetricGuard();
  MetricGuard(const MetricGuard&) = delete;
  MetricGuard& operator=(const MetricGuard&) = delete;

 private:
  NamedTensors states_, before_;
};

}  // namespace levin::train
