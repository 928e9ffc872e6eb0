#include "train/data/loader_advice.h"

#include "levin/warning.h"

namespace levin::train {

std::atomic<int> suggested_workers_instead{0};

std::string workers_advice(const std::string& loader, int num_workers, int suggested) {
  if (num_workers >= 2 || suggested <= 1) return {};
  return "the " + loader +
         " does not have many workers, which may be a bottleneck. Consider increasing the value of the `num_workers` "
         "argument: num_workers=" +
         text(suggested) + " is what this machine has CPUs for";
}

void inspect_loader(const data::DataLoader& loader, const std::string& name, Shuffling shuffling,
                    std::int64_t reload_every) {
  for (std::size_t k = 0; k < loader.parts(); ++k)
    inspect_loader(loader.part(k), name + " (part \"" + loader.part_name(k) + "\")", shuffling, reload_every);
  if (loader.parts() > 0) return;
  const int instead = suggested_workers_instead;
  const int suggested = instead > 0 ? instead : data::suggested_workers();
  if (const std::string advice = workers_advice(name, loader.num_workers(), suggested); !advice.empty())
    warn("W-DATA-WORKERS", WarningCategory::possible_user, advice, Repeat::yes);
  if (shuffling == Shuffling::is_unusual && loader.shuffles())
    warn("W-DATA-EVAL-SHUFFLE", WarningCategory::possible_user,
         "the " + name + " shuffles, and an evaluation needs no order; switch shuffle off", Repeat::yes);
  if (loader.stream() && loader.stream()->size() && loader.num_workers() > 1)
    warn("W-DATA-STREAM-LENGTH", WarningCategory::possible_user,
         "the " + name + " reads streams that declare a length of " + text(*loader.stream()->size()) +
             " samples with " + text(loader.num_workers()) +
             " workers; the length is wrong if the streams do not divide the samples, see WorkerInfo::owns",
         Repeat::yes);
  if (loader.length() == 0)
    warn("W-DATA-EMPTY", WarningCategory::user, "the " + name + " has no batches; was that meant?", Repeat::yes);
  const data::DataLoaderOptions& o = loader.options();
  if (o.persistent_workers && o.pin_memory && reload_every > 0)
    warn("W-DATA-PERSISTENT", WarningCategory::possible_user,
         "the " + name +
             " has persistent_workers and pin_memory, and reload_dataloaders_every_n_epochs replaces it: what its "
             "workers keep is made anew each time",
         Repeat::yes);
}

}  // namespace levin::train
