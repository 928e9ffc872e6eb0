#include "tensor/device/graph_random.h"

#include <atomic>
#include <utility>

#include "tensor/device/runtime.h"
#include "tensor/memory/device_allocator.h"

namespace levin::detail {
namespace {

thread_local GraphRandom* recording_now = nullptr;

}  // namespace

GraphRandom* GraphRandom::recording() noexcept { return recording_now; }

void GraphRandom::begin(Stream stream) {
  static std::atomic<std::uint64_t> numbers{0};
  number_ = 1 + numbers.fetch_add(1, std::memory_order_relaxed);
  device_ = stream.device();
  recording_now = this;
}

void GraphRandom::end() noexcept {
  recording_now = nullptr;
  for (Entry& e : entries_) {
    GeneratorCell& cell = *e.cell;
    const RandomRange before = std::exchange(e.base, cell.state);
    for (std::size_t i = 0; cell.words && i < entries_.size(); ++i) {
      if (entries_[i].words != cell.words) continue;
      e.source = static_cast<std::int64_t>(i);
      e.base = {cell.state.seed - cell.base.seed, cell.state.offset - cell.base.offset};
    }
    cell.state = before;
  }
}

void GraphRandom::abandon() noexcept {
  recording_now = nullptr;
  for (const Entry& e : entries_) e.cell->state = e.base;
  entries_.clear();
}

GeneratorCell& GraphRandom::meet(const Generator& generator) {
  std::shared_ptr<GeneratorCell>& cell = generator.cell_;
  if (cell && cell->recording == number_) return *cell;
  std::uint64_t* words = next_words();
  if (!cell) cell = std::make_shared<GeneratorCell>(GeneratorCell{generator.state_});
  cell->recording = number_;
  cell->words = words;
  cell->base = cell->state;
  entries_.push_back({cell, words, cell->state});
  return *cell;
}

std::shared_ptr<GeneratorCell> GraphRandom::made_inside(RandomRange state) const {
  return std::make_shared<GeneratorCell>(GeneratorCell{state, number_});
}

RandomRange GraphRandom::relative(const GeneratorCell& cell, Device device) const {
  if (device != device_ || !cell.words) return cell.state;
  return {cell.state.seed - cell.base.seed, cell.state.offset - cell.base.offset, cell.words};
}

std::uint64_t* GraphRandom::next_words() {
  const std::size_t at = entries_.size() % runtime::kWordsAtOnce;
  // Not of the graph's pool: an earlier node of the graph may have used such a block, and would overwrite the words at
  // each replay after they are set.
  if (at == 0) {
    const OutsidePool outside(device_);
    words_.push_back(empty({2 * std::int64_t{runtime::kWordsAtOnce}}, device_, DType::i64));
  }
  return reinterpret_cast<std::uint64_t*>(words_.back().get().storage->data) + 2 * at;
}

void GraphRandom::before_replay(Stream stream) {
  runtime::Words words;
  std::vector<RandomRange> start;
  for (const Entry& e : entries_) start.push_back(e.cell->state);
  for (std::size_t first = 0; first < entries_.size(); first += runtime::kWordsAtOnce) {
    words.count = 0;
    for (std::size_t i = first; i < entries_.size() && words.count < runtime::kWordsAtOnce; ++i) {
      words.at[words.count++] = {start[i].seed, start[i].offset};
    }
    runtime::set_words(entries_[first].words, words, stream);
  }
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& e = entries_[i];
    RandomRange& state = e.cell->state;
    state = e.base;
    if (e.source < 0) continue;
    state.seed += start[static_cast<std::size_t>(e.source)].seed;
    state.offset += start[static_cast<std::size_t>(e.source)].offset;
  }
}

}  // namespace levin::detail
