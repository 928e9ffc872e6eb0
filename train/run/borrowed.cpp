#include "train/run/borrowed.h"

#include <algorithm>

namespace levin {

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

Trainer::Borrowed::DataScope::DataScope(Borrowed& borrowed, Trainer& trainer, DataModule* data)
    : borrowed_(borrowed), before_(borrowed.data_module), data_(data), overrides_before_(borrowed.data_overrides) {
  const DataOverrides has = data ? data->overrides() : DataOverrides{};
  if (data) trainer_before_ = std::exchange(data->trainer_, &trainer);
  borrowed.data_module = data;
  borrowed.data_overrides = has;
}
Trainer::Borrowed::DataScope::~DataScope() {
  if (data_) data_->trainer_ = trainer_before_;
  borrowed_.data_module = before_;
  borrowed_.data_overrides = overrides_before_;
}

Overrides Trainer::Borrowed::overrides_of(const TrainModule& module) const {
  Overrides has = module.overrides();
  has.train_loader |= data_overrides.train_loader;
  has.val_loader |= data_overrides.val_loader;
  has.test_loader |= data_overrides.test_loader;
  has.predict_loader |= data_overrides.predict_loader;
  return has;
}

void Trainer::Borrowed::check_transfers(const char* call, const TrainModule& module) const {
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
         std::string(call) + ": data module and module both override " + both +
             "; the data module's are called, drop the others");
}

std::unique_ptr<data::DataLoader> Trainer::Borrowed::loader_of_hook(std::optional<train::Loop> loop,
                                                                    TrainModule& module) const {
  const DataOverrides& has = data_overrides;  // none without a data module
  if (!loop) return has.train_loader ? data_module->train_loader() : module.train_loader();
  if (*loop == train::Loop::validation) return has.val_loader ? data_module->val_loader() : module.val_loader();
  if (*loop == train::Loop::test) return has.test_loader ? data_module->test_loader() : module.test_loader();
  return has.predict_loader ? data_module->predict_loader() : module.predict_loader();
}

HParams Trainer::Borrowed::all_hparams() const {
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

// ---- Who was trained, and whether it lives

namespace {
std::weak_ptr<const void> alive(nn::Module* tree) { return tree ? tree->alive() : std::weak_ptr<const void>(); }
}  // namespace

void Trainer::Borrowed::remember(TrainModule& module, DataModule* data) {
  last_module = &module;
  last_alive_ = alive(module.tree());
  last_data_module = data;
}

void Trainer::Borrowed::begin_fit(TrainModule& module) {
  nn::Module* const now = module.tree();
  const void* const trains = now ? static_cast<const void*>(now) : lone_optimizer;
  same_module = fitted && trains && trains == trained_ && !trained_alive_.expired();  // not another one at its address
  tree = now;
  trained_ = trains;
  trained_alive_ = !tree && lone_optimizer ? lone_optimizer->alive() : alive(tree);
  optimizers_alive_.clear();
  fitted = true;
  fit_module = &module;
  fit_data = data_module;
}

bool Trainer::Borrowed::lives(bool in_fit) const {
  return (in_fit || !trained_ || !trained_alive_.expired()) &&
         std::none_of(optimizers_alive_.begin(), optimizers_alive_.end(), [](const auto& o) { return o.expired(); });
}
void Trainer::Borrowed::check_lives(const char* call, bool in_fit) const {
  if (!lives(in_fit))
    fail<StateError>(
        call,
        ": the module or the optimizer of the last fit is gone; a trainer borrows them, so let them live as "
        "long as it is used");
}

}  // namespace levin
