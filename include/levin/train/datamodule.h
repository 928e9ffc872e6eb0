// DataModule: downloads, prepares and loads the data of a training, apart from the module that is trained.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <typeinfo>

#include "levin/data.h"
#include "levin/train/check_hooks.h"
#include "levin/train/hooks.h"
#include "levin/train/hparams.h"

namespace levin {

// The virtual functions of DataModule that a data module overrides.
struct DataOverrides {
  bool train_loader = false, val_loader = false, test_loader = false, predict_loader = false;
  bool on_before_batch_transfer = false, transfer_batch_to_device = false, on_after_batch_transfer = false;
};

// Derive from DataModuleOf and give it to fit, validate, test or predict:
//
//   struct Digits : DataModuleOf<Digits> {
//     data::DatasetRef train;
//     void setup(Stage) override { train = data::mnist("data/mnist", data::Split::train); }
//     std::unique_ptr<data::DataLoader> train_loader() override {
//       return std::make_unique<data::DataLoader>(train, data::DataLoaderOptions{.batch_size = 128, .shuffle = true});
//     }
//   };
//   Digits digits;
//   trainer.fit(net, digits);
//
// A stage calls prepare_data, setup, the loader hooks that it needs, and, also after an exception, teardown. setup and
// teardown come before those of callbacks and module. Loaders and transfers that the data module overrides replace the
// module's.
class LEVIN_API DataModule : public HasHParams {
 public:
  DataModule() = default;
  DataModule(const DataModule&) = delete;
  DataModule& operator=(const DataModule&) = delete;
  virtual ~DataModule();

  // Downloads, unpacks, converts: work that is done once, not by every process. Store nothing in the object here,
  // because other processes do not get it; a warning reports a change of the object (W-DATA-PREPARE).
  virtual void prepare_data() {}
  // True: prepare_data runs once on each node. False, for disks that nodes share: in the first process alone.
  [[nodiscard]] virtual bool prepare_data_per_node() const { return true; }
  // TrainModule::allow_zero_length_with_multiple_devices.
  [[nodiscard]] virtual bool allow_zero_length_with_multiple_devices() const { return false; }
  virtual void setup(Stage) {}  // makes the datasets, in every process; fit includes validation
  virtual void teardown(Stage) {}
  // Before the stage rethrows the exception, after the callbacks' and the module's. What it throws becomes a warning.
  virtual void on_exception(const std::exception&) {}

  // The loaders. Each is asked for when it is needed, once a stage or every reload_dataloaders_every_n_epochs epochs.
  // The trainer owns the loader. Null: none.
  [[nodiscard]] virtual std::unique_ptr<data::DataLoader> train_loader() { return nullptr; }
  [[nodiscard]] virtual std::unique_ptr<data::DataLoader> val_loader() { return nullptr; }
  [[nodiscard]] virtual std::unique_ptr<data::DataLoader> test_loader() { return nullptr; }
  [[nodiscard]] virtual std::unique_ptr<data::DataLoader> predict_loader() { return nullptr; }

  // A batch on its way to the device, as TrainModule has it.
  [[nodiscard]] virtual Batch on_before_batch_transfer(Batch batch) { return batch; }
  [[nodiscard]] virtual Batch transfer_batch_to_device(Batch batch, Device device);
  [[nodiscard]] virtual Batch on_after_batch_transfer(Batch batch) { return batch; }

  // Kept in checkpoints if it is not empty. A run that resumes calls load_state before it asks for loaders. Throw for a
  // state that does not fit: fit then rethrows, and the data module gets back what state() returned.
  [[nodiscard]] virtual CallbackState state() const { return {}; }
  virtual void load_state(const CallbackState&) {}

  [[nodiscard]] Trainer& trainer() const;  // throws StateError outside of a stage

 private:
  friend class Trainer;
  template <class, class>
  friend class DataModuleOf;
  [[nodiscard]] virtual DataOverrides overrides() const = 0;
  [[nodiscard]] virtual std::span<const std::byte> bytes() const = 0;  // of the object itself
  [[noreturn]] void fail_not_named(const std::type_info& named) const;
  Trainer* trainer_ = nullptr;
};

// Shows the trainer which functions Derived overrides. These functions are public and not overloaded. A struct derived
// from such a data module names itself again, else its first call throws ConfigError:
//
//   struct Augmented : DataModuleOf<Augmented, Digits> {};
template <class Derived, class Base = DataModule>
class DataModuleOf : public Base {
 public:
  using Base::Base;

 private:
  [[nodiscard]] DataOverrides overrides() const override {
    if (typeid(*this) != typeid(Derived)) this->fail_not_named(typeid(Derived));
    using D = Derived;
    using B = DataModule;
    return {.train_loader = detail::overrides(&D::train_loader, &B::train_loader),
            .val_loader = detail::overrides(&D::val_loader, &B::val_loader),
            .test_loader = detail::overrides(&D::test_loader, &B::test_loader),
            .predict_loader = detail::overrides(&D::predict_loader, &B::predict_loader),
            .on_before_batch_transfer = detail::overrides(&D::on_before_batch_transfer, &B::on_before_batch_transfer),
            .transfer_batch_to_device = detail::overrides(&D::transfer_batch_to_device, &B::transfer_batch_to_device),
            .on_after_batch_transfer = detail::overrides(&D::on_after_batch_transfer, &B::on_after_batch_transfer)};
  }
  [[nodiscard]] std::span<const std::byte> bytes() const override {
    return std::as_bytes(std::span(static_cast<const Derived*>(this), 1));
  }
};

}  // namespace levin
