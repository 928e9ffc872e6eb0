// Shared by loader.cpp, which has options, order and state, and loader_pass.cpp, which loads one epoch ahead of its
// consumer.
#pragma once

#include <tbb/task_arena.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "data/loader_streams.h"
#include "levin/data.h"
#include "tensor/core/thread_modes.h"

namespace levin::data {

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

struct DataLoader::Impl {
  DatasetRef dataset;
  IterableDatasetRef stream;  // instead of dataset and sampler
  DataLoaderOptions options;
  SamplerRef sampler;
  std::vector<std::pair<std::string, DataLoader>> parts;  // of a combination, which has nothing of the above
  CombineMode mode = CombineMode::max_size_cycle;
  LoaderState state;     // of the pass under way, or the next one's when there is none
  bool resume = false;   // the next pass begins at state.batch
  bool looping = false;  // an iterator stands before the end of its epoch
  std::int64_t next_epoch = 0;
  std::optional<tbb::task_arena> arena;
  std::mutex init_mutex;
  std::set<std::pair<std::thread::id, int>> initialized;  // threads by the worker they were: Note [Workers]

  void forget_workers();      // before a loop
  void forget_lone_thread();  // at the end of a thread that loaded one batch: another may get its id
  // Whether a loop waits for a limited time: then its thread runs no user code.
  [[nodiscard]] bool times_out() const { return options.timeout > 0 && options.num_workers > 0; }
  [[nodiscard]] Plan plan(const LoaderState& of) const;
  void make_arena();  // for workers
  [[nodiscard]] std::int64_t batches() const;
  [[nodiscard]] std::optional<std::int64_t> length() const;
  [[nodiscard]] std::int64_t combined_batches() const;
  // Where part k stands before batch `batch` of epoch `epoch`; nothing when it has no part in it.
  [[nodiscard]] std::optional<LoaderState> place(std::size_t k, std::int64_t epoch, std::int64_t batch) const;
  // One batch, on any thread. `worker` is num_workers for the calling thread; `spare`: Dataset::gather_into.
  [[nodiscard]] Tensors load(std::span<const std::int64_t> indices, const EpochRandom& random, int worker,
                             Tensors spare);
  struct Read {  // of streams
    Tensors fields;
    std::int64_t samples = 0;  // 0: the stream has ended
  };
  [[nodiscard]] Read load(Streams& streams, std::int64_t position, int worker);

 private:
  [[nodiscard]] Tensors load_pageable(std::span<const std::int64_t> indices, const EpochRandom& random, int worker,
                                      Tensors spare);
  [[nodiscard]] Tensors pinned(Tensors fields) const;  // as pin_memory asks
  [[noreturn]] void rethrow_in(int worker) const;      // adds the thread to an error in flight
  void initialize_worker(int id);
};

// One epoch under way, from `impl->state` on.
struct DataLoader::Pass {
  Pass() = default;
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;
  virtual ~Pass() = default;
  // The next batch; false at the end.
  virtual bool next(Batch& out) = 0;
};

// Access of combined.cpp to private parts.
struct DataLoader::Combination {
  [[nodiscard]] static std::unique_ptr<Pass> pass(std::shared_ptr<Impl> impl);
  [[nodiscard]] static std::unique_ptr<Pass> pass_of(DataLoader& part) { return part.pass(); }
  [[nodiscard]] static DataLoader shared(const DataLoader& loader) {
    return DataLoader(DataLoader::Made{}, loader.impl_);
  }
  [[nodiscard]] static DataLoader made(std::shared_ptr<Impl> impl) {
    return DataLoader(DataLoader::Made{}, std::move(impl));
  }
};

struct LoadingPass final : DataLoader::Pass {
  using Impl = DataLoader::Impl;
  LoadingPass(std::shared_ptr<Impl> impl, Plan plan);  // throws OutOfMemoryError
  // Waits for the tasks that run user code, a second at most; tasks that TBB has not started see `stop` and do nothing.
  ~LoadingPass() override;
  bool next(Batch& out) override;

 private:
  struct Slot;
  struct Shared;
  void leave();
  void start_workers();
  [[nodiscard]] bool next_place(std::unique_lock<std::mutex>& lock, Batch& out);
  [[nodiscard]] bool start_lone();
  Slot take(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] std::string awaited() const;
  template <class Ready>
  [[nodiscard]] bool wait_until(std::unique_lock<std::mutex>& lock, std::chrono::steady_clock::time_point end,
                                const Ready& ready);
  template <class Ready>
  void wait(std::unique_lock<std::mutex>& lock, const Ready& ready);

  std::shared_ptr<Shared> shared_;
  Tensors lent_;         // the fields of the newest batch
  bool looping_ = true;  // this pass, and with it the loader
};

}  // namespace levin::data
