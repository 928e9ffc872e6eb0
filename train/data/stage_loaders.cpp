#include "train/data/stage_loaders.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "train/run/packed.h"
#include "train/run/run.h"

namespace levin::train {

std::int64_t limited(const data::DataLoader& loader, const std::optional<Portion>& limit, const char* option) {
  const Portion portion = limit.value_or(Portion(1.0));
  if (loader.length()) return portion.of(*loader.length(), option);
  if (portion.is_fraction() && portion.fraction() > 0 && portion.fraction() < 1)
    fail<ConfigError>(
        "Trainer: ", option, " is ", portion.fraction(),
        " and the loader has no length, expected a count or 1.0; override IterableDataset::size, or give a "
        "number of batches");
  const std::int64_t count = portion.of(kUnknownBatches, option);  // checks it
  return portion.is_fraction() && portion.fraction() > 0 ? kUnknownBatches : count;
}

namespace {

// Streams that never end need a limit of the run.
void check_ends(const Trainer::Run& run, const data::DataLoader& loader, std::int64_t batches, const char* option,
                bool trains) {
  if (!never_ends(loader) || batches != kUnknownBatches) return;
  const TrainerOptions& o = run.options;
  if (trains && (o.max_steps >= 0 || o.max_time)) return;
  fail<ConfigError>("fit: the streams of a loader never end, and ", option, " is no number of batches; give one",
                    trains ? ", or max_steps or max_time" : "");
}

// The number of batches that the limit leaves of the loader. overfit_batches sets the limits, and its loaders are read
// in sequence. `given`: the user's loader.
std::int64_t batches_of(const Trainer::Run& run, const data::DataLoader& loader, const data::DataLoader& given,
                        const std::optional<Portion>& limit, const char* option, const char* id) {
  const bool overfits = run.loaders.overfits();
  const std::int64_t count = limited(loader, limit, overfits ? "overfit_batches" : option);
  check_ends(run, loader, count, option, std::string_view(option) == "limit_train_batches");
  if (overfits && given.shuffles())
    warn(id, WarningCategory::user,
         "fit: overfit_batches is set, and the loader that has " + std::string(option) +
             " shuffles; it is read in the order of its dataset, or where a sampler leaves out or repeats samples in "
             "that of the "
             "sampler's epoch 0, each epoch alike");
  return count;
}

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

void StageLoaders::forget() {
  train = nullptr;
  val.clear();
  own_train.reset();
  own_val.reset();
  combined_train_.reset();
  train_share_ = {};
  val_shares_.clear();
  inspected_.clear();
}

void StageLoaders::begin_fit(const LoaderRefs& given, const LoaderRefs& given_val, const Overrides& has) {
  batches = val_every = 0;
  val_by_hook = given_val.empty() && has.val_loader && validates();
  if (!given_val.empty()) use_val(given_val.all());
  if (given.all().size() > 1)
    combined_train_ = std::make_unique<data::DataLoader>(data::combine(std::span(given.all())));
  if (!given.empty()) use_train(combined_train_ ? *combined_train_ : *given.all().front());
}

void StageLoaders::epoch_begins() {
  if (train && !train->length()) batches = most_;
}
void StageLoaders::start_epoch(Progress& progress) {
  progress.position.epoch = progress.epoch;
  data::LoaderState from = progress.position;
  from.in_sequence = overfits();
  train->load_state(from);
}

bool StageLoaders::overfits() const { return run_.options.overfit_batches && !run_.options.overfit_batches->is_zero(); }

bool StageLoaders::validates() const {
  return run_.borrowed.overrides.validation_step &&
         !(run_.options.limit_val_batches && run_.options.limit_val_batches->is_zero());
}

void StageLoaders::inspect(const data::DataLoader& loader, const std::string& name, Shuffling shuffling) {
  if (run_.trial || run_.searching || !inspected_.insert(name).second) return;
  inspect_loader(loader, name, shuffling, run_.options.reload_dataloaders_every_n_epochs);
}

RankShare StageLoaders::share(const data::DataLoader& loader, Reads reads, const std::string& name) const {
  return run_.options.use_distributed_sampler ? share_of_rank(run_.strategy, loader, reads, name) : RankShare{};
}

std::vector<data::DataLoader*> StageLoaders::evaluated_in_turn(const std::vector<data::DataLoader*>& loaders,
                                                               const char* name, std::vector<RankShare>& keep) {
  std::vector<data::DataLoader*> all = in_turn(loaders);
  for (std::size_t l = 0; l < all.size(); ++l) {
    const std::string named = all.size() == 1 ? std::string(name) : name + (" " + text(l));
    inspect(*all[l], named, Shuffling::is_unusual);
    RankShare mine = share(*all[l], Reads::evaluation, named);
    if (!mine.loader) continue;
    check_equal_on_ranks(*run_.strategy, named, describe_share(*mine.loader, mine.whole));
    all[l] = mine.loader.get();
    keep.push_back(std::move(mine));
  }
  return all;
}

std::string StageLoaders::with_batches(const std::vector<data::DataLoader*>& of,
                                       const std::vector<std::int64_t>& counts) const {
  std::string mine;
  for (const std::int64_t n : counts) mine += n > 0 ? '1' : '0';
  const std::vector<std::string> ranks = run_.strategy->gather(mine);
  std::string any = mine;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].size() != mine.size())
      fail<ConfigError>(run_.call_name, ": rank ", r, " evaluates ", ranks[r].size(), " loaders, and this rank ",
                        mine.size(), "; give every rank the same");
    for (std::size_t l = 0; l < any.size(); ++l) any[l] = std::max(any[l], ranks[r][l]);
  }
  const bool allowed =
      run_.borrowed.active->allow_zero_length_with_multiple_devices() ||
      (run_.borrowed.data_module && run_.borrowed.data_module->allow_zero_length_with_multiple_devices());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (std::size_t l = 0; l < any.size(); ++l) {
      if (ranks[r][l] == any[l] || is_divided(*of[l])) continue;
      const std::string what = std::string(run_.call_name) + ": loader " + text(l) + " has no batch on rank " +
                               text(r) + ", and others have some";
      if (!allowed)
        fail<ConfigError>(what,
                          "; if that is meant, override allow_zero_length_with_multiple_devices of the module or the "
                          "data module");
      warn("W-DATA-EMPTY-RANK", WarningCategory::user, what);
    }
  }
  return any;
}

