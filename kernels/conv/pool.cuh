// Pooling over [planes, height, width] to [planes, h.out, w.out]; a plane is one channel of one image. Tensors
// contiguous, T: float, double, f16, bf16; sums in Accum<T>.
//
//   max_pool(on, x, planes, h, w, y, index)        y = the largest of the window (the first of equals; NaN wins),
//                                                  index = its place in the plane, y * width + x; may be null
//   max_pool_scatter(on, gy, index, planes, h, w, gx)   gx[index] += gy, 0 elsewhere: the gradient
//   max_pool_gather(on, x, index, planes, h, w, y)      y = x[index]: the gradient's gradient
//   avg_pool(on, x, planes, h, w, y)                    y = sum of the window / (h.count * w.count)
//   avg_pool_backward(on, gy, planes, h, w, gx)         spreads gy / count over the window; overlaps add in order
//
// A plane belongs to one task, so results do not depend on the number of threads. No window is empty.
//
// pool_device.cuh has the kernels of devices.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_POOL_CUH
#define LEVIN_KERNELS_POOL_CUH

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/executor/cpu.h"
#include "kernels/executor/hd.h"
#include "kernels/lib/scratch.h"
#include "kernels/reduce/row_sums.cuh"
#include "levin/dtype.h"

namespace levin::kernels {

// How a quotient of two numbers of which neither is negative is taken.
struct Divided {
  template <class Int>
  LEVIN_HD Int operator()(Int n, Int divisor) const {
    return n / divisor;
  }
};

// The windows along one axis: output o sees inputs [begin(o), end(o)), of dilated windows (Dilated) every step()th of
// them. Int holds every number of the formulas.
template <class Int, class Quotient>
struct WindowsAlong {
  using Place = Int;
  Int in = 0, out = 0;
  Int kernel = 1, stride = 1, padding = 0;  // adaptive axes cut `in` into `out` parts instead
  Int dilation = 1;                         // kernel is a window with its gaps
  bool adaptive = false;
  bool count_padding = false;  // an average divides by padded elements too
  Quotient by_in{}, by_out{}, by_stride{};

  LEVIN_HD Int begin(Int o) const { return adaptive ? by_out(o * in, out) : larger(0, o * stride - padding); }
  LEVIN_HD Int end(Int o) const {
    return adaptive ? by_out((o + 1) * in + out - 1, out) : smaller(in, o * stride - padding + kernel);
  }
  LEVIN_HD Int count(Int o) const {
    if (adaptive || !count_padding) return end(o) - begin(o);
    const Int first = o * stride - padding;
    return smaller(first + kernel, in + padding) - first;
  }
  // From an element of a window to the next.
  LEVIN_HD static constexpr Int step() { return 1; }
  // The windows that see input i, or have a gap there: [first_window(i), last_window(i)].
  LEVIN_HD Int first_window(Int i) const {
    if (adaptive) return by_in(i * out, in);
    const Int room = i + padding - kernel;
    return room < 0 ? 0 : by_stride(room, stride) + 1;
  }
  LEVIN_HD Int last_window(Int i) const {
    return smaller(out, (adaptive ? by_in((i + 1) * out - 1, in) : by_stride(i + padding, stride)) + 1) - 1;
  }

