// What checkpoint.cpp writes to files and reads from them, and resume.cpp puts into a run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/run/run.h"

namespace levin::train {

// A file's content, complete and whole: hashes are right, counters are not negative.
struct Checkpoint {
  std::string path;
  NamedTensors weights, rest;  // rest: under "levin."
  Progress progress;
  std::int64_t accumulate = 1;                        // batches an optimizer step, where a window is open
  std::vector<std::int64_t> batches_validated;        // by loader
  bool stop = false;                                  // was asked for
  std::string stopped_by;                             // by whom, and why
  std::optional<std::int64_t> max_epochs, max_steps;  // of its run; none: the file does not tell
  std::optional<bool> training;  // written between on_train_start and on_train_end; none: it does not tell
  std::int64_t batches_per_epoch = 0, batch_size = 0;  // 0: not known
  std::vector<std::string> writers_to_come;            // in the hook in which it was written
  std::vector<std::string> optimizers;
  std::size_t schedulers = 0;
  std::map<std::string, Metadata> callbacks;  // values by state key
  std::map<std::string, RandomRange> generators;
  std::vector<MetricLog::Saved> log;
  Metrics epoch_metrics;
  std::int64_t train_loaded_at = -1, val_loaded_at = -1;  // epochs in which hooks made loaders; -1: not told
  HParams hparams;

  // Its epoch has no batch left to train.
  [[nodiscard]] bool epoch_is_whole() const {
    return progress.due == Due::epoch_end ||
           (batches_per_epoch > 0 && progress.batches_done > 0 && progress.batches_done >= batches_per_epoch);
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

[[nodiscard]] bool is_ours(std::string_view name);  // of a tensor: below "levin."

// OutOfMemoryError, with what it is about, where `f` runs out of memory.
template <class F>
auto with_memory(const char* call, const std::string& path, std::size_t bytes, F&& f) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    fail<OutOfMemoryError>(call, ": ", path, ": the system has no more memory on cpu for the file's ", bytes, " bytes");
  }
}

// The tensors below a prefix, without it.
[[nodiscard]] NamedTensors below(const NamedTensors& all, std::string_view prefix);

inline constexpr std::string_view kMaster = ".master";  // of a 16-bit parameter, in an optimizer's state

// Throws ConfigError unless both hold the same names with the same shapes and dtypes, and lists what differs. Returns how many have
// another float dtype, where any will do.
struct Same {
  const char* call = "resume";
  bool any_float = false;
  bool strict = true;  // false: names that one of them lacks are told of
};
std::int64_t check_same(const std::string& path, const char* what, const NamedTensors& file, const NamedTensors& here,
                        const Same& how = {});

// The key under which the file has what this callback gets, empty where it has nothing for it; and what stands there.
[[nodiscard]] std::string key_in(const Checkpoint& file, const Trainer::Run& run, const Callback& callback);
[[nodiscard]] CallbackState state_in(const Checkpoint& file, const std::string& key);

// The weights of a run: the tree's state, or the optimizer's parameters when they are bare tensors.
[[nodiscard]] NamedTensors weights_of(const Trainer::Run& run);

// A file's content on its way into a run. Module and callbacks are shown it, the weights are put into the module, and until they are
// kept, behind all that may still refuse the file, the end of this puts the old ones back.
class Incoming {
 public:
  Incoming(Trainer::Run& run, Checkpoint file) : run_(run), file_(std::move(file)), weights_(file_.weights) {}
  ~Incoming();
  Incoming(const Incoming&) = delete;
  Incoming& operator=(const Incoming&) = delete;

  void ask_module();    // before the precision converts it: it may change its layers
  void take_weights();  // asks the callbacks; checked, and converted where the module has another float precision
  void keep() { before_.clear(); }
  [[nodiscard]] const Checkpoint& file() const { return file_; }
  [[nodiscard]] const NamedTensors& weights() const { return weights_; }  // as module and callbacks want them
  [[nodiscard]] const std::map<std::string, CallbackState>& states() const { return states_; }  // by state key

 private:
  void ask(Hooks& hooks, const std::string& own, const std::string& key);
  Trainer::Run& run_;
  Checkpoint file_;
  NamedTensors weights_, before_;  // before_: of the run, while they may have to come back
  std::map<std::string, CallbackState> states_;
  bool taken_ = false;
};

// Where checkpoints go without a folder of their own: the first logger's <log_dir>/checkpoints, else <root>/checkpoints.
[[nodiscard]] std::string checkpoint_folder(const Trainer& trainer, const TrainerOptions& options);

// Whether a path names a whole checkpoint of a run of Levin's, every hash right. Reads all of it.
[[nodiscard]] bool is_whole_checkpoint(const std::string& path) noexcept;

// Makes `link` a link to `file`, in the same folder, whatever it was before; in one step. A hard one is as good as a copy, because
// files are never written to in place. False when it can not be.
enum class Link : bool { symbolic, hard };
[[nodiscard]] bool link_to(const std::string& file, const std::string& link, Link kind) noexcept;
// Lets `write` make the file `path`. If that is a link, what is written to it would go to the file behind: then a new file takes the
// link's place, once it is complete. Throws what `write` throws, and `path` is what it was then; FileError where it can not be renamed.
void replace_link(const std::string& path, const Function<void(const std::string&)>& write);

}  // namespace levin::train
