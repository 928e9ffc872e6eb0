// The device half of channel_norm.cuh: its contracts, on cuda and simt. Group norm's x and gx may have 16 bits
// (S) where y and gy are float: the bits are those of a float kernel between conversions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/norm/channel_norm.cuh"
#include "kernels/norm/channel_parts_device.cuh"

namespace levin::kernels::gpu {

// Note [Channel norms on a device]
// Batch norm, and group norm with each sample's groups or channels taken for the channels of one sample, are three
// steps: blocks sum parts of each channel, a few lanes of a warp add a channel's parts and write a row of four
// coefficients, and a pointwise pass computes gy * p + (x - m) * q + r. Few channels have many parts (3 have 352 each):
// of 32 parts or more a lane takes every 32nd, and the lanes join pair by pair, in an order that the shape alone
// decides. The block that comes last takes the second step (Note [The last block]), but where it has so many rows to
// write that further blocks repay a launch. A channel has few parts, so that this block reads few.
//
// Images in channels-last memory are rows of channels: [n * s, c, 1]. There a thread has the channels of one chunk, 16
// bytes, of every row that it meets, and 8 threads a line of 128 bytes. Each column of blocks has a last block.
//
// `y`, in all of them: the result of relu, or null. Gradients pass where it is above 0, as relu's own do.

// Gradients where relu let numbers pass.
template <class T, int V>
__device__ __forceinline__ void rectify(Vec<T, V>& g, const Vec<T, V>& y) {
#pragma unroll
  for (int j = 0; j < V; ++j) g[j] = T(Accum<T>(g[j]) * (Accum<T>(y[j]) > Accum<T>(0) ? Accum<T>(1) : Accum<T>(0)));
}

// parts: the mean of each part and the sum of squares around it. A thread takes its first number for a guess of the
// mean, so that the squares of a channel far from zero keep their digits. Blocks a multiprocessor: left alone, ptxas
// aims at more for rows and spills, and at fewer for channels.
template <class T, class S, int V, bool kColumns>
__global__ __launch_bounds__(kChannelThreads,
                             kColumns ? 2 : 4) void channel_moments(const S* x, double* parts, ChannelPlan plan,
                                                                    NormFinish<Accum<T>> finish, bool vectors) {
  using A = Accum<T>;
  using Of = ChannelTeam<kColumns, V>;
  constexpr int kOwn = Of::kOwn;
  LEVIN_SHARED(double, scratch, Of::kScratch);
  const Of of{plan};
  A guess[kOwn] = {}, sum[kOwn] = {}, square[kOwn] = {};
  std::int64_t count = 0;
  of.each([&](std::int64_t at) {
    const Vec<T, V> v = chunk_at<T, V>(x + at, vectors);
    if (count == 0) {
#pragma unroll
      for (int k = 0; k < kOwn; ++k) guess[k] = A(v[k]);
    }
    count += kColumns ? 1 : V;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const int k = kColumns ? j : 0;
      const A d = A(v[j]) - guess[k];
      sum[k] += d;
      square[k] += d * d;
    }
  });
  const std::int64_t elements = of.elements();
  double own[kOwn], mean[kOwn], around[kOwn];
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    const double shift = count > 0 ? double(sum[k] / A(count)) : 0.0;
    own[k] = double(guess[k]) + shift;
    around[k] = double(square[k]) - double(sum[k]) * shift;
    mean[k] = own[k] * double(count);
  }
  of.add_up(mean, scratch);
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    mean[k] = elements > 0 ? mean[k] / double(elements) : 0.0;
    around[k] += double(count) * (own[k] - mean[k]) * (own[k] - mean[k]);
  }
  of.add_up(around, scratch);
  of.leave(parts, mean, around);
  finish_last<kColumns, V>(finish, parts, plan);
}

