// Batch norm over the batches of several ranks, beside batch norm over the whole batch.
#include "nn/sync_batch_norm.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "comm/group/local.h"
#include "levin/autograd.h"
#include "levin/nn.h"

namespace levin {
namespace {

using Group = std::shared_ptr<dist::ProcessGroup>;

Tensor drawn(const Shape& shape, std::uint64_t seed, double shift = 0) {
  Generator gen(seed);
  return (randn(shape, gen, Device::cpu()) + shift).to(DType::f64);
}
Tensor leaf_like(const Tensor& value) {
  Tensor t = value.clone();
  t.requires_grad_();
  return t;
}
double largest(const Tensor& t) {
  double most = 0;
  for (const double v : t.to(DType::f64).to_vector<double>()) most = v == v ? std::max(most, std::abs(v)) : INFINITY;
  return most;
}
double apart(const Tensor& a, const Tensor& b) { return largest(a - b); }

// The rows of each rank: uneven, and none on one.
constexpr std::int64_t kBegin[] = {0, 5, 5, 9};

}  // namespace

TEST_CASE("batch norm over uneven batches of ranks equals batch norm over all of them, to the second derivative") {
  const Tensor x = drawn({9, 3, 2, 2}, 1, 100), w = drawn({3}, 2), b = drawn({3}, 3), c = drawn({9, 3, 2, 2}, 4);
  struct Seen {
    Tensor y, mean, var, gx, gw, gb, ggx, ggw;
  };
  // The loss of rows: sum c y^2, and of its gradient in x the sum of squares.
  const auto look = [&](const Tensor& rows, const Tensor& cs, const auto& norm) {
    Tensor in = leaf_like(rows), weight = leaf_like(w), bias = leaf_like(b);
    const BatchNormResult r = norm(in, weight, bias);
    Tensor of[] = {in, weight, bias};
    const auto loss = [&](const Tensor& y) { return sum(cs * y * y); };
    const Tensors g = grad(loss(r.y), of, {.retain_graph = true});
    const Tensors again = grad(loss(norm(in, weight, bias).y), of, {.create_graph = true});
    const Tensors gg = grad(sum(square(again[0])), std::span<const Tensor>(of, 2));
    return Seen{r.y.detach(), r.mean, r.var, g[0], g[1], g[2], gg[0], gg[1]};
  };
  const Seen whole =
      look(x, c, [](const Tensor& in, const Tensor& wt, const Tensor& bs) { return batch_norm_train(in, wt, bs); });
  Seen seen[3];
  dist::run_local(3, [&](const Group& group) {
    const auto r = static_cast<std::size_t>(group->rank());
    const auto mine = [&](const Tensor& t) { return slice(t, 0, kBegin[r], kBegin[r + 1]); };
    seen[r] = look(mine(x), mine(c), [&](const Tensor& in, const Tensor& wt, const Tensor& bs) {
      return nn::sync_batch_norm(in, wt, bs, 1e-5, group);
    });
  });
  const auto rows_of = [&](Tensor Seen::*field) {
    const Tensor parts[] = {seen[0].*field, seen[1].*field, seen[2].*field};
    return cat(parts, 0);
  };
  const auto sum_of = [&](Tensor Seen::*field) { return seen[0].*field + seen[1].*field + seen[2].*field; };
  CHECK(apart(rows_of(&Seen::y), whole.y) < 1e-10);
  CHECK(apart(rows_of(&Seen::gx), whole.gx) < 1e-9);
  CHECK(apart(sum_of(&Seen::gw), whole.gw) < 1e-9);
  CHECK(apart(sum_of(&Seen::gb), whole.gb) < 1e-9);
  CHECK(apart(rows_of(&Seen::ggx), whole.ggx) < 1e-6 * largest(whole.ggx));
  CHECK(apart(sum_of(&Seen::ggw), whole.ggw) < 1e-6 * largest(whole.ggw));
  for (const Seen& s : seen) {
    CHECK(apart(s.mean, whole.mean) < 1e-10);
    CHECK(apart(s.var, whole.var) < 1e-9);
  }
}

TEST_CASE(
    "a layer with sync_group keeps the running statistics of all ranks, with and without weights, in 16 bits too") {
  for (const bool affine : {true, false}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Tensor x = drawn({8, 3}, 1, 2).to(dtype);
      const auto layer_of = [&] {
        struct Root : nn::Module {
          Root(nn::Options o, bool a) : Module(std::move(o)), norm(*this, "norm", {.features = 3, .affine = a}) {}
          nn::BatchNorm1d norm;
        };
        return std::make_unique<Root>(nn::Options{.gen = Generator(1), .device = Device::cpu()}, affine);
      };
      const auto whole = layer_of();
      const Tensor y = whole->norm(x).detach();
      dist::run_local(2, [&](const Group& group) {
        const auto part = layer_of();
        part->norm.sync_group = group;
        const std::int64_t begin = 4 * group->rank();
        const Tensor mine = part->norm(slice(x, 0, begin, begin + 4)).detach();
        CHECK(mine.dtype() == dtype);
        CHECK(apart(mine.to(DType::f32), slice(y, 0, begin, begin + 4).to(DType::f32)) <
              (dtype == DType::f32 ? 1e-5 : 2e-2));
        CHECK(apart(part->norm.running_mean, whole->norm.running_mean) < 1e-5);
        CHECK(apart(part->norm.running_var, whole->norm.running_var) < 1e-5);
        part->norm.eval();  // of one process again
        whole->norm.eval();
        if (group->rank() == 0) (void)part->norm(x);
      });
    }
  }
}

}  // namespace levin
