// Blocks of threads, as they run: one, or those of a cluster, whose threads live at once. Internal to kernels/simt;
// run.cpp has launches and stacks, overlap.cpp launches that begin early, schedule.cpp which thread runs next, wait.cpp
// what threads wait for, diagnose.cpp the messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/simt/fiber.h"
#include "kernels/simt/run.h"
#include "kernels/simt/simt.h"

namespace levin::simt {

inline constexpr int kMaxThreads = 1024, kLanes = 32;

class Async;
class Engine;
struct Block;
struct Cluster;

// A stack that runs one thread after another.
struct Worker {
  explicit Worker(Engine& e);
  Engine& engine;
  Fiber fiber;
};

// 16 bytes on their way to shared memory.
struct AsyncCopy {
  void* to;
  const void* from;  // null: zeros
  int group;
};

struct Thread {
  enum class State : std::uint8_t { fresh, ready, at_barrier, in_warp, in_async, exited };
  State state = State::fresh;
  uint3 index = {0, 0, 0};
  Block* block = nullptr;
  Worker* worker = nullptr;  // null before the first and after the last instruction
  // Where it waits, valid in at_barrier, in_warp and in_async.
  const char* what = nullptr;
  Site at;
  std::uint32_t mask = 0;
  LaneInput in;
  std::uint64_t out = 0;
  std::vector<AsyncCopy> copies;
  int copy_group = 0;  // the one that is open
};

// Lanes that wait in one call of a warp function.
struct Group {
  std::uint32_t mask;
  WarpFunction f;
  Site at;
  std::uint32_t waiting;
};

struct Warp {
  std::uint32_t present = 0;  // lanes that the block has
  std::uint32_t ready = 0;    // fresh or ready
  std::uint32_t exited = 0;
  std::vector<Group> groups;
};

struct FreeBytes {
  void operator()(void* p) const;
};
// Bytes 0xff, aligned to 16 at least; AddressSanitizer guards both ends.
[[nodiscard]] std::unique_ptr<void, FreeBytes> nan_filled(std::size_t bytes, std::size_t alignment);
struct SharedArray {
  const void* key;
  std::unique_ptr<void, FreeBytes> data;
};

// A block that runs. Its threads and warps are consecutive among the engine's.
struct Block {
  ~Block();
  int rank = 0;  // in its cluster
  uint3 index = {0, 0, 0};
  int first_thread = 0, first_warp = 0;
  int exited = 0;
  int waiting = 0;         // at a barrier
  Site barrier_at;         // of the first of those
  bool divergent = false;  // not all of those at the same
  int votes = 0;           // of the barrier that is being reached
  int result = 0;          // of the last barrier
  bool has_waited_for_prerequisites = false;
  std::vector<SharedArray> shared;
  std::size_t static_bytes = 0;
  std::unique_ptr<void, FreeBytes> dynamic_memory;
  std::byte* dynamic = nullptr;  // in dynamic_memory
  std::unique_ptr<Async> async;
};

[[nodiscard]] bool same(const Site& a, const Site& b);
[[nodiscard]] std::string mask_text(std::uint32_t mask);
[[nodiscard]] std::string lanes_text(std::uint32_t lanes);
[[nodiscard]] std::string site_text(const Site& at);

// splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
[[nodiscard]] inline std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// What a block can have, static and dynamic shared memory together (cudaDevAttrMaxSharedMemoryPerBlockOptin on Hopper).
inline constexpr std::size_t kMostShared = 227 * 1024;

// Runs the blocks of a launch, one cluster after another. Each OS thread has one; its stacks are kept.
class Engine {
 public:
  Engine();
  ~Engine();
  void run(const Launch& launch, Body body, const char* name);

  // The parts of run(), for a launch that begins before the work ahead of it ends (Note [Launches that overlap]).
  // `other`: whose schedule it has, which may have been set anew.
  void prepare(const Launch& launch, Body body, const char* name, const Engine* other = nullptr);
  [[nodiscard]] std::uint64_t clusters() const { return clusters_; }
  void run_cluster(std::uint64_t turn);  // the one that the schedule has at this place
  // As run_cluster, but threads stay in wait_for_prerequisites; finish_cluster() resumes them.
  void begin_cluster(std::uint64_t turn);
  void finish_cluster();

