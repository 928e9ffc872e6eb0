// One block of threads, as it runs. Internal to kernels/simt; run.cpp has the scheduler, wait.cpp what threads wait
// for, diagnose.cpp the messages.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "kernels/simt/fiber.h"
#include "kernels/simt/simt.h"

namespace levin::simt {

inline constexpr int kMaxThreads = 1024, kLanes = 32, kMaxWarps = kMaxThreads / kLanes;

class Async;
class Engine;

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

[[nodiscard]] bool same(const Site& a, const Site& b);
[[nodiscard]] std::string mask_text(std::uint32_t mask);
[[nodiscard]] std::string lanes_text(std::uint32_t lanes);
[[nodiscard]] std::string site_text(const Site& at);

// What a block can have, static and dynamic shared memory together (cudaDevAttrMaxSharedMemoryPerBlockOptin on Hopper).
inline constexpr std::size_t kMostShared = 227 * 1024;

// Everything of the launches of one OS thread; made at its first launch, kept for the stacks.
class Engine {
 public:
  Engine();
  ~Engine();
  void run(dim3 blocks, dim3 threads, unsigned shared_bytes, Body body, const char* name);

  [[nodiscard]] Thread& running() { return *running_; }
  int barrier(Vote vote, int predicate, const char* what, Site at);
  std::uint64_t warp_collective(std::uint32_t mask, const char* what, Site at, LaneInput in, WarpFunction f);
  void* shared_array(const void* key, std::size_t bytes, std::size_t alignment);
  [[nodiscard]] void* shared_dynamic() const { return dynamic_.get(); }
  [[nodiscard]] std::uint64_t switches() const { return switches_; }
  // What the block has under way beside its threads, made at its first use; it needs dynamic shared memory.
  Async& async(Site at);
  [[nodiscard]] int running_index() const { return index_of(*running_); }
  void park(const char* what, Site at);  // the running thread waits until unpark
  void unpark(int thread) { ready(threads_[std::size_t(thread)]); }
  void yield();                       // others may run first
  [[nodiscard]] int elected() const;  // the lane that elect.sync chooses
  // Throws InternalError naming kernel, block and the thread that runs.
  [[noreturn]] void fail_thread(const std::string& what, Site at) const;
  [[noreturn]] void fail_block(const std::string& what) const;  // names no thread

 private:
  friend struct Worker;
  struct Discarded {};  // thrown through a thread whose launch has failed

  void run_block();
  void reset_block();
  void discard();
  void work(Worker& self);
  void exit(Thread& thread);
  // The next thread to run by the schedule, taken off the ready ones; null when none can run.
  Thread* pick();
  // The same; copies and products complete on the way.
  Thread* next_thread();
  Thread* take(int warp, int lane);
  void wait();                         // the running thread waits while others run; returns when it resumes
  void go(Fiber& from, Thread* next);  // null: back to the launching stack
  void ready(Thread& thread);
  [[nodiscard]] int index_of(const Thread& thread) const { return int(&thread - threads_.data()); }
  std::uint64_t random();
  // Why no thread can run although some have not ended; diagnose.cpp.
  [[nodiscard]] std::string stuck() const;
  [[nodiscard]] std::string places() const;
  [[nodiscard]] std::string stuck_warp(const Thread& thread) const;
  [[nodiscard]] std::string thread_text(const Thread& thread) const;
  [[nodiscard]] std::string kernel_text() const;

  // The launch
  const Body* body_ = nullptr;
  const char* name_ = nullptr;
  Schedule schedule_ = Schedule::ascending;
  std::uint64_t seed_ = 0;
  Completion completion_ = Completion::early;
  std::uint64_t completion_seed_ = 0;
  unsigned shared_bytes_ = 0;
  // The block
  std::vector<Thread> threads_;
  std::array<Warp, kMaxWarps> warps_;
  int warp_count_ = 0, exited_ = 0;
  int waiting_ = 0;         // at a barrier
  Site barrier_at_;         // of the first of those
  bool divergent_ = false;  // not all of those at the same
  int votes_ = 0;           // of the barrier that is being reached
  int result_ = 0;          // of the last barrier
  std::vector<SharedArray> shared_;
  std::size_t static_bytes_ = 0;
  std::unique_ptr<void, FreeBytes> dynamic_;
  std::unique_ptr<Async> async_;
  std::exception_ptr error_;
  bool discarding_ = false;
  // The scheduler
  Thread* running_ = nullptr;
  int cursor_ = 0;     // ascending: the lowest index not yet run in this round; descending: the highest
  int favourite_ = 0;  // greedy: the warp that runs
  std::uint64_t random_ = 0;
  Fiber launcher_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Worker*> idle_;
  std::uint64_t switches_ = 0;
};

// The engine of this OS thread while it runs a kernel, else null.
extern thread_local constinit Engine* engine;

// The engine, or InternalError: `what` is for kernels alone.
Engine& in_kernel(const char* what);

}  // namespace levin::simt
