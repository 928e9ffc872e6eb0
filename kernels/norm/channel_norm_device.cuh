// The device half of channel_norm.cuh: its contracts, on cuda and simt. Group norm's x and gx may have 16 bits
// (S) where y and gy are float: the bits are those of a float kernel between conversions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/device/lane_teams.cuh"
#include "kernels/device/strided.cuh"
#include "kernels/norm/norm.cuh"

namespace levin::kernels::gpu {

// Note [Channel norms on a device]
// Batch norm, and group norm with each sample's groups or channels taken for the channels of one sample, are three
// steps: blocks sum parts of each channel, a few lanes of a warp add a channel's parts and write a row of four
// coefficients, and a pointwise pass computes gy * p + (x - m) * q + r. Few channels have many parts (3 have 352 each):
// of 32 parts or more a lane takes every 32nd, and the lanes join pair by pair, in an order that the shape alone
// decides.

// How [n, c, s] is summed per channel. A block of 256 threads has one channel and a part of its n * s elements, in
// chunks of V; where s is 1 it has 32 channels, whose elements lie side by side, and each warp an eighth of the part.
struct ChannelPlan {
  std::int64_t n, c, s;
  std::int64_t items = 0, part = 0, parts = 1;  // chunks of a channel, of a part; parts of a channel
  bool columns = false, chunks = false;
  Divider in_row{};  // chunks of a sample's channel

