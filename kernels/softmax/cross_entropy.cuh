#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_CROSS_ENTROPY_CUH
#define LEVIN_KERNELS_CROSS_ENTROPY_CUH
// Cross-entropy of logits x [rows, cols] (contiguous) with class indices target [rows]; e = label_smoothing:
//   row = w[t] * (1 - e) * (lse - x[t]) + e / cols * sum_c w[c] * (lse - x[c]),   0 where t == ignore_index
//   out: none [rows]: row;   sum [1]: the sum of rows;   mean [1]: sum / weight,  weight = sum of w[t] not ignored
//   cross_entropy(on, const T* x, const std::int64_t* target, const A* class_weight, A* out, A* lse, A* weight,
//                 rows, cols, std::int64_t ignore_index, double label_smoothing, Reduction)
//     T: float, double, f16, bf16; A = Accum<T>: the losses are not rounded to T. class_weight: [cols] or null (all 1);
//     lse: [rows], weight: [1], both always written.
//     Every target is in [0, cols) or equals ignore_index: the op checks with first_bad_target.
//     All rows ignored: mean is NaN, as in PyTorch.
//   cross_entropy_backward(on, const A* gy, const T* x, const std::int64_t* target, const A* class_weight,
//                          const A* lse, const A* weight, T* gx, rows, cols, ignore_index, label_smoothing, Reduction)
//     gy: [rows] for none, else [1]; gx: [rows, cols].
//   cross_entropy_chunk(on, T* x, const std::int64_t* target, const A* class_weight, LossTotals* totals, A* out,
//                       A* lse, A* weight, rows, cols, ignore_index, label_smoothing, Reduction, Logits, A scale)
//     Rows of a loss over several chunks of rows, for sum and mean: adds the chunk's sums to totals, and writes loss
//     and weight of all rows so far. Logits::become_slopes overwrites x with scale * d(sum of the rows' losses) / dx.
//   scale_slopes(on, const A* sums, T* out, n, cols, target, const A* gy, const A* weight, const LossTotals* totals,
//                classes, ignore_index, A scale)
//     out = sums * gy / weight / scale, [n / cols, cols]; gy [1] and weight [1] null: 1. It is 0 where no row of totals
//     counts, and, with a target for each row of out, where that is ignored.
//   first_bad_target(on, const std::int64_t* target, rows, cols, ignore_index): its row, or -1
// On a device a target is checked by the kernel: see Note [Errors that kernels find]. cross_entropy and
// cross_entropy_chunk take the op's name for that, and parts, 3 * cross_entropy_teams<T>(rows, cols) doubles of scratch
// memory. Logits are read once, also where they are overwritten, if a row fits on the chip.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/device/last_block.cuh"
#include "kernels/device/strided.cuh"
#include "kernels/executor/gpu.h"
#include "kernels/softmax/softmax.cuh"

namespace levin::kernels {
enum class Reduction : uint8_t { none, sum, mean };
// What cross_entropy_chunk leaves in the place of the logits.
enum class Logits : uint8_t { stay, become_slopes };
// Sums over the rows of all chunks so far: losses, weights of targets, rows that are not ignored.
struct LossTotals {
  double loss, weight, counted;
};
}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/softmax/cross_entropy.cuh"
#include "kernels/executor/each_level.h"

#include "kernels/executor/pick_halves.h"

namespace levin::kernels::gpu {

// What a row's target asks for.
template <class T>
struct Smoothed {
  using A = Accum<T>;
  std::int64_t ignore_index;
  A rest, smooth;  // 1 - e and e / cols

