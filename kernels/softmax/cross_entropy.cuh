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
//   first_bad_target(on, const std::int64_t* target, rows, cols, ignore_index): its row, or -1
// On a device a target is checked by the kernel: see Note [Errors that kernels find]. cross_entropy takes the op's name
// for that, and parts, 2 * cross_entropy_teams<T>(rows, cols) doubles of scratch memory.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/device/last_block.cuh"
#include "kernels/executor/gpu.h"
#include "kernels/softmax/softmax.cuh"

namespace levin::kernels {
enum class Reduction : uint8_t { none, sum, mean };
}

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

// In f64 ptxas aims at more blocks at once than their registers allow, and spills; 0 leaves it to ptxas.
template <class T>
inline constexpr int kLeastBlocks = std::is_same_v<T, double> ? 1 : 0;

// Sums over rows, by one block, from parts [teams, 2]: losses and weights.
template <int kThreads, class A>
__device__ void finish_losses(const double* parts, std::int64_t teams, A* out, A* weight, Reduction reduction) {
  LEVIN_SHARED(double, scratch, kThreads / 32);
  double loss = 0, shares = 0;
  for (std::int64_t i = threadIdx.x; i < teams; i += kThreads) {
    loss += parts[2 * i];
    shares += parts[2 * i + 1];
  }
  loss = block_sum<kThreads>(loss, scratch);
  shares = block_sum<kThreads>(shares, scratch);
  if (threadIdx.x != 0) return;
  *weight = A(shares);
  if (reduction == Reduction::sum) *out = A(loss);
  if (reduction == Reduction::mean) *out = A(loss / shares);
}

