// Launches, the blocks of a cluster, and stacks.
#include "kernels/simt/run.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

#include "kernels/simt/async.h"
#include "kernels/simt/block.h"
#include "kernels/simt/poison.h"
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

}  // namespace

void check_limits(const Launch& launch, const char* name) {
  struct Limit {
    const char* what;
    unsigned value, most;
  };
  const dim3 blocks = launch.blocks, threads = launch.threads, cluster = launch.cluster;
  const Limit limits[] = {{"blocks.x", blocks.x, 2147483647u}, {"blocks.y", blocks.y, 65535u},
                          {"blocks.z", blocks.z, 65535u},      {"threads.x", threads.x, 1024u},
                          {"threads.y", threads.y, 1024u},     {"threads.z", threads.z, 64u}};
  for (const Limit& limit : limits) {
    if (limit.value == 0 || limit.value > limit.most) {
      fail<CudaError>(name, ": invalid configuration argument (cudaErrorInvalidConfiguration): ", limit.what, " is ",
                      limit.value, ", expected 1 to ", limit.most);
    }
  }
  const std::uint64_t count = count_of(threads);
  if (count > kMaxThreads) {
    fail<CudaError>(name, ": invalid configuration argument (cudaErrorInvalidConfiguration): ", count,
                    " threads a block, at most ", kMaxThreads);
  }
  if (launch.shared_bytes > kMostShared) {
    fail<CudaError>(name, ": invalid argument (cudaErrorInvalidValue): ", launch.shared_bytes,
                    " bytes of shared memory a block, at most ", kMostShared);
  }
  constexpr const char* kMisconfigured =
      ": a kernel launch error has occurred due to cluster misconfiguration (cudaErrorInvalidClusterSize)";
  const Limit parts[] = {{"x", blocks.x, cluster.x}, {"y", blocks.y, cluster.y}, {"z", blocks.z, cluster.z}};
  for (const auto& [what, of_grid, of_cluster] : parts) {
    if (of_cluster == 0 || of_grid % of_cluster != 0) {
      fail<CudaError>(name, kMisconfigured, ": blocks.", what, " is ", of_grid, ", expected a multiple of cluster.",
                      what, ", ", of_cluster);
    }
  }
  const std::uint64_t most = launch.large_cluster ? 16 : 8;
  if (count_of(cluster) > most) {
    fail<CudaError>(name, kMisconfigured, ": ", count_of(cluster), " blocks a cluster, at most ", most,
                    launch.large_cluster ? "" : ", or 16 in a large_cluster");
  }
}

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

Engine& engine_of_thread() {
  thread_local Engine own;
  return own;
}

std::uint64_t switches() { return engine_of_thread().switches(); }

InKernel::InKernel(const char* name) {
  if (engine != nullptr) fail<InternalError>("simt: ", name, ": launched from within a kernel; launch it after that");
}
InKernel::~InKernel() { engine = nullptr; }

void run_grid(const Launch& launch, Body body, const char* name) {
  const InKernel in_kernel(name);
  check_limits(launch, name);
  engine_of_thread().run(launch, body, name);
}

// ---- A launch

Block::~Block() = default;
Engine::Engine() = default;
Engine::~Engine() {
  if (!suspended_) return;
  enter();
  discard();
  free_cluster();
  engine = nullptr;
}

void Engine::enter() {
  engine = this;
  blockDim = launch_.threads;
  gridDim = launch_.blocks;
  if (block_ != nullptr) blockIdx = block_->index;
}

