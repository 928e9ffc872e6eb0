// The predictions of all ranks, in the order in which one process gives them.
#pragma once

#include <cstdint>
#include <vector>

#include "levin/train.h"

namespace levin::train {

// What this rank predicted of one loader.
class Predictions {
 public:
  // batch_size: of the loader; 0: it varies, or batches are samples. places: of each sample that this rank reads in the
  // order of all ranks, without a value where it is unknown: then samples come in the order of their indices.
  Predictions(std::int64_t batch_size, std::optional<std::vector<std::int64_t>> places)
      : batch_size_(batch_size), places_(std::move(places)) {}
  void add(const Batch& batch, Tensor prediction);
  // Every rank calls it. Where each prediction has a row for each sample the rows come in the order of samples, each
  // sample once, in batches of batch_size; else the tensors of batches in the order of batches, then of ranks.
  [[nodiscard]] Tensors of_all_ranks(Strategy& strategy, Device there) &&;

 private:
  struct One {
    std::vector<std::int64_t> keys;  // of the samples, by which they are ordered
    std::int64_t batch;              // position
    Tensor value;
  };
  [[nodiscard]] static Tensors by_rows(const std::vector<One>& all, std::int64_t batch_size);
  std::int64_t batch_size_;
  std::optional<std::vector<std::int64_t>> places_;
  std::vector<One> mine_;
};

}  // namespace levin::train
