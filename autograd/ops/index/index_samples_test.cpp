// Samples of the ops by index for the conformance suite.
#include "autograd/ops/pointwise/plain_test.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
Tensor indices(std::initializer_list<std::int64_t> values) { return tensor<std::int64_t>(values, cpu); }

struct Pick {
  Shape x;
  int dim;
  std::int64_t count;
};
const Pick kPicks[] = {{{5, 3}, 0, 4}, {{2, 5, 3}, 1, 7}, {{4, 6}, -1, 2}, {{1}, 0, 1}, {{3, 0}, 0, 2}, {{3, 2}, 0, 0}};
int wrapped(const Pick& p) { return p.dim < 0 ? p.dim + p.x.rank() : p.dim; }

// The element of the index at `at`: along `dim` for ops on slices.
std::int64_t index_at(const Plain& index, const At& at, int dim) {
  return static_cast<std::int64_t>(index({at[static_cast<std::size_t>(dim)]}));
}

struct Elements {
  Shape x, index, src;
  int dim;
};
const Elements kElements[] = {
    {{4, 3}, {2, 3}, {2, 3}, 0},          {{3, 4}, {3, 6}, {3, 6}, 1}, {{2, 3, 4}, {2, 5, 3}, {2, 6, 4}, 1},
    {{3, 2, 2}, {7, 1, 2}, {7, 1, 2}, 0}, {{1}, {1}, {1}, 0},          {{3, 2}, {0, 2}, {0, 2}, 0},
    {{70, 300}, {9, 300}, {9, 300}, 0}};

void add_index_errors(OpCase& c, const std::string& op,
                      const std::function<void(const Tensor& x, const Tensor& index)>& call) {
  const auto error = [&](const char* what, Shape x, Tensor index, auto is, const std::string& contains) {
    c.errors.push_back({what, [=] { call(zeros(x, cpu), index); }, is, op + contains});
  };
  error("above", {3}, indices({0, 3}), throws<IndexError>,
        ": index 3 at position [1] is out of range, expected 0 to 2");
  error("below", {3}, indices({-1}), throws<IndexError>, ": index -1 at position [0]");
  error("dtype", {3}, zeros({1}, cpu, DType::i32), throws<DTypeError>, ": index is i32, expected i64");
}

}  // namespace

LEVIN_OP_CASE(index_select) {
  OpCase c{.ops = {"index_select"}, .dtypes = kAllDTypes};
  for (const Pick& p : kPicks) {
    const int dim = wrapped(p);
    c.samples.push_back({.inputs = {real(p.x, 0, 8), index({p.count}, p.x[dim])},
                         .call = [=](const Tensors& in) { return Tensors{index_select(in[0], p.dim, in[1])}; },
                         .reference =
                             [=](const Tensors& in) {
                               const Plain x(in[0]), i(in[1]);
                               const auto at_index = [&](const At& at) {
                                 return x(with(at, dim, static_cast<double>(index_at(i, at, dim))));
                               };
                               return Tensors{Plain(p.x.with(dim, p.count), at_index).tensor()};
                             }});
  }
  add_index_errors(c, "index_select", [](const Tensor& x, const Tensor& i) { (void)index_select(x, 0, i); });
  c.errors.push_back({"rank",
                      [] {
                        (void)index_select(zeros({3}, cpu), 0, reshape(indices({0}), {1, 1}));
                      },
                      throws<ShapeError>, "index_select: index has shape [1, 1], expected rank 1"});
  return c;
}

