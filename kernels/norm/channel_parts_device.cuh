// How the kernels of channel norms cut their work, and what is made of the parts: Note [Channel norms on a device].
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/device/lane_teams.cuh"
#include "kernels/device/last_block.cuh"
#include "kernels/device/strided.cuh"
#include "kernels/norm/norm.cuh"

namespace levin::kernels::gpu {

// How [n, c, s] is summed per channel. A block of 256 threads has one channel and a part of its n * s elements, in
// chunks of V. Where s is 1 chunks lie across the channels: 2^across threads have a row of them, and a block as many
// rows as its threads allow.
struct ChannelPlan {
  std::int64_t n, c, s;
  std::int64_t items = 0, part = 0, parts = 1;  // chunks of a channel (rows of columns), of a part; a channel's parts
  bool columns = false, chunks = false;
  unsigned across = 0;
  Divider in_row{};  // chunks of a sample's channel

  [[nodiscard]] __host__ __device__ std::int64_t elements(std::int64_t k, int v) const {
    const std::int64_t left = items - k * part;
    return (left < part ? left : part) * v;
  }
  // Doubles of scratch memory.
  [[nodiscard]] std::int64_t scratch() const { return 2 * parts * c; }
  // Into parts for about `wanted` blocks, of which `across_them` lie beside each other.
  void cut(std::int64_t wanted, std::int64_t across_them) {
    const std::int64_t beside = std::max<std::int64_t>(across_them, 1),
                       least = columns ? 8 * (256 >> across) : 1024;  // items worth a block
    const std::int64_t most = std::max<std::int64_t>(1, (items + least - 1) / least),
                       count = std::clamp<std::int64_t>((wanted + beside - 1) / beside, 1, most);
    part = std::max<std::int64_t>(1, (items + count - 1) / count);
    parts = std::max<std::int64_t>(1, (items + part - 1) / part);
  }
  // Blocks across the channels.
  [[nodiscard]] std::int64_t across_blocks(int v) const {
    return columns ? (((c + v - 1) / v) + (1 << across) - 1) >> across : c;
  }
};
inline constexpr int kChannelThreads = 256;
template <class T>
[[nodiscard]] ChannelPlan plan_channels(std::int64_t n, std::int64_t c, std::int64_t s) {
  ChannelPlan plan{.n = n, .c = c, .s = s};
  plan.columns = s == 1;
  plan.chunks = (plan.columns ? c : s) > 0 && (plan.columns ? c : s) % kVec<T> == 0;
  const int v = plan.chunks ? kVec<T> : 1;
  const std::int64_t row = plan.columns ? 1 : s / v;
  plan.in_row = Divider(std::max<std::int64_t>(row, 1));
  plan.items = n * row;
  if (plan.columns) {
    const std::int64_t most = v == 1 ? 32 : 8;  // lanes that share lines
    while ((1 << plan.across) < most && (std::int64_t{1} << plan.across) * v < c) ++plan.across;
  }
  // A block of rows leaves a pair for each of its channels: two blocks a multiprocessor are enough to read memory.
  plan.cut((plan.columns ? 2 : 8) * kMultiprocessors, plan.across_blocks(v));
  return plan;
}

// What a thread has of part blockIdx.y: kOwn channels, from channel() on.
template <bool kColumns, int V>
struct ChannelTeam {
  static constexpr int kOwn = kColumns ? V : 1;
  static constexpr int kWarps = kChannelThreads / 32;
  static constexpr int kScratch = kColumns ? V * kChannelThreads : kWarps;  // doubles
  ChannelPlan plan;

  __device__ int lanes() const { return 1 << plan.across; }
  __device__ int rank() const { return static_cast<int>(kColumns ? threadIdx.x >> plan.across : threadIdx.x); }
  __device__ int lane() const { return static_cast<int>(threadIdx.x) & (lanes() - 1); }
  __device__ std::int64_t channel() const {
    return kColumns ? ((std::int64_t{blockIdx.x} << plan.across) + lane()) * V : std::int64_t{blockIdx.x};
  }
  // Over the threads of a channel, for each of kOwn channels.
  __device__ void add_up(double (&x)[kOwn], double* scratch) const {
    if constexpr (kColumns) {
      const int warp = static_cast<int>(threadIdx.x / 32), in_warp = static_cast<int>(threadIdx.x % 32);
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        for (int apart = 16; apart >= lanes(); apart /= 2) x[k] += from_lane_xor(x[k], apart);
        if (in_warp < lanes()) scratch[(k * kWarps + warp) * 32 + in_warp] = x[k];
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        x[k] = scratch[k * kWarps * 32 + lane()];
        for (int w = 1; w < kWarps; ++w) x[k] += scratch[(k * kWarps + w) * 32 + lane()];
      }
      __syncthreads();
    } else {
      x[0] = block_sum<kChannelThreads>(x[0], scratch);
    }
  }
  // f(offset) for this thread's chunks.
  template <class F>
  __device__ void each(F&& f) const {
    const std::int64_t j = channel();
    if (j >= plan.c) return;
    const std::int64_t begin = blockIdx.y * plan.part,
                       end = plan.items - begin < plan.part ? plan.items : begin + plan.part;
    const std::int64_t step = kColumns ? kChannelThreads >> plan.across : kChannelThreads;
#pragma unroll 4
    for (std::int64_t u = begin + rank(); u < end; u += step) {
      const std::int64_t i = kColumns ? u : plan.in_row.quotient(u),
                         e = kColumns ? 0 : u - i * static_cast<std::int64_t>(plan.in_row.divisor);
      f((i * plan.c + j) * plan.s + e * V);
    }
  }
  __device__ void leave(double* parts, const double (&a)[kOwn], const double (&b)[kOwn]) const {
    if (rank() != 0 || channel() >= plan.c) return;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      double* const out = parts + 2 * (blockIdx.y * plan.c + channel() + k);
      out[0] = a[k];
      out[1] = b[k];
    }
  }
  // The elements of a channel that part blockIdx.y has.
  __device__ std::int64_t elements() const { return plan.elements(blockIdx.y, kColumns ? 1 : V); }
};
template <class T, int V, class S>
__device__ __forceinline__ Vec<T, V> chunk_at(const S* p, bool vectors) {
  if (vectors) return converted<T>(load<V>(p));
  Vec<T, V> v;
#pragma unroll
  for (int j = 0; j < V; ++j) v[j] = T(p[j]);
  return v;
}

