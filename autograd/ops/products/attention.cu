// Scaled dot-product attention. Source: Vaswani et al., "Attention Is All You Need", 2017, equation 1. Without mask and
// dropout it is a fused op; with either it is written in public ops. Devices have the fused op for 16-bit floats and
// heads of up to 128; every other call there runs in public ops.
#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "autograd/autocast.h"
#include "autograd/op_table.h"
#include "kernels/attention/attention.cuh"
#include "kernels/attention/attention_backward_device.cuh"
#include "kernels/attention/attention_hopper.h"
#include "kernels/attention/attention_library.h"
#include "kernels/executor/dispatch.h"
#include "levin/autograd.h"
#include "levin/engines.h"
#include "levin/flops.h"
#include "levin/ops.h"

namespace levin {
namespace {

constexpr const char* kOp = "scaled_dot_product_attention";
constexpr const char* kWeights = "attention_weights";

Shape batch_of(const Tensor& t) { return Shape(t.shape().dims().first(static_cast<std::size_t>(t.rank() - 2))); }

// What the fused ops need of a call besides its tensors.
struct Form {
  Shape batch;
  double scale;
  bool causal;
};

// Where the matrix of each batch begins, in elements.
std::vector<std::int64_t> starts(const Tensor& t, const Shape& batch) {
  const int lead = t.rank() - 2, skip = batch.rank() - lead;
  std::vector<std::int64_t> at(static_cast<std::size_t>(batch.numel()));
  for (std::int64_t n = 0; n < batch.numel(); ++n) {
    std::int64_t rest = n, start = 0;
    for (int d = batch.rank(); d-- > 0;) {
      const std::int64_t i = rest % batch[d];
      rest /= batch[d];
      if (d >= skip && t.shape()[d - skip] != 1) start += i * t.strides()[d - skip];
    }
    at[static_cast<std::size_t>(n)] = start;
  }
  return at;
}
kernels::AttentionShape::Steps steps(const Tensor& t) { return {t.stride(-2), t.stride(-1)}; }

// Calls f with the kernel's view of q, k, v.
template <class F>
void with_shape(const Form& form, const Tensor& q, const Tensor& k, const Tensor& v, F&& f) {
  const std::vector<std::int64_t> q_at = starts(q, form.batch), k_at = starts(k, form.batch),
                                  v_at = starts(v, form.batch);
  f(kernels::AttentionShape{.rows = q.size(-2),
                            .cols = k.size(-2),
                            .width = q.size(-1),
                            .out_width = v.size(-1),
                            .scale = form.scale,
                            .causal = form.causal,
                            .q = steps(q),
                            .k = steps(k),
                            .v = steps(v),
                            .q_at = q_at,
                            .k_at = k_at,
                            .v_at = v_at});
}

// The matrices of t on a device, and the distance between the matrices of neighbours in `batch`.
template <class T>
kernels::gpu::Lines<T, true> lines(const Tensor& t, const Shape& batch, std::int64_t (&apart)[kMaxRank]) {
  kernels::gpu::Lines<T, true> l{ptr<T>(t),  t.stride(-2), t.stride(-1),
                                 t.size(-2), t.size(-1),   t.stride(-1) == 1 && kernels::gpu::aligned16(ptr<T>(t))};
  l.vectors = l.vectors && l.line_step % kernels::gpu::kVec<T> == 0;
  const int skip = batch.rank() - (t.rank() - 2);
  for (int d = 0; d < batch.rank(); ++d) {
    apart[d] = d < skip || t.shape()[d - skip] == 1 ? 0 : t.strides()[d - skip];
    l.vectors = l.vectors && apart[d] % kernels::gpu::kVec<T> == 0;
  }
  return l;
}
[[maybe_unused]] kernels::gpu::AttentionRows rows_of(const Form& form, const Tensor& q, const Tensor& k,
                                                     const Tensor& v) {
  return {.batches = form.batch.numel(),
          .rows = q.size(-2),
          .cols = k.size(-2),
          .width = q.size(-1),
          .out_width = v.size(-1),
          .scale = static_cast<float>(form.scale),
          .causal = form.causal};
}
// f(steps of the tensors' batches, their matrices...).
template <class T, class... Tensors, class F>
void with_lines(const Shape& batch, F&& f, const Tensors&... t) {
  kernels::Strided<static_cast<int>(sizeof...(t))> at;
  at.rank = std::max(1, batch.rank());
  for (int d = 0; d < batch.rank(); ++d) at.sizes[d] = kernels::Divider(batch[d]);
  [&]<std::size_t... K>(std::index_sequence<K...>) { f(at, lines<T>(t, batch, at.steps[K])...); }
  (std::index_sequence_for<Tensors...>{});
}
template <class T>
kernels::gpu::AttentionOut<T> out_to(const Shape& batch, const Tensor& t) {
  kernels::gpu::AttentionOut<T> out{};
  with_lines<T>(
      batch,
      [&](const kernels::Strided<1>& at, const kernels::gpu::Lines<T, true>& l) {
        out = {ptr<T>(t), l.line_step, l.vectors && t.size(-1) % kernels::gpu::kVec<T> == 0, at};
      },
      t);
  return out;
}
template <class T>
void attention(const Gpu& on, const Form& form, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& y,
               const Tensor& lse) {
  if (y.numel() == 0) return;
  if (const auto call = kernels::hopper_call(form.batch, form.scale, form.causal, {q, k, v, y, lse}))
    return kernels::hopper_attention(*call, on.stream);
  with_lines<T>(
      form.batch,
      [&](const auto& at, const auto&... in) {
        kernels::gpu::attention(on, rows_of(form, q, k, v), in..., at, out_to<T>(form.batch, y), ptr<float>(lse));
      },
      q, k, v);
}
template <class T>
void attention_backward(const Gpu& on, const Form& form, const Tensor& gy, const Tensor& q, const Tensor& k,
                        const Tensor& v, const Tensor& y, const Tensor& lse, const std::array<Tensor, 3>& out) {
  if (form.batch.numel() == 0) return;
  if (const auto call =
          kernels::hopper_call(form.batch, form.scale, form.causal, {q, k, v, y, lse, gy, out[0], out[1], out[2]})) {
    const Tensor scratch = empty({kernels::hopper_scratch(*call)}, q.device(), DType::f32);
    return kernels::hopper_attention_backward(*call, ptr<float>(scratch), on.stream);
  }
  const Tensor terms = empty(form.batch.inserted(form.batch.rank(), q.size(-2)), q.device(), DType::f64);
  static_assert(sizeof(kernels::gpu::RowTerms) == sizeof(double));
  with_lines<T>(
      form.batch,
      [&](const auto& at, const auto&... in) {
        kernels::gpu::attention_backward<T>(on, rows_of(form, q, k, v), in..., at, ptr<const float>(lse),
                                            reinterpret_cast<kernels::gpu::RowTerms*>(ptr<double>(terms)),
                                            out_to<T>(form.batch, out[0]), out_to<T>(form.batch, out[1]),
                                            out_to<T>(form.batch, out[2]));
      },
      q, k, v, gy, y);
}
// Attention by the vendor's library. Returns false where our kernels compute the call. `t` makes the call's tensors.
template <class Tensors>
bool by_library([[maybe_unused]] const Form& form, [[maybe_unused]] Device device, [[maybe_unused]] Tensors&& t) {
#if defined(LEVIN_CUDNN)
  if (device.type() != DeviceType::cuda || engine_choice(EngineFamily::attention) == EngineChoice::own) return false;
  const auto call = kernels::library_attention(form.batch, form.scale, form.causal, t());
  return call && kernels::lib::cudnn_attention(*call, Stream::current(device));
#else
  return false;
#endif
}
// Whether gradients go to our kernel for Hopper before the library's: cuDNN keeps the slopes of all scores in memory,
// since its gradients repeat their bits, and 402 MB of them took 334 us for GPT-2's 16 x 12 heads of 1024 x 64 on an
// H100. Ours took 918 us for four times these heads. Of few scores the library's are faster.
template <class Tensors>
bool ours_first([[maybe_unused]] const Form& form, [[maybe_unused]] const Tensor& q, [[maybe_unused]] const Tensor& k,
                [[maybe_unused]] Tensors&& t) {
#if defined(LEVIN_CUDNN)
  constexpr std::int64_t kManyScores = std::int64_t{32} << 20;
  return engine_choice(EngineFamily::attention) == EngineChoice::first && q.device().type() == DeviceType::cuda &&
         form.batch.numel() * q.size(-2) * k.size(-2) > kManyScores &&
         kernels::hopper_call(form.batch, form.scale, form.causal, t());
#else
  return false;
#endif
}
// Whether a device has the fused op.
bool fits_device(const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto head = [](const Tensor& t) { return t.size(-1) >= 1 && t.size(-1) <= kernels::gpu::kWidestHead; };
  const bool lowered = detail::mode().autocast && q.dtype() == DType::f32;  // the op will see 16 bits
  return (itemsize(q.dtype()) == 2 || lowered) && k.size(-2) > 0 && head(q) && head(v);
}

Shape batched(const Shape& batch, std::int64_t rows, std::int64_t cols) {
  return batch.inserted(batch.rank(), rows).inserted(batch.rank() + 1, cols);
}

// Note [Heads beside each other]
//
// Models split the columns of a product into heads: q is [B, H, L, E] with memory in the order [B, L, H, E]. On devices
// that launch kernels the result has the order of q, and each gradient that of its operand. So the next product reads
// the heads as one row without a copy. Where q, k and v are the thirds of one product, in the order [B, L, 3, H, E], so
// are their gradients, and backward of the split (Split in index/view.cpp) joins them without a copy, too.
//
// New memory [batch.., rows, cols] in the order of `like`, which has the batch's dimensions or fewer.
Tensor ordered_like(const Tensor& like, const Shape& batch, std::int64_t rows, std::int64_t cols) {
  const bool heads_inside = like.device().launches() && batch.rank() == 2 && like.rank() == 4 && like.size(1) > 1 &&
                            like.stride(1) < like.stride(2);
  if (!heads_inside) return empty(batched(batch, rows, cols), like.device(), like.dtype());
  return transpose(empty({batch[0], rows, batch[1], cols}, like.device(), like.dtype()), 1, 2);
}
// Whether q, k and v are the thirds of dense memory [B, L, 3, H, E].
bool are_thirds(const Shape& batch, const Tensor& q, const Tensor& k, const Tensor& v) {
  if (!q.device().launches() || batch.rank() != 2 || q.rank() != 4 || q.numel() == 0) return false;
  const std::int64_t heads = q.size(1), width = q.size(3), row = 3 * heads * width;
  const Strides dense{q.size(2) * row, width, row, 1};
  const auto third = [&](const Tensor& t, std::int64_t i) {
    return t.shape() == q.shape() &&
           std::equal(dense.steps.begin(), dense.steps.begin() + 4, t.strides().steps.begin()) && t.shares_storage(q) &&
           t.offset() == q.offset() + i * heads * width;
  };
  return third(q, 0) && third(k, 1) && third(v, 2);
}
// Memory of the gradients of q, k and v.
std::array<Tensor, 3> gradients_like(const Shape& batch, const Tensor& q, const Tensor& k, const Tensor& v) {
  if (are_thirds(batch, q, k, v)) {
    const Tensor all = empty({q.size(0), q.size(2), 3, q.size(1), q.size(3)}, q.device(), q.dtype());
    const auto third = [&](std::int64_t i) { return transpose(select(all, 2, i), 1, 2); };
    return {third(0), third(1), third(2)};
  }
  const auto like = [&](const Tensor& t) { return ordered_like(t, batch, t.size(-2), t.size(-1)); };
  return {like(q), like(k), like(v)};
}

// Products of the scores' [L, S] matrices with `inner` numbers each.
void count_flops(const OpInfo& info, const Form& form, const Tensor& q, const Tensor& k, std::int64_t inner) {
  FlopCounter::count(info.name, {2, form.batch.numel(), q.size(-2), k.size(-2), inner});
}

// Scores, with -inf where a row may not attend.
Tensor causal_scores(const Tensor& scores) {
  const Tensor row = arange(scores.size(-2), scores.device()), col = arange(scores.size(-1), scores.device());
  return masked_fill(scores, gt(col, unsqueeze(row, 1)), -std::numeric_limits<double>::infinity());
}

struct AttentionBackward {
  static constexpr OpInfo info{.name = "scaled_dot_product_attention_backward"};
  Form form;
  Stash y, lse;
  SavedInput gy{}, q{}, k{}, v{};