LEVIN_OP_CASE(index_add) {
  OpCase c{.ops = {"index_add"}, .dtypes = kNumberDTypes, .sums = 7};
  for (const Pick& p : kPicks) {
    const int dim = wrapped(p);
    c.samples.push_back(
        {.inputs = {real(p.x), index({p.count}, p.x[dim]), real(p.x.with(dim, p.count))},
         .call = [=](const Tensors& in) { return Tensors{index_add(in[0], p.dim, in[1], in[2])}; },
         .reference =
             [=](const Tensors& in) {
               Plain y(in[0]);
               const Plain i(in[1]), src(in[2]);
               src.each([&](const At& at) { y(with(at, dim, static_cast<double>(index_at(i, at, dim)))) += src(at); });
               return Tensors{y.tensor()};
             }});
  }
  add_index_errors(c, "index_add",
                   [](const Tensor& x, const Tensor& i) { (void)index_add(x, 0, i, zeros({i.numel()}, cpu)); });
  c.errors.push_back({"src",
                      [] {
                        (void)index_add(zeros({3, 2}, cpu), 0, indices({0}), zeros({2, 2}, cpu));
                      },
                      throws<ShapeError>, "index_add: src has shape [2, 2], expected [1, 2]"});
  c.errors.push_back({"src dtype",
                      [] { (void)index_add(zeros({3}, cpu), 0, indices({0}), zeros({1}, cpu, DType::f64)); },
                      throws<DTypeError>, "index_add: tensors are f32 and f64"});
  return c;
}

LEVIN_OP_CASE(embedding) {
  OpCase c{.ops = {"embedding", "embedding_backward"}, .dtypes = kFloatDTypes, .sums = 8};
  struct Look {
    Shape weight, index;
    std::optional<std::int64_t> padding;
  };
  for (const Look& s : {Look{{5, 3}, {2, 4}, {}}, Look{{3, 4}, {7}, -1}, Look{{4, 1}, {}, 2}, Look{{1, 1}, {1}, {}},
                        Look{{3, 2}, {0}, {}}, Look{{2, 600}, {30}, 0}}) {
    c.samples.push_back({.inputs = {real(s.weight), index(s.index, s.weight[0])},
                         .call = [=](const Tensors& in) { return Tensors{embedding(in[0], in[1], s.padding)}; },
                         .reference =
                             [=](const Tensors& in) {
                               const Plain w(in[0]), i(in[1]);
                               const Shape out = s.index.inserted(s.index.rank(), s.weight[1]);
                               return Tensors{
                                   Plain(out, [&](const At& at) {
                                     return w({static_cast<std::int64_t>(i(At(at.begin(), at.end() - 1))), at.back()});
                                   }).tensor()};
                             },
                         // The padding row takes part in the values but gets no gradient, unlike the numeric one.
                         .gradcheck = !s.padding.has_value()});
  }
  add_index_errors(c, "embedding", [](const Tensor& x, const Tensor& i) { (void)embedding(reshape(x, {-1, 1}), i); });
  c.errors.push_back({"rank", [] { (void)embedding(zeros({3}, cpu), indices({0})); }, throws<ShapeError>,
                      "embedding: weight has shape [3], expected [rows, columns]"});
  c.errors.push_back({"padding",
                      [] {
                        (void)embedding(zeros({3, 2}, cpu), indices({0}), 3);
                      },
                      throws<IndexError>, "embedding: padding_idx is 3, expected -3 to 2"});
  return c;
}

LEVIN_OP_CASE(gather) {
  OpCase c{.ops = {"gather"}, .dtypes = kAllDTypes};
  for (const Elements& s : kElements) {
    c.samples.push_back({.inputs = {real(s.x, 0, 8), index(s.index, s.x[s.dim])},
                         .call = [=](const Tensors& in) { return Tensors{gather(in[0], s.dim - s.x.rank(), in[1])}; },
                         .reference =
                             [=](const Tensors& in) {
                               const Plain x(in[0]), i(in[1]);
                               return Tensors{
                                   Plain(s.index, [&](const At& at) { return x(with(at, s.dim, i(at))); }).tensor()};
                             }});
  }
  add_index_errors(c, "gather", [](const Tensor& x, const Tensor& i) { (void)gather(x, 0, i); });
  c.errors.push_back({"rank",
                      [] {
                        (void)gather(zeros({3, 2}, cpu), 0, indices({0}));
                      },
                      throws<ShapeError>, "gather: index has shape [1], expected rank 2"});
  c.errors.push_back({"size",
                      [] {
                        (void)gather(zeros({3, 2}, cpu), 0, zeros({1, 3}, cpu, DType::i64));
                      },
                      throws<ShapeError>, "gather: index [1, 3] is larger than x [3, 2] in dimension 1"});
  c.errors.push_back({"position",
                      [] {
                        (void)gather(zeros({2, 2}, cpu), 1, reshape(indices({0, 1, 1, 5}), {2, 2}));
                      },
                      throws<IndexError>,
                      "gather: index 5 at position [1, 1] is out of range, expected 0 to 1; dimension 1 of x [2, 2]"});
  return c;
}

