// Training steps whose bits do not depend on the number of ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "levin/comm.h"
#include "levin/train/ddp_strategy.h"
#include "train/strategy/reducer.h"

namespace levin::train {

// Note [Virtual ranks]
//
// A sum of floats depends on its order, so a gradient over 4 ranks has other bits than one over 2. With V virtual ranks
// the order is fixed: rank r of R runs the virtual ranks rV/R ... (r+1)V/R - 1 one after the other, each with an equal
// part of the batch, and everything is added in one binary tree over virtual ranks, element by element in f32 (f64 for
// f64). Within a rank a binary counter of sets builds the tree's lower levels, with log2(V/R) + 1 sets alive; the upper
// levels are ReduceOrder::tree. V is a power of two, so the mean is exact.
//
// - Draws: before each pass the module's generators become forks by virtual rank and batch; afterwards they are as
//   before.
// - Floating buffers, such as running statistics: each virtual rank starts a window with the same values, and the mean
//   over virtual ranks replaces them at its end. Other buffers count as in one pass.
// - Accumulation: each virtual rank adds over the batches of the window, and the tree follows at its end.
class VirtualRanks {
 public:
  // As Reducer's; `shards` of them run on each rank.
  VirtualRanks(std::shared_ptr<dist::ProcessGroup> group, std::vector<Reducer::Member> members, nn::Module* tree,
               int shards, bool find_unused);
  // Forward and backward of all own virtual ranks. At the end of a window gradients and buffers are the mean over all
  // virtual ranks; before it gradients are unset. Throws ConfigError for a batch that the shards do not divide,
  // StateError for parameters without a gradient, CommError.
  [[nodiscard]] StepOutput training_step(const StepCall& call);

  [[nodiscard]] const DdpStrategy::Report& report() const { return report_; }

 private:
  // A piece of a flat tensor.
  struct Place {
    std::size_t flat;
    std::int64_t begin, count;
  };
  // Gradients and buffers, flat, one tensor for each type of sums and device.
  struct Set {
    std::vector<Tensor> gradients, buffers;
    std::string used;  // by parameter: '1' with a gradient
    int level = 0;     // 2^level virtual ranks
  };
  struct Layout {
    std::vector<Place> places;
    std::vector<std::pair<DType, Device>> kinds;
    std::vector<std::int64_t> sizes;
    void add(const Tensor& t);
    [[nodiscard]] std::vector<Tensor> zeros() const;
    // The part of `flats` for tensor i, in its shape.
    [[nodiscard]] Tensor part(const std::vector<Tensor>& flats, std::size_t i, const Tensor& like) const;
  };

  void lay_out();
  [[nodiscard]] Set collect();
  void put_buffers(const std::vector<Tensor>& flats);
  void put_gradients(const Set& all);
  void reduce(Set& all);
  void fail_missing(const std::string& used, std::int64_t virtual_rank) const;
  [[nodiscard]] StepOutput mean_of(const std::vector<StepOutput>& outputs) const;

  std::shared_ptr<dist::ProcessGroup> group_;
  std::vector<Reducer::Member> members_;
  nn::Module* tree_;
  const int shards_;
  const bool find_unused_;
  std::string trained_;             // which members require grad, as the layout has it
  std::vector<std::size_t> index_;  // of the members with a place
  Layout gradients_, buffers_;
  std::vector<Set> open_;  // of an open window, by shard
  DdpStrategy::Report report_;
};

}  // namespace levin::train
