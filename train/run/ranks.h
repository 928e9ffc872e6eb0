// The rank of this process among the processes of a run.
#pragma once

namespace levin::train {

struct Ranks {  // of a run in one process
  int rank = 0, local_rank = 0;
};

// Whether this process calls prepare_data: the first one of each node, or the first of all.
[[nodiscard]] inline bool prepares_data(const Ranks& ranks, bool per_node) {
  return (per_node ? ranks.local_rank : ranks.rank) == 0;
}

}  // namespace levin::train
