// The checkpoints of a run: writes files, finds the file that a ckpt_path names, and resumes from a file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "levin/train.h"
#include "train/run/resume_point.h"

namespace levin {
namespace train {
struct Checkpoint;
class Incoming;
enum class Needs : bool;
// What a save to a path that exists changes. follow: the file, or the one that a link leads to. replace: a link alone,
// which becomes a file. nothing: the save is a FileError.
enum class AtLink : std::uint8_t { follow, replace, nothing };
using SavedStates = std::vector<std::pair<std::string, CallbackState>>;  // by state key
struct FoundCheckpoint {
  std::string path;                       // empty: there is no file
  std::shared_ptr<Checkpoint> content{};  // null unless the search has read the file
};
}  // namespace train

class Trainer::Files {
 public:
  explicit Files(Run& run) : run_(run) {}

  // Writes a checkpoint. Every rank calls it, rank 0 writes, and its errors are errors of all; in on_exception, where
  // other ranks may be gone, rank 0 writes what it has, and others do nothing. Throws FileError, OutOfMemoryError, and
  // ConfigError for a weight whose name begins with "levin.". In a trial of the tuner it only warns.
  void save(const std::string& path, WeightsOnly weights, train::AtLink at_link = train::AtLink::follow);
  // Whether other ranks take part in what this one does now: not in on_exception.
  [[nodiscard]] bool together() const;
  // What rank 0 decides by its disk and its clock. Outside of together() every rank answers by itself.
  [[nodiscard]] std::string by_rank_zero(const Function<std::string()>& f) const;
  // Saves the run as `last` after a signal. Returns the result, also an error of the save, as text for the
  // error.
  [[nodiscard]] std::string save_interrupted();
  // Saves the run of a failed job, on this rank alone: Note [Rescue checkpoints]. Returns the result as
  // save_interrupted does.
  [[nodiscard]] std::string rescue();
  // The same under SLURM: saves hpc_ckpt_N, and puts the job back into the queue.
  [[nodiscard]] std::string save_and_requeue();
  [[nodiscard]] CheckpointIO& io() const;  // that of the plug-ins, or the default
  void finish() const;                     // waits for saves that are under way; their errors are those of all ranks
  void finish_quietly() const;             // the same while an exception is in flight; an error is a warning
  // The file that a ckpt_path names. Throws ConfigError if there is none for "best"; warns if there is none for "last".
  [[nodiscard]] train::FoundCheckpoint find(const std::string& ckpt_path) const;
  // The same for a fit, which resumes a requeued job without a ckpt_path.
  [[nodiscard]] train::FoundCheckpoint find_for_fit(const std::string& ckpt_path);
  // Reads the file that a ckpt_path names, and calls on_load_checkpoint of the module. Returns null without a file.
  [[nodiscard]] std::unique_ptr<train::Incoming> open(const std::string& ckpt_path);
  // The content of what find() has found, on every rank. If a rank cannot read it, all ranks throw its error.
  [[nodiscard]] train::Checkpoint read(const train::FoundCheckpoint& found, train::Needs needs) const;
  // Compares a file with the run, and only then changes the run. Throws ConfigError for a file that does not fit.
  void resume(train::Incoming& file);
  // Loads the weights of a file for an evaluation. An exception leaves the module as it is.
  void load_weights(const train::FoundCheckpoint& file, TrainModule& module);
  // The folder of the first callback that has one, else train::checkpoint_folder.
  [[nodiscard]] std::string dir() const;
  // <folder>/last with ending(), or its first version that is not of another run.
  [[nodiscard]] std::string last_file(const std::string& folder) const;
  [[nodiscard]] std::string ending() const;  // of the checkpoints that the trainer names: Note [Checkpoint folders]
  [[nodiscard]] bool enabled() const;        // enable_checkpointing is on, and this is no dev run

  void begin_fit();  // forgets the file that the fit before resumed from
  void cut_epoch();  // keeps the state before on_train_epoch_end runs in the middle of an epoch

  std::string folder_of_logger;        // Logger::log_dir of rank 0's first logger, for the other ranks
  std::string resumed_from;            // path of the file; empty: none
  std::int64_t resumed_at = -1;        // total_batches at the resume
  std::set<std::string> written;       // paths that this run has written, whose files it may replace
  std::optional<train::EpochCut> cut;  // of the running or last fit
  // training: between on_train_start and on_train_end. unfinished: the run resumes from a file that was written there,
  // so it ends its training also where the limits are reached.
  bool training = false, unfinished = false;
  bool saving = false;  // a checkpoint is being written

 private:
  void write(const std::string& path, WeightsOnly weights, train::AtLink at_link);
  [[nodiscard]] train::SavedStates ask_all(const std::vector<std::shared_ptr<Callback>>& asked,
                                           CheckpointContent& content, WeightsOnly only);
  [[nodiscard]] std::string best() const;
  [[nodiscard]] train::FoundCheckpoint last() const;
  [[nodiscard]] train::FoundCheckpoint hpc() const;  // nothing: there is none
  // Sets the field of each BatchSizeFinder to the size that it has in the file, before loaders are made.
  void give_back_batch_size(const train::Checkpoint& file) const;
  void take_stop(const train::Checkpoint& file);
  void leave_epoch(const std::string& why);  // of a file whose batches this run does not have
  Run& run_;
  bool apart_ = false;      // a save that began in on_exception, or without the other ranks
  bool rescuing_ = false;   // this rank writes, whichever it is
  std::int64_t began_ = 0;  // the fit, in nanoseconds of the files' clock
  bool looks_hpc_ = true;   // until the first fit of this trainer has looked for a file of a requeued job
};

}  // namespace levin
