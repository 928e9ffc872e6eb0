#include "data/loader.h"

#include <tbb/global_control.h>
#include <tbb/info.h>

#include <algorithm>
#include <atomic>

#include "data/loader_pass.h"

namespace levin::data {
namespace {

// Slots for workers in an arena. TBB starts no more threads than cores by default, and workers that wait for files need
// more: the limit is raised once and for the whole process, because the least of several limits holds. A lower limit of
// the program stays: asking for more would make TBB print warnings.
int worker_slots(int num_workers) {
  constexpr int kMoreThanCores = 128;
  using Limit = tbb::global_control;
  static std::atomic<const Limit*> kept{nullptr};  // never destroyed, and seen by leak checkers
  [[maybe_unused]] static const bool once = [] {
    kept = new Limit(Limit::max_allowed_parallelism,
                     static_cast<std::size_t>(tbb::info::default_concurrency() + kMoreThanCores));
    return true;
  }();
  const std::size_t threads = Limit::active_value(Limit::max_allowed_parallelism);
  return std::clamp(num_workers, 1, std::max(1, static_cast<int>(threads) - 1));
}

}  // namespace

void LoaderState::hand_out(std::int64_t position) {
  if (position != batch) {
    ahead.insert(std::upper_bound(ahead.begin(), ahead.end(), position), position);
    return;
  }
  ++batch;
  while (!ahead.empty() && ahead.front() == batch) {
    ahead.erase(ahead.begin());
    ++batch;
  }
}

void LoaderState::hand_out(const Batch& of) {
  for (const std::int64_t position : of.absent) hand_out(position);
  hand_out(of.position);
}

void DataLoader::Impl::forget_workers() {
  const std::lock_guard lock(init_mutex);
  std::erase_if(initialized,
                [&](const auto& w) { return !options.persistent_workers || w.second == options.num_workers; });
}
Plan DataLoader::Impl::plan(const LoaderState& of) const {
  const std::int64_t epoch = of.in_sequence ? 0 : of.epoch;
  Plan p;
  if (options.batch_sampler) {
    for (const auto& batch : options.batch_sampler->batches(epoch)) {
      if (batch.empty())
        fail<DataError>("loader: batch ", p.size(), " of the batch sampler's epoch ", epoch, " is empty; leave it out");
      p.indices.insert(p.indices.end(), batch.begin(), batch.end());
      p.ends.push_back(p.indices.size());
    }
    if (p.size() != options.batch_sampler->size()) {
      fail<DataError>("loader: the batch sampler gave ", p.size(), " batches for epoch ", epoch, ", its size() is ",
                      options.batch_sampler->size());
    }
    return p;
  }
  const bool ordered = of.in_sequence && sampler->shuffles() && sampler->size() == dataset->size();
  p.indices = (ordered ? sequential_sampler(dataset->size()) : sampler)->indices(epoch);
  const std::size_t n = p.indices.size();
  if (static_cast<std::int64_t>(n) != sampler->size()) {
    fail<DataError>("loader: the sampler gave ", n, " indices for epoch ", epoch, ", its size() is ", sampler->size());
  }
  const auto step = static_cast<std::size_t>(options.batch_size.value_or(1));
  for (std::size_t end = step; end <= n; end += step) p.ends.push_back(end);
  if (!options.drop_last && n % step != 0) p.ends.push_back(n);
  return p;
}
std::optional<std::int64_t> DataLoader::Impl::length() const {
  if (!stream) return batches();
  const std::optional<std::int64_t> samples = stream->size();
  if (!samples) return std::nullopt;
  const std::int64_t step = options.batch_size.value_or(1);
  const std::int64_t all = *samples / step + (!options.drop_last && *samples % step != 0);
  return all / options.world + (options.rank < all % options.world);  // as WorkerInfo::owns deals them
}
std::int64_t DataLoader::Impl::batches() const {
  if (!parts.empty()) return combined_batches();
  if (options.batch_sampler) return options.batch_sampler->size();
  const std::int64_t n = sampler->size(), step = options.batch_size.value_or(1);
  return n / step + (!options.drop_last && n % step != 0);
}

DataLoader::Iterator::Iterator(std::unique_ptr<Pass> pass) : pass_(std::move(pass)) { ++*this; }
DataLoader::Iterator::Iterator(Iterator&&) noexcept = default;
DataLoader::Iterator& DataLoader::Iterator::operator=(Iterator&&) noexcept = default;
DataLoader::Iterator::~Iterator() = default;
DataLoader::Iterator& DataLoader::Iterator::operator++() {
  if (!pass_) fail<StateError>("loader: the iterator was moved from; use the one that it was moved to");
  if (done_) fail<StateError>("loader: the epoch has ended, there is no batch behind its last");
  done_ = true;  // also when next throws
  done_ = !pass_->next(batch_);
  return *this;
}

DataLoader::DataLoader(DatasetRef dataset, DataLoaderOptions options) : impl_(std::make_shared<Impl>()) {
  check_options(dataset, options);
  impl_->dataset = std::move(dataset);
  impl_->options = std::move(options);
  const std::int64_t n = impl_->dataset->size();
  const DataLoaderOptions& o = impl_->options;
  if (!o.batch_sampler) {
    impl_->sampler = o.sampler ? o.sampler : o.shuffle ? random_sampler(n, o.generator) : sequential_sampler(n);
  }
  impl_->make_arena();
}
DataLoader::DataLoader(IterableDatasetRef dataset, DataLoaderOptions options) : impl_(std::make_shared<Impl>()) {
  check_options(dataset, options);
  impl_->stream = std::move(dataset);
  impl_->options = std::move(options);
  impl_->make_arena();
}
void DataLoader::Impl::make_arena() {
  if (options.num_workers == 0) return;
  arena.emplace(worker_slots(options.num_workers), 0u);
  arena->initialize();  // where it may throw: TBB waits for ever for an arena whose making failed in its first enqueue
}
DataLoader::DataLoader(Made, std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
DataLoader::DataLoader(DataLoader&&) noexcept = default;
DataLoader& DataLoader::operator=(DataLoader&&) noexcept = default;
DataLoader::~DataLoader() = default;

DataLoader::Impl& DataLoader::impl() const {
  if (!impl_) fail<StateError>("loader: it was moved from; use the one that it was moved to");
  return *impl_;
}

DataLoader::Iterator DataLoader::begin() { return Iterator(pass()); }

std::unique_ptr<DataLoader::Pass> DataLoader::pass() {
  Impl& i = impl();
  if (i.looping)
    fail<StateError>(
        "loader: a loop begins while another has not ended; leave that one first, or make a second loader");
  const LoaderState state = i.state;
  const bool resume = i.resume;
  const std::int64_t next_epoch = i.next_epoch;
  try {
    return begin_pass();
  } catch (...) {  // of a sampler, say: the loader stands where it stood
    i.state = state;
    i.resume = resume;
    i.next_epoch = next_epoch;
    throw;
  }
}
std::unique_ptr<DataLoader::Pass> DataLoader::begin_pass() {
  Impl& i = *impl_;
  if (!i.resume) i.state = {.epoch = i.next_epoch};
  i.resume = false;
  i.next_epoch = i.state.epoch + 1;
  const auto check = [&](std::int64_t size) {
    if (i.state.batch > size)
      fail<StateError>("loader: the state stands at batch ", i.state.batch, ", the epoch has ", size,
                       "; was it saved with other options or data?");
  };
  if (!i.parts.empty()) {
    check(size());
    return Combination::pass(impl_);
  }
  if (i.stream) {
    i.forget_workers();
    return std::make_unique<LoadingPass>(impl_, Plan{});
  }
  Plan plan = i.plan(i.state);
  check(plan.size());
  for (const std::int64_t index : plan.indices) {
    if (index < 0 || index >= i.dataset->size()) {
      fail<IndexError>("loader: the sampler gave index ", index, ", the dataset has ", i.dataset->size(), " samples");
    }
  }
  i.forget_workers();
  return std::make_unique<LoadingPass>(impl_, std::move(plan));
}

std::optional<std::int64_t> DataLoader::length() const { return impl().length(); }
std::int64_t DataLoader::size() const {
  if (const std::optional<std::int64_t> n = length()) return *n;
  fail<StateError>("loader: size() of streams without a length; override IterableDataset::size, or ask length()");
}
const IterableDatasetRef& DataLoader::stream() const { return impl().stream; }
const DatasetRef& DataLoader::dataset() const {
  if (impl().parts.empty()) return impl().dataset;
  return std::max_element(
             impl().parts.begin(), impl().parts.end(),
             [](const auto& a, const auto& b) { return a.second.dataset()->size() < b.second.dataset()->size(); })
      ->second.dataset();
}
bool DataLoader::shuffles() const {
  const auto& parts = impl().parts;
  if (parts.empty()) return impl().sampler && impl().sampler->shuffles();
  return std::any_of(parts.begin(), parts.end(), [](const auto& p) { return p.second.shuffles(); });
}
std::optional<std::int64_t> DataLoader::batch_size() const {
  return impl().parts.empty() ? impl().options.batch_size : impl().parts.front().second.batch_size();
}
int DataLoader::num_workers() const {
  if (impl().parts.empty()) return impl().options.num_workers;
  int fewest = impl().parts.front().second.num_workers();
  for (const auto& [name, part] : impl().parts) fewest = std::min(fewest, part.num_workers());
  return fewest;
}
const DataLoaderOptions& DataLoader::options() const { return impl().options; }

void DataLoader::set_epoch(std::int64_t epoch) {
  if (epoch < 0) fail<ConfigError>("set_epoch: epoch is ", epoch, ", expected 0 or more");
  impl().next_epoch = epoch;
  if (impl().state.epoch != epoch) impl().resume = false;
}
LoaderState DataLoader::state() const { return impl().state; }
void DataLoader::check_state(const LoaderState& state) const {
  // Numbers of samples stay below 2^62, so that the streams' arithmetic does not overflow.
  const DataLoaderOptions& o = impl().options;
  const std::int64_t most =
      impl().stream ? (std::int64_t{1} << 62) / o.batch_size.value_or(1) / std::max(1, o.num_workers) / o.world
                    : size();
  if (state.epoch < 0 || state.batch < 0 || state.batch > most) {
    fail<StateError>("loader: the state is epoch ", state.epoch, ", batch ", state.batch,
                     ", expected an epoch from 0 and a batch from 0 to ", most);
  }
  if (!impl().parts.empty() && !state.ahead.empty())
    fail<StateError>("loader: the state says that batches were handed out ahead of batch ", state.batch,
                     ", and combined loaders give theirs in order");
  std::int64_t before = state.batch;
  for (const std::int64_t k : state.ahead) {
    if (k <= before || k >= most) {
      fail<StateError>("loader: the state says that batch ", k, " was handed out ahead of batch ", state.batch,
                       ", expected ascending numbers above it and below ", most);
    }
    before = k;
  }
  // A loop over streams lists the positions that were left out: no more than workers have under way.
  constexpr std::int64_t kLeftOut = 1 << 20;
  if (impl().stream && before - state.batch > static_cast<std::int64_t>(state.ahead.size()) + kLeftOut)
    fail<StateError>("loader: the state says that batch ", before, " was handed out and ",
                     before - state.batch - static_cast<std::int64_t>(state.ahead.size()),
                     " batches before it were not, expected at most ", kLeftOut, "; the state is damaged");
}
void DataLoader::load_state(const LoaderState& state) {
  check_state(state);
  impl().state = state;
  impl().next_epoch = state.epoch;
  impl().resume = true;
}

}  // namespace levin::data
