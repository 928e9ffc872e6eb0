#define LEVIN_COMPILE_HALVES
#include "kernels/pointwise/pointwise.cuh"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "kernels/executor/streaming.cuh"
#include "kernels/lib/scratch.h"
#include "kernels/pointwise/halves.cuh"
#include "kernels/pointwise/transpose.cuh"

namespace levin::kernels {
namespace {

using Half = PointwisePlan::Half;

constexpr std::int64_t kBlock = 256;  // 16-bit elements widened at a time: a few KiB, well inside L1

void widen(const Cpu& on, Half half, const char* from, std::int64_t step, float* to, std::int64_t n) {
  const auto run = [&]<class T>(T) {
    if (step == sizeof(T)) {
      cpu::convert_row<float, T>(on, reinterpret_cast<const T*>(from), to, n);
    } else {
      for (std::int64_t i = 0; i < n; ++i) to[i] = float(*reinterpret_cast<const T*>(from + i * step));
    }
  };
  if (half == Half::f16) run(f16{});
  if (half == Half::bf16) run(bf16{});
}

void narrow(const Cpu& on, Half half, const float* from, char* to, std::int64_t step, std::int64_t n) {
  const auto run = [&]<class T>(T) {
    if (step == sizeof(T)) {
      cpu::convert_row<T, float>(on, from, reinterpret_cast<T*>(to), n);
    } else {
      for (std::int64_t i = 0; i < n; ++i) *reinterpret_cast<T*>(to + i * step) = T(from[i]);
    }
  };
  if (half == Half::f16) run(f16{});
  if (half == Half::bf16) run(bf16{});
}

// Copies of one element, so that a loop finds a dense row.
void spread(const char* from, int width, char* to, std::int64_t n) {
  const auto run = [&]<class T>(T value) {
    std::memcpy(&value, from, sizeof(T));
    std::fill_n(reinterpret_cast<T*>(to), n, value);
  };
  if (width == 8) run(std::uint64_t{});
  if (width == 4) run(std::uint32_t{});
  if (width == 2) run(std::uint16_t{});
  if (width == 1) run(std::uint8_t{});
}

// Whether rows with these inner steps go by way of blocks.
bool by_blocks(const PointwisePlan& plan, const std::int64_t* step) {
  for (int k = 0; k < plan.operands; ++k) {
    if (plan.half[static_cast<std::size_t>(k)] != Half::no || (plan.spread && k > 0 && step[k] == 0)) return true;
  }
  return false;
}

// Whether the result passes the caches by: Note [Results larger than the cache]. A result in the place of an operand
// does not, because its lines were read just before.
bool passes_caches(const PointwisePlan& plan, const std::int64_t* step) {
  if (step[0] != plan.width[0]) return false;
  // A line that two short rows share would be written to memory twice.
  constexpr std::int64_t kLongRow = 1024, kShortRow = 256, kLine = 64;
  const std::int64_t inner = plan.rank > 0 ? plan.sizes[static_cast<std::size_t>(plan.rank - 1)] : 1;
  if (plan.rank > 1 && inner * plan.width[0] < kLongRow) {
    const std::int64_t bytes = inner * plan.width[0];
    bool shares = bytes % kLine != 0 || reinterpret_cast<std::uintptr_t>(plan.data[0]) % kLine != 0;
    for (std::size_t d = 0; d + 1 < static_cast<std::size_t>(plan.rank); ++d)
      shares = shares || plan.steps[0][d] % kLine != 0;
    if (shares || bytes < kShortRow) return false;
  }
  std::int64_t bytes = 0;
  for (std::size_t k = 0; k < static_cast<std::size_t>(plan.operands); ++k) {
    if (k > 0 && plan.data[k] == plan.data[0]) return false;
    std::int64_t numbers = 1;  // that are not the same element again
    for (std::size_t d = 0; d < static_cast<std::size_t>(plan.rank); ++d)
      numbers *= plan.steps[k][d] == 0 ? 1 : plan.sizes[d];
    bytes += numbers * plan.width[k];
  }
  return beyond_cache(bytes);
}

struct How {
  bool blocks, streams;
  How(const PointwisePlan& plan, const std::int64_t* step)
      : blocks(by_blocks(plan, step)), streams(passes_caches(plan, step)) {}
};

// One row of n elements through the loop.
void run_row(const Cpu& on, PointwiseLoop loop, const void* functor, const PointwisePlan& plan, const How& how,
             char* const* p, const std::int64_t* step, std::int64_t n) {
  if (!how.blocks && !how.streams) return loop(functor, p, step, n);
  alignas(64) double block[kMaxOperands][kBlock];
  alignas(64) char narrowed[2 * kBlock];
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, n - begin);
    char* q[kMaxOperands];
    std::int64_t s[kMaxOperands];
    for (int k = 0; k < plan.operands; ++k) {
      const auto i = static_cast<std::size_t>(k);
      char* from = p[k] + begin * step[k];
      const bool repeat = k > 0 && step[k] == 0;
      float* wide = reinterpret_cast<float*>(block[k]);
      q[k] = from;
      s[k] = step[k];
      if (plan.half[i] != Half::no) {
        q[k] = reinterpret_cast<char*>(wide);
        s[k] = repeat && !plan.spread ? 0 : static_cast<std::int64_t>(sizeof(float));
        if (k > 0) widen(on, plan.half[i], from, step[k], wide, repeat ? 1 : count);
        if (repeat && plan.spread) std::fill_n(wide, count, wide[0]);
      } else if (repeat && plan.spread) {
        q[k] = reinterpret_cast<char*>(block[k]);
        s[k] = plan.width[i];
        spread(from, plan.width[i], q[k], count);
      }
    }
    const bool is_narrow = plan.half[0] != Half::no;
    if (how.streams && !is_narrow) q[0] = reinterpret_cast<char*>(block[0]);
    loop(functor, q, s, count);
    char* const to = p[0] + begin * step[0];
    if (is_narrow)
      narrow(on, plan.half[0], reinterpret_cast<float*>(block[0]), how.streams ? narrowed : to, step[0], count);
    if (how.streams) Streaming::write(on, to, is_narrow ? narrowed : q[0], count * step[0]);
  }
}

