#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "data/errors.h"
#include "data/loader.h"
#include "levin/warning.h"

// Note [Loading ahead]
// A pass over one epoch knows all its batches from the start: the order is drawn, then cut. Workers are TBB tasks in an
// arena of the loader's own. Each takes the next batch number, loads it and puts it into its place of a ring, until the
// ring is full; it ends then, so that no thread of TBB's pool ever sleeps in our hands, and the consumer starts tasks
// again when half of the ring is free. The consumer takes the places in order. If no worker has begun the batch it
// wants, it loads that one itself: a pool whose threads are all busy elsewhere makes a loader slower, never stuck.
// Without in_order finished batches stand in a queue instead, and the consumer takes whichever came first; what a batch
// holds is the same, since it follows from its position alone.
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

}  // namespace

std::atomic<double> wait_notice_seconds{10};

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

struct DataLoader::Impl {
  DatasetRef dataset;
  DataLoaderOptions options;
  SamplerRef sampler;
  LoaderState state;     // of the pass under way, or the next one's when there is none
  bool resume = false;   // the next pass begins at state.batch
  bool looping = false;  // an iterator stands before the end of its epoch
  std::int64_t next_epoch = 0;
  std::optional<tbb::task_arena> arena;
  std::mutex init_mutex;
  std::set<std::pair<std::thread::id, int>> initialized;  // threads by the worker they were: Note [Workers]

  // Before a loop.
  void forget_workers() {
    const std::lock_guard lock(init_mutex);
    std::erase_if(initialized,
                  [&](const auto& w) { return !options.persistent_workers || w.second == options.num_workers; });
  }
  void initialize_worker(int id) {
    if (!options.worker_init) return;
    const std::pair worker(std::this_thread::get_id(), id);
    {
      const std::lock_guard lock(init_mutex);
      if (initialized.contains(worker)) return;
    }
    try {
      options.worker_init(id);
    } catch (...) { rethrow_with("; in worker_init"); }
    const std::lock_guard lock(init_mutex);
    initialized.insert(worker);
  }

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

  // One batch, on whatever thread. `worker` is num_workers for the calling thread.
  Tensors load(std::span<const std::int64_t> indices, const EpochRandom& random, int worker) {
    try {
      if (options.num_workers > 0) initialize_worker(worker);
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
    } catch (...) {
      rethrow_with(worker < options.num_workers ? ", in worker " + text(worker) : ", in the calling thread");
    }
  }
};

// One epoch under way. Shared by the consumer's iterator and the tasks; a task that TBB starts late finds `stop` set.
struct DataLoader::Pass {
  struct Slot {
    std::int64_t place = -1;  // in todo
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
    std::vector<std::int64_t> todo;    // positions of the batches still to come, in order
    std::vector<Slot> ring;            // batch todo[k] has place k % size; empty without workers
    std::deque<Slot> finished;         // instead of the ring's places without in_order
    std::set<std::int64_t> under_way;  // places in todo being loaded, without in_order
    std::int64_t next_load = 0;        // how many of todo somebody has begun
    std::int64_t next_out = 0;         // how many were handed out
    int queued = 0, running = 0;       // tasks
    bool stop = false;
    const bool in_order;

    Shared(std::shared_ptr<Impl> i, Plan p, const LoaderState& state)
        : impl(std::move(i)),
          plan(std::move(p)),
          random(impl->options.generator, state.epoch),
          in_order(impl->options.in_order) {
      for (std::int64_t k = state.batch; k < plan.size(); ++k) {
        if (!std::binary_search(state.ahead.begin(), state.ahead.end(), k)) todo.push_back(k);
      }
    }

    [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(todo.size()); }
    [[nodiscard]] std::int64_t position(std::int64_t k) const { return todo[static_cast<std::size_t>(k)]; }
    [[nodiscard]] std::span<const std::int64_t> indices(std::int64_t k) const { return plan.batch(position(k)); }
    [[nodiscard]] bool room() const {
      return !stop && next_load < std::min(size(), next_out + static_cast<std::int64_t>(ring.size()));
    }

    // With the lock held.
    static void start_one(const std::shared_ptr<Shared>& s) {
      ++s->queued;
      s->impl->arena->enqueue([s] { s->work(s); });
    }

