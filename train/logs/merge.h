// The values of an epoch, of the ranks' logs together.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "levin/function.h"
#include "levin/train.h"

namespace levin::train {

// Strategy::gather: every rank's bytes, in the order of ranks. Empty: there is one rank.
using Exchange = Function<std::vector<std::string>(std::string_view)>;

// Note [Values of several ranks]
// Ranks log while they read their own part of the data, and a value of an epoch is that of all samples. So when an
// epoch or an evaluation ends, ranks send each other what their entries have: the sum and the weight, of a Metric its
// states. Each rank adds them in the order of ranks, so that all have the same bits, and what follows from a value
// (an early stop, the best checkpoint) is the same everywhere. A rank that read no data sends nothing and gets the
// values. Ranks that read data must log the same names.

// A state of a metric, by element.
struct MetricState {
  Metric::Across across = Metric::Across::sum;
  std::vector<double> values;
};
// What one rank has of an entry, or all ranks together.
struct LogPart {
  std::string name, hook;
  int loader = -1;
  bool on_step = false, prog_bar = false, logger = true;
  bool of_epochs = false;       // logged in a hook that every rank calls, also without data
  bool rank_zero_only = false;  // only rank 0 has a part
  EpochReduce reduce = EpochReduce::mean;
  double sum = 0, weight = 0;
  bool is_metric = false;
  std::vector<MetricState> states{};  // of a metric
  std::size_t ranks = 1;              // that have a part of it, once merged
  bool everywhere = true;             // all ranks have

  [[nodiscard]] bool same_entry(const LogPart& other) const {
    return name == other.name && hook == other.hook && loader == other.loader;
  }
};
// The parts of all ranks as one list, in the order of first appearance. Throws ConfigError, which has both lists, where
// ranks logged different names.
[[nodiscard]] std::vector<LogPart> merged(const std::vector<LogPart>& mine, const Exchange& gather);
// The values that this rank has, by index; a value that it lacks becomes that of the first rank that has it. All ranks
// call it with as many.
void fill_from_ranks(std::vector<std::pair<bool, double>>& values, const Exchange& gather);

void combine(MetricState& into, const MetricState& other);
[[nodiscard]] double start_of(EpochReduce reduce);

}  // namespace levin::train
