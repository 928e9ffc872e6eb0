#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_BOX_CUH
#define LEVIN_KERNELS_BOX_CUH
// Moving whole blocks of elements. Works on bits: U is the unsigned integer as wide as the element. Sizes may be zero.
//
//   copy_box(on, const U* from, U* to, const Box&)     strided to strided, negative steps allowed
//   triangle(on, const U* x, U* y, matrices, rows, cols, diagonal, bool upper)
//     x, y: [matrices, rows, cols], contiguous. y = x on and above (below) the diagonal, 0 elsewhere. The diagonal d is
//     where column - row == d, from -rows to cols.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "kernels/device/bits.cuh"
#include "kernels/device/strided.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/executor/streaming.cuh"
#include "levin/shape.h"

namespace levin::kernels {

// A block of `size` elements, read and written with steps of their own.
struct Box {
  int rank = 0;
  std::array<int64_t, kMaxRank> size{}, from{}, to{};

  [[nodiscard]] int64_t numel() const {
    int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= size[static_cast<size_t>(d)];
    return n;
  }
  // Makes one dimension of neighbours that one step walks on both sides; at least one is left.
  void merge() {
    int kept = 0;
    for (int d = 0; d < rank; ++d) {
      const auto at = static_cast<size_t>(d);
      if (size[at] == 1) continue;
      if (kept > 0) {
        const auto before = static_cast<size_t>(kept - 1);
        if (from[before] == from[at] * size[at] && to[before] == to[at] * size[at]) {
          size[before] *= size[at];
          from[before] = from[at];
          to[before] = to[at];
          continue;
        }
      }
      const auto next = static_cast<size_t>(kept++);
      size[next] = size[at];
      from[next] = from[at];
      to[next] = to[at];
    }
    if (kept == 0) kept = 1, size[0] = 1, from[0] = to[0] = 1;
    rank = kept;
  }
};

namespace cpu {

inline constexpr int64_t kBoxTask = 32 * 1024;  // elements moved by one thread at a time

template <class U>
void triangle(const Cpu& on, const U* x, U* y, int64_t matrices, int64_t rows, int64_t cols, int64_t diagonal,
              bool upper) {
  on.parallel_for(matrices * rows, std::max<int64_t>(1, kBoxTask / std::max<int64_t>(1, cols)),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t r = begin; r < end; ++r) {
                      // Columns below `split` belong to the lower triangle without the upper one, or with it.
                      const int64_t row = r % rows, edge = row + diagonal + (upper ? 0 : 1);
                      const int64_t split = std::clamp<int64_t>(edge, 0, cols);
                      const U* from = x + r * cols;
                      U* to = y + r * cols;
                      const auto copy = [&](int64_t b, int64_t e) { std::copy(from + b, from + e, to + b); };
                      const auto clear = [&](int64_t b, int64_t e) { std::fill(to + b, to + e, U{0}); };
                      upper ? clear(0, split) : copy(0, split);
                      upper ? copy(split, cols) : clear(split, cols);
                    }
                  });
}

}  // namespace cpu

namespace gpu {

// Items are W bytes that lie together on both sides.
template <int W>
__global__ void copy_items(Strided<2> at, int64_t items, const std::uint8_t* from, std::uint8_t* to) {
  Bytes<W> v[kItems];
  int64_t target[kItems];
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const int64_t u = first_item() + k * kMoveThreads;
    if (u >= items) continue;
    int64_t offset[2];
    at.offsets(u, offset);
    v[k] = load_bytes<W>(from, offset[0]);
    target[k] = offset[1];
  }
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    if (first_item() + k * kMoveThreads < items) store_bytes<W>(to, target[k], v[k]);
  }
}

template <class U>
void copy_box(const Gpu& on, const U* from, U* to, Box box) {
  box.merge();
  if (box.numel() == 0) return;
  const auto inner = static_cast<std::size_t>(box.rank - 1);
  constexpr auto kSize = static_cast<int64_t>(sizeof(U));
  int width = int{sizeof(U)};
  if (box.from[inner] == 1 && box.to[inner] == 1) {
    width = common_width({address_of(from), address_of(to), box.size[inner] * kSize});
    for (std::size_t d = 0; d < inner; ++d) width = common_width({width, box.from[d] * kSize, box.to[d] * kSize});
  }
  const int64_t together = width / kSize;
  Strided<2> at;
  at.rank = box.rank;
  for (std::size_t d = 0; d <= inner; ++d) {
    const bool dense = d == inner && together > 1;
    at.sizes[d] = Divider(dense ? box.size[d] / together : box.size[d]);
    at.steps[0][d] = dense ? 1 : box.from[d] / together;
    at.steps[1][d] = dense ? 1 : box.to[d] / together;
  }
  const int64_t items = box.numel() / together;
  for_width(width, [&]<int W>(std::integral_constant<int, W>) {
    on.launch(copy_items<W>, move_grid(items), at, items, reinterpret_cast<const std::uint8_t*>(from),
              reinterpret_cast<std::uint8_t*>(to));
  });
}