  Smoothed(std::int64_t ignore, double e, std::int64_t cols)
      : ignore_index(ignore), rest(static_cast<A>(1 - e)), smooth(static_cast<A>(e / static_cast<double>(cols))) {}
  __device__ bool counts(std::int64_t t, std::int64_t cols) const { return t != ignore_index && t >= 0 && t < cols; }
};

// Blocks of cross_entropy_rows for teams of at most a warp: as many as work at once, since all have as many rows.
inline constexpr int kSmallTeamBlocks = 6;  // of a processor: each thread has 80 registers
// In f64 ptxas aims at more blocks at once than their registers allow, and spills; 0 leaves it to ptxas.
template <class T, int kThreads>
inline constexpr int kLeastBlocks = std::is_same_v<T, double> ? 1
                                    : kThreads <= 32          ? kSmallTeamBlocks
                                                              : 0;

// Adds parts [count] to `all`, by one block; thread 0 has the result.
template <int kThreads>
__device__ LossTotals joined_parts(const LossTotals* parts, std::int64_t count, LossTotals all) {
  LEVIN_SHARED(double, scratch, kThreads / 32);
  LossTotals own{0, 0, 0};
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
    own.loss += parts[i].loss;
    own.weight += parts[i].weight;
    own.counted += parts[i].counted;
  }
  all.loss += block_sum<kThreads>(own.loss, scratch);
  all.weight += block_sum<kThreads>(own.weight, scratch);
  all.counted += block_sum<kThreads>(own.counted, scratch);
  return all;
}
template <class A>
__device__ void put_losses(const LossTotals& all, A* out, A* weight, Reduction reduction) {
  *weight = A(all.weight);
  if (reduction == Reduction::sum) *out = A(all.loss);
  if (reduction == Reduction::mean) *out = A(all.loss / all.weight);
}

// The loss of a row, for all threads of its team: total = log(sum of exp(x)). The row's target and its logit are loaded
// before the others, which then hide the wait for them.
template <class T, int kThreads>
struct RowLoss {
  using A = Accum<T>;
  using Of = Team<kThreads>;
  std::int64_t target;
  bool counted;
  A own_logit, loss = 0, weight = 0, total;

  __device__ __forceinline__ RowLoss(const RowPart<T, kThreads>& row, std::int64_t t, std::int64_t cols, const A* w,
                                     const Smoothed<T>& s)
      : target(t), counted(s.counts(t, cols)), own_logit(counted ? A(row.in[t]) : A(0)) {
    constexpr int V = kVec<T>;
    ExpSum<T> own;
    each_first(row, [&](std::int64_t, const Vec<T>& v) { own.add(v); });
    const ExpSum<T> all = own.template over<Of>();
    const A log = ::log(all.sum);
    total = all.top + log;
    if (counted) {
      weight = w != nullptr ? w[t] : A(1);
      loss = s.rest * weight * ((all.top - own_logit) + log);  // total - x[t] would lose the bits of a small loss
    }
    if (s.smooth == 0) return;
    A others = 0;
    each_chunk<kThreads, 2>(row.plan, [&](std::int64_t c) {
      const auto v = widened(row.again(c));
      const Parameters<V, A> of(w, c * V, cols, row.plan.vectors, A(1));
#pragma unroll
      for (int j = 0; j < V; ++j)
        if (c * V + j < cols) others += (total - v[j]) * of.v[j];
    });
    others = Of::reduce(others, Plus{});
    if (counted) loss += s.smooth * others;
  }
};