namespace {
OpCase scatters(const std::string& op, std::vector<DType> dtypes,
                Tensor (*call)(const Tensor&, std::int64_t, const Tensor&, const Tensor&), bool adds) {
  OpCase c{.ops = {op}, .dtypes = std::move(dtypes), .sums = 10};
  for (const Elements& s : kElements) {
    c.samples.push_back({.inputs = {real(s.x), index(s.index, s.x[s.dim]), real(s.src)},
                         .call = [=](const Tensors& in) { return Tensors{call(in[0], s.dim, in[1], in[2])}; },
                         .reference =
                             [=](const Tensors& in) {
                               Plain y(in[0]);
                               const Plain i(in[1]), src(in[2]);
                               i.each([&](const At& at) {
                                 double& to = y(with(at, s.dim, i(at)));
                                 to = adds ? to + src(at) : src(at);
                               });
                               return Tensors{y.tensor()};
                             }});
  }
  add_index_errors(c, op, [=](const Tensor& x, const Tensor& i) { (void)call(x, 0, i, zeros(i.shape(), cpu)); });
  c.errors.push_back({"src",
                      [=] {
                        (void)call(zeros({3}, cpu), 0, indices({0, 1}), zeros({1}, cpu));
                      },
                      throws<ShapeError>, op + ": index [2] is larger than src [1] in dimension 0"});
  c.errors.push_back({"src dtype", [=] { (void)call(zeros({3}, cpu), 0, indices({0}), zeros({1}, cpu, DType::f64)); },
                      throws<DTypeError>, op + ": tensors are f32 and f64"});
  c.errors.push_back({"src rank",
                      [=] {
                        (void)call(zeros({3}, cpu), 0, indices({0}), zeros({1, 1}, cpu));
                      },
                      throws<ShapeError>, op + ": src has shape [1, 1], expected rank 1"});
  return c;
}
}  // namespace

LEVIN_OP_CASE(scatter) { return scatters("scatter", kAllDTypes, scatter, false); }
LEVIN_OP_CASE(scatter_add) { return scatters("scatter_add", kNumberDTypes, scatter_add, true); }

