#include "train/checkpoint/rank_states.h"

#include <algorithm>
#include <bit>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "tensor/files/file.h"
#include "train/run/packed.h"
#include "train/run/run.h"

namespace levin::train {
namespace {

std::string prefix_of(std::size_t rank) { return "levin.rank." + text(rank) + "."; }

Tensor tensor_of(const std::vector<std::int64_t>& values, const Shape& shape) {
  return from_data<std::int64_t>(values, shape, Device::cpu());
}
std::vector<std::int64_t> numbers_in(const Checkpoint& file, const std::string& name, std::size_t least) {
  for (const auto& [known, t] : file.rest) {
    if (known != name) continue;
    if (t.dtype() != DType::i64 || static_cast<std::size_t>(t.numel()) < least)
      fail<FormatError>("resume: ", file.path, ": ", name, " is ", levin::text(t), ", expected ", least,
                        " or more i64 elements");
    return t.to_vector<std::int64_t>();
  }
  return {};
}
bool same_state(const RandomRange& a, const RandomRange& b) { return a.seed == b.seed && a.offset == b.offset; }

}  // namespace

bool operator==(const RankState& a, const RankState& b) {
  const auto same = [](const auto& x, const auto& y) { return x.first == y.first && same_state(x.second, y.second); };
  return a.batch == b.batch && a.absent == b.absent && a.ahead == b.ahead &&
         std::equal(a.generators.begin(), a.generators.end(), b.generators.begin(), b.generators.end(), same);
}

RankState rank_state_of(const Trainer::Run& run) {
  const Progress& p = run.progress;
  RankState mine{.generators = {}, .batch = p.position.batch, .absent = p.batches_absent, .ahead = p.position.ahead};
  if (run.borrowed.tree) {
    for (const auto& [name, generator] : run.borrowed.tree->generators())
      mine.generators.emplace_back(name, generator->state());
  }
  std::sort(mine.generators.begin(), mine.generators.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  return mine;
}

std::vector<RankState> states_of_ranks(const Trainer::Run& run) {
  const RankState mine = rank_state_of(run);
  Packed packed;
  packed.add(mine.batch).add(mine.absent).add(static_cast<std::uint64_t>(mine.ahead.size()));
  for (const std::int64_t k : mine.ahead) packed.add(k);
  for (const auto& [name, state] : mine.generators) packed.add(name).add(state.seed).add(state.offset);
  std::vector<RankState> all;
  for (const std::string& bytes : run.strategy->gather(packed.bytes())) {
    Unpacked in(bytes);
    RankState& one = all.emplace_back();
    one.batch = in.take<std::int64_t>();
    one.absent = in.take<std::int64_t>();
    for (auto n = in.take<std::uint64_t>(); n > 0; --n) one.ahead.push_back(in.take<std::int64_t>());
    while (!in.empty()) {
      auto name = in.take<std::string>();
      const auto seed = in.take<std::uint64_t>();
      one.generators.emplace_back(std::move(name), RandomRange{.seed = seed, .offset = in.take<std::uint64_t>()});
    }
  }
  return all;
}

void append_rank_states(NamedTensors& tensors, const std::vector<RankState>& all) {
  if (std::all_of(all.begin(), all.end(), [&](const RankState& s) { return s == all.front(); })) return;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const RankState& s = all[r];
    std::vector<std::int64_t> position = {s.batch, s.absent}, states;
    position.insert(position.end(), s.ahead.begin(), s.ahead.end());
    for (const auto& [name, state] : s.generators) {
      states.push_back(std::bit_cast<std::int64_t>(state.seed));
      states.push_back(std::bit_cast<std::int64_t>(state.offset));
    }
    const auto n = static_cast<std::int64_t>(position.size());
    tensors.emplace_back(prefix_of(r) + "position", tensor_of(position, {n}));
    if (!states.empty())
      tensors.emplace_back(prefix_of(r) + "generators",
                           tensor_of(states, {static_cast<std::int64_t>(s.generators.size()), 2}));
  }
}

std::string strategy_prefix(int rank) { return prefix_of(static_cast<std::size_t>(rank)) + "strategy."; }

NamedTensors strategy_states(const Trainer::Run& run) {
  const NoGrad off;
  const RankInfo ranks = run.strategy->ranks();
  const NamedTensors mine = run.strategy->state();
  NamedTensors all;
  for (const auto& [name, t] : mine) all.emplace_back(strategy_prefix(0) + name, t);
  if (ranks.size == 1) return all;
  Packed list;
  for (const auto& [name, t] : mine) {
    list.add(name).add(t.dtype()).add(t.device().is_cpu()).add(static_cast<std::int64_t>(t.rank()));
    for (const std::int64_t n : t.shape()) list.add(n);
  }
  const std::vector<std::string> lists = run.strategy->gather(list.bytes());
  const std::shared_ptr<dist::ProcessGroup> group = run.strategy->group();
  if (!group) return all;
  if (ranks.rank > 0) {
    for (const auto& [name, t] : mine) group->send(t.contiguous(), 0).wait();
    return {};
  }
  const Device device = run.strategy->device().value_or(Device::cpu());
  for (std::size_t r = 1; r < lists.size(); ++r) {
    Unpacked in(lists[r]);
    while (!in.empty()) {
      const auto name = in.take<std::string>();
      const auto dtype = in.take<DType>();
      const bool on_cpu = in.take<bool>();
      std::vector<std::int64_t> dims(static_cast<std::size_t>(in.take<std::int64_t>()));
      for (std::int64_t& n : dims) n = in.take<std::int64_t>();
      const Tensor t = empty(detail::checked_shape(name, dims), on_cpu ? Device::cpu() : device, dtype);
      group->recv(t, static_cast<int>(r)).wait();
      all.emplace_back(strategy_prefix(static_cast<int>(r)) + name, t);
    }
  }
  return all;
}

RandomRange random_numbers_of_rank(const Strategy& strategy, RandomRange first) {
  const int rank = strategy.ranks().rank;
  if (rank > 0 && !strategy.fuses_backward())
    first.seed = Generator(first.seed).fork("rank " + levin::text(rank)).seed();
  return first;
}

RankState rank_state_in(const Checkpoint& file, const Strategy& strategy) {
  const Progress& p = file.progress;
  RankState mine{.generators = {}, .batch = p.position.batch, .absent = p.batches_absent, .ahead = p.position.ahead};
  mine.generators.assign(file.generators.begin(), file.generators.end());
  const std::size_t n = mine.generators.size();
  const std::string own = prefix_of(static_cast<std::size_t>(strategy.ranks().rank));
  std::vector<std::int64_t> states = numbers_in(file, own + "generators", 2 * n);
  if (strategy.fuses_backward()) states.clear();
  for (std::size_t g = 0; g < n; ++g) {
    RandomRange& state = mine.generators[g].second;
    if (states.empty())
      state = random_numbers_of_rank(strategy, state);
    else
      state = {.seed = std::bit_cast<std::uint64_t>(states[2 * g]),
               .offset = std::bit_cast<std::uint64_t>(states[2 * g + 1])};
  }
  const std::vector<std::int64_t> position = numbers_in(file, own + "position", 2);
  if (position.empty()) return mine;
  mine.batch = position[0];
  mine.absent = position[1];
  mine.ahead.assign(position.begin() + 2, position.end());
  std::int64_t before = mine.batch;
  bool ascends = mine.batch >= 0 && mine.absent >= 0;
  for (const std::int64_t k : mine.ahead) ascends &= k > std::exchange(before, k);
  if (!ascends)
    fail<FormatError>("resume: ", file.path, ": ", own, "position is no place of a loader, expected a batch, a count ",
                      "and ascending numbers above the batch");
  return mine;
}

NamedTensors merged_metric_states(const Trainer::Run& run) {
  NamedTensors states = metric_states(run.borrowed.tree);
  const Exchange ranks = run.logs.ranks();
  if (!ranks || states.empty()) return states;
  const NoGrad off;
  std::vector<LogPart> mine;  // by the path of the metric
  const auto metrics = metrics_of(run.borrowed.tree);
  for (const auto& [path, metric] : metrics) {
    LogPart& p = mine.emplace_back();
    p.name = path;
    p.of_epochs = p.is_metric = true;
    p.states = detail::MetricHandle::states(*metric);
  }
  const std::vector<LogPart> all = merged(mine, ranks);
  NamedTensors out;
  for (std::size_t m = 0; m < metrics.size() && m < all.size(); ++m) {
    const detail::MetricHandle::Swapped swapped(*metrics[m].second, all[m].states);
    for (const nn::BufferRef& b : metrics[m].second->buffers())
      out.emplace_back(metrics[m].first + "." + b.name, b.value->clone());
  }
  return out;
}

}  // namespace levin::train
