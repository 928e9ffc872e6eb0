// Attention by cuDNN: graphs of products and pointwise operations, whose shape its fused engines know. Source of the
// computation: Dao, "FlashAttention-2", 2023.
#include <cuda_runtime.h>

#include <array>
#include <limits>

#include "kernels/attention/attention_library.h"
#include "kernels/lib/cudnn_graph.h"

namespace levin::kernels::lib {
namespace {

using namespace cudnn;

enum Uid : std::int64_t { kQ = 1, kK, kV, kY, kLse, kGy, kGq, kGk, kGv, kMeans, kScale, kLow, kOne, kFirstPassing };

using Sizes = std::array<std::int64_t, 4>;
Sizes dense(const Sizes& s) { return {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1}; }
Sizes swapped(Sizes s) {
  std::swap(s[2], s[3]);
  return s;
}

constexpr float kLowest = -std::numeric_limits<float>::infinity(), kUnit = 1;

// Puts a graph together: each function adds an operation and gives its result.
class Builder {
 public:
  explicit Builder(const LibraryAttention& call) : call_(call), half_(type_of(call.dtype)), scores_(call.q.sizes) {
    scores_[3] = call.k.sizes[2];
  }

  [[nodiscard]] Descriptor operand(Uid uid, const LibraryAttention::Operand& o) const {
    return memory(uid, half_, o.sizes, o.strides);
  }
  [[nodiscard]] Descriptor transposed(Uid uid, const LibraryAttention::Operand& o) const {
    return memory(uid, half_, swapped(o.sizes), swapped(o.strides));
  }
  [[nodiscard]] static Descriptor rows(Uid uid, const LibraryAttention::Operand& o) {
    return memory(uid, CUDNN_DATA_FLOAT, o.sizes, o.strides);
  }
  [[nodiscard]] Descriptor between(const Sizes& sizes, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return passing(next_++, type, sizes, dense(sizes));
  }
  [[nodiscard]] const Sizes& scores() const { return scores_; }
  [[nodiscard]] const Sizes& one_a_row() const { return call_.lse.sizes; }
  [[nodiscard]] cudnnDataType_t half() const { return half_; }

  void matmul(const Descriptor& a, const Descriptor& b, const Descriptor& c) {
    Descriptor how(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT).finish();
    add(Descriptor(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
            .set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how)
            .set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a)
            .set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b)
            .set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, c));
  }
  // Over the last dimension.
  void reduce(cudnnReduceTensorOp_t by, const Descriptor& x, const Descriptor& y) {
    Descriptor how(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    how.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, by)
        .set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
        .finish();
    add(Descriptor(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
            .set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how)
            .set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x)
            .set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y));
  }
  void each(cudnnPointwiseMode_t mode, const Descriptor& x, const Descriptor* b, const Descriptor& y) {
    operations_.push_back(pointwise(mode, x, b, y));
  }
  Descriptor each(cudnnPointwiseMode_t mode, const Descriptor& x, const Descriptor* b, const Sizes& sizes) {
    Descriptor y = between(sizes);
    each(mode, x, b, y);
    return y;
  }
  // x [.., rows, cols] as [.., cols, rows], in 16 bits: what a product over the rows takes.
  Descriptor turned(const Descriptor& x) {
    const Sizes sizes = swapped(scores_);
    Descriptor y = passing(next_++, half_, sizes, swapped(dense(scores_)));
    reshape(x, y);
    return y;
  }
  void reshape(const Descriptor& x, const Descriptor& y) {
    add(Descriptor(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
            .set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x)
            .set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y));
  }
  [[nodiscard]] std::int64_t next_uid() { return next_++; }

  // scale q k^T
  Descriptor scaled_scores(const Descriptor& q, const Descriptor& k_transposed) {
    const Descriptor product = between(scores_), scale = number(kScale, 4);
    matmul(q, k_transposed, product);
    return each(CUDNN_POINTWISE_MUL, product, &scale, scores_);
  }
  // x where a row may look, elsewhere -inf
  Descriptor masked(Descriptor&& x) {
    if (!call_.causal) return std::move(x);
    const auto index = [&](std::int64_t axis) {
      Descriptor how(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
      how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, CUDNN_POINTWISE_GEN_INDEX)
          .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
          .set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis)
          .finish();
      Descriptor y = between(scores_, CUDNN_DATA_INT32);
      add(Descriptor(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
              .set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how)
              .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x)
              .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y));
      return y;
    };
    const Descriptor row = index(2), col = index(3), visible = between(scores_, CUDNN_DATA_BOOLEAN);
    const auto how_of = [](cudnnPointwiseMode_t mode, cudnnDataType_t in) {
      Descriptor how(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
      how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode)
          .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, in);
      return std::move(how).finish();
    };
    const Descriptor compare = how_of(CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN);
    add(Descriptor(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
            .set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, compare)
            .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, row)
            .set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, col)
            .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, visible));
    const Descriptor select = how_of(CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT), low = number(kLow, 4);
    Descriptor y = between(scores_);
    add(Descriptor(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
            .set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, select)
            .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x)
            .set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, low)
            .set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, visible)
            .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y));
    return y;
  }

  [[nodiscard]] Descriptor graph(const Target& target) const { return graph_of(operations_, target); }

 private:
  void add(Descriptor& op) { operations_.push_back(op.finish()); }

  const LibraryAttention& call_;
  cudnnDataType_t half_;
  Sizes scores_;
  std::int64_t next_ = kFirstPassing;
  std::vector<Descriptor> operations_;
};

