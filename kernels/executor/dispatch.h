// From a tensor's dtype and device to a kernel: a switch over the dtypes an op lists and two ifs over devices.
#pragma once

#include <array>
#include <span>
#include <type_traits>

#include "kernels/executor/cpu.h"
#include "kernels/executor/gpu.h"
#include "levin/op_info.h"
#include "levin/tensor.h"
#include "tensor/device/in_stream.h"

namespace levin {

using kernels::Cpu;
using kernels::Gpu;

template <class... F>
struct overloaded : F... {
  using F::operator()...;
};
template <class... F>
overloaded(F...) -> overloaded<F...>;

template <class... T>
struct Types {};
inline constexpr Types<float, double, f16, bf16> kFloats{};
inline constexpr Types<float, double> kWideFloats{};
inline constexpr Types<float, double, f16, bf16, std::int32_t, std::int64_t, std::uint8_t> kNumbers{};
inline constexpr Types<std::int32_t, std::int64_t, std::uint8_t> kIntegers{};
inline constexpr Types<float, double, f16, bf16, std::int32_t, std::int64_t, std::uint8_t, bool> kAll{};
// With what is stored alone, for ops that move elements: kernels::Bits or an instance for each size serves them.
inline constexpr Types<float, double, f16, bf16, std::int32_t, std::int64_t, std::uint8_t, bool, std::int8_t,
                       std::int16_t>
    kMoved{};
inline constexpr Types<bool> kBool{};
inline constexpr Types<std::int64_t> kIndex{};

// The first element, for kernels: no version is counted. T must be the tensor's dtype.
template <class T>
[[nodiscard]] T* ptr(const Tensor& t) {
  return reinterpret_cast<T*>(detail::address_in_stream(t));
}
// The same, null for an undefined tensor.
template <class T>
[[nodiscard]] T* ptr_or_null(const Tensor& t) {
  return t.defined() ? ptr<T>(t) : nullptr;
}

// UnsupportedError: the op has kernels for the dtypes given, not for x.
[[noreturn, gnu::cold]] void fail_unsupported(const OpInfo& info, const Tensor& x, std::span<const DType> has);
template <class... T>
[[noreturn]] void fail_unsupported(const OpInfo& info, const Tensor& x, Types<T...>) {
  static constexpr std::array has{dtype_of<T>...};
  fail_unsupported(info, x, has);
}

// Calls f(Cpu, T{}) or f(Gpu, T{}) for the T that is x's dtype, by x's device; a call that f does not accept means that
// there is no kernel. On meta it checks the dtype and returns. Throws UnsupportedError.
template <class... T, class F>
void dispatch(const OpInfo& info, const Tensor& x, Types<T...> types, F&& f) {
  const Device device = x.device();
  const auto one = [&]<class U>(U value) {
    if (x.dtype() != dtype_of<U>) return false;
    if (device.is_cpu()) {
      f(Cpu{}, value);
      return true;
    }
#if LEVIN_LAUNCHES
    if constexpr (std::is_invocable_v<F&, const Gpu&, U>) {
      if (device.launches()) {
        f(Gpu{Stream::current(device)}, value);
        return true;
      }
    }
#endif
    return device.is_meta();
  };
  if (!(one(T{}) || ...)) fail_unsupported(info, x, types);
}

// Calls f(T{}) for the T that is x's dtype, on any device: for a second dtype inside of dispatch.
template <class... T, class F>
void dispatch_dtype(const OpInfo& info, const Tensor& x, Types<T...> types, F&& f) {
  const auto one = [&]<class U>(U value) {
    if (x.dtype() != dtype_of<U>) return false;
    f(value);
    return true;
  };
  if (!(one(T{}) || ...)) fail_unsupported(info, x, types);
}

// Calls f(S{}) for the S that is x's dtype, where a kernel that computes as for T reads or writes S: T itself or, for
// float, a 16-bit type.
template <class T, class F>
void dispatch_stored(const OpInfo& info, const Tensor& x, F&& f) {
  if constexpr (std::is_same_v<T, float>)
    dispatch_dtype(info, x, Types<float, f16, bf16>{}, f);
  else
    dispatch_dtype(info, x, Types<T>{}, f);
}

// No tensor is undefined, or StateError naming the op.
template <class... T>
void check_defined(const char* op, const T&... tensors) {
  if (!(tensors.defined() && ...)) [[unlikely]]
    detail::fail_undefined(op);
}
// All tensors on one device, or DeviceError naming the op, both devices and both shapes.
inline void check_same_device(const char* op, const Tensor& a, const Tensor& b) {
  check_defined(op, a, b);
  if (a.device() != b.device()) [[unlikely]] {
    fail<DeviceError>(op, ": tensors are on ", a.device(), " and ", b.device(), ": ", a.shape(), " and ", b.shape(),
                      "; move one with to(device)");
  }
}
// All tensors of one dtype, or DTypeError naming the op and both.
inline void check_same_dtype(const char* op, const Tensor& a, const Tensor& b) {
  check_defined(op, a, b);
  if (a.dtype() != b.dtype()) [[unlikely]] {
    fail<DTypeError>(op, ": tensors are ", a.dtype(), " and ", b.dtype(), "; convert one with to(dtype)");
  }
}

}  // namespace levin
