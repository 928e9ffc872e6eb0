// Validation, test and predict, and the mean of a function over a loader.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "levin/train.h"

namespace levin {
namespace train {
enum class Loop : std::uint8_t { validation, test, predict };
}

class Trainer::Evaluation {
 public:
  explicit Evaluation(Run& run) : run_(run) {}

  struct Call {
    train::Loop loop;
    TrainModule* module = nullptr;  // null: that of the last call
    const LoaderRefs& loaders;
    DataModule* data = nullptr;
    std::string ckpt_path{};
    std::vector<Tensors>* predictions = nullptr;  // null: they are not kept
  };
  std::vector<Metrics> call(const Call& call);  // what validate, test and predict do
  // A stage of its own, or inside of one that runs. `instead` is called in place of the batches, with everything set up
  // for them: a search of the tuner.
  std::vector<Metrics> run(train::Loop loop, TrainModule& module, const std::vector<data::DataLoader*>& given,
                           std::vector<Tensors>* predictions = nullptr, const Function<void()>& instead = {},
                           const std::string& ckpt_path = {});
  double mean_over(nn::Module* tree, data::DataLoader& loader, const Function<Tensor(const Batch&)>& f);

  // ---- Validation in a fit
  void sanity_check();
  [[nodiscard]] bool epoch_validates() const;  // by check_val_every_n_epoch
  [[nodiscard]] bool due();                    // after the batch that was just trained
  void validate();

  // How many batches of each loader the options leave to an evaluation.
  [[nodiscard]] std::vector<std::int64_t> counts(train::Loop loop, const std::vector<data::DataLoader*>& of) const;

  std::vector<data::DataLoader*>* loaders = nullptr;  // of the innermost evaluation
  train::Loop current_loop = train::Loop::validation;
  int depth = 0;               // evaluations under way, one in a hook of another
  std::int64_t batches = 0;    // that the loader at hand will give
  bool sanity = false;         // the sanity check runs
  bool validating = false;     // the loop's own validation runs
  double last_validation = 0;  // end of it, or of set-up: seconds of the steady clock

 private:
  std::vector<Metrics> stage(train::Loop loop, TrainModule& module, const std::vector<data::DataLoader*>& given,
                             std::vector<Tensors>* predictions, const Function<void()>& instead,
                             const std::string& ckpt_path);
  std::vector<Metrics> all_batches(train::Loop loop, TrainModule& module, std::vector<data::DataLoader*> given,
                                   std::vector<Tensors>* predictions);
  void batches_of(train::Loop loop, TrainModule& module, data::DataLoader& loader, std::int64_t count,
                  std::vector<Tensors>* predictions);
  void one_batch(train::Loop loop, TrainModule& module, StepInfo& at);
  std::vector<Metrics> results(train::Loop loop, std::size_t count);
  Run& run_;
};

namespace train {
// "accuracy  0.98  0.97": a line a name, a column a loader; empty without metrics.
[[nodiscard]] std::string results_table(std::string_view call, const std::vector<Metrics>& results);
[[nodiscard]] double steady_seconds();

// The mode flags of all modules of a tree, put back at the end.
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