  // Gradients of the batch's full shape; the caller sums over broadcast batches.
  std::array<Tensor, 3> forward(const Tensor& gy_, const Tensor& q_, const Tensor& k_, const Tensor& v_) {
    gy = gy_, q = q_, k = k_, v = v_;
    count_flops(info, form, q_, k_, 3 * q_.size(-1) + 2 * v_.size(-1));  // the scores once more, and four gradients
    std::array<Tensor, 3> out = gradients_like(form.batch, q_, k_, v_);
    const auto call = [&] { return kernels::AttentionTensors{q_, k_, v_, y, lse, gy_, out[0], out[1], out[2]}; };
    if (!ours_first(form, q_, k_, call) && by_library(form, q_.device(), [&] {
          kernels::AttentionTensors tensors = call();
          tensors.means = empty_like(lse);
          return tensors;
        }))
      return out;
    dispatch(info, q_, kFloats,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          using A = kernels::Accum<T>;
                          const Tensor g = gy_.contiguous();
                          with_shape(form, q_, k_, v_, [&](const kernels::AttentionShape& s) {
                            kernels::cpu::attention_backward(on, s, ptr<const T>(g), ptr<const T>(q_), ptr<const T>(k_),
                                                             ptr<const T>(v_), ptr<const T>(y), ptr<const A>(lse),
                                                             ptr<T>(out[0]), ptr<T>(out[1]), ptr<T>(out[2]));
                          });
                        },
                        [&]<kernels::gpu::TensorCoreHalf T>(const Gpu& on, T) {
                          attention_backward<T>(on, form, gy_, q_, k_, v_, y, lse, out);
                        }});
    return out;
  }
  // The definition in public ops: y is a function of the inputs here, which keeps every derivative.
  static std::array<Tensor, 3> reference(const std::array<Tensor, 4>& in, const Form& form) {
    const auto& [g, q, k, v] = in;
    const Tensor scores = matmul(q, transpose(k, -2, -1)) * form.scale;
    const Tensor w = softmax(form.causal ? causal_scores(scores) : scores, -1);
    const Tensor d = matmul(g, transpose(v, -2, -1));
    const Tensor slope = w * (d - sum(d * w, -1, KeepDim::yes)) * form.scale;
    return {matmul(slope, k), matmul(transpose(slope, -2, -1), q), matmul(transpose(w, -2, -1), g)};
  }
  Grads<4> backward(const Tensor& ggq, const Tensor& ggk, const Tensor& ggv, NeedMask need) {
    return vjp<4>([&](auto& in) { return reference(in, form); }, std::array{gy.get(), q.get(), k.get(), v.get()},
                  std::array{ggq, ggk, ggv}, need);
  }
};