// Row by row; the rank is 2 or more.
void run_rows(const Cpu& on, PointwiseLoop loop, const void* functor, const PointwisePlan& plan, std::int64_t grain) {
  if (plan.numel == 0) return;
  const auto last = static_cast<std::size_t>(plan.rank - 1);
  const std::int64_t inner = plan.sizes[last], rows = plan.numel / inner;
  std::int64_t step[kMaxOperands];
  for (int k = 0; k < plan.operands; ++k) step[k] = plan.steps[static_cast<std::size_t>(k)][last];
  const How how(plan, step);
  on.parallel_for(rows, std::max<std::int64_t>(1, grain / inner), [&](std::int64_t begin, std::int64_t end) {
    const Streaming all_seen;
    std::array<std::int64_t, kMaxRank> index{};
    std::int64_t rest = begin;
    for (std::size_t d = last; d-- > 0;) {
      index[d] = rest % plan.sizes[d];
      rest /= plan.sizes[d];
    }
    char* p[kMaxOperands];
    for (int k = 0; k < plan.operands; ++k) {
      const auto& steps = plan.steps[static_cast<std::size_t>(k)];
      p[k] = plan.data[static_cast<std::size_t>(k)];
      for (std::size_t d = 0; d < last; ++d) p[k] += index[d] * steps[d];
    }
    for (std::int64_t row = begin; row < end; ++row) {
      run_row(on, loop, functor, plan, how, p, step, inner);
      for (std::size_t d = last; d-- > 0;) {
        const bool carry = ++index[d] == plan.sizes[d];
        for (int k = 0; k < plan.operands; ++k) {
          const std::int64_t s = plan.steps[static_cast<std::size_t>(k)][d];
          p[k] += carry ? s * (1 - plan.sizes[d]) : s;
        }
        if (!carry) break;
        index[d] = 0;
      }
    }
  });
}

// Note [Turned operands]
//
// Rows of the result cross an operand that is dense along another dimension: each element would come from a cache line
// of its own, and where the rows are many, every line would be read from memory for each of its elements. Such an
// operand is turned in tiles that stay in the nearest caches, and the loop then finds dense rows.
constexpr std::int64_t kTileRows = 64, kTileCols = 64;

struct Turned {
  std::size_t dense = 0;  // the dimension along which the operands are dense
  std::array<bool, kMaxOperands> is{};
};
std::optional<Turned> turned_operands(const PointwisePlan& plan) {
  const auto last = static_cast<std::size_t>(plan.rank - 1);
  if (plan.steps[0][last] != plan.width[0] || plan.sizes[last] < 16 || plan.numel < kTileRows * kTileCols) return {};
  Turned turned{.dense = last};
  for (std::size_t k = 1; k < static_cast<std::size_t>(plan.operands); ++k) {
    if (plan.steps[k][last] == plan.width[k] || plan.steps[k][last] == 0) continue;
    for (std::size_t d = 0; d < last; ++d) {
      const bool fits = plan.steps[k][d] == plan.width[k] && plan.sizes[d] >= 16;
      if (!fits || (turned.dense != last && turned.dense != d)) continue;
      turned.dense = d;
      turned.is[k] = true;
    }
  }
  return turned.dense == last ? std::nullopt : std::optional(turned);
}

