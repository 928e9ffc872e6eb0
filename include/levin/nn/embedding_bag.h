// Sums, means and maxima of bags of rows of a table.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "levin/nn/module.h"
#include "levin/sparse.h"

namespace levin::nn {

struct EmbeddingBagOptions {
  std::int64_t count = 0, dim = 0;  // rows of the table, and their length
  Reduce mode = Reduce::mean;
  bool include_last_offset = false;           // offsets end with the number of entries
  std::optional<std::int64_t> padding_idx{};  // this row is 0 at first, counts for nothing; may be negative
  std::optional<double> max_norm{};           // a call first shortens its rows to that, in place: embedding_renorm_
  double norm_type = 2;
  bool sparse = false;  // gradients of rows: EmbeddingGrad::rows
};
// embedding_bag of weight [count, dim], N(0, 1) at first: index i64 [E] with offsets i64 [bags], or index [bags, n]
// without -> [bags, dim]. per_sample_weights, for Reduce::sum, has index's shape.
class LEVIN_API EmbeddingBag : public Module {
 public:
  using Options = EmbeddingBagOptions;
  EmbeddingBag(Module& parent, std::string_view name, Options options);
  Tensor operator()(const Tensor& index, const Tensor& offsets = {}, const Tensor& per_sample_weights = {}) const;

  const Options options;
  Parameter weight;
};

}  // namespace levin::nn
