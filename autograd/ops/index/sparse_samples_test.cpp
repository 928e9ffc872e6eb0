// Samples of the ops on segments and sparse matrices for the conformance suite.
#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/ops/pointwise/plain_test.h"
#include "levin/sparse.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

using Ints = std::vector<std::int64_t>;
const std::string kNoSingle = "offsets have one element more than there are rows";
const Device cpu = Device::cpu();
Tensor ints(const Ints& values) {
  return from_data(std::span<const std::int64_t>(values), {static_cast<std::int64_t>(values.size())}, cpu);
}

struct Pattern {
  Ints crow, col;
  std::int64_t cols;
  [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(crow.size()) - 1; }
  [[nodiscard]] std::int64_t entries() const { return static_cast<std::int64_t>(col.size()); }
};
// Row 1 of 5 has `hub` entries, the others have one or none; columns repeat.
Pattern hub(std::int64_t entries, std::int64_t cols) {
  Pattern p{{0, 1, entries - 1, entries - 1, entries, entries}, {}, cols};
  for (std::int64_t k = 0; k < entries; ++k) p.col.push_back(k * k % cols);
  return p;
}
// A loop, an isolated row, repeated entries, more columns than are used.
const Pattern kSmall{{0, 3, 3, 5, 6}, {0, 2, 2, 1, 1, 0}, 4};
const Pattern kSingle{{0, 1}, {0}, 1}, kEmpty{{0, 0, 0}, {}, 3}, kNothing{{0}, {}, 0};

// f(row, entry) for all entries.
void each_entry(const Plain& crow, const std::function<void(std::int64_t, std::int64_t)>& f) {
  for (std::int64_t i = 0; i + 1 < crow.shape[0]; ++i)
    for (auto k = static_cast<std::int64_t>(crow({i})); k < static_cast<std::int64_t>(crow({i + 1})); ++k) f(i, k);
}
At moved(At at, std::int64_t first) {
  at[0] = first;
  return at;
}
constexpr Reduce kReduces[] = {Reduce::sum, Reduce::mean, Reduce::min, Reduce::max};

// y[i, ...] = the reduction of term(entry, at) over the entries of row i.
Tensor reduced(const Shape& shape, const Plain& crow, Reduce reduce,
               const std::function<double(std::int64_t, const At&)>& term) {
  return Plain(shape,
               [&](const At& at) {
                 const auto first = static_cast<std::int64_t>(crow({at[0]})),
                            last = static_cast<std::int64_t>(crow({at[0] + 1}));
                 double y = first == last || reduce == Reduce::sum || reduce == Reduce::mean ? 0 : term(first, at);
                 for (std::int64_t k = first; k < last; ++k) {
                   const double v = term(k, at);
                   y = reduce == Reduce::max ? std::max(y, v) : reduce == Reduce::min ? std::min(y, v) : y + v;
                 }
                 return reduce == Reduce::mean && last > first ? y / static_cast<double>(last - first) : y;
               })
      .tensor();
}

