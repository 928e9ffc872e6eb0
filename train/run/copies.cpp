// Stages in copies of this process: Note [Stages in copies] in levin/train/process_strategy.h.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "levin/serialize.h"
#include "levin/train/model_checkpoint.h"
#include "levin/warning.h"
#include "train/run/packed.h"
#include "train/run/run.h"

namespace levin {
namespace {

namespace fs = std::filesystem;
using train::Packed;
using train::Unpacked;

// A folder for the weights that come back.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code error;
    const fs::path base = fs::temp_directory_path(error);
    if (error) fail<FileError>("temporary files: ", error.message(), "; set TMPDIR to a folder");
    path_ = (base / "levin-stage-XXXXXX").string();
    if (!::mkdtemp(path_.data())) {
      fail<FileError>(path_, ": no folder could be made (", std::strerror(errno),
                      "); set TMPDIR to a folder in which files can be written");
    }
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] std::string file() const { return path_ + "/weights.safetensors"; }

 private:
  std::string path_;
};

void add(Packed& to, const Metrics& metrics) {
  to.add(metrics.size());
  for (const auto& [name, value] : metrics) to.add(name).add(value);
}
Metrics take_metrics(Unpacked& from) {
  Metrics metrics(from.take<std::size_t>());
  for (auto& [name, value] : metrics) {
    name = from.take<std::string>();
    value = from.take<double>();
  }
  return metrics;
}

// What both sides say of a run, in one order: each(f) calls f for every value.
template <class Run, class F>
void each_value(Run& run, const F& f) {
  train::Progress::each_counter(run.progress, [&](const char*, auto& counter, std::int64_t, bool) { f(counter); });
  f(run.progress.global_step);
  f(run.stop.requested);
  f(run.stop.kept);
  f(run.stop.requested_at);
  f(run.stop.by);
  f(run.stop.signal);
  f(run.files.resumed_from);
}

// What ModelCheckpoint callbacks have written, by their place among the callbacks.
void add_files(Packed& to, const std::vector<std::shared_ptr<Callback>>& callbacks) {
  for (std::size_t i = 0; i < callbacks.size(); ++i) {
    const auto* const checkpoint = dynamic_cast<const ModelCheckpoint*>(callbacks[i].get());
    if (!checkpoint) continue;
    const CallbackState state = checkpoint->state();
    to.add(i).add(state.values.size());
    for (const auto& [name, value] : state.values) to.add(name).add(value);
  }
  to.add(callbacks.size());
}
void take_files(Unpacked& from, const std::vector<std::shared_ptr<Callback>>& callbacks) {
  for (auto i = from.take<std::size_t>(); i < callbacks.size(); i = from.take<std::size_t>()) {
    CallbackState state{.values = {}, .tensors = {}};
    for (auto n = from.take<std::size_t>(); n > 0; --n) {
      std::string name = from.take<std::string>();
      state.values.emplace_back(std::move(name), from.take<std::string>());
    }
    if (auto* const checkpoint = dynamic_cast<ModelCheckpoint*>(callbacks[i].get())) checkpoint->load_state(state);
  }
}

}  // namespace

void Trainer::Run::fit_in_place(TrainModule& module, const FitOptions& given) {
  if (!strategy->runs_in_copies()) return fit(module, given);
  check_idle("fit");
  if (fitted_in_copies)
    fail<StateError>(
        "fit: this trainer has fitted in copies of this process (ddp_spawn), and what a second fit continues, such as "
        "the optimizer, ended with them; make another Trainer, and give it ckpt_path");
  DataModule* const data = train::data_module_of("fit", {&given.train, &given.val}, given.data_module);
  borrowed.remember(module, data);
  (void)in_copies("fit", module, [&] {
    fit(module, given);
    return std::vector<Metrics>();
  });
  fitted_in_copies = true;
}

std::vector<Metrics> Trainer::Run::in_copies(const char* call, TrainModule& module,
                                             const Function<std::vector<Metrics>()>& stage) {
  nn::Module* const tree = Borrowed::tree_of(module);
  if (!tree)
    fail<ConfigError>(
        call,
        ": the stage runs in copies of this process (ddp_spawn), values come back by their names, and the "
        "parameters belong to no module; put them into one, or use strategy ddp");
  warn("I-TRAIN-COPIES", WarningCategory::info,
       std::string(call) +
           ": the stage runs in copies of this process; weights, metrics and paths of checkpoints come back, the "
           "optimizer and attributes that the stage sets on module and callbacks do not");
  if (!logs.loggers.empty()) (void)logs.loggers.front()->log_dir();  // its folder is the same one in all stages
  const TemporaryFolder folder;
  const std::string packed = strategy->run_in_copies(options, [&] {
    const std::vector<Metrics> results = stage();
    if (trainer.is_global_zero()) save_safetensors(folder.file(), tree->state_dict());
    strategy->barrier();  // ranks wait for the file here: the end of the job waits for seconds alone
    if (!trainer.is_global_zero()) return std::string();
    Packed out;
    each_value(*this, [&](const auto& value) { out.add(value); });
    add(out, trainer.callback_metrics());
    out.add(logs.history.size());
    for (const LogRecord& record : logs.history) {
      out.add(record.step).add(record.epoch);
      add(out, record.values);
    }
    out.add(results.size());
    for (const Metrics& metrics : results) add(out, metrics);
    const train::Scope attached([&] { hooks.attach(&trainer); }, [&] { hooks.attach(nullptr); });
    add_files(out, hooks.callbacks);
    return out.bytes();
  });

  const NamedTensors weights = load_safetensors(folder.file()).tensors;
  const auto differs = [&](const auto& of) {
    const NamedTensors mine = tree->state_dict();
    return mine.size() != weights.size() || std::any_of(weights.begin(), weights.end(), [&](const auto& theirs) {
             return std::none_of(mine.begin(), mine.end(), [&](const auto& own) {
               return own.first == theirs.first && of(own.second, theirs.second);
             });
           });
  };
  if (differs([](const Tensor&, const Tensor&) { return true; })) module.configure_model();
  if (differs([](const Tensor& a, const Tensor& b) { return a.dtype() == b.dtype(); })) {
    const train::Scope mixed([&] { precision.convert(tree, device_of(tree)); },
                             [&, before = precision.mixed()] { precision.set_mixed(before); });
    (void)tree->load_state_dict(weights);
  } else {
    (void)tree->load_state_dict(weights);
  }
  Unpacked in(packed);
  each_value(*this, [&]<class T>(T& value) { value = in.take<T>(); });
  progress.position = {.epoch = progress.epoch};
  logs.epoch = take_metrics(in);
  logs.history.resize(in.take<std::size_t>());
  for (LogRecord& record : logs.history) {
    record.step = in.take<std::int64_t>();
    record.epoch = in.take<std::int64_t>();
    record.values = take_metrics(in);
  }
  std::vector<Metrics> results(in.take<std::size_t>());
  for (Metrics& metrics : results) metrics = take_metrics(in);
  const train::Scope attached([&] { hooks.attach(&trainer); }, [&] { hooks.attach(nullptr); });
  take_files(in, hooks.callbacks);
  return results;
}

}  // namespace levin
