// What the warp functions compute, once all their lanes are there.
#include "kernels/simt/simt.h"

namespace levin::simt {
namespace {

// Lane l takes the value of lane source(l, its argument, first lane of its segment, last lane of its segment). A source
// outside of the mask has no defined value in CUDA; here it is all ones, a NaN.
template <class F>
void shuffle(const LaneInput (&in)[32], std::uint64_t (&out)[32], std::uint32_t mask, F source) {
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1u) == 0) continue;
    const int first = lane & ~(in[lane].width - 1), last = first + in[lane].width - 1;
    const int from = source(lane, in[lane].argument, first, last);
    out[lane] = (mask >> from & 1u) != 0 ? in[from].value : ~std::uint64_t{0};
  }
}

}  // namespace

void shuffle_index(const LaneInput (&in)[32], std::uint64_t (&out)[32], std::uint32_t mask) {
  shuffle(in, out, mask, [](int, int index, int first, int last) { return first | (index & (last - first)); });
}
void shuffle_up(const LaneInput (&in)[32], std::uint64_t (&out)[32], std::uint32_t mask) {
  shuffle(in, out, mask, [](int lane, int delta, int first, int) {
    return unsigned(delta) > unsigned(lane - first) ? lane : lane - delta;
  });
}
void shuffle_down(const LaneInput (&in)[32], std::uint64_t (&out)[32], std::uint32_t mask) {
  shuffle(in, out, mask, [](int lane, int delta, int, int last) {
    return unsigned(delta) > unsigned(last - lane) ? lane : lane + delta;
  });
}
void shuffle_xor(const LaneInput (&in)[32], std::uint64_t (&out)[32], std::uint32_t mask) {
  // Lanes of later segments are out of reach, those of earlier ones are not.
  shuffle(in, out, mask, [](int lane, int lanes, int, int last) {
    const unsigned from = unsigned(lane) ^ unsigned(lanes);
    return from > unsigned(last) ? lane : int(from);
  });
}

void ballot(const LaneInput (&in)[32], std::uint64_t (&out)[32], std::uint32_t mask) {
  std::uint32_t votes = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1u) != 0 && in[lane].value != 0) votes |= 1u << lane;
  }
  for (std::uint64_t& o : out) o = votes;
}

void match_any(const LaneInput (&in)[32], std::uint64_t (&out)[32], std::uint32_t mask) {
  for (int lane = 0; lane < 32; ++lane) {
    std::uint32_t equal = 0;
    for (int other = 0; other < 32; ++other) {
      if ((mask >> other & 1u) != 0 && in[other].value == in[lane].value) equal |= 1u << other;
    }
    out[lane] = equal;
  }
}

void nothing(const LaneInput (&)[32], std::uint64_t (&)[32], std::uint32_t) {}

}  // namespace levin::simt
