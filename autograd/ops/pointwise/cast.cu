// Copies to another dtype, layout or device, and writes in place.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>

#include "autograd/autocast.h"
#include "autograd/ops/in_place.h"
#include "autograd/ops/pointwise/pointwise.h"
#include "kernels/executor/copy.h"
#include "kernels/pointwise/halves.cuh"
#include "kernels/pointwise/transpose.cuh"
#include "kernels/pointwise/transpose_device.cuh"
#include "kernels/update/loss_scale.h"
#include "tensor/core/by_columns.h"
#include "tensor/core/counted.h"
#include "tensor/device/runtime.h"
#include "tensor/memory/read_only.h"

namespace levin {
namespace pointwise {
namespace {

// A value as another type. Integers out of range and NaN would be undefined in C++: here integers saturate and NaN
// gives 0.
template <class To>
struct As {
  template <class From>
  LEVIN_HD To operator()(From x) const {
    if constexpr (std::is_same_v<To, bool>) {
      return x != From(0);
    } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
      constexpr From low = static_cast<From>(std::numeric_limits<To>::min());
      constexpr From high = static_cast<From>(std::numeric_limits<To>::max());  // rounds up to a power of two for i64
      if (!(x > low)) return x != x ? To(0) : std::numeric_limits<To>::min();
      return x >= high ? std::numeric_limits<To>::max() : static_cast<To>(x);
    } else {
      return static_cast<To>(x);
    }
  }
};

// Elements that are copied, as loops see them: an integer of their size serves every dtype of that size. Loops of the
// CPU read 16-bit floats as float.
template <class T>
using Stored = std::tuple_element_t<std::bit_width(sizeof(T)) - 1,
                                    std::tuple<std::uint8_t, std::int16_t, std::int32_t, std::int64_t>>;
template <class On, class T>
using Copied =
    std::conditional_t<std::is_same_v<std::remove_cvref_t<On>, Gpu> || std::is_integral_v<T>, Stored<T>, Wide<T>>;
template <class C, class T>
C copied(Scalar value) {
  const auto wide = value.to<Wide<T>>();
  if constexpr (std::is_same_v<C, Wide<T>>)
    return wide;
  else
    return std::bit_cast<C>(static_cast<T>(wide));
}

// Copies permuted tensors by tiles (Note [Two sides of a transpose]): the bits of one dtype, or conversions among the
// floats that models train in. Returns whether it copied.
template <class To, class From>
bool by_tiles(const Gpu& on, const Tensor& out, const Tensor& x) {
  constexpr bool kSame = std::is_same_v<To, From>;
  constexpr auto trains = []<class T>(T) { return std::is_same_v<Wide<T>, float>; };
  if constexpr (kSame || (trains(To{}) && trains(From{}))) {
    kernels::PointwisePlan plan;
    add_to(plan, out.shape(), out);
    add_to(plan, out.shape(), x);
    plan.collapse();
    if constexpr (kSame) {
      using Bits = std::tuple_element_t<std::bit_width(sizeof(To)) - 1,
                                        std::tuple<std::uint8_t, std::uint16_t, std::uint32_t, std::uint64_t>>;
      return kernels::gpu::transposed(on, plan, reinterpret_cast<Bits*>(ptr<To>(out)),
                                      reinterpret_cast<const Bits*>(ptr<const From>(x)));
    } else {
      return kernels::gpu::transposed(on, plan, ptr<To>(out), ptr<const From>(x));
    }
  }
  return false;
}

// Whether both tensors of one shape are dense, and their elements lie in one order.
bool in_one_order(const Tensor& a, const Tensor& b) {
  const MemoryFormat format = a.suggest_memory_format();
  return a.is_contiguous(format) && b.is_contiguous(format);
}

// Copies of one shape on the CPU that a kernel of their own moves at the speed of memory: dense rows between the floats
// that models train in, and a transpose of elements of any dtype. Returns whether it copied.
template <class To, class From>
bool by_rows(const Cpu& on, const Tensor& out, const Tensor& x) {
  if (out.shape() != x.shape()) return false;
  if constexpr (std::is_same_v<To, From>) {
    kernels::PointwisePlan plan;
    add_to(plan, out.shape(), out);
    add_to(plan, out.shape(), x);
    plan.collapse();
    return kernels::cpu::transpose(on, plan);
  } else if constexpr (std::is_same_v<Wide<To>, float> && std::is_same_v<Wide<From>, float>) {
    if (!in_one_order(out, x)) return false;
    const From* const from = ptr<const From>(x);
    To* const to = ptr<To>(out);
    const bool streams = kernels::beyond_cache(out.numel() * std::int64_t{sizeof(To) + sizeof(From)});
    on.parallel_for(out.numel(), kGrain, [=, &on](std::int64_t begin, std::int64_t end) {
      if (!streams) return kernels::cpu::convert_row<To, From>(on, from + begin, to + begin, end - begin);
      constexpr std::int64_t kBlock = kernels::kStreamedBytes / std::int64_t{sizeof(To)};
      alignas(64) To block[kBlock];
      const kernels::Streaming all_seen;
      for (std::int64_t i = begin; i < end; i += kBlock) {
        const std::int64_t n = std::min(kBlock, end - i);
        kernels::cpu::convert_row<To, From>(on, from + i, block, n);
        kernels::Streaming::write(on, to + i, block, n * std::int64_t{sizeof(To)});
      }
    });
    return true;
  }
  return false;
}

// Returns whether one of the two copied.
template <class To, class From, class On>
bool by_tiles_or_rows(const On& on, const Tensor& out, const Tensor& x) {
  if constexpr (std::is_same_v<On, Gpu>)
    return by_tiles<To, From>(on, out, x);
  else
    return by_rows<To, From>(on, out, x);
}

void convert_stored(const OpInfo& info, const Tensor& out, const Tensor& x);

// out = x, converted to out's dtype and broadcast to its shape.
void convert(const OpInfo& info, const Tensor& out, const Tensor& x) {
  if (out.dtype() == x.dtype()) {
    return dispatch(info, x, kMoved, [&]<class T>(const auto& on, T) {
      using C = Copied<decltype(on), T>;
      if (!by_tiles_or_rows<T, T>(on, out, x)) run(on, As<C>{}, Signature<C, C>{}, out, x);
    });
  }
  if (is_storage(out.dtype()) || is_storage(x.dtype())) return convert_stored(info, out, x);
  dispatch(info, x, kAll, [&]<class From>(const auto& on, From) {
    dispatch_dtype(info, out, kAll, [&]<class To>(To) {
      if constexpr (!std::is_same_v<To, From>) {
        if (!by_tiles_or_rows<To, From>(on, out, x)) run(on, As<Wide<To>>{}, Signature<To, From>{}, out, x);
      }
    });
  });
}

// Note [Casts of stored integers]
//
// i8 and i16 have one kernel of their own each, to i32; the other casts are made of kernels that the library has.
// - To another dtype: through i32, which holds every value.
// - From an integer or bool: its low bytes, which are what wraps around, are copied out of its memory. Where it is
//   narrower than the result, i32 stands between.
// - From a float: to i32, which saturates and makes 0 of NaN, then limited to the range, then the low bytes.

// The low bytes of x's integers as a dtype that is no wider: a view.
Tensor low_bytes(const Tensor& x, DType dtype) {
  static_assert(std::endian::native == std::endian::little);
  const auto width = static_cast<std::int64_t>(itemsize(x.dtype()) / itemsize(dtype));
  Tensor y = x.detach();
  detail::TensorImpl& to = *y.impl();
  to.dtype = dtype;
  if (width == 1) return y;
  to.contiguous = x.numel() <= 1;
  to.offset *= width;
  for (int d = 0; d < x.rank(); ++d) to.strides[d] *= width;
  return y;
}

// x, limited to [low, high].
struct Limited {
  std::int32_t low, high;
  LEVIN_HD std::int32_t operator()(std::int32_t x) const { return x < low ? low : x > high ? high : x; }
};

// out, an i32, = x, an i8 or i16.
void widen_stored(const OpInfo& info, const Tensor& out, const Tensor& x) {
  dispatch(info, x, Types<std::int8_t, std::int16_t>{}, [&]<class From>(const auto& on, From) {
    run(on, As<std::int32_t>{}, Signature<std::int32_t, From>{}, out, x);
  });
}

void convert_stored(const OpInfo& info, const Tensor& out, const Tensor& x) {
  const DType to = out.dtype(), from = x.dtype();
  if (to == DType::i32) return widen_stored(info, out, x);
  const auto as_i32 = [&] {
    const Tensor y = empty_like(x, DType::i32);
    convert(info, y, x);
    return y;
  };
  if (!is_storage(to) && to != DType::u8) return convert(info, out, as_i32());
  if (is_float(from)) {
    // Not by clamp: every program links casts, and would link that op's gradients, too.
    const std::int32_t end = to == DType::i8 ? 128 : 32768;
    const Tensor whole = as_i32();
    dispatch(info, whole, Types<std::int32_t>{}, [&]<class T>(const auto& on, T) {
      run(on, Limited{-end, end - 1}, Signature<T, T>{}, whole, whole);
    });
    return convert(info, out, low_bytes(whole, to));
  }
  convert(info, out, low_bytes(itemsize(from) < itemsize(to) ? as_i32() : x, to));
}

struct Cast {
  static constexpr OpInfo info{.name = "cast"};
  DType to;
  DType from = DType::f32;
  Tensor forward(const Tensor& x) {
    from = x.dtype();
    // A weight used as t(weight) is lowered without being turned, and so is its gradient.
    const bool turned = detail::lies_by_columns(x);
    const Tensor in = turned ? t(x) : x;
    Tensor out = empty_like(in, to);
    convert(info, out, in);
    return turned ? t(out) : out;
  }
  Grads<1> backward(const Tensor& gy, NeedMask) { return {cast(gy, from)}; }
};

#if LEVIN_LAUNCHES
// One launch for dense f32 tensors that become 16-bit ones, or 16-bit ones that become f32. Returns whether
// it was made.
template <class From, class To>
bool by_list(std::span<const Tensor> in, std::span<const Tensor> out) {
  std::vector<kernels::Move<From, To>> moves;
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (!in_one_order(in[i], out[i])) return false;
    if (in[i].numel() > 0) moves.push_back({ptr<const From>(in[i]), ptr<To>(out[i]), in[i].numel()});
  }
  const kernels::Gpu on{Stream::current(in[0].device())};
  kernels::convert_on_device(on, std::span<const kernels::Move<From, To>>(moves));
  return true;
}
bool by_list(std::span<const Tensor> in, std::span<const Tensor> out) {
  const DType from = in[0].dtype(), to = out[0].dtype();
  for (const Tensor& x : in) {
    if (x.dtype() != from || x.device() != in[0].device() || !x.device().launches()) return false;
  }
  if (from == DType::f32 && to == DType::bf16) return by_list<float, bf16>(in, out);
  if (from == DType::f32 && to == DType::f16) return by_list<float, f16>(in, out);
  if (from == DType::bf16 && to == DType::f32) return by_list<bf16, float>(in, out);
  if (from == DType::f16 && to == DType::f32) return by_list<f16, float>(in, out);
  return false;
}
#endif

// Several tensors as another dtype; on a device that launches kernels in one launch, and so are their gradients.
struct CastAll {
  static constexpr OpInfo info{.name = "cast_all"};
  static constexpr bool kPerTensor = true;
  DType to;
  DType from = DType::f32;
  Tensors forward(std::span<const Tensor> in) {
    Tensors out;
    out.reserve(in.size());
    for (const Tensor& x : in) out.push_back(empty_like(x, to));
    from = in[0].dtype();
#if LEVIN_LAUNCHES
    if (by_list(in, out)) return out;
#endif
    for (std::size_t i = 0; i < in.size(); ++i) convert(info, out[i], in[i]);
    return out;
  }
  Tensors backward(std::span<const Tensor> grads, NeedMask) const {
    Tensors there, result(grads.size());
    for (const Tensor& g : grads)
      if (g.defined()) there.push_back(g);
    Tensors made = cast_all(there, from);
    for (std::size_t i = 0, k = 0; i < grads.size(); ++i)
      if (grads[i].defined()) result[i] = std::move(made[k++]);
    return result;
  }
};

struct Clone {
  static constexpr OpInfo info{.name = "clone"};
  MemoryFormat format;
  Tensor forward(const Tensor& x) {
    Tensor out = empty(x.shape(), x.device(), x.dtype(), format);
    const std::size_t bytes = static_cast<std::size_t>(x.numel()) * itemsize(x.dtype());
    const bool in_order = x.is_contiguous(format);
    if (x.device().is_cpu() && in_order) {
      kernels::cpu::copy_bytes(Cpu{}, address(x), address(out), static_cast<std::int64_t>(bytes));
    } else if (x.device().launches() && in_order) {
      using detail::runtime::Copy;
      if (bytes > 0) detail::runtime::copy(address(out), address(x), bytes, Copy::within, Stream::current(x.device()));
    } else {
      convert(info, out, x);
    }
    return out;
  }
  Grads<1> backward(const Tensor& gy, NeedMask) { return {gy}; }
};

// Bytes between two dense tensors of one shape, dtype and memory format on different devices. Between two CPU devices
// the host copies, else the copy is enqueued on the current stream of the launching device. The host waits for a copy
// that reads or writes memory which the host may touch next. With NonBlocking::yes the host waits only where a copy to
// pageable memory makes that unavoidable. Pageable memory on its way to a device is staged (Note [Copies from pageable
// memory]).
void transfer(const char* op, const Tensor& out, const Tensor& x, NonBlocking non_blocking = NonBlocking::no) {
  using detail::runtime::Copy;
  const Device from = x.device(), to = out.device();
  const std::size_t bytes = static_cast<std::size_t>(x.numel()) * itemsize(x.dtype());
  if (bytes == 0) return;
  if (!from.launches() && !to.launches()) {
    detail::count_copy(Copy::within, bytes);
    kernels::cpu::copy_bytes(Cpu{}, address(x), address(out), static_cast<std::int64_t>(bytes));
  } else if (from.launches() && to.launches()) {
    const Stream here = Stream::current(to);
    here.wait(Stream::current(from));
    x.get().storage->used_on(here);
    detail::count_copy(Copy::within, bytes);
    detail::runtime::copy(address(out), address(x), bytes, Copy::within, here);
  } else if (to.launches()) {
    // A recorded copy would read host memory that may be freed before the replay.
    detail::refuse_while_capturing(op, to, "copies from the host");
    const Stream there = Stream::current(to);
    if (!x.is_pinned()) return detail::upload(address(out), address(x), bytes, there);
    x.get().storage->used_on(there);
    detail::count_copy(Copy::to_device, bytes);
    detail::runtime::copy(address(out), address(x), bytes, Copy::to_device, there);
    if (non_blocking == NonBlocking::no) detail::wait_for(there, op);
  } else {
    const Stream there = Stream::current(from);
    detail::refuse_while_capturing(op, from);
    if (out.is_pinned()) out.get().storage->used_on(there);
    detail::count_copy(Copy::to_host, bytes);
    detail::runtime::copy(address(out), address(x), bytes, Copy::to_host, there);
    if (non_blocking == NonBlocking::no || !out.is_pinned()) detail::wait_for(there, op);
  }
}

// The same values on another device.
struct ToDevice {
  static constexpr OpInfo info{.name = "to"};
  Device to;
  NonBlocking non_blocking = NonBlocking::no;
  Device from = Device::cpu();
  Tensor forward(const Tensor& x) {
    from = x.device();
    const bool pinned = to == Device::cpu() && from.launches() && non_blocking == NonBlocking::yes;
    const MemoryFormat format = x.suggest_memory_format();
    Tensor out = pinned ? detail::empty_pinned(x.shape(), x.dtype(), format) : empty(x.shape(), to, x.dtype(), format);
    transfer("to", out, x.contiguous(format), non_blocking);
    return out;
  }
  Grads<1> backward(const Tensor& gy, NeedMask) { return {gy.to(from)}; }
};

// The same values with a node of their own; see Note [vjp].
struct Alias {
  static constexpr OpInfo info{.name = "alias"};
  Tensor forward(const Tensor& x) { return x.detach(); }
  Grads<1> backward(const Tensor& gy, NeedMask) { return {gy}; }
};

LEVIN_OP_TABLE(Cast)
LEVIN_OP_TABLE(CastAll)
LEVIN_OP_TABLE(Clone)
LEVIN_OP_TABLE(ToDevice)
LEVIN_OP_TABLE(Alias)

void check_fits(const char* op, const Tensor& x, const Tensor& y) {
  if (broadcast_shapes(op, x.shape(), y.shape()) != x.shape()) {
    fail<ShapeError>(op, ": y of shape ", y.shape(), " does not broadcast to x's shape ", x.shape());
  }
}

struct AddScaled {
  Scalar alpha;
  template <class T>
  LEVIN_HD T operator()(T x, T y) const {
    return wrapping_sum(x, wrapping_product(alpha.to<T>(), y));
  }
};
struct Times {
  template <class T>
  LEVIN_HD T operator()(T x, T y) const {
    return wrapping_product(x, y);
  }
};

constexpr OpInfo kCopyInfo{.name = "copy_"}, kFillInfo{.name = "fill_"}, kAddInfo{.name = "add_"},
    kMulInfo{.name = "mul_"};

// Where x and y share part of their memory, y is read from a copy.
Tensor apart(const Tensor& x, const Tensor& y) {
  const bool same = x.offset() == y.offset() && x.shape() == y.shape() &&
                    std::equal(&x.strides().steps[0], &x.strides().steps[0] + x.rank(), &y.strides().steps[0]);
  return x.shares_storage(y) && !same ? y.detach().clone() : y;
}

}  // namespace
}  // namespace pointwise

