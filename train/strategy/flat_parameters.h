// Parameters in flat buckets, of which each rank owns a slice.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "levin/autograd.h"
#include "levin/comm.h"
#include "levin/nn/call.h"
#include "levin/optim.h"
#include "levin/train/module.h"
#include "levin/train/sharded_strategy.h"
#include "train/strategy/offload.h"

namespace levin::train {

// Note [Flat parameters]
//
// The trained parameters lie one after another in flat buckets, each at a multiple of 64 bytes. A bucket holds
// parameters of one dtype and one device, in reverse order of registration, and its length is a multiple
// of 64 bytes times the ranks. Rank r owns slice r of every bucket, so all ranks own the same number of bytes. The
// elements of a parameter inside of that slice are the rank's piece of it; most pieces are a whole parameter or empty.
//
// A parameter moves into its bucket by an exchange of its storage for a carved part of the bucket: the tensor, its
// autograd leaf and its hooks stay. Tensors that share its old memory keep that.
//
// A pass:
//   1. A hook on each leaf counts the bucket down. When it and all buckets before it are complete, reduce_scatter makes
//      the average of this rank's slice. So all ranks issue in one order, beside the backward pass.
//   2. The slice becomes the gradients of the pieces, or is added to those of the window's earlier batches. With homes
//      it lies in their memory. The parameters have no gradients then. A rank without an element of a parameter has an
//      empty gradient for it, so that all ranks count the same steps.
//   3. Optimizers update the pieces in place, and gather() brings the other ranks' slices.
//
// Gradients of an open window either are reduced batch by batch, or stay whole in homes (Note [Gradient homes]) until
// the window closes. In the first case a bucket's whole gradient exists from its first arrival to the end of its
// reduction, and at most one reduction is under way.
//
// Note [Units of parameters]
//
// With sharded parameters a rank keeps its slices alone, and a bucket's memory exists while a module needs it. Buckets
// belong to units: modules that report their calls (nn::Call), and the rest, which is one unit, too. The storages of
// the parameters stay, so leaves, hooks and saved tensors do. gather() gives them memory; free() takes it, and sets
// their device to meta, so that an op on them is an error instead of a read of nothing. Versions do not change.
//
// A unit is gathered
//   - when it is called, and freed when the call ends; the last one of the pass stays for backward,
//   - before its backward, and freed when its gradients are complete,
//   - inside of unshard() to reshard(), and after the fit.
// The rest is gathered from the first call to the end of backward.
//
// Backward visits the calls of a pass in reverse order, because a node's age decides. So when a unit's gradients are
// complete the unit that was called before it comes next, and it is gathered then (advance()). A unit that completes
// none, or was called twice, does not announce the one before: it is gathered together with that one, and stays. A
// checkpointed region runs its modules again, whose calls gather them.
//
// A prefetch gathers a unit beside the work of the one before it: in backward the next one that is not complete, in
// forward the one that the pass before called next. Then two units have memory at once, else one.
//
// unshard() gathers all units, in the middle of a pass, too. reshard() frees those that the pass does not want.
//
// All ranks must call units in one order. They compare it when it differs from that of the pass before.
//
// Note [Dtypes of a pass]
//
// With mixed precision (levin/train/fsdp_strategy.h) slices, and so the optimizer, stay f32. A sharded parameter has
// the dtype `computes` during the fit, and so has its leaf (autograd/leaf_dtype.h), whose dtype decides that of its
// gradients: a leaf that changed between forward and backward would meet gradients of another one. A gather casts the
// slice and moves that. Gradients are cast to `reduces` when they arrive, and their average to f32.
//
// From unshard() to reshard() the parameters are f32, in memory beside that of an open unit. Saved tensors of the pass
// see that memory, too, but no backward runs then.
class FlatParameters {
 public:
  static constexpr std::size_t kRest = 0;
  struct Member {
    std::string name;
    Tensor value;
    std::size_t unit = kRest;
    bool ignored = false;  // not sharded, where others are
  };
  struct Options {
    std::int64_t bucket_bytes;
    bool reduces_each_batch;
    bool shards_parameters = false;
    bool frees_after_forward = true;         // units, with sharded parameters
    std::vector<const nn::Module*> units{};  // from unit 1 on
    bool forward_prefetch = false, backward_prefetch = false;
    std::optional<DType> param{}, reduce{};        // of sharded parameters: Note [Dtypes of a pass]
    std::shared_ptr<dist::ProcessGroup> copies{};  // ranks that have the same slices; null: none
    OffloadOptions offload{};                      // Note [Offload]
    std::shared_ptr<OffloadFile> file{};           // where something of it is nvme
    bool overlaps = true;                          // a reduction runs beside the rest of backward
  };
  // group: the ranks that share one copy of the parameters.
  FlatParameters(std::shared_ptr<dist::ProcessGroup> group, std::vector<Member> members, Options options);
  ~FlatParameters();
  FlatParameters(const FlatParameters&) = delete;
  FlatParameters& operator=(const FlatParameters&) = delete;

