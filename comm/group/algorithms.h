// Collectives as messages.
//
// Note [Algorithms of collectives]
//
// | collective     | ranks          | size   | algorithm                                                       |
// |----------------|----------------|--------|-----------------------------------------------------------------|
// | all_reduce     | power of two   | small  | recursive doubling: all ranks add everything                    |
// | all_reduce     | power of two   | large  | recursive halving, then doubling (Note [The tree over ranks])   |
// | all_reduce     | other          | small  | the ranks above the power of two add to a partner, then as above |
// | all_reduce     | other          | large  | ring                                                            |
// | reduce_scatter | power of two   | any    | recursive halving of slices in the order of reversed bits       |
// | reduce_scatter | other          | any    | pairwise, added by the tree                                     |
// | all_gather     | power of two   | small  | recursive doubling                                              |
// | all_gather     | any            | large  | ring                                                            |
// | broadcast      | any            | any    | binomial tree                                                   |
// | all_to_all     | any            | any    | pairwise                                                        |
// | barrier        | any            |        | dissemination                                                   |
//
// Large messages travel in segments of 1 MiB, two of them in flight, so that a segment is added while the next one
// arrives. Sums of 16 bits round after each message, except in ReduceOrder::tree and averages of f16, which travel in
// f32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/group/engine.h"
#include "comm/group/transport.h"

namespace levin::dist {

inline constexpr std::size_t kSegment = std::size_t{1} << 20;
inline constexpr std::size_t kSmall = std::size_t{16} << 10;  // bytes up to which latency decides

// Memory that an algorithm keeps between its calls.
struct Scratch {
  std::vector<std::byte> whole, segments;
};

// Whether a reduction of 16-bit elements travels in f32.
[[nodiscard]] bool in_f32(const Task& task);

// This rank's part of a collective. `slot` is the collective's own, equal on all ranks.
void run_collective(Transport& transport, const Task& task, std::uint64_t slot, Scratch& scratch);

// A message with its dtype and count in front: another one than the receiver takes is a CommError of the receiver, who
// reads and forgets it.
void send_message(Transport& transport, const Task& task, std::uint64_t slot);
void recv_message(Transport& transport, const Task& task, std::uint64_t slot);

}  // namespace levin::dist