// V elements of a row a thread.
template <int V, class U>
__global__ void triangle_items(const U* x, U* y, int64_t items, Divider per_row, Divider rows, int64_t diagonal,
                               bool upper) {
  const int64_t u = own_item();
  if (u >= items) return;
  const int64_t line = per_row.quotient(u), row = line - rows.quotient(line) * int64_t(rows.divisor);
  const int64_t column = (u - line * int64_t(per_row.divisor)) * V;
  const Vec<U, V> v = load<V>(x + u * V);
  Vec<U, V> r;
  for (int j = 0; j < V; ++j) {
    const int64_t above = column + j - row - diagonal;
    r[j] = (upper ? above >= 0 : above <= 0) ? v[j] : U(0);
  }
  store(y + u * V, r);
}

template <class U>
void triangle(const Gpu& on, const U* x, U* y, int64_t matrices, int64_t rows, int64_t cols, int64_t diagonal,
              bool upper) {
  const auto launch = [&]<int V>(std::integral_constant<int, V>) {
    const int64_t items = matrices * rows * cols / V;
    on.launch(triangle_items<V, U>, item_grid(items), x, y, items, Divider(cols / V), Divider(rows), diagonal, upper);
  };
  if (aligned16(x) && aligned16(y) && cols % kVec<U> == 0)
    launch(std::integral_constant<int, kVec<U>>{});
  else
    launch(std::integral_constant<int, 1>{});
}

}  // namespace gpu
}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/pointwise/box.cuh"
#include "kernels/executor/each_level.h"
namespace levin::kernels::cpu {
LEVIN_PICK(copy_box)
}  // namespace levin::kernels::cpu
#endif
#else  // one level

namespace levin::kernels::cpu::LEVIN_LEVEL {

// n elements with steps a and b. Compilers make vector code of the two that are written out.
template <class U>
void copy_line(const U* from, int64_t a, U* to, int64_t b, int64_t n) {
  if (a == 1 && b == 1) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(U));
  } else if (a == -1 && b == 1) {
    for (int64_t i = 0; i < n; ++i) to[i] = from[-i];
  } else {
    for (int64_t i = 0; i < n; ++i) to[i * b] = from[i * a];
  }
}

template <class U>
void copy_box(const Cpu& on, const U* from, U* to, Box box) {
  box.merge();
  if (box.numel() == 0) return;
  const auto inner = static_cast<size_t>(box.rank - 1);
  // One long line is cut, so that threads can share it; short ones that follow each other are a task together.
  constexpr int64_t kPiece = 16 * 1024, kShortLine = 64;
  const int64_t n = box.size[inner], a = box.from[inner], b = box.to[inner], pieces = (n + kPiece - 1) / kPiece;
  const bool many = n < kShortLine && box.rank > 1;
  const int64_t m = many ? box.size[inner - 1] : 1, a_line = many ? box.from[inner - 1] : 0,
                b_line = many ? box.to[inner - 1] : 0, together = many ? std::min(m, kPiece / n) : 1,
                groups = (m + together - 1) / together;
  const int rank = many ? box.rank - 2 : box.rank - 1;
  int64_t outer = 1;
  for (int d = 0; d < rank; ++d) outer *= box.size[static_cast<size_t>(d)];
  const int64_t parts = many ? groups : pieces, size = many ? together * n : std::min(n, kPiece);
  constexpr int64_t kBytes = sizeof(U), kStaged = kStreamedBytes / kBytes;
  const bool streams = !many && b == 1 && beyond_cache(2 * box.numel() * kBytes);
  on.parallel_for(outer * parts, std::max<int64_t>(1, kBoxTask / size), [&](int64_t begin, int64_t end) {
    const Streaming all_seen;
    U staged[kStaged];
    for (int64_t t = begin; t < end; ++t) {
      const int64_t part = t % parts, line = part * together, first = many ? 0 : part * kPiece;
      int64_t rest = t / parts, x = first * a + line * a_line, y = first * b + line * b_line;
      for (int d = rank - 1; d >= 0; --d) {
        const auto at = static_cast<size_t>(d);
        const int64_t i = rest % box.size[at];
        x += i * box.from[at];
        y += i * box.to[at];
        rest /= box.size[at];
      }
      if (!many) {
        const int64_t count = std::min(kPiece, n - first);
        if (!streams) copy_line(from + x, a, to + y, b, count);
        if (streams && a == 1) Streaming::write(on, to + y, from + x, count * kBytes);
        for (int64_t i = 0; streams && a != 1 && i < count; i += kStaged) {
          const int64_t now = std::min(kStaged, count - i);
          copy_line(from + x + i * a, a, staged, 1, now);
          Streaming::write(on, to + y + i, staged, now * kBytes);
        }
        continue;
      }
      const int64_t lines = std::min(together, m - line);
      if (n == 1) {
        for (int64_t l = 0; l < lines; ++l) to[y + l * b_line] = from[x + l * a_line];
      } else if (n < 16) {
        for (int64_t l = 0; l < lines; ++l)
          for (int64_t i = 0; i < n; ++i) to[y + l * b_line + i * b] = from[x + l * a_line + i * a];
      } else {
        for (int64_t l = 0; l < lines; ++l) copy_line(from + x + l * a_line, a, to + y + l * b_line, b, n);
      }
    }
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
