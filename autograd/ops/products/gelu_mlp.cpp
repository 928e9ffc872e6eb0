// gelu_mlp: two linear layers with GELU between them, as one op. GELU's derivative belongs to the end of the product
// that gives the gradient of the hidden values, and that product is the second layer's.
#include <array>

#include "autograd/autocast.h"
#include "autograd/op_table.h"
#include "autograd/ops/products/backward_parts.h"
#include "autograd/ops/products/layer_products.h"
#include "kernels/executor/dispatch.h"
#include "levin/autograd.h"
#include "levin/flops.h"
#include "levin/ops.h"

namespace levin {
namespace {

// z = x W^T + b and h = gelu(z); z undefined where it is not kept.
struct Hidden {
  Tensor z, h;
};
Hidden hidden_values(GeluForm form, bool keeps, const Tensor& x, const Tensor& w, const Tensor& b) {
  Hidden v;
  if (x.device().launches()) {
    v.h = empty({x.size(0), w.size(0)}, x.device(), x.dtype());
    if (keeps) v.z = empty_like(v.h);
    if (gelu_layer_on_device(form, x, w, b, v.z, v.h)) {
      FlopCounter::count("linear", {2, v.h.numel(), w.size(1)});
      return v;
    }
  }
  v.z = linear(x, w, b);
  v.h = gelu(v.z, form);
  return v;
}

// (gy W) * gelu'(z)
Tensor hidden_gradient(GeluForm form, const Tensor& gy, const Tensor& w, const Tensor& z) {
  if (z.device().launches()) {
    Tensor dz = empty_like(z);
    if (gelu_slope_on_device(form, gy, w, z, dz)) {
      FlopCounter::count("matmul", {2, z.numel(), w.size(0)});
      return dz;
    }
  }
  return gelu_backward(matmul(gy, w), z, form);
}

// Inputs are matrices: x [rows, in], y and gy [rows, out].
struct GeluMlpBackward {
  static constexpr OpInfo info{.name = "gelu_mlp_backward"};
  GeluForm form;
  NeedMask wanted;  // gradients of x, w1, b1, w2, b2
  Stash z, h;
  SavedInput gy{}, x{}, w1{}, b1{}, w2{};

  std::array<Tensor, 5> forward(const Tensor& gy_, const Tensor& x_, const Tensor& w1_, const Tensor& b1_,
                                const Tensor& w2_) {
    gy = gy_, x = x_, w1 = w1_, b1 = b1_, w2 = w2_;
    return gradients(gy_, x_, w1_, h, [&] { return hidden_gradient(form, gy_, w2_, z); });
  }
  // The definition in public ops: the hidden values are functions of the inputs here, which keeps every derivative.
  std::array<Tensor, 5> reference(const std::array<Tensor, 5>& in) const {
    const Tensor hidden = linear(in[1], in[2], in[3]);
    return gradients(in[0], in[1], in[2], gelu(hidden, form),
                     [&] { return gelu_backward(matmul(in[0], in[4]), hidden, form); });
  }
  Grads<5> backward(const Tensor& gg0, const Tensor& gg1, const Tensor& gg2, const Tensor& gg3, const Tensor& gg4,
                    NeedMask need) {
    std::array<Tensor, 5> cotangents{gg0, gg1, gg2, gg3, gg4};
    for (std::size_t i = 0; i < cotangents.size(); ++i) {
      if (!wanted[i]) cotangents[i] = Tensor();
    }
    return vjp<5>([&](auto& in) { return reference(in); }, {gy.get(), x.get(), w1.get(), b1.get(), w2.get()},
                  cotangents, need);
  }

 private:
  // The wanted gradients; of_hidden() gives the gradient of z.
  template <class F>
  std::array<Tensor, 5> gradients(const Tensor& g, const Tensor& x_, const Tensor& w1_, const Tensor& h_,
                                  F&& of_hidden) const {
    std::array<Tensor, 5> out;
    if (wanted[0] || wanted[1] || wanted[2]) {
      const Tensor dz = of_hidden();
      if (wanted[0]) out[0] = matmul(dz, w1_);
      std::array<Tensor, 2> first = linear_parameters_backward(dz, x_, need_of(wanted[1], wanted[2]));
      out[1] = std::move(first[0]);
      out[2] = std::move(first[1]);
    }
    std::array<Tensor, 2> second = linear_parameters_backward(g, h_, need_of(wanted[3], wanted[4]));
    out[3] = std::move(second[0]);
    out[4] = std::move(second[1]);
    return out;
  }
};

struct GeluMlp {
  static constexpr OpInfo info{.name = "gelu_mlp", .autocast = AutocastPolicy::lower};
  GeluForm form;
  bool keeps;  // whether there will be a backward
  SavedInput x{}, w1{}, b1{}, w2{};
  Stash z{}, h{};

  Tensor forward(const Tensor& x_, const Tensor& w1_, const Tensor& b1_, const Tensor& w2_, const Tensor& b2_) {
    x = x_, w1 = w1_, b1 = b1_, w2 = w2_;
    Hidden v = hidden_values(form, keeps, x_, w1_, b1_);
    z = std::move(v.z);
    h = std::move(v.h);
    return linear(h, w2_, b2_);
  }
  Grads<5> backward(const Tensor& gy, NeedMask need) {
    return apply(GeluMlpBackward{form, need, z, h}, gy, x.get(), w1.get(), b1.get(), w2.get());
  }
};

LEVIN_OP_TABLE(GeluMlp)
LEVIN_OP_TABLE(GeluMlpBackward)

constexpr const char* kOp = GeluMlp::info.name;

// weight [out, in] and bias [out] of a layer whose input's last dimension is `in`.
void check_layer(const char* w_name, const char* b_name, const Tensor& x, std::int64_t in, const Tensor& w,
                 const Tensor& b) {
  check_dtypes_meet(kOp, x, w);
  check_same_device(kOp, x, w);
  if (w.rank() != 2 || w.shape()[1] != in)
    fail<ShapeError>(kOp, ": ", w_name, " has shape ", w.shape(), ", expected two dimensions and ", in, " columns");
  if (!b.defined()) return;
  check_dtypes_meet(kOp, x, b);
  check_same_device(kOp, x, b);
  if (b.shape() != Shape{w.shape()[0]})
    fail<ShapeError>(kOp, ": ", b_name, " has shape ", b.shape(), ", expected [", w.shape()[0], "], the rows of ",
                     w_name, " ", w.shape());
}

}  // namespace

Tensor gelu_mlp(const Tensor& x, const Tensor& w1, const Tensor& b1, const Tensor& w2, const Tensor& b2,
                GeluForm form) {
  if (x.rank() == 0) fail<ShapeError>(kOp, ": x is a number, expected shape [..., in]");
  if (!is_float(x.dtype())) fail_unsupported(GeluMlp::info, x, kFloats);
  check_layer("w1", "b1", x, x.shape().back(), w1, b1);
  check_layer("w2", "b2", x, w1.shape()[0], w2, b2);
  const bool keeps = grad_mode() && (records(x) || records(w1) || records(b1) || records(w2) || records(b2));
  std::int64_t rows = 1;
  for (int d = 0; d + 1 < x.rank(); ++d) rows *= x.shape()[d];
  const Tensor flat = x.rank() == 2 ? x : reshape(x, {rows, x.shape().back()});
  const Tensor y = apply(GeluMlp{form, keeps}, flat, w1, b1, w2, b2);
  return x.rank() == 2 ? y : reshape(y, Dims(x.shape().with(x.rank() - 1, w2.shape()[0]).dims()));
}

}  // namespace levin
