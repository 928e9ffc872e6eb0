// The rows of a table that an index names, made no longer than a limit.
#include "autograd/autocast.h"
#include "autograd/ops/in_place.h"
#include "autograd/ops/index/dims.h"
#include "autograd/ops/index/sorted.h"
#include "kernels/index/index.cuh"
#include "kernels/index/renorm_rows.cuh"
#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin {
namespace {

constexpr OpInfo kInfo{.name = "embedding_renorm_"};

void check(const Tensor& weight, const Tensor& index, double max_norm, double norm_type) {
  const char* const op = kInfo.name;
  check_float(op, weight);
  check_defined(op, index);
  if (weight.rank() != 2) fail<ShapeError>(op, ": weight has shape ", weight.shape(), ", expected [rows, columns]");
  check_index_type(op, weight, index);
  if (!(max_norm > 0)) fail<ConfigError>(op, ": max_norm is ", max_norm, ", expected a number above 0");
  if (!(norm_type > 0)) fail<ConfigError>(op, ": norm_type is ", norm_type, ", expected a number above 0");
  check_indices(op, index, weight.size(0), "dimension 0 of weight " + text(weight.shape()));
}

void renorm(const Tensor& weight, const Tensor& index, double max_norm, double norm_type) {
  using kernels::gpu::Grouping, kernels::gpu::IndexRange, kernels::gpu::RowKey;
  const std::int64_t n = index.numel(), rows = weight.size(0), cols = weight.size(1);
  const auto limit = [&]<class T>(T) {
    using A = kernels::Accum<T>;
    return kernels::RowLimit<A>(static_cast<A>(norm_type), static_cast<A>(max_norm));
  };
  dispatch(kInfo, weight, kFloats,
           overloaded{[&]<class T>(const Cpu& on, T of) {
                        kernels::cpu::renorm_rows(on, ptr<T>(weight), ptr<const std::int64_t>(index), n, rows, cols,
                                                  limit(of));
                      },
                      [&]<class T>(const Gpu& on, T of) {
                        const RowKey key{IndexRange(on, kInfo.name, rows), ptr<const std::int64_t>(index)};
                        with_sorted(on, Grouping(n, rows), key, weight, [&]<class K>(kernels::gpu::KeyOrder<K> in) {
                          kernels::gpu::renorm_rows(on, ptr<T>(weight), in.key, n, rows, cols, limit(of));
                        });
                      }});
}

}  // namespace

void embedding_renorm_(Tensor& weight, const Tensor& index, double max_norm, double norm_type) {
  check(weight, index, max_norm, norm_type);
  check_in_place(kInfo.name, weight);
  if (weight.device().is_meta() || weight.numel() == 0 || index.numel() == 0) return;
  const GradMode off(false);
  const Tensor at = index.contiguous();
  if (weight.is_contiguous()) {
    renorm(weight, at, max_norm, norm_type);
    weight.get().storage->wrote(kInfo.name);
  } else {
    const Tensor dense = weight.detach().contiguous();
    renorm(dense, at, max_norm, norm_type);
    copy_(weight, dense);
  }
}

}  // namespace levin