// A team a row; the logits are read once where a row fits on the chip, or no class is smoothed. Each block goes over
// rows and leaves its sums in parts [blocks], which the last block adds up. A target that is no class is reported, and
// its row counts as ignored.
template <class T, int kThreads>
__global__ __launch_bounds__(Team<kThreads>::kBlock, kLeastBlocks<T, kThreads>) void cross_entropy_rows(
    const T* x, const std::int64_t* target, const Accum<T>* w, Accum<T>* out, Accum<T>* lse, Accum<T>* all_weights,
    LossTotals* parts, unsigned* ticket, std::int64_t rows, std::int64_t cols, Smoothed<T> s, Reduction reduction,
    RowPlan plan, levin::detail::FaultSlot* faults, const char* op) {
  using Of = Team<kThreads>;
  LEVIN_SHARED_DYNAMIC(Vec<T>, shared);
  const std::int64_t team = std::int64_t{blockIdx.x} * Of::kRows + Of::row();
  LossTotals sums{0, 0, 0};
  for (std::int64_t r = team; r < rows; r += std::int64_t{gridDim.x} * Of::kRows) {
    const RowLoss<T, kThreads> of(
        RowPart<T, kThreads>(x + r * cols, cols, plan, shared + Of::row() * plan.chunks, T(lowest<float>())), target[r],
        cols, w, s);
    sums.loss += double(of.loss);
    sums.weight += double(of.weight);
    if (Of::rank() != 0) continue;
    lse[r] = of.total;
    if (reduction == Reduction::none) out[r] = of.loss;
    if (!of.counted && of.target != s.ignore_index) report_index(faults, op, of.target, cols);
  }
  if constexpr (Of::kRows > 1) {
    if (Of::rank() != 0) sums = {0, 0, 0};
    LEVIN_SHARED(double, scratch, Of::kBlock / 32);
    sums.loss = block_sum<Of::kBlock>(sums.loss, scratch);
    sums.weight = block_sum<Of::kBlock>(sums.weight, scratch);
  }
  if (threadIdx.x == 0) parts[team / Of::kRows] = sums;  // with blockIdx.x for the quotient ptxas spills
  if (!is_last_block(ticket, gridDim.x)) return;
  const LossTotals all = joined_parts<Of::kBlock>(parts, gridDim.x, {0, 0, 0});
  if (threadIdx.x == 0) put_losses(all, out, all_weights, reduction);
}

// Blocks of cross_entropy_chunk_rows that shall share a processor: each thread then has 80 registers, of double more.
template <class T, int kThreads>
inline constexpr int kChunkBlocks = std::is_same_v<T, double> ? 1 : 768 / Team<kThreads>::kBlock;
// The same for one chunk of the rows of a loss. A row that becomes slopes is kept on the chip between the two passes
// over it. A team's sums stay in memory, which saves registers. Rows of any length take at most kRowThreads: 1024
// threads would have too few registers.
template <class T, int kThreads>
__global__ __launch_bounds__(Team<kThreads>::kBlock, kChunkBlocks<T, kThreads>) void cross_entropy_chunk_rows(
    T* x, const std::int64_t* target, const Accum<T>* w, LossTotals* totals, Accum<T>* out, Accum<T>* lse,
    Accum<T>* all_weights, LossTotals* parts, unsigned* ticket, std::int64_t rows, std::int64_t cols, Smoothed<T> s,
    Reduction reduction, Logits logits, Accum<T> scale, RowPlan plan, levin::detail::FaultSlot* faults,
    const char* op) {
  using A = Accum<T>;
  using Of = Team<kThreads>;
  constexpr int V = kVec<T>;
  LEVIN_SHARED_DYNAMIC(Vec<T>, shared);
  A every = A(cols);  // the weights of all classes
  if (w != nullptr && s.smooth != 0) {
    every = 0;
    for (std::int64_t c = Of::rank(); c < cols; c += kThreads) every += w[c];
    every = Of::reduce(every, Plus{});
  }
  const std::int64_t team = std::int64_t{blockIdx.x} * Of::kRows + Of::row();
  if (Of::rank() == 0) parts[team] = {0, 0, 0};
  for (std::int64_t r = team; r < rows; r += std::int64_t{gridDim.x} * Of::kRows) {
    const RowPart<T, kThreads> row(x + r * cols, cols, plan, shared + Of::row() * plan.chunks, T(lowest<float>()));
    const RowLoss<T, kThreads> of(row, target[r], cols, w, s);
    if (Of::rank() == 0) {
      LossTotals& sums = parts[team];
      sums.loss += double(of.loss);
      sums.weight += double(of.weight);
      sums.counted += of.counted ? 1 : 0;
      lse[r] = of.total;
      if (!of.counted && of.target != s.ignore_index) report_index(faults, op, of.target, cols);
    }
    if (logits == Logits::stay) continue;
    T* const out_row = x + r * cols;
    const A own = scale * s.rest * of.weight, even = scale * s.smooth, both = own + even * every;
    each_chunk<kThreads, 2>(plan, [&](std::int64_t c) {
      Widened<T, V> v{};
      if (of.counted) {
        v = widened(row.again(c));
#pragma unroll
        for (int j = 0; j < V; ++j) v[j] = exp_of<T>(v[j] - of.total) * both;
        if (even != 0) {
          const Parameters<V, A> share(w, c * V, cols, plan.vectors, A(1));
#pragma unroll
          for (int j = 0; j < V; ++j) v[j] -= even * share.v[j];
        }
      }
      write_chunk(out_row, c * V, cols, plan.vectors, narrowed(v));
    });
    // The thread that wrote the target's slope writes it again.
    if (of.counted && of.target / V % kThreads == Of::rank())
      out_row[of.target] = T(exp_of<T>(of.own_logit - of.total) * both - even * of.weight - own);
  }
  if (!is_last_block(ticket, gridDim.x)) return;
  const LossTotals all = joined_parts<Of::kBlock>(parts, std::int64_t{gridDim.x} * Of::kRows, *totals);
  if (threadIdx.x != 0) return;
  *totals = all;
  put_losses(all, out, all_weights, reduction);
}

