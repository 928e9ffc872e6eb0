#include "data/loader.h"
#include "levin/warning.h"

namespace levin::data {
namespace {

void check_combination(const DataLoaderOptions& o) {
  if (o.num_workers < 0) fail<ConfigError>("loader: num_workers is ", o.num_workers, ", expected 0 or more");
  if (!(o.timeout >= 0)) fail<ConfigError>("loader: timeout is ", o.timeout, ", expected 0 (none) or more seconds");
  if (o.prefetch_factor && o.num_workers == 0) {
    fail<ConfigError>("loader: prefetch_factor is ", *o.prefetch_factor, " with num_workers 0; set num_workers");
  }
  if (o.prefetch_factor && *o.prefetch_factor < 1) {
    fail<ConfigError>("loader: prefetch_factor is ", *o.prefetch_factor, ", expected 1 or more");
  }
  if (o.persistent_workers && o.num_workers == 0)
    fail<ConfigError>("loader: persistent_workers is true with num_workers 0; set num_workers");
  if (o.world < 1 || o.rank < 0 || o.rank >= o.world)
    fail<ConfigError>("loader: rank is ", o.rank, " of ", o.world, ", expected 0 to world - 1");
  if (o.sampler && o.shuffle) fail<ConfigError>("loader: sampler and shuffle are both given; give one");
  if (o.batch_sampler) {
    if (o.batch_size != 1 || o.shuffle || o.sampler || o.drop_last) {
      fail<ConfigError>("loader: batch_sampler comes with batch_size, shuffle, sampler or drop_last; it decides them");
    }
    return;
  }
  if (o.batch_size && *o.batch_size < 1) {
    fail<ConfigError>("loader: batch_size is ", *o.batch_size, ", expected 1 or more");
  }
  if (o.drop_last && !o.batch_size) fail<ConfigError>("loader: drop_last needs a batch_size");
}

}  // namespace

bool can_pin() { return device_count(DeviceType::cuda) + device_count(DeviceType::simt) > 0; }

namespace {
void check_and_warn(const DataLoaderOptions& o) {
  check_combination(o);
  if (const int cpus = available_cpus(); o.num_workers > cpus) {
    warn("W-DATA-MANY-WORKERS", WarningCategory::possible_user,
         "loader: num_workers is " + text(o.num_workers) + " and this process may use " + text(cpus) +
             " CPUs; more workers than CPUs help only where samples wait for files or a network, else set num_workers "
             "= " +
             text(suggested_workers()));
  }
  if (o.pin_memory && !can_pin()) {
    warn("W-DATA-PIN", WarningCategory::user,
         "loader: pin_memory has no effect without a CUDA device; leave it out on cpu");
  }
}
}  // namespace

void check_options(const DatasetRef& dataset, const DataLoaderOptions& o) {
  if (!dataset) fail<ConfigError>("loader: the dataset is null");
  if (o.world != 1)
    fail<ConfigError>("loader: world is ", o.world,
                      " with a Dataset, and it is for streams alone; give .sampler = distributed_sampler(...)");
  check_and_warn(o);
}
void check_options(const IterableDatasetRef& dataset, const DataLoaderOptions& o) {
  if (!dataset) fail<ConfigError>("loader: the dataset is null");
  if (o.shuffle || o.sampler || o.batch_sampler)
    fail<ConfigError>("loader: ",
                      o.shuffle   ? "shuffle"
                      : o.sampler ? "sampler"
                                  : "batch_sampler",
                      " comes with an IterableDataset, whose samples have no index; shuffle inside of the stream");
  check_and_warn(o);
}

}  // namespace levin::data