struct Segments {
  Ints offsets;
  Shape rest;  // of a row
  bool gradcheck = true;
  [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  [[nodiscard]] Shape with_rows(std::int64_t n) const { return rest.inserted(0, n); }
};
const Segments kSegments[] = {{{0, 3, 3, 5}, {}}, {{0, 2, 9, 9, 10}, {3}}, {{0, 0, 40, 41}, {2, 2}},
                              {{0, 1}, {}},       {{0, 0, 0}, {2}},        {{0}, {2}},
                              {{0, 4}, {0}},      {{0, 5, 6}, {33}},       {{0, 7, 1200, 1201}, {}, false}};

// Rows of more than a thousand entries, which devices cut, have cases of their own: their sums round more, and the
// other cases keep their tolerance.
enum class Rows : bool { short_ones, long_ones };
OpCase of_long_rows(double sums, std::vector<DType> dtypes) {
  return {.ops = {},  // the case of the same name without _long claims them
          .dtypes = std::move(dtypes),
          .sums = sums,
          .no_empty = "one long row",
          .no_single = "one long row"};
}

void add_offset_errors(OpCase& c, const std::string& op,
                       const std::function<void(const Tensor& x, const Tensor& offsets)>& call) {
  const auto error = [&](const char* what, Tensor offsets, auto is, const std::string& contains) {
    c.errors.push_back({what, [=] { call(zeros({3, 2}, cpu), offsets); }, is, op + contains});
  };
  error("dtype", zeros({2}, cpu, DType::i32), throws<DTypeError>, ": offsets is i32, expected i64");
  error("rank", zeros({2, 1}, cpu, DType::i64), throws<ShapeError>, ": offsets has shape [2, 1], expected rank 1");
  error("empty", zeros({0}, cpu, DType::i64), throws<ShapeError>, ": offsets has shape [0]");
  error("no rows", ints({0}), throws<ShapeError>,
        ": offsets has shape [1], expected more: there are 3 entries and no rows");
  error("begin", ints({1, 3}), throws<IndexError>, ": offsets[0] is 1, expected 0");
  error("falling", ints({0, 2, 1, 3}), throws<IndexError>, ": offsets[2] is 1, expected 2 or more");
  error("end", ints({0, 2}), throws<IndexError>, ": offsets[1] is 2, expected 3");
}

}  // namespace

namespace {
void add_segment_reduce(OpCase& c, Rows rows) {
  for (const Segments& s : kSegments) {
    if (s.gradcheck == (rows == Rows::long_ones)) continue;
    for (const Reduce reduce : kReduces) {
      c.samples.push_back({.inputs = {real(s.with_rows(s.offsets.back())), fixed(ints(s.offsets))},
                           .call = [=](const Tensors& in) { return Tensors{segment_reduce(in[0], in[1], reduce)}; },
                           .reference =
                               [=](const Tensors& in) {
                                 const Plain x(in[0]);
                                 return Tensors{reduced(s.with_rows(s.rows()), Plain(in[1]), reduce,
                                                        [&](std::int64_t k, const At& at) { return x(moved(at, k)); })};
                               },
                           .gradcheck = s.gradcheck});
    }
  }
}
}  // namespace

LEVIN_OP_CASE(segment_reduce) {
  OpCase c{.ops = {"spmm", "spmm_extreme"}, .dtypes = kFloatDTypes, .sums = 41, .no_single = kNoSingle};
  add_segment_reduce(c, Rows::short_ones);
  add_offset_errors(c, "segment_reduce", [](const Tensor& x, const Tensor& o) { (void)segment_reduce(x, o); });
  return c;
}

LEVIN_OP_CASE(segment_reduce_long) {
  OpCase c = of_long_rows(1200, kFloatDTypes);
  add_segment_reduce(c, Rows::long_ones);
  c.errors.push_back({"scalar", [] { (void)segment_reduce(zeros({}, cpu), ints({0})); }, throws<ShapeError>,
                      "segment_reduce: x has shape [], expected [rows, ...]"});
  return c;
}

namespace {
void add_gather_csr(OpCase& c, Rows rows) {
  for (const Segments& s : kSegments) {
    if (s.gradcheck == (rows == Rows::long_ones)) continue;
    c.samples.push_back(
        {.inputs = {real(s.with_rows(s.rows()), 0, 8), fixed(ints(s.offsets))},
         .call = [=](const Tensors& in) { return Tensors{gather_csr(in[0], in[1], s.offsets.back())}; },
         .reference =
             [=](const Tensors& in) {
               const Plain x(in[0]);
               Plain y(s.with_rows(s.offsets.back()));
               Ints row(static_cast<std::size_t>(s.offsets.back()));
               each_entry(Plain(in[1]), [&](std::int64_t i, std::int64_t k) { row[static_cast<std::size_t>(k)] = i; });
               y.each([&](const At& at) { y(at) = x(moved(at, row[static_cast<std::size_t>(at[0])])); });
               return Tensors{y.tensor()};
             },
         .gradcheck = s.gradcheck});
  }
}
}  // namespace