void turn(const Cpu& on, int width, const char* from, std::int64_t step, char* to, std::int64_t rows,
          std::int64_t cols) {
  const auto run = [&]<class U>(U) {
    cpu::transpose_strip<U>(on, reinterpret_cast<const U*>(from), step / width, reinterpret_cast<U*>(to), kTileCols,
                            rows, cols);
  };
  if (width == 8) run(double{});
  if (width == 4) run(float{});
  if (width == 2) run(std::uint16_t{});
  if (width == 1) run(std::uint8_t{});
}

// As run_rows, with turned operands.
void run_tiles(const Cpu& on, PointwiseLoop loop, const void* functor, const PointwisePlan& plan, const Turned& turned,
               std::int64_t grain) {
  const auto last = static_cast<std::size_t>(plan.rank - 1);
  const auto operands = static_cast<std::size_t>(plan.operands);
  const std::int64_t inner = plan.sizes[last], height = plan.sizes[turned.dense];
  const std::int64_t strips = (height + kTileRows - 1) / kTileRows;
  std::int64_t step[kMaxOperands];
  for (std::size_t k = 0; k < operands; ++k) step[k] = turned.is[k] ? plan.width[k] : plan.steps[k][last];
  How how(plan, step);
  // A line that two tiles share would be written to memory twice.
  how.streams = how.streams && inner * plan.width[0] % 64 == 0;
  const std::int64_t tasks = plan.numel / inner / height * strips;
  on.parallel_for(tasks, std::max<std::int64_t>(1, grain / (kTileRows * inner)), [&](auto begin, auto end) {
    const Streaming all_seen;
    constexpr std::int64_t kTile = kTileRows * kTileCols * 8;
    const lib::Scratch tiles(operands * static_cast<std::size_t>(kTile));
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t first = task % strips * kTileRows, rows = std::min(kTileRows, height - first);
      char* start[kMaxOperands];
      for (std::size_t k = 0; k < operands; ++k) {
        start[k] = plan.data[k] + first * plan.steps[k][turned.dense];
        std::int64_t rest = task / strips;
        for (std::size_t d = last; d-- > 0;) {
          if (d == turned.dense) continue;
          start[k] += rest % plan.sizes[d] * plan.steps[k][d];
          rest /= plan.sizes[d];
        }
      }
      for (std::int64_t col = 0; col < inner; col += kTileCols) {
        const std::int64_t cols = std::min(kTileCols, inner - col);
        char* p[kMaxOperands];
        std::int64_t row_step[kMaxOperands];
        for (std::size_t k = 0; k < operands; ++k) {
          p[k] = start[k] + col * plan.steps[k][last];
          row_step[k] = plan.steps[k][turned.dense];
          if (!turned.is[k]) continue;
          char* const tile = tiles.as<char>() + static_cast<std::int64_t>(k) * kTile;
          turn(on, plan.width[k], p[k], plan.steps[k][last], tile, rows, cols);
          p[k] = tile;
          row_step[k] = kTileCols * plan.width[k];
        }
        for (std::int64_t row = 0; row < rows; ++row) {
          run_row(on, loop, functor, plan, how, p, step, cols);
          for (std::size_t k = 0; k < operands; ++k) p[k] += row_step[k];
        }
      }
    }
  });
}

// Rows of few elements, several as one: what repeats from row to row is written out for kManyBytes of them, so that the
// loop is called for long rows. `room`: memory for that.
constexpr std::int64_t kManyBytes = 2048;
struct alignas(64) ManyRows {
  char room[kMaxOperands][kManyBytes];
};
// Rows that fit together, or 1 where an operand is neither dense nor one row that repeats.
std::int64_t rows_together(const PointwisePlan& plan) {
  if (plan.rank != 2) return 1;
  const std::int64_t inner = plan.sizes[1];
  std::int64_t together = plan.sizes[0];
  for (std::size_t k = 0; k < static_cast<std::size_t>(plan.operands); ++k) {
    const std::int64_t width = plan.width[k];
    if (plan.steps[k][1] != width || (plan.steps[k][0] != inner * width && plan.steps[k][0] != 0)) return 1;
    together = std::min(together, kManyBytes / (inner * width));
  }
  return std::max<std::int64_t>(1, together);
}

}  // namespace