// parts: the sums of gy and of gy * h, h = (x - mean) * rstd; mean and rstd have one element for `per` channels.
template <class T, class S, int V, bool kColumns, class Finish>
__global__ __launch_bounds__(kChannelThreads,
                             kColumns ? 2 : 4) void channel_sums(const T* gy, const S* x, const T* y,
                                                                 const Accum<T>* mean, const Accum<T>* rstd,
                                                                 std::int64_t per, double* parts, ChannelPlan plan,
                                                                 Finish finish, bool vectors) {
  using A = Accum<T>;
  using Of = ChannelTeam<kColumns, V>;
  constexpr int kOwn = Of::kOwn;
  LEVIN_SHARED(double, scratch, Of::kScratch);
  const Of of{plan};
  const std::int64_t first = of.channel();
  A mu[kOwn] = {}, scale[kOwn] = {}, of_g[kOwn] = {}, of_h[kOwn] = {};
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    if (first + k >= plan.c) continue;
    mu[k] = mean[(first + k) / per];
    scale[k] = rstd[(first + k) / per];
  }
  of.each([&](std::int64_t at) {
    Vec<T, V> g = chunk_at<T, V>(gy + at, vectors);
    const Vec<T, V> v = chunk_at<T, V>(x + at, vectors);
    if (y != nullptr) rectify(g, chunk_at<T, V>(y + at, vectors));
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const int k = kColumns ? j : 0;
      of_g[k] += A(g[j]);
      of_h[k] += A(g[j]) * ((A(v[j]) - mu[k]) * scale[k]);
    }
  });
  double a[kOwn], b[kOwn];
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    a[k] = double(of_g[k]);
    b[k] = double(of_h[k]);
  }
  of.add_up(a, scratch);
  of.add_up(b, scratch);
  of.leave(parts, a, b);
  finish_last<kColumns, V>(finish, parts, plan);
}

// forward: out = (x - m) * q + r, and `last`. backward: out = gy * p + (x - m) * q + r; x or y may be null.
enum class ApplyPass : std::uint8_t { forward, backward };

// Element j has the coefficients k[j * kStep].
template <ApplyPass kPass, int V, int kStep, class T, class S, class O>
__device__ __forceinline__ void apply_chunk(const T* gy, const S* x, const T* y, O* out, const Last<T>& last,
                                            std::int64_t at, bool vectors, const Coefficients<Accum<T>>* k) {
  using A = Accum<T>;
  A sum[V];
#pragma unroll
  for (int j = 0; j < V; ++j) sum[j] = k[j * kStep].r;
  if (kPass == ApplyPass::forward || x != nullptr) {
    const Vec<T, V> v = chunk_at<T, V>(x + at, vectors);
#pragma unroll
    for (int j = 0; j < V; ++j) sum[j] += (A(v[j]) - k[j * kStep].m) * k[j * kStep].q;
  }
  if constexpr (kPass == ApplyPass::backward) {
    Vec<T, V> g = chunk_at<T, V>(gy + at, vectors);
    if (y != nullptr) rectify(g, chunk_at<T, V>(y + at, vectors));
#pragma unroll
    for (int j = 0; j < V; ++j) sum[j] += A(g[j]) * k[j * kStep].p;
  } else if (last.residual != nullptr) {
    const Vec<T, V> more = chunk_at<T, V>(last.residual + at, vectors);
#pragma unroll
    for (int j = 0; j < V; ++j) sum[j] += A(more[j]);
  }
  const bool rectifies = kPass == ApplyPass::forward && last.rectify == Rectify::yes;
  Vec<O, V> v;
#pragma unroll
  for (int j = 0; j < V; ++j) v[j] = O(rectifies && sum[j] < A(0) ? A(0) : sum[j]);
  if (vectors) {
    store(out + at, v);
  } else {
#pragma unroll
    for (int j = 0; j < V; ++j) out[at + j] = v[j];
  }
}
// For [.., count, s]; `count` rows of coefficients repeat.
template <class T, class S, class O, int V, ApplyPass kPass>
__global__ __launch_bounds__(kChannelThreads) void channel_apply(const T* gy, const S* x, const T* y,
                                                                 const Coefficients<Accum<T>>* table, O* out,
                                                                 Last<T> last, std::int64_t items, Divider in_row,
                                                                 Divider count, bool vectors) {
  const std::int64_t step = std::int64_t{gridDim.x} * kChannelThreads;
  for (std::int64_t u = std::int64_t{blockIdx.x} * kChannelThreads + threadIdx.x; u < items; u += step) {
    const std::int64_t row = in_row.quotient(u);
    const Coefficients<Accum<T>> k = table[row - count.quotient(row) * static_cast<std::int64_t>(count.divisor)];
    apply_chunk<kPass, V, 0>(gy, x, y, out, last, u * V, vectors, &k);
  }
}
// For rows [rows, c] of channels, with the blocks of the plan.
template <class T, int V, ApplyPass kPass>
__global__ __launch_bounds__(kChannelThreads, 2) void column_apply(const T* gy, const T* x, const T* y,
                                                                   const Coefficients<Accum<T>>* table, T* out,
                                                                   Last<T> last, ChannelPlan plan, bool vectors) {
  const ChannelTeam<true, V> of{plan};
  Coefficients<Accum<T>> k[V];
#pragma unroll
  for (int j = 0; j < V; ++j)
    if (of.channel() + j < plan.c) k[j] = table[of.channel() + j];
  of.each([&](std::int64_t at) { apply_chunk<kPass, V, 1>(gy, x, y, out, last, at, vectors, k); });
}

