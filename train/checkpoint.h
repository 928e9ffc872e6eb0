// What checkpoint.cpp writes to files and reads from them, and resume.cpp puts into a run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/run.h"

namespace levin::train {

// A file's content, complete and whole: hashes are right, counters are not negative.
struct Checkpoint {
  std::string path;
  NamedTensors weights, rest;  // rest: under "levin."
  std::int64_t epochs_completed = 0, batches_in_epoch = 0, global_step = 0, total_batches = 0, records = 0;
  std::vector<std::int64_t> batches_ahead;  // of batches_in_epoch, those behind the first that was not trained
  std::int64_t accumulate = 1;              // batches an optimizer step, where a window is open
  std::int64_t skipped_batches = 0;
  std::int64_t validated_at = -1;                      // total_batches then
  std::vector<std::int64_t> batches_validated;         // by loader
  bool stop = false;                                   // was asked for
  std::int64_t batches_per_epoch = 0, batch_size = 0;  // 0: not known
  Trainer::Run::Due due = Trainer::Run::Due::nothing;
  std::vector<std::string> writers_to_come;  // in the hook in which it was written
  std::vector<std::string> optimizers;
  std::size_t schedulers = 0;
  std::map<std::string, Metadata> callbacks;  // values by state key
  std::map<std::string, RandomRange> generators;
  std::vector<MetricLog::Saved> log;
  Metrics epoch_metrics;
  std::int64_t train_loaded_at = -1, val_loaded_at = -1;  // epochs in which hooks made loaders; -1: not told
  HParams hparams;

  // Batches of the epoch that were trained without a gap.
  [[nodiscard]] std::int64_t batches_in_order() const {
    return batches_in_epoch - static_cast<std::int64_t>(batches_ahead.size());
  }
};
// Throws FileError, FormatError for a damaged file, ConfigError for weights alone, unless they are enough: then the rest is empty.
enum class Needs : bool { run, weights };
[[nodiscard]] Checkpoint read_checkpoint(const std::string& path, Needs needs = Needs::run);

// Where the parts of a run lie in `rest`.
[[nodiscard]] std::string optimizer_prefix(std::size_t i);
[[nodiscard]] std::string gradient_prefix(std::size_t i);  // of an open window of accumulation
// The parameters of optimizer i whose gradients belong to a run's state: all of manual optimization, of whose windows only the
// module knows. A parameter of two optimizers stands with the first.
[[nodiscard]] std::vector<ParamRef> kept_gradients(const Trainer::Run& run, std::size_t i);
[[nodiscard]] std::string window_weight_name();  // with exact weighting
[[nodiscard]] std::string scheduler_prefix(std::size_t i);
[[nodiscard]] std::string metric_prefix();
[[nodiscard]] std::string precision_prefix();
[[nodiscard]] std::string callback_prefix(std::string_view key);
inline constexpr const char* kModuleKey = "levin.module";  // the state key of the module that is trained
inline constexpr const char* kDataKey = "levin.data";      // and of its data module

// The tensors below a prefix, without it.
[[nodiscard]] NamedTensors below(const NamedTensors& all, std::string_view prefix);

// The weights of a run: the tree's state, or the optimizer's parameters when they are bare tensors.
[[nodiscard]] NamedTensors weights_of(const Trainer::Run& run);

// Where checkpoints go without a folder of their own: the first logger's <log_dir>/checkpoints, else <root>/checkpoints.
[[nodiscard]] std::string checkpoint_folder(const Trainer& trainer, const TrainerOptions& options);

// Makes `link` a link to `file`, in the same folder, whatever it was before; in one step. A hard one is as good as a copy, because
// files are never written to in place. False when it can not be.
enum class Link : bool { symbolic, hard };
[[nodiscard]] bool link_to(const std::string& file, const std::string& link, Link kind) noexcept;
// Lets `write` make the file `path`. If that is a link, what is written to it would go to the file behind: then a new file takes the
// link's place, once it is complete. Throws what `write` throws, and `path` is what it was then; FileError where it can not be renamed.
void replace_link(const std::string& path, const Function<void(const std::string&)>& write);

}  // namespace levin::train