void PointwisePlan::add(void* p, const Shape& common, const Shape& shape, const Strides& strides, DType dtype) {
  const auto k = static_cast<std::size_t>(operands++);
  rank = common.rank();
  numel = common.numel();
  const auto size = static_cast<std::int64_t>(itemsize(dtype));
  data[k] = static_cast<char*>(p);
  width[k] = static_cast<std::uint8_t>(size);
  half[k] = dtype == DType::f16 ? Half::f16 : dtype == DType::bf16 ? Half::bf16 : Half::no;
  const int lead = common.rank() - shape.rank();
  for (int d = 0; d < common.rank(); ++d) {
    const auto i = static_cast<std::size_t>(d);
    sizes[i] = common[d];
    steps[k][i] = d < lead || shape[d - lead] == 1 ? 0 : strides[d - lead] * size;
  }
}

// By falling steps of the output, equal ones as they were.
void PointwisePlan::follow_output() {
  const auto distance = [this](std::size_t d) { return std::abs(steps[0][d]); };
  bool follows = true;
  for (std::size_t d = 1; d < static_cast<std::size_t>(rank); ++d)
    follows = follows && (distance(d - 1) >= distance(d) || sizes[d - 1] == 1);
  if (follows) return;
  for (std::size_t d = 1; d < static_cast<std::size_t>(rank); ++d) {
    for (std::size_t i = d; i > 0 && distance(i - 1) < distance(i); --i) {
      std::swap(sizes[i - 1], sizes[i]);
      for (std::size_t k = 0; k < static_cast<std::size_t>(operands); ++k) std::swap(steps[k][i - 1], steps[k][i]);
    }
  }
}

void PointwisePlan::collapse() {
  if (numel == 0) return;  // strides of what is empty may be anything
  follow_output();
  int kept = 0;
  for (int d = 0; d < rank; ++d) {
    const auto from = static_cast<std::size_t>(d);
    if (sizes[from] == 1) continue;
    bool merges = kept > 0;
    for (std::size_t k = 0; merges && k < static_cast<std::size_t>(operands); ++k) {
      merges = steps[k][static_cast<std::size_t>(kept - 1)] == steps[k][from] * sizes[from];
    }
    const auto to = static_cast<std::size_t>(merges ? kept - 1 : kept++);
    sizes[to] = merges ? sizes[to] * sizes[from] : sizes[from];
    for (std::size_t k = 0; k < static_cast<std::size_t>(operands); ++k) steps[k][to] = steps[k][from];
  }
  rank = kept;
}

void run_pointwise_row(const Cpu& on, PointwiseLoop loop, const void* functor, const PointwisePlan& plan,
                       std::int64_t grain) {
  std::int64_t step[kMaxOperands];
  for (int k = 0; k < plan.operands; ++k) step[k] = plan.steps[static_cast<std::size_t>(k)][0];
  How how(plan, step);
  if (plan.numel <= grain) {
    how.streams = false;
    return run_row(on, loop, functor, plan, how, plan.data.data(), step, plan.numel);
  }
  on.parallel_for(plan.numel, grain, [&](std::int64_t begin, std::int64_t end) {
    const Streaming all_seen;
    char* p[kMaxOperands];
    for (int k = 0; k < plan.operands; ++k) p[k] = plan.data[static_cast<std::size_t>(k)] + begin * step[k];
    run_row(on, loop, functor, plan, how, p, step, end - begin);
  });
}

void run_pointwise(const Cpu& on, PointwiseLoop loop, const void* functor, const PointwisePlan& plan,
                   std::int64_t grain) {
  if (plan.numel == 0) return;
  if (plan.rank <= 1) {
    PointwisePlan row = plan;
    if (plan.rank == 0) row.steps = {};
    return run_pointwise_row(on, loop, functor, row, grain);
  }
  if (const std::int64_t together = rows_together(plan); together > 1) {
    ManyRows many;
    PointwisePlan joined = plan, rest = plan;
    const std::int64_t inner = plan.sizes[1], done = plan.sizes[0] / together * together;
    joined.sizes[0] = done / together;
    joined.sizes[1] = inner * together;
    joined.numel = done * inner;
    rest.sizes[0] -= done;
    rest.numel -= joined.numel;
    for (std::size_t k = 0; k < static_cast<std::size_t>(plan.operands); ++k) {
      const std::int64_t bytes = inner * plan.width[k];
      rest.data[k] += done * plan.steps[k][0];
      joined.steps[k][0] = together * plan.steps[k][0];
      if (plan.steps[k][0] != 0) continue;
      joined.data[k] = many.room[k];
      for (std::int64_t r = 0; r < together; ++r)
        std::memcpy(many.room[k] + r * bytes, plan.data[k], static_cast<std::size_t>(bytes));
    }
    run_rows(on, loop, functor, joined, grain);
    return run_rows(on, loop, functor, rest, grain);
  }
  if (const std::optional<Turned> turned = turned_operands(plan))
    return run_tiles(on, loop, functor, plan, *turned, grain);
  run_rows(on, loop, functor, plan, grain);
}

}  // namespace levin::kernels
