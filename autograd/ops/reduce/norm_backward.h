// What the backward ops of norms share. Each is a fused op; `reference` defines it in public ops and, through vjp,
// gives its derivatives of any order.
#pragma once

#include <array>
#include <type_traits>
#include <utility>

#include "autograd/op_table.h"
#include "autograd/ops/reduce/norm_parts.h"
#include "kernels/executor/dispatch.h"
#include "kernels/executor/hd.h"
#include "levin/autograd.h"

namespace levin::norm_parts {

using kernels::Accum;

// What a backward kernel reads and fills: dense, null where absent or not wanted. x and gx have type S, which has 16
// bits where x has 16 bits and the result is f32.
template <class T, class S = T>
struct GradientPointers {
  const T* gy;
  const S* x;
  const Accum<T>* w;
  S* gx;
  Accum<T>*gw, *gb;
};

// What the backward ops of all norms share: the inputs that they keep, the gradients that they allocate, and their
// derivative, which is that of Self::reference.
template <class Self>
struct NormBackward {
  NeedMask wanted;
  DType parameter_dtype;
  std::array<Tensor, 2> places{};  // of the gradients of weight and bias, during forward only (birth_place)
  SavedInput gy{}, x{}, w{};
  bool has_gw = false, has_gb = false;

  // How kernels read x and gy, and write the gradient of x.
  static MemoryFormat format_of(const Tensor&) { return MemoryFormat::contiguous; }

  // kernel(on, GradientPointers) fills the gradients of x [.., C, ..], weight and bias [C]; C is dimension 1.
  template <class Kernel>
  std::array<Tensor, 3> gradients(const Tensor& gy_, const Tensor& x_, const Tensor& w_, const Kernel& kernel) {
    const MemoryFormat format = Self::format_of(x_);
    const Tensor g = gy_.contiguous(format), weight = widened(w_, x_);
    const Tensor in = (x_.device().is_cpu() ? cast(x_, gy_.dtype()) : x_).contiguous(format);
    Tensor gx = wanted[0] ? empty_like(in) : Tensor();
    auto [gw_place, gb_place] = std::exchange(places, {});
    Tensor gw = wanted[1] && w_.defined() ? gradient_of(w_.numel(), x_, std::move(gw_place)) : Tensor();
    Tensor gb = wanted[2] ? gradient_of(in.size(1), in, std::move(gb_place)) : Tensor();
    const auto call = [&]<class T, class S>(const auto& on, T, S) {
      using A = Accum<T>;
      kernel(on, GradientPointers<T, S>{ptr<T>(g), ptr<S>(in), ptr_or_null<A>(weight), ptr_or_null<S>(gx),
                                        ptr_or_null<A>(gw), ptr_or_null<A>(gb)});
    };
    const auto on_gpu = [&]<class T>(const Gpu& on, T t) {
      if constexpr (std::is_invocable_v<const Kernel&, const Gpu&, GradientPointers<float, f16>>)
        dispatch_stored<T>(Self::info, in, [&](auto s) { call(on, t, s); });
      else
        call(on, t, t);
    };
    dispatch(Self::info, g, kFloats, overloaded{[&]<class T>(const Cpu& on, T t) { call(on, t, t); }, on_gpu});
    return kept(gy_, x_, w_, {gx.defined() ? cast(gx, x_.dtype()) : gx, gw, gb});
  }
  // The end of forward: saves the inputs and gives the gradients of parameters their dtype.
  std::array<Tensor, 3> kept(const Tensor& gy_, const Tensor& x_, const Tensor& w_, const std::array<Tensor, 3>& g) {
    gy = gy_;
    x = x_;
    w = w_;
    has_gw = g[1].defined();
    has_gb = g[2].defined();
    return {g[0], narrowed(g[1], parameter_dtype), narrowed(g[2], parameter_dtype)};
  }

  Grads<3> backward(const Tensor& ggx, const Tensor& ggw, const Tensor& ggb, NeedMask need) {
    return vjp<3>([&](auto& in) { return static_cast<const Self&>(*this).reference(in); }, {gy.get(), x.get(), w.get()},
                  std::array{wanted[0] ? ggx : Tensor(), has_gw ? ggw : Tensor(), has_gb ? ggb : Tensor()}, need);
  }
};

}  // namespace levin::norm_parts