struct Attention {
  static constexpr OpInfo info{.name = "scaled_dot_product_attention", .autocast = AutocastPolicy::lower};
  Form form;
  SavedInput q{}, k{}, v{};
  SavedOutput y{};
  Stash lse{};

  Tensor forward(const Tensor& q_, const Tensor& k_, const Tensor& v_) {
    q = q_, k = k_, v = v_;
    count_flops(info, form, q_, k_, q_.size(-1) + v_.size(-1));
    Tensor out = ordered_like(q_, form.batch, q_.size(-2), v_.size(-1));
    lse = empty(form.batch.inserted(form.batch.rank(), q_.size(-2)), q_.device(),
                q_.dtype() == DType::f64 ? DType::f64 : DType::f32);
    y = out;
    if (by_library(form, q_.device(), [&] { return kernels::AttentionTensors{q_, k_, v_, out, lse}; })) return out;
    dispatch(info, q_, kFloats,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          with_shape(form, q_, k_, v_, [&](const kernels::AttentionShape& s) {
                            kernels::cpu::attention(on, s, ptr<const T>(q_), ptr<const T>(k_), ptr<const T>(v_),
                                                    ptr<T>(out), ptr<kernels::Accum<T>>(lse));
                          });
                        },
                        [&]<kernels::gpu::TensorCoreHalf T>(const Gpu& on, T) {
                          attention<T>(on, form, q_, k_, v_, out, lse);
                        }});
    return out;
  }
  auto saved_outputs() { return std::tie(y); }
  Grads<3> backward(const Tensor& gy, NeedMask) {
    const std::array<Tensor, 3> g =
        apply(AttentionBackward{form, y.get().detach(), lse}, gy, q.get(), k.get(), v.get());
    return {fit(g[0], q.get()), fit(g[1], k.get()), fit(g[2], v.get())};
  }

 private:
  static Tensor fit(const Tensor& g, const Tensor& like) {
    return g.shape() == like.shape() ? g : sum_to(g, like.shape());
  }
};

