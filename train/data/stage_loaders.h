// The loaders of a stage: those that a call is given, and those that hooks of data module and module make.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "levin/train.h"
#include "train/data/loader_advice.h"
#include "train/run/progress.h"

namespace levin::train {

// Loaders that are given are used at once. Hooks are asked when their loader is needed.
class StageLoaders {
 public:
  explicit StageLoaders(Trainer::Run& run) : run_(run) {}

  void forget();  // of a stage that begins or ends
  void begin_fit(const LoaderRefs& train, const LoaderRefs& val, const Overrides& has);
  void begin_evaluation() { inspected_.clear(); }
  void start_epoch(Progress& progress);  // the training loader goes to where the run stands
  // Both throw ConfigError for a loader that the options do not fit, before any work on it.
  void use_train(data::DataLoader& loader);
  void use_val(const std::vector<data::DataLoader*>& given);
  void load_train();
  void load_val();
  void reload_train();  // before an epoch and before a validation, where
  void reload_val();    // reload_dataloaders_every_n_epochs says so
  // The parts of sequential combinations are loaders of their own to an evaluation.
  [[nodiscard]] std::vector<data::DataLoader*> evaluated_in_turn(const std::vector<data::DataLoader*>& given,
                                                                 const char* name);
  [[nodiscard]] bool validates() const;  // the module can, and the options let it
  [[nodiscard]] bool overfits() const;   // training and validation read a few batches, in sequence

  data::DataLoader* train = nullptr;
  std::vector<data::DataLoader*> val;
  std::int64_t batches = 0;    // of an epoch
  std::int64_t val_every = 0;  // batches between validations; 0: by time, or none
  bool val_by_hook = false;    // a hook makes the loader, or will
  std::unique_ptr<data::DataLoader> own_train, own_val, own_evaluated;  // that hooks made
  std::int64_t train_loaded_at = 0, val_loaded_at = 0;                  // epochs in which hooks were asked

 private:
  void inspect(const data::DataLoader& loader, const std::string& name, Shuffling shuffling);  // once a stage
  void resolve_validation();
  Trainer::Run& run_;
  std::unique_ptr<data::DataLoader> combined_train_;
  std::set<std::string> inspected_;
};

}  // namespace levin::train