// A vector of `out` a thread in a grid-stride loop.
inline constexpr int kScaleThreads = 256;
template <class T>
__global__ __launch_bounds__(kScaleThreads) void scale_slopes_flat(const Accum<T>* sums, T* out, std::int64_t n,
                                                                   Divider cols, const std::int64_t* target,
                                                                   const Accum<T>* gy, const Accum<T>* weight,
                                                                   const LossTotals* totals, std::int64_t classes,
                                                                   std::int64_t ignore_index, Accum<T> scale,
                                                                   bool vectors) {
  using A = Accum<T>;
  constexpr int V = kVec<T>;
  const bool any = totals == nullptr || totals->counted > 0;
  A factor = gy != nullptr ? *gy : A(1);
  if (weight != nullptr) factor /= *weight;
  factor /= scale;
  const auto row_counts = [&](std::int64_t t) { return t != ignore_index && t >= 0 && t < classes; };
  const std::int64_t chunks = (n + V - 1) / V;
  for (std::int64_t c = std::int64_t{blockIdx.x} * kScaleThreads + threadIdx.x; c < chunks;
       c += std::int64_t{gridDim.x} * kScaleThreads) {
    const Parameters<V, A> of(sums, c * V, n, vectors, A(0));
    Widened<T, V> v;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const std::int64_t i = c * V + j;
      const bool counted = any && (target == nullptr || i >= n || row_counts(target[cols.quotient(i)]));
      v[j] = counted ? of.v[j] * factor : A(0);
    }
    write_chunk(out, c * V, n, vectors, narrowed(v));
  }
}