// A warp or a block a row; the logits are read once where a row fits on the chip, or no class is smoothed. Each team
// goes over rows and leaves the sum of their losses and of their weights in parts [teams, 2], which the last block adds
// up. A target that is no class is reported, and its row counts as ignored.
template <class T, int kThreads>
__global__ __launch_bounds__(Team<kThreads>::kBlock, kLeastBlocks<T>) void cross_entropy_rows(
    const T* x, const std::int64_t* target, const Accum<T>* w, Accum<T>* out, Accum<T>* lse, Accum<T>* all_weights,
    double* parts, unsigned* ticket, std::int64_t rows, std::int64_t cols, Smoothed<T> s, Reduction reduction,
    RowPlan plan, levin::detail::FaultSlot* faults, const char* op) {
  using A = Accum<T>;
  using Of = Team<kThreads>;
  constexpr int V = kVec<T>;
  LEVIN_SHARED_DYNAMIC(Vec<T>, shared);
  const std::int64_t team = std::int64_t{blockIdx.x} * Of::kRows + Of::row();
  double loss_sum = 0, weight_sum = 0;
  for (std::int64_t r = team; r < rows; r += std::int64_t{gridDim.x} * Of::kRows) {
    const RowPart<T, kThreads> row(x + r * cols, cols, plan, shared + Of::row() * plan.chunks, T(lowest<float>()));
    ExpSum<T> own;
    each_first(row, [&](std::int64_t, const Vec<T>& v) { own.add(v); });
    const ExpSum<T> all = own.template over<Of>();
    const A log = ::log(all.sum), total = all.top + log;
    const std::int64_t t = target[r];
    const bool counted = s.counts(t, cols);
    A loss = 0, weight = 0;
    if (counted) {
      weight = w != nullptr ? w[t] : A(1);
      loss =
          s.rest * weight * ((all.top - A(x[r * cols + t])) + log);  // lse - x[t] would lose the bits of a small loss
    }
    if (s.smooth != 0) {
      A others = 0;
      each_chunk<kThreads, 2>(plan, [&](std::int64_t c) {
        const auto v = widened(row.again(c));
        const Parameters<V, A> of(w, c * V, cols, plan.vectors, A(1));
#pragma unroll
        for (int j = 0; j < V; ++j)
          if (c * V + j < cols) others += (total - v[j]) * of.v[j];
      });
      others = Of::reduce(others, Plus{});
      if (counted) loss += s.smooth * others;
    }
    loss_sum += double(loss);
    weight_sum += double(weight);
    if (Of::rank() != 0) continue;
    lse[r] = total;
    if (reduction == Reduction::none) out[r] = loss;
    if (!counted && t != s.ignore_index) report_index(faults, op, t, cols);
  }
  if (Of::rank() == 0) {
    parts[2 * team] = loss_sum;
    parts[2 * team + 1] = weight_sum;
  }
  if (!is_last_block(ticket, gridDim.x)) return;
  finish_losses<Of::kBlock>(parts, std::int64_t{gridDim.x} * Of::kRows, out, all_weights, reduction);
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
// At least one block, which finishes a sum over no rows.
template <int kThreads>
[[nodiscard]] Grid loss_grid(const RowPlan& plan, std::int64_t rows) {
  return row_grid<kThreads>(plan, std::max<std::int64_t>(rows, 1), 1, kLossBlocks);
}
// Teams of cross_entropy for the shape: `parts` has two numbers each.
template <class T>
[[nodiscard]] std::int64_t cross_entropy_teams(std::int64_t rows, std::int64_t cols) {
  std::int64_t teams = 0;
  with_team<T>(cols, [&]<int kThreads>(std::integral_constant<int, kThreads>) {
    teams =
        std::int64_t{loss_grid<kThreads>(plan_rows<T, kThreads>(cols, 1, {}), rows).blocks.x} * Team<kThreads>::kRows;
  });
  return teams;
}
template <class T>
void cross_entropy(const Gpu& on, const char* op, const T* x, const std::int64_t* target, const Accum<T>* class_weight,
                   Accum<T>* out, Accum<T>* lse, Accum<T>* weight, double* parts, std::int64_t rows, std::int64_t cols,
                   std::int64_t ignore_index, double label_smoothing, Reduction reduction) {
  with_team<T>(cols, [&]<int kThreads>(std::integral_constant<int, kThreads>) {
    const RowPlan plan = plan_rows<T, kThreads>(cols, 1, {x, class_weight});
    on.launch(cross_entropy_rows<T, kThreads>, loss_grid<kThreads>(plan, rows), x, target, class_weight, out, lse,
              weight, parts, on.tickets(), rows, cols, Smoothed<T>(ignore_index, label_smoothing, cols), reduction,
              plan, on.faults(), op);
  });
}
template <class T>
void cross_entropy_backward(const Gpu& on, const Accum<T>* gy, const T* x, const std::int64_t* target,
                            const Accum<T>* class_weight, const Accum<T>* lse, const Accum<T>* weight, T* gx,
                            std::int64_t rows, std::int64_t cols, std::int64_t ignore_index, double label_smoothing,
                            Reduction reduction) {
  with_team<T>(cols, [&]<int kThreads>(std::integral_constant<int, kThreads>) {
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

template <class T>
void cross_entropy(const Cpu& on, const T* x, const std::int64_t* target, const Accum<T>* w, Accum<T>* out,
                   Accum<T>* lse, Accum<T>* weight, std::int64_t rows, std::int64_t cols, std::int64_t ignore_index,
                   double label_smoothing, Reduction reduction) {
  using A = Accum<T>;
  const A smooth = A(label_smoothing / double(cols)), rest = A(1 - label_smoothing);
  const std::int64_t grain = rows_at_once(cols);
  struct Part {
    double loss = 0, weight = 0;
  };
  std::vector<Part> parts(size_t((rows + grain - 1) / grain));
  on.parallel_for(rows, grain, [&](std::int64_t first, std::int64_t last) {
    Part part;
    for (std::int64_t r = first; r < last; ++r) {
      const T* const in = x + r * cols;
      const A top = row_max(in, cols);
      const A log = math::log(sum_of_exp(in, top, cols));
      const A total = top + log;
      lse[r] = total;
      const std::int64_t t = target[r];
      A loss = 0, own = 0;
      if (t != ignore_index) {
        own = w != nullptr ? w[t] : A(1);
        loss = rest * own * ((top - A(in[t])) + log);  // lse - x[t] would lose the bits of a small loss
        if (smooth != 0) {
          const A others =
              w != nullptr
                  ? sum_terms<1, A>(
                        cols, [=]<class V>(V, std::int64_t i) __attribute__((
                                  always_inline)) { return Sums<V, 1>{{(total - load<V>(in + i)) * load<V>(w + i)}}; })
                        .s[0]
                  : sum_terms<1, A>(
                        cols, [=]<class V>(V, std::int64_t i)
                                  __attribute__((always_inline)) { return Sums<V, 1>{{total - load<V>(in + i)}}; })
                        .s[0];
          loss += smooth * others;
        }
      }
      if (reduction == Reduction::none) out[r] = loss;
      part.loss += double(loss);
      part.weight += double(own);
    }
    parts[size_t(first / grain)] = part;
  });
  Part all;
  for (const Part& p : parts) all.loss += p.loss, all.weight += p.weight;
  *weight = A(all.weight);
  if (reduction == Reduction::sum) *out = A(all.loss);
  if (reduction == Reduction::mean) *out = A(all.loss / all.weight);
}

template <class T>
void cross_entropy_backward(const Cpu& on, const Accum<T>* gy, const T* x, const std::int64_t* target,
                            const Accum<T>* w, const Accum<T>* lse, const Accum<T>* weight, T* gx, std::int64_t rows,
                            std::int64_t cols, std::int64_t ignore_index, double label_smoothing, Reduction reduction) {
  using A = Accum<T>;
  const A smooth = A(label_smoothing / double(cols)), rest = A(1 - label_smoothing);
  const A all = w != nullptr ? row_sum(w, cols) : A(cols);
  on.parallel_for(rows, rows_at_once(cols), [=](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const T* const in = x + r * cols;
      T* const g = gx + r * cols;
      const std::int64_t t = target[r];
      if (t == ignore_index) {
        for (std::int64_t c = 0; c < cols; ++c) g[c] = T(A(0));
        continue;
      }
      A up = gy[reduction == Reduction::none ? r : 0];
      if (reduction == Reduction::mean) up /= *weight;
      const A own = up * rest * (w != nullptr ? w[t] : A(1));
      const A scale = own + up * smooth * all, total = lse[r], even = up * smooth;
      const A at_target = math::exp_nonpositive(A(in[t]) - total) * scale - even * (w != nullptr ? w[t] : A(1)) - own;
      if (w != nullptr)
#pragma GCC ivdep
        for (std::int64_t c = 0; c < cols; ++c) g[c] = T(math::exp_nonpositive(A(in[c]) - total) * scale - even * w[c]);
      else
#pragma GCC ivdep
        for (std::int64_t c = 0; c < cols; ++c) g[c] = T(math::exp_nonpositive(A(in[c]) - total) * scale - even);
      g[t] = T(at_target);
    }
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