LEVIN_OP_TABLE(Attention)
LEVIN_OP_TABLE(AttentionBackward)

void check_operand(const char* op, const char* name, const Tensor& q, const Tensor& t) {
  if (t.rank() < 2) fail<ShapeError>(op, ": ", name, " has shape ", t.shape(), ", expected at least two dimensions");
  check_same_device(op, q, t);
  check_dtypes_meet(op, q, t);
}

void check_heads(const char* op, const Tensor& q, const char* name, const Tensor& t) {
  if (q.rank() < 3 || t.rank() < 3 || t.size(-3) == 0 || q.size(-3) % t.size(-3) != 0) {
    fail<ShapeError>(op, ": q has shape ", q.shape(), " and ", name, " ", t.shape(),
                     ", expected [..., heads, L, E] and, for enable_gqa, a divisor of q's heads");
  }
}

// The operands as products take them. With enable_gqa q is [..., heads of k, group, L, E], and k and v have one head
// for each group: expanded heads as views.
struct Operands {
  Tensor q, k, v;  // v undefined where the weights alone are wanted
  Tensor mask;
  std::int64_t group = 1;
};
Operands grouped(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  if (!options.enable_gqa || q.size(-3) == k.size(-3)) return {q, k, v, options.mask};
  const std::int64_t heads = k.size(-3), group = q.size(-3) / heads;
  const auto split = [&](const Tensor& t) {
    const Shape shape = t.shape().with(t.rank() - 3, heads).inserted(t.rank() - 2, group);
    return reshape(t, Dims(shape.dims()));
  };
  Tensor mask = options.mask;
  if (mask.defined() && mask.rank() >= 3) mask = mask.size(-3) == 1 ? unsqueeze(mask, mask.rank() - 3) : split(mask);
  return {split(q), unsqueeze(k, k.rank() - 2), v.defined() ? unsqueeze(v, v.rank() - 2) : v, mask, group};
}
// The result for grouped operands, [..., heads, L, n].
Tensor joined(const Tensor& y, std::int64_t group) {
  if (group == 1) return y;
  return flatten(y, y.rank() - 4, y.rank() - 3);
}

