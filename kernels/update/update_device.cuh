// Optimizer updates and gradient norms on devices: the contract of update.cuh, for all slots of a group in one launch.
//
// The device reads what changes from step to step from its memory, so a recorded step keeps learning: `numbers` holds
// {lr, momentum or beta1} in double, a slot's `step` is the device's. A SlotTable travels as an argument of the kernel.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

#include "kernels/device/block.cuh"
#include "kernels/device/last_block.cuh"
#include "kernels/device/rounding.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/executor/gpu.h"
#include "kernels/update/update_device.h"

namespace levin::kernels {

// The slots of one launch. S has `n`, its elements.
template <class S>
struct SlotTable {
  static constexpr int kMost = 384;
  int count = 0;
  S slots[kMost];
  // Slot k has the pieces [first_block[k], first_block[k + 1]), a block each unless the kernel sums.
  std::uint32_t first_block[kMost + 1] = {};

  [[nodiscard]] LEVIN_HD std::int64_t pieces() const { return first_block[count]; }
};

// Kernel arguments may have 32,764 bytes from compute capability 7.0 on; what travels beside a table has at most 128.
inline constexpr std::size_t kTableBytes = 32764 - 128;

inline constexpr int kUpdateThreads = 256;
inline constexpr std::int64_t kUpdateBlock = 4096;  // elements a block
template <class S>
inline constexpr std::int64_t kPiece = kUpdateBlock;  // elements a piece of a slot S

// A kernel whose last block finishes has one block at least, also for slots without elements.
[[nodiscard]] inline std::int64_t finishing_blocks(std::int64_t blocks) { return std::max<std::int64_t>(blocks, 1); }
// Blocks of a kernel that leaves a part of a sum a block, for so many pieces: at most as many as a device works on at
// once, which go over the pieces in turn, because one block adds up the parts. All devices have as many: the same bits.
[[nodiscard]] inline std::int64_t sum_blocks(std::int64_t pieces) {
  return std::clamp<std::int64_t>(pieces, 1, 132 * 8);
}
[[nodiscard]] inline Grid update_grid(std::int64_t blocks) {
  return {.blocks = static_cast<unsigned>(blocks), .threads = kUpdateThreads};
}

// Calls f(table, blocks) for tables of the slots in order, each laid out in blocks.
template <class S, class F>
void each_table(std::span<const S> slots, F&& f) {
  static_assert(sizeof(SlotTable<S>) <= kTableBytes);
  constexpr std::size_t kMost = SlotTable<S>::kMost;
  const auto table = std::make_unique<SlotTable<S>>();
  for (std::size_t begin = 0; begin < slots.size(); begin += kMost) {
    table->count = static_cast<int>(std::min(kMost, slots.size() - begin));
    std::int64_t blocks = 0;
    for (int k = 0; k < table->count; ++k) {
      table->slots[k] = slots[begin + static_cast<std::size_t>(k)];
      table->first_block[k] = static_cast<std::uint32_t>(blocks);
      blocks += (table->slots[k].n + kPiece<S> - 1) / kPiece<S>;
    }
    table->first_block[table->count] = static_cast<std::uint32_t>(blocks);
    f(*table, blocks);
  }
}

namespace gpu {

// What a block works on: a slot's elements [begin, end).
template <class S>
struct Piece {
  const S& slot;
  std::int64_t begin, end;
};
template <class S>
__device__ Piece<S> piece_of(const SlotTable<S>& table, std::int64_t block) {
  int low = 0, high = table.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (table.first_block[middle] <= block ? low : high) = middle;
  }
  const S& slot = table.slots[low];
  const std::int64_t begin = (block - table.first_block[low]) * kPiece<S>;
  return {slot, begin, begin + kPiece<S> < slot.n ? begin + kPiece<S> : slot.n};
}
// f(piece) for the pieces that a block of a kernel that sums goes over.
template <class S, class F>
__device__ void each_piece(const SlotTable<S>& table, F&& f) {
  for (std::int64_t k = blockIdx.x; k < table.pieces(); k += gridDim.x) f(piece_of(table, k));
}

// f(i, elements) for this thread's share of from[begin, end), V elements from i on at a time, in order. Four loads
// stand before the first use, so that they are in flight together. Elements past the end are 0.
template <int V, class T, class F>
__device__ __forceinline__ void each_loaded(const T* from, std::int64_t begin, std::int64_t end, bool vectors, F&& f) {
  constexpr int kAhead = 4;
  constexpr std::int64_t kStep = std::int64_t{kUpdateThreads} * V;
  for (std::int64_t i = begin + threadIdx.x * V; i < end; i += kAhead * kStep) {
    Vec<T, V> loads[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const std::int64_t at = i + k * kStep;
      if (at >= end) continue;
      if (vectors) {
        loads[k] = load<V>(from + at);
        continue;
      }
#pragma unroll
      for (int j = 0; j < V; ++j) loads[k][j] = at + j < end ? from[at + j] : T(0.0f);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      if (i + k * kStep < end) f(i + k * kStep, loads[k]);
  }
}

// Whether an overflow was found where gradients were checked: nothing may change then. Null: not checked.
__device__ inline bool skipped(const float* found_inf) { return found_inf && *found_inf != 0; }

// One element's update: p, its gradient and the slot's arrays a, b, c. Those a slot has not are dummies.
template <class T>
struct SgdStep {
  T lr, wd, sign, keep, take, of_grad, of_buffer;
  __device__ SgdStep(const SgdRule& r, const double* numbers, std::int64_t step)
      : lr(T(numbers[0])), wd(T(r.weight_decay)), sign(r.maximize ? T(-1) : T(1)) {
    const T mu = T(numbers[1]);
    keep = step == 1 ? T(0) : mu;
    take = step == 1 ? T(1) : T(1 - r.dampening);
    of_grad = r.nesterov ? T(1) : T(0);
    of_buffer = r.nesterov ? mu : T(1);
  }
  template <class P>
  __device__ void operator()(const Slot<P>& s, T& p, T g, T& a, T&, T&) const {
    const T d = sign * g + wd * p;
    if (!s.a) {
      p -= lr * d;
      return;
    }
    a = keep * a + take * d;
    p -= lr * (of_grad * d + of_buffer * a);
  }
};

template <class T>
struct AdamStep {
  T b1, b2, c1, c2, eps, sign, step_size, shrink, wd;
  __device__ AdamStep(const AdamRule& r, const double* numbers, std::int64_t step) {
    const double lr = numbers[0], beta1 = numbers[1], t = static_cast<double>(step);
    const double root = ::sqrt(1 - ::pow(r.beta2, t));  // Note [One division]
    b1 = T(beta1), b2 = T(r.beta2), c1 = T(1 - beta1), c2 = T(1 - r.beta2), eps = T(r.added(root));
    sign = r.maximize ? T(-1) : T(1);
    step_size = T(lr / (1 - ::pow(beta1, t)) * root);
    shrink = r.decoupled ? T(1 - lr * r.weight_decay) : T(1);
    wd = r.decoupled ? T(0) : T(r.weight_decay);
  }
  template <class P>
  __device__ void operator()(const Slot<P>& s, T& p, T g, T& a, T& b, T& c) const {
    const T d = sign * g + wd * p;
    a = b1 * a + c1 * d;
    b = b2 * b + c2 * d * d;
    T most = b;
    if (s.c) most = c = b > c ? b : c;
    p = p * shrink - step_size * a / (::sqrt(most) + eps);
  }
};

template <class T>
struct RmspropStep {
  T lr, wd, alpha, rest, eps, mu, sign;
  __device__ RmspropStep(const RmspropRule& r, const double* numbers, std::int64_t)
      : lr(T(numbers[0])),
        wd(T(r.weight_decay)),
        alpha(T(r.alpha)),
        rest(T(1 - r.alpha)),
        eps(T(r.eps)),
        mu(T(numbers[1])),
        sign(r.maximize ? T(-1) : T(1)) {}
  template <class P>
  __device__ void operator()(const Slot<P>& s, T& p, T g, T& a, T& b, T& c) const {
    const T d = sign * g + wd * p;
    a = alpha * a + rest * d * d;
    T spread = a;
    if (s.c) {
      c += rest * (d - c);
      spread = a - c * c;
    }
    T change = d / (::sqrt(spread) + eps);
    if (s.b) b = change = mu * b + change;
    p -= lr * change;
  }
};

template <class T>
struct AdagradStep {
  T lr, wd, eps, sign;
  __device__ AdagradStep(const AdagradRule& r, const double* numbers, std::int64_t step)
      : lr(T(numbers[0] / (1 + static_cast<double>(step - 1) * r.lr_decay))),
        wd(T(r.weight_decay)),
        eps(T(r.eps)),
        sign(r.maximize ? T(-1) : T(1)) {}
  template <class P>
  __device__ void operator()(const Slot<P>&, T& p, T g, T& a, T&, T&) const {
    const T d = sign * g + wd * p;
    a += d * d;
    p -= lr * d / (::sqrt(a) + eps);
  }
};

// NAdam and RAdam.
template <class T>
struct MeanStep {
  T b1, b2, c1, c2, eps, sign, shrink, wd, of_grad, of_mean;
  bool plain;
  __device__ MeanStep(const NadamRule& r, const double* numbers, std::int64_t step) {
    set(r, numbers, nadam_factors(r, numbers[0], numbers[1], step));
  }
  __device__ MeanStep(const RadamRule& r, const double* numbers, std::int64_t step) {
    set(r, numbers, radam_factors(r, numbers[0], numbers[1], step));
  }
  template <class P>
  __device__ void operator()(const Slot<P>&, T& p, T g, T& a, T& b, T&) const {
    const T d = sign * g + wd * p;
    a = b1 * a + c1 * d;
    b = b2 * b + c2 * d * d;
    const T spread = plain ? T(1) : ::sqrt(b) + eps;
    p = p * shrink - (of_grad * d + of_mean * a) / spread;
  }

 private:
  template <class R>
  __device__ void set(const R& r, const double* numbers, const MeanFactors& f) {
    b1 = T(numbers[1]), b2 = T(r.beta2), c1 = T(1 - numbers[1]), c2 = T(1 - r.beta2);
    sign = r.maximize ? T(-1) : T(1);
    shrink = r.decoupled ? T(1 - numbers[0] * r.weight_decay) : T(1);
    wd = r.decoupled ? T(0) : T(r.weight_decay);
    // Note [One division]
    eps = T(r.eps * f.root), of_grad = T(f.of_grad * f.root), of_mean = T(f.of_mean * f.root);
    plain = f.plain;
  }
};

template <class T>
struct AdamaxStep {
  T b1, b2, c1, eps, wd, sign, step_size;
  __device__ AdamaxStep(const AdamaxRule& r, const double* numbers, std::int64_t step)
      : b1(T(numbers[1])),
        b2(T(r.beta2)),
        c1(T(1 - numbers[1])),
        eps(T(r.eps)),
        wd(T(r.weight_decay)),
        sign(r.maximize ? T(-1) : T(1)),
        step_size(T(numbers[0] / (1 - ::pow(numbers[1], static_cast<double>(step))))) {}
  template <class P>
  __device__ void operator()(const Slot<P>&, T& p, T g, T& a, T& b, T&) const {
    const T d = sign * g + wd * p;
    a = b1 * a + c1 * d;
    const T kept = b2 * b, now = (d < T(0) ? -d : d) + eps;
    b = kept > now || kept != kept ? kept : now;
    p -= step_size * a / b;
  }
};

template <class T>
struct AdadeltaStep {
  T lr, rho, rest, eps, wd, sign;
  __device__ AdadeltaStep(const AdadeltaRule& r, const double* numbers, std::int64_t)
      : lr(T(numbers[0])),
        rho(T(r.rho)),
        rest(T(1 - r.rho)),
        eps(T(r.eps)),
        wd(T(r.weight_decay)),
        sign(r.maximize ? T(-1) : T(1)) {}
  template <class P>
  __device__ void operator()(const Slot<P>&, T& p, T g, T& a, T& b, T&) const {
    const T d = sign * g + wd * p;
    a = rho * a + rest * d * d;
    const T change = ::sqrt(b + eps) / ::sqrt(a + eps) * d;
    b = rho * b + rest * change * change;
    p -= lr * change;
  }
};

template <class T>
struct LionStep {
  T lr, b1, c1, b2, c2, shrink, sign;
  __device__ LionStep(const LionRule& r, const double* numbers, std::int64_t)
      : lr(T(numbers[0])),
        b1(T(numbers[1])),
        c1(T(1 - numbers[1])),
        b2(T(r.beta2)),
        c2(T(1 - r.beta2)),
        shrink(T(1 - numbers[0] * r.weight_decay)),
        sign(r.maximize ? T(-1) : T(1)) {}
  template <class P>
  __device__ void operator()(const Slot<P>&, T& p, T g, T& a, T&, T&) const {
    const T d = sign * g;
    const T way = sign_of(b1 * a + c1 * d);
    a = b2 * a + c2 * d;
    p = p * shrink - lr * way;
  }
};

template <class T>
struct AsgdStep {
  T eta, shrink, mu, wd, sign;
  bool follows;
  __device__ AsgdStep(const AsgdRule& r, const double* numbers, std::int64_t step)
      : wd(T(r.weight_decay)), sign(r.maximize ? T(-1) : T(1)) {
    const AsgdFactors f = asgd_factors(r, numbers[0], step);
    eta = T(f.eta), shrink = T(1 - r.lambd * f.eta), mu = T(f.mu);
    follows = f.mu == 1;
  }
  template <class P>
  __device__ void operator()(const Slot<P>&, T& p, T g, T& a, T&, T&) const {
    const T d = sign * g + wd * p;
    p = p * shrink - eta * d;
    a = follows ? p : a + mu * (p - a);
  }
};

template <class T>
struct RpropStep {
  T down, up, least, most, sign;
  __device__ RpropStep(const RpropRule& r, const double*, std::int64_t)
      : down(T(r.eta_minus)), up(T(r.eta_plus)), least(T(r.least)), most(T(r.most)), sign(r.maximize ? T(-1) : T(1)) {}
  template <class P>
  __device__ void operator()(const Slot<P>&, T& p, T gradient, T& a, T& b, T&) const {
    const T g = sign * gradient, way = sign_of(g * a);
    const T size = b * (way > T(0) ? up : way < T(0) ? down : way == T(0) ? T(1) : way);
    b = size < least ? least : size > most ? most : size;
    a = way < T(0) ? T(0) : g;
    p -= sign_of(a) * b;
  }
};

template <class R, class T>
struct StepOf;
template <class T>
struct StepOf<SgdRule, T> : std::type_identity<SgdStep<T>> {};
template <class T>
struct StepOf<AdamRule, T> : std::type_identity<AdamStep<T>> {};
template <class T>
struct StepOf<RmspropRule, T> : std::type_identity<RmspropStep<T>> {};
template <class T>
struct StepOf<AdagradRule, T> : std::type_identity<AdagradStep<T>> {};
template <class T>
struct StepOf<NadamRule, T> : std::type_identity<MeanStep<T>> {};
template <class T>
struct StepOf<RadamRule, T> : std::type_identity<MeanStep<T>> {};
template <class T>
struct StepOf<AdamaxRule, T> : std::type_identity<AdamaxStep<T>> {};
template <class T>
struct StepOf<AdadeltaRule, T> : std::type_identity<AdadeltaStep<T>> {};
template <class T>
struct StepOf<LionRule, T> : std::type_identity<LionStep<T>> {};
template <class T>
struct StepOf<AsgdRule, T> : std::type_identity<AsgdStep<T>> {};
template <class T>
struct StepOf<RpropRule, T> : std::type_identity<RpropStep<T>> {};

// p = value, rounded once; the four words of a stochastic rounding serve elements i - i % 4 and on.
template <int V, class T>
__device__ void round_parameters(const Slot<T>& s, std::int64_t step, std::int64_t i, const Accum<T> (&value)[V],
                                 Vec<T, V>& p) {
  if constexpr (sizeof(T) == 2) {
    if (s.stochastic) {
      PhiloxBlock words{};
      for (int j = 0; j < V; ++j) {
        const std::int64_t element = s.first + i + j;
        const int k = static_cast<int>(element % 4);
        if (j == 0 || k == 0) words = rounding_words(static_cast<std::uint64_t>(step), s.parameter, element);
        p[j] = round_stochastically<T>(value[j], k == 0 ? words.x0 : k == 1 ? words.x1 : k == 2 ? words.x2 : words.x3);
      }
      return;
    }
  }
  for (int j = 0; j < V; ++j) p[j] = T(value[j]);
}

// A master's elements from i on, in the type of its parameter.
template <int V>
__device__ void round_master(const Slot<float>& s, std::int64_t i, const Vec<float, V>& p) {
  const auto put = [&]<class H>(H* to) {
    Vec<H, V> rounded;
    for (int j = 0; j < V; ++j) rounded[j] = H(p[j]);
    store(to + i, rounded);
  };
  if (s.rounded_as == Half::f16) put(static_cast<f16*>(s.rounded));
  if (s.rounded_as == Half::bf16) put(static_cast<bf16*>(s.rounded));
}
// p[i .. i + V) in memory.
template <int V, class T>
__device__ void store_parameters(const Slot<T>& s, std::int64_t i, const Vec<T, V>& p) {
  store(s.p + i, p);
  if constexpr (std::is_same_v<T, float>) round_master(s, i, p);
}

// What gradients are multiplied by on their way from memory. Read again for each vector: f64 factors in registers would
// cost occupancy.
template <class A>
struct Products {
  const double* factors;  // [2]; null: {1, 1}
  // Rounded to T, where the first factor of 16-bit gradients is 1.
  template <class T>
  __device__ A operator()(T g) const {
    const A x = static_cast<A>(g);
    return factors ? static_cast<A>(static_cast<T>(x * A(factors[0]) * A(factors[1]))) : x;
  }
};
template <int V, class T>
__device__ void load_gradients(const T* g, const Products<Accum<T>>& products, Accum<T> (&to)[V]) {
  const Vec<T, V> from = load<V>(g);
  for (int j = 0; j < V; ++j) to[j] = products(from[j]);
}
// 16-bit gradients of f32 parameters: their products are f32.
template <int V, class H>
__device__ void load_wide(const float* g, std::int64_t i, const Products<float>& products, float (&to)[V]) {
  const Vec<H, V> from = load<V>(reinterpret_cast<const H*>(g) + i);
  for (int j = 0; j < V; ++j) to[j] = products(static_cast<float>(from[j]));
}
template <int V, class T>
__device__ void load_gradients(const Slot<T>& s, std::int64_t i, const Products<Accum<T>>& products,
                               Accum<T> (&to)[V]) {
  if constexpr (std::is_same_v<T, float>) {
    if (s.half == Half::f16) return load_wide<V, f16>(s.g, i, products, to);
    if (s.half == Half::bf16) return load_wide<V, bf16>(s.g, i, products, to);
  }
  load_gradients<V>(s.g + i, products, to);
}

// Whether elements [begin, end) of a slot can be moved V at a time.
template <int V, class T>
__device__ bool takes_vectors(const Slot<T>& s, std::int64_t begin, std::int64_t end) {
  return (end - begin) % V == 0 && aligned16(s.p) && aligned16(s.g) && aligned16(s.a) && aligned16(s.b) &&
         aligned16(s.c) && aligned16(s.rounded);
}

template <int V, class F, class T>
__device__ void update_elements(const F& f, const Slot<T>& s, const Products<Accum<T>>& products, std::int64_t step,
                                std::int64_t begin, std::int64_t end) {
  using S = Accum<T>;
  for (std::int64_t i = begin + threadIdx.x * V; i < end; i += std::int64_t{kUpdateThreads} * V) {
    Vec<T, V> p = load<V>(s.p + i);
    Vec<S, V> a{}, b{}, c{};
    S g[V];
    load_gradients<V>(s, i, products, g);
    if (s.a) a = load<V>(s.a + i);
    if (s.b) b = load<V>(s.b + i);
    if (s.c) c = load<V>(s.c + i);
    S value[V];
    for (int j = 0; j < V; ++j) {
      value[j] = static_cast<S>(p[j]);
      f(s, value[j], g[j], a[j], b[j], c[j]);
    }
    round_parameters<V>(s, step, i, value, p);
    store_parameters(s, i, p);
    if (s.a) store(s.a + i, a);
    if (s.b) store(s.b + i, b);
    if (s.c) store(s.c + i, c);
  }
}

// A slot's count of steps grows when all blocks have read it.
template <class R, class T>
__global__ void update(const __grid_constant__ SlotTable<Slot<T>> table, R rule, const double* numbers,
                       const float* found_inf, const double* factors, unsigned* ticket) {
  using A = Accum<T>;
  using Step = typename StepOf<R, A>::type;
  if (skipped(found_inf)) return;
  const auto [s, begin, end] = piece_of(table, blockIdx.x);
  // Powers in double are worth computing once a block.
  LEVIN_SHARED(Step, shared, 1);
  const std::int64_t step = *s.step + 1;
  if (threadIdx.x == 0) *shared = Step(rule, numbers, step);
  __syncthreads();
  const Step f = *shared;
  const Products<A> products{factors};
  constexpr int V = kVec<A>;
  if (takes_vectors<V>(s, begin, end))
    update_elements<V>(f, s, products, step, begin, end);
  else
    update_elements<1>(f, s, products, step, begin, end);
  if (!is_last_block(ticket, gridDim.x)) return;
  for (int k = static_cast<int>(threadIdx.x); k < table.count; k += kUpdateThreads) ++*table.slots[k].step;
}

template <class T>
struct LambStep {
  T b1, b2, c1, c2, eps, wd, sign, of_mean;
  __device__ LambStep(const LambRule& r, const double* numbers, std::int64_t step)
      : b1(T(numbers[1])),
        b2(T(r.beta2)),
        c1(T(1 - numbers[1])),
        c2(T(1 - r.beta2)),
        wd(T(r.weight_decay)),
        sign(r.maximize ? T(-1) : T(1)) {
    const double t = static_cast<double>(step), root = ::sqrt(1 - ::pow(r.beta2, t));  // Note [One division]
    eps = T(r.eps * root);
    of_mean = T(root / (1 - ::pow(numbers[1], t)));
  }
  __device__ void average(T g, T& a, T& b) const {
    const T d = sign * g;
    a = b1 * a + c1 * d;
    b = b2 * b + c2 * d * d;
  }
  __device__ T direction(T p, T a, T b) const { return of_mean * a / (::sqrt(b) + eps) + wd * p; }
};
// The first pass of LAMB. partial[2 block] and the next: the squares of p and of its direction, summed over the block;
// ratios[slot] is made by the last block.
template <class T>
__global__ void lamb_ratios(const __grid_constant__ SlotTable<Slot<T>> table, LambRule rule, const double* numbers,
                            const float* found_inf, const double* factors, double* partial, double* ratios,
                            unsigned* ticket) {
  using A = Accum<T>;
  if (skipped(found_inf)) return;
  LEVIN_SHARED(double, scratch, kUpdateThreads / 32);
  LEVIN_SHARED(LambStep<A>, shared, 1);
  const auto [s, begin, end] = piece_of(table, blockIdx.x);
  if (threadIdx.x == 0) *shared = LambStep<A>(rule, numbers, *s.step + 1);
  __syncthreads();
  const LambStep<A> f = *shared;
  const Products<A> products{factors};
  double of_p = 0, of_u = 0;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kUpdateThreads) {
    A g[1], a = s.a[i], b = s.b[i];
    const A p = static_cast<A>(s.p[i]);
    load_gradients<1>(s, i, products, g);
    f.average(g[0], a, b);
    s.a[i] = a;
    s.b[i] = b;
    const A u = f.direction(p, a, b);
    of_p += static_cast<double>(p) * static_cast<double>(p);
    of_u += static_cast<double>(u) * static_cast<double>(u);
  }
  of_p = block_sum<kUpdateThreads>(of_p, scratch);
  __syncthreads();
  of_u = block_sum<kUpdateThreads>(of_u, scratch);
  if (threadIdx.x == 0) {
    partial[2 * std::int64_t{blockIdx.x}] = of_p;
    partial[2 * std::int64_t{blockIdx.x} + 1] = of_u;
  }
  if (!is_last_block(ticket, gridDim.x)) return;
  for (int k = static_cast<int>(threadIdx.x); k < table.count; k += kUpdateThreads) {
    double p = 0, u = 0;
    for (std::int64_t i = table.first_block[k]; i < table.first_block[k + 1]; ++i) {
      p += partial[2 * i];
      u += partial[2 * i + 1];
    }
    ratios[k] = lamb_ratio(p, u);
  }
}
template <int V, class T>
__device__ void apply_lamb(const LambStep<Accum<T>>& f, Accum<T> rate, const Slot<T>& s, std::int64_t step,
                           std::int64_t begin, std::int64_t end) {
  using A = Accum<T>;
  for (std::int64_t i = begin + threadIdx.x * V; i < end; i += std::int64_t{kUpdateThreads} * V) {
    Vec<T, V> p = load<V>(s.p + i);
    const Vec<A, V> a = load<V>(s.a + i), b = load<V>(s.b + i);
    A value[V];
    for (int j = 0; j < V; ++j) {
      const A old = static_cast<A>(p[j]);
      value[j] = old - rate * f.direction(old, a[j], b[j]);
    }
    round_parameters<V>(s, step, i, value, p);
    store_parameters(s, i, p);
  }
}
// The second pass. Counts of steps grow as in `update`.
template <class T>
__global__ void lamb_apply(const __grid_constant__ SlotTable<Slot<T>> table, LambRule rule, const double* numbers,
                           const float* found_inf, const double* ratios, unsigned* ticket) {
  using A = Accum<T>;
  if (skipped(found_inf)) return;
  LEVIN_SHARED(LambStep<A>, shared, 1);
  LEVIN_SHARED(A, rate, 1);
  const auto [s, begin, end] = piece_of(table, blockIdx.x);
  const std::int64_t step = *s.step + 1;
  if (threadIdx.x == 0) {
    int k = 0;
    while (k + 1 < table.count && table.first_block[k + 1] <= blockIdx.x) ++k;
    *shared = LambStep<A>(rule, numbers, step);
    *rate = A(numbers[0] * ratios[k]);
  }
  __syncthreads();
  const LambStep<A> f = *shared;
  constexpr int V = kVec<A>;
  if (takes_vectors<V>(s, begin, end))
    apply_lamb<V>(f, *rate, s, step, begin, end);
  else
    apply_lamb<1>(f, *rate, s, step, begin, end);
  if (!is_last_block(ticket, gridDim.x)) return;
  for (int k = static_cast<int>(threadIdx.x); k < table.count; k += kUpdateThreads) ++*table.slots[k].step;
}

// ---- The norm of all gradients, and what clipping does with it. Only `g` of a slot is read; scaling writes through
// it.

__device__ __forceinline__ void write_factors(const Factors& to, double inverse_scale, double norm) {
  if (!to.at) return;
  const double clip = to.max_norm / (norm + 1e-6);
  to.at[0] = inverse_scale;
  to.at[1] = to.max_norm < 0 || clip >= 1 ? 1 : clip;
}
// One block: norm = (sum of n partials)^(1 / power).
__device__ inline void norm_of_sums(const double* partial, std::int64_t n, double power, double* norm,
                                    const Factors& factors) {
  LEVIN_SHARED(double, scratch, kUpdateThreads / 32);
  const bool largest = power > 1e300;
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += kUpdateThreads)
    sum = largest ? Larger{}(partial[i], sum) : sum + partial[i];
  sum = largest ? block_max<kUpdateThreads>(sum, scratch) : block_sum<kUpdateThreads>(sum, scratch);
  if (threadIdx.x > 0) return;
  *norm = largest ? sum : power == 2 ? ::sqrt(sum) : ::pow(sum, 1 / power);
  write_factors(factors, 1, *norm);
}
// partial[first + block] = sum of |g|^power over the block's pieces in double, or their maximum for power = inf; NaN
// stays NaN. The last block of the last table, which has a norm, makes the norm of all.
template <class T>
__global__ void power_sums(const __grid_constant__ SlotTable<Slot<T>> table, double power, double* partial,
                           std::int64_t first, double* norm, Factors factors, unsigned* ticket) {
  LEVIN_SHARED(double, scratch, kUpdateThreads / 32);
  constexpr int V = kVec<T>;
  const bool largest = power > 1e300;
  // join(sum, magnitude) for this thread's elements, in an order that does not depend on how they lie in memory.
  const auto joined = [&](const auto& join) {
    double sum = 0;
    each_piece(table, [&](const Piece<Slot<T>>& piece) {
      const bool vectors = (piece.end - piece.begin) % V == 0 && aligned16(piece.slot.g);
      each_loaded<V>(piece.slot.g, piece.begin, piece.end, vectors, [&](std::int64_t, const Vec<T>& g) {
#pragma unroll
        for (int j = 0; j < V; ++j) sum = join(sum, ::fabs(static_cast<double>(static_cast<Accum<T>>(g[j]))));
      });
    });
    return sum;
  };
  double sum = largest      ? joined([](double all, double v) { return Larger{}(v, all); })
               : power == 2 ? joined([](double all, double v) { return all + v * v; })
                            : joined([=](double all, double v) { return all + ::pow(v, power); });
  sum = largest ? block_max<kUpdateThreads>(sum, scratch) : block_sum<kUpdateThreads>(sum, scratch);
  if (threadIdx.x == 0) partial[first + blockIdx.x] = sum;
  if (norm == nullptr || !is_last_block(ticket, gridDim.x)) return;
  norm_of_sums(partial, first + gridDim.x, power, norm, factors);
}
// g *= min(1, max_norm / (norm + 1e-6)), norm read from the device; a NaN norm spreads.
template <class T>
__global__ void scale_to_norm(const __grid_constant__ SlotTable<Slot<T>> table, double max_norm, const double* norm) {
  const double factor = max_norm / (*norm + 1e-6);
  if (factor >= 1) return;
  const auto [s, begin, end] = piece_of(table, blockIdx.x);
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kUpdateThreads)
    s.p[i] = T(static_cast<Accum<T>>(s.p[i]) * Accum<T>(factor));
}
// g /= *by, read from the device
template <class T>
__global__ void divide_all(const __grid_constant__ SlotTable<Slot<T>> table, const double* by) {
  const double factor = 1 / *by;
  const auto [s, begin, end] = piece_of(table, blockIdx.x);
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kUpdateThreads)
    s.p[i] = T(static_cast<Accum<T>>(s.p[i]) * Accum<T>(factor));
}
// g = value
template <class T>
__global__ void fill_all(const __grid_constant__ SlotTable<Slot<T>> table, double value) {
  const auto [s, begin, end] = piece_of(table, blockIdx.x);
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kUpdateThreads) s.p[i] = T(static_cast<Accum<T>>(value));
}
// g = clamp(g, -limit, limit)
template <class T>
__global__ void clamp_all(const __grid_constant__ SlotTable<Slot<T>> table, double limit) {
  const auto [s, begin, end] = piece_of(table, blockIdx.x);
  using A = Accum<T>;
  const A high = static_cast<A>(T(limit));
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kUpdateThreads) {
    const A v = static_cast<A>(s.p[i]);
    s.p[i] = T(v > high ? high : v < -high ? -high : v);
  }
}

}  // namespace gpu
}  // namespace levin::kernels
