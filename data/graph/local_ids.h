// Local numbers of the nodes of one sample, by their keys.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "levin/error.h"

namespace levin::gnn {

// Note [Local numbers]
// Both tables hold entries of earlier samples and are never cleared: an entry counts when it has the stamp of the
// current sample. A marker has a word a key, stamp << 32 | number, in memory that the system gives as zeros page by
// page, so that a sample touches only what it visits. A hash has room for twice the nodes that the sample may have.

// A word for each key below `keys`.
class Marker {
 public:
  explicit Marker(std::int64_t keys)
      : words_(static_cast<std::uint64_t*>(std::calloc(static_cast<std::size_t>(keys) + 1, sizeof(std::uint64_t)))),
        bytes_((static_cast<std::size_t>(keys) + 1) * sizeof(std::uint64_t)) {
    if (!words_)
      fail<OutOfMemoryError>("NeighborSampler: ", bytes_, " bytes wanted for a table of nodes; lower marker_bytes");
  }
  void start() {
    if (++stamp_ == 0) {  // the stamps are used up
      std::fill_n(words_.get(), bytes_ / sizeof(std::uint64_t), std::uint64_t{0});
      stamp_ = 1;
    }
  }
  void reserve(std::int64_t) {}
  void prefetch(std::uint64_t key) const { __builtin_prefetch(&words_.get()[key], 1); }
  // The number of `key`; `next` where it has none, which it then has.
  [[nodiscard]] std::uint32_t number(std::uint64_t key, std::uint32_t next) {
    std::uint64_t& word = words_.get()[key];
    const std::uint32_t found = (word >> 32) == stamp_ ? static_cast<std::uint32_t>(word) : next;
    word = std::uint64_t{stamp_} << 32 | found;
    return found;
  }
  [[nodiscard]] std::int64_t find(std::uint64_t key) const {  // -1: none
    const std::uint64_t word = words_.get()[key];
    return (word >> 32) == stamp_ ? static_cast<std::int64_t>(word & 0xffffffffu) : -1;
  }
  void set_stamp(std::uint32_t stamp) { stamp_ = stamp; }  // for tests

 private:
  struct Free {
    void operator()(std::uint64_t* p) const { std::free(p); }
  };
  std::unique_ptr<std::uint64_t, Free> words_;
  std::size_t bytes_;
  std::uint32_t stamp_ = 0;
};

// Open addressing with linear probing.
class Hash {
 public:
  explicit Hash(std::int64_t = 0) {}
  void start() {
    if (++stamp_ == 0) {
      std::fill(slots_.begin(), slots_.end(), Slot{});
      stamp_ = 1;
    }
  }
  // Room for `n` keys in all.
  void reserve(std::int64_t n) {
    std::size_t size = std::max<std::size_t>(slots_.size(), 64);
    while (size < 2 * static_cast<std::size_t>(n)) size *= 2;
    if (size == slots_.size()) return;
    std::vector<Slot> old(size);
    old.swap(slots_);
    shift_ = 64 - __builtin_ctzll(size);
    for (const Slot& s : old) {
      if (s.stamp == stamp_) slot_of(s.key) = s;
    }
  }
  void prefetch(std::uint64_t key) const { __builtin_prefetch(&slots_[at(key)], 1); }
  [[nodiscard]] std::uint32_t number(std::uint64_t key, std::uint32_t next) {
    Slot& slot = slot_of(key);
    if (slot.stamp != stamp_) slot = {key, next, stamp_};
    return slot.number;
  }
  [[nodiscard]] std::int64_t find(std::uint64_t key) const {
    const Slot& slot = const_cast<Hash*>(this)->slot_of(key);
    return slot.stamp == stamp_ ? std::int64_t{slot.number} : -1;
  }
  void set_stamp(std::uint32_t stamp) { stamp_ = stamp; }

 private:
  struct Slot {
    std::uint64_t key = 0;
    std::uint32_t number = 0, stamp = 0;
  };
  // The high bits of a product (Knuth, TAOCP 3, 6.4).
  [[nodiscard]] std::size_t at(std::uint64_t key) const { return (key * 0x9e3779b97f4a7c15u) >> shift_; }
  [[nodiscard]] Slot& slot_of(std::uint64_t key) {
    const std::size_t mask = slots_.size() - 1;
    std::size_t i = at(key);
    while (slots_[i].stamp == stamp_ && slots_[i].key != key) i = (i + 1) & mask;
    return slots_[i];
  }
  std::vector<Slot> slots_;
  int shift_ = 64;
  std::uint32_t stamp_ = 0;
};

}  // namespace levin::gnn