// gx = (softmax(x) s - q) gy, where q are the shares of the classes in a row's target and s is their sum.
template <class T, int kThreads>
__global__ __launch_bounds__(Team<kThreads>::kBlock) void cross_entropy_rows_backward(
    const Accum<T>* gy, const T* x, const std::int64_t* target, const Accum<T>* w, const Accum<T>* lse,
    const Accum<T>* weight, T* gx, std::int64_t rows, std::int64_t cols, Smoothed<T> s, RowPlan plan,
    Reduction reduction) {
  using A = Accum<T>;
  using Of = Team<kThreads>;
  constexpr int V = kVec<T>;
  A all = A(cols);
  if (w != nullptr && s.smooth != 0) {
    all = 0;
    for (std::int64_t c = Of::rank(); c < cols; c += kThreads) all += w[c];
    all = Of::reduce(all, Plus{});
  }
  for (std::int64_t r = std::int64_t{blockIdx.x} * Of::kRows + Of::row(); r < rows;
       r += std::int64_t{gridDim.x} * Of::kRows) {
    const std::int64_t t = target[r];
    const bool counted = s.counts(t, cols);
    A own = 0, scale = 0, even = 0;
    const A total = lse[r];
    if (counted) {
      A up = gy[reduction == Reduction::none ? r : 0];
      if (reduction == Reduction::mean) up /= *weight;
      own = up * s.rest * (w != nullptr ? w[t] : A(1));
      even = up * s.smooth;
      scale = own + even * all;
    }
    each_chunk<kThreads>(plan, [&](std::int64_t c) {
      Widened<T, V> v;
      if (counted) {
        v = widened(read_chunk(x + r * cols, c * V, cols, plan.vectors, T(0.0f)));
        const Parameters<V, A> of(even == 0 ? nullptr : w, c * V, cols, plan.vectors, A(1));
#pragma unroll
        for (int j = 0; j < V; ++j) {
          const A smooth = even == 0 ? A(0) : even * of.v[j];
          v[j] = exp_of<T>(v[j] - total) * scale - smooth - (c * V + j == t ? own : A(0));
        }
      } else {
#pragma unroll
        for (int j = 0; j < V; ++j) v[j] = 0;
      }
      write_chunk(gx + r * cols, c * V, cols, plan.vectors, narrowed(v));
    });
  }
}

