// Evaluations: validate, test, predict, the validations of a fit, and the mean of a function over a loader.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/train.h"

namespace levin {
namespace train {
enum class Loop : std::uint8_t { validation, test, predict };
class Predictions;
struct RankShare;
}  // namespace train

class Trainer::Evaluation {
 public:
  explicit Evaluation(Run& run) : run_(run) {}

  struct Call {
    train::Loop loop;
    TrainModule* module = nullptr;  // null: the module of the last call
    const LoaderRefs& loaders;
    DataModule* data = nullptr;
    std::string ckpt_path{};
    std::vector<Tensors>* predictions = nullptr;  // null: predictions are not kept
  };
  std::vector<Metrics> call(const Call& call);  // Trainer::validate, test and predict
  // Evaluates as a stage of its own, or inside of the stage that runs. A search of the tuner passes `instead`, which is
  // called in place of the batches, after the set-up. Returns the metrics of each loader.
  std::vector<Metrics> run(train::Loop loop, TrainModule& module, const std::vector<data::DataLoader*>& given,
                           std::vector<Tensors>* predictions = nullptr, const Function<void()>& instead = {},
                           const std::string& ckpt_path = {});
  // Trainer::evaluate: the mean of f over the samples of the loader, with `tree` in eval mode.
  double mean_over(nn::Module* tree, data::DataLoader& loader, const Function<Tensor(const Batch&)>& f);

  // ---- Validation in a fit
  void sanity_check();                         // num_sanity_val_steps batches before the first epoch
  [[nodiscard]] bool epoch_validates() const;  // by check_val_every_n_epoch, if there is a loader
  [[nodiscard]] bool due();                    // whether a validation follows the batch that was just trained
  void validate();                             // the loop's own validation

  // The number of batches of each loader that the options leave to an evaluation.
  [[nodiscard]] std::vector<std::int64_t> counts(train::Loop loop, const std::vector<data::DataLoader*>& of) const;

  std::vector<data::DataLoader*>* loaders = nullptr;  // of the innermost evaluation
  train::Loop current_loop = train::Loop::validation;
  int depth = 0;               // evaluations that run, each in a hook of the one before
  std::int64_t batches = 0;    // of the current loader
  bool sanity = false;         // the sanity check runs
  bool validating = false;     // the loop's own validation runs
  double last_validation = 0;  // end of the last validation, or of the set-up: seconds of the steady clock

 private:
  std::vector<Metrics> stage(train::Loop loop, TrainModule& module, const std::vector<data::DataLoader*>& given,
                             std::vector<Tensors>* predictions, const Function<void()>& instead,
                             const std::string& ckpt_path);
  // shares: those of the loaders that are one rank's part.
  std::vector<Metrics> all_batches(train::Loop loop, TrainModule& module, std::vector<data::DataLoader*> given,
                                   std::vector<Tensors>* predictions, std::span<const train::RankShare> shares);
  void batches_of(train::Loop loop, TrainModule& module, data::DataLoader& loader, std::int64_t count, Device there,
                  train::Predictions* predictions);
  [[nodiscard]] train::Predictions predictions_of(const data::DataLoader& loader,
                                                  std::span<const train::RankShare> shares) const;
  void one_batch(train::Loop loop, TrainModule& module, StepInfo& at);
  std::vector<Metrics> results(train::Loop loop, std::size_t count);
  Run& run_;
};

namespace train {
// "accuracy  0.98  0.97": a line for each name, a column for each loader; empty without metrics.
[[nodiscard]] std::string results_table(std::string_view call, const std::vector<Metrics>& results);
[[nodiscard]] double steady_seconds();  // of the steady clock

// Restores the mode flags of all modules of a tree at the end of the scope.
class ModeGuard {
 public:
  explicit ModeGuard(nn::Module* tree);
  ~ModeGuard();
  ModeGuard(const ModeGuard&) = delete;
  ModeGuard& operator=(const ModeGuard&) = delete;

 private:
  std::vector<std::pair<nn::Module*, bool>> before_;
};
}  // namespace train
}  // namespace levin