// Checks everything before the first product. v is undefined where the weights alone are wanted.
void check(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  check_operand(op, "q", q, q);
  check_operand(op, "k", q, k);
  if (v.defined()) check_operand(op, "v", q, v);
  if (!is_float(q.dtype())) fail_unsupported({.name = op}, q, kFloats);
  if (v.defined() && (q.size(-1) != k.size(-1) || k.size(-2) != v.size(-2))) {
    fail<ShapeError>(op, ": q has shape ", q.shape(), ", k ", k.shape(), " and v ", v.shape(),
                     ", expected [..., L, E], [..., S, E] and [..., S, Ev]");
  }
  if (q.size(-1) != k.size(-1)) {
    fail<ShapeError>(op, ": q has shape ", q.shape(), " and k ", k.shape(), ", expected [..., L, E] and [..., S, E]");
  }
  Shape batch = batch_of(q), k_batch = batch_of(k), v_batch = v.defined() ? batch_of(v) : Shape{};
  if (options.enable_gqa) {
    check_heads(op, q, "k", k);
    if (v.defined()) check_heads(op, q, "v", v);
    if (v.defined() && v.size(-3) != k.size(-3))
      fail<ShapeError>(op, ": k has shape ", k.shape(), " and v ", v.shape(), ", expected one number of heads");
    k_batch = k_batch.with(k_batch.rank() - 1, q.size(-3));
    if (v.defined()) v_batch = v_batch.with(v_batch.rank() - 1, q.size(-3));
  }
  batch = broadcast_shapes(op, broadcast_shapes(op, batch, k_batch), v_batch);
  const Shape scores = batch.inserted(batch.rank(), q.size(-2)).inserted(batch.rank() + 1, k.size(-2));
  if (options.mask.defined()) {
    const Tensor& mask = options.mask;
    check_same_device(op, q, mask);
    if (mask.dtype() != DType::b8 && mask.dtype() != q.dtype())
      fail<DTypeError>(op, ": the mask is ", mask.dtype(), ", expected bool or q's ", q.dtype());
    if (broadcast_shapes(op, scores, mask.shape()) != scores)
      fail<ShapeError>(op, ": the mask has shape ", mask.shape(), ", expected one that broadcasts to ", scores);
  }
  if (!(options.dropout_p >= 0 && options.dropout_p <= 1))
    fail<ConfigError>(op, ": dropout_p is ", options.dropout_p, ", expected a probability in [0, 1]");
  if (options.dropout_p > 0 && !options.generator)
    fail<ConfigError>(op, ": dropout_p is ", options.dropout_p, " and generator is null; pass a generator");
}

