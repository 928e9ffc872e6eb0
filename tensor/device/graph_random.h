// Generators in recorded graphs.
//
// Note [Random numbers in a recorded graph]
//
// A kernel in a graph runs with the arguments of the recording, so the place in the random stream must come from
// memory: two words {seed, offset} for each generator. Before its kernels run, each replay sets these words by a kernel
// whose arguments are the values. So no host memory must stay until the device has passed, however many replays are in
// flight.
//
// During the recording generators advance as usual. A range is relative to `base`, the state at which the recording
// first met the generator, and the kernel adds the words. The host's state is authoritative: a replay reads the state,
// then advances it as far as the recording advanced it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "levin/generator.h"
#include "levin/stream.h"
#include "levin/tensor.h"

namespace levin::detail {

// The state of a generator that a recording has met. The generator may be destroyed; graphs keep the cell.
struct GeneratorCell {
  RandomRange state;
  // During the recording of this number: the words that `state` is relative to, and the values that they hold. Null
  // words: the state is the same at each replay.
  std::uint64_t recording = 0;
  std::uint64_t* words = nullptr;
  RandomRange base{};
};

// The generators of one graph.
class GraphRandom {
 public:
  // The generators of the graph that the calling thread records, or null.
  [[nodiscard]] static GraphRandom* recording() noexcept;

  void begin(Stream stream);
  void end() noexcept;      // notes how far each generator advanced and restores all
  void abandon() noexcept;  // restores all
  [[nodiscard]] bool draws() const { return !entries_.empty(); }
  void before_replay(Stream stream);  // enqueues the write of the words, then advances the generators

  // For Generator, while recording.
  GeneratorCell& meet(const Generator& generator);  // the generator's cell; the first call lists it
  [[nodiscard]] std::shared_ptr<GeneratorCell> made_inside(RandomRange state) const;
  [[nodiscard]] RandomRange relative(const GeneratorCell& cell, Device device) const;

 private:
  struct Entry {
    std::shared_ptr<GeneratorCell> cell;
    std::uint64_t* words;
    RandomRange base;  // the state at the first meeting; after the recording how far, or to where, a replay advances
    std::int64_t source = -1;  // the entry whose state a replay's end counts from; -1: the end is the same each time
  };
  std::uint64_t* next_words();
  std::vector<Entry> entries_;
  std::vector<Tensor> words_;  // kWordsAtOnce generators each
  Device device_ = Device::cpu();
  std::uint64_t number_ = 0;  // of the recording, unique in the process
};

}  // namespace levin::detail