 private:
  LEVIN_HD static Int larger(Int a, Int b) { return a > b ? a : b; }
  LEVIN_HD static Int smaller(Int a, Int b) { return a < b ? a : b; }
};
using PoolAxis = WindowsAlong<std::int64_t, Divided>;

// The same windows for loops over their elements where `dilation` may be above 1.
template <class Along>
struct Dilated : Along {
  using Int = typename Along::Place;
  LEVIN_HD Int step() const { return this->dilation; }
  LEVIN_HD Int begin(Int o) const {
    const Int first = o * this->stride - this->padding;
    return first < 0 ? first + (this->dilation - 1 - first) / this->dilation * this->dilation : first;
  }
};
[[nodiscard]] inline bool are_dilated(const PoolAxis& h, const PoolAxis& w) {
  return h.dilation != 1 || w.dilation != 1;
}

// n in the type of the sums. A device converts 32 bits four times as fast as 64.
template <class A>
LEVIN_HD A as_divisor(std::int64_t n) {
  const auto low = static_cast<std::int32_t>(n);
  return low == n ? A(low) : A(n);
}

// One window of a plane, which is at `in`: output (i, j) of axes h and w. The place of its largest element in the
// plane.
template <class T, class Axis, class Int = typename Axis::Place>
LEVIN_HD Int largest_of_window(const T* in, const Axis& h, const Axis& w, Int i, Int j) {
  const Int r1 = h.end(i), c0 = w.begin(j), c1 = w.end(j);
  Int place = h.begin(i) * w.in + c0;
  auto best = Accum<T>(in[place]);
  for (Int r = h.begin(i); r < r1; r += h.step()) {
    for (Int c = c0; c < c1; c += w.step()) {
      const auto v = Accum<T>(in[r * w.in + c]);
      if (v > best || v != v) {
        best = v;
        place = r * w.in + c;
      }
    }
  }
  return place;
}
// Its average.
template <class T, class Axis, class Int = typename Axis::Place>
LEVIN_HD T average_of_window(const T* in, const Axis& h, const Axis& w, Int i, Int j) {
  const Int r1 = h.end(i), c0 = w.begin(j), c1 = w.end(j);
  Accum<T> sum = 0;
  for (Int r = h.begin(i); r < r1; ++r) {
    for (Int c = c0; c < c1; ++c) sum += Accum<T>(in[r * w.in + c]);
  }
  return T(sum / as_divisor<Accum<T>>(std::int64_t{h.count(i)} * w.count(j)));
}

// Planes a task: about 16 K elements. Both passes of a small volume then have tasks for several cores.
inline std::int64_t planes_at_once(const PoolAxis& h, const PoolAxis& w) {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, h.in * w.in));
}

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/conv/pool.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK(max_pool)
LEVIN_PICK(max_pool_scatter)
LEVIN_PICK(max_pool_gather)
LEVIN_PICK(avg_pool)
LEVIN_PICK(avg_pool_backward)
}  // namespace levin::kernels::cpu

#endif  // LEVIN_KERNELS_POOL_CUH
#else

