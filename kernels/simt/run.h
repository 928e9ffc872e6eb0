// Runs a CUDA kernel's body on the host: every thread of a block is a fiber, blocks run one after another on the
// calling thread, those of a cluster together. README.md in this folder says what that shows and what it cannot.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/simt/types.h"

namespace levin::simt {

// In which order the threads of a block run between the points where they wait. A right kernel gives the same bits in
// all of them. `ascending` and `descending` go round the block (and through the grid) in order of the thread index, and
// round the threads of all blocks of a cluster;
// `shuffled` picks by the seed; `greedy_warp` lets one warp run as far as it can before any other moves, which is what
// shows a missing barrier.
enum class Schedule : std::uint8_t { ascending, descending, shuffled, greedy_warp };
inline constexpr Schedule kSchedules[] = {Schedule::ascending, Schedule::descending, Schedule::shuffled,
                                          Schedule::greedy_warp};
[[nodiscard]] const char* name(Schedule schedule);

// For all launches of the process that start from now on, on any thread; at start `ascending`. Bits of the seed above
// the lowest 56 are dropped.
void set_schedule(Schedule schedule, std::uint64_t seed = 0);
[[nodiscard]] Schedule schedule();

// When a copy of TMA or a product of wgmma completes. `early`: when it is issued. `late_oldest`, `late_newest`: only
// when no thread can run, one at a time. `random`: at any switch between threads, by the seed, loads in two parts. A
// right kernel gives the same bits in all of them.
enum class Completion : std::uint8_t { early, late_oldest, late_newest, random };
inline constexpr Completion kCompletions[] = {Completion::early, Completion::late_oldest, Completion::late_newest,
                                              Completion::random};
[[nodiscard]] const char* name(Completion completion);

// As set_schedule; at start `early`.
void set_completion(Completion completion, std::uint64_t seed = 0);
[[nodiscard]] Completion completion();

// A reference to a callable without arguments; it must outlive the call that is given it.
class Body {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, Body>) Body(F&& f)
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* object) { (*static_cast<std::remove_reference_t<F>*>(object))(); }) {}
  void operator()() const { call_(object_); }

 private:
  void* object_;
  void (*call_)(void*);
};

struct Launch {
  dim3 blocks{1, 1, 1}, threads{1, 1, 1};
  unsigned shared_bytes = 0;   // dynamic
  dim3 cluster{1, 1, 1};       // blocks
  bool large_cluster = false;  // 9 to 16 blocks are allowed, as by cudaFuncAttributeNonPortableClusterSizeAllowed
  bool follows = false;  // may begin before the work ahead of it has ended: each block calls wait_for_prerequisites
};

// Calls `body` once for each thread of the grid and returns when all are done; `name` is for messages. May be called
// from several threads at once. Throws
//   CudaError      what CUDA refuses: a dimension of 0 or above CUDA's limits, more than 1024 threads a block, more
//                  than 227 KiB of shared memory, a grid that is not a multiple of its cluster, more than 8 blocks a
//                  cluster (16 in a large one)
//   InternalError  a launch from within a kernel; barriers that threads of a block reach at different places, or that
//                  some leave before; warp functions whose mask names a lane that is not there; more than 48 KiB in
//                  LEVIN_SHARED arrays, or more than 227 KiB with the dynamic bytes
// and what `body` throws. After an error the other threads of the block are unwound, the blocks left do not run, and
// the next launch starts clean.
void run_grid(const Launch& launch, Body body, const char* name);
inline void run_grid(dim3 blocks, dim3 threads, unsigned shared_bytes, Body body, const char* name) {
  run_grid({.blocks = blocks, .threads = threads, .shared_bytes = shared_bytes}, body, name);
}

// For tests: how often this thread has passed from one stack to another since it started.
[[nodiscard]] std::uint64_t switches();

}  // namespace levin::simt