inline constexpr std::int64_t kLossBlocks = 132 * 16;
// Of a block of cross_entropy_rows for long rows: two blocks share a processor, so one reads while the other sums up.
inline constexpr int kLossThreads = 512;
// At least one block, which finishes a sum over no rows.
template <int kThreads>
[[nodiscard]] Grid loss_grid(const RowPlan& plan, std::int64_t rows, std::int64_t most_blocks = kLossBlocks) {
  return row_grid<kThreads>(plan, std::max<std::int64_t>(rows, 1), 1, most_blocks);
}
// Parts of cross_entropy_chunk for the shape, a team's each, where a team is a block or a warp, whatever a block's
// size; and at least those of cross_entropy, a block's each. A part has three numbers.
template <class T>
[[nodiscard]] std::int64_t cross_entropy_teams(std::int64_t rows, std::int64_t cols) {
  std::int64_t teams = 0;
  with_team<T, kLossThreads>(cols, [&]<int kThreads>(std::integral_constant<int, kThreads>) {
    teams =
        std::int64_t{loss_grid<kThreads>(plan_rows<T, kThreads>(cols, 1, {}), rows).blocks.x} * Team<kThreads>::kRows;
  });
  return teams;
}
template <class T>
void cross_entropy(const Gpu& on, const char* op, const T* x, const std::int64_t* target, const Accum<T>* class_weight,
                   Accum<T>* out, Accum<T>* lse, Accum<T>* weight, double* parts, std::int64_t rows, std::int64_t cols,
                   std::int64_t ignore_index, double label_smoothing, Reduction reduction) {
  with_team<T, kLossThreads, kShortRowThreads, kFewLanes>(
      cols, [&]<int kThreads>(std::integral_constant<int, kThreads>) {
        RowPlan plan = plan_rows<T, kThreads>(cols, 1, {x, class_weight});
        plan.keeps = plan.keeps && label_smoothing != 0;
        const Grid grid = loss_grid<kThreads>(plan, rows, kThreads <= 32 ? 132 * kSmallTeamBlocks : kLossBlocks);
        on.launch(cross_entropy_rows<T, kThreads>, grid, x, target, class_weight, out, lse, weight,
                  reinterpret_cast<LossTotals*>(parts), on.tickets(), rows, cols,
                  Smoothed<T>(ignore_index, label_smoothing, cols), reduction, plan, on.faults(), op);
      });
}
template <class T>
void cross_entropy_chunk(const Gpu& on, const char* op, T* x, const std::int64_t* target, const Accum<T>* class_weight,
                         LossTotals* totals, Accum<T>* out, Accum<T>* lse, Accum<T>* weight, double* parts,
                         std::int64_t rows, std::int64_t cols, std::int64_t ignore_index, double label_smoothing,
                         Reduction reduction, Logits logits, Accum<T> scale) {
  with_team<T, kRowThreads, kRowThreads>(cols, [&]<int kThreads>(std::integral_constant<int, kThreads>) {
    RowPlan plan = plan_rows<T, kThreads>(cols, 1, {x, class_weight});
    plan.keeps = plan.keeps && (label_smoothing != 0 || logits == Logits::become_slopes);
    on.launch(cross_entropy_chunk_rows<T, kThreads>, loss_grid<kThreads>(plan, rows), x, target, class_weight, totals,
              out, lse, weight, reinterpret_cast<LossTotals*>(parts), on.tickets(), rows, cols,
              Smoothed<T>(ignore_index, label_smoothing, cols), reduction, logits, scale, plan, on.faults(), op);
  });
}
template <class T>
void scale_slopes(const Gpu& on, const Accum<T>* sums, T* out, std::int64_t n, std::int64_t cols,
                  const std::int64_t* target, const Accum<T>* gy, const Accum<T>* weight, const LossTotals* totals,
                  std::int64_t classes, std::int64_t ignore_index, Accum<T> scale) {
  constexpr int V = kVec<T>;
  const bool vectors = n % V == 0 && aligned16(sums) && aligned16(out);
  const std::int64_t blocks = (n + V * kScaleThreads - 1) / (V * kScaleThreads);
  on.launch(
      scale_slopes_flat<T>,
      Grid{.blocks = static_cast<unsigned>(std::min<std::int64_t>(blocks, kLossBlocks)), .threads = kScaleThreads},
      sums, out, n, Divider(std::max<std::int64_t>(cols, 1)), target, gy, weight, totals, classes, ignore_index, scale,
      vectors);
}
template <class T>
void cross_entropy_backward(const Gpu& on, const Accum<T>* gy, const T* x, const std::int64_t* target,
                            const Accum<T>* class_weight, const Accum<T>* lse, const Accum<T>* weight, T* gx,
                            std::int64_t rows, std::int64_t cols, std::int64_t ignore_index, double label_smoothing,
                            Reduction reduction) {
  with_team<T, kLongRowThreads, kRowThreads, kFewLanes>(cols, [&]<int kThreads>(std::integral_constant<int, kThreads>) {
    const RowPlan plan = plan_rows<T, kThreads>(cols, 0, {x, class_weight, gx});
    on.launch(cross_entropy_rows_backward<T, kThreads>, row_grid<kThreads>(plan, rows, 0, kLossBlocks), gy, x, target,
              class_weight, lse, weight, gx, rows, cols, Smoothed<T>(ignore_index, label_smoothing, cols), plan,
              reduction);
  });
}

}  // namespace levin::kernels::gpu

namespace levin::kernels::cpu {
LEVIN_PICK_HALVES(cross_entropy)
LEVIN_PICK_HALVES(cross_entropy_backward)
LEVIN_PICK_HALVES(cross_entropy_chunk)
LEVIN_PICK_HALVES(scale_slopes)

inline std::int64_t first_bad_target(const Cpu&, const std::int64_t* target, std::int64_t rows, std::int64_t cols,
                                     std::int64_t ignore_index) {
  for (std::int64_t r = 0; r < rows; ++r)
    if (target[r] != ignore_index && (target[r] < 0 || target[r] >= cols)) return r;
  return -1;
}
}  // namespace levin::kernels::cpu
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// The arguments of a row's loss. `smooth` is e / cols, `every` the sum of all weights.
template <class T>
struct Smoothing {
  using A = Accum<T>;
  const A* w;
  std::int64_t cols, ignore_index;
  A smooth, rest, every;
  Smoothing(const A* w_, std::int64_t cols_, std::int64_t ignore, double e)
      : w(w_),
        cols(cols_),
        ignore_index(ignore),
        smooth(A(e / double(cols_))),
        rest(A(1 - e)),
        every(w_ != nullptr ? row_sum(w_, cols_) : A(cols_)) {}
  A weight(std::int64_t t) const { return w != nullptr ? w[t] : A(1); }
};

