// Process groups: collectives between the ranks of a job, on tensors.
//
//   auto world = dist::init_process_group({.backend = "auto"});  // torchrun, mpirun, srun or levin-run started it
//   world->all_reduce(t, dist::ReduceOp::sum).wait();            // t becomes the sum over all ranks
//
// A collective is called by every rank of its group, in the same order, from the same line, with the same dtype and
// count: what differs is found before data moves and is a CommError that shows both sides. A rank that is lost, stopped
// or failed ends the waits of all others with a CommError that names it. A group is used by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/comm/cluster.h"
#include "levin/export.h"
#include "levin/stream.h"
#include "levin/tensor.h"

namespace levin::dist {

// How the elements of ranks are combined. average is sum / size, of floats alone; bool has min and max alone. i8 and
// i16 are moved and not combined (DTypeError). Sums of integers wrap. min and max of NaN are NaN, except by NCCL.
// 16-bit floats are added in f32 on the CPU.
enum class ReduceOp : std::uint8_t { sum, average, min, max };

// The order of a reduction's additions. fast: what the backend does best. tree: the fixed binary tree over ranks,
// ((0+1)+(2+3))+..., element by element, whose bits do not depend on the backend; for a power of two of ranks.
enum class ReduceOrder : std::uint8_t { fast, tree };

namespace detail {
class WorkState;
}

// A collective under way. It keeps its tensors alive. Copyable.
class LEVIN_API Work {
 public:
  Work();  // done
  explicit Work(std::shared_ptr<detail::WorkState> state);
  ~Work();
  Work(const Work&);
  Work(Work&&) noexcept;
  Work& operator=(const Work&);
  Work& operator=(Work&&) noexcept;
  // Tensors on the CPU: waits on the host and throws what ended the collective (CommError). On a device: the thread's
  // current stream waits, the host does not.
  void wait() const;
  [[nodiscard]] bool done() const;  // without waiting

 private:
  std::shared_ptr<detail::WorkState> state_;
};

// A set of ranks. Tensors must be contiguous and on one device. Errors of an argument are thrown at the call, before
// any rank is told: ShapeError, DTypeError, DeviceError, ConfigError for a rank out of range. Tensors on meta are
// checked, and nothing moves.
class LEVIN_API ProcessGroup : public std::enable_shared_from_this<ProcessGroup> {
 public:
  virtual ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  [[nodiscard]] int rank() const { return rank_; }  // of this process, 0 .. size()-1
  [[nodiscard]] int size() const { return size_; }
  // "shm", "gloo", "local", "nccl", "single"; one for each kind of device: "cpu:shm,cuda:nccl".
  [[nodiscard]] virtual std::string_view backend() const = 0;

  // ---- Collectives. Each starts when the work that is in the current stream of its tensors' device at the call is
  // done. Throws UnsupportedError for what a backend cannot do: with NCCL, ReduceOrder::tree on more than two ranks and
  // messages with a tag.

  // t becomes the combination of all ranks' t, in place.
  [[nodiscard]] Work all_reduce(const Tensor& t, ReduceOp op = ReduceOp::sum, ReduceOrder order = ReduceOrder::fast,
                                std::source_location where = std::source_location::current());
  // The same, and waits: the quickest way for a small tensor whose result decides what comes next.
  void all_reduce_now(const Tensor& t, ReduceOp op = ReduceOp::sum, ReduceOrder order = ReduceOrder::fast,
                      std::source_location where = std::source_location::current());
  // t becomes that of rank `root`.
  [[nodiscard]] Work broadcast(const Tensor& t, int root = 0,
                               std::source_location where = std::source_location::current());
  // out [size n, ...] becomes the ranks' `in` [n, ...], one after another; numel(out) = size numel(in).
  [[nodiscard]] Work all_gather(const Tensor& out, const Tensor& in,
                                std::source_location where = std::source_location::current());
  // out becomes slice `rank` of the combination of all ranks' `in`; numel(in) = size numel(out).
  [[nodiscard]] Work reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op = ReduceOp::sum,
                                    ReduceOrder order = ReduceOrder::fast,
                                    std::source_location where = std::source_location::current());
  // Slice r of out becomes slice `rank` of rank r's `in`; both have the same number of elements, a multiple of size.
  [[nodiscard]] Work all_to_all(const Tensor& out, const Tensor& in,
                                std::source_location where = std::source_location::current());
  // One message from a rank to another. Messages of one pair and tag arrive in order. They are no entries of the plan:
  // a message of another size or dtype is a CommError of the receiver. NCCL takes tag 0 and equal sizes alone.
  [[nodiscard]] Work send(const Tensor& t, int to, int tag = 0,
                          std::source_location where = std::source_location::current());
  [[nodiscard]] Work recv(const Tensor& t, int from, int tag = 0,
                          std::source_location where = std::source_location::current());
  // Returns when all ranks have called it and their earlier collectives are done.
  void barrier(std::source_location where = std::source_location::current());