template <class A>
__global__ void eval_coefficients(const A* w, const A* b, const A* mean, const A* var, A eps, Coefficients<A>* forward,
                                  Coefficients<A>* backward, A* rstd, std::int64_t c) {
  const std::int64_t j = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (j >= c) return;
  const A own = math::rsqrt(var[j] + eps), scale = own * or_else(w, j, A(1));
  if (forward != nullptr) forward[j] = {A(0), scale, or_else(b, j, A(0)), mean[j]};
  if (backward != nullptr) backward[j] = {scale, A(0), A(0), A(0)};
  if (rstd != nullptr) rstd[j] = own;
}
template <class A>
__global__ void variance_of_rstd(const A* mean, const A* rstd, A eps, double count, A* unbiased, Running<A> running,
                                 std::int64_t c) {
  const std::int64_t j = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (j >= c) return;
  const double r = double(rstd[j]), v = (1 / (r * r) - double(eps)) * (count / (count - 1));
  unbiased[j] = A(v < 0 ? 0.0 : v);  // a NaN stays one
  if (mean != nullptr) running.follow(j, mean[j], unbiased[j]);
}
// The plan has the channels of all samples for its channels, `width` of them a group of `elements`. A team a group.
template <class A>
__global__ void group_norm_coefficients(const double* parts, ChannelPlan plan, const A* w, const A* mean, const A* rstd,
                                        Coefficients<A>* table, LaneTeams teams, Divider width, std::int64_t c,
                                        std::int64_t elements) {
  const auto channels = static_cast<std::int64_t>(width.divisor);
  const std::int64_t k = teams.team(), row = k * channels, j = row % c;
  double shift = 0, slope = 0;
  teams.each(plan.parts * channels, [&](std::int64_t i) {
    const std::int64_t part = width.quotient(i), e = i - part * channels;
    const double weight = double(or_else(w, j + e, A(1))), *const at = parts + 2 * (part * plan.c + row + e);
    shift += weight * at[0];
    slope += weight * at[1];
  });
  shift = teams.joined(shift, Plus{});
  slope = teams.joined(slope, Plus{});
  if (k >= teams.count) return;
  const A scale = rstd[k], mu = mean[k], q = -A(slope / double(elements)) * scale * scale,
          r = -A(shift / double(elements)) * scale;
  teams.each(channels, [&](std::int64_t e) { table[row + e] = {scale * or_else(w, j + e, A(1)), q, r, mu}; });
}
// A team a channel of c, which each sample has.
template <class A>
__global__ void group_norm_gradients(const double* parts, ChannelPlan plan, A* gw, A* gb, LaneTeams teams,
                                     std::int64_t n, std::int64_t c) {
  const std::int64_t j = teams.team();
  double of_g = 0, of_h = 0;
  teams.each(plan.parts * n, [&](std::int64_t i) {
    const double* const at = parts + 2 * (i * c + j);  // a part has a row of plan.c = n * c pairs
    of_g += at[0];
    of_h += at[1];
  });
  of_g = teams.joined(of_g, Plus{});
  of_h = teams.joined(of_h, Plus{});
  if (j >= teams.count || teams.lane() != 0) return;
  if (gb != nullptr) gb[j] = A(of_g);
  if (gw != nullptr) gw[j] = A(of_h);
}

// ---- Launches. A kernel's V is kVec<T> where s is made of whole chunks, else 1.

