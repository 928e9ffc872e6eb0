// Parameters in flat buckets, of which each rank owns a slice.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "levin/autograd.h"
#include "levin/comm.h"
#include "levin/optim.h"
#include "levin/train/module.h"

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
//   2. The slice becomes the gradients of the pieces, or is added to those of the window's earlier batches. The
//      parameters have no gradients then. A rank without an element of a parameter has an empty gradient for it, so
//      that all ranks count the same steps.
//   3. Optimizers update the pieces in place, and gather() brings the other ranks' slices.
//
// Gradients of an open window either are reduced batch by batch, or stay whole in homes (Note [Gradient homes]) until
// the window closes. In the first case a bucket's whole gradient exists from its first arrival to the end of its
// reduction, and at most one reduction is under way.
class FlatParameters {
 public:
  struct Member {
    std::string name;
    Tensor value;
  };
  struct Options {
    std::int64_t bucket_bytes;
    bool reduces_each_batch;
  };
  FlatParameters(std::shared_ptr<dist::ProcessGroup> group, std::vector<Member> members, const Options& options);
  ~FlatParameters();
  FlatParameters(const FlatParameters&) = delete;
  FlatParameters& operator=(const FlatParameters&) = delete;

  // Makes the optimizer update this rank's pieces of its parameters.
  void share(optim::Optimizer& optimizer);
  // Removes the hooks and homes. whole() and piece() still work.
  void release() noexcept;

  // backward(loss), and the reductions of the pass. Throws StateError for parameters without a gradient, CommError.
  void backward(const Tensor& loss, SyncGrad sync);
  // All ranks' slices of the buckets that were reduced since the last call.
  void gather();

  // Strategy::whole and Strategy::piece.
  [[nodiscard]] Tensor whole(const Tensor& piece, const Tensor& of);
  [[nodiscard]] Tensor piece(const Tensor& whole, const Tensor& of) const;

  struct Report {
    std::int64_t buckets = 0, largest_bucket = 0, parameters = 0, peak_gradients = 0;
  };
  [[nodiscard]] const Report& report() const { return report_; }

 private:
  enum class Part : std::uint8_t { outside, awaited, arrived };  // of a parameter in a pass
  struct Parameter {
    Member of;
    std::size_t bucket = 0;
    std::int64_t at = 0;  // its first element in the bucket
    Tensor piece{};       // the optimizer's tensor
    HookHandle hook{};
    Part part = Part::outside;
  };
  struct Bucket {
    std::vector<std::size_t> parameters;
    Tensor values;           // [ranks slice]
    std::int64_t slice = 0;  // elements
    Tensor gradients{}, reduced{};
    dist::Work work{};
    std::int64_t waiting = 0;
    bool takes_part = false, changed = false;
  };
  struct Range {
    std::int64_t begin, end;
  };

  void build(const Options& options);
  void move_in(Bucket& bucket);
  [[nodiscard]] Range piece_range(const Parameter& p, int rank) const;  // elements of the parameter
  [[nodiscard]] const Parameter* find(const Tensor& value) const;
  [[nodiscard]] Tensor place_in(const Tensor& flat, const Parameter& p) const;
  void hold(std::int64_t bytes);
  void begin();
  void arrived(std::size_t parameter);
  void issue_complete();
  void issue(Bucket& bucket);
  void settle(Bucket& bucket);
  void finish();
  [[noreturn]] void fail_missing(const std::string& names) const;

  std::shared_ptr<dist::ProcessGroup> group_;
  const bool each_batch_;
  std::vector<Parameter> parameters_;  // in the order of registration
  std::vector<Bucket> buckets_;
  Bucket* under_way_ = nullptr;
  std::size_t next_ = 0;  // the first bucket that is not issued
  bool active_ = false;   // in a pass that reduces
  std::int64_t held_ = 0;
  Report report_;
};

}  // namespace levin::train