using namespace pointwise;

Tensors cast_all(std::span<const Tensor> x, DType dtype) {
  if (x.empty()) return {};
  for (const Tensor& t : x) {
    check_same_device(CastAll::info.name, x[0], t);
    check_same_dtype(CastAll::info.name, x[0], t);
  }
  return x[0].dtype() == dtype ? Tensors(x.begin(), x.end()) : apply(CastAll{dtype}, x);
}
Tensor cast(const Tensor& x, DType dtype) { return x.dtype() == dtype ? x : apply(Cast{dtype}, x); }
Tensor Tensor::to(DType dtype) const { return cast(*this, dtype); }
Tensor Tensor::clone() const { return apply(Clone{suggest_memory_format()}, *this); }
Tensor Tensor::contiguous(MemoryFormat format) const {
  if (is_contiguous(format)) return *this;
  if (format == MemoryFormat::channels_last && rank() != 4)
    fail<ShapeError>("contiguous: x has shape ", shape(), ", expected [N, C, H, W] for channels_last");
  return apply(Clone{format}, *this);
}

Tensor Tensor::to(Device device, NonBlocking non_blocking, std::source_location where) const {
  if (device == this->device()) return *this;
  const detail::WaitsHere waits("to", where);
  if (device.is_meta()) return empty(shape(), device, dtype(), suggest_memory_format());
  if (this->device().is_meta()) fail<UnsupportedError>("to: a meta tensor has no values to copy to ", device);
  if (device.launches()) detail::check_usable("to", device);
  if (device.index() < 0) fail<DeviceError>("to: ", device, " is asked for, expected an index of 0 or more");
  return apply(ToDevice{device, non_blocking}, *this);
}