  [[nodiscard]] Thread& running() { return *running_; }
  [[nodiscard]] Block& block() { return *block_; }
  [[nodiscard]] int blocks_of_cluster() const { return int(blocks_.size()); }
  int barrier(Vote vote, int predicate, const char* what, Site at);
  std::uint64_t warp_collective(std::uint32_t mask, const char* what, Site at, LaneInput in, WarpFunction f);
  // The lanes of the running thread's warp that have not exited.
  [[nodiscard]] std::uint32_t lanes_left() const;
  void* shared_array(const void* key, std::size_t bytes, std::size_t alignment);
  [[nodiscard]] void* shared_dynamic() const { return block_->dynamic; }
  [[nodiscard]] std::uint64_t switches() const { return switches_; }
  // What the running block has under way beside its threads, made at its first use; it needs dynamic shared memory.
  Async& async(Site at);
  Async& async_without_memory();  // the same, without that need
  [[nodiscard]] int running_index() const { return index_of(*running_) - block_->first_thread; }  // in its block
  [[nodiscard]] int threads_left() const { return live_; }                                        // of the cluster
  void park(const char* what, Site at);  // the running thread waits until unpark
  void unpark(const Block& block, int thread) { ready(threads_[std::size_t(block.first_thread + thread)]); }
  void yield();                       // others may run first
  [[nodiscard]] int elected() const;  // the lane that elect.sync chooses
  void wait_for_prerequisites(Site at);
  // Throws InternalError naming kernel, block and the thread that runs.
  [[noreturn]] void fail_thread(const std::string& what, Site at) const;
  [[noreturn]] void fail_block(const Block& block, const std::string& what) const;  // names no thread

 private:
  friend struct Worker;
  struct Discarded {};  // thrown through a thread whose launch has failed

  void enter();  // this engine's blocks run on the OS thread
  void make_cluster(std::uint64_t cluster);
  void free_cluster();
  void resume(Thread* next);  // runs until no thread can, or one throws
  void end_cluster();
  void reset_block(Block& block);
  Async& make_async(Block& block);
  void discard();
  void work(Worker& self);
  void thread_ends();
  void exit(Thread& thread);
  // The next thread to run by the schedule, taken off the ready ones; null when none can run.
  Thread* pick();
  // The same; copies and products complete on the way.
  Thread* next_thread();
  [[nodiscard]] bool complete_when_idle();
  Thread* take(int warp, int lane);
  void enter_thread(Thread& thread);
  void wait();                         // the running thread waits while others run; returns when it resumes
  void go(Fiber& from, Thread* next);  // null: back to the launching stack
  void ready(Thread& thread);
  [[nodiscard]] int index_of(const Thread& thread) const { return int(&thread - threads_.data()); }
  [[nodiscard]] std::span<Thread> threads_of(const Block& block);
  [[nodiscard]] std::span<const Thread> threads_of(const Block& block) const;
  std::uint64_t random();
  // Why no thread can run although some have not ended; diagnose.cpp.
  [[nodiscard]] std::string stuck() const;
  [[nodiscard]] std::string stuck(const Block& block) const;
  [[nodiscard]] std::string places(const Block& block) const;
  [[nodiscard]] std::string stuck_warp(const Thread& thread) const;
  [[nodiscard]] std::string thread_text(const Thread& thread) const;
  [[nodiscard]] std::string kernel_text(const Block& block) const;

  // The launch
  Launch launch_;
  std::optional<Body> body_;
  const char* name_ = nullptr;
  Schedule schedule_ = Schedule::ascending;
  std::uint64_t seed_ = 0;
  Completion completion_ = Completion::early;
  std::uint64_t completion_seed_ = 0;
  int count_ = 0;       // threads of a block
  int warp_count_ = 0;  // warps of a block
  std::uint64_t clusters_ = 0, step_ = 1, first_ = 0;
  // The cluster
  std::vector<std::unique_ptr<Block>> blocks_;
  std::unique_ptr<Cluster> cluster_;  // what their Asyncs share, null before the first
  std::vector<Thread> threads_;       // those that the last warp of a block lacks count as exited
  std::vector<Warp> warps_;
  int warps_in_use_ = 0;    // of warps_
  int live_ = 0;            // threads that have not exited
  bool holds_ = false;      // threads stay in wait_for_prerequisites
  bool suspended_ = false;  // between begin_cluster and finish_cluster
  std::vector<Thread*> held_;
  std::exception_ptr error_;
  bool discarding_ = false;
  // The scheduler
  Thread* running_ = nullptr;
  Block* block_ = nullptr;
  int cursor_ = 0;     // ascending: the lowest index not yet run in this round; descending: the highest
  int favourite_ = 0;  // greedy: the warp that runs
  std::uint64_t random_ = 0;
  Fiber launcher_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Worker*> idle_;
  std::uint64_t switches_ = 0;
};

// While it lives, the OS thread runs a kernel. Throws InternalError when it already does.
struct InKernel {
  explicit InKernel(const char* name);
  ~InKernel();
  InKernel(const InKernel&) = delete;
  InKernel& operator=(const InKernel&) = delete;
};
[[nodiscard]] inline std::uint64_t count_of(dim3 d) { return std::uint64_t{d.x} * d.y * d.z; }
void check_limits(const Launch& launch, const char* name);  // CudaError for what CUDA refuses

[[nodiscard]] Engine& engine_of_thread();  // the one of run_grid

// The engine of this OS thread while it runs a kernel, else null.
extern thread_local constinit Engine* engine;

// The engine, or InternalError: `what` is for kernels alone.
Engine& in_kernel(const char* what);

}  // namespace levin::simt