LEVIN_OP_CASE(nonzero) {
  OpCase c{.ops = {"nonzero"}, .dtypes = kAllDTypes, .differentiable = false, .values_on_meta = true};
  for (const Shape& shape : {Shape{3, 5}, Shape{2, 3, 4}, Shape{1}, Shape{0, 4}, Shape{70'000}}) {
    c.samples.push_back({.inputs = {real(shape)},
                         .call = [](const Tensors& in) { return Tensors{nonzero(in[0])}; },
                         .reference =
                             [=](const Tensors& in) {
                               const Plain x(in[0]);
                               std::vector<double> found;
                               x.each([&](const At& at) {
                                 if (x(at) != 0) found.insert(found.end(), at.begin(), at.end());
                               });
                               const auto rows = static_cast<std::int64_t>(found.size()) / shape.rank();
                               return Tensors{from_data(found, {rows, shape.rank()}, cpu)};
                             }});
  }
  c.errors.push_back({"meta", [] { (void)nonzero(empty({2}, Device::meta())); }, throws<UnsupportedError>,
                      "nonzero: the size of the result depends on values"});
  return c;
}

LEVIN_OP_CASE(masked_select) {
  OpCase c{.ops = {}, .dtypes = kAllDTypes, .values_on_meta = true};
  struct Masked {
    Shape x, mask;
  };
  for (const Masked& s :
       {Masked{{3, 4}, {3, 4}}, Masked{{3, 4}, {4}}, Masked{{4}, {3, 1}}, Masked{{1}, {1}}, Masked{{0, 2}, {2}}}) {
    c.samples.push_back({.inputs = {real(s.x, 0, 8), mask(s.mask)},
                         .call = [](const Tensors& in) { return Tensors{masked_select(in[0], in[1])}; },
                         .reference =
                             [=](const Tensors& in) {
                               const Shape shape = broadcast_shapes("reference", s.x, s.mask);
                               const Plain x(expand(in[0].detach(), shape)), m(expand(in[1], shape));
                               std::vector<double> found;
                               x.each([&](const At& at) {
                                 if (m(at) != 0) found.push_back(x(at));
                               });
                               return Tensors{from_data(found, {static_cast<std::int64_t>(found.size())}, cpu)};
                             }});
  }
  c.errors.push_back({"mask dtype", [] { (void)masked_select(zeros({2}, cpu), zeros({2}, cpu)); }, throws<DTypeError>,
                      "masked_select: mask is f32, expected bool"});
  c.errors.push_back({"shape", [] { (void)masked_select(zeros({2}, cpu), zeros({3}, cpu, DType::b8)); },
                      throws<ShapeError>, "masked_select: shapes [2] and [3]"});
  return c;
}

LEVIN_OP_CASE(one_hot) {
  OpCase c{.ops = {"one_hot"}, .dtypes = {DType::i64}, .differentiable = false};
  for (const Shape& shape : {Shape{5}, Shape{2, 3}, Shape{}, Shape{1}, Shape{0}}) {
    c.samples.push_back({.inputs = {index(shape, 4)},
                         .call = [](const Tensors& in) { return Tensors{one_hot(in[0], 4)}; },
                         .reference =
                             [=](const Tensors& in) {
                               const Plain i(in[0]);
                               return Tensors{Plain(shape.inserted(shape.rank(), 4), [&](const At& at) {
                                                return i(At(at.begin(), at.end() - 1)) == static_cast<double>(at.back())
                                                           ? 1.0
                                                           : 0.0;
                                              }).tensor()};
                             }});
  }
  c.errors.push_back({"class",
                      [] {
                        (void)one_hot(indices({0, 4}), 4);
                      },
                      throws<IndexError>, "one_hot: index 4 at position [1] is out of range, expected 0 to 3"});
  c.errors.push_back(
      {"dtype", [] { (void)one_hot(zeros({1}, cpu), 4); }, throws<DTypeError>, "one_hot: index is f32, expected i64"});
  c.errors.push_back({"classes", [] { (void)one_hot(indices({0}), 0); }, throws<ShapeError>, "one_hot: classes is 0"});
  return c;
}

LEVIN_OP_CASE(bincount) {
  OpCase c{.ops = {"bincount"}, .dtypes = {DType::i64}, .differentiable = false, .values_on_meta = true};
  for (const std::int64_t n : {20, 1, 0}) {
    for (const std::int64_t least : {0, 9}) {
      c.samples.push_back({.inputs = {index({n}, 6)},
                           .call = [=](const Tensors& in) { return Tensors{bincount(in[0], least)}; },
                           .reference =
                               [=](const Tensors& in) {
                                 std::vector<double> counts(static_cast<std::size_t>(least));
                                 for (const double v : Plain(in[0]).values) {
                                   counts.resize(std::max(counts.size(), static_cast<std::size_t>(v) + 1));
                                   counts[static_cast<std::size_t>(v)] += 1;
                                 }
                                 return Tensors{from_data(counts, {static_cast<std::int64_t>(counts.size())}, cpu)};
                               }});
    }
  }
  c.errors.push_back({"negative",
                      [] {
                        (void)bincount(indices({2, -3}));
                      },
                      throws<IndexError>, "bincount: index -3 at position [1]"});
  c.errors.push_back({"rank",
                      [] {
                        (void)bincount(zeros({1, 1}, cpu, DType::i64));
                      },
                      throws<ShapeError>, "bincount: index has shape [1, 1]"});
  c.errors.push_back({"dtype", [] { (void)bincount(zeros({1}, cpu)); }, throws<DTypeError>, "bincount: index is f32"});
  c.errors.push_back(
      {"minlength", [] { (void)bincount(indices({0}), -1); }, throws<ShapeError>, "bincount: minlength is -1"});
  return c;
}

}  // namespace levin::testing