inline constexpr int kCoefficientThreads = 128;
[[nodiscard]] inline Grid a_thread_each(std::int64_t rows) {
  return {.blocks = blocks_for(rows, kCoefficientThreads), .threads = kCoefficientThreads};
}
[[nodiscard]] inline Grid a_team_each(const LaneTeams& teams) { return a_thread_each(teams.count * teams.lanes()); }
template <class T, class F>
void with_chunk(const ChannelPlan& plan, F&& f) {
  const auto with = [&](auto v) { plan.columns ? f(v, std::true_type{}) : f(v, std::false_type{}); };
  if (plan.chunks)
    with(std::integral_constant<int, kVec<T>>{});
  else
    with(std::integral_constant<int, 1>{});
}
[[nodiscard]] inline Grid channel_grid(const ChannelPlan& plan, int v) {
  return {.blocks = {static_cast<unsigned>(plan.across_blocks(v)), static_cast<unsigned>(plan.parts), 1},
          .threads = kChannelThreads};
}
// Elements of a plan's item that are of one channel.
template <class T>
[[nodiscard]] int chunk_of(const ChannelPlan& plan) {
  return plan.chunks && !plan.columns ? kVec<T> : 1;
}
// The tickets of a finish that writes `per` rows a channel, or null where it has a launch of its own.
inline constexpr std::int64_t kMostRowsOfLastBlock = 4096;
template <class T>
[[nodiscard]] unsigned* finish_tickets(const Gpu& on, const ChannelPlan& plan, std::int64_t per) {
  const bool few = plan.columns ? plan.across_blocks(plan.chunks ? kVec<T> : 1) <= levin::detail::kTickets
                                : plan.c * per <= kMostRowsOfLastBlock;
  return few ? on.tickets() : nullptr;
}
// As many lanes a channel as the last block has threads for, and as lane_teams.
template <class T>
[[nodiscard]] LaneTeams finish_teams(const ChannelPlan& plan, std::int64_t steps) {
  const std::int64_t channels = plan.columns ? std::int64_t{plan.chunks ? kVec<T> : 1} << plan.across : plan.c;
  LaneTeams teams = lane_teams(plan.c, steps);
  while (teams.shift > 0 && channels * teams.lanes() > kChannelThreads) --teams.shift;
  return teams;
}
template <class Finish>
void launch_finish(const Gpu& on, const Finish& finish, const double* parts, const ChannelPlan& plan) {
  if (finish.ticket == nullptr && finish.teams.count > 0)
    on.launch(finish_channels<Finish>, a_team_each(finish.teams), finish, parts, plan);
}
[[nodiscard]] inline bool all_aligned(int v, std::initializer_list<const void*> pointers) {
  return v == 1 || std::all_of(pointers.begin(), pointers.end(), aligned16);
}