namespace detail {
Tensor recorded_alias(const Tensor& x) {
  if (!records(x)) {
    Tensor leaf = x.detach();
    leaf.requires_grad_();
    return leaf;
  }
  return apply(Alias{}, x);
}
}  // namespace detail

void check_in_place(const char* op, const Tensor& x) {
  detail::check_writable(op, x);
  if (grad_mode() && x.requires_grad()) {
    fail<AutogradError>(op, ": x requires grad; use a result of its own instead, or write under NoGrad");
  }
  // A broadcast operand has one element for many places, so a write to it in place has no meaning.
  for (int d = 0; d < x.rank(); ++d) {
    if (x.strides()[d] == 0 && x.shape()[d] > 1) {
      fail<ShapeError>(op, ": x of shape ", x.shape(), " is expanded along dimension ", d, "; write to a clone()");
    }
  }
}

void copy_(Tensor& x, const Tensor& from) {
  check_in_place("copy_", x);
  if (x.device().is_meta() != from.device().is_meta()) check_same_device("copy_", x, from);
  check_fits("copy_", x, from);
  const GradMode off(false);
  const bool other = x.device() != from.device();
  const MemoryFormat format = x.suggest_memory_format();
  if (other && x.is_contiguous(format) && x.shape() == from.shape() && x.dtype() == from.dtype())
    transfer("copy_", x, from.detach().contiguous(format));
  else
    convert(kCopyInfo, x, other ? from.detach().to(x.device()) : apart(x, from.detach()));
  x.get().storage->wrote("copy_");
}

