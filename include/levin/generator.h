// Random numbers as values: a Generator is an argument, never a global.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "levin/device.h"
#include "levin/export.h"

namespace levin {

// A range of Philox4x32-10 counters: element i of a draw uses counter `offset + i / 4` under key `seed`. In a recorded
// graph both count from two words in the device's memory, {seed, offset}, that each replay sets; null: from zero.
struct RandomRange {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
  const std::uint64_t* on_device = nullptr;
};

namespace detail {
struct GeneratorCell;
class GraphRandom;
}  // namespace detail

// A stream of random numbers (Philox4x32-10; Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
// State is {seed, offset}; the same state gives the same bits on every device, thread count and CPU level.
//
// While a thread records a Graph, draws from generators that existed before are recorded, not made: when the recording
// ends the generators are as before, and each replay draws from their state then and moves them on. So a recording and
// N replays give the numbers, and leave the generators in the states, of N calls of the recorded function. Copies made
// in the recording follow their original. Generators and forks made in the recording, and a generator whose set_state
// was called in it, draw the same numbers at each replay.
class LEVIN_API Generator {
 public:
  explicit Generator(std::uint64_t seed);
  Generator(const Generator& other);  // a copy draws the same numbers; neither moves the other
  Generator(Generator&& other) noexcept;
  Generator& operator=(const Generator& other);  // graphs that draw from this generator still do
  ~Generator();

  // An independent stream, a pure function of this generator's seed and the name (not of its offset).
  [[nodiscard]] Generator fork(std::string_view name) const;

  // Takes the counters for n >= 0 numbers of a tensor on `device`; the next call gets the counters after them.
  RandomRange reserve(std::int64_t n, Device device = Device::cpu());

  // Numbers for the host, where a tensor would be too much: in a dataset, a transform, a search. Each call takes at
  // least one counter, so that these and tensors drawn from one generator never share numbers. The same state gives the
  // same bits on every machine. All throw ConfigError for a range that is empty or not finite, and CaptureError while
  // the thread records a Graph: all replays would use the number of the recording.
  double uniform(double low = 0, double high = 1);            // low <= x < high, in steps of (high - low) / 2^53
  double normal(double mean = 0, double std = 1);             // std >= 0
  std::int64_t integer(std::int64_t low, std::int64_t high);  // low <= x < high, each as likely to 2^-64
  std::vector<std::int64_t> permutation(std::int64_t n);      // of 0 .. n - 1, 0 <= n <= 2^32

  // {seed, offset}; `on_device` is null.
  [[nodiscard]] RandomRange state() const;
  void set_state(RandomRange state);
  [[nodiscard]] std::uint64_t seed() const { return state().seed; }

 private:
  friend class detail::GraphRandom;
  RandomRange state_;
  // Holds the state instead, shared with the graphs that draw from this.
  mutable std::shared_ptr<detail::GeneratorCell> cell_;
};

}  // namespace levin