// A row's loss, the weight of its target, and total = log(sum of exp(in)).
template <class T>
struct RowLoss {
  Accum<T> loss = 0, weight = 0, total = 0;
};
template <class T>
RowLoss<T> loss_of_row(const T* in, std::int64_t t, const Smoothing<T>& s) {
  using A = Accum<T>;
  const A top = row_max(in, s.cols);
  const A log = math::log(sum_of_exp(in, top, s.cols));
  const A total = top + log;
  RowLoss<T> row{.total = total};
  if (t == s.ignore_index) return row;
  row.weight = s.weight(t);
  row.loss = s.rest * row.weight * ((top - A(in[t])) + log);  // total - x[t] would lose the bits of a small loss
  if (s.smooth == 0) return row;
  const A* const w = s.w;
  const A others =
      w != nullptr
          ? sum_terms<1, A>(
                s.cols, [=]<class V>(V, std::int64_t i) __attribute__((
                            always_inline)) { return Sums<V, 1>{{(total - load<V>(in + i)) * load<V>(w + i)}}; })
                .s[0]
          : sum_terms<1, A>(
                s.cols, [=]<class V>(V, std::int64_t i)
                            __attribute__((always_inline)) { return Sums<V, 1>{{total - load<V>(in + i)}}; })
                .s[0];
  row.loss += s.smooth * others;
  return row;
}

// g = up * d(a row's loss) / d in; g may be in. Probabilities that `up` makes subnormal become 0: the products of
// backward would take several times as long with them.
template <class T>
void slopes_of_row(const T* in, T* g, std::int64_t t, Accum<T> total, Accum<T> up, const Smoothing<T>& s) {
  using A = Accum<T>;
  const std::int64_t cols = s.cols;
  if (t == s.ignore_index) {
    for (std::int64_t c = 0; c < cols; ++c) g[c] = T(A(0));
    return;
  }
  const A* const w = s.w;
  const A own = up * s.rest * s.weight(t), even = up * s.smooth, scale = own + even * s.every;
  const A least = std::numeric_limits<A>::min();
  const A at_target = math::exp_nonpositive(A(in[t]) - total) * scale - even * s.weight(t) - own;
  if (w != nullptr)
#pragma GCC ivdep
    for (std::int64_t c = 0; c < cols; ++c) {
      const A p = math::exp_nonpositive(A(in[c]) - total) * scale;
      g[c] = T((std::abs(p) < least ? A(0) : p) - even * w[c]);
    }
  else
#pragma GCC ivdep
    for (std::int64_t c = 0; c < cols; ++c) {
      const A p = math::exp_nonpositive(A(in[c]) - total) * scale;
      g[c] = T((std::abs(p) < least ? A(0) : p) - even);
    }
  g[t] = T(at_target);
}

// body(row) for all rows, whose results are added up in an order that rows and cols alone give.
template <class T, class Body>
LossTotals sum_of_rows(const Cpu& on, std::int64_t rows, std::int64_t cols, const Body& body) {
  const std::int64_t grain = rows_at_once(cols);
  std::vector<LossTotals> parts(size_t((rows + grain - 1) / grain));
  on.parallel_for(rows, grain, [&](std::int64_t first, std::int64_t last) {
    LossTotals part{0, 0, 0};
    for (std::int64_t r = first; r < last; ++r) {
      const RowLoss<T> row = body(r);
      part.loss += double(row.loss);
      part.weight += double(row.weight);
    }
    parts[size_t(first / grain)] = part;
  });
  LossTotals all{0, 0, 0};
  for (const LossTotals& p : parts) all.loss += p.loss, all.weight += p.weight;
  return all;
}
template <class A>
void put_losses(const LossTotals& all, A* out, A* weight, Reduction reduction) {
  *weight = A(all.weight);
  if (reduction == Reduction::sum) *out = A(all.loss);
  if (reduction == Reduction::mean) *out = A(all.loss / all.weight);
}