LEVIN_OP_CASE(gather_csr) {
  OpCase c{.ops = {"gather_csr"}, .dtypes = kAllDTypes, .sums = 41, .no_single = kNoSingle};
  add_gather_csr(c, Rows::short_ones);
  c.errors.push_back({"rows",
                      [] {
                        (void)gather_csr(zeros({3}, cpu), ints({0, 2}), 2);
                      },
                      throws<ShapeError>, "gather_csr: x has shape [3], expected 1 rows"});
  c.errors.push_back({"entries",
                      [] {
                        (void)gather_csr(zeros({1}, cpu), ints({0, 2}), 3);
                      },
                      throws<IndexError>, "gather_csr: offsets[1] is 2, expected 3"});
  c.errors.push_back({"negative",
                      [] {
                        (void)gather_csr(zeros({1}, cpu), ints({0, 2}), -1);
                      },
                      throws<ShapeError>, "gather_csr: entries is -1"});
  return c;
}

LEVIN_OP_CASE(gather_csr_long) {
  OpCase c = of_long_rows(1200, kAllDTypes);
  add_gather_csr(c, Rows::long_ones);
  c.errors.push_back({"scalar", [] { (void)gather_csr(zeros({}, cpu), ints({0}), 0); }, throws<ShapeError>,
                      "gather_csr: x has shape []"});
  return c;
}

namespace {
void add_segment_softmax(OpCase& c, Rows rows) {
  for (const Segments& s : kSegments) {
    if (s.gradcheck == (rows == Rows::long_ones)) continue;
    c.samples.push_back({.inputs = {real(s.with_rows(s.offsets.back())), fixed(ints(s.offsets))},
                         .call = [=](const Tensors& in) { return Tensors{segment_softmax(in[0], in[1])}; },
                         .reference =
                             [=](const Tensors& in) {
                               const Plain x(in[0]);
                               Plain y(x.shape);
                               const Plain crow(in[1]);
                               y.each([&](const At& at) {
                                 each_entry(crow, [&](std::int64_t i, std::int64_t k) {
                                   if (k != at[0]) return;
                                   double sum = 0;
                                   for (auto e = static_cast<std::int64_t>(crow({i}));
                                        e < static_cast<std::int64_t>(crow({i + 1})); ++e)
                                     sum += std::exp(x(moved(at, e)));
                                   y(at) = std::exp(x(at)) / sum;
                                 });
                               });
                               return Tensors{y.tensor()};
                             },
                         .gradcheck = s.gradcheck});
  }
}
}  // namespace

LEVIN_OP_CASE(segment_softmax) {
  OpCase c{.ops = {"segment_softmax", "segment_softmax_backward"},
           .dtypes = kFloatDTypes,
           .sums = 41,
           .no_single = kNoSingle};
  add_segment_softmax(c, Rows::short_ones);
  add_offset_errors(c, "segment_softmax", [](const Tensor& x, const Tensor& o) { (void)segment_softmax(x, o); });
  c.errors.push_back({"scalar", [] { (void)segment_softmax(zeros({}, cpu), ints({0})); }, throws<ShapeError>,
                      "segment_softmax: x has shape []"});
  return c;
}

LEVIN_OP_CASE(segment_softmax_long) {
  OpCase c = of_long_rows(1200, kFloatDTypes);
  add_segment_softmax(c, Rows::long_ones);
  c.errors.push_back({"rows",
                      [] {
                        (void)segment_softmax(zeros({3}, cpu), ints({0, 2}));
                      },
                      throws<IndexError>, "segment_softmax: offsets[1] is 2, expected 3"});
  return c;
}

