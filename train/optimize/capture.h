// A training step as one recorded graph.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "levin/stream.h"
#include "levin/train.h"
#include "train/logs/metric_log.h"

namespace levin::train {

// What a step gave, detached.
struct StepResult {
  Tensor loss;  // undefined: nothing was returned
  NamedTensors outputs;
};

// Note [Whole-step capture]
// A shape of batch is first trained op by op (libraries choose their plans, state gets its memory), then recorded, then
// replayed. The record reads its batch from tensors of its own, into which each batch is copied. All that changes from step to
// step is read from memory: lr and momentum (Optimizer::prepare_replay), step counts, loss scale, the generators' offsets
// (Graph). So N steps one by one and N replays give the same bits; train/optimize/capture_test.cpp shows it. On the host a replay
// does what the step would have told it: logged names and weights, versions of what was written, gradients' handles.
class StepCapture {
 public:
  explicit StepCapture(const Trainer::Run& run);  // of a run that is set up

  // Makes of `batch` (on the device) what the step will read: for a recorded shape, the record's tensors with these values.
  void admit(Batch& batch);
  // One step of `run`; its result, detached. A replay overwrites that of the one before.
  StepResult step(Trainer::Run& run, const StepInfo& info);
  void prevent_by_hook(const char* hook, const Hooks& whose);
  void gradients_were_cleared() { newest_ = nullptr; }  // outside of a step

 private:
  static constexpr int kWarmUp = 3;          // steps before the first record; one for further shapes
  static constexpr std::size_t kShapes = 8;  // recorded at most: each keeps the memory of a step

  struct Record {
    std::vector<Shape> shapes;
    std::vector<DType> dtypes;
    std::int64_t samples;  // the weight of logged values, and what the step may divide by
    int trained = 0;       // steps before it was recorded
    Tensors inputs{};
    std::optional<Graph> graph{};
    StepResult result{};
    Tensors gradients{};  // of the optimizer's parameters
    std::vector<detail::Ref<detail::Storage>> written{};
    std::vector<MetricLog::Noted> logged{};
  };
  [[nodiscard]] Record* find(const Batch& batch);
  [[nodiscard]] bool changed(Trainer::Run& run);
  [[nodiscard]] bool record(Trainer::Run& run, const StepInfo& info, Record& to);
  StepResult replay(Trainer::Run& run, Record& record);
  void prevent(const std::string& why);
  void tell(Trainer::Run& run);

  // What records were made under: what of it changes, a replay would not obey.
  struct Stamp {
    std::uint64_t layout = 0;
    double clip = 0;
    ClipAlgorithm algorithm = ClipAlgorithm::norm;
    std::vector<char> flags{};  // requires_grad of parameters, training mode of modules
    bool operator==(const Stamp&) const = default;
  };
  Device device_;
  std::vector<Record> records_;
  Record* newest_ = nullptr;  // whose gradients the parameters hold
  bool recorded_ = false;     // a first record was made: libraries have their plans
  Stamp stamp_, now_;
  std::vector<const nn::Module*> modules_{};
  std::string prevented_by_;
  bool prevented_by_shapes_ = false, told_ = false;
};

}  // namespace levin::train
