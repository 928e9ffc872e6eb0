// The content of a checkpoint: its parts, the names of its tensors, and how it goes into a run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/train.h"
#include "train/logs/metric_log.h"
#include "train/run/progress.h"

namespace levin::train {

// Note [Checkpoint files]
// A checkpoint is one safetensors file. Its tensors:
//   NAME                       the weights under their own names, so PyTorch reads the file as a state dict
//   levin.optimizer.I.NAME     Optimizer::state_dict of optimizer I: PARAMETER.exp_avg, PARAMETER.step, group0.lr, ...
//   levin.lr_scheduler.I.NAME  Scheduler::state_dict of schedule I
//   levin.precision.NAME       GradScaler::state_dict, if the run has a loss scale
//   levin.precision_plugin.NAME  PrecisionPlugin::state_dict, if the run has one
//   levin.gradient.I.NAME      gradients of an open window of accumulation, and of manual optimization
//   levin.window_weight        the window's weight, with exact weighting
//   levin.metric.PATH          the states of the module's metrics
//   levin.callback.KEY.NAME    tensors of callbacks, of the module (levin.module) and of the data module (levin.data)
//   levin.rank.R.NAME          what rank R has of its own, in a file of several ranks: Note [Checkpoints of ranks]
// Its metadata, which a file of weights alone lacks:
//   levin.state   one JSON text (write_text.cpp): version, epoch, global_step, optimizers (names), lr_schedulers (their
//                 number), callbacks (values by KEY), hparams, generators, log (sums of an open epoch), metrics, and
//     loops       the counters of Progress (run/progress.h), batches_ahead, batches_per_epoch, batch_size, world_size,
//                 global_batch (batch_size of all ranks together), accumulate,
//                 batches_validated, train_loaded_at, val_loaded_at, max_epochs, max_steps, stop, stopped_by, training,
//                 closing, due, writers_to_come
//   levin.hashes  the XXH3 hash of every tensor and of that text
// A resume checks hashes, names and shapes before it changes the run.

class CheckpointFolder;

// The content of a file whose hashes are right and whose counters are in range.
struct Checkpoint {
  std::string path;
  // rest: under "levin.". What lies in a folder in pieces, or in the file of one rank, is a tensor on Device::meta()
  // there, and read() reads it.
  NamedTensors weights, rest;
  std::shared_ptr<CheckpointFolder> folder{};  // null: a file
  Progress progress;
  std::int64_t accumulate = 1;                        // accumulate_grad_batches if a window is open, else 1
  std::vector<std::int64_t> batches_validated;        // by loader
  bool stop = false;                                  // a stop was requested
  std::string stopped_by;                             // the request's origin and reason
  std::optional<std::int64_t> max_epochs, max_steps;  // of its run; none: the file has no such entry
  std::optional<bool> training;  // written between on_train_start and on_train_end; none: the file has no such entry
  std::int64_t batches_per_epoch = 0, batch_size = 0;  // 0: not known
  std::int64_t world_size = 1, global_batch = 0;       // global_batch: batch_size times the ranks that share the data
  std::vector<std::string> writers_to_come;            // state keys: see HookCalls::writers_to_come
  std::vector<std::string> optimizers;                 // their names
  std::size_t schedulers = 0;
  std::map<std::string, Metadata> callbacks;  // values by state key
  std::map<std::string, RandomRange> generators;
  std::vector<MetricLog::Saved> log;
  Metrics epoch_metrics;
  std::int64_t train_loaded_at = -1, val_loaded_at = -1;  // epochs in which hooks made loaders; -1: not known
  HParams hparams;

