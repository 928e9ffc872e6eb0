// Keeps what a run logs: values of the current step and running means of the epoch, of which records are made.
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
#include "train/logs/merge.h"
#include "train/run/hook.h"

// A handle that outlives a metric and holds null after the metric's end.
struct levin::detail::MetricHandle {
  [[nodiscard]] static std::shared_ptr<Metric*> of(const Metric& metric) { return metric.self_; }
  // What reset() sets, but for the newest batch's value.
  [[nodiscard]] static std::vector<train::MetricState> states(const Metric& metric);
  // compute() of these states. The metric's own states stay.
  [[nodiscard]] static double compute(Metric& metric, const std::vector<train::MetricState>& states);
  // Gives a metric other states for a scope. Its own keep their memory, which a captured step writes to.
  class Swapped {
   public:
    Swapped(Metric& metric, const std::vector<train::MetricState>& states);
    ~Swapped();
    Swapped(const Swapped&) = delete;
    Swapped& operator=(const Swapped&) = delete;

   private:
    std::vector<std::pair<Tensor*, Tensor>> own_;
  };
};

namespace levin::train {

// Where log() was called. It decides the defaults, and the epoch that a mean belongs to.
enum class LogScope : std::uint8_t { none, train_batch, train_epoch, eval };

// The logged names of a run. Values and sums are f64 cells on the value's device, written in place: logging never
// waits for the device, and the replay of a recorded step logs too.
class MetricLog {
 public:
  struct Entry {
    std::string name, hook;  // a name that two hooks log has two entries
    int loader = -1;         // index, in an evaluation of several loaders; -1: of all
    bool on_step = false, on_epoch = false, prog_bar = false, logger = true;
    bool sync_dist = false, rank_zero_only = false;
    bool of_epochs = false;  // the hook belongs to no batch, so every rank calls it
    bool elsewhere = false;  // of a resumed run: rank 0 has what was logged before
    EpochReduce reduce = EpochReduce::mean;
    Tensor last{};                      // f64 []
    Tensor sum{};                       // f64 []: by `reduce` the sum of value * weight, of values, the min, the max
    double weight = 0;                  // sum of batch sizes
    bool fresh = false;                 // logged since the last step record
    std::shared_ptr<Metric*> metric{};  // computes the epoch's value; holds null after the metric's end
    std::string path{};                 // of the metric in the module
    std::optional<double> finished{};   // value of the last epoch
  };

  // Where log() is called.
  struct Place {
    LogScope scope;
    const HookInfo& hook;
    int loader = -1;              // as in Entry
    std::int64_t batch_size = 1;  // weight of a value whose options have no batch_size
  };
  // Throws ConfigError for options that contradict the place, or those of an earlier call of the same name and hook.
  void log(std::string_view name, const Tensor& value, const LogOptions& options, const Place& place);
  // Logs the newest batch's value, and at the end of the epoch the metric's. Warns once of a metric that is not below
  // `tree`.
  void log(std::string_view name, const Metric& metric, nn::Module* tree, const LogOptions& options,
           const Place& place);
  [[nodiscard]] bool logs(const Metric& metric) const;
  [[nodiscard]] bool synchronizes() const;  // whether an entry that is logged on steps has sync_dist
  // Between begin_recording and end_recording log() notes what a replay of the recorded step must repeat on the host.
  // It throws CaptureError for what a replay cannot repeat: a value of the host, a new name.
  struct Noted {
    std::size_t entry;
    double weight;  // 0: not in the epoch's mean
  };
  void begin_recording(Device device);
  [[nodiscard]] std::vector<Noted> end_recording();
  void replayed(std::span<const Noted> noted);
  // Returns the values of the step: of each entry with on_step that was logged since the last call. If there are any,
  // the same copy reads the number in `beside`, an f64 cell.
  struct Step {
    Metrics values;
    std::optional<double> beside;
    Metrics synced{};  // of `values`, those with sync_dist
  };
  [[nodiscard]] Step take_step(const Tensor& beside = {});
  struct Mean {
    std::string name;  // with the number of its loader
    double value;
    int loader;
    bool logger;  // goes into records
  };
  // Returns the means of the epoch and starts the next epoch. Means for records come first. After them come names with
  // logger = false, and the plain names of entries that are logged on steps as well. With `ranks` the values are those
  // of all ranks together: Note [Values of several ranks]. Throws ConfigError where ranks logged different names.
  [[nodiscard]] std::vector<Mean> take_epoch(const Exchange& ranks = {});
  void reset();  // forgets all names; metrics are reset
  // Adds the newest value of each entry, under all its names. With `ranks` values of the epoch are those of all ranks.
  void newest(Metrics& into, const Exchange& ranks = {}) const;
  // Adds the values of entries with prog_bar.
  void progress(Metrics& into) const;

  // The sums of an open epoch, for a checkpoint.
  struct Saved {
    std::string name;
    bool on_step = false, on_epoch = false, prog_bar = false, logger = true;
    EpochReduce reduce = EpochReduce::mean;
    double sum = 0, weight = 0, last = 0;
    bool fresh = false;
    std::string hook{}, metric{};  // metric: the path of the Metric in the module; empty: none
  };
  [[nodiscard]] std::vector<Saved> save(const Exchange& ranks = {}) const;
  // Sums of all ranks go to rank 0 (`sums` = true), and the other ranks begin at 0.
  void load(const std::vector<Saved>& saved, nn::Module* tree, bool sums = true);
  void back_to(const std::vector<Saved>& saved);  // an earlier save() of this log: drops what was logged since

 private:
  // A value of the epoch, of this rank's entries and, with `ranks`, of entries that other ranks alone have.
  struct Value {
    std::string name;
    int loader;
    bool on_step, logger;
    double value;
    std::size_t entry;  // index; npos: this rank has none
  };
  static constexpr std::size_t npos = static_cast<std::size_t>(-1);
  [[nodiscard]] std::vector<Value> values(const Exchange& ranks) const;
  [[nodiscard]] std::vector<LogPart> parts() const;
  [[nodiscard]] std::size_t find(const LogPart& part) const;
  Entry& entry(std::string_view name, const LogOptions& options, const Place& place, Device device);
  std::vector<Entry> entries_;       // a few, in the order of logging
  std::optional<Device> recording_;  // of the step that is recorded
  std::vector<Noted> noted_;
};

void set_metric(Metrics& metrics, std::string_view name, double value);

// The weight of a batch in the mean of an epoch: size(0) of its first tensor, 1 if that has no dimension.
struct BatchWeight {
  std::int64_t size = 1;   // 0: the batch has no tensor
  bool ambiguous = false;  // the fields differ in size(0)
};
[[nodiscard]] BatchWeight weight_of(const Batch& batch);

// The metrics of a tree by path, and their states by "path.state".
[[nodiscard]] std::vector<std::pair<std::string, Metric*>> metrics_of(nn::Module* tree);
[[nodiscard]] NamedTensors metric_states(nn::Module* tree);
// The defined buffers of a tree, without the states of metrics: each rank and each pass has its own states.
[[nodiscard]] std::vector<nn::BufferRef> buffers_of_model(nn::Module* tree);

// Keeps the states of a tree's metrics and restores them at the end of the scope.
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