// Ranks train in step: all have as many batches. Of streams, whose lengths may differ, the shortest counts.
void StageLoaders::agree_on_training(const data::DataLoader& loader, std::int64_t whole) {
  const bool streams = static_cast<bool>(loader.stream());
  const std::string what = streams ? std::string() : describe_share(loader, whole) + ", ";
  Packed mine;
  mine.add(batches).add(what + (batches == kUnknownBatches ? "an unknown number of" : text(batches)) +
                        " batches an epoch");
  const std::vector<std::string> ranks = run_.strategy->gather(mine.bytes());
  std::string first;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    Unpacked in(ranks[r]);
    const auto count = in.take<std::int64_t>();
    const auto words = in.take<std::string>();
    if (r == 0) first = words;
    if (streams)
      batches = std::min(batches, count);
    else if (words != first)
      fail<ConfigError>("fit: the train_loader differs between ranks: rank 0 has ", first, "; rank ", r, " has ", words,
                        "; give all ranks the same dataset, options and seed, and limit_train_batches that all reach");
  }
  most_ = batches;
}

void StageLoaders::use_train(data::DataLoader& loader) {
  if (loader.parts() > 0 && loader.combined_by() == data::CombineMode::sequential)
    fail<ConfigError>(
        "fit: the training loader is combined as sequential, which is for evaluations; use "
        "max_size_cycle, min_size or max_size");
  inspect(loader, "train_loader", Shuffling::is_usual);
  RankShare mine = share(loader, overfits() ? Reads::in_sequence : Reads::training, "train_loader");
  data::DataLoader& used = mine.loader ? *mine.loader : loader;
  batches = most_ =
      batches_of(run_, used, loader, run_.options.limit_train_batches, "limit_train_batches", "W-TRAIN-OVERFIT");
  agree_on_training(used, mine.whole);
  train = &used;
  batch_size = used.batch_size().value_or(0);
  train_share_ = std::move(mine);
  resolve_validation();
}
void StageLoaders::use_val(const std::vector<data::DataLoader*>& given) {
  val.clear();
  if (!validates()) return;
  std::vector<RankShare> shares;
  std::vector<data::DataLoader*> used = evaluated_in_turn(given, "val_loader", shares);
  for (const data::DataLoader* v : used)
    (void)batches_of(run_, *v, *v, run_.options.limit_val_batches, "limit_val_batches", "W-TRAIN-OVERFIT-VAL");
  const std::vector<std::int64_t> counts = run_.evaluation.counts(Loop::validation, used);
  if (with_batches(used, counts).find('1') == std::string::npos) return;  // as without one
  val = std::move(used);
  val_shares_ = std::move(shares);
  if (train) resolve_validation();
}