template <class T>
void cross_entropy(const Cpu& on, const T* x, const std::int64_t* target, const Accum<T>* w, Accum<T>* out,
                   Accum<T>* lse, Accum<T>* weight, std::int64_t rows, std::int64_t cols, std::int64_t ignore_index,
                   double label_smoothing, Reduction reduction) {
  const Smoothing<T> s(w, cols, ignore_index, label_smoothing);
  const LossTotals all = sum_of_rows<T>(on, rows, cols, [&](std::int64_t r) {
    const RowLoss<T> row = loss_of_row(x + r * cols, target[r], s);
    lse[r] = row.total;
    if (reduction == Reduction::none) out[r] = row.loss;
    return row;
  });
  put_losses(all, out, weight, reduction);
}

template <class T>
void cross_entropy_chunk(const Cpu& on, T* x, const std::int64_t* target, const Accum<T>* w, LossTotals* totals,
                         Accum<T>* out, Accum<T>* lse, Accum<T>* weight, std::int64_t rows, std::int64_t cols,
                         std::int64_t ignore_index, double label_smoothing, Reduction reduction, Logits logits,
                         Accum<T> scale) {
  const Smoothing<T> s(w, cols, ignore_index, label_smoothing);
  const LossTotals all = sum_of_rows<T>(on, rows, cols, [&](std::int64_t r) {
    T* const row = x + r * cols;
    const RowLoss<T> of = loss_of_row(row, target[r], s);
    lse[r] = of.total;
    if (logits == Logits::become_slopes) slopes_of_row(row, row, target[r], of.total, scale, s);
    return of;
  });
  totals->loss += all.loss;
  totals->weight += all.weight;
  totals->counted += double(rows - std::count(target, target + rows, ignore_index));
  put_losses(*totals, out, weight, reduction);
}

template <class T>
void cross_entropy_backward(const Cpu& on, const Accum<T>* gy, const T* x, const std::int64_t* target,
                            const Accum<T>* w, const Accum<T>* lse, const Accum<T>* weight, T* gx, std::int64_t rows,
                            std::int64_t cols, std::int64_t ignore_index, double label_smoothing, Reduction reduction) {
  const Smoothing<T> s(w, cols, ignore_index, label_smoothing);
  on.parallel_for(rows, rows_at_once(cols), [=](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      Accum<T> up = gy[reduction == Reduction::none ? r : 0];
      if (reduction == Reduction::mean) up /= *weight;
      slopes_of_row(x + r * cols, gx + r * cols, target[r], lse[r], up, s);
    }
  });
}

template <class T>
void scale_slopes(const Cpu& on, const Accum<T>* sums, T* out, std::int64_t n, std::int64_t cols,
                  const std::int64_t* target, const Accum<T>* gy, const Accum<T>* weight, const LossTotals* totals,
                  std::int64_t classes, std::int64_t ignore_index, Accum<T> scale) {
  using A = Accum<T>;
  (void)classes;  // the op has checked the targets
  A factor = gy != nullptr ? *gy : A(1);
  if (weight != nullptr) factor /= *weight;
  factor /= scale;
  const bool any = totals == nullptr || totals->counted > 0;
  const auto run = [=](std::int64_t first, std::int64_t last, bool counted) {
    if (counted)
      each_vector<A>(
          last - first, [=]<class V>(V, std::int64_t i) __attribute__((always_inline)) {
            put(out + first + i, load<V>(sums + first + i) * factor);
          });
    else
      std::fill(out + first, out + last, T(A(0)));
  };
  if (target == nullptr || !any)
    return on.parallel_for(n, 65536, [=](std::int64_t first, std::int64_t last) { run(first, last, any); });
  if (cols == 0) return;
  on.parallel_for(n / cols, std::max<std::int64_t>(1, 65536 / cols), [=](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) run(r * cols, (r + 1) * cols, target[r] != ignore_index);
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