void Engine::prepare(const Launch& launch, Body body, const char* name, const Engine* other) {
  launch_ = launch;
  body_ = body;
  name_ = name;
  const std::uint64_t choice = chosen.load();
  schedule_ = Schedule(choice >> kSeedBits);
  seed_ = choice & kSeedMask;
  completion_ = Completion(chosen_completion.load() >> kSeedBits);
  completion_seed_ = chosen_completion.load() & kSeedMask;
  if (other != nullptr) {
    schedule_ = other->schedule_;
    seed_ = other->seed_;
    completion_ = other->completion_;
    completion_seed_ = other->completion_seed_;
  }

  const dim3 threads = launch.threads;
  const auto of_cluster = std::size_t(count_of(launch.cluster));
  count_ = int(count_of(threads));
  warp_count_ = (count_ + kLanes - 1) / kLanes;
  // Each block of several begins with a warp; lanes that its last warp lacks never run.
  const int step = of_cluster == 1 ? count_ : warp_count_ * kLanes;
  threads_.resize(of_cluster * std::size_t(step));
  warps_in_use_ = int(of_cluster) * warp_count_;
  if (warps_.size() < std::size_t(warps_in_use_)) warps_.resize(std::size_t(warps_in_use_));
  while (blocks_.size() < of_cluster) blocks_.push_back(std::make_unique<Block>());
  blocks_.resize(of_cluster);
  for (std::size_t rank = 0; rank < of_cluster; ++rank) {
    Block& block = *blocks_[rank];
    block.rank = int(rank);
    block.first_thread = int(rank) * step;
    block.first_warp = int(rank) * warp_count_;
    for (int i = 0; i < step; ++i) {
      Thread& thread = threads_[std::size_t(block.first_thread + i)];
      const auto n = unsigned(i);
      thread.index = {n % threads.x, n / threads.x % threads.y, n / threads.x / threads.y};
      thread.block = &block;
      thread.worker = nullptr;
      thread.state = Thread::State::exited;
    }
  }

  // Blocks have no order in CUDA: here they follow the schedule as well, shuffled by i -> (i * step + first) % total.
  clusters_ = count_of(launch.blocks) / of_cluster;
  step_ = 1;
  first_ = 0;
  if (schedule_ == Schedule::shuffled) {
    first_ = mixed(seed_) % clusters_;
    step_ = mixed(seed_ + 1) % clusters_;
    while (step_ == 0 || std::gcd(step_, clusters_) != 1) ++step_;
  }
}

void Engine::run(const Launch& launch, Body body, const char* name) {
  prepare(launch, body, name);
  for (std::uint64_t turn = 0; turn < clusters_; ++turn) run_cluster(turn);
}

void Engine::make_cluster(std::uint64_t turn) {
  enter();
  __extension__ using Wide = unsigned __int128;
  const std::uint64_t cluster = schedule_ == Schedule::descending
                                    ? clusters_ - 1 - turn
                                    : std::uint64_t((Wide(turn) * step_ + first_) % clusters_);
  const dim3 of = launch_.cluster;
  const dim3 grid(launch_.blocks.x / of.x, launch_.blocks.y / of.y, launch_.blocks.z / of.z);  // in clusters
  const uint3 first = {unsigned(cluster % grid.x) * of.x, unsigned(cluster / grid.x % grid.y) * of.y,
                       unsigned(cluster / grid.x / grid.y) * of.z};
  random_ = mixed(seed_ ^ mixed(cluster));
  for (const std::unique_ptr<Block>& block : blocks_) {
    const auto rank = unsigned(block->rank);
    block->index = {first.x + rank % of.x, first.y + rank / of.x % of.y, first.z + rank / of.x / of.y};
    reset_block(*block);
  }
  live_ = count_ * int(blocks_.size());
  cursor_ = schedule_ == Schedule::descending ? int(threads_.size()) - 1 : 0;
  favourite_ = blocks_.size() == 1 ? 0 : int(random() % std::uint64_t(warps_in_use_));
  discarding_ = false;
  error_ = nullptr;
  running_ = nullptr;
  block_ = blocks_[0].get();
  blockIdx = block_->index;
  if (blocks_.size() == 1) return;
  for (const std::unique_ptr<Block>& block : blocks_) make_async(*block);
}

void Engine::reset_block(Block& block) {
  for (Thread& thread : threads_of(block)) {
    thread.state = Thread::State::fresh;
    thread.worker = nullptr;
    thread.copies.clear();
    thread.copy_group = 0;
  }
  for (int w = 0; w < warp_count_; ++w) {
    const int lanes = std::min(kLanes, count_ - w * kLanes);
    Warp& warp = warps_[std::size_t(block.first_warp + w)];
    warp.present = lanes == kLanes ? ~0u : (1u << lanes) - 1;
    warp.ready = warp.present;
    warp.exited = 0;
    warp.groups.clear();
  }
  block.exited = block.waiting = block.votes = 0;
  block.divergent = block.has_waited_for_prerequisites = false;
  block.static_bytes = 0;
  if (launch_.shared_bytes == 0) return;
  // All blocks of a cluster have their arrays at the same distance from a multiple of 1024, as addresses of the shared
  // window are the same in each.
  const std::size_t shift = blocks_.size() == 1 ? 0 : mixed(seed_) % (kPage / 16) * 16;
  block.dynamic_memory = nan_filled(shift + launch_.shared_bytes, blocks_.size() == 1 ? 16 : kPage);
  block.dynamic = static_cast<std::byte*>(block.dynamic_memory.get()) + shift;
  poison_memory(block.dynamic_memory.get(), shift);
}