namespace levin::kernels::cpu::LEVIN_LEVEL {

// Note [Padded planes]
// The windows of a plane are taken from a copy of it in Accum<T>, whose rows have room for the windows that reach over
// the edge: `neutral` numbers, which change no result. A row of results is then computed a block at a time, each tap of
// the windows for the whole block, without a branch; rows of few results would else be scalar code that mispredicts
// half of its comparisons. Of one result the taps come in the order of its window. A plane of Accum<T> whose windows
// stay inside of its rows serves where it lies. Windows that do not fill blocks go one by one, and so do those of axes
// that cut a plane into parts (adaptive ones).
template <class T>
inline constexpr int kWindows = LEVIN_VECTOR_BYTES / int(sizeof(Accum<T>));
// Of a block: a vector of windows, or half a vector where that holds a row.
template <class T>
inline int block_of(const PoolAxis& w) {
  return LEVIN_VECTOR_BYTES < 64 || 2 * w.out > kWindows<T> ? kWindows<T> : kWindows<T> / 2;
}

template <class T>
class PaddedPlane {
 public:
  using A = Accum<T>;
  PaddedPlane(const PoolAxis& h, const PoolAxis& w, A neutral)
      : h_(h), w_(w), width_(width_of(w)), memory_(in_place() ? 0 : size_t(h.in * width_) * sizeof(A)) {
    if (in_place()) return;
    rows_ = memory_.template as<A>();
    std::fill_n(rows_, h.in * width_, neutral);
  }
  // Windows of a row of results, those that fill its last block too.
  static std::int64_t windows_of(const PoolAxis& w) {
    const std::int64_t block = block_of<T>(w);
    return (w.out + block - 1) / block * block;
  }
  static std::int64_t width_of(const PoolAxis& w) {
    return std::max(w.padding + w.in, (windows_of(w) - 1) * w.stride + w.kernel);
  }
  // Whether windows along w go by blocks. Few of them would fill less than half a block, and the room for the others of
  // a block would be larger than the plane where they are far apart.
  static bool suits(const PoolAxis& w) {
    return !w.adaptive && 2 * w.out >= block_of<T>(w) && width_of(w) <= 2 * (w.in + 2 * w.padding);
  }
  // Row r, from the first tap of window 0 on.
  const A* row(std::int64_t r) const { return read_ + r * width_; }
  A* row_of_sums(std::int64_t r) const { return rows_ + r * width_; }
  void read(const T* in) {
    if constexpr (std::is_same_v<A, T>) {
      if (in_place()) return void(read_ = in);
    }
    read_ = rows_;
    for (std::int64_t r = 0; r < h_.in; ++r) {
      A* const to = row_of_sums(r) + w_.padding;
      for (std::int64_t c = 0; c < w_.in; ++c) to[c] = A(in[r * w_.in + c]);
    }
  }
  // Sums for `out` begin at 0; write(out) ends them.
  void begin_sums(T* out) {
    if constexpr (std::is_same_v<A, T>) {
      if (in_place()) rows_ = out;
    }
    std::fill_n(rows_, h_.in * width_, A(0));
  }
  void write(T* out) const {
    if (in_place()) return;
    for (std::int64_t r = 0; r < h_.in; ++r) {
      const A* const from = row_of_sums(r) + w_.padding;
      for (std::int64_t c = 0; c < w_.in; ++c) out[r * w_.in + c] = T(from[c]);
    }
  }

 private:
  bool in_place() const { return std::is_same_v<A, T> && width_ == w_.in; }

