#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_SORT_KEYS_CUH
#define LEVIN_KERNELS_SORT_KEYS_CUH
// Numbers that order as the elements of a tensor do.
//
//   keys_below(on, const T* x, n, bool descending, Key<T> most, Key<T>* keys)
//     keys[i] = the key of x[i], inverted where descending; whether one is less than `most`
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/executor/cpu.h"
#include "kernels/executor/hd.h"
#include "levin/dtype.h"

namespace levin::kernels::sort_detail {

template <class T>
using Key = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

// An unsigned number that orders as the value does.
template <class T>
LEVIN_HD Key<T> key_of(T x) {
  if constexpr (std::is_integral_v<T>) {
    if constexpr (std::is_signed_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<U>(static_cast<U>(x) ^ (U{1} << (8 * sizeof(T) - 1)));
    } else {
      return x;
    }
  } else {
    using U = std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
    constexpr U kSign = static_cast<U>(U{1} << (8 * sizeof(T) - 1));
    constexpr int kMantissa = sizeof(T) == 8 ? 52 : sizeof(T) == 4 ? 23 : std::is_same_v<T, bf16> ? 7 : 10;
    constexpr U kInfinity = static_cast<U>(static_cast<U>(kSign - 1) >> kMantissa << kMantissa);
    const U bits = kernels::bit_cast<U>(x);
    const U magnitude = static_cast<U>(bits & static_cast<U>(~kSign));
    if (magnitude > kInfinity) return std::numeric_limits<U>::max();
    if (magnitude == 0) return kSign;
    return static_cast<U>(bits & kSign ? ~bits : bits | kSign);
  }
}

template <class K>
struct Item {
  K key;
  uint32_t at;
  LEVIN_HD friend bool operator<(const Item& a, const Item& b) { return a.key != b.key ? a.key < b.key : a.at < b.at; }
};

}  // namespace levin::kernels::sort_detail

#define LEVIN_LEVEL_FILE "kernels/index/sort_keys.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK(keys_below)
}  // namespace levin::kernels::cpu

#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

template <class T>
bool keys_below(const Cpu&, const T* x, int64_t n, bool descending, kernels::sort_detail::Key<T> most,
                kernels::sort_detail::Key<T>* keys) {
  using K = kernels::sort_detail::Key<T>;
  const K flip = descending ? static_cast<K>(~K{0}) : K{0};
  K any = 0;
  for (int64_t i = 0; i < n; ++i) {
    const K key = static_cast<K>(kernels::sort_detail::key_of(x[i]) ^ flip);
    keys[i] = key;
    any |= K{key < most};
  }
  return any != 0;
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
