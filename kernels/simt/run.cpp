// The scheduler: launches, stacks, and which thread of a block runs next.
//
// Note [Who runs next]
// A thread runs until it must wait or ends. Then its own stack asks pick() for the next one and passes straight to it;
// the launching stack runs again only when none is left, or when one has thrown. Threads that have not begun have no
// stack: a stack whose thread has ended begins the next, so a kernel without barriers needs one stack for all.
#include "kernels/simt/run.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

#include "kernels/simt/async.h"
#include "kernels/simt/block.h"
#include "levin/error.h"

constinit thread_local uint3 threadIdx = {0, 0, 0};
constinit thread_local uint3 blockIdx = {0, 0, 0};
constinit thread_local dim3 blockDim = {};
constinit thread_local dim3 gridDim = {};

namespace levin::simt {

constinit thread_local Engine* engine = nullptr;

namespace {

constexpr std::uint64_t kSeedBits = 56;
std::atomic<std::uint64_t> chosen{0};             // schedule above the seed, so that both change at once
std::atomic<std::uint64_t> chosen_completion{0};  // likewise
constexpr std::uint64_t kSeedMask = (std::uint64_t{1} << kSeedBits) - 1;

// splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

void check_limits(dim3 blocks, dim3 threads, unsigned shared_bytes, const char* name) {
  struct Limit {
    const char* what;
    unsigned value, most;
  };
  const Limit limits[] = {{"blocks.x", blocks.x, 2147483647u}, {"blocks.y", blocks.y, 65535u},
                          {"blocks.z", blocks.z, 65535u},      {"threads.x", threads.x, 1024u},
                          {"threads.y", threads.y, 1024u},     {"threads.z", threads.z, 64u}};
  for (const Limit& limit : limits) {
    if (limit.value == 0 || limit.value > limit.most) {
      fail<CudaError>(name, ": invalid configuration argument (cudaErrorInvalidConfiguration): ", limit.what, " is ",
                      limit.value, ", expected 1 to ", limit.most);
    }
  }
  const std::uint64_t count = std::uint64_t{threads.x} * threads.y * threads.z;
  if (count > kMaxThreads) {
    fail<CudaError>(name, ": invalid configuration argument (cudaErrorInvalidConfiguration): ", count,
                    " threads a block, at most ", kMaxThreads);
  }
  if (shared_bytes > kMostShared) {
    fail<CudaError>(name, ": invalid argument (cudaErrorInvalidValue): ", shared_bytes,
                    " bytes of shared memory a block, at most ", kMostShared);
  }
}

}  // namespace

void FreeBytes::operator()(void* p) const { std::free(p); }

std::unique_ptr<void, FreeBytes> nan_filled(std::size_t bytes, std::size_t alignment) {
  void* p = nullptr;
  if (posix_memalign(&p, std::max<std::size_t>(alignment, 16), std::max<std::size_t>(bytes, 1)) != 0) {
    fail<OutOfMemoryError>("simt: no memory for a shared array of ", bytes, " bytes");
  }
  std::memset(p, 0xff, bytes);
  return std::unique_ptr<void, FreeBytes>(p);
}

bool same(const Site& a, const Site& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

const char* name(Schedule schedule) {
  constexpr const char* kNames[] = {"ascending", "descending", "shuffled", "greedy_warp"};
  return kNames[int(schedule)];
}

void set_schedule(Schedule schedule, std::uint64_t seed) {
  chosen.store(std::uint64_t(schedule) << kSeedBits | (seed & kSeedMask));
}

Schedule schedule() { return Schedule(chosen.load() >> kSeedBits); }

const char* name(Completion completion) {
  constexpr const char* kNames[] = {"early", "late_oldest", "late_newest", "random"};
  return kNames[int(completion)];
}

void set_completion(Completion completion, std::uint64_t seed) {
  chosen_completion.store(std::uint64_t(completion) << kSeedBits | (seed & kSeedMask));
}

Completion completion() { return Completion(chosen_completion.load() >> kSeedBits); }

Engine& in_kernel(const char* what) {
  if (engine == nullptr) fail<InternalError>("simt: ", what, ": called outside of a kernel");
  return *engine;
}

namespace {
Engine& engine_of_thread() {
  thread_local Engine own;
  return own;
}
}  // namespace

std::uint64_t switches() { return engine_of_thread().switches(); }

void run_grid(dim3 blocks, dim3 threads, unsigned shared_bytes, Body body, const char* name) {
  if (engine != nullptr) fail<InternalError>("simt: ", name, ": launched from within a kernel; launch it after that");
  check_limits(blocks, threads, shared_bytes, name);
  Engine& own = engine_of_thread();
  struct Leave {
    ~Leave() { engine = nullptr; }
  } leave;
  engine = &own;
  own.run(blocks, threads, shared_bytes, body, name);
}

// ---- A launch

Engine::Engine() = default;
Engine::~Engine() = default;

void Engine::run(dim3 blocks, dim3 threads, unsigned shared_bytes, Body body, const char* name) {
  body_ = &body;
  name_ = name;
  shared_bytes_ = shared_bytes;
  const std::uint64_t choice = chosen.load();
  schedule_ = Schedule(choice >> kSeedBits);
  seed_ = choice & kSeedMask;
  completion_ = Completion(chosen_completion.load() >> kSeedBits);
  completion_seed_ = chosen_completion.load() & kSeedMask;
  blockDim = threads;
  gridDim = blocks;

  const unsigned count = threads.x * threads.y * threads.z;
  threads_.resize(count);
  for (unsigned i = 0; i < count; ++i) {
    threads_[i].index = {i % threads.x, i / threads.x % threads.y, i / threads.x / threads.y};
  }
  warp_count_ = int((count + kLanes - 1) / kLanes);

  // Blocks have no order in CUDA: here they follow the schedule as well, shuffled by i -> (i * step + first) % total.
  const std::uint64_t total = std::uint64_t{blocks.x} * blocks.y * blocks.z;
  std::uint64_t step = 1, first = 0;
  if (schedule_ == Schedule::shuffled) {
    first = mixed(seed_) % total;
    step = mixed(seed_ + 1) % total;
    while (step == 0 || std::gcd(step, total) != 1) ++step;
  }
  __extension__ using Wide = unsigned __int128;
  for (std::uint64_t i = 0; i < total; ++i) {
    const std::uint64_t block =
        schedule_ == Schedule::descending ? total - 1 - i : std::uint64_t((Wide(i) * step + first) % total);
    blockIdx = {unsigned(block % blocks.x), unsigned(block / blocks.x % blocks.y),
                unsigned(block / blocks.x / blocks.y)};
    random_ = mixed(seed_ ^ mixed(block));
    run_block();
  }
}

void Engine::reset_block() {
  for (Thread& thread : threads_) {
    thread.state = Thread::State::fresh;
    thread.worker = nullptr;
    thread.copies.clear();
    thread.copy_group = 0;
  }
  for (int w = 0; w < warp_count_; ++w) {
    const int lanes = std::min(kLanes, int(threads_.size()) - w * kLanes);
    warps_[w].present = lanes == kLanes ? ~0u : (1u << lanes) - 1;
    warps_[w].ready = warps_[w].present;
    warps_[w].exited = 0;
    warps_[w].groups.clear();
  }
  exited_ = waiting_ = votes_ = 0;
  divergent_ = discarding_ = false;
  error_ = nullptr;
  static_bytes_ = 0;
  cursor_ = schedule_ == Schedule::descending ? int(threads_.size()) - 1 : 0;
  favourite_ = 0;
  running_ = nullptr;
}

void Engine::run_block() {
  reset_block();
  struct Free {  // shared arrays end with the block, also when it throws
    Engine& e;
    ~Free() {
      e.async_.reset();
      e.shared_.clear();
      e.dynamic_.reset();
    }
  } free{*this};
  if (shared_bytes_ != 0) dynamic_ = nan_filled(shared_bytes_, 16);
  go(launcher_, pick());
  if (error_ != nullptr) {
    discard();
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
  if (exited_ != int(threads_.size())) {
    const std::string why = stuck();
    discard();
    fail<InternalError>(kernel_text(), ": ", why);
  }
  if (async_ != nullptr) async_->block_ends();
}

// Unwinds every thread that has begun and not ended, so that its stack is free and what it holds is released.
void Engine::discard() {
  discarding_ = true;
  if (async_ != nullptr) async_->abandon();
  for (Thread& thread : threads_) {
    if (thread.worker != nullptr) go(launcher_, &thread);
  }
}

// ---- Stacks

Worker::Worker(Engine& e)
    : engine(e),
      fiber(
          [](void* self) {
            Worker& worker = *static_cast<Worker*>(self);
            worker.engine.work(worker);
          },
          this) {}

// The life of a stack: threads, one after another. It never returns: between threads it waits in idle_.
void Engine::work(Worker& self) {
  for (;;) {
    Thread& thread = *running_;
    try {
      (*body_)();
      if (async_ != nullptr) async_->thread_ends();
    } catch (const Discarded&) {
    } catch (...) {
      if (async_ != nullptr) async_->abandon();  // before other threads run on this stack
      if (error_ == nullptr) error_ = std::current_exception();
    }
    exit(thread);
    Thread* const next = error_ != nullptr || discarding_ ? nullptr : next_thread();
    if (next != nullptr && next->worker == nullptr) {
      next->worker = &self;
      running_ = next;
      threadIdx = next->index;
      continue;
    }
    idle_.push_back(&self);
    go(self.fiber, next);
  }
}

void Engine::exit(Thread& thread) {
  const int index = index_of(thread);
  thread.state = Thread::State::exited;
  thread.worker = nullptr;
  ++exited_;
  warps_[index / kLanes].exited |= 1u << index % kLanes;
}

void Engine::go(Fiber& from, Thread* next) {
  if (next != nullptr) {
    if (next->worker == nullptr) {
      if (idle_.empty()) {
        workers_.push_back(std::make_unique<Worker>(*this));
        idle_.push_back(workers_.back().get());
      }
      next->worker = idle_.back();
      idle_.pop_back();
    }
    running_ = next;
    threadIdx = next->index;
  }
  ++switches_;
  from.switch_to(next != nullptr ? next->worker->fiber : launcher_);
}

void Engine::wait() {
  Thread& self = *running_;
  Thread* const next = next_thread();
  if (next != &self) go(self.worker->fiber, next);
  if (discarding_) throw Discarded{};
}

// ---- Waits for what is under way

Async& Engine::async(Site at) {
  if (async_ == nullptr) {
    if (dynamic_ == nullptr) fail_thread("needs LEVIN_SHARED_DYNAMIC memory; the launch gives no bytes of it", at);
    async_ = std::make_unique<Async>(*this, static_cast<std::byte*>(dynamic_.get()), shared_bytes_,
                                     int(threads_.size()), completion_, mixed(completion_seed_ ^ random_));
  }
  return *async_;
}

void Engine::park(const char* what, Site at) {
  running_->state = Thread::State::in_async;
  running_->what = what;
  running_->at = at;
  wait();
}

void Engine::yield() {
  ready(*running_);
  if (schedule_ == Schedule::greedy_warp) favourite_ = int(random() % std::uint64_t(warp_count_));
  wait();
}

int Engine::elected() const {
  const bool last = schedule_ == Schedule::descending || (schedule_ != Schedule::ascending && mixed(seed_) % 2 != 0);
  return last ? kLanes - 1 : 0;
}

Thread* Engine::next_thread() {
  if (async_ == nullptr) return pick();
  try {
    async_->at_switch();
    Thread* next = pick();
    while (next == nullptr && async_->complete_when_idle()) next = pick();
    return next;
  } catch (...) {  // of the block: its threads are unwound by run_block
    if (error_ == nullptr) error_ = std::current_exception();
    return nullptr;
  }
}

// ---- The schedule

void Engine::ready(Thread& thread) {
  const int index = index_of(thread);
  thread.state = Thread::State::ready;
  warps_[index / kLanes].ready |= 1u << index % kLanes;
}

std::uint64_t Engine::random() { return mixed(random_++); }

Thread* Engine::take(int warp, int lane) {
  warps_[warp].ready &= ~(1u << lane);
  return &threads_[warp * kLanes + lane];
}

Thread* Engine::pick() {
  const int count = int(threads_.size());
  const auto from_bit = [](int lane) { return ~0u << lane; };
  // The first that is ready from `start` upwards, or from 0 when there is none.
  const auto upwards = [&](int start) -> Thread* {
    const int warp = start / kLanes;
    for (int i = 0; i <= warp_count_; ++i) {
      const int w = (warp + i) % warp_count_;
      std::uint32_t bits = warps_[w].ready;
      if (i == 0) bits &= from_bit(start % kLanes);
      if (bits != 0) return take(w, std::countr_zero(bits));
    }
    return nullptr;
  };
  switch (schedule_) {
    case Schedule::ascending: {
      Thread* const next = upwards(cursor_);
      if (next != nullptr) cursor_ = (index_of(*next) + 1) % count;
      return next;
    }
    case Schedule::descending: {
      const int warp = cursor_ / kLanes;
      for (int i = 0; i <= warp_count_; ++i) {
        const int w = (warp - i + 2 * warp_count_) % warp_count_;
        std::uint32_t bits = warps_[w].ready;
        if (i == 0) bits &= ~0u >> (kLanes - 1 - cursor_ % kLanes);
        if (bits == 0) continue;
        const int lane = kLanes - 1 - std::countl_zero(bits);
        cursor_ = (w * kLanes + lane + count - 1) % count;
        return take(w, lane);
      }
      return nullptr;
    }
    case Schedule::shuffled: return upwards(int(random() % std::uint64_t(count)));
    case Schedule::greedy_warp: {
      for (int i = 0; i < warp_count_; ++i) {
        const int w = (favourite_ + i) % warp_count_;
        if (warps_[w].ready == 0) continue;
        favourite_ = w;
        return take(w, std::countr_zero(warps_[w].ready));
      }
      return nullptr;
    }
  }
  return nullptr;
}

}  // namespace levin::simt
