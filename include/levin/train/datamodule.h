// DataModule: where the data of a training comes from, apart from the module that is trained with it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <typeinfo>

#include "levin/data.h"
#include "levin/train/hooks.h"
#include "levin/train/hparams.h"

namespace levin {

// Which of the virtual functions below a data module overrides.
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
// A stage calls prepare_data, setup, the loader hooks that it needs, and teardown, also after an exception. setup and teardown come
// before those of callbacks and module. Loaders are asked for here first, then of the module's hooks.
class LEVIN_API DataModule : public HasHParams {
 public:
  DataModule() = default;
  DataModule(const DataModule&) = delete;
  DataModule& operator=(const DataModule&) = delete;
  virtual ~DataModule();

  // Downloads, unpacks, converts: what is to be done once, not by every process. Nothing that it stores in the object reaches other
  // processes, so store it in setup; a warning tells where the object changed (W-DATA-PREPARE).
  virtual void prepare_data() {}
  // Whether prepare_data runs once on each node, or (false: for disks that nodes share) on the first process of all alone.
  [[nodiscard]] virtual bool prepare_data_per_node() const { return true; }
  virtual void setup(Stage) {}  // in every process; fit includes validation
  virtual void teardown(Stage) {}
  // What the stage is about to rethrow, behind the callbacks'. What it throws itself is lost.
  virtual void on_exception(const std::exception&) {}

  // Asked for when they are needed, train_loader behind the sanity check, and once a stage, or as often as
  // TrainerOptions::reload_dataloaders_every_n_epochs says; the trainer owns what comes. Null: none.
  [[nodiscard]] virtual std::unique_ptr<data::DataLoader> train_loader() { return nullptr; }
  [[nodiscard]] virtual std::unique_ptr<data::DataLoader> val_loader() { return nullptr; }
  [[nodiscard]] virtual std::unique_ptr<data::DataLoader> test_loader() { return nullptr; }
  [[nodiscard]] virtual std::unique_ptr<data::DataLoader> predict_loader() { return nullptr; }

  // In place of the module's.
  [[nodiscard]] virtual Batch on_before_batch_transfer(Batch batch) { return batch; }
  [[nodiscard]] virtual Batch transfer_batch_to_device(Batch batch, Device device);
  [[nodiscard]] virtual Batch on_after_batch_transfer(Batch batch) { return batch; }

  // Kept in checkpoints where there is something. A run that goes on is given it before the training loader is asked for. Throw for a
  // state that does not fit: fit then rethrows, and gives back what state() told before.
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

// Tells the trainer which functions of Derived are its own. A struct derived from such a data module names itself again: struct
// Augmented : DataModuleOf<Augmented, Digits>. One that does not is a ConfigError when it meets the trainer. The functions are public
// and not overloaded.
template <class Derived, class Base = DataModule>
class DataModuleOf : public Base {
 public:
  using Base::Base;

 private:
  template <class A, class B>
  static constexpr bool differ = !std::is_same_v<A, B>;
  [[nodiscard]] DataOverrides overrides() const override {
    if (typeid(*this) != typeid(Derived)) this->fail_not_named(typeid(Derived));
    using D = Derived;
    using B = DataModule;
    return {.train_loader = differ<decltype(&D::train_loader), decltype(&B::train_loader)>,
            .val_loader = differ<decltype(&D::val_loader), decltype(&B::val_loader)>,
            .test_loader = differ<decltype(&D::test_loader), decltype(&B::test_loader)>,
            .predict_loader = differ<decltype(&D::predict_loader), decltype(&B::predict_loader)>,
            .on_before_batch_transfer =
                differ<decltype(&D::on_before_batch_transfer), decltype(&B::on_before_batch_transfer)>,
            .transfer_batch_to_device =
                differ<decltype(&D::transfer_batch_to_device), decltype(&B::transfer_batch_to_device)>,
            .on_after_batch_transfer =
                differ<decltype(&D::on_after_batch_transfer), decltype(&B::on_after_batch_transfer)>};
  }
  [[nodiscard]] std::span<const std::byte> bytes() const override {
    return std::as_bytes(std::span(static_cast<const Derived*>(this), 1));
  }
};

}  // namespace levin