  [[nodiscard]] __host__ __device__ std::int64_t elements(std::int64_t k, int v) const {
    const std::int64_t left = items - k * part;
    return (left < part ? left : part) * v;
  }
  // Doubles of scratch memory.
  [[nodiscard]] std::int64_t scratch() const { return 2 * parts * c; }
};
inline constexpr int kChannelThreads = 256;
template <class T>
[[nodiscard]] ChannelPlan plan_channels(std::int64_t n, std::int64_t c, std::int64_t s) {
  ChannelPlan plan{.n = n, .c = c, .s = s};
  plan.columns = s == 1;
  plan.chunks = s > 0 && s % kVec<T> == 0;
  const std::int64_t row = plan.chunks ? s / kVec<T> : s;
  plan.in_row = Divider(std::max<std::int64_t>(row, 1));
  plan.items = n * row;
  const std::int64_t blocks = std::max<std::int64_t>(plan.columns ? (c + 31) / 32 : c, 1),
                     least = plan.columns ? 64 : 1024;  // items worth a block
  const std::int64_t wanted = std::clamp<std::int64_t>((8 * kMultiprocessors + blocks - 1) / blocks, 1,
                                                       std::max<std::int64_t>(1, (plan.items + least - 1) / least));
  plan.part = std::max<std::int64_t>(1, (plan.items + wanted - 1) / wanted);
  plan.parts = std::max<std::int64_t>(1, (plan.items + plan.part - 1) / plan.part);
  return plan;
}

template <bool kColumns>
struct ChannelTeam {
  static constexpr int kStep = kColumns ? kChannelThreads / 32 : kChannelThreads;
  static __device__ int rank() { return static_cast<int>(kColumns ? threadIdx.x / 32 : threadIdx.x); }
  static __device__ std::int64_t channel() {
    return kColumns ? std::int64_t{blockIdx.x} * 32 + threadIdx.x % 32 : std::int64_t{blockIdx.x};
  }
  // Over the threads of a channel; scratch: [kChannelThreads].
  static __device__ double sum(double x, double* scratch) {
    if constexpr (kColumns) {
      scratch[threadIdx.x] = x;
      __syncthreads();
      x = scratch[threadIdx.x % 32];
#pragma unroll
      for (int k = 1; k < kStep; ++k) x += scratch[k * 32 + threadIdx.x % 32];
      __syncthreads();
      return x;
    } else {
      return block_sum<kChannelThreads>(x, scratch);
    }
  }
  // f(offset) for this thread's chunks of part blockIdx.y.
  template <int V, class F>
  static __device__ void each(const ChannelPlan& plan, F&& f) {
    const std::int64_t j = channel();
    if (j >= plan.c) return;
    const std::int64_t begin = blockIdx.y * plan.part,
                       end = plan.items - begin < plan.part ? plan.items : begin + plan.part;
#pragma unroll 4
    for (std::int64_t u = begin + rank(); u < end; u += kStep) {
      const std::int64_t i = kColumns ? u : plan.in_row.quotient(u),
                         e = kColumns ? 0 : u - i * static_cast<std::int64_t>(plan.in_row.divisor);
      f((i * plan.c + j) * plan.s + e * V);
    }
  }
  static __device__ void leave(const ChannelPlan& plan, double* parts, double a, double b) {
    if (rank() != 0 || channel() >= plan.c) return;
    double* const out = parts + 2 * (blockIdx.y * plan.c + channel());
    out[0] = a;
    out[1] = b;
  }
};
template <class T, int V, class S>
__device__ __forceinline__ Vec<T, V> chunk_at(const S* p, bool vectors) {
  if (vectors) return converted<T>(load<V>(p));
  Vec<T, V> v;
#pragma unroll
  for (int j = 0; j < V; ++j) v[j] = T(p[j]);
  return v;
}

// parts: the mean of each part and the sum of squares around it. A thread takes its first number for a guess of the
// mean, so that the squares of a channel far from zero keep their digits.
template <class T, class S, int V, bool kColumns>
__global__ __launch_bounds__(kChannelThreads) void channel_moments(const S* x, double* parts, ChannelPlan plan,
                                                                   bool vectors) {
  using A = Accum<T>;
  using Of = ChannelTeam<kColumns>;
  LEVIN_SHARED(double, scratch, kChannelThreads);
  A guess = 0, sum = 0, square = 0;
  std::int64_t count = 0;
  Of::template each<V>(plan, [&](std::int64_t at) {
    const Vec<T, V> v = chunk_at<T, V>(x + at, vectors);
    if (count == 0) guess = A(v[0]);
    count += V;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const A d = A(v[j]) - guess;
      sum += d;
      square += d * d;
    }
  });
  const double shift = count > 0 ? double(sum / A(count)) : 0.0, own = double(guess) + shift,
               around = double(square) - double(sum) * shift;
  const std::int64_t elements = plan.elements(blockIdx.y, V);
  const double mean = elements > 0 ? Of::sum(own * double(count), scratch) / double(elements) : 0.0;
  Of::leave(plan, parts, mean, Of::sum(around + double(count) * (own - mean) * (own - mean), scratch));
}

// parts: the sums of gy and of gy * h, h = (x - mean) * rstd; mean and rstd have one element for `per` channels.
template <class T, class S, int V, bool kColumns>
__global__ __launch_bounds__(kChannelThreads) void channel_sums(const T* gy, const S* x, const Accum<T>* mean,
                                                                const Accum<T>* rstd, std::int64_t per, double* parts,
                                                                ChannelPlan plan, bool vectors) {
  using A = Accum<T>;
  using Of = ChannelTeam<kColumns>;
  LEVIN_SHARED(double, scratch, kChannelThreads);
  const std::int64_t j = Of::channel() / per;
  const bool inside = Of::channel() < plan.c;
  const A mu = inside ? mean[j] : A(0), scale = inside ? rstd[j] : A(0);
  A of_g = 0, of_h = 0;
  Of::template each<V>(plan, [&](std::int64_t at) {
    const Vec<T, V> g = chunk_at<T, V>(gy + at, vectors), v = chunk_at<T, V>(x + at, vectors);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      of_g += A(g[k]);
      of_h += A(g[k]) * ((A(v[k]) - mu) * scale);
    }
  });
  const double a = Of::sum(double(of_g), scratch);
  Of::leave(plan, parts, a, Of::sum(double(of_h), scratch));
}