namespace {

struct Product {
  Pattern a;
  Shape value;  // without its first dimension; rank 1: heads
  Shape rest;   // of a row of x
  bool has_value = true, has_edge = false, gradcheck = true;
};
const Product kProducts[] = {
    {kSmall, {}, {3}},
    {kSmall, {2}, {2, 4}, true, true},
    {kSmall, {}, {2, 2}, false},
    {hub(90, 7), {}, {1}},
    {hub(60, 5), {3}, {3, 2}, true, true},
    {kSmall, {}, {33}},
    {kSingle, {}, {1}},
    {kSingle, {1}, {1}, true, true},
    {kEmpty, {2}, {2, 3}},
    {kNothing, {}, {4}},
    {kSmall, {}, {0}},
    {hub(1300, 9), {}, {1}, true, true, false},
};
// The permutation that samples use: reversal.
Tensor backwards(std::int64_t n) {
  Ints edge;
  for (std::int64_t k = 0; k < n; ++k) edge.push_back(n - 1 - k);
  return ints(edge);
}
std::vector<Input> pattern_inputs(const Product& s) {
  std::vector<Input> in{fixed(ints(s.a.crow)), fixed(ints(s.a.col))};
  if (s.has_edge) in.push_back(optional(fixed(backwards(s.a.entries()))));
  return in;
}
Csr csr_of(const Product& s, const Tensors& in, std::size_t from) {
  return {.crow = in[from], .col = in[from + 1], .edge = s.has_edge ? in[from + 2] : Tensor{}, .cols = s.a.cols};
}
std::int64_t value_row(const Product& s, std::int64_t k) { return s.has_edge ? s.a.entries() - 1 - k : k; }

void add_csr_errors(OpCase& c, const std::string& op, const std::function<void(const Csr&)>& call) {
  const auto error = [&](const char* what, Csr a, auto is, const std::string& contains) {
    c.errors.push_back({what, [=] { call(a); }, is, op + contains});
  };
  const auto small = [](Ints crow, Ints col) { return Csr{.crow = ints(crow), .col = ints(col), .cols = 4}; };
  Csr bad = small({0, 1, 2}, {0, 3});
  bad.cols = -1;
  error("cols", bad, throws<ShapeError>, ": cols is -1");
  bad = small({0, 1, 2}, {0, 3});
  bad.edge = ints({0, 2});
  error("edge", bad, throws<IndexError>, ": index 2 at position [1] is out of range, expected 0 to 1; the values");
  bad.edge = ints({0});
  error("edges", bad, throws<ShapeError>, ": edge has shape [1], expected one element an entry, 2");
  error("column", small({0, 1, 2}, {0, 4}), throws<IndexError>, ": index 4 at position [1] is out of range");
  error("falling", small({0, 1, 0}, {0, 3}), throws<IndexError>, ": crow[2] is 0, expected 1 or more");
  error("end", small({0, 1, 1}, {0, 3}), throws<IndexError>, ": crow[2] is 1, expected 2");
  bad = small({0, 1, 2}, {0, 3});
  bad.col = bad.col.to(DType::u8);
  error("dtype", bad, throws<DTypeError>, ": col is u8, expected i32 or i64");
  bad.col = ints({0, 4}).to(DType::i32);
  error("narrow column", bad, throws<IndexError>, ": index 4 at position [1] is out of range");
  bad.col = ints({0, 3}).to(DType::i32);
  bad.edge = ints({0, 1});
  error("dtype of edge", bad, throws<DTypeError>, ": edge is i64, expected i32");
}

}  // namespace

