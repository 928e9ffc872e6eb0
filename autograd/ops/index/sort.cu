// Sorting along one dimension.
#include <array>

#include "autograd/op_table.h"
#include "autograd/ops/index/dims.h"
#include "autograd/ops/index/kth.h"
#include "autograd/ops/index/point.h"
#include "kernels/executor/dispatch.h"
#include "kernels/index/sort.cuh"
#include "levin/ops.h"

namespace levin {
namespace {

// Scratch memory for kernels, held for the lifetime of this object.
struct Scratch {
  Device device;
  std::array<Tensor, 2> held{};
  [[nodiscard]] std::uint8_t* operator()(std::int64_t bytes) {
    Tensor& room = held[held[0].defined() ? 1 : 0];
    room = empty(Shape{bytes}, device, DType::u8);
    return ptr<std::uint8_t>(room);
  }
};

struct Sort {
  static constexpr OpInfo info{.name = "sort"};
  int dim;
  Order order;
  Shape in{};
  Stash indices{};

  std::array<Tensor, 2> forward(const Tensor& x) {
    in = x.shape();
    const Tensor dense = x.contiguous();
    Tensor values = empty_like(dense);
    indices = empty_like(dense, DType::i64);
    const AlongDim l(in, dim);
    const bool down = order == Order::descending;
    dispatch(info, x, kAll,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          kernels::cpu::sort(on, ptr<const T>(dense), ptr<T>(values), ptr<std::int64_t>(indices),
                                             l.outer, l.n, l.inner, down);
                        },
                        [&]<class T>(const Gpu& on, T) {
                          kernels::gpu::sort(on, ptr<const T>(dense), ptr<T>(values), ptr<std::int64_t>(indices),
                                             l.outer, l.n, l.inner, down, Scratch{x.device()});
                        }});
    return {values, indices};
  }
  Grads<1> backward(const Tensor& gy, const Tensor&, Need<1>) { return {put_back(gy, in, dim, indices)}; }
};
LEVIN_OP_TABLE(Sort)

struct TopK {
  static constexpr OpInfo info{.name = "topk"};
  std::int64_t k;
  int dim;
  Order order;
  Shape in{};
  Stash indices{};

  std::array<Tensor, 2> forward(const Tensor& x) {
    in = x.shape();
    Tensor values = empty(in.with(dim, k), x.device(), x.dtype());
    indices = empty_like(values, DType::i64);
    const Tensor dense = x.contiguous();
    const AlongDim l(in, dim);
    const bool largest = order == Order::descending;
    dispatch(info, x, kAll,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          kernels::cpu::topk(on, ptr<const T>(dense), ptr<T>(values), ptr<std::int64_t>(indices),
                                             l.outer, l.n, l.inner, k, largest);
                        },
                        [&]<class T>(const Gpu& on, T) {
                          kernels::gpu::topk(on, ptr<const T>(dense), ptr<T>(values), ptr<std::int64_t>(indices),
                                             l.outer, l.n, l.inner, k, largest, Scratch{x.device()});
                        }});
    return {values, indices};
  }
  Grads<1> backward(const Tensor& gy, const Tensor&, Need<1>) { return {put_back(gy, in, dim, indices)}; }
};
LEVIN_OP_TABLE(TopK)

int check_dim(const char* op, const Tensor& x, std::int64_t dim) {
  const int at = wrap_dim(op, dim, x.rank());
  if (x.shape()[at] > std::int64_t{0xffffffff}) {
    fail<UnsupportedError>(op, ": dimension ", at, " of x ", x.shape(), " has more than 2^32 - 1 elements");
  }
  return at;
}

}  // namespace

ValuesIndices sort(const Tensor& x, std::int64_t dim, Order order) {
  if (x.rank() == 0) return of_point(x, [&](const Tensor& line) { return sort(line, dim, order); });
  auto [values, indices] = apply(Sort{check_dim("sort", x, dim), order}, x);
  return {values, indices};
}

Tensor detail::kth_places(const char* op, const Tensor& x, int dim, std::span<const std::int64_t> ks, FirstNan first) {
  const OpInfo info{.name = op};
  const Tensor dense = x.detach().contiguous();
  Tensor places = empty(x.shape().with(dim, static_cast<std::int64_t>(ks.size())), x.device(), DType::i64);
  const AlongDim l(x.shape(), check_dim(op, x, dim));
  dispatch_dtype(info, x, kAll, [&]<class T>(T) {
    kernels::cpu::kth_places(Cpu{}, ptr<const T>(dense), ptr<std::int64_t>(places), l.outer, l.n, l.inner, ks,
                             first == FirstNan::yes);
  });
  return places;
}

Tensor argsort(const Tensor& x, std::int64_t dim, Order order) {
  if (x.rank() == 0) return of_point(x, [&](const Tensor& line) { return argsort(line, dim, order); });
  return apply(Sort{check_dim("argsort", x, dim), order}, x.detach())[1];
}

ValuesIndices topk(const Tensor& x, std::int64_t k, std::int64_t dim, Order order) {
  if (x.rank() == 0 && k == 1) return of_point(x, [&](const Tensor& line) { return topk(line, k, dim, order); });
  const int at = check_dim("topk", x, dim);
  if (k < 0 || k > x.shape()[at]) {
    fail<IndexError>("topk: k is ", k, ", expected 0 to ", x.shape()[at], ", the size of dimension ", at, " of x ",
                     x.shape());
  }
  auto [values, indices] = apply(TopK{k, at, order}, x);
  return {values, indices};
}

}  // namespace levin