// The moments of channels, and what `finish` makes of them; its teams, ticket and v are set here.
template <class T, class S>
void launch_moments(const Gpu& on, const S* x, double* parts, const ChannelPlan& plan, NormFinish<Accum<T>> finish) {
  if (plan.c == 0) return;
  finish.v = chunk_of<T>(plan);
  finish.teams = finish_teams<T>(plan, std::max(plan.parts, finish.per));
  finish.ticket = finish_tickets<T>(on, plan, finish.per);
  with_chunk<T>(plan, [&]<int V, bool kColumns>(std::integral_constant<int, V>, std::bool_constant<kColumns>) {
    on.launch(channel_moments<T, S, V, kColumns>, channel_grid(plan, V), x, parts, plan, finish, all_aligned(V, {x}));
  });
  launch_finish(on, finish, parts, plan);
}
template <class T, class S, class Finish = NoFinish>
void launch_sums(const Gpu& on, const T* gy, const S* x, const T* y, const Accum<T>* mean, const Accum<T>* rstd,
                 std::int64_t per, double* parts, const ChannelPlan& plan, const Finish& finish = {}) {
  if (plan.c == 0) return;
  with_chunk<T>(plan, [&]<int V, bool kColumns>(std::integral_constant<int, V>, std::bool_constant<kColumns>) {
    on.launch(channel_sums<T, S, V, kColumns, Finish>, channel_grid(plan, V), gy, x, y, mean, rstd, per, parts, plan,
              finish, all_aligned(V, {gy, x, y}));
  });
}
// The sums of a batch norm's gradients, with gw and gb, and the coefficients of gx unless table is null.
template <class T>
void launch_gradients(const Gpu& on, const T* gy, const T* x, const T* y, const Accum<T>* w, const Accum<T>* mean,
                      const Accum<T>* rstd, Accum<T>* gw, Accum<T>* gb, Coefficients<Accum<T>>* table, double* parts,
                      const ChannelPlan& plan) {
  const GradientFinish<Accum<T>> finish{w,
                                        mean,
                                        rstd,
                                        gw,
                                        gb,
                                        table,
                                        chunk_of<T>(plan),
                                        finish_teams<T>(plan, plan.parts),
                                        finish_tickets<T>(on, plan, 1)};
  launch_sums(on, gy, x, y, mean, rstd, 1, parts, plan, finish);
  launch_finish(on, finish, parts, plan);
}
// `rows` of coefficients for the rows of s elements of [n, c, s].
template <class T, class S, class O>
void launch_apply(const Gpu& on, const T* gy, const S* x, const T* y, const Coefficients<Accum<T>>* table,
                  std::int64_t rows, O* out, const Last<T>& last, std::int64_t n, std::int64_t c, std::int64_t s) {
  if (n * c * s == 0) return;
  const auto launch = [&]<int V>(std::integral_constant<int, V>) {
    const std::int64_t items = n * c * s / V, blocks = (items + kChannelThreads - 1) / kChannelThreads;
    on.launch(
        gy != nullptr ? channel_apply<T, S, O, V, ApplyPass::backward> : channel_apply<T, S, O, V, ApplyPass::forward>,
        Grid{.blocks = static_cast<unsigned>(std::min(blocks, 16 * kMultiprocessors)), .threads = kChannelThreads}, gy,
        x, y, table, out, last, items, Divider(s / V), Divider(rows), all_aligned(V, {gy, x, y, out, last.residual}));
  };
  if (s % kVec<T> == 0)
    launch(std::integral_constant<int, kVec<T>>{});
  else
    launch(std::integral_constant<int, 1>{});
}
// The same for batch norm, whose coefficients are those of a channel.
template <class T>
void launch_channels(const Gpu& on, const T* gy, const T* x, const T* y, const Coefficients<Accum<T>>* table, T* out,
                     const Last<T>& last, const ChannelPlan& plan) {
  if (!plan.columns) return launch_apply<T>(on, gy, x, y, table, plan.c, out, last, plan.n, plan.c, plan.s);
  if (plan.n * plan.c == 0) return;
  const auto launch = [&]<int V>(std::integral_constant<int, V>) {
    ChannelPlan spread = plan;  // no parts are left over here
    spread.cut(8 * kMultiprocessors, plan.across_blocks(V));
    const auto run = gy != nullptr ? column_apply<T, V, ApplyPass::backward> : column_apply<T, V, ApplyPass::forward>;
    on.launch(run, channel_grid(spread, V), gy, x, y, table, out, last, spread,
              all_aligned(V, {gy, x, y, out, last.residual}));
  };
  if (plan.chunks)
    launch(std::integral_constant<int, kVec<T>>{});
  else
    launch(std::integral_constant<int, 1>{});
}