  // Small values of the host, for decisions: every rank's bytes, in the order of ranks. Waits.
  [[nodiscard]] std::vector<std::string> gather_text(std::string_view mine,
                                                     std::source_location where = std::source_location::current());
  // What rank `root` has. Waits.
  [[nodiscard]] std::string broadcast_text(std::string_view mine, int root = 0,
                                           std::source_location where = std::source_location::current());

  // The groups of ranks with one color, in the order of `key`, then of rank. A collective. Color -1: none, null.
  [[nodiscard]] virtual std::shared_ptr<ProcessGroup> split(int color, int key) = 0;
  [[nodiscard]] virtual bool capturable() const { return false; }  // whether a Graph may record its collectives
  // Ends the waits of this group on all ranks, with `reason` in their CommError. The group is of no use afterwards.
  virtual void abort(std::string_view reason) noexcept = 0;

  // Bytes sent and collectives issued by this rank since the group was made.
  struct Traffic {
    std::int64_t bytes = 0, collectives = 0;
  };
  [[nodiscard]] Traffic traffic() const { return traffic_; }

 protected:
  // text_device: where gather_text and broadcast_text make their tensors.
  ProcessGroup(int rank, int size, Device text_device = Device::cpu())
      : rank_(rank), size_(size), text_device_(text_device) {}
  // One collective after its checks: what a backend implements.
  struct Call;
  [[nodiscard]] virtual Work issue(Call&& call) = 0;
  // issue() of another group, for one that passes its collectives on.
  [[nodiscard]] static Work issue_in(ProcessGroup& group, Call&& call) { return group.issue(std::move(call)); }
  Traffic traffic_;

 private:
  [[nodiscard]] Work start(Call&& call);
  [[nodiscard]] Call reduction(const Tensor& t, ReduceOp op, ReduceOrder order, std::source_location where) const;
  void check_peer(const char* op, int peer, int tag) const;
  int rank_, size_;
  Device text_device_;
};

struct InitOptions {
  // auto, gloo: shared memory within a host, Gloo between hosts. shm: one host alone. gloo:all: Gloo everywhere. nccl:
  // a CUDA device for each rank. single: one rank without a connection. "cpu:gloo,cuda:nccl": a backend for each kind
  // of device; a collective is that of its tensors' device, texts are the CPU's, and a barrier is of both. Throws
  // ConfigError where liblevin_gloo.so or libnccl.so.2 is missing, DeviceError where the rank's device is,
  // UnsupportedError for nccl in a build without CUDA.
  std::string backend = "auto";
  std::shared_ptr<ClusterEnvironment> environment{};  // null: ClusterEnvironment::detect()
  double timeout = 1800;                              // seconds that a collective may wait for a rank that is alive
  double rendezvous_timeout = 60;                     // seconds that ranks may take to arrive
  double silence = 3;                                 // seconds without a sign of life after which a rank is given up
  // What must be equal on all ranks, a line each, "name value": options, flags. A difference is a ConfigError that
  // shows both, before any work.
  std::string agreement{};
  // The index of this rank's CUDA device, for nccl. -1: the rank on its host, or the only device that the process sees.
  int cuda_device = -1;
};

// Connects the processes that `environment` describes and returns the group of all. Closes, after a barrier, when the
// last handle goes. Throws
//   ConfigError  variables that are missing or contradict each other, a rank with another program, version or
//                `agreement`, a duplicate rank, no secret on a network (LEVIN_JOB_SECRET)
//   CommError    an address that is unknown, taken or does not answer, with the address and the error; ranks that did
//                not arrive, by number
[[nodiscard]] LEVIN_API std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options = {});

// The group of one rank, whose collectives leave their tensor as it is.
[[nodiscard]] LEVIN_API std::shared_ptr<ProcessGroup> single_process_group();

}  // namespace levin::dist