  PoolAxis h_, w_;
  std::int64_t width_;
  lib::Scratch memory_;
  A* rows_ = nullptr;
  const A* read_ = nullptr;
};

// f.operator()<S, L>(): S is the stride of the windows along w where vector code can use a constant, else 0; L is the
// number of windows of a block.
template <class T, int S, class F>
void with_block(const PoolAxis& w, F&& f) {
  if (block_of<T>(w) == kWindows<T>) return f.template operator()<S, kWindows<T>>();
  if constexpr (LEVIN_VECTOR_BYTES == 64) f.template operator()<S, kWindows<T> / 2>();
}
template <class T, class F>
void with_windows(const PoolAxis& w, F&& f) {
  if (w.stride == 1) return with_block<T, 1>(w, f);
  if (w.stride == 2) return with_block<T, 2>(w, f);
  with_block<T, 0>(w, f);
}

// A number, and a place, for each window of a block.
template <class A, int L>
struct BlockOf {
  using Int = std::conditional_t<sizeof(A) == 8, std::int64_t, std::int32_t>;
  typedef A Numbers __attribute__((vector_size(L * sizeof(A))));
  typedef Int Places __attribute__((vector_size(L * sizeof(A))));
};

// Of 2 L - 1 numbers, the last of which end `second`, those at even places.
template <class V, int... I>
[[gnu::always_inline]] inline void every_second(const V& first, const V& second, V& v,
                                                std::integer_sequence<int, I...>) {
  constexpr int L = sizeof...(I);
#if defined(__clang__)
  v = __builtin_shufflevector(first, second, (2 * I < L ? 2 * I : 2 * I + 1)...);
#else  // nvcc's front end does not know clang's builtin
  using Int = std::conditional_t<sizeof(V) / L == 8, std::int64_t, std::int32_t>;
  typedef Int Places __attribute__((vector_size(sizeof(V))));
  v = __builtin_shuffle(first, second, Places{(2 * I < L ? 2 * I : 2 * I + 1)...});
#endif
}

// v[l] = tap[l * s], of which a constant S is s.
template <int S, int L, class A>
[[gnu::always_inline]] inline void load_taps(const A* tap, std::int64_t s, typename BlockOf<A, L>::Numbers& v) {
  if constexpr (S == 1) {
    std::memcpy(&v, tap, sizeof v);
  } else if constexpr (S == 2) {
    // The even places of the first L numbers, and of the last L the odd ones: no number behind the last tap is read.
    typename BlockOf<A, L>::Numbers first, second;
    std::memcpy(&first, tap, sizeof v);
    std::memcpy(&second, tap + L - 1, sizeof v);
    every_second(first, second, v, std::make_integer_sequence<int, L>());
  } else {
    for (int l = 0; l < L; ++l) v[l] = tap[l * s];
  }
}

// f(h, w) as they are, or as Dilated: the steps of other windows are constants.
template <class F>
void with_steps(const PoolAxis& h, const PoolAxis& w, F&& f) {
  if (are_dilated(h, w)) return f(Dilated<PoolAxis>{h}, Dilated<PoolAxis>{w});
  f(h, w);
}

// The largest of each window of row i, and with kPlaces its place in the plane.
template <bool kPlaces, class T, int S, int L, class Axis>
void max_pool_row(const PaddedPlane<T>& plane, const Axis& h, const Axis& w, std::int64_t i, T* y,
                  std::int32_t* index) {
  using A = Accum<T>;
  using Numbers = typename BlockOf<A, L>::Numbers;
  using Places = typename BlockOf<A, L>::Places;
  using Int = typename BlockOf<A, L>::Int;
  const std::int64_t s = S > 0 ? S : w.stride, r0 = h.begin(i), r1 = h.end(i);
  Numbers lowest{};
  Places steps{};
  for (int l = 0; l < L; ++l) {
    lowest[l] = -std::numeric_limits<A>::infinity();
    steps[l] = l * Int(s);
  }
  for (std::int64_t j = 0; j < w.out; j += L) {
    Numbers best = lowest, v{};
    const auto first = Int(r0 * w.in + j * s - w.padding), edge = Int(r0 * w.in);
    Places place = steps + first;
    if (kPlaces && first < edge) {
      for (int l = 0; l < L; ++l) {
        if constexpr (std::is_same_v<Axis, PoolAxis>)
          place[l] = std::max(place[l], edge);
        else
          place[l] = edge + Int(w.begin(j + l));
      }
    }
    for (std::int64_t r = r0; r < r1; r += h.step()) {
      for (std::int64_t c = 0; c < w.kernel; c += w.step()) {
        load_taps<S, L>(plane.row(r) + j * s + c, s, v);
        const Places takes = (v > best) | (v != v);
        best = takes ? v : best;
        if constexpr (kPlaces) {
          const Places at = steps + Int(r * w.in + j * s + c - w.padding);
          place = takes ? at : place;
        }
      }
    }
    const std::int64_t n = std::min<std::int64_t>(L, w.out - j);
    if constexpr (std::is_same_v<A, T> && std::is_same_v<Int, std::int32_t>) {
      if (n == L) {
        std::memcpy(y + j, &best, sizeof best);
        if constexpr (kPlaces) std::memcpy(index + j, &place, sizeof place);
        continue;
      }
    }
    for (std::int64_t l = 0; l < n; ++l) y[j + l] = T(best[l]);
    if constexpr (kPlaces) {
      for (std::int64_t l = 0; l < n; ++l) index[j + l] = std::int32_t(place[l]);
    }
  }
}

// Planes [first, last).
template <class T, class Axis>
void max_pool_planes(const T* x, std::int64_t first, std::int64_t last, const Axis& h, const Axis& w, T* y,
                     std::int32_t* index) {
  const std::int64_t size = h.out * w.out;
  if (!PaddedPlane<T>::suits(w)) {
    for (std::int64_t p = first; p < last; ++p) {
      const T* const in = x + p * h.in * w.in;
      for (std::int64_t o = 0; o < size; ++o) {
        const std::int64_t place = largest_of_window(in, h, w, o / w.out, o % w.out);
        y[p * size + o] = in[place];
        if (index) index[p * size + o] = static_cast<std::int32_t>(place);
      }
    }
    return;
  }
  PaddedPlane<T> plane(h, w, -std::numeric_limits<Accum<T>>::infinity());
  with_windows<T>(w, [&]<int S, int L>() {
    for (std::int64_t p = first; p < last; ++p) {
      plane.read(x + p * h.in * w.in);
      for (std::int64_t i = 0; i < h.out; ++i) {
        const std::int64_t at = p * size + i * w.out;
        if (index)
          max_pool_row<true, T, S, L>(plane, h, w, i, y + at, index + at);
        else
          max_pool_row<false, T, S, L>(plane, h, w, i, y + at, nullptr);
      }
    }
  });
}

template <class T>
void max_pool(const Cpu& on, const T* x, std::int64_t planes, const PoolAxis& h, const PoolAxis& w, T* y,
              std::int32_t* index) {
  with_steps(h, w, [&](const auto& rows, const auto& cols) {
    on.parallel_for(planes, planes_at_once(h, w), [&](std::int64_t first, std::int64_t last) {
      max_pool_planes(x, first, last, rows, cols, y, index);
    });
  });
}

// Adds into a plane of Accum<T>; for 16-bit types a scratch plane keeps the sums from being rounded one by one.
template <class T, class F>
void gather_into_planes(const Cpu& on, std::int64_t planes, const PoolAxis& h, const PoolAxis& w, T* gx, F&& add) {
  using A = Accum<T>;
  const std::int64_t size = h.in * w.in;
  on.parallel_for(planes, planes_at_once(h, w), [&](std::int64_t first, std::int64_t last) {
    A* scratch = nullptr;
    if constexpr (!std::is_same_v<A, T>) scratch = new A[static_cast<std::size_t>(size)];
    for (std::int64_t p = first; p < last; ++p) {
      T* out = gx + p * size;
      A* sums;
      if constexpr (std::is_same_v<A, T>)
        sums = out;
      else
        sums = scratch;
      std::fill(sums, sums + size, A(0));
      add(p, sums);
      if constexpr (!std::is_same_v<A, T>) {
        for (std::int64_t i = 0; i < size; ++i) out[i] = T(sums[i]);
      }
    }
    delete[] scratch;
  });
}

template <class T>
void max_pool_scatter(const Cpu& on, const T* gy, const std::int32_t* index, std::int64_t planes, const PoolAxis& h,
                      const PoolAxis& w, T* gx) {
  const std::int64_t n = h.out * w.out;
  gather_into_planes(on, planes, h, w, gx, [=](std::int64_t p, Accum<T>* sums) {
    for (std::int64_t o = p * n; o < (p + 1) * n; ++o) sums[index[o]] += Accum<T>(gy[o]);
  });
}

template <class T>
void max_pool_gather(const Cpu& on, const T* x, const std::int32_t* index, std::int64_t planes, const PoolAxis& h,
                     const PoolAxis& w, T* y) {
  const std::int64_t n = h.out * w.out, size = h.in * w.in;
  on.parallel_for(planes, planes_at_once(h, w), [=](std::int64_t first, std::int64_t last) {
    for (std::int64_t p = first; p < last; ++p) {
      for (std::int64_t o = p * n; o < (p + 1) * n; ++o) y[o] = x[p * size + index[o]];
    }
  });
}

// What the sums of a row's windows are divided by; its numbers change with the rows that a window sees.
template <class A>
class Divisors {
 public:
  explicit Divisors(const PoolAxis& w, std::int64_t room) : w_(w), numbers_(size_t(room), A(1)) {}
  const A* of(std::int64_t rows) {
    if (rows == rows_) return numbers_.data();
    for (std::int64_t j = 0; j < w_.out; ++j) numbers_[size_t(j)] = A(rows * w_.count(j));
    rows_ = rows;
    return numbers_.data();
  }