// Shared arrays end with the cluster, also when a thread has thrown.
void Engine::free_cluster() {
  for (const std::unique_ptr<Block>& block : blocks_) {
    block->async.reset();
    block->shared.clear();
    block->dynamic_memory.reset();
    block->dynamic = nullptr;
  }
  cluster_.reset();
  held_.clear();
  holds_ = suspended_ = false;
}

void Engine::resume(Thread* next) {
  go(launcher_, next);
  if (error_ == nullptr) return;
  discard();
  std::rethrow_exception(std::exchange(error_, nullptr));
}

void Engine::run_cluster(std::uint64_t turn) {
  struct Free {
    Engine& e;
    ~Free() { e.free_cluster(); }
  } free{*this};
  make_cluster(turn);
  resume(pick());
  end_cluster();
}

void Engine::begin_cluster(std::uint64_t turn) {
  struct Free {
    Engine& e;
    ~Free() {
      if (!e.suspended_) e.free_cluster();
    }
  } free{*this};
  holds_ = true;
  make_cluster(turn);
  resume(pick());
  suspended_ = !held_.empty();
  if (!suspended_) end_cluster();
}

void Engine::finish_cluster() {
  if (!suspended_) return;
  struct Free {
    Engine& e;
    ~Free() { e.free_cluster(); }
  } free{*this};
  enter();
  holds_ = suspended_ = false;
  for (Thread* const thread : std::exchange(held_, {})) ready(*thread);
  resume(next_thread());
  end_cluster();
}

void Engine::end_cluster() {
  if (live_ != 0) {
    const std::string why = stuck();
    discard();
    fail<InternalError>(why);
  }
  if (cluster_ == nullptr) return;
  if (blocks_.size() == 1) return blocks_[0]->async->block_ends();
  while (complete_when_idle()) {}
}

// Unwinds every thread that has begun and not ended, so that its stack is free and what it holds is released.
void Engine::discard() {
  discarding_ = true;
  for (const std::unique_ptr<Block>& block : blocks_) {
    if (block->async != nullptr) block->async->abandon();
  }
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
      thread_ends();
    } catch (const Discarded&) {
    } catch (...) {
      for (const std::unique_ptr<Block>& block : blocks_) {
        if (block->async != nullptr) block->async->abandon();  // before other threads run on this stack
      }
      if (error_ == nullptr) error_ = std::current_exception();
    }
    exit(thread);
    Thread* const next = error_ != nullptr || discarding_ ? nullptr : next_thread();
    if (next != nullptr && next->worker == nullptr) {
      next->worker = &self;
      enter_thread(*next);
      continue;
    }
    idle_.push_back(&self);
    go(self.fiber, next);
  }
}

void Engine::thread_ends() {
  Block& block = *block_;
  if (block.async != nullptr) block.async->thread_ends();
  if (block.exited + 1 != count_) return;
  if (launch_.follows && !block.has_waited_for_prerequisites) {
    fail_block(block,
               "the block ends without wait_for_prerequisites, in a launch that may begin before the work ahead of it");
  }
  if (blocks_.size() > 1) block.async->leave_cluster();
}

void Engine::exit(Thread& thread) {
  const int index = index_of(thread);
  thread.state = Thread::State::exited;
  thread.worker = nullptr;
  --live_;
  ++thread.block->exited;
  warps_[std::size_t(index / kLanes)].exited |= 1u << index % kLanes;
  if (cluster_ != nullptr && !discarding_ && error_ == nullptr)
    thread.block->async->thread_exits(index - thread.block->first_thread);
}

void Engine::enter_thread(Thread& thread) {
  running_ = &thread;
  threadIdx = thread.index;
  if (thread.block == block_) return;
  block_ = thread.block;
  blockIdx = block_->index;
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
    enter_thread(*next);
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

}  // namespace levin::simt
