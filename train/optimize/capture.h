// Records a training step as one graph, and replays it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "levin/autograd.h"
#include "levin/stream.h"
#include "levin/train.h"
#include "train/logs/metric_log.h"

namespace levin::train {

// The result of a step, detached.
struct StepResult {
  Tensor loss;  // undefined: the step returned none
  NamedTensors outputs;
};

// Note [Whole-step capture]
// Batches of a shape are first trained op by op, so that libraries choose their plans and state gets its memory. Then a
// step is recorded, and further steps are replays. The record reads its batch from tensors of its own, with the batch's
// order of dimensions in memory (channels last), into which each batch is copied: from the host where that is possible
// (Note [Copies beside the step]), else within the device. All that changes from step to step is read from memory: lr
// and momentum (Optimizer::prepare_replay), step counts, the loss scale, the generators' offsets (Graph). So N steps
// and N replays give the same bits. On the host a replay repeats the effects of the step: logged names and weights,
// versions of written tensors, and the handles of gradients.
class StepCapture {
 public:
  explicit StepCapture(const Trainer::Run& run);  // after the run's optimizers were made

  // Copies a batch of a recorded shape into the record's tensors, which replace its fields. `batch` is on the device;
  // its fields may be these tensors already.
  void admit(Batch& batch);
  // The tensors that a recorded step reads for this batch on cpu; null without a record.
  [[nodiscard]] const Tensors* inputs_of(const Batch& batch) const;
  // Trains one step. The next replay overwrites the result.
  StepResult step(Trainer::Run& run, const StepInfo& info);
  // Ends the recording of steps, because `whose` overrides a hook inside of them.
  void prevent_by_hook(const char* hook, const Hooks& whose);
  void gradients_were_cleared() { newest_ = nullptr; }  // to call after clearing them outside of a step

 private:
  static constexpr int kWarmUp = 3;          // steps before the first record; one for further shapes
  static constexpr std::size_t kShapes = 8;  // most shapes that are recorded; each keeps the memory of a step

  struct Record {
    std::vector<Shape> shapes;
    std::vector<Strides> layouts;  // of the fields on the device, where kernels choose by it
    std::vector<DType> dtypes;
    std::int64_t samples;  // the weight of logged values; the step may divide by it
    int trained = 0;       // steps before the recording
    Tensors inputs{};
    std::optional<Graph> graph{};
    StepResult result{};
    Tensors gradients{};              // of the optimizer's parameters, where they are dense
    std::vector<RowGradient> rows{};  // and where they are rows
    std::vector<detail::Ref<detail::Storage>> written{};
    std::vector<MetricLog::Noted> logged{};
    [[nodiscard]] bool fits(const Batch& batch) const;      // by shapes and dtypes
    [[nodiscard]] bool laid_out(const Batch& batch) const;  // a batch that fits: also by layouts
  };
  [[nodiscard]] Record* find(const Batch& batch);
  [[nodiscard]] bool changed(Trainer::Run& run);
  [[nodiscard]] bool record(Trainer::Run& run, const StepInfo& info, Record& to);
  StepResult replay(Trainer::Run& run, Record& record);
  void prevent(const std::string& why);
  void tell(Trainer::Run& run);

  // The settings under which records were made. A replay would ignore a change of them, so a change drops the records.
  struct Stamp {
    std::uint64_t layout = 0;
    double clip = 0;
    ClipAlgorithm algorithm = ClipAlgorithm::norm;
    std::vector<char> flags{};  // requires_grad of parameters, training mode of modules
    bool operator==(const Stamp&) const = default;
  };
  Device device_;
  std::vector<Record> records_;
  Record* newest_ = nullptr;  // the parameters have its gradients
  bool recorded_ = false;     // there was a record, so libraries have their plans
  Stamp stamp_, now_;
  std::vector<const nn::Module*> modules_{};
  std::string prevented_by_;
  bool prevented_by_shapes_ = false, told_ = false;
};

}  // namespace levin::train
