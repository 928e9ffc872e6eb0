// The tables of a pipeline: who does what in which slot, and which layers form a stage.
#include <algorithm>
#include <limits>

#include "levin/train/pipeline_strategy.h"

namespace levin {
namespace {

using Kind = PipelineSlot::Kind;

// The passes of one stage in their order.
std::vector<PipelineSlot> passes_of(PipelineSchedule schedule, std::int64_t stage, std::int64_t stages,
                                    std::int64_t microbatches) {
  std::vector<PipelineSlot> all;
  if (schedule == PipelineSchedule::gpipe) {
    for (std::int64_t i = 0; i < microbatches; ++i) all.push_back({Kind::forward, i});
    for (std::int64_t i = microbatches; i-- > 0;) all.push_back({Kind::backward, i});
    return all;
  }
  const std::int64_t ahead = std::min(stages - stage, microbatches);
  for (std::int64_t i = 0; i < ahead; ++i) all.push_back({Kind::forward, i});
  for (std::int64_t i = 0; i < microbatches; ++i) {
    all.push_back({Kind::backward, i});
    if (i + ahead < microbatches) all.push_back({Kind::forward, i + ahead});
  }
  return all;
}

}  // namespace

// A pass runs in the first slot after those that it needs: forward of the stage before, backward of the stage after it.
std::vector<std::vector<PipelineSlot>> pipeline_slots(PipelineSchedule schedule, std::int64_t stages,
                                                      std::int64_t microbatches) {
  if (stages < 1 || microbatches < 1)
    fail<ConfigError>("pipeline_slots: ", stages, " stages and ", microbatches, " microbatches, expected 1 or more");
  const auto p = static_cast<std::size_t>(stages), m = static_cast<std::size_t>(microbatches);
  std::vector<std::vector<PipelineSlot>> passes(p), slots(p);
  std::vector<std::vector<std::size_t>> forward(p, std::vector<std::size_t>(m)),
      backward = forward;  // slot + 1; 0: open
  for (std::size_t s = 0; s < p; ++s)
    passes[s] = passes_of(schedule, static_cast<std::int64_t>(s), stages, microbatches);
  std::vector<std::size_t> next(p);
  std::size_t left = 2 * p * m;
  for (std::size_t t = 0; left > 0; ++t) {
    for (std::size_t s = 0; s < p; ++s) {
      PipelineSlot now{};
      if (next[s] < passes[s].size()) {
        const PipelineSlot wanted = passes[s][next[s]];
        const auto i = static_cast<std::size_t>(wanted.microbatch);
        const auto done = [&](std::size_t slot) { return slot != 0 && slot <= t; };  // before this slot
        const bool ready = wanted.kind == Kind::forward ? s == 0 || done(forward[s - 1][i])
                           : s + 1 == p                 ? done(forward[s][i])
                                                        : done(backward[s + 1][i]);
        if (ready) {
          now = wanted;
          (wanted.kind == Kind::forward ? forward : backward)[s][i] = t + 1;
          ++next[s];
          --left;
        }
      }
      slots[s].push_back(now);
    }
  }
  return slots;
}

// best[k][n]: the least largest sum of the first n layers in k stages.
std::vector<std::int64_t> pipeline_balance(const std::vector<double>& costs, std::int64_t stages) {
  const auto layers = static_cast<std::int64_t>(costs.size());
  if (stages < 1 || layers < stages)
    fail<ConfigError>("pipeline: ", stages, " stages and ", layers, " layers, expected a layer or more for each stage");
  const auto p = static_cast<std::size_t>(stages), n = costs.size();
  std::vector<double> until(n + 1);
  for (std::size_t i = 0; i < n; ++i) until[i + 1] = until[i] + costs[i];
  std::vector<std::vector<double>> best(p + 1, std::vector<double>(n + 1, std::numeric_limits<double>::infinity()));
  std::vector<std::vector<std::size_t>> from(p + 1, std::vector<std::size_t>(n + 1));
  best[0][0] = 0;
  for (std::size_t k = 1; k <= p; ++k) {
    for (std::size_t end = k; end <= n; ++end) {
      for (std::size_t begin = k - 1; begin < end; ++begin) {
        const double largest = std::max(best[k - 1][begin], until[end] - until[begin]);
        if (largest < best[k][end]) {
          best[k][end] = largest;
          from[k][end] = begin;
        }
      }
    }
  }
  std::vector<std::int64_t> balance(p);
  for (std::size_t k = p, end = n; k > 0; --k) {
    balance[k - 1] = static_cast<std::int64_t>(end - from[k][end]);
    end = from[k][end];
  }
  return balance;
}

}  // namespace levin