// Four coefficients of a channel, or of a sample's channel.
template <class A>
struct alignas(16) Coefficients {
  A p, q, r, m;
};
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
// Moments of numbers whose parts come one by one: sums of the means' distances from the first, without a division each.
struct MomentSums {
  double count = 0, first = 0, distance = 0, square = 0;
  __device__ __forceinline__ void add(double n, double mean, double of_part) {
    if (count == 0) first = mean;
    const double d = mean - first;
    count += n;
    distance += n * d;
    square += of_part + n * d * d;
  }
  __device__ __forceinline__ Moments moments() const {
    if (!(count > 0)) return {};
    const double shift = distance / count;
    return {count, first + shift, square - distance * shift};
  }
};
template <class A>
__device__ __forceinline__ A or_else(const A* p, std::int64_t i, A missing) {
  return p != nullptr ? p[i] : missing;
}

// The forwards' coefficients: a team a channel of the plan, which has `per` rows of the table and as many parameters of
// c. unbiased may be null.
template <class A>
struct NormFinish {
  const A *w, *b;
  A eps;
  A *mean, *rstd, *unbiased;
  Running<A> running;
  Coefficients<A>* table;
  std::int64_t per, c;
  int v;  // elements of a plan's item that are of one channel
  LaneTeams teams;
  unsigned* ticket;  // null: in a launch of its own

  __device__ void write(const double* parts, const ChannelPlan& plan, std::int64_t k) const {
    MomentSums sums;
    teams.each(k, plan.parts, [&](std::int64_t part) {
      const double* const at = parts + 2 * (part * plan.c + k);
      sums.add(double(plan.elements(part, v)), at[0], at[1]);
    });
    const Moments of = teams.joined(sums.moments(), JoinMoments{});
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
    teams.each(k, per, [&](std::int64_t i) {
      table[row + i] = {A(0), scale * or_else(w, j + i, A(1)), or_else(b, j + i, A(0)), mu};
    });
  }
};
// gx = w rstd (gy - mean(gy) - h mean(gy h)); gw = sum gy h, gb = sum gy. A team a channel; table may be null.
template <class A>
struct GradientFinish {
  const A *w, *mean, *rstd;
  A *gw, *gb;
  Coefficients<A>* table;
  int v;
  LaneTeams teams;
  unsigned* ticket;

  __device__ void write(const double* parts, const ChannelPlan& plan, std::int64_t j) const {
    double of_g = 0, of_h = 0;
    teams.each(j, plan.parts, [&](std::int64_t part) {
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
};
struct NoFinish {
  unsigned* ticket = nullptr;
  LaneTeams teams{};
  __device__ void write(const double*, const ChannelPlan&, std::int64_t) const {}
};
// In the block that comes last, where the launch has tickets: of all blocks, or of those with the same columns.
template <bool kColumns, int V, class Finish>
__device__ __forceinline__ void finish_last(const Finish& finish, const double* parts, const ChannelPlan& plan) {
  if (finish.ticket == nullptr) return;
  unsigned* const ticket = finish.ticket + (kColumns ? blockIdx.x : 0u);
  if (!is_last_block(ticket, kColumns ? gridDim.y : gridDim.x * gridDim.y)) return;
  const std::int64_t channels = kColumns ? std::int64_t{V} << plan.across : plan.c,
                     first = kColumns ? blockIdx.x * channels : 0;
  finish.teams.by_one_block(first, first + channels, [&](std::int64_t k) { finish.write(parts, plan, k); });
}
template <class Finish>
__global__ void finish_channels(Finish finish, const double* parts, ChannelPlan plan) {
  finish.write(parts, plan, finish.teams.team());
}

}  // namespace levin::kernels::gpu
