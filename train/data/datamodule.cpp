// The data module's part of a stage: set-up, loaders, and the way of a batch to the device.
#include "levin/train/datamodule.h"

#include <algorithm>

#include "tensor/type_name.h"
#include "train/run/run.h"

namespace levin {
namespace {

// How many batches of the loader the limit leaves. overfit_batches sets the limits, and its loaders are read in sequence.
std::int64_t batches_of(const Trainer::Run& run, const data::DataLoader& loader, const std::optional<Portion>& limit,
                        const char* option, const char* id) {
  const bool overfits = run.overfits();
  const std::int64_t count = limit.value_or(Portion(1.0)).of(loader.size(), overfits ? "overfit_batches" : option);
  if (overfits && loader.shuffles())
    warn(id, WarningCategory::user,
         "fit: overfit_batches is set, and the loader that has " + std::string(option) +
             " shuffles; it is read in the order of its dataset, or where a sampler leaves out or repeats samples in "
             "that of the "
             "sampler's epoch 0, each epoch alike");
  return count;
}

}  // namespace

DataModule::~DataModule() = default;

Batch DataModule::transfer_batch_to_device(Batch batch, Device device) {
  return train::move_batch(std::move(batch), device);
}
Trainer& DataModule::trainer() const {
  if (!trainer_) fail<StateError>("DataModule: trainer() needs a stage; call it inside a hook");
  return *trainer_;
}
void DataModule::fail_not_named(const std::type_info& named) const {
  fail<ConfigError>("Trainer: a data module (", detail::type_name(typeid(*this)),
                    ") is derived from one that names itself (", detail::type_name(named),
                    "), so that what it overrides would not be seen; write struct D : DataModuleOf<D, Base> with that "
                    "one as Base");
}

DataModule* train::data_module_of(const char* call, std::initializer_list<const LoaderRefs*> loaders,
                                  DataModule* named) {
  DataModule* chosen = named;
  std::size_t count = 0;
  for (const LoaderRefs* refs : loaders) {
    count += refs->all().size();
    DataModule* const here = refs->data_module();
    if (here && chosen && here != chosen)
      fail<ConfigError>(call, ": two data modules were given, expected one; leave one out");
    if (here) chosen = here;
  }
  if (chosen && count > 0)
    fail<ConfigError>(call, ": a data module and ", count,
                      " loaders were given, expected one or the other; leave one out");
  return chosen;
}

Trainer::Run::DataScope::DataScope(Run& run, DataModule* data)
    : run_(run), before_(run.data_module), data_(data), overrides_before_(run.data_overrides) {
  const DataOverrides has = data ? data->overrides() : DataOverrides{};
  if (data) trainer_before_ = std::exchange(data->trainer_, &run.trainer);
  run.data_module = data;
  run.data_overrides = has;
}
Trainer::Run::DataScope::~DataScope() {
  if (data_) data_->trainer_ = trainer_before_;
  run_.data_module = before_;
  run_.data_overrides = overrides_before_;
}

Overrides Trainer::Run::overrides_of(const TrainModule& module) const {
  Overrides has = module.overrides();
  has.train_loader |= data_overrides.train_loader;
  has.val_loader |= data_overrides.val_loader;
  has.test_loader |= data_overrides.test_loader;
  has.predict_loader |= data_overrides.predict_loader;
  return has;
}

void Trainer::Run::check_transfers(const TrainModule& module) const {
  const Overrides has = module.overrides();
  const DataOverrides& data = data_overrides;
  std::string both;
  const auto look = [&](bool here, bool there, const char* hook) {
    if (here && there) both += (both.empty() ? "" : ", ") + std::string(hook);
  };
  look(data.on_before_batch_transfer, has.on_before_batch_transfer, "on_before_batch_transfer");
  look(data.transfer_batch_to_device, has.transfer_batch_to_device, "transfer_batch_to_device");
  look(data.on_after_batch_transfer, has.on_after_batch_transfer, "on_after_batch_transfer");
  if (!both.empty())
    warn("W-DATA-TRANSFER", WarningCategory::user,
         std::string(call_name) + ": data module and module both override " + both +
             "; the data module's are called, drop the others");
}

void Trainer::Run::call_setup(Stage stage) {
  if (data_module) {
    if (train::prepares_data(ranks, data_module->prepare_data_per_node())) {
      const ProfilerScope profiled(options.profiler.get(), "prepare_data");
      const std::span<const std::byte> bytes = data_module->bytes();
      const std::vector<std::byte> before(bytes.begin(), bytes.end());
      data_module->prepare_data();
      if (!std::equal(bytes.begin(), bytes.end(), before.begin()))
        warn("W-DATA-PREPARE", WarningCategory::possible_user,
             std::string(call_name) +
                 ": prepare_data changed the data module; in a run of several processes the others do not see that; "
                 "store it in setup");
    }
    const ProfilerScope profiled(options.profiler.get(), "setup_data");
    data_module->setup(stage);
  }
  call(train::hooks::setup, stage);
}

std::unique_ptr<data::DataLoader> Trainer::Run::loader_of_hook(std::optional<Loop> loop, TrainModule& module) const {
  const DataOverrides& has = data_overrides;  // none without a data module
  if (!loop) return has.train_loader ? data_module->train_loader() : module.train_loader();
  if (*loop == Loop::validation) return has.val_loader ? data_module->val_loader() : module.val_loader();
  if (*loop == Loop::test) return has.test_loader ? data_module->test_loader() : module.test_loader();
  return has.predict_loader ? data_module->predict_loader() : module.predict_loader();
}

// A hook of the data module goes before that of the module. What neither has is not called: their bodies do nothing that
// precision.inputs does not do in place, and a Batch is much to hand on for nothing in each step.
void Trainer::Run::to_device(TrainModule& module, Batch& batch, Device where) {
  const ProfilerScope profiled(options.profiler.get(), "batch_to_device");
  const DataOverrides& data = data_overrides;
  const Overrides own = module.overrides();
  if (data.on_before_batch_transfer)
    batch = data_module->on_before_batch_transfer(std::move(batch));
  else if (own.on_before_batch_transfer)
    batch = module.on_before_batch_transfer(std::move(batch));
  if (data.transfer_batch_to_device)
    batch = data_module->transfer_batch_to_device(std::move(batch), where);
  else if (own.transfer_batch_to_device)
    batch = module.transfer_batch_to_device(std::move(batch), where);
  precision.inputs(batch, where);
  if (data.on_after_batch_transfer)
    batch = data_module->on_after_batch_transfer(std::move(batch));
  else if (own.on_after_batch_transfer)
    batch = module.on_after_batch_transfer(std::move(batch));
}

// ---- Loaders of a fit

bool Trainer::Run::validates() const {
  return overrides.validation_step && !(options.limit_val_batches && options.limit_val_batches->is_zero());
}

void Trainer::Run::inspect(const data::DataLoader& loader, const std::string& name, train::Shuffling shuffling) {
  if (trial || searching || !inspected.insert(name).second) return;
  train::inspect_loader(loader, name, shuffling, options.reload_dataloaders_every_n_epochs);
}

namespace {
// One behind the other is several loaders to an evaluation.
std::vector<data::DataLoader*> in_turn(const std::vector<data::DataLoader*>& loaders) {
  std::vector<data::DataLoader*> all;
  for (data::DataLoader* l : loaders) {
    if (l->parts() == 0 || l->combined_by() != data::CombineMode::sequential) {
      all.push_back(l);
      continue;
    }
    for (std::size_t k = 0; k < l->parts(); ++k) all.push_back(&l->part(k));
  }
  return all;
}
}  // namespace

std::vector<data::DataLoader*> Trainer::Run::evaluated_in_turn(const std::vector<data::DataLoader*>& loaders,
                                                               const char* name) {
  std::vector<data::DataLoader*> all = in_turn(loaders);
  for (std::size_t l = 0; l < all.size(); ++l)
    inspect(*all[l], all.size() == 1 ? std::string(name) : name + (" " + text(l)), train::Shuffling::is_unusual);
  return all;
}

// Both throw ConfigError for a loader that the options do not fit, before any work on it.
void Trainer::Run::use_train(data::DataLoader& train) {
  if (train.parts() > 0 && train.combined_by() == data::CombineMode::sequential)
    fail<ConfigError>(
        "fit: the training loader is combined as sequential, which is for evaluations; use "
        "max_size_cycle, min_size or max_size");
  inspect(train, "train_loader", train::Shuffling::is_usual);
  batches = batches_of(*this, train, options.limit_train_batches, "limit_train_batches", "W-TRAIN-OVERFIT");
  train_loader = &train;
  resolve_validation();
}
void Trainer::Run::use_val(const std::vector<data::DataLoader*>& given) {
  val_loaders.clear();
  if (!validates()) return;
  const std::vector<data::DataLoader*> val = evaluated_in_turn(given, "val_loader");
  for (const data::DataLoader* v : val)
    (void)batches_of(*this, *v, options.limit_val_batches, "limit_val_batches", "W-TRAIN-OVERFIT-VAL");
  const std::vector<std::int64_t> counts = batches_to_evaluate(Loop::validation, val);
  if (std::all_of(counts.begin(), counts.end(), [](std::int64_t n) { return n == 0; })) return;  // as without one
  val_loaders = val;
  if (train_loader) resolve_validation();
}

void Trainer::Run::load_train() {
  if (train_loader) return;
  own_train.reset();  // its threads and pages go before the next one's come
  own_train = loader_of_hook(std::nullopt, *active);
  if (!own_train)
    fail<ConfigError>("fit: the ", data_overrides.train_loader ? "data module" : "module",
                      "'s train_loader gave null, expected a loader; give .train = &loader");
  train_loaded_at = epoch;
  use_train(*own_train);
}
void Trainer::Run::load_val() {
  if (!val_by_hook || own_val) return;
  own_val = loader_of_hook(Loop::validation, *active);
  val_loaded_at = epoch;
  use_val(own_val ? std::vector<data::DataLoader*>{own_val.get()} : std::vector<data::DataLoader*>{});
  val_by_hook = !val_loaders.empty();
}
void Trainer::Run::reload_train() {
  const std::int64_t every = options.reload_dataloaders_every_n_epochs;
  if (every == 0 || trial || !own_train || epoch - train_loaded_at < every) return;
  train_loader = nullptr;
  load_train();
}
void Trainer::Run::reload_val() {
  const std::int64_t every = options.reload_dataloaders_every_n_epochs;
  if (every == 0 || trial || !own_val || epoch - val_loaded_at < every) return;
  val_loaders.clear();
  own_val.reset();
  load_val();
}

// ---- Hyper-parameters

HParams Trainer::Run::all_hparams() const {
  HParams all = active->hparams();
  if (!data_module) return all;
  for (const auto& [name, value] : data_module->hparams()) {
    const std::string& key = name;
    const auto same = std::find_if(all.begin(), all.end(), [&](const auto& h) { return h.first == key; });
    if (same == all.end()) {
      all.emplace_back(name, value);
      continue;
    }
    const HParam& other = same->second;
    const bool equal = value.kind() != other.kind() && value.is_number() && other.is_number()
                           ? value.number() == other.number()
                           : value == other;
    if (!equal)
      fail<ConfigError>("fit: the hparam \"", name, "\" is ", other.as_text(), " in the module and ", value.as_text(),
                        " in the data module; give it one value, or two names");
  }
  return all;
}

}  // namespace levin