void StageLoaders::load_train() {
  if (train) return;
  own_train.reset();  // frees its threads and pages before the next loader has its own
  train_share_ = {};
  own_train = run_.borrowed.loader_of_hook(std::nullopt, *run_.borrowed.active);
  if (!own_train)
    fail<ConfigError>("fit: the ", run_.borrowed.data_overrides.train_loader ? "data module" : "module",
                      "'s train_loader gave null, expected a loader; give .train = &loader");
  train_loaded_at = run_.progress.epoch;
  use_train(*own_train);
}
void StageLoaders::load_val() {
  if (!val_by_hook || own_val) return;
  own_val = run_.borrowed.loader_of_hook(Loop::validation, *run_.borrowed.active);
  val_loaded_at = run_.progress.epoch;
  use_val(own_val ? std::vector<data::DataLoader*>{own_val.get()} : std::vector<data::DataLoader*>{});
  val_by_hook = !val.empty();
}
void StageLoaders::reload_train() {
  const std::int64_t every = run_.options.reload_dataloaders_every_n_epochs;
  if (every == 0 || run_.trial || !own_train || run_.progress.epoch - train_loaded_at < every) return;
  train = nullptr;
  load_train();
}
void StageLoaders::reload_val() {
  const std::int64_t every = run_.options.reload_dataloaders_every_n_epochs;
  if (every == 0 || run_.trial || !own_val || run_.progress.epoch - val_loaded_at < every) return;
  val.clear();
  val_shares_.clear();
  own_val.reset();
  load_val();
}

// Throws ConfigError for a val_check_interval that is longer than an epoch.
void StageLoaders::resolve_validation() {
  val_every = 0;
  if (val.empty()) return;
  const ValidationInterval every = run_.options.val_check_interval.value_or(ValidationInterval(1.0));
  if (every.time()) return;
  const Portion& p = every.portion();
  if (p.is_fraction() && !train->length()) {
    if (p.fraction() != 1)
      fail<ConfigError>("Trainer: val_check_interval is ", p.fraction(),
                        " and the training loader has no length, expected a count, a duration or 1.0");
    val_every = kUnknownBatches;  // at the end of the epoch
    return;
  }
  if (p.is_fraction()) {
    val_every = std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(batches) * p.fraction()));
    return;
  }
  val_every = p.count();
  if (run_.options.check_val_every_n_epoch && val_every > batches && batches > 0)
    fail<ConfigError>("Trainer: val_check_interval is ", val_every, " batches and an epoch has ", batches,
                      "; lower it, or set check_val_every_n_epoch = nullopt to count batches over all epochs");
}

}  // namespace levin::train