// parts and table are scratch memory: plan.scratch() doubles, and a row of coefficients a channel (of each sample, for
// group norm).
template <class T>
void batch_norm_train(const Gpu& on, const T* x, const Accum<T>* w, const Accum<T>* b, T* y, Accum<T>* mean,
                      Accum<T>* rstd, Accum<T>* unbiased, const Running<Accum<T>>& running, const Last<T>& last,
                      const ChannelPlan& plan, double eps, double* parts, Coefficients<Accum<T>>* table) {
  using A = Accum<T>;
  launch_moments<T>(
      on, x, parts, plan,
      NormFinish<A>{w, b, static_cast<A>(eps), mean, rstd, unbiased, running, table, 1, plan.c, 1, {}, nullptr});
  launch_channels<T>(on, nullptr, x, nullptr, table, y, last, plan);
}
// What running statistics take of a batch of `count` elements a channel whose rstd = 1 / sqrt(var + eps) another has
// computed: count / (count - 1) var, at least 0 where rounding has lost var beside eps.
template <class A>
void unbiased_variance(const Gpu& on, const A* mean, const A* rstd, double eps, std::int64_t count, A* unbiased,
                       const Running<A>& running, std::int64_t c) {
  on.launch(variance_of_rstd<A>, a_thread_each(c), mean, rstd, static_cast<A>(eps), double(count), unbiased, running,
            c);
}
template <class T>
void batch_norm_eval(const Gpu& on, const T* x, const Accum<T>* w, const Accum<T>* b, const Accum<T>* running_mean,
                     const Accum<T>* running_var, T* y, const Last<T>& last, const ChannelPlan& plan, double eps,
                     Coefficients<Accum<T>>* table) {
  using A = Accum<T>;
  on.launch(eval_coefficients<A>, a_thread_each(plan.c), w, b, running_mean, running_var, static_cast<A>(eps), table,
            nullptr, nullptr, plan.c);
  launch_channels<T>(on, nullptr, x, nullptr, table, y, last, plan);
}
template <class T>
void batch_norm_backward(const Gpu& on, const T* gy, const T* x, const T* y, const Accum<T>* w, const Accum<T>* mean,
                         const Accum<T>* rstd, T* gx, Accum<T>* gw, Accum<T>* gb, const ChannelPlan& plan,
                         double* parts, Coefficients<Accum<T>>* table) {
  launch_gradients(on, gy, x, y, w, mean, rstd, gw, gb, gx != nullptr ? table : nullptr, parts, plan);
  if (gx != nullptr) launch_channels(on, gy, x, y, table, gx, {}, plan);
}
// rstd: [c] of scratch memory.
template <class T>
void batch_norm_eval_backward(const Gpu& on, const T* gy, const T* x, const T* y, const Accum<T>* w,
                              const Accum<T>* running_mean, const Accum<T>* running_var, T* gx, Accum<T>* gw,
                              Accum<T>* gb, const ChannelPlan& plan, double eps, double* parts,
                              Coefficients<Accum<T>>* table, Accum<T>* rstd) {
  using A = Accum<T>;
  on.launch(eval_coefficients<A>, a_thread_each(plan.c), w, nullptr, running_mean, running_var, static_cast<A>(eps),
            nullptr, table, rstd, plan.c);
  if (gw != nullptr || gb != nullptr)
    launch_gradients<T>(on, gy, x, y, w, running_mean, rstd, gw, gb, nullptr, parts, plan);
  if (gx != nullptr) launch_channels<T>(on, gy, nullptr, y, table, gx, {}, plan);
}
// plan: of [1, n * groups, c / groups * s].
template <class T, class S>
void group_norm(const Gpu& on, const S* x, const Accum<T>* w, const Accum<T>* b, T* y, Accum<T>* mean, Accum<T>* rstd,
                std::int64_t n, std::int64_t c, std::int64_t s, std::int64_t groups, const ChannelPlan& plan,
                double eps, double* parts, Coefficients<Accum<T>>* table) {
  using A = Accum<T>;
  launch_moments<T>(
      on, x, parts, plan,
      NormFinish<A>{w, b, static_cast<A>(eps), mean, rstd, nullptr, {}, table, c / groups, c, 1, {}, nullptr});
  launch_apply<T>(on, nullptr, x, nullptr, table, n * c, y, {}, n, c, s);
}
// plan: of [1, n * c, s].
template <class T, class S>
void group_norm_backward(const Gpu& on, const T* gy, const S* x, const Accum<T>* w, const Accum<T>* mean,
                         const Accum<T>* rstd, S* gx, Accum<T>* gw, Accum<T>* gb, std::int64_t n, std::int64_t c,
                         std::int64_t s, std::int64_t groups, const ChannelPlan& plan, double* parts,
                         Coefficients<Accum<T>>* table) {
  using A = Accum<T>;
  const std::int64_t width = c / groups;
  launch_sums(on, gy, x, static_cast<const T*>(nullptr), mean, rstd, width, parts, plan);
  if (gw != nullptr || gb != nullptr) {
    const LaneTeams teams = lane_teams(c, n * plan.parts);
    on.launch(group_norm_gradients<A>, a_team_each(teams), parts, plan, gw, gb, teams, n, c);
  }
  if (gx == nullptr || n * c == 0) return;
  const LaneTeams teams = lane_teams(n * groups, width * plan.parts);
  on.launch(group_norm_coefficients<A>, a_team_each(teams), parts, plan, w, mean, rstd, table, teams, Divider(width), c,
            width * s);
  launch_apply(on, gy, x, static_cast<const T*>(nullptr), table, n * c, gx, {}, n, c, s);
}

}  // namespace levin::kernels::gpu
