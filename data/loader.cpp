#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <vector>

#include "data/errors.h"
#include "levin/data.h"

// Note [Loading ahead]
// A pass over one epoch knows all its batches from the start: the order is drawn, then cut. Workers are TBB tasks in an
// arena of the loader's own. Each takes the next batch number, loads it and puts it into its place of a ring, until the
// ring is full; it ends then, so that no thread of TBB's pool ever sleeps in our hands, and the consumer starts tasks
// again when half of the ring is free. The consumer takes the places in order. If no worker has begun the batch it
// wants, it loads that one itself: a pool whose threads are all busy elsewhere makes a loader slower, never stuck.
namespace levin::data {
namespace {

// Slots for workers in an arena. TBB starts no more threads than cores unless it is told to, and workers that wait for
// files need more: it is told once, for good, since of several such limits the least holds. Somebody else's lower limit
// is kept; asking for more would make TBB print warnings.
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

// The batches of one epoch: batch k has the indices [ends[k - 1], ends[k]).
struct Plan {
  std::vector<std::int64_t> indices;
  std::vector<std::size_t> ends;
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(ends.size()); }
  [[nodiscard]] std::span<const std::int64_t> batch(std::int64_t k) const {
    const auto at = static_cast<std::size_t>(k);
    const std::size_t begin = at ? ends[at - 1] : 0;
    return {indices.data() + begin, ends[at] - begin};
  }
};

void check_options(const DatasetRef& dataset, const DataLoaderOptions& o) {
  if (!dataset) fail<ConfigError>("loader: the dataset is null");
  if (o.num_workers < 0) fail<ConfigError>("loader: num_workers is ", o.num_workers, ", expected 0 or more");
  if (!(o.timeout >= 0)) fail<ConfigError>("loader: timeout is ", o.timeout, ", expected 0 (none) or more seconds");
  if (o.prefetch_factor && o.num_workers == 0) {
    fail<ConfigError>("loader: prefetch_factor is ", *o.prefetch_factor, " with num_workers 0; set num_workers");
  }
  if (o.prefetch_factor && *o.prefetch_factor < 1) {
    fail<ConfigError>("loader: prefetch_factor is ", *o.prefetch_factor, ", expected 1 or more");
  }
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

struct DataLoader::Impl {
  DatasetRef dataset;
  DataLoaderOptions options;
  SamplerRef sampler;
  LoaderState state;     // of the pass under way, or the next one's when there is none
  bool resume = false;   // the next pass begins at state.batch
  bool looping = false;  // an iterator stands before the end of its epoch
  std::int64_t next_epoch = 0;
  std::optional<tbb::task_arena> arena;

  Plan plan(std::int64_t epoch) const {
    Plan p;
    if (options.batch_sampler) {
      for (const auto& batch : options.batch_sampler->batches(epoch)) {
        if (batch.empty())
          fail<DataError>("loader: batch ", p.size(), " of the batch sampler's epoch ", epoch,
                          " is empty; leave it out");
        p.indices.insert(p.indices.end(), batch.begin(), batch.end());
        p.ends.push_back(p.indices.size());
      }
      if (p.size() != options.batch_sampler->size()) {
        fail<DataError>("loader: the batch sampler gave ", p.size(), " batches for epoch ", epoch, ", its size() is ",
                        options.batch_sampler->size());
      }
      return p;
    }
    p.indices = sampler->indices(epoch);
    const std::size_t n = p.indices.size();
    if (static_cast<std::int64_t>(n) != sampler->size()) {
      fail<DataError>("loader: the sampler gave ", n, " indices for epoch ", epoch, ", its size() is ",
                      sampler->size());
    }
    const auto step = static_cast<std::size_t>(options.batch_size.value_or(1));
    for (std::size_t end = step; end <= n; end += step) p.ends.push_back(end);
    if (!options.drop_last && n % step != 0) p.ends.push_back(n);
    return p;
  }
  std::int64_t batches() const {
    if (options.batch_sampler) return options.batch_sampler->size();
    const std::int64_t n = sampler->size(), step = options.batch_size.value_or(1);
    return n / step + (!options.drop_last && n % step != 0);
  }

  // One batch, on whatever thread. `who` completes messages: "in worker 1".
  Tensors load(std::span<const std::int64_t> indices, const EpochRandom& random, const std::string& who) const {
    try {
      const bool one_by_one = !options.batch_size || options.collate;
      if (!one_by_one) return dataset->gather(indices, random);
      std::vector<Sample> samples;
      for (const std::int64_t index : indices) {
        try {
          Generator rng = random.sample(dataset->random_index(index));
          samples.push_back(dataset->get(index, rng));
        } catch (...) { rethrow_with("; loading sample " + text(index) + " of epoch " + text(random.epoch())); }
      }
      return options.batch_size ? options.collate(samples) : std::move(samples.front());
    } catch (...) { rethrow_with(who); }
  }
};

// One epoch under way. Shared by the consumer's iterator and the tasks; a task that TBB starts late finds `stop` set.
struct DataLoader::Pass {
  struct Slot {
    Tensors fields;
    std::exception_ptr error;
    bool ready = false;
  };
  struct Shared {
    std::shared_ptr<Impl> impl;
    Plan plan;
    EpochRandom random;
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Slot> ring;       // batch k has place k % size; empty without workers
    std::int64_t next_load = 0;   // the first batch nobody has begun
    std::int64_t next_out = 0;    // the first batch not handed out
    int queued = 0, running = 0;  // tasks
    bool stop = false;

    Shared(std::shared_ptr<Impl> i, Plan p, std::int64_t epoch)
        : impl(std::move(i)), plan(std::move(p)), random(impl->options.generator, epoch) {}

    [[nodiscard]] bool room() const {
      return !stop && next_load < std::min(plan.size(), next_out + static_cast<std::int64_t>(ring.size()));
    }

    // With the lock held.
    static void start_one(const std::shared_ptr<Shared>& s) {
      ++s->queued;
      s->impl->arena->enqueue([s] { s->work(s); });
    }

    void work(const std::shared_ptr<Shared>& self) {
      const std::string who = ", in worker " + text(std::max(0, tbb::this_task_arena::current_thread_index()));
      std::unique_lock lock(mutex);
      --queued;
      if (stop) return;  // impl is gone
      ++running;
      while (room()) {
        const std::int64_t k = next_load++;
        if (room() && queued + running < impl->options.num_workers) start_one(self);
        lock.unlock();
        Slot done;
        try {
          done.fields = impl->load(plan.batch(k), random, who);
        } catch (...) { done.error = std::current_exception(); }
        done.ready = true;
        lock.lock();
        ring[static_cast<std::size_t>(k) % ring.size()] = std::move(done);
        if (k == next_out) changed.notify_all();
      }
      --running;
      if (stop) changed.notify_all();
    }
  };

  std::shared_ptr<Shared> shared;
  bool looping = true;  // this pass, and with it the loader

  explicit Pass(std::shared_ptr<Shared> s) : shared(std::move(s)) { shared->impl->looping = true; }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;
  // Waits for the tasks that run user code; those TBB has not started will see `stop` and do nothing.
  ~Pass() {
    leave();
    std::unique_lock lock(shared->mutex);
    shared->stop = true;
    shared->changed.wait(lock, [&] { return shared->running == 0; });
    shared->impl.reset();  // a late task must not keep the dataset
  }

  // The next batch; false at the end.
  bool next(Batch& out) {
    Shared& s = *shared;
    Impl& impl = *s.impl;
    std::unique_lock lock(s.mutex);
    if (s.next_out == s.plan.size()) {
      impl.state = {s.random.epoch() + 1, 0};
      leave();
      return false;
    }
    start_workers();
    const std::int64_t k = s.next_out;
    const std::span<const std::int64_t> indices = s.plan.batch(k);
    Tensors fields;
    try {
      if (k == s.next_load) {
        ++s.next_load;
        lock.unlock();
        fields = impl.load(indices, s.random, ", in the calling thread");
        lock.lock();
      } else {
        Slot& slot = s.ring[static_cast<std::size_t>(k) % s.ring.size()];
        wait_for(slot, lock);
        const Slot taken = std::exchange(slot, Slot{});
        if (taken.error) std::rethrow_exception(taken.error);
        fields = taken.fields;
      }
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      s.stop = true;
      leave();
      throw;
    }
    ++s.next_out;
    lock.unlock();
    impl.state = {s.random.epoch(), k + 1};
    out.fields = std::move(fields);
    out.indices.assign(indices.begin(), indices.end());
    out.position = k;
    return true;
  }

 private:
  void leave() {
    if (std::exchange(looping, false)) shared->impl->looping = false;
  }
  // With the lock held. Waking a thread costs microseconds, so it is done when most of the ring has been emptied, and for
  // one worker, which wakes the next.
  void start_workers() {
    Shared& s = *shared;
    const auto size = static_cast<std::int64_t>(s.ring.size());
    const std::int64_t ahead = s.next_load - s.next_out;
    if (size == 0 || !s.room() || s.queued + s.running >= s.impl->options.num_workers) return;
    if (ahead <= (size >= 8 ? size / 4 : size / 2)) Shared::start_one(shared);
  }

  void wait_for(Slot& slot, std::unique_lock<std::mutex>& lock) {
    Shared& s = *shared;
    const double timeout = s.impl->options.timeout;
    if (timeout == 0) {
      s.changed.wait(lock, [&] { return slot.ready; });
    } else if (!s.changed.wait_for(lock, std::chrono::duration<double>(timeout), [&] { return slot.ready; })) {
      fail<DataError>("loader: batch ", s.next_out, " of epoch ", s.random.epoch(), " (samples from ",
                      s.plan.batch(s.next_out).front(), " on) did not come within ", timeout,
                      " seconds; raise timeout, or look at what the dataset waits for");
    }
  }
};

DataLoader::Iterator::Iterator(std::unique_ptr<Pass> pass) : pass_(std::move(pass)) { ++*this; }
DataLoader::Iterator::Iterator(Iterator&&) noexcept = default;
DataLoader::Iterator& DataLoader::Iterator::operator=(Iterator&&) noexcept = default;
DataLoader::Iterator::~Iterator() = default;
DataLoader::Iterator& DataLoader::Iterator::operator++() {
  if (done_) fail<StateError>("loader: the epoch has ended, there is no batch behind its last");
  done_ = true;           // also when next throws
  batch_.fields.clear();  // its memory, still in the cache, serves the next batch
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
  if (o.num_workers > 0) { impl_->arena.emplace(worker_slots(o.num_workers), 0u); }
}
DataLoader::DataLoader(DataLoader&&) noexcept = default;
DataLoader& DataLoader::operator=(DataLoader&&) noexcept = default;
DataLoader::~DataLoader() = default;

DataLoader::Iterator DataLoader::begin() {
  Impl& i = *impl_;
  if (i.looping)
    fail<StateError>(
        "loader: a loop begins while another has not ended; leave that one first, or make a second loader");
  if (!i.resume) i.state = {i.next_epoch, 0};
  i.resume = false;
  i.next_epoch = i.state.epoch + 1;
  auto shared = std::make_shared<Pass::Shared>(impl_, i.plan(i.state.epoch), i.state.epoch);
  if (i.state.batch > shared->plan.size()) {
    fail<StateError>("loader: the state stands at batch ", i.state.batch, ", the epoch has ", shared->plan.size(),
                     "; was it saved with other options or data?");
  }
  for (const std::int64_t index : shared->plan.indices) {
    if (index < 0 || index >= i.dataset->size()) {
      fail<IndexError>("loader: the sampler gave index ", index, ", the dataset has ", i.dataset->size(), " samples");
    }
  }
  shared->next_load = shared->next_out = i.state.batch;
  // More places than batches would never be used.
  const std::size_t slots = std::min(
      static_cast<std::size_t>(i.options.num_workers) * static_cast<std::size_t>(i.options.prefetch_factor.value_or(2)),
      static_cast<std::size_t>(std::max<std::int64_t>(1, shared->plan.size())));
  try {
    shared->ring.resize(slots);
  } catch (const std::exception&) {  // bad_alloc or length_error
    fail<OutOfMemoryError>("loader: no memory for a ring of ", slots,
                           " batches, num_workers * prefetch_factor; lower prefetch_factor");
  }
  return Iterator(std::make_unique<Pass>(std::move(shared)));
}

std::int64_t DataLoader::size() const { return impl_->batches(); }
const DatasetRef& DataLoader::dataset() const { return impl_->dataset; }
bool DataLoader::shuffles() const { return impl_->options.shuffle; }
std::optional<std::int64_t> DataLoader::batch_size() const { return impl_->options.batch_size; }
int DataLoader::num_workers() const { return impl_->options.num_workers; }

void DataLoader::set_epoch(std::int64_t epoch) {
  if (epoch < 0) fail<ConfigError>("set_epoch: epoch is ", epoch, ", expected 0 or more");
  impl_->next_epoch = epoch;
  if (impl_->state.epoch != epoch) impl_->resume = false;
}
LoaderState DataLoader::state() const { return impl_->state; }
void DataLoader::load_state(const LoaderState& state) {
  if (state.epoch < 0 || state.batch < 0 || state.batch > size()) {
    fail<StateError>("loader: the state is epoch ", state.epoch, ", batch ", state.batch,
                     ", expected an epoch from 0 and a batch from 0 to ", size());
  }
  impl_->state = state;
  impl_->next_epoch = state.epoch;
  impl_->resume = true;
}

}  // namespace levin::data
