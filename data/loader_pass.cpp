#include "data/loader_pass.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <limits>
#include <new>
#include <numeric>
#include <thread>

#include "data/errors.h"
#include "data/loader.h"
#include "levin/warning.h"
#include "tensor/device/interrupt.h"

// Note [Loading ahead]
// A pass over one epoch knows all its batches from the start: the order is drawn, then cut. Workers are TBB tasks in an
// arena of the loader. Each takes the next batch number, loads the batch and puts it into its place of a ring. When the
// ring is full the task ends, so that no thread of TBB's pool sleeps here, and the consumer starts tasks again when
// half of the ring is free. The consumer takes the places in order. If no worker has begun the batch that it wants, it
// loads that batch itself: a pool whose threads are all busy elsewhere makes a loader slower, never stuck. Without
// in_order finished batches stand in a queue, and the consumer takes the first. Of streams it takes the first whose
// stream has no earlier batch to come: Note [Batches of streams]. The content of a batch is the same, because it
// follows from the batch's position.
//
// A batch allocates nothing in the steady state. The consumer's batches are handles on fields that the pass keeps, too;
// when the consumer asks for the next batch, these fields go to `spare`, and the next batch to be loaded takes them.
// Fields that the consumer still holds are not written again (recycled), so it may keep, move or change its batch.
//
// With a timeout the consumer runs no user code, which might block: one more thread loads a batch that no worker has
// begun, or the consumer itself where no thread can be made. The end of a loop waits kPatience for running user code.
// Threads that are left behind hold the pass's shared part, and with it the loader's; the last of them releases both.
namespace levin::data {

std::atomic<double> wait_notice_seconds{10};

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience{1};           // with samples under way, of one who leaves the loop
constexpr std::chrono::milliseconds kAskForStop{100};  // how often a wait asks whether it should end

// A thread that could not be made is no error while another one loads.
void tell_of_threads(const std::string& why) {
  warn("W-DATA-THREADS", WarningCategory::runtime,
       "loader: a thread could not be started (" + why + "); loading goes on with fewer");
}

}  // namespace