 private:
  PoolAxis w_;
  std::vector<A> numbers_;
  std::int64_t rows_ = -1;
};

template <class T, int S, int L>
void avg_pool_row(const PaddedPlane<T>& plane, const PoolAxis& h, const PoolAxis& w, std::int64_t i,
                  const Accum<T>* divisor, T* y) {
  using A = Accum<T>;
  const std::int64_t s = S > 0 ? S : w.stride, r0 = h.begin(i), r1 = h.end(i);
  for (std::int64_t j = 0; j < w.out; j += L) {
    typename BlockOf<A, L>::Numbers sum{}, v{};
    for (std::int64_t r = r0; r < r1; ++r) {
      for (std::int64_t c = 0; c < w.kernel; ++c) {
        load_taps<S, L>(plane.row(r) + j * s + c, s, v);
        sum += v;
      }
    }
    std::memcpy(&v, divisor + j, sizeof v);
    sum /= v;
    const std::int64_t n = std::min<std::int64_t>(L, w.out - j);
    for (std::int64_t l = 0; l < n; ++l) y[j + l] = T(sum[l]);
  }
}

// average_of_window of P planes: their sums do not wait for each other.
inline constexpr int kPlanesTogether = 8;
template <class T, int P = kPlanesTogether>
void averages_of_planes(const T* in, const PoolAxis& h, const PoolAxis& w, std::int64_t i, std::int64_t j, T* y) {
  const std::int64_t r1 = h.end(i), c0 = w.begin(j), c1 = w.end(j), in_size = h.in * w.in, out_size = h.out * w.out;
  Accum<T> sums[P] = {};
  for (std::int64_t r = h.begin(i); r < r1; ++r) {
    for (std::int64_t c = c0; c < c1; ++c) {
      for (int p = 0; p < P; ++p) sums[p] += Accum<T>(in[p * in_size + r * w.in + c]);
    }
  }
  const auto divisor = as_divisor<Accum<T>>(h.count(i) * w.count(j));
  for (int p = 0; p < P; ++p) y[p * out_size] = T(sums[p] / divisor);
}

template <class T>
void avg_pool(const Cpu& on, const T* x, std::int64_t planes, const PoolAxis& h, const PoolAxis& w, T* y) {
  using A = Accum<T>;
  const std::int64_t size = h.out * w.out, grain = planes_at_once(h, w);
  if (size == 1 && h.end(0) - h.begin(0) == h.in && w.end(0) - w.begin(0) == w.in) {  // sums of whole planes
    const std::int64_t n = h.in * w.in;
    const A divisor = as_divisor<A>(h.count(0) * w.count(0));
    return on.parallel_for(planes, grain, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t p = first; p < last; ++p) y[p] = T(row_sum(x + p * n, n) / divisor);
    });
  }
  if (!PaddedPlane<T>::suits(w)) {
    const std::int64_t together = (grain + kPlanesTogether - 1) / kPlanesTogether * kPlanesTogether;
    return on.parallel_for(planes, together, [&](std::int64_t first, std::int64_t last) {
      std::int64_t p = first;
      for (; p + kPlanesTogether <= last; p += kPlanesTogether) {
        const T* const in = x + p * h.in * w.in;
        for (std::int64_t o = 0; o < size; ++o) averages_of_planes(in, h, w, o / w.out, o % w.out, y + p * size + o);
      }
      for (; p < last; ++p) {
        const T* const in = x + p * h.in * w.in;
        for (std::int64_t o = 0; o < size; ++o) y[p * size + o] = average_of_window(in, h, w, o / w.out, o % w.out);
      }
    });
  }
  on.parallel_for(planes, grain, [&](std::int64_t first, std::int64_t last) {
    PaddedPlane<T> plane(h, w, A(0));
    Divisors<A> divisors(w, PaddedPlane<T>::windows_of(w));
    with_windows<T>(w, [&]<int S, int L>() {
      for (std::int64_t p = first; p < last; ++p) {
        plane.read(x + p * h.in * w.in);
        for (std::int64_t i = 0; i < h.out; ++i)
          avg_pool_row<T, S, L>(plane, h, w, i, divisors.of(h.count(i)), y + p * size + i * w.out);
      }
    });
  });
}

