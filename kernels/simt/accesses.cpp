// What g++'s -fsanitize=thread calls at reads and writes of memory: a build with -Dledger=true counts bytes by it (Note
// [Launch ledger]). Names and meanings are those of GCC's tsan pass (gcc/sanitizer.def). Nothing here detects races.
#include <cstddef>
#include <cstdint>

#include "tensor/device/launch_ledger.h"

using levin::detail::ledger_read;
using levin::detail::ledger_write;

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
void __tsan_read_range(void* p, std::size_t bytes) { ledger_read(p, bytes); }
void __tsan_write_range(void* p, std::size_t bytes) { ledger_write(p, bytes); }

#define LEVIN_ACCESS(n)                                                  \
  void __tsan_read##n(void* p) { ledger_read(p, n); }                    \
  void __tsan_write##n(void* p) { ledger_write(p, n); }                  \
  void __tsan_unaligned_read##n(void* p) { ledger_read(p, n); }          \
  void __tsan_unaligned_write##n(void* p) { ledger_write(p, n); }        \
  void __tsan_volatile_read##n(void* p) { ledger_read(p, n); }           \
  void __tsan_volatile_write##n(void* p) { ledger_write(p, n); }         \
  void __tsan_unaligned_volatile_read##n(void* p) { ledger_read(p, n); } \
  void __tsan_unaligned_volatile_write##n(void* p) { ledger_write(p, n); }
LEVIN_ACCESS(1)
LEVIN_ACCESS(2)
LEVIN_ACCESS(4)
LEVIN_ACCESS(8)
LEVIN_ACCESS(16)
#undef LEVIN_ACCESS

// The order that the source asks for is not passed on: the strongest is.
#define LEVIN_CHANGE(bits, T, name)                               \
  T __tsan_atomic##bits##_fetch_##name(volatile T* p, T x, int) { \
    ledger_read(const_cast<T*>(p), sizeof(T));                    \
    ledger_write(const_cast<T*>(p), sizeof(T));                   \
    return __atomic_fetch_##name(p, x, __ATOMIC_SEQ_CST);         \
  }
#define LEVIN_ATOMIC(bits, T)                                                                      \
  T __tsan_atomic##bits##_load(const volatile T* p, int) {                                         \
    ledger_read(const_cast<const T*>(p), sizeof(T));                                               \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                   \
  }                                                                                                \
  void __tsan_atomic##bits##_store(volatile T* p, T x, int) {                                      \
    ledger_write(const_cast<T*>(p), sizeof(T));                                                    \
    __atomic_store_n(p, x, __ATOMIC_SEQ_CST);                                                      \
  }                                                                                                \
  T __tsan_atomic##bits##_exchange(volatile T* p, T x, int) {                                      \
    ledger_read(const_cast<T*>(p), sizeof(T));                                                     \
    ledger_write(const_cast<T*>(p), sizeof(T));                                                    \
    return __atomic_exchange_n(p, x, __ATOMIC_SEQ_CST);                                            \
  }                                                                                                \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* expected, T x, int, int) {   \
    ledger_read(const_cast<T*>(p), sizeof(T));                                                     \
    ledger_write(const_cast<T*>(p), sizeof(T));                                                    \
    return __atomic_compare_exchange_n(p, expected, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }                                                                                                \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile T* p, T* expected, T x, int, int) {     \
    return __tsan_atomic##bits##_compare_exchange_strong(p, expected, x, 0, 0);                    \
  }                                                                                                \
  LEVIN_CHANGE(bits, T, add)                                                                       \
  LEVIN_CHANGE(bits, T, sub)                                                                       \
  LEVIN_CHANGE(bits, T, and)                                                                       \
  LEVIN_CHANGE(bits, T, or)                                                                        \
  LEVIN_CHANGE(bits, T, xor)
LEVIN_ATOMIC(8, std::uint8_t)
LEVIN_ATOMIC(16, std::uint16_t)
LEVIN_ATOMIC(32, std::uint32_t)
LEVIN_ATOMIC(64, std::uint64_t)
#undef LEVIN_ATOMIC
#undef LEVIN_CHANGE

}  // extern "C"