void DataLoader::Impl::initialize_worker(int id) {
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
void DataLoader::Impl::forget_lone_thread() {
  const std::lock_guard lock(init_mutex);
  initialized.erase({std::this_thread::get_id(), options.num_workers});
}

Tensors DataLoader::Impl::load(std::span<const std::int64_t> indices, const EpochRandom& random, int worker,
                               Tensors spare) {
  return pinned(load_pageable(indices, random, worker, std::move(spare)));
}
Tensors DataLoader::Impl::pinned(Tensors fields) const {
  if (!options.pin_memory || !can_pin()) return fields;
  for (Tensor& t : fields) {
    if (t.defined() && t.device().is_cpu() && !t.is_pinned() && !t.requires_grad()) t = t.pin_memory();
  }
  return fields;
}

Tensors DataLoader::Impl::load_pageable(std::span<const std::int64_t> indices, const EpochRandom& random, int worker,
                                        Tensors spare) {
  try {
    if (options.num_workers > 0) initialize_worker(worker);
    const bool one_by_one = !options.batch_size || options.collate;
    if (!one_by_one) return dataset->gather_into(indices, random, std::move(spare));
    std::vector<Sample> samples;
    for (const std::int64_t index : indices) {
      try {
        Generator rng = random.sample(dataset->random_index(index));
        samples.push_back(dataset->get(index, rng));
      } catch (...) { rethrow_with("; loading sample " + text(index) + " of epoch " + text(random.epoch())); }
    }
    return options.batch_size ? options.collate(samples) : std::move(samples.front());
  } catch (...) { rethrow_in(worker); }
}

DataLoader::Impl::Read DataLoader::Impl::load(Streams& streams, std::int64_t position, int worker) {
  try {
    if (options.num_workers > 0) initialize_worker(worker);
    std::vector<Sample> samples = streams.read(position);
    const auto count = static_cast<std::int64_t>(samples.size());
    if (count == 0) return {};
    Tensors fields = !options.batch_size ? std::move(samples.front())
                     : options.collate   ? options.collate(samples)
                                         : data::collate(samples);
    return {.fields = pinned(std::move(fields)), .samples = count};
  } catch (...) {
    streams.fail(position);
    rethrow_in(worker);
  }
}

void DataLoader::Impl::rethrow_in(int worker) const {
  rethrow_with(worker < options.num_workers ? ", in worker " + text(worker)
               : times_out()                ? ", in a thread of its own"
                                            : ", in the calling thread");
}

struct LoadingPass::Slot {
  std::int64_t place = -1;  // in todo
  Tensors fields;
  std::int64_t samples = 0;  // of streams
  std::exception_ptr error;
  bool ready = false;
};

struct LoadingPass::Shared {
  std::shared_ptr<Impl> impl;
  std::unique_ptr<Streams> streams;  // of a loader over streams, which has no plan
  Plan plan;
  EpochRandom random;
  const levin::detail::ThreadModes modes;  // of the thread that began the loop: every batch is loaded under them
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::int64_t> todo;       // positions of the batches still to come, in order; of streams, some of them
  std::int64_t beyond = 0;              // of streams: the position after those in `todo`; they are followed by all
  std::vector<Slot> ring;               // batch todo[k] has place k % size; empty without workers
  std::vector<Slot> finished;           // instead of the ring's places without in_order
  std::vector<Tensors> spare;           // fields of batches that the consumer is done with
  std::vector<std::int64_t> under_way;  // places in todo being loaded
  std::int64_t next_load = 0;           // the first of todo that no thread has begun
  std::int64_t next_out = 0;            // how many were handed out
  int queued = 0, running = 0;          // tasks; threads made for one batch count as running
  std::string no_thread{};              // why no thread could be started, until the consumer has reported it
  bool stop = false;
  bool left = false;  // no loop waits for running tasks
  const bool in_order;

  Shared(std::shared_ptr<Impl> i, Plan p)
      : impl(std::move(i)),
        streams(impl->stream ? std::make_unique<Streams>(impl->stream, impl->options, impl->state) : nullptr),
        plan(std::move(p)),
        random(impl->options.generator, impl->state.epoch),
        modes(levin::detail::thread_modes()),
        in_order(impl->options.in_order) {
    const LoaderState& state = impl->state;
    const std::int64_t listed = !streams ? plan.size() : state.ahead.empty() ? state.batch : state.ahead.back() + 1;
    beyond = listed;
    for (std::int64_t k = state.batch; k < listed; ++k) {
      if (!std::binary_search(state.ahead.begin(), state.ahead.end(), k)) todo.push_back(k);
    }
    const DataLoaderOptions& o = impl->options;
    std::size_t slots =
        static_cast<std::size_t>(o.num_workers) * static_cast<std::size_t>(o.prefetch_factor.value_or(2));
    // More places than batches are never used.
    if (!streams) slots = std::min(slots, static_cast<std::size_t>(std::max<std::int64_t>(1, plan.size())));
    try {
      ring.resize(slots);
      // So that no container grows in a task: batches under way and finished are at most one more than places.
      finished.reserve(slots + 1);
      under_way.reserve(slots + 1);
      spare.reserve(slots + 2);
      if (!in_order) impl->state.ahead.reserve(static_cast<std::size_t>(plan.size()));
    } catch (const std::exception&) {  // bad_alloc or length_error
      fail<OutOfMemoryError>("loader: no memory for a ring of ", slots,
                             " batches, num_workers * prefetch_factor; lower prefetch_factor");
    }
  }

  [[nodiscard]] std::int64_t listed() const { return static_cast<std::int64_t>(todo.size()); }
  [[nodiscard]] std::int64_t size() const { return streams ? std::numeric_limits<std::int64_t>::max() : listed(); }
  [[nodiscard]] std::int64_t position(std::int64_t k) const {
    return k < listed() ? todo[static_cast<std::size_t>(k)] : beyond + (k - listed());
  }
  [[nodiscard]] bool at_end() const { return streams ? streams->all_handed_out() : next_out == size(); }
  [[nodiscard]] std::span<const std::int64_t> indices(std::int64_t k) const { return plan.batch(position(k)); }
  [[nodiscard]] bool room() const {
    return !stop && next_load < std::min(size(), next_out + static_cast<std::int64_t>(ring.size())) &&
           !(streams && streams->all_ended());
  }

  void load(Slot& to, int worker, Tensors in_place_of) {
    const levin::detail::ThreadModesScope scope(modes);
    if (!streams) {
      to.fields = impl->load(indices(to.place), random.of_batch(position(to.place)), worker, std::move(in_place_of));
      return;
    }
    Impl::Read read = impl->load(*streams, position(to.place), worker);
    to.fields = std::move(read.fields);
    to.samples = read.samples;
  }
  // With the lock held, after a load without an error.
  void note(const Slot& loaded) {
    if (streams && !loaded.error) streams->loaded(position(loaded.place), loaded.samples);
  }
  // With the lock held: the finished batch to hand out; the end where there is none.
  [[nodiscard]] std::vector<Slot>::iterator first_due() {
    return std::find_if(finished.begin(), finished.end(),
                        [&](const Slot& s) { return !streams || streams->is_due(position(s.place)); });
  }
  // With the lock held: the fields that came last, whose memory may still be in the cache. Page-locked ones go round,
  // so that a device has time to read them.
  [[nodiscard]] Tensors take_spare() {
    if (spare.empty()) return {};
    const auto at = impl->options.pin_memory ? spare.begin() : spare.end() - 1;
    Tensors taken = std::move(*at);
    spare.erase(at);
    return taken;
  }

  // With the lock held. A task whose enqueueing failed may be in the queue all the same, so it stays counted: this pass
  // then has fewer workers, down to none.
  static void start_one(const std::shared_ptr<Shared>& s) {
    ++s->queued;
    try {
      s->impl->arena->enqueue([s] { s->work(s); });
    } catch (const std::exception& e) { s->keep_reason(e.what()); }
  }
  // With the lock held: what the consumer reports next.
  void keep_reason(const char* why) noexcept {
    try {
      no_thread = why;
    } catch (const std::bad_alloc&) {  // without a report
    }
  }

  // With the lock held: takes the next batch.
  [[nodiscard]] std::int64_t begin_next() {
    under_way.push_back(next_load);
    return next_load++;
  }

  // Loads batch todo[k] and puts it into its place. With the lock held before and after.
  void load_ahead(std::unique_lock<std::mutex>& lock, std::int64_t k, int worker) {
    Slot done;
    done.place = k;
    Tensors in_place_of = take_spare();
    lock.unlock();
    try {
      load(done, worker, std::move(in_place_of));
    } catch (...) { done.error = std::current_exception(); }
    done.ready = true;
    lock.lock();
    std::erase(under_way, k);
    note(done);
    if (in_order)
      ring[static_cast<std::size_t>(k) % ring.size()] = std::move(done);
    else
      finished.push_back(std::move(done));
    if (!in_order || k == next_out) changed.notify_all();
  }

  // The end of a thread's work: releases the lock that it holds.
  void end_work(std::unique_lock<std::mutex>& lock) {
    --running;
    if (!stop) return;
    changed.notify_all();
    std::shared_ptr<Impl> last;  // destroyed after the lock is released, with the user's objects
    std::unique_ptr<Streams> last_streams;
    if (left && running == 0) last = std::move(impl), last_streams = std::move(streams);
    lock.unlock();
  }

  void work(const std::shared_ptr<Shared>& self) {
    std::unique_lock lock(mutex);
    --queued;
    if (stop) return;  // impl is gone
    const int worker = std::clamp(tbb::this_task_arena::current_thread_index(), 0, impl->options.num_workers - 1);
    ++running;
    while (room()) {
      const std::int64_t k = begin_next();
      if (room() && queued + running < impl->options.num_workers) start_one(self);
      load_ahead(lock, k, worker);
    }
    end_work(lock);
  }
};

LoadingPass::LoadingPass(std::shared_ptr<Impl> impl, Plan plan)
    : shared_(std::make_shared<Shared>(std::move(impl), std::move(plan))) {
  shared_->impl->looping = true;
}
LoadingPass::~LoadingPass() {
  leave();
  Shared& s = *shared_;
  // Destroyed after the lock is released, with the user's objects; a late task must not keep the dataset.
  std::shared_ptr<Impl> last;
  std::unique_ptr<Streams> last_streams;
  std::unique_lock lock(s.mutex);
  s.stop = true;
  if (s.changed.wait_for(lock, kPatience, [&] { return s.running == 0; })) {
    last = std::move(s.impl);
    last_streams = std::move(s.streams);
    lock.unlock();
    return;
  }
  s.left = true;
  try {
    const std::string words =
        "loader: the loop ends while " + awaited() +
        " is still being loaded; its thread is left behind, and holds the dataset until it is done";
    lock.unlock();
    warn("W-DATA-LEFT", WarningCategory::runtime, words, Repeat::yes);
  } catch (...) {  // a handler of warnings throws: a destructor cannot report it
  }
}

bool LoadingPass::next(Batch& out) {
  Shared& s = *shared_;
  Impl& impl = *s.impl;
  std::unique_lock lock(s.mutex);
  out.fields.clear();
  out.absent.clear();
  if (!lent_.empty() && s.spare.size() < s.spare.capacity()) s.spare.push_back(std::move(lent_));
  while (!next_place(lock, out)) {
    if (!s.at_end()) continue;
    impl.state = {.epoch = s.random.epoch() + 1};
    leave();
    return false;
  }
  return true;
}

// Takes one place. False at the end, and for a place without a batch, because its stream has ended.
bool LoadingPass::next_place(std::unique_lock<std::mutex>& lock, Batch& out) {
  Shared& s = *shared_;
  Impl& impl = *s.impl;
  if (s.at_end()) return false;
  start_workers();
  if (const std::string why = std::exchange(s.no_thread, {}); !why.empty()) {
    lock.unlock();
    tell_of_threads(why);
    lock.lock();
  }
  Slot taken;
  const auto end = [&] {
    if (!lock.owns_lock()) lock.lock();
    s.stop = true;
    leave();
  };
  try {
    taken = take(lock);
    if (taken.error) std::rethrow_exception(taken.error);
  } catch (const std::bad_alloc&) {  // there was not enough for the words of a typed error where it was thrown
    end();
    fail<OutOfMemoryError>("loader: out of memory while a batch was loaded");
  } catch (...) {
    end();
    throw;
  }
  ++s.next_out;
  const std::int64_t position = s.position(taken.place);
  impl.state.hand_out(position);
  if (s.streams) {
    s.streams->handed_out(position, taken.samples);
    if (taken.samples == 0) {
      out.absent.push_back(position);
      return false;
    }
    out.indices.resize(static_cast<std::size_t>(taken.samples));
    std::iota(out.indices.begin(), out.indices.end(), s.streams->number(position));
  } else {
    const std::span<const std::int64_t> indices = s.indices(taken.place);
    out.indices.assign(indices.begin(), indices.end());
  }
  lock.unlock();
  lent_ = std::move(taken.fields);
  out.fields.assign(lent_.begin(), lent_.end());
  out.position = position;
  return true;
}

void LoadingPass::leave() {
  if (std::exchange(looping_, false)) shared_->impl->looping = false;
}
// With the lock held. Waking a thread costs microseconds, so workers start when most of the ring is empty, and one
// worker wakes the next.
void LoadingPass::start_workers() {
  Shared& s = *shared_;
  const auto size = static_cast<std::int64_t>(s.ring.size());
  const std::int64_t ahead = s.next_load - s.next_out;
  if (size == 0 || !s.room() || s.queued + s.running >= s.impl->options.num_workers) return;
  if (ahead <= (size >= 8 ? size / 4 : size / 2)) Shared::start_one(shared_);
}

// The batch to hand out next, with the lock held at the end. Loads it here if no worker has begun it.
LoadingPass::Slot LoadingPass::take(std::unique_lock<std::mutex>& lock) {
  Shared& s = *shared_;
  const std::int64_t k = s.next_out;
  // Without in_order any batch serves: one from a worker, or one loaded here while no worker has begun.
  // A batch of streams may have to wait for another one that is under way, so the consumer takes none beside workers.
  const bool helpful = s.ring.empty() || (s.streams ? s.running == 0 : s.running < s.impl->options.num_workers);
  const bool help = s.in_order ? k == s.next_load : s.finished.empty() && s.next_load < s.size() && helpful;
  if (help && !(s.impl->times_out() && start_lone())) {
    Slot mine;
    mine.place = s.next_load++;
    Tensors in_place_of = s.take_spare();
    lock.unlock();
    s.load(mine, s.impl->options.num_workers, std::move(in_place_of));
    lock.lock();
    s.note(mine);
    return mine;
  }
  if (s.in_order) {
    Slot& slot = s.ring[static_cast<std::size_t>(k) % s.ring.size()];
    wait(lock, [&] { return slot.ready; });
    return std::exchange(slot, Slot{});
  }
  auto first = s.finished.end();
  wait(lock, [&] { return (first = s.first_due()) != s.finished.end(); });
  Slot taken = std::move(*first);
  s.finished.erase(first);
  return taken;
}

// Starts a thread for the next batch that no worker has begun, with the lock held; false where none can be made.
bool LoadingPass::start_lone() {
  const std::shared_ptr<Shared> s = shared_;
  const std::int64_t k = s->begin_next();
  ++s->running;
  try {
    std::thread([s, k] {
      std::unique_lock mine(s->mutex);
      s->load_ahead(mine, k, s->impl->options.num_workers);
      s->impl->forget_lone_thread();
      s->end_work(mine);
    }).detach();
    return true;
  } catch (const std::exception& e) {
    --s->running;
    std::erase(s->under_way, --s->next_load);
    s->keep_reason(e.what());  // the lock stays held, so that no worker takes the batch before the caller does
    return false;
  }
}

// The batch that the consumer waits for, for messages; without in_order, and where the loop ends, the oldest under way.
std::string LoadingPass::awaited() const {
  const Shared& s = *shared_;
  const bool next = (s.in_order && !s.stop) || s.under_way.empty();
  const std::int64_t k = next ? s.next_out : *std::min_element(s.under_way.begin(), s.under_way.end());
  const std::string batch = "batch " + text(s.position(k)) + " of epoch " + text(s.random.epoch());
  return s.streams ? batch + " (stream " + text(s.position(k) % s.streams->count()) + ")"
                   : batch + " (samples from " + text(s.indices(k).front()) + " on)";
}

// False when the time is over.
template <class Ready>
bool LoadingPass::wait_until(std::unique_lock<std::mutex>& lock, std::chrono::steady_clock::time_point end,
                             const Ready& ready) {
  const levin::detail::StopAsked asked = levin::detail::stop_asked;
  if (!asked) return shared_->changed.wait_until(lock, end, ready);
  while (!shared_->changed.wait_until(lock, std::min(end, Clock::now() + kAskForStop), ready)) {
    if (asked()) fail<InterruptedError>("loader: stopped while it waited for ", awaited());
    if (Clock::now() >= end) return false;
  }
  return true;
}
template <class Ready>
void LoadingPass::wait(std::unique_lock<std::mutex>& lock, const Ready& ready) {
  using Seconds = std::chrono::duration<double>;
  constexpr double kForEver = 1e9;  // seconds: a clock's nanoseconds overflow at 9e9
  const auto after = [](double seconds) { return std::chrono::duration_cast<Clock::duration>(Seconds(seconds)); };
  Shared& s = *shared_;
  const double timeout = s.impl->options.timeout, notice = wait_notice_seconds;
  const Clock::time_point start = Clock::now();
  const Clock::time_point deadline = start + after(timeout > 0 ? std::min(timeout, kForEver) : kForEver);
  for (int n = 1;; ++n) {
    const Clock::time_point said = start + after(notice * n);
    if (wait_until(lock, std::min(said, deadline), ready)) return;
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

}  // namespace levin::data