namespace {
void add_spmm(OpCase& c, Rows rows) {
  for (const Product& s : kProducts) {
    if (s.gradcheck == (rows == Rows::long_ones)) continue;
    for (const Reduce reduce : kReduces) {
      std::vector<Input> inputs{real(s.rest.inserted(0, s.a.cols))};
      for (const Input& i : pattern_inputs(s)) inputs.push_back(i);
      if (s.has_value) inputs.push_back(optional(real(s.value.inserted(0, s.a.entries()))));
      c.samples.push_back(
          {.inputs = inputs,
           .call =
               [=](const Tensors& in) {
                 return Tensors{spmm(csr_of(s, in, 1), s.has_value ? in.back() : Tensor{}, in[0], reduce)};
               },
           .reference =
               [=](const Tensors& in) {
                 const Plain x(in[0]), crow(in[1]), col(in[2]);
                 const auto value = [&](std::int64_t k, const At& at) {
                   if (!s.has_value) return 1.0;
                   const Plain v(in.back());
                   return s.value.rank() == 0 ? v({value_row(s, k)}) : v({value_row(s, k), at[1]});
                 };
                 return Tensors{
                     reduced(s.rest.inserted(0, s.a.rows()), crow, reduce, [&](std::int64_t k, const At& at) {
                       return value(k, at) * x(moved(at, static_cast<std::int64_t>(col({k}))));
                     })};
               },
           .gradcheck = s.gradcheck});
    }
  }
}
}  // namespace

LEVIN_OP_CASE(spmm) {
  OpCase c{.ops = {"spmm", "spmm_extreme"}, .dtypes = kFloatDTypes, .sums = 96, .no_single = kNoSingle};
  add_spmm(c, Rows::short_ones);
  const Csr two{.crow = ints({0, 1, 2}), .col = ints({0, 3}), .cols = 4};
  add_csr_errors(c, "spmm", [](const Csr& a) { (void)spmm(a, {}, zeros({4, 2}, cpu)); });
  const auto error = [&](const char* what, Shape value, DType dtype, Shape x, auto is, const std::string& contains) {
    c.errors.push_back({what, [=] { (void)spmm(two, zeros(value, cpu, dtype), zeros(x, cpu)); }, is, contains});
  };
  error("rows of x", {2}, DType::f32, {3, 2}, throws<ShapeError>, "spmm: x has shape [3, 2], expected 4 rows");
  error("values", {3}, DType::f32, {4, 2}, throws<ShapeError>, "spmm: value has shape [3], expected [E]");
  error("heads", {2, 3}, DType::f32, {4, 2}, throws<ShapeError>, "spmm: value has shape [2, 3], expected [E]");
  error("dtypes", {2}, DType::f64, {4, 2}, throws<DTypeError>, "spmm: tensors are f32 and f64");
  return c;
}

LEVIN_OP_CASE(spmm_long) {
  OpCase c = of_long_rows(1300, kFloatDTypes);
  add_spmm(c, Rows::long_ones);
  c.errors.push_back({"scalar",
                      [] {
                        (void)spmm(Csr{.crow = ints({0, 1, 2}), .col = ints({0, 3}), .cols = 4}, {}, zeros({}, cpu));
                      },
                      throws<ShapeError>, "spmm: x has shape []"});
  return c;
}

namespace {
void add_sddmm(OpCase& c, Rows rows) {
  for (const Product& s : kProducts) {
    if (s.gradcheck == (rows == Rows::long_ones)) continue;
    if (s.rest.rank() == 2 && s.value.rank() == 0) continue;  // as the one before
    std::vector<Input> inputs{real(s.rest.inserted(0, s.a.rows())), real(s.rest.inserted(0, s.a.cols))};
    for (const Input& i : pattern_inputs(s)) inputs.push_back(i);
    c.samples.push_back({.inputs = inputs,
                         .call = [=](const Tensors& in) { return Tensors{sddmm(csr_of(s, in, 2), in[0], in[1])}; },
                         .reference =
                             [=](const Tensors& in) {
                               const Plain x(in[0]), z(in[1]), col(in[3]);
                               const bool heads = s.rest.rank() == 2;
                               Plain y(heads ? Shape{s.a.entries(), s.rest[0]} : Shape{s.a.entries()});
                               each_entry(Plain(in[2]), [&](std::int64_t i, std::int64_t k) {
                                 const auto j = static_cast<std::int64_t>(col({k}));
                                 Plain(s.rest.inserted(0, 1)).each([&](const At& at) {
                                   const std::int64_t to = value_row(s, k);
                                   y(heads ? At{to, at[1]} : At{to}) += x(moved(at, i)) * z(moved(at, j));
                                 });
                               });
                               return Tensors{y.tensor()};
                             },
                         .gradcheck = s.gradcheck});
  }
}
}  // namespace