  // The values of a tensor of `rest`, whose name there is `name`; and the elements of this rank's piece of it, if it is
  // like parameter `of`, else all of it.
  [[nodiscard]] Tensor read(const std::string& name, const Tensor& t) const;
  [[nodiscard]] Tensor read_piece(const std::string& name, const Tensor& t, Strategy& strategy, const Tensor& of) const;
  // Whether no batch of the epoch is left to train.
  [[nodiscard]] bool epoch_is_whole() const {
    return progress.due == Due::epoch_end ||
           (batches_per_epoch > 0 && progress.batches_done > 0 && progress.batches_done >= batches_per_epoch);
  }
};
// Reads a file. Throws FileError, FormatError for a damaged file, and ConfigError for a file of weights alone, unless
// `needs` is weights: then the other members stay empty.
enum class Needs : bool { run, weights };
// Of a folder the ranks that read it together share the comparison of hashes.
[[nodiscard]] Checkpoint read_checkpoint(CheckpointIO& io, const std::string& path, Needs needs = Needs::run,
                                         const RankInfo& together = {});
[[nodiscard]] Checkpoint read_checkpoint(const std::string& path, Needs needs = Needs::run);  // a safetensors file

// The prefixes of the names in `rest`, by part of a run.
[[nodiscard]] std::string optimizer_prefix(std::size_t i);
[[nodiscard]] std::string gradient_prefix(std::size_t i);  // of an open window of accumulation
// The parameters of optimizer i whose gradients are part of a run's state. A parameter of two optimizers belongs to the
// first.
[[nodiscard]] std::vector<ParamRef> kept_gradients(const Trainer::Run& run, std::size_t i);
[[nodiscard]] std::string window_weight_name();  // with exact weighting
[[nodiscard]] std::string scheduler_prefix(std::size_t i);
[[nodiscard]] std::string metric_prefix();
[[nodiscard]] std::string precision_prefix();
[[nodiscard]] std::string precision_plugin_prefix();
[[nodiscard]] std::string callback_prefix(std::string_view key);
inline constexpr const char* kModuleKey = "levin.module";  // the state key of the module that is trained
inline constexpr const char* kDataKey = "levin.data";      // the state key of the data module

[[nodiscard]] bool is_ours(std::string_view name);  // whether the name of a tensor begins with "levin."

// Returns f(). Throws OutOfMemoryError, which names the file and its size, if `f` runs out of memory.
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

inline constexpr std::string_view kMaster = ".master";  // suffix of a 16-bit parameter's master in an optimizer's state

// Throws ConfigError, which lists the differences, unless both have the same names with the same shapes and dtypes.
// Returns the number of tensors with another float dtype.
struct Same {
  const char* call = "resume";
  bool any_float = false;  // true: another float dtype is no difference
  bool strict = true;      // false: a name that one of them lacks is a warning
};
std::int64_t check_same(const std::string& path, const char* what, const NamedTensors& file, const NamedTensors& here,
                        const Same& how = {});

// The key of this callback's state in the file, empty if the file has none; and the state under a key.
[[nodiscard]] std::string key_in(const Checkpoint& file, const Trainer::Run& run, const Callback& callback);
[[nodiscard]] CallbackState state_in(const Checkpoint& file, const std::string& key);

// The weights of a run: the state of the tree, or the parameters of the optimizers if they are bare tensors.
[[nodiscard]] NamedTensors weights_of(const Trainer::Run& run);

// Brings the content of a file into a run: calls on_load_checkpoint of module and callbacks, and loads the weights.
// Unless keep() was called, the destructor restores the old weights, because later parts may refuse the file.
class Incoming {
 public:
  Incoming(Trainer::Run& run, Checkpoint file) : run_(run), file_(std::move(file)), weights_(file_.weights) {}
  ~Incoming();
  Incoming(const Incoming&) = delete;
  Incoming& operator=(const Incoming&) = delete;

  // Calls the module's hook, before the precision converts the module: the hook may change layers.
  void ask_module();
  // Calls the callbacks' hooks, checks the weights, and loads them, converted to the module's float precision.
  void take_weights();
  void keep() { before_.clear(); }  // keeps the loaded weights
  [[nodiscard]] const Checkpoint& file() const { return file_; }
  [[nodiscard]] const NamedTensors& weights() const { return weights_; }  // after the hooks changed them
  [[nodiscard]] const std::map<std::string, CallbackState>& states() const { return states_; }  // by state key

 private:
  void ask(Hooks& hooks, const std::string& own, const std::string& key);
  Trainer::Run& run_;
  Checkpoint file_;
  NamedTensors weights_, before_;  // before_: the weights to restore
  std::map<std::string, CallbackState> states_;
  bool taken_ = false;
};

// The folder of checkpoints by default: the first logger's <log_dir>/checkpoints, else <root>/checkpoints.
[[nodiscard]] std::string checkpoint_folder(const Trainer& trainer, const TrainerOptions& options);

// Whether the path names a checkpoint of a run in which every hash is right. Reads the whole file.
[[nodiscard]] bool is_whole_checkpoint(CheckpointIO& io, const std::string& path) noexcept;

// Removes a file by `io`, or a folder.
void remove_checkpoint(CheckpointIO& io, const std::string& path);
// Replaces `link` by a link to `file`, in the same folder and in one step. A hard link serves as a copy, because files
// are never written in place; that of a folder is a folder of hard links. Returns false if the link cannot be made.
enum class Link : bool { symbolic, hard };
[[nodiscard]] bool link_to(const std::string& file, const std::string& link, Link kind) noexcept;
// Calls `write` to make the file `path`. If `path` is a link, `write` makes another file, which then replaces the link,
// so the link's target keeps its content. Throws what `write` throws, which leaves `path` as it was, and FileError if
// the file cannot be renamed.
void replace_link(const std::string& path, const Function<void(const std::string&)>& write);

}  // namespace levin::train
