// The modules, data modules and optimizers that a run borrows from the user.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "levin/train.h"
#include "train/run/evaluation.h"

namespace levin {

class Trainer::Borrowed {
 public:
  // Sets the data module of a stage for a scope. Throws ConfigError for a data module that does not name itself.
  class DataScope {
   public:
    DataScope(Borrowed& borrowed, Trainer& trainer, DataModule* data);
    ~DataScope();
    DataScope(const DataScope&) = delete;
    DataScope& operator=(const DataScope&) = delete;

   private:
    Borrowed& borrowed_;
    DataModule *before_, *data_;
    DataOverrides overrides_before_;
    Trainer* trainer_before_ = nullptr;
  };
  // Sets the trainer of a module for a scope. A null module is allowed.
  class ModuleScope {
   public:
    ModuleScope(TrainModule* module, Trainer* trainer)
        : module_(module), before_(module ? std::exchange(module->trainer_, trainer) : nullptr) {}
    ~ModuleScope() {
      if (module_) module_->trainer_ = before_;
    }
    ModuleScope(const ModuleScope&) = delete;
    ModuleScope& operator=(const ModuleScope&) = delete;

   private:
    TrainModule* module_;
    Trainer* before_;
  };

  static void attach(TrainModule& module, Trainer* trainer) { module.trainer_ = trainer; }
  [[nodiscard]] static nn::Module* tree_of(TrainModule& module) { return module.tree(); }
  [[nodiscard]] static Overrides own_overrides_of(const TrainModule& module) { return module.overrides(); }
  [[nodiscard]] nn::Module* tree_of_active() const { return tree_of(*active); }
  [[nodiscard]] Overrides overrides_of(const TrainModule& module) const;  // with the data module's loaders
  // Warns of transfer hooks that data module and module both override.
  void check_transfers(const char* call, const TrainModule& module) const;
  // Makes the loader of a loop by the hook of the data module, else of the module. `loop`: unset is training. Returns
  // what the hook returns, which may be null.
  [[nodiscard]] std::unique_ptr<data::DataLoader> loader_of_hook(std::optional<train::Loop> loop,
                                                                 TrainModule& module) const;
  // Of data module and module. Throws ConfigError for a name with two values.
  [[nodiscard]] HParams all_hparams() const;

  void remember(TrainModule& module, DataModule* data);  // for calls without a module
  void begin_fit(TrainModule& module);
  [[nodiscard]] bool last_lives() const { return !last_alive_.expired(); }
  [[nodiscard]] bool lives(bool in_fit) const;            // whether module and optimizers of the last fit exist
  void check_lives(const char* call, bool in_fit) const;  // throws StateError
  void watch(optim::Optimizer& optimizer) { optimizers_alive_.push_back(optimizer.alive()); }

  // Of the current stage.
  TrainModule* active = nullptr;  // null: no stage runs
  DataModule* data_module = nullptr;
  DataOverrides data_overrides;
  // Of the running or last fit.
  TrainModule* fit_module = nullptr;  // null after one of an optimizer and a function
  DataModule* fit_data = nullptr;
  nn::Module* tree = nullptr;
  Overrides overrides;                               // of the module and its data module's loaders
  const optim::Optimizer* lone_optimizer = nullptr;  // of bare tensors
  bool fitted = false, manual = false;
  bool same_module = false;  // as in the fit before
  // Of the last call.
  TrainModule* last_module = nullptr;
  DataModule* last_data_module = nullptr;

 private:
  const void* trained_ = nullptr;  // the tree, or the optimizer of bare tensors
  std::weak_ptr<const void> trained_alive_, last_alive_;
  std::vector<std::weak_ptr<const void>> optimizers_alive_;
};

namespace train {
// Returns the data module that was given in place of loaders, or `named`; null without one. Throws ConfigError for two
// data modules, and for a data module with loaders.
[[nodiscard]] DataModule* data_module_of(const char* call, std::initializer_list<const LoaderRefs*> loaders,
                                         DataModule* named);
}  // namespace train
}  // namespace levin