Descriptor forward_graph(const LibraryAttention& c, const Target& target) {
  Builder b(c);
  const Descriptor q = b.operand(kQ, c.q), kt = b.transposed(kK, c.k), v = b.operand(kV, c.v), y = b.operand(kY, c.y),
                   lse = b.rows(kLse, c.lse);
  const Descriptor scores = b.masked(b.scaled_scores(q, kt));
  const Descriptor most = b.between(b.one_a_row()), sum = b.between(b.one_a_row());
  b.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, most);
  const Descriptor below = b.each(CUDNN_POINTWISE_SUB, scores, &most, b.scores());
  const Descriptor power = b.each(CUDNN_POINTWISE_EXP, below, nullptr, b.scores());
  b.reduce(CUDNN_REDUCE_TENSOR_ADD, power, sum);
  const Descriptor log = b.each(CUDNN_POINTWISE_LOG, sum, nullptr, b.one_a_row());
  b.each(CUDNN_POINTWISE_ADD, most, &log, lse);
  const Descriptor weights = b.between(b.scores(), b.half());
  b.each(CUDNN_POINTWISE_DIV, power, &sum, weights);
  b.matmul(weights, v, y);
  return b.graph(target);
}

// The formulas are in attention_backward_device.cuh.
//
// Note [Gradients that repeat]
// gq is a product that the graph writes in 16 bits. Were it a tensor of f32 in memory, cuDNN would add to it from
// blocks of columns in the order in which they come. Its engines carry no note about that, so a query cannot find it;
// the form of the graph decides on Hopper and before, as NVIDIA's own frontend has it (cudnn-frontend 1.x,
// set_deterministic_algorithm). On later devices an engine has to be named as well, and the gradients stay with our
// kernels.
Descriptor backward_graph(const LibraryAttention& c, const Target& target) {
  Builder b(c);
  const Descriptor q = b.operand(kQ, c.q), kt = b.transposed(kK, c.k), vt = b.transposed(kV, c.v),
                   y = b.operand(kY, c.y), gy = b.operand(kGy, c.gy), gq = b.operand(kGq, c.gq),
                   gk = b.operand(kGk, c.gk), gv = b.operand(kGv, c.gv), lse = b.rows(kLse, c.lse),
                   means = b.rows(kMeans, c.means), scale = number(kScale, 4), one = number(kOne, 4);
  const Descriptor products = b.each(CUDNN_POINTWISE_MUL, gy, &y, c.y.sizes), sums = b.between(b.one_a_row());
  b.reduce(CUDNN_REDUCE_TENSOR_ADD, products, sums);
  b.each(CUDNN_POINTWISE_MUL, sums, &one,
         means);  // the place of a factor for dropout: engines are found by the pattern

  const Descriptor scores = b.scaled_scores(q, kt);
  const Descriptor logs = b.masked(b.each(CUDNN_POINTWISE_SUB, scores, &lse, b.scores()));
  const Descriptor weights = b.each(CUDNN_POINTWISE_EXP, logs, nullptr, b.scores());
  b.matmul(b.turned(weights), gy, gv);

  const Descriptor slopes = b.between(b.scores());
  b.matmul(gy, vt, slopes);
  const Descriptor centred = b.each(CUDNN_POINTWISE_SUB, slopes, &means, b.scores());
  const Descriptor weighted = b.each(CUDNN_POINTWISE_MUL, centred, &weights, b.scores());
  const Descriptor slope = b.each(CUDNN_POINTWISE_MUL, weighted, &scale, b.scores());
  b.matmul(b.turned(slope), q, gk);
  const Descriptor k = passing(b.next_uid(), b.half(), c.k.sizes, c.k.strides);
  b.reshape(kt, k);
  b.matmul(slope, k, gq);
  return b.graph(target);
}

bool gradients_repeat(int device) {
  int major = 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major <= 9;
}

// `c` is used as long as the call is.
Call call_of(const LibraryAttention& c) {
  Call call{
      .dtype = c.dtype,
      .graph = [&c](const Target& target) { return c.backward ? backward_graph(c, target) : forward_graph(c, target); },
      .said = [&c] { return said(c); }};
  call.key = {c.backward ? kAttentionBackward : kAttention, std::int64_t(c.dtype), std::int64_t(c.causal)};
  const auto add = [&](Uid uid, const LibraryAttention::Operand& o) {
    call.plan_by(o.sizes), call.plan_by(o.strides);
    call.operand(uid, o.data);
  };
  add(kQ, c.q), add(kK, c.k), add(kV, c.v), add(kY, c.y), add(kLse, c.lse);
  call.operand(kScale, &c.scale);
  if (c.causal) call.operand(kLow, &kLowest);
  if (c.backward) {
    add(kGy, c.gy), add(kGq, c.gq), add(kGk, c.gk), add(kGv, c.gv), add(kMeans, c.means);
    call.operand(kOne, &kUnit);
  }
  return call;
}

}  // namespace

bool cudnn_attention(const LibraryAttention& call, Stream stream) {
  // Before 9.16 the gradients of keys whose number is no multiple of 128 need a mask of lengths.
  constexpr std::size_t kVersion = 91600;
  if (cudnnGetVersion() < kVersion || (call.backward && !gradients_repeat(stream.device().index()))) return false;
  return run(call_of(call), engine_choice(EngineFamily::attention), stream);
}

CudnnPlans cudnn_plans(const LibraryAttention& call, std::string_view device) {
  return plans_for(call_of(call), device, 1);  // each is compiled
}

}  // namespace levin::kernels::lib
