// What moves the bytes of a CPU group: one implementation for each backend, below CpuGroup's queue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include "comm/job/plan.h"
#include "comm/job/rendezvous.h"
#include "levin/comm.h"

namespace levin::dist {

// A collective or a message, as addresses. `count` is in elements: of the tensor for all_reduce, broadcast, send and
// recv; of one rank's slice for all_gather, reduce_scatter and all_to_all.
struct Task {
  Collective op{};
  DType dtype{};
  ReduceOp reduce = ReduceOp::sum;
  ReduceOrder order = ReduceOrder::fast;
  int peer = 0;  // the root, or the other rank of a message
  int tag = 0;
  std::byte* out = nullptr;
  const std::byte* in = nullptr;  // in place: out
  std::int64_t count = 0;
  std::uint64_t number = 0;  // of the collective in its group, from 1
  Entry entry;
  std::source_location where;
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(count) * itemsize(dtype); }
};
// A bit of Entry::tensors where op is text: the exchange of the bytes, after that of the lengths.
inline constexpr std::uint64_t kContinuesText = 1;

// "all_reduce f32[4096] sum at step.cpp:91".
[[nodiscard]] std::string words(const Entry& entry, const std::source_location& where);
[[nodiscard]] inline std::string words(const Task& task) { return words(task.entry, task.where); }
// "rank 0: all_reduce f32[4] sum at a.cpp:1; rank 1: barrier at b.cpp:2", a part for each different call.
[[nodiscard]] std::string all_words(const std::vector<std::string>& by_rank);

// The engine of one rank. run, send and recv are called from one thread each, which may be three threads at once; abort
// from any. After an error of run the engine is of no use.
class Engine {
 public:
  virtual ~Engine() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  virtual void run(const Task& task) = 0;   // a collective; returns when this rank's part is done
  virtual void send(const Task& task) = 0;  // returns when the bytes may be changed
  virtual void recv(const Task& task) = 0;
  // The engine of a part of the ranks, this one among them; `number` and `color` are equal on the part's ranks, and
  // `meeting` is the part's rendezvous, null for threads of one process.
  [[nodiscard]] virtual std::shared_ptr<Engine> part(const std::vector<int>& ranks, std::uint64_t number, int color,
                                                     const std::shared_ptr<Rendezvous>& meeting) = 0;
  virtual void abort(std::string_view reason) noexcept = 0;
};

}  // namespace levin::dist