  // Makes the optimizer update this rank's pieces of its parameters.
  void share(optim::Optimizer& optimizer);
  // Removes the hooks and homes, and gives parameters memory of their own, unless a rank is lost. whole() and piece()
  // still work.
  void release() noexcept;

  // After release(): lets go of the host's slices, and of the file, which the optimizer may still have.
  void release_host() noexcept;

  // Runs a forward pass, whose calls gather their units.
  StepOutput forward(const Function<StepOutput()>& run);
  // Strategy::unshard and Strategy::reshard.
  void unshard();
  void reshard();

  // backward(loss), and the reductions of the pass. Throws StateError for parameters without a gradient, CommError.
  void backward(const Tensor& loss, SyncGrad sync);
  // All ranks' slices of the buckets that were reduced since the last call.
  void gather();

  // Strategy::whole and Strategy::piece.
  [[nodiscard]] Tensor whole(const Tensor& piece, const Tensor& of);
  [[nodiscard]] Tensor piece(const Tensor& whole, const Tensor& of) const;
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> piece_range(const Tensor& of) const;

  struct Report {
    std::int64_t buckets = 0, largest_bucket = 0, parameters = 0, peak_gradients = 0, peak_parameters = 0;
    std::int64_t held_parameters = 0, held_gradients = 0, gathered = 0, reduced = 0;
  };
  [[nodiscard]] Report report() const;
  // Whether the optimizer of parameters that are on a device steps on the CPU.
  [[nodiscard]] bool steps_on_host() const;

 private:
  enum class Part : std::uint8_t { outside, awaited, arrived };  // of a parameter in a pass
  struct Parameter {
    Member of;
    std::size_t bucket = 0;
    std::int64_t at = 0;  // its first element in the bucket
    Tensor piece{};       // the optimizer's tensor
    HookHandle hook{};
    Part part = Part::outside;
    std::uint32_t version = 0;  // of its memory, when the host's slice had the same values
  };
  struct Bucket {
    std::vector<std::size_t> parameters;
    std::size_t unit = kRest;
    Device device = Device::cpu();
    DType dtype = DType::f32;
    bool sharded = false;
    DType computes = DType::f32, reduces = DType::f32;  // Note [Dtypes of a pass]
    std::int64_t slice = 0;                             // elements
    Tensor values{};                                    // [ranks slice] of a pass; undefined where it is freed
    Tensor wide{};                                      // the same from unshard() to reshard(), where dtypes differ
    Tensor shard{};                                     // [slice], where it is sharded
    Tensor host{};            // [slice], where it is offloaded; then there is a shard only between gathers on a device
    Tensor host_gradients{};  // [slice], on their way from the device
    Tensor gradients{}, reduced{};
    dist::Work work{}, gathering{};
    std::int64_t waiting = 0;
    bool takes_part = false, changed = false;
  };
  struct Range {
    std::int64_t begin, end;
  };
  struct Unit {
    std::vector<std::size_t> buckets;
    std::int64_t calls = 0;   // of the pass
    int open = 0;             // calls that have not ended
    bool wanted = false;      // by the pass; unshard() gathers others, too
    bool on_its_way = false;  // being gathered
    bool gathered = false;
  };
  class Watch;

