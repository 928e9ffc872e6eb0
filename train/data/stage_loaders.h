// The loaders of a stage: the loaders that a call is given, and those that hooks of data module and module make.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "levin/train.h"
#include "train/data/loader_advice.h"
#include "train/data/rank_share.h"
#include "train/run/progress.h"

namespace levin::train {

// The batches of an epoch whose end is not known yet: of a loader without a length, and without a limit. When the last
// batch is at hand StageLoaders::batches becomes the number of batches.
inline constexpr std::int64_t kUnknownBatches = std::numeric_limits<std::int64_t>::max();
// How many batches the limit leaves of the loader. Throws ConfigError, which names `option`: as Portion::of, for a
// fraction between 0 and 1 of a loader without a length, and for the whole of streams that never end.
[[nodiscard]] std::int64_t limited(const data::DataLoader& loader, const std::optional<Portion>& limit,
                                   const char* option);

// Whether the loader's streams say that they never end.
[[nodiscard]] inline bool never_ends(const data::DataLoader& loader) {
  return loader.stream() && loader.stream()->endless();
}

// Uses given loaders at once, and asks a hook when its loader is needed.
class StageLoaders {
 public:
  explicit StageLoaders(Trainer::Run& run) : run_(run) {}

  void forget();  // drops all loaders, at the beginning and at the end of a fit
  // Counts the batches of the given loaders, before any work. Throws what use_train and use_val throw.
  void begin_fit(const LoaderRefs& train, const LoaderRefs& val, const Overrides& has);
  void begin_evaluation() { inspected_.clear(); }  // a new stage, which warns of its loaders again
  void start_epoch(Progress& progress);            // sets the training loader to the position of the run
  void epoch_begins();                             // its number of batches may be unknown again
  // Whether the end of the epoch shows only by the loader's end, so that the loop looks one batch ahead. Streams that
  // never end may have no next batch for a long time, and the loop does not wait for it.
  [[nodiscard]] bool looks_ahead() const {
    return train && !train->length() && !never_ends(*train) && batches == most_;
  }
  // Set `train` and `val`, and count their batches by the options. Both throw ConfigError for a loader that contradicts
  // the options, before any work on it.
  void use_train(data::DataLoader& loader);
  void use_val(const std::vector<data::DataLoader*>& given);
  // Make the loader by a hook, unless it is there. load_train throws ConfigError for a hook that returns null.
  void load_train();
  void load_val();
  // Make the loader again if reload_dataloaders_every_n_epochs asks for it: before an epoch, before a validation.
  void reload_train();
  void reload_val();
  // The loaders of an evaluation, where each part of a sequential combination is a loader of its own. Of several ranks
  // each gets loaders of its part, which `keep` owns. Warns by inspect_loader; `name` is for the messages.
  [[nodiscard]] std::vector<data::DataLoader*> evaluated_in_turn(const std::vector<data::DataLoader*>& given,
                                                                 const char* name, std::vector<RankShare>& keep);
  // "1" for each loader of which any rank has a batch to evaluate, by this rank's `counts`, else "0". Throws
  // ConfigError for a loader that gives some ranks batches and others none, unless a distributed sampler divides it or
  // the module allows it.
  [[nodiscard]] std::string with_batches(const std::vector<data::DataLoader*>& of,
                                         const std::vector<std::int64_t>& counts) const;
  // This rank's part of a loader, if use_distributed_sampler is on.
  [[nodiscard]] RankShare share(const data::DataLoader& loader, Reads reads, const std::string& name) const;
  [[nodiscard]] bool validates() const;  // the module has a validation_step, and limit_val_batches is not 0
  [[nodiscard]] bool overfits() const;   // overfit_batches: training and validation read a few batches in sequence

  data::DataLoader* train = nullptr;   // of training; null until it is needed
  std::vector<data::DataLoader*> val;  // of validation; empty: none takes place
  std::int64_t batches = 0;            // of an epoch
  std::int64_t batch_size = 0;         // of the last training loader, also when it is gone; 0: not known
  std::int64_t val_every = 0;          // batches between validations; 0: by time, or none
  bool val_by_hook = false;            // a hook makes the validation loader, already or later
  std::unique_ptr<data::DataLoader> own_train, own_val, own_evaluated;  // loaders that hooks made
  std::int64_t train_loaded_at = 0, val_loaded_at = 0;                  // epochs in which hooks were asked

 private:
  std::int64_t most_ = 0;  // `batches`, before a loader without a length has ended
  // Calls inspect_loader once a stage for each name.
  void inspect(const data::DataLoader& loader, const std::string& name, Shuffling shuffling);
  void resolve_validation();
  void agree_on_training(const data::DataLoader& loader, std::int64_t whole);
  Trainer::Run& run_;
  std::unique_ptr<data::DataLoader> combined_train_;
  RankShare train_share_;
  std::vector<RankShare> val_shares_;
  std::set<std::string> inspected_;
};

}  // namespace levin::train
