// The checkpoints of a run: writes them, finds the one that a ckpt_path names, and resumes from it.
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
using SavedStates = std::vector<std::pair<std::string, CallbackState>>;  // by state key
struct FoundCheckpoint {
  std::string path;                       // empty: none
  std::shared_ptr<Checkpoint> content{};  // where it was read to be chosen
};
}  // namespace train

class Trainer::Files {
 public:
  explicit Files(Run& run) : run_(run) {}

  void save(const std::string& path, WeightsOnly weights);
  [[nodiscard]] std::string save_interrupted();  // what became of it, for the error
  // The file that a ckpt_path names. Throws ConfigError for "best" without one; none and a warning for "last".
  [[nodiscard]] train::FoundCheckpoint find(const std::string& ckpt_path) const;
  // The content of the file of a ckpt_path on its way into a fit, shown to the module; null where there is no file.
  [[nodiscard]] std::unique_ptr<train::Incoming> open(const std::string& ckpt_path);
  // Compares a file with the run, and only then changes the run.
  void resume(train::Incoming& file);
  // For an evaluation; changes nothing when it throws.
  void load_weights(const train::FoundCheckpoint& file, TrainModule& module);
  [[nodiscard]] std::string dir() const;
  // <folder>/last.safetensors, or the first version of it that is no other run's.
  [[nodiscard]] std::string last_file(const std::string& folder) const;
  [[nodiscard]] bool enabled() const;

  void begin_fit();  // one that resumes from no file
  void cut_epoch();  // before on_train_epoch_end runs in the middle of an epoch

  std::string resumed_from;
  std::int64_t resumed_at = -1;        // total_batches then
  std::set<std::string> written;       // files of this run, by the paths they were given: those may be replaced
  std::optional<train::EpochCut> cut;  // of the running or last fit
  // Between on_train_start and on_train_end; and whether the file that the run resumes from was written there, so that
  // what was left of its training is done also where the limits are reached.
  bool training = false, unfinished = false;

 private:
  void write(const std::string& path, WeightsOnly weights);
  [[nodiscard]] train::SavedStates ask_all(CheckpointContent& content, WeightsOnly only);
  [[nodiscard]] std::string best() const;
  [[nodiscard]] train::FoundCheckpoint last() const;
  // To the field of a BatchSizeFinder the size that it had found in the run that wrote the file, before loaders are
  // made.
  void give_back_batch_size(const train::Checkpoint& file) const;
  void take_stop(const train::Checkpoint& file);
  Run& run_;
};

}  // namespace levin
