#include "comm/group/reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <vector>

namespace levin::dist {
namespace {

constexpr std::int64_t kBlock = 1024;  // elements whose partial results stay in the first cache

template <class T>
constexpr bool is_half = std::is_same_v<T, f16> || std::is_same_v<T, bf16>;

// What T is added in: wrapping integers, because a signed overflow is undefined.
template <class T>
struct AddedIn {
  using type = T;
};
template <>
struct AddedIn<f16> {
  using type = float;
};
template <>
struct AddedIn<bf16> {
  using type = float;
};
template <class T>
using Added = typename AddedIn<T>::type;

struct Sum {
  template <class A>
  static A apply(A a, A b) {
    if constexpr (std::is_integral_v<A>) {
      using U = std::make_unsigned_t<A>;
      return static_cast<A>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return a + b;
    }
  }
};
// NaN where either side is NaN.
struct Min {
  template <class A>
  static A apply(A a, A b) {
    return b < a || b != b ? b : a;
  }
};
struct Max {
  template <class A>
  static A apply(A a, A b) {
    return b > a || b != b ? b : a;
  }
};

template <class T>
void load(Added<T>* out, const std::byte* in, std::int64_t n) {
  const T* x = reinterpret_cast<const T*>(in);
  for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<Added<T>>(x[i]);
}

template <class T, class Op>
void combine_of(std::byte* out, const std::byte* a, const std::byte* b, std::int64_t n) {
  T* const o = reinterpret_cast<T*>(out);
  const T *const x = reinterpret_cast<const T*>(a), *const y = reinterpret_cast<const T*>(b);
  for (std::int64_t i = 0; i < n; ++i) {
    o[i] = static_cast<T>(Op::apply(static_cast<Added<T>>(x[i]), static_cast<Added<T>>(y[i])));
  }
}

// The node over ranks [begin, end) of elements [at, at + n), in `out`; `spare` has a block for each level below.
template <class T, class Op>
void node(std::span<const std::byte* const> in, std::size_t begin, std::size_t end, std::int64_t at, std::int64_t n,
          Added<T>* out, Added<T>* spare) {
  const auto place = [&](std::size_t r) { return in[r] + at * static_cast<std::int64_t>(sizeof(T)); };
  if (end - begin == 1) return load<T>(out, place(begin), n);
  if (end - begin == 2) {
    const T *const x = reinterpret_cast<const T*>(place(begin)), *const y = reinterpret_cast<const T*>(place(end - 1));
    for (std::int64_t i = 0; i < n; ++i) {
      out[i] = Op::apply(static_cast<Added<T>>(x[i]), static_cast<Added<T>>(y[i]));
    }
    return;
  }
  const std::size_t middle = begin + std::bit_floor(end - begin - 1);
  node<T, Op>(in, begin, middle, at, n, out, spare);
  node<T, Op>(in, middle, end, at, n, spare, spare + kBlock);
  for (std::int64_t i = 0; i < n; ++i) out[i] = Op::apply(out[i], spare[i]);
}

template <class T, class Op>
void reduce_of(std::span<const std::byte* const> in, std::span<std::byte* const> outs, std::int64_t elements,
               int divisor) {
  using A = Added<T>;
  const auto levels = static_cast<std::size_t>(std::bit_width(in.size()));
  std::vector<A> memory(static_cast<std::size_t>(kBlock) * (levels + 1));
  std::vector<T> rounded(is_half<T> ? static_cast<std::size_t>(kBlock) : 0);
  for (std::int64_t at = 0; at < elements; at += kBlock) {
    const std::int64_t n = std::min(kBlock, elements - at);
    A* const sum = memory.data();
    node<T, Op>(in, 0, in.size(), at, n, sum, sum + kBlock);
    if constexpr (std::is_floating_point_v<A>) {
      if (divisor != 1) {
        for (std::int64_t i = 0; i < n; ++i) sum[i] /= static_cast<A>(divisor);
      }
    }
    const void* result = sum;
    if constexpr (is_half<T>) {
      for (std::int64_t i = 0; i < n; ++i) rounded[static_cast<std::size_t>(i)] = static_cast<T>(sum[i]);
      result = rounded.data();
    }
    for (std::byte* const out : outs) {
      std::memcpy(out + at * static_cast<std::int64_t>(sizeof(T)), result, static_cast<std::size_t>(n) * sizeof(T));
    }
  }
}

// run(type, operation) for the element type and the operation. Bool has minima and maxima alone, of bytes.
template <class Run>
void choose(DType dtype, ReduceOp op, const Run& run) {
  const auto with = [&]<class T>(T type) {
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::average: return run(type, Sum{});
      case ReduceOp::min: return run(type, Min{});
      case ReduceOp::max: return run(type, Max{});
    }
  };
  switch (dtype) {
    case DType::f32: return with(float{});
    case DType::f64: return with(double{});
    case DType::f16: return with(f16{});
    case DType::bf16: return with(bf16{});
    case DType::i32: return with(std::int32_t{});
    case DType::i64: return with(std::int64_t{});
    case DType::u8:
    case DType::b8: return with(std::uint8_t{});
    case DType::i8:
    case DType::i16: break;  // refused before: check_reduce
  }
}

}  // namespace

void reduce_tree(DType dtype, ReduceOp op, std::span<const std::byte* const> in, std::span<std::byte* const> outs,
                 std::int64_t elements) {
  const int divisor = op == ReduceOp::average ? static_cast<int>(in.size()) : 1;
  choose(dtype, op, [&]<class T, class Op>(T, Op) { reduce_of<T, Op>(in, outs, elements, divisor); });
}

void combine(DType dtype, ReduceOp op, std::byte* out, const std::byte* a, const std::byte* b, std::int64_t elements) {
  choose(dtype, op, [&]<class T, class Op>(T, Op) { combine_of<T, Op>(out, a, b, elements); });
}

void divide(DType dtype, std::byte* x, std::int64_t elements, int by) {
  const auto with = [&]<class T>(T) {
    T* const p = reinterpret_cast<T*>(x);
    for (std::int64_t i = 0; i < elements; ++i) {
      p[i] = static_cast<T>(static_cast<Added<T>>(p[i]) / static_cast<Added<T>>(by));
    }
  };
  if (dtype == DType::f32) with(float{});
  if (dtype == DType::f64) with(double{});
  if (dtype == DType::f16) with(f16{});
  if (dtype == DType::bf16) with(bf16{});
}

void widen(DType from, float* out, const std::byte* in, std::int64_t elements) {
  if (from == DType::f16) load<f16>(out, in, elements);
  if (from == DType::bf16) load<bf16>(out, in, elements);
}

void narrow(DType to, std::byte* out, const float* in, std::int64_t elements) {
  const auto with = [&]<class T>(T) {
    for (std::int64_t i = 0; i < elements; ++i) reinterpret_cast<T*>(out)[i] = static_cast<T>(in[i]);
  };
  if (to == DType::f16) with(f16{});
  if (to == DType::bf16) with(bf16{});
}

}  // namespace levin::dist