LEVIN_OP_CASE(sddmm) {
  OpCase c{.ops = {"sddmm"}, .dtypes = kFloatDTypes, .sums = 96, .no_single = kNoSingle};
  add_sddmm(c, Rows::short_ones);
  add_csr_errors(c, "sddmm", [](const Csr& a) { (void)sddmm(a, zeros({2, 3}, cpu), zeros({4, 3}, cpu)); });
  const Csr two{.crow = ints({0, 1, 2}), .col = ints({0, 3}), .cols = 4};
  c.errors.push_back({"features",
                      [=] {
                        (void)sddmm(two, zeros({2, 3}, cpu), zeros({4, 2}, cpu));
                      },
                      throws<ShapeError>, "sddmm: z has shape [4, 2], expected [cols, F]"});
  c.errors.push_back({"dtypes",
                      [=] {
                        (void)sddmm(two, zeros({2, 3}, cpu), zeros({4, 3}, cpu, DType::f64));
                      },
                      throws<DTypeError>, "sddmm: tensors are f32 and f64"});
  return c;
}

LEVIN_OP_CASE(sddmm_long) {
  OpCase c = of_long_rows(1300, kFloatDTypes);
  add_sddmm(c, Rows::long_ones);
  c.errors.push_back(
      {"rank",
       [] {
         (void)sddmm(Csr{.crow = ints({0, 1, 2}), .col = ints({0, 3}), .cols = 4}, zeros({2}, cpu), zeros({4}, cpu));
       },
       throws<ShapeError>, "sddmm: z has shape [4], expected [cols, F]"});
  return c;
}

LEVIN_OP_CASE(csr_transpose) {
  OpCase c{.ops = {"csr_transpose"}, .dtypes = {DType::i64}, .differentiable = false, .no_single = kNoSingle};
  for (const Pattern& p : {kSmall, kSingle, kEmpty, kNothing, hub(90, 7), hub(2500, 300)}) {
    c.samples.push_back(
        {.inputs = {fixed(ints(p.crow)), fixed(ints(p.col))},
         .call =
             [=](const Tensors& in) {
               const Csr t = with_transpose({.crow = in[0], .col = in[1], .cols = p.cols});
               return Tensors{t.t_crow, t.t_col, t.t_edge};
             },
         .reference =
             [=](const Tensors& in) {
               const Plain col(in[1]);
               std::vector<double> crow{0}, rows, edges;
               for (std::int64_t j = 0; j < p.cols; ++j) {
                 each_entry(Plain(in[0]), [&](std::int64_t i, std::int64_t k) {
                   if (col({k}) != static_cast<double>(j)) return;
                   rows.push_back(static_cast<double>(i));
                   edges.push_back(static_cast<double>(k));
                 });
                 crow.push_back(static_cast<double>(rows.size()));
               }
               Tensors out;
               for (const auto* v : {&crow, &rows, &edges})
                 out.push_back(from_data(std::span<const double>(*v), {static_cast<std::int64_t>(v->size())}, cpu));
               return out;
             }});
  }
  add_csr_errors(c, "with_transpose", [](const Csr& a) { (void)with_transpose(a); });
  c.errors.push_back({"not its transpose",
                      [] {
                        (void)transpose({.crow = ints({0, 1}),
                                         .col = ints({0}),
                                         .cols = 2,
                                         .t_crow = ints({0, 1}),
                                         .t_col = ints({0}),
                                         .t_edge = ints({0})});
                      },
                      throws<ShapeError>, "transpose: t_crow has shape [2], expected 3 offsets"});
  return c;
}

}  // namespace levin::testing
