// Generators in recorded graphs.
//
// Note [Random numbers in a recorded graph]
// A kernel in a graph runs with the arguments of the recording, so the place in the random stream must come from memory:
// two words {seed, offset} a generator, which each replay sets before its kernels run, by a kernel whose arguments are
// the values: nothing on the host must stay until the device has passed, however many replays are in flight. During the
// recording generators move as ever; a range is handed out relative to `base`, the state when the recording first met the
// generator, and the kernel adds the words. The host's state stays the truth: a replay reads it, and then puts it to where
// the recording went from there.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "levin/generator.h"
#include "levin/stream.h"
#include "levin/tensor.h"

namespace levin::detail {

// The state of a generator that a recording has met. The generator may go; graphs keep the cell.
struct GeneratorCell {
  RandomRange state;
  // Within the recording of this number: the words that `state` is relative to, and what they stand for. Null words: the
  // state is the same at each replay.
  std::uint64_t recording = 0;
  std::uint64_t* words = nullptr;
  RandomRange base{};
};

// The generators of one graph.
class GraphRandom {
 public:
  // That of the graph which the calling thread records, or null.
  [[nodiscard]] static GraphRandom* recording() noexcept;

  void begin(Stream stream);
  void end() noexcept;      // learns how far each generator went and puts all back
  void abandon() noexcept;  // puts all back
  [[nodiscard]] bool draws() const { return !entries_.empty(); }
  void before_replay(Stream stream);  // enqueues the setting of the words, then moves the generators on

  // For Generator, while recording.
  GeneratorCell& meet(const Generator& generator);  // the generator's cell, put on the list if it was not
  [[nodiscard]] std::shared_ptr<GeneratorCell> made_inside(RandomRange state) const;
  [[nodiscard]] RandomRange relative(const GeneratorCell& cell, Device device) const;

 private:
  struct Entry {
    std::shared_ptr<GeneratorCell> cell;
    std::uint64_t* words;
    RandomRange base;          // when the recording met it; how far a replay goes, or to where, once it ended
    std::int64_t source = -1;  // the entry whose state a replay's end counts from; -1: it is the same each time
  };
  std::uint64_t* next_words();
  std::vector<Entry> entries_;
  std::vector<Tensor> words_;  // kWordsAtOnce generators each
  Device device_ = Device::cpu();
  std::uint64_t number_ = 0;  // of the recording, unique in the process
};

}  // namespace levin::detail
