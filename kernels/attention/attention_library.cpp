#include "kernels/attention/attention_library.h"

#include <limits>
#include <span>
#include <vector>

#include "kernels/lib/library_operand.h"

namespace levin::kernels {
namespace {

// A dimension of the batch, and how far apart each tensor's neighbours in it are.
struct BatchDim {
  std::int64_t size;
  std::vector<std::int64_t> apart;
};

// At most two dimensions that walk all tensors as `batch` does: [batch, heads].
std::optional<std::vector<BatchDim>> folded(const Shape& batch, std::span<const Tensor* const> tensors) {
  std::vector<BatchDim> dims;
  for (int d = 0; d < batch.rank(); ++d) {
    if (batch[d] == 1) continue;
    BatchDim dim{batch[d], {}};
    for (const Tensor* t : tensors) {
      const int at = d - (batch.rank() - (t->rank() - 2));
      if (at < 0 || t->shape()[at] == 1) return {};  // the same matrix for several batches
      dim.apart.push_back(t->strides()[at]);
    }
    dims.push_back(std::move(dim));
  }
  for (std::size_t i = dims.size(); i-- > 1 && dims.size() > 2;) {
    bool one = true;
    for (std::size_t t = 0; t < tensors.size(); ++t) one &= dims[i - 1].apart[t] == dims[i].apart[t] * dims[i].size;
    if (!one) continue;
    dims[i - 1].size *= dims[i].size;
    dims[i - 1].apart = std::move(dims[i].apart);
    dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (dims.size() > 2) return {};
  while (dims.size() < 2) dims.insert(dims.begin(), BatchDim{1, std::vector<std::int64_t>(tensors.size())});
  return dims;
}

}  // namespace

std::optional<LibraryAttention> library_attention(const Shape& batch, double scale, bool causal,
                                                  const AttentionTensors& t) {
  LibraryAttention call{.backward = t.gy.defined(), .dtype = t.q.dtype(), .scale = float(scale), .causal = causal};
  if ((call.dtype != DType::f16 && call.dtype != DType::bf16) || batch.numel() < 1) return {};
  // cuDNN 9.19 on an H100 gave -35296 for a gradient of q that is 0, in fresh memory alone: most likely its product of
  // the slopes with k reads slopes that the causal mask hides and no kernel has written.
  if (call.backward && causal && t.k.size(-2) > t.q.size(-2)) return {};
  std::vector<const Tensor*> tensors{&t.q, &t.k, &t.v, &t.y};
  std::vector<LibraryAttention::Operand*> operands{&call.q, &call.k, &call.v, &call.y};
  if (call.backward) {
    tensors.insert(tensors.end(), {&t.gy, &t.gq, &t.gk, &t.gv});
    operands.insert(operands.end(), {&call.gy, &call.gq, &call.gk, &call.gv});
  }
  const auto dims = folded(batch, tensors);
  constexpr std::int64_t kMostBatches = 65535;  // of a grid's second and third dimension
  if (!dims || (*dims)[0].size > kMostBatches || (*dims)[1].size > kMostBatches) return {};

  constexpr std::int64_t kNumbers = 8;  // of 16 bits, in 16 bytes
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& m = *tensors[i];
    LibraryAttention::Operand& o = *operands[i];
    o.data = bytes_of(m);
    o.sizes = {(*dims)[0].size, (*dims)[1].size, m.size(-2), m.size(-1)};
    o.strides = {(*dims)[0].apart[i], (*dims)[1].apart[i], m.stride(-2), m.stride(-1)};
    // A dimension of one is walked as if its neighbour were dense: cuDNN reads an order of dimensions out of the
    // strides.
    if (o.sizes[2] == 1) o.strides[2] = o.sizes[3];
    if (o.sizes[1] == 1) o.strides[1] = o.sizes[2] * o.strides[2];
    if (o.sizes[0] == 1) o.strides[0] = o.sizes[1] * o.strides[1];
    if (!aligned16(o.data) || o.sizes[2] < 1 || o.sizes[2] > std::numeric_limits<std::int32_t>::max()) return {};
    if (o.sizes[3] < 1 || o.sizes[3] % kNumbers != 0 || o.strides[3] != 1) return {};
    for (std::size_t d = 0; d < 3; ++d) {
      if (o.strides[d] % kNumbers != 0) return {};
      if (o.strides[d] < o.sizes[3]) return {};  // lines that overlap
    }
  }
  const auto rows = [&](const Tensor& r) {
    const std::int64_t heads = (*dims)[1].size, n = t.q.size(-2);
    return LibraryAttention::Operand{bytes_of(r), {(*dims)[0].size, heads, n, 1}, {heads * n, n, 1, 1}};
  };
  call.lse = rows(t.lse);
  if (t.means.defined()) call.means = rows(t.means);
  return call;
}

LibraryCallText said(const LibraryAttention& c) {
  return {c.backward ? "scaled_dot_product_attention_backward" : "scaled_dot_product_attention",
          sizes_text("q", c.q.sizes) + ", " + sizes_text("k", c.k.sizes) + " and " + sizes_text("v", c.v.sizes) +
              " in " + name(c.dtype) + (c.causal ? ", causal" : "")};
}

}  // namespace levin::kernels