// Four coefficients of a channel, or of a sample's channel.
template <class A>
struct alignas(16) Coefficients {
  A p, q, r, m;
};
// out = gy * p + (x - m) * q + r for [.., count, s]; gy or x may be null. `count` rows of coefficients repeat.
template <class T, class S, class O, int V>
__global__ __launch_bounds__(kChannelThreads) void channel_apply(const T* gy, const S* x,
                                                                 const Coefficients<Accum<T>>* table, O* out,
                                                                 std::int64_t items, Divider in_row, Divider count,
                                                                 bool vectors) {
  using A = Accum<T>;
  const std::int64_t step = std::int64_t{gridDim.x} * kChannelThreads;
  for (std::int64_t u = std::int64_t{blockIdx.x} * kChannelThreads + threadIdx.x; u < items; u += step) {
    const std::int64_t row = in_row.quotient(u);
    const Coefficients<A> k = table[row - count.quotient(row) * static_cast<std::int64_t>(count.divisor)];
    A y[V];
#pragma unroll
    for (int j = 0; j < V; ++j) y[j] = k.r;
    if (x != nullptr) {
      const Vec<T, V> v = chunk_at<T, V>(x + u * V, vectors);
#pragma unroll
      for (int j = 0; j < V; ++j) y[j] += (A(v[j]) - k.m) * k.q;
    }
    if (gy != nullptr) {
      const Vec<T, V> g = chunk_at<T, V>(gy + u * V, vectors);
#pragma unroll
      for (int j = 0; j < V; ++j) y[j] += A(g[j]) * k.p;
    }
    Vec<O, V> v;
#pragma unroll
    for (int j = 0; j < V; ++j) v[j] = O(y[j]);
    if (vectors) {
      store(out + u * V, v);
    } else {
#pragma unroll
      for (int j = 0; j < V; ++j) out[u * V + j] = v[j];
    }
  }
}

// Running statistics, and how they follow a batch's. Without `mean` there are none. Where `average` is set, count has
// grown already.
template <class A>
struct Running {
  A *mean = nullptr, *var = nullptr;
  std::int64_t* count = nullptr;
  A keep = 0, take = 0;  // 1 - momentum and momentum
  bool average = false;

  __device__ __forceinline__ A moved(A running, A batch) const {
    return average ? running + (batch - running) / A(*count) : running * keep + batch * take;
  }
  __device__ __forceinline__ void follow(std::int64_t channel, A batch_mean, A batch_var) const {
    if (mean == nullptr) return;
    mean[channel] = moved(mean[channel], batch_mean);
    var[channel] = moved(var[channel], batch_var);
    if (channel == 0 && !average) ++*count;
  }
};

// Of `count` numbers; square: the sum of squares around the mean.
struct Moments {
  double count = 0, mean = 0, square = 0;
};
__device__ __forceinline__ Moments from_lane_xor(const Moments& x, int lanes) {
  return {from_lane_xor(x.count, lanes), from_lane_xor(x.mean, lanes), from_lane_xor(x.square, lanes)};
}
// Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
struct JoinMoments {
  __device__ __forceinline__ Moments operator()(const Moments& a, const Moments& b) const {
    if (!(b.count > 0)) return a;
    const double d = b.mean - a.mean, all = a.count + b.count, share = b.count / all;
    return {all, a.mean + d * share, a.square + b.square + d * d * (a.count * share)};
  }
};
template <class A>
__device__ __forceinline__ A or_else(const A* p, std::int64_t i, A missing) {
  return p != nullptr ? p[i] : missing;
}

