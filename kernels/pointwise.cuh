// Pointwise kernels: out[i] = f(a[i], b[i], c[i]) over strided operands, up to three inputs of any element types.
//
// A functor F holds its constants and has `template <class T> T operator()(T...) const`; it is the kernel of every device
// and dtype. 16-bit floats are computed in float: blocks of them are widened, run through the float loop and rounded once.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_POINTWISE_CUH
#define LEVIN_KERNELS_POINTWISE_CUH

#include <array>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/cpu.h"
#include "kernels/hd.h"
#include "levin/dtype.h"
#include "levin/shape.h"

namespace levin::kernels {

inline constexpr int kMaxOperands = 4;  // the output first, then up to three inputs

// n elements: p[k] + i * step[k] bytes is operand k of element i.
using PointwiseLoop = void (*)(const void* functor, char* const* p, const std::int64_t* step, std::int64_t n);

// Operands over a common shape, dimensions merged where every operand allows it. Steps are bytes, 0 where broadcast.
struct PointwisePlan {
  int operands = 0;
  int rank = 0;
  std::int64_t numel = 1;
  std::array<std::int64_t, kMaxRank> sizes{};
  std::array<std::array<std::int64_t, kMaxRank>, kMaxOperands> steps{};
  std::array<char*, kMaxOperands> data{};
  // 16-bit operands as seen by the float loop: how each is widened.
  enum class Half : std::uint8_t { no, f16, bf16 };
  bool spread = false;  // the loop has no form for broadcast inputs: they are written out, a block at a time
  std::array<Half, kMaxOperands> half{};
  std::array<std::uint8_t, kMaxOperands> width{};  // bytes an element

  void add(void* p, const Shape& common, const Shape& shape, const Strides& strides, DType dtype);
  void collapse();
};

// Runs a loop over a plan, in chunks on several threads when there is enough of it.
void run_pointwise(const Cpu& on, PointwiseLoop loop, const void* functor, const PointwisePlan& plan,
                   std::int64_t grain);
// The same for one dense row: every operand contiguous with n elements, or a single broadcast element (step 0).
void run_pointwise_row(const Cpu& on, PointwiseLoop loop, const void* functor, const PointwisePlan& plan,
                       std::int64_t grain);

// Functors that declare a kGrain have loops without a form for a broadcast input, which would be half of the library's
// code; see PointwisePlan::spread. They cost more than a memory access, or are cheap and rare (comparisons) and declare
// the default grain for this alone.
template <class F>
inline constexpr bool kCostly = requires {
  F::kGrain;
};

// The C++ type a loop sees for a tensor element: float for the 16-bit floats.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, f16> || std::is_same_v<T, bf16>, float, T>;

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/pointwise.cuh"
#include "kernels/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK(pointwise_loop)  // pointwise_loop<F, Out, In...>(on): the loop of on's level
}  // namespace levin::kernels::cpu

#endif  // LEVIN_KERNELS_POINTWISE_CUH
#else

namespace levin::kernels::cpu::LEVIN_LEVEL {

template <class F, class O, class A>
void loop1(const void* functor, char* const* p, const std::int64_t* step, std::int64_t n) {
  const F f = *static_cast<const F*>(functor);
  if (step[0] == sizeof(O) && step[1] == sizeof(A)) {
    O* o = reinterpret_cast<O*>(p[0]);
    const A* a = reinterpret_cast<const A*>(p[1]);
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) o[i] = static_cast<O>(f(a[i]));
    return;
  }
  if (step[0] == sizeof(O) && step[1] == 0) {
    O* o = reinterpret_cast<O*>(p[0]);
    const O value = static_cast<O>(f(*reinterpret_cast<const A*>(p[1])));
    for (std::int64_t i = 0; i < n; ++i) o[i] = value;
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    *reinterpret_cast<O*>(p[0] + i * step[0]) = static_cast<O>(f(*reinterpret_cast<const A*>(p[1] + i * step[1])));
  }
}

template <class F, class O, class A, class B>
void loop2(const void* functor, char* const* p, const std::int64_t* step, std::int64_t n) {
  const F f = *static_cast<const F*>(functor);
  O* o = reinterpret_cast<O*>(p[0]);
  const A* a = reinterpret_cast<const A*>(p[1]);
  const B* b = reinterpret_cast<const B*>(p[2]);
  if (step[0] == sizeof(O) && step[1] == sizeof(A) && step[2] == sizeof(B)) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) o[i] = static_cast<O>(f(a[i], b[i]));
  } else if (!kCostly<F> && step[0] == sizeof(O) && step[1] == sizeof(A) && step[2] == 0) {
    const B y = *b;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) o[i] = static_cast<O>(f(a[i], y));
  } else if (!kCostly<F> && step[0] == sizeof(O) && step[1] == 0 && step[2] == sizeof(B)) {
    const A x = *a;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) o[i] = static_cast<O>(f(x, b[i]));
  } else {
    for (std::int64_t i = 0; i < n; ++i) {
      *reinterpret_cast<O*>(p[0] + i * step[0]) = static_cast<O>(
          f(*reinterpret_cast<const A*>(p[1] + i * step[1]), *reinterpret_cast<const B*>(p[2] + i * step[2])));
    }
  }
}

template <class F, class O, class A, class B, class C>
void loop3(const void* functor, char* const* p, const std::int64_t* step, std::int64_t n) {
  const F f = *static_cast<const F*>(functor);
  if (step[0] == sizeof(O) && step[1] == sizeof(A) && step[2] == sizeof(B) && step[3] == sizeof(C)) {
    O* o = reinterpret_cast<O*>(p[0]);
    const A* a = reinterpret_cast<const A*>(p[1]);
    const B* b = reinterpret_cast<const B*>(p[2]);
    const C* c = reinterpret_cast<const C*>(p[3]);
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) o[i] = static_cast<O>(f(a[i], b[i], c[i]));
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    *reinterpret_cast<O*>(p[0] + i * step[0]) = static_cast<O>(f(*reinterpret_cast<const A*>(p[1] + i * step[1]),
                                                                 *reinterpret_cast<const B*>(p[2] + i * step[2]),
                                                                 *reinterpret_cast<const C*>(p[3] + i * step[3])));
  }
}

template <class F, class O, class... I>
PointwiseLoop pointwise_loop(const Cpu&) {
  if constexpr (sizeof...(I) == 1) {
    return &loop1<F, O, I...>;
  } else if constexpr (sizeof...(I) == 2) {
    return &loop2<F, O, I...>;
  } else {
    static_assert(sizeof...(I) == 3);
    return &loop3<F, O, I...>;
  }
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