void fill_(Tensor& x, Scalar value) {
  check_in_place("fill_", x);
  check_scalar("fill_", x, value);
  dispatch(kFillInfo, x, kMoved, [&]<class T>(const auto& on, T) {
    using C = Copied<decltype(on), T>;
    run(on, As<C>{}, Signature<C, C>{}, x, Immediate<C>{copied<C, T>(value)});
  });
  x.get().storage->wrote("fill_");
}

void add_(Tensor& x, const Tensor& y, Scalar alpha) {
  check_in_place("add_", x);
  check_same_device("add_", x, y);
  check_same_dtype("add_", x, y);
  check_fits("add_", x, y);
  check_scalar("add_", x, alpha);
  const Tensor source = apart(x, y);
  dispatch(kAddInfo, x, kNumbers,
           [&]<class T>(const auto& on, T) { run(on, AddScaled{alpha}, Signature<T, T, T>{}, x, x, source); });
  x.get().storage->wrote("add_");
}

void mul_(Tensor& x, const Tensor& y) {
  check_in_place("mul_", x);
  check_same_device("mul_", x, y);
  check_same_dtype("mul_", x, y);
  check_fits("mul_", x, y);
  const Tensor source = apart(x, y);
  dispatch(kMulInfo, x, kNumbers,
           [&]<class T>(const auto& on, T) { run(on, Times{}, Signature<T, T, T>{}, x, x, source); });
  x.get().storage->wrote("mul_");
}

void mul_(Tensor& x, Scalar y) {
  check_in_place("mul_", x);
  check_scalar("mul_", x, y);
  dispatch(kMulInfo, x, kNumbers, [&]<class T>(const auto& on, T) {
    run(on, Times{}, Signature<T, T, T>{}, x, x, Immediate<Wide<T>>{y.to<Wide<T>>()});
  });
  x.get().storage->wrote("mul_");
}

}  // namespace levin