// The forwards' coefficients: a team a channel of the plan, which has `per` rows of the table and as many parameters of
// c. unbiased may be null.
template <class A>
__global__ void norm_coefficients(const double* parts, ChannelPlan plan, int v, const A* w, const A* b, A eps, A* mean,
                                  A* rstd, A* unbiased, Running<A> running, Coefficients<A>* table, LaneTeams teams,
                                  std::int64_t per, std::int64_t c) {
  const std::int64_t k = teams.team();
  Moments of;
  teams.each(plan.parts, [&](std::int64_t part) {
    const double* const at = parts + 2 * (part * plan.c + k);
    of = JoinMoments{}(of, {double(plan.elements(part, v)), at[0], at[1]});
  });
  of = teams.joined(of, JoinMoments{});
  if (k >= teams.count) return;
  const double count = double(plan.items) * v;
  const A mu = A(of.mean), scale = math::rsqrt(A(of.square / count) + eps);
  if (teams.lane() == 0) {
    mean[k] = mu;
    rstd[k] = scale;
    const A of_sample = A(of.square / (count - 1));
    if (unbiased != nullptr) unbiased[k] = of_sample;
    running.follow(k, mu, of_sample);
  }
  const std::int64_t row = k * per, j = row % c;
  teams.each(per, [&](std::int64_t i) {
    table[row + i] = {A(0), scale * or_else(w, j + i, A(1)), or_else(b, j + i, A(0)), mu};
  });
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
// gx = w rstd (gy - mean(gy) - h mean(gy h)); gw = sum gy h, gb = sum gy. A team a channel; table may be null.
template <class A>
__global__ void batch_norm_gradients(const double* parts, ChannelPlan plan, int v, const A* w, const A* mean,
                                     const A* rstd, A* gw, A* gb, Coefficients<A>* table, LaneTeams teams) {
  const std::int64_t j = teams.team();
  double of_g = 0, of_h = 0;
  teams.each(plan.parts, [&](std::int64_t part) {
    const double* const at = parts + 2 * (part * plan.c + j);
    of_g += at[0];
    of_h += at[1];
  });
  of_g = teams.joined(of_g, Plus{});
  of_h = teams.joined(of_h, Plus{});
  if (j >= teams.count || teams.lane() != 0) return;
  if (gb != nullptr) gb[j] = A(of_g);
  if (gw != nullptr) gw[j] = A(of_h);
  if (table == nullptr) return;
  const double count = double(plan.items) * v;
  const A p = rstd[j] * or_else(w, j, A(1));
  table[j] = {p, -p * rstd[j] * A(of_h / count), -p * A(of_g / count), mean[j]};
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
  if (plan.chunks)
    f(std::integral_constant<int, kVec<T>>{}, std::false_type{});
  else if (plan.columns)
    f(std::integral_constant<int, 1>{}, std::true_type{});
  else
    f(std::integral_constant<int, 1>{}, std::false_type{});
}
[[nodiscard]] inline Grid channel_grid(const ChannelPlan& plan) {
  const std::int64_t blocks = plan.columns ? (plan.c + 31) / 32 : plan.c;
  return {.blocks = {static_cast<unsigned>(blocks), static_cast<unsigned>(plan.parts), 1}, .threads = kChannelThreads};
}
template <class T>
[[nodiscard]] int chunk_of(const ChannelPlan& plan) {
  return plan.chunks ? kVec<T> : 1;
}
[[nodiscard]] inline bool all_aligned(int v, std::initializer_list<const void*> pointers) {
  return v == 1 || std::all_of(pointers.begin(), pointers.end(), aligned16);
}

template <class T, class S>
void launch_moments(const Gpu& on, const S* x, double* parts, const ChannelPlan& plan) {
  with_chunk<T>(plan, [&]<int V, bool kColumns>(std::integral_constant<int, V>, std::bool_constant<kColumns>) {
    on.launch(channel_moments<T, S, V, kColumns>, channel_grid(plan), x, parts, plan, all_aligned(V, {x}));
  });
}
template <class T, class S>
void launch_sums(const Gpu& on, const T* gy, const S* x, const Accum<T>* mean, const Accum<T>* rstd, std::int64_t per,
                 double* parts, const ChannelPlan& plan) {
  with_chunk<T>(plan, [&]<int V, bool kColumns>(std::integral_constant<int, V>, std::bool_constant<kColumns>) {
    on.launch(channel_sums<T, S, V, kColumns>, channel_grid(plan), gy, x, mean, rstd, per, parts, plan,
              all_aligned(V, {gy, x}));
  });
}
template <class T>
void launch_coefficients(const Gpu& on, const double* parts, const ChannelPlan& plan, const Accum<T>* w,
                         const Accum<T>* b, double eps, Accum<T>* mean, Accum<T>* rstd, Accum<T>* unbiased,
                         const Running<Accum<T>>& running, Coefficients<Accum<T>>* table, std::int64_t per,
                         std::int64_t c) {
  if (c == 0) return;
  const LaneTeams teams = lane_teams(plan.c, std::max(plan.parts, per));
  on.launch(norm_coefficients<Accum<T>>, a_team_each(teams), parts, plan, chunk_of<T>(plan), w, b,
            static_cast<Accum<T>>(eps), mean, rstd, unbiased, running, table, teams, per, c);
}
template <class T>
void launch_gradients(const Gpu& on, const double* parts, const ChannelPlan& plan, const Accum<T>* w,
                      const Accum<T>* mean, const Accum<T>* rstd, Accum<T>* gw, Accum<T>* gb,
                      Coefficients<Accum<T>>* table) {
  const LaneTeams teams = lane_teams(plan.c, plan.parts);
  on.launch(batch_norm_gradients<Accum<T>>, a_team_each(teams), parts, plan, chunk_of<T>(plan), w, mean, rstd, gw, gb,
            table, teams);
}
// `rows` of coefficients for the rows of s elements of [n, c, s].
template <class T, class S, class O>
void launch_apply(const Gpu& on, const T* gy, const S* x, const Coefficients<Accum<T>>* table, std::int64_t rows,
                  O* out, std::int64_t n, std::int64_t c, std::int64_t s) {
  if (n * c * s == 0) return;
  const auto launch = [&]<int V>(std::integral_constant<int, V>) {
    const std::int64_t items = n * c * s / V, blocks = (items + kChannelThreads - 1) / kChannelThreads;
    on.launch(
        channel_apply<T, S, O, V>,
        Grid{.blocks = static_cast<unsigned>(std::min(blocks, 16 * kMultiprocessors)), .threads = kChannelThreads}, gy,
        x, table, out, items, Divider(s / V), Divider(rows), all_aligned(V, {gy, x, out}));
  };
  if (s % kVec<T> == 0)
    launch(std::integral_constant<int, kVec<T>>{});
  else
    launch(std::integral_constant<int, 1>{});
}

// parts and table are scratch memory: plan.scratch() doubles, and a row of coefficients a channel (of each sample, for
// group norm).
template <class T>
void batch_norm_train(const Gpu& on, const T* x, const Accum<T>* w, const Accum<T>* b, T* y, Accum<T>* mean,
                      Accum<T>* rstd, Accum<T>* unbiased, const Running<Accum<T>>& running, const ChannelPlan& plan,
                      double eps, double* parts, Coefficients<Accum<T>>* table) {
  launch_moments<T>(on, x, parts, plan);
  launch_coefficients<T>(on, parts, plan, w, b, eps, mean, rstd, unbiased, running, table, 1, plan.c);
  launch_apply<T>(on, nullptr, x, table, plan.c, y, plan.n, plan.c, plan.s);
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
                     const Accum<T>* running_var, T* y, std::int64_t n, std::int64_t c, std::int64_t s, double eps,
                     Coefficients<Accum<T>>* table) {
  using A = Accum<T>;
  on.launch(eval_coefficients<A>, a_thread_each(c), w, b, running_mean, running_var, static_cast<A>(eps), table,
            nullptr, nullptr, c);
  launch_apply<T>(on, nullptr, x, table, c, y, n, c, s);
}
template <class T>
void batch_norm_backward(const Gpu& on, const T* gy, const T* x, const Accum<T>* w, const Accum<T>* mean,
                         const Accum<T>* rstd, T* gx, Accum<T>* gw, Accum<T>* gb, const ChannelPlan& plan,
                         double* parts, Coefficients<Accum<T>>* table) {
  launch_sums(on, gy, x, mean, rstd, 1, parts, plan);
  launch_gradients<T>(on, parts, plan, w, mean, rstd, gw, gb, gx != nullptr ? table : nullptr);
  if (gx != nullptr) launch_apply(on, gy, x, table, plan.c, gx, plan.n, plan.c, plan.s);
}
// rstd: [c] of scratch memory.
template <class T>
void batch_norm_eval_backward(const Gpu& on, const T* gy, const T* x, const Accum<T>* w, const Accum<T>* running_mean,
                              const Accum<T>* running_var, T* gx, Accum<T>* gw, Accum<T>* gb, const ChannelPlan& plan,
                              double eps, double* parts, Coefficients<Accum<T>>* table, Accum<T>* rstd) {
  using A = Accum<T>;
  on.launch(eval_coefficients<A>, a_thread_each(plan.c), w, nullptr, running_mean, running_var, static_cast<A>(eps),
            nullptr, table, rstd, plan.c);
  if (gw != nullptr || gb != nullptr) {
    launch_sums(on, gy, x, running_mean, rstd, 1, parts, plan);
    launch_gradients<T>(on, parts, plan, w, running_mean, rstd, gw, gb, nullptr);
  }
  if (gx != nullptr) launch_apply(on, gy, static_cast<const T*>(nullptr), table, plan.c, gx, plan.n, plan.c, plan.s);
}
// plan: of [1, n * groups, c / groups * s].
template <class T, class S>
void group_norm(const Gpu& on, const S* x, const Accum<T>* w, const Accum<T>* b, T* y, Accum<T>* mean, Accum<T>* rstd,
                std::int64_t n, std::int64_t c, std::int64_t s, std::int64_t groups, const ChannelPlan& plan,
                double eps, double* parts, Coefficients<Accum<T>>* table) {
  launch_moments<T>(on, x, parts, plan);
  launch_coefficients<T>(on, parts, plan, w, b, eps, mean, rstd, nullptr, {}, table, c / groups, c);
  launch_apply<T>(on, nullptr, x, table, n * c, y, n, c, s);
}
// plan: of [1, n * c, s].
template <class T, class S>
void group_norm_backward(const Gpu& on, const T* gy, const S* x, const Accum<T>* w, const Accum<T>* mean,
                         const Accum<T>* rstd, S* gx, Accum<T>* gw, Accum<T>* gb, std::int64_t n, std::int64_t c,
                         std::int64_t s, std::int64_t groups, const ChannelPlan& plan, double* parts,
                         Coefficients<Accum<T>>* table) {
  using A = Accum<T>;
  const std::int64_t width = c / groups;
  launch_sums(on, gy, x, mean, rstd, width, parts, plan);
  if (gw != nullptr || gb != nullptr) {
    const LaneTeams teams = lane_teams(c, n * plan.parts);
    on.launch(group_norm_gradients<A>, a_team_each(teams), parts, plan, gw, gb, teams, n, c);
  }
  if (gx == nullptr || n * c == 0) return;
  const LaneTeams teams = lane_teams(n * groups, width * plan.parts);
  on.launch(group_norm_coefficients<A>, a_team_each(teams), parts, plan, w, mean, rstd, table, teams, Divider(width), c,
            width * s);
  launch_apply(on, gy, x, table, n * c, gx, n, c, s);
}

}  // namespace levin::kernels::gpu