  void build();
  void move_in(Bucket& bucket);
  [[nodiscard]] Range piece_range(const Parameter& p, int rank) const;  // elements of the parameter
  [[nodiscard]] const Parameter* find(const Tensor& value) const;
  [[nodiscard]] Tensor place_in(const Tensor& flat, const Parameter& p) const;
  [[nodiscard]] static std::int64_t slice_bytes(const Bucket& b, DType dtype) {
    return b.slice * static_cast<std::int64_t>(itemsize(dtype));
  }
  [[nodiscard]] std::int64_t bytes_of(const Bucket& b, DType dtype) const {
    return group_->size() * slice_bytes(b, dtype);
  }
  void hold(std::int64_t bytes);
  void place(Bucket& b, const Tensor& values);
  void displace(Bucket& b) noexcept;
  [[nodiscard]] bool converts() const { return options_.param && *options_.param != DType::f32; }
  void gather_whole(std::size_t unit);
  [[nodiscard]] const Tensor& whole_values(const Bucket& b) const {
    return converts() && b.sharded ? b.wide : b.values;
  }
  void start_gather(std::size_t unit);
  void have_memory(std::size_t unit);
  void drop_memory(std::size_t unit) noexcept;
  void gather_unit(std::size_t unit);
  void free_unit(std::size_t unit) noexcept;
  void end_units() noexcept;
  void called(const nn::Module& module);
  void left(const nn::Module& module) noexcept;
  void compare_order();
  void advance();
  void check_gathered(const char* error) const;
  [[nodiscard]] Tensor shard_of(const Bucket& b) const;
  void hold_parameters(std::int64_t bytes);
  [[nodiscard]] bool trains(const Unit& u) const;
  [[nodiscard]] bool completed(const Unit& u) const;
  void leave_homes();
  void begin();
  void arrived(std::size_t parameter);
  void issue_complete();
  void issue(Bucket& bucket);
  void settle(Bucket& bucket);
  void take_over(Bucket& bucket, const Tensor& average);
  void finish();
  // Note [Offload], in flat_offload.cpp.
  void offload(Bucket& bucket);
  [[nodiscard]] bool offloads_parameters(const Bucket& b) const;
  [[nodiscard]] Tensor slice_to_gather(const Bucket& b) const;
  void gathered(const Bucket& b) const noexcept;
  void refresh_host();
  void remember_versions(const Bucket& b);
  void send_gradients(Bucket& bucket);
  void receive_gradients();
  [[nodiscard]] dist::Work bring_back(Bucket& b);
  [[noreturn]] void fail_missing(const std::string& names) const;

  std::shared_ptr<dist::ProcessGroup> group_;
  Options options_;
  std::vector<Parameter> parameters_;  // in the order of registration
  std::vector<Bucket> buckets_;
  std::vector<Unit> units_;
  std::unordered_map<const nn::Module*, std::size_t> unit_of_;
  std::vector<std::size_t> order_, before_;  // of the units' calls in this pass, and in the one before
  bool in_backward_ = false, released_ = false;
  bool follows_ = false;            // this pass has called units in the order of the one before
  std::size_t prefetched_ = kRest;  // the unit that is expected next; kRest: none
  int unsharded_ = 0;
  std::int64_t parameter_bytes_ = 0;  // held
  Bucket* under_way_ = nullptr;
  std::vector<std::size_t> issue_order_;  // of buckets, equal on all ranks
  std::size_t next_ = 0;                  // the first of these that is not issued
  bool active_ = false;                   // in a pass that reduces
  std::int64_t held_ = 0;
  Report report_;
};

}  // namespace levin::train