double scale_of(const Tensor& q, const AttentionOptions& options) {
  const double width = static_cast<double>(q.size(-1));
  return options.scale.value_or(width > 0 ? 1 / std::sqrt(width) : 1);
}

// The weights in public ops.
Tensor weights_of(const Tensor& q, const Tensor& k, const Tensor& mask, const AttentionOptions& options) {
  // The scale multiplies q, which has fewer elements than the scores.
  Tensor scores = matmul(q * scale_of(q, options), transpose(k, -2, -1));
  if (options.causal == Causal::yes) scores = causal_scores(scores);
  Tensor nobody;
  if (mask.defined()) {
    const double low = -std::numeric_limits<double>::infinity();
    if (mask.dtype() == DType::b8)
      scores = masked_fill(scores, logical_not(mask), low);
    else
      scores = scores + mask;
    // A row that may attend to nothing gives zeros. Its softmax is taken of zeros, so no NaN arises.
    nobody = all(eq(scores.detach(), low), -1, KeepDim::yes);
    scores = masked_fill(scores, nobody, 0);
  }
  Tensor share = softmax(scores, -1);
  if (nobody.defined()) share = masked_fill(share, nobody, 0);
  if (options.dropout_p > 0) share = dropout(share, options.dropout_p, *options.generator);
  return share;
}

}  // namespace

Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options) {
  check_defined(kOp, q, k, v);
  check(kOp, q, k, v, options);
  const Operands in = grouped(q, k, v, options);
  if (!in.mask.defined() && options.dropout_p == 0 && (!q.device().launches() || fits_device(in.q, in.k, in.v))) {
    const Shape batch = broadcast_shapes(kOp, broadcast_shapes(kOp, batch_of(in.q), batch_of(in.k)), batch_of(in.v));
    const Form form{batch, scale_of(q, options), options.causal == Causal::yes};
    return joined(apply(Attention{form}, in.q, in.k, in.v), in.group);
  }
  return joined(matmul(weights_of(in.q, in.k, in.mask, options), in.v), in.group);
}

Tensor attention_weights(const Tensor& q, const Tensor& k, const AttentionOptions& options) {
  check_defined(kWeights, q, k);
  check(kWeights, q, k, {}, options);
  const Operands in = grouped(q, k, {}, options);
  return joined(weights_of(in.q, in.k, in.mask, options), in.group);
}

}  // namespace levin