    void work(const std::shared_ptr<Shared>& self) {
      std::unique_lock lock(mutex);
      --queued;
      if (stop) return;  // impl is gone
      const int worker = std::clamp(tbb::this_task_arena::current_thread_index(), 0, impl->options.num_workers - 1);
      ++running;
      while (room()) {
        const std::int64_t k = next_load++;
        if (!in_order) under_way.insert(k);
        if (room() && queued + running < impl->options.num_workers) start_one(self);
        lock.unlock();
        Slot done;
        try {
          done.fields = impl->load(indices(k), random, worker);
        } catch (...) { done.error = std::current_exception(); }
        done.place = k;
        done.ready = true;
        lock.lock();
        if (in_order) {
          ring[static_cast<std::size_t>(k) % ring.size()] = std::move(done);
          if (k == next_out) changed.notify_all();
        } else {
          under_way.erase(k);
          finished.push_back(std::move(done));
          changed.notify_all();
        }
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
    if (s.next_out == s.size()) {
      impl.state = {.epoch = s.random.epoch() + 1};
      leave();
      return false;
    }
    start_workers();
    Slot taken;
    try {
      taken = take(lock);
      if (taken.error) std::rethrow_exception(taken.error);
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      s.stop = true;
      leave();
      throw;
    }
    ++s.next_out;
    lock.unlock();
    const std::int64_t position = s.position(taken.place);
    const std::span<const std::int64_t> indices = s.indices(taken.place);
    impl.state.hand_out(position);
    out.fields = std::move(taken.fields);
    out.indices.assign(indices.begin(), indices.end());
    out.position = position;
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

  // The batch to hand out now, with the lock held at the end. One that nobody has begun is loaded here.
  Slot take(std::unique_lock<std::mutex>& lock) {
    Shared& s = *shared;
    const std::int64_t k = s.next_out;
    // Without in_order any batch will do: one from a worker, or our own while a worker has not come to work.
    const bool helpful = s.running < s.impl->options.num_workers || s.ring.empty();
    const bool help = s.in_order ? k == s.next_load : s.finished.empty() && s.next_load < s.size() && helpful;
    if (help) {
      Slot mine;
      mine.place = s.next_load++;
      lock.unlock();
      mine.fields = s.impl->load(s.indices(mine.place), s.random, s.impl->options.num_workers);
      lock.lock();
      return mine;
    }
    if (s.in_order) {
      Slot& slot = s.ring[static_cast<std::size_t>(k) % s.ring.size()];
      wait(lock, [&] { return slot.ready; });
      return std::exchange(slot, Slot{});
    }
    wait(lock, [&] { return !s.finished.empty(); });
    Slot first = std::move(s.finished.front());
    s.finished.pop_front();
    return first;
  }

  // What the consumer waits for, for messages; without in_order the oldest batch under way.
  [[nodiscard]] std::string awaited() const {
    const Shared& s = *shared;
    const std::int64_t k = s.in_order || s.under_way.empty() ? s.next_out : *s.under_way.begin();
    return "batch " + text(s.position(k)) + " of epoch " + text(s.random.epoch()) + " (samples from " +
           text(s.indices(k).front()) + " on)";
  }

  template <class Ready>
  void wait(std::unique_lock<std::mutex>& lock, const Ready& ready) {
    using Clock = std::chrono::steady_clock;
    using Seconds = std::chrono::duration<double>;
    constexpr double kForEver = 1e9;  // seconds: a clock's nanoseconds overflow at 9e9
    const auto after = [](double seconds) { return std::chrono::duration_cast<Clock::duration>(Seconds(seconds)); };
    Shared& s = *shared;
    const double timeout = s.impl->options.timeout, notice = wait_notice_seconds;
    const Clock::time_point start = Clock::now();
    const Clock::time_point deadline = start + after(timeout > 0 ? std::min(timeout, kForEver) : kForEver);
    for (int n = 1;; ++n) {
      const Clock::time_point said = start + after(notice * n);
      if (s.changed.wait_until(lock, std::min(said, deadline), ready)) return;
      if (deadline <= said && timeout > 0) {
        fail<DataError>("loader: ", awaited(), " did not come within ", timeout,
                        " seconds; raise timeout, or look at what the dataset waits for");
      }
      const std::string words = "loader: waiting for data: " + awaited() + ", " + text(notice * n) + " s";
      lock.unlock();
      warn("W-DATA-WAIT", WarningCategory::runtime, words, Repeat::yes);
      lock.lock();
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
  if (!i.resume) i.state = {.epoch = i.next_epoch};
  i.resume = false;
  i.next_epoch = i.state.epoch + 1;
  auto shared = std::make_shared<Pass::Shared>(impl_, i.plan(i.state.epoch), i.state);
  if (i.state.batch > shared->plan.size()) {
    fail<StateError>("loader: the state stands at batch ", i.state.batch, ", the epoch has ", shared->plan.size(),
                     "; was it saved with other options or data?");
  }
  for (const std::int64_t index : shared->plan.indices) {
    if (index < 0 || index >= i.dataset->size()) {
      fail<IndexError>("loader: the sampler gave index ", index, ", the dataset has ", i.dataset->size(), " samples");
    }
  }
  // More places than batches would never be used.
  const std::size_t slots = std::min(
      static_cast<std::size_t>(i.options.num_workers) * static_cast<std::size_t>(i.options.prefetch_factor.value_or(2)),
      static_cast<std::size_t>(std::max<std::int64_t>(1, shared->plan.size())));
  i.forget_workers();
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
  std::int64_t before = state.batch;
  for (const std::int64_t k : state.ahead) {
    if (k <= before || k >= size()) {
      fail<StateError>("loader: the state says that batch ", k, " was handed out ahead of batch ", state.batch,
                       ", expected ascending numbers above it and below ", size());
    }
    before = k;
  }
  impl_->state = state;
  impl_->next_epoch = state.epoch;
  impl_->resume = true;
}

}  // namespace levin::data