// Adds a row's shares to all inputs that its windows see. An input takes the shares of one row in the order of their
// windows: a window further on sees it at an earlier tap.
template <class T, int S, int L>
void spread_row(const PaddedPlane<T>& plane, const PoolAxis& h, const PoolAxis& w, std::int64_t i,
                const Accum<T>* share) {
  using A = Accum<T>;
  const std::int64_t s = S > 0 ? S : w.stride, r0 = h.begin(i), r1 = h.end(i);
  for (std::int64_t r = r0; r < r1; ++r) {
    for (std::int64_t j = 0; j < w.out; j += L) {
      for (std::int64_t c = w.kernel; c-- > 0;) {
        A* const tap = plane.row_of_sums(r) + j * s + c;
#pragma GCC ivdep
        for (int l = 0; l < L; ++l) tap[l * s] += share[j + l];
      }
    }
  }
}

template <class T>
void avg_pool_backward(const Cpu& on, const T* gy, std::int64_t planes, const PoolAxis& h, const PoolAxis& w, T* gx) {
  using A = Accum<T>;
  const std::int64_t size = h.in * w.in;
  if (h.out * w.out == 1 && (h.end(0) - h.begin(0)) * (w.end(0) - w.begin(0)) == size) {
    // One window sees the whole plane. (A sum that begins with 0 has no -0.)
    const A count = A(h.count(0) * w.count(0));
    on.parallel_for(planes, planes_at_once(h, w), [=](std::int64_t first, std::int64_t last) {
      for (std::int64_t p = first; p < last; ++p) std::fill_n(gx + p * size, size, T(A(0) + A(gy[p]) / count));
    });
    return;
  }
  if (!PaddedPlane<T>::suits(w)) {
    return gather_into_planes(on, planes, h, w, gx, [&](std::int64_t p, A* sums) {
      const T* g = gy + p * h.out * w.out;
      for (std::int64_t i = 0; i < h.out; ++i) {
        for (std::int64_t j = 0; j < w.out; ++j) {
          const A share = A(*g++) / A(h.count(i) * w.count(j));
          const std::int64_t r1 = h.end(i), c0 = w.begin(j), c1 = w.end(j);
          for (std::int64_t r = h.begin(i); r < r1; ++r) {
            for (std::int64_t c = c0; c < c1; ++c) sums[r * w.in + c] += share;
          }
        }
      }
    });
  }
  on.parallel_for(planes, planes_at_once(h, w), [&](std::int64_t first, std::int64_t last) {
    PaddedPlane<T> plane(h, w, A(0));
    const std::int64_t room = PaddedPlane<T>::windows_of(w);
    Divisors<A> divisors(w, room);
    std::vector<A> shares(size_t(room), A(0));
    with_windows<T>(w, [&]<int S, int L>() {
      for (std::int64_t p = first; p < last; ++p) {
        T* const out = gx + p * h.in * w.in;
        plane.begin_sums(out);
        const T* const g = gy + p * h.out * w.out;
        for (std::int64_t i = 0; i < h.out; ++i) {
          const A* const divisor = divisors.of(h.count(i));
          for (std::int64_t j = 0; j < w.out; ++j) shares[size_t(j)] = A(g[i * w.out + j]) / divisor[j];
          spread_row<T, S, L>(plane, h, w, i, shares.data());
        }
        plane.write(out);
      }
    });
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
