// Runs the cases of a file that tests/peer/compare_ops.py wrote: values, gradients and gradients of gradients of ops.
//
//   peer_ops CASES.safetensors RESULTS.safetensors
//
// The metadata "cases" has a line for each case: a number, the op, then key=value words. Tensors of case 7 are 7.x0,
// 7.x1, ... (operands), 7.g0, ... (seeds of the outputs) and 7.h0, ... (seeds of the gradients). Results are 7.y0, ...
// (outputs), 7.d0, ... (gradients), 7.e0, ... (gradients of gradients); the metadata "errors" has the number and the
// text of each case that threw. A case with the word seconds=S is timed: the metadata "times" has its number and the
// median time in ns of a call without gradients and of one with them, which is 0 where there are none.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "levin/levin.h"

namespace levin {
namespace {

class Arguments {
 public:
  void add(const std::string& word) {
    const std::size_t at = word.find('=');
    values_[word.substr(0, at)] = word.substr(at + 1);
  }
  [[nodiscard]] bool has(const std::string& key) const { return values_.contains(key); }
  [[nodiscard]] std::string text(const std::string& key, const std::string& other = "") const {
    const auto found = values_.find(key);
    return found == values_.end() ? other : found->second;
  }
  [[nodiscard]] std::int64_t integer(const std::string& key, std::int64_t other = 0) const {
    return has(key) ? std::stoll(text(key)) : other;
  }
  [[nodiscard]] double number(const std::string& key, double other = 0) const {
    return has(key) ? std::stod(text(key)) : other;
  }
  [[nodiscard]] bool on(const std::string& key) const { return integer(key) != 0; }
  [[nodiscard]] std::optional<std::int64_t> maybe(const std::string& key) const {
    return has(key) ? std::optional(integer(key)) : std::nullopt;
  }
  [[nodiscard]] std::vector<std::int64_t> list(const std::string& key) const {
    std::vector<std::int64_t> out;
    std::istringstream in(text(key));
    for (std::string part; std::getline(in, part, ',');) out.push_back(std::stoll(part));
    return out;
  }
  [[nodiscard]] std::vector<double> numbers(const std::string& key) const {
    std::vector<double> out;
    std::istringstream in(text(key));
    for (std::string part; std::getline(in, part, ',');) out.push_back(std::stod(part));
    return out;
  }
  [[nodiscard]] Dims dims(const std::string& key) const {
    const std::vector<std::int64_t> out = list(key);
    return Dims(std::span<const std::int64_t>(out));
  }
  [[nodiscard]] KeepDim keep() const { return on("keep") ? KeepDim::yes : KeepDim::no; }
  [[nodiscard]] Reduction reduction() const {
    const std::string r = text("reduction", "mean");
    return r == "none" ? Reduction::none : r == "sum" ? Reduction::sum : Reduction::mean;
  }
  template <class E>
  [[nodiscard]] E choice(const std::string& key, std::initializer_list<std::pair<const char*, E>> names) const {
    const std::string given = text(key, names.begin()->first);
    for (const auto& [name, value] : names) {
      if (given == name) return value;
    }
    throw std::runtime_error("unknown " + key + " " + given);
  }

 private:
  std::map<std::string, std::string> values_;
};

using In = std::vector<Tensor>;
using Op = std::function<Tensors(const In&, const Arguments&)>;

Tensors both(const ValuesIndices& y) { return {y.values, y.indices}; }
Tensor maybe(const In& x, std::size_t i) { return i < x.size() ? x[i] : Tensor(); }
Causal causal_of(const Arguments& a) { return a.on("causal") ? Causal::yes : Causal::no; }
template <std::size_t N>
std::array<std::int64_t, N> sizes(const Arguments& a, const char* key, std::int64_t other) {
  std::array<std::int64_t, N> out;
  out.fill(other);
  const std::vector<std::int64_t> given = a.list(key);
  for (std::size_t i = 0; i < N && !given.empty(); ++i) out[i] = given[given.size() == 1 ? 0 : i];
  return out;
}

Tensor sampled(const In& x, const Arguments& a) {
  using M = GridSampleMode;
  using P = GridPadding;
  const M mode = a.choice<M>("mode", {{"bilinear", M::bilinear}, {"nearest", M::nearest}, {"bicubic", M::bicubic}});
  const P padding =
      a.choice<P>("padding_mode", {{"zeros", P::zeros}, {"border", P::border}, {"reflection", P::reflection}});
  return grid_sample(x[0], x[1], {.mode = mode, .padding_mode = padding, .align_corners = a.on("align_corners")});
}
// What a distribution gives beside its samples.
template <class D>
Tensors facts(const D& d, const Tensor& x) {
  return {d.log_prob(x), d.entropy(), d.mean(), d.variance()};
}
template <class D>
Tensors facts_but_entropy(const D& d, const Tensor& x) {
  return {d.log_prob(x), d.mean(), d.variance()};
}
ScatterReduce reduce_of(const Arguments& a) {
  using R = ScatterReduce;
  return a.choice<R>("reduce",
                     {{"sum", R::sum}, {"prod", R::prod}, {"mean", R::mean}, {"amax", R::amax}, {"amin", R::amin}});
}
Between between_of(const Arguments& a) {
  using B = Between;
  return a.choice<B>("between", {{"linear", B::linear},
                                 {"lower", B::lower},
                                 {"higher", B::higher},
                                 {"midpoint", B::midpoint},
                                 {"nearest", B::nearest}});
}
IncludeSelf include_of(const Arguments& a) { return a.on("include_self") ? IncludeSelf::yes : IncludeSelf::no; }

#define ONE(NAME, CALL)                                    \
  {                                                        \
    NAME, [](const In& x, const Arguments& a) -> Tensors { \
      (void)a, (void)x;                                    \
      return {CALL};                                       \
    }                                                      \
  }
#define MANY(NAME, CALL)                                   \
  {                                                        \
    NAME, [](const In& x, const Arguments& a) -> Tensors { \
      (void)a, (void)x;                                    \
      return CALL;                                         \
    }                                                      \
  }
#define UNARY(F) ONE(#F, F(x[0]))
#define BINARY(F) ONE(#F, F(x[0], x[1]))

const std::map<std::string, Op>& ops();

// ---- Layouts of an operand: the same values, other strides

Tensor laid(const Tensor& x, char layout) {
  if (x.rank() == 0) return x;
  switch (layout) {
    case 't': return transpose(transpose(x, 0, -1).contiguous(), 0, -1);
    case 's': return slice(repeat_interleave(x, 2, -1), -1, 0, 2 * x.size(-1), 2);  // every other element
    case 'o': return narrow(cat({narrow(x, 0, 0, x.size(0) > 0 ? 1 : 0), x}, 0), 0, x.size(0) > 0 ? 1 : 0, x.size(0));
    default: return x;
  }
}

struct Results {
  NamedTensors tensors;
  std::string errors, times;
  void keep(const std::string& name, const Tensor& x) { tensors.emplace_back(name, x.detach().contiguous()); }
};

// What the file has for a case.
struct Given {
  Given(std::string id_, const Arguments& a, const std::map<std::string, Tensor>& all_)
      : id(std::move(id_)), all(all_) {
    const std::string layouts = a.text("layouts");
    for (std::size_t i = 0; of("x", i).defined(); ++i) {
      Tensor t = laid(of("x", i), i < layouts.size() ? layouts[i] : 'c').detach();
      if (is_float(t.dtype()) && !a.on("nograd")) wanted.push_back(t.requires_grad_());
      x.push_back(t);
    }
  }
  [[nodiscard]] Tensor of(const char* kind, std::size_t i) const {
    const auto found = all.find(id + "." + kind + std::to_string(i));
    return found == all.end() ? Tensor() : found->second;
  }
  // The outputs that have gradients, and their seeds.
  [[nodiscard]] std::pair<Tensors, Tensors> differentiable(const Tensors& y) const {
    std::pair<Tensors, Tensors> out;
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (!y[i].requires_grad() || !of("g", i).defined()) continue;
      out.first.push_back(y[i]);
      out.second.push_back(of("g", i));
    }
    return out;
  }

  std::string id;
  const std::map<std::string, Tensor>& all;
  In x;
  Tensors wanted;
};

const Op& op_of(const std::string& name) {
  const auto found = ops().find(name);
  if (found == ops().end()) throw std::runtime_error("unknown op " + name);
  return found->second;
}

void run(const std::string& id, const std::string& name, const Arguments& a, const std::map<std::string, Tensor>& all,
         Results& results) {
  const Given given(id, a, all);
  const Tensors y = op_of(name)(given.x, a);
  for (std::size_t i = 0; i < y.size(); ++i) results.keep(id + ".y" + std::to_string(i), y[i]);
  const auto [outputs, seeds] = given.differentiable(y);
  if (outputs.empty()) return;
  const bool second = given.of("h", 0).defined();
  const Tensors d = grad(outputs, given.wanted, seeds, {.create_graph = second, .allow_unused = true});
  Tensors again, again_seeds;
  for (std::size_t i = 0; i < d.size(); ++i) {
    if (!d[i].defined()) continue;
    results.keep(id + ".d" + std::to_string(i), d[i]);
    if (second && d[i].requires_grad()) {
      again.push_back(d[i]);
      again_seeds.push_back(given.of("h", i));
    }
  }
  if (again.empty()) return;
  const Tensors e = grad(again, given.wanted, again_seeds, {.allow_unused = true});
  for (std::size_t i = 0; i < e.size(); ++i) {
    if (e[i].defined()) results.keep(id + ".e" + std::to_string(i), e[i]);
  }
}

template <class F>
double median_ns(double seconds, const F& call) {
  using Clock = std::chrono::steady_clock;
  call();
  std::vector<double> times;
  for (double total = 0; total < seconds * 1e9 || times.size() < 3; total += times.back()) {
    const auto begin = Clock::now();
    call();
    times.push_back(std::chrono::duration<double, std::nano>(Clock::now() - begin).count());
  }
  std::nth_element(times.begin(), times.begin() + std::ptrdiff_t(times.size() / 2), times.end());
  return times[times.size() / 2];
}

void measure(const std::string& id, const std::string& name, const Arguments& a,
             const std::map<std::string, Tensor>& all, Results& results) {
  const Given from(id, a, all);
  const Op& op = op_of(name);
  const double seconds = a.number("seconds");
  const double forward = median_ns(seconds, [&] {
    const NoGrad off;
    (void)op(from.x, a);
  });
  const auto [outputs, seeds] = from.differentiable(op(from.x, a));
  const double both = outputs.empty() ? 0 : median_ns(seconds, [&] {
    const auto [y, g] = from.differentiable(op(from.x, a));
    (void)grad(y, from.wanted, g, {.allow_unused = true});
  });
  results.times += id + " " + std::to_string(forward) + " " + std::to_string(both) + "\n";
}

int run_all(const char* in, const char* out) {
  const TensorFile file = load_safetensors(in);
  const std::map<std::string, Tensor> given(file.tensors.begin(), file.tensors.end());
  Results results;
  std::string cases;
  for (const auto& [key, value] : file.metadata) {
    if (key == "cases") cases = value;
  }
  std::istringstream lines(cases);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string id, name, word;
    words >> id >> name;
    Arguments a;
    while (words >> word) a.add(word);
    try {
      (a.has("seconds") ? measure : run)(id, name, a, given, results);
    } catch (const Error& e) {
      std::string text = e.what();
      for (char& c : text) c = c == '\n' ? ' ' : c;
      results.errors += id + " " + text + "\n";
    }
  }
  std::string names;
  for (const auto& [name, op] : ops()) names += name + "\n";
  save_safetensors(out, results.tensors, {{"errors", results.errors}, {"times", results.times}, {"ops", names}});
  return 0;
}

// ---- The ops

const std::map<std::string, Op>& ops() {
  using P1 = PoolOptions1d;
  using P2 = PoolOptions;
  using P3 = PoolOptions3d;
  using namespace distributions;
  static const std::map<std::string, Op> table{
      // Pointwise
      UNARY(asin), UNARY(acos), UNARY(atan), UNARY(sinh), UNARY(cosh), UNARY(asinh), UNARY(acosh), UNARY(atanh),
      UNARY(erfinv), UNARY(lgamma), UNARY(digamma), ONE("polygamma", polygamma(a.integer("n"), x[0])),
      UNARY(mish), UNARY(hardswish), UNARY(hardsigmoid), UNARY(relu6), UNARY(selu), UNARY(softsign), UNARY(relu),
      UNARY(abs), UNARY(sign), UNARY(bitwise_not), UNARY(exp2), UNARY(erfc),
      ONE("logit", a.has("eps") ? logit(x[0], a.number("eps")) : logit(x[0])),
      ONE("celu", celu(x[0], a.number("alpha", 1))),
      ONE("hardtanh", hardtanh(x[0], a.number("low", -1), a.number("high", 1))),
      {"lstm_cell",
       [](const In& x, const Arguments&) -> Tensors {
         const LstmCellState y = lstm_cell(x[0], x[1]);
         return {y.h, y.c};
       }},
      {"lstm_layer",
       [](const In& x, const Arguments& a) -> Tensors {
         const LstmLayerOutput y = lstm_layer(x[0], {x[1], x[2]}, {x[3], x[4], maybe(x, 5)}, a.on("reverse"));
         return {y.y, y.c};
       }},
      ONE("glu", glu(x[0], a.integer("dim", -1))), BINARY(prelu),
      BINARY(floor_divide), BINARY(fmod), BINARY(remainder), BINARY(pow), BINARY(maximum), BINARY(minimum),
      BINARY(bitwise_and), BINARY(bitwise_or), BINARY(bitwise_xor), BINARY(bitwise_left_shift),
      BINARY(bitwise_right_shift), BINARY(logaddexp), BINARY(logaddexp2), BINARY(hypot), BINARY(xlogy),
      BINARY(copysign), BINARY(heaviside),
      ONE("floor_divide_number", floor_divide(x[0], a.integer("b"))), ONE("fmod_number", fmod(x[0], a.integer("b"))),
      ONE("pow_number", pow(x[0], a.integer("b"))), ONE("number_floor_divide", floor_divide(a.integer("b"), x[0])),
      ONE("number_fmod", fmod(a.integer("b"), x[0])), ONE("number_remainder", a.integer("b") % x[0]),
      ONE("number_pow", pow(a.integer("b"), x[0])),
      ONE("clamp", clamp(x[0], x[1], x[2])), ONE("nan_to_num", nan_to_num(x[0])),
      ONE("lerp", lerp(x[0], x[1], x[2])),
      // Tensors of rank 0, and members
      ONE("sum", x[0].sum(a.dims("dims"), a.keep())), ONE("prod", prod(x[0], a.integer("dim"), a.keep())),
      ONE("cumsum", x[0].cumsum(a.integer("dim"))),
      ONE("max_all", max(x[0])), ONE("min_all", x[0].min()), ONE("max_pair", max(x[0], x[1])),
      MANY("max", both(x[0].max(a.integer("dim"), a.keep()))), MANY("sort", both(sort(x[0], a.integer("dim")))),
      // Scans, order, search
      ONE("cumprod", cumprod(x[0], a.integer("dim"))), ONE("logcumsumexp", logcumsumexp(x[0], a.integer("dim"))),
      MANY("cummax", both(cummax(x[0], a.integer("dim")))), MANY("cummin", both(cummin(x[0], a.integer("dim")))),
      MANY("kthvalue", both(kthvalue(x[0], a.integer("k"), a.integer("dim"), a.keep()))),
      MANY("median", both(median(x[0], a.integer("dim"), a.keep()))),
      ONE("quantile", quantile(x[0], a.number("q"), a.maybe("dim"), {.keep = a.keep()})),
      ONE("quantiles", quantile(x[0], a.numbers("q"), a.maybe("dim"), {between_of(a), a.keep()})),
      ONE("quantiles_of_a_tensor", quantile(x[0], x[1], a.maybe("dim"), {between_of(a), a.keep()})),
      ONE("searchsorted", searchsorted(x[0], x[1], a.on("right") ? SearchSide::right : SearchSide::left)),
      ONE("bucketize", bucketize(x[0], x[1], a.on("right") ? SearchSide::right : SearchSide::left)),
      BINARY(isin), ONE("histc", histc(x[0], a.integer("bins"), a.number("low"), a.number("high"))),
      ONE("bincount", bincount(x[0], x[1], a.integer("minlength"))),
      ONE("count_nonzero", count_nonzero(x[0], a.dims("dims"))),
      ONE("nansum", nansum(x[0], a.dims("dims"), a.keep())), ONE("nanmean", nanmean(x[0], a.dims("dims"), a.keep())),
      {"aminmax",
       [](const In& x, const Arguments& a) -> Tensors {
         const auto [low, high] = aminmax(x[0], a.maybe("dim"), a.keep());
         return {low, high};
       }},
      {"var_mean",
       [](const In& x, const Arguments& a) -> Tensors {
         const auto [spread, m] = var_mean(x[0], a.dims("dims"), 1, a.keep());
         return {spread, m};
       }},
      {"unique",
       [](const In& x, const Arguments&) -> Tensors {
         const UniqueResult y = unique(x[0]);
         return {y.values, y.inverse, y.counts};
       }},
      {"unique_consecutive",
       [](const In& x, const Arguments&) -> Tensors {
         const UniqueResult y = unique_consecutive(x[0]);
         return {y.values, y.inverse, y.counts};
       }},
      {"unique_slices",
       [](const In& x, const Arguments& a) -> Tensors {
         const UniqueResult y = unique(x[0], a.integer("dim"));
         return {y.values, y.inverse, y.counts};
       }},
      {"unique_consecutive_slices",
       [](const In& x, const Arguments& a) -> Tensors {
         const UniqueResult y = unique_consecutive(x[0], a.integer("dim"));
         return {y.values, y.inverse, y.counts};
       }},
      // Indexing, arranging
      {"index",
       [](const In& x, const Arguments&) -> Tensors { return {index(x[0], std::span(x).subspan(1))}; }},
      {"index_put",
       [](const In& x, const Arguments& a) -> Tensors {
         return {index_put(x[0], std::span(x).subspan(1, x.size() - 2), x.back(),
                           a.on("accumulate") ? Accumulate::yes : Accumulate::no)};
       }},
      {"index_member",
       [](const In& x, const Arguments&) -> Tensors { return {x[0].index({Slice{1}, x[1], kEllipsis, x[2]})}; }},
      ONE("index_put_number", index_put(x[0], std::span(x).subspan(1), a.integer("b"))),
      ONE("masked_scatter", masked_scatter(x[0], x[1], x[2])), MANY("where_alone", where(x[0])),
      BINARY(isclose),
      {"isclose_equal_nan",
       [](const In& x, const Arguments& a) -> Tensors {
         const double rtol = a.number("rtol"), atol = a.number("atol");
         const Tensor near = isclose(x[0], x[1], rtol, atol, EqualNan::yes);
         const bool all_near = allclose(x[0], x[1], rtol, atol, EqualNan::yes);
         return {near, full({}, all_near, near.device(), DType::b8)};
       }},
      ONE("where_left", where(x[0], a.integer("b"), x[1])),
      ONE("where_right", where(x[0], x[1], a.integer("b"))),
      ONE("roll", x[0].roll(a.dims("shifts"), a.dims("dims"))),
      ONE("repeat_interleave", repeat_interleave(x[0], x[1], a.integer("dim"))), BINARY(mm), BINARY(bmm),
      ONE("hstack", hstack(x)), ONE("vstack", vstack(x)),
      ONE("unflatten", unflatten(x[0], a.integer("dim"), a.dims("sizes"))),
      {"scatter_reduce",
       [](const In& x, const Arguments& a) -> Tensors {
         return {scatter_reduce(x[0], a.integer("dim"), x[1], x[2], reduce_of(a), include_of(a))};
       }},
      ONE("index_reduce", index_reduce(x[0], a.integer("dim"), x[1], x[2], reduce_of(a), include_of(a))),
      ONE("index_copy", index_copy(x[0], a.integer("dim"), x[1], x[2])), BINARY(take),
      ONE("take_along_dim", take_along_dim(x[0], x[1], a.maybe("dim"))),
      ONE("diff", diff(x[0], a.integer("n", 1), a.integer("dim", -1))),
      ONE("repeat", repeat(x[0], a.dims("times"))), ONE("tile", tile(x[0], a.dims("times"))),
      ONE("diag", diag(x[0], a.integer("offset"))), UNARY(trace),
      ONE("diag_embed", diag_embed(x[0], a.integer("offset"))), BINARY(kron),
      ONE("cross", cross(x[0], x[1], a.integer("dim", -1))),
      {"solve", [](const In& x, const Arguments&) -> Tensors { return {linalg::solve(x[0], x[1])}; }},
      {"solve_triangular",
       [](const In& x, const Arguments& a) -> Tensors {
         return {linalg::solve_triangular(
             x[0], x[1],
             {.upper = a.on("upper"), .left = a.on("left"), .unitriangular = a.on("unitriangular")})};
       }},
      ONE("inv", linalg::inv(x[0])), ONE("det", linalg::det(x[0])), ONE("pinv", linalg::pinv(x[0])),
      ONE("lstsq", linalg::lstsq(x[0], x[1])),
      {"slogdet",
       [](const In& x, const Arguments&) -> Tensors {
         const auto [sign, logabsdet] = linalg::slogdet(x[0]);
         return {sign, logabsdet};
       }},
      ONE("cholesky", linalg::cholesky(x[0])), ONE("qr", linalg::qr(x[0]).r),
      ONE("eigh", linalg::eigh(x[0]).eigenvalues), ONE("svd", linalg::svd(x[0]).s),
      ONE("qr_q", linalg::qr(x[0]).q),
      // Products in which no sign is left.
      {"eigh_vectors",
       [](const In& x, const Arguments&) -> Tensors {
         const auto [w, v] = linalg::eigh((x[0] + transpose(x[0], -2, -1)) * 0.5);
         return {matmul(v / unsqueeze(w, -2), transpose(v, -2, -1))};
       }},
      {"svd_vectors",
       [](const In& x, const Arguments&) -> Tensors {
         const auto [u, s, vh] = linalg::svd(x[0]);
         return {matmul(u * unsqueeze(square(s), -2), vh)};
       }},
      ONE("tensordot", tensordot(x[0], x[1], a.integer("dims"))),
      ONE("rot90", rot90(x[0], a.integer("times"))), ONE("movedim", movedim(x[0], a.dims("from"), a.dims("to"))),
      MANY("meshgrid", meshgrid(x)),
      {"cast",
       [](const In& x, const Arguments& a) -> Tensors {
         const std::string to = a.text("to");
         for (int t = 0; t < kDTypeCount; ++t)
           if (to == name(DType(t))) return {x[0].to(DType(t))};
         throw std::runtime_error("unknown dtype " + to);
       }},
      BINARY(eq), BINARY(lt), ONE("where", where(x[0], x[1], x[2])),
      {"embedding_renorm",
       [](const In& x, const Arguments& a) -> Tensors {
         Tensor w = x[0].detach().clone();
         embedding_renorm_(w, x[1], a.number("max_norm"), a.number("p", 2));
         return {w};
       }},
      {"embedding_bag",
       [](const In& x, const Arguments& a) -> Tensors {
         BagOptions o;
         o.mode = a.choice<Reduce>("mode", {{"sum", Reduce::sum}, {"mean", Reduce::mean}, {"max", Reduce::max}});
         if (a.on("weighted")) o.per_sample_weights = x.back();
         o.padding_idx = a.maybe("padding_idx");
         o.include_last_offset = a.on("include_last_offset");
         return {a.on("offsets") ? embedding_bag(x[0], x[2], x[1], o) : embedding_bag(x[0], x[1], {}, o)};
       }},
      // Distances and losses
      ONE("normalize", normalize(x[0], a.number("p", 2), a.integer("dim", 1))),
      ONE("cosine_similarity", cosine_similarity(x[0], x[1], a.integer("dim", 1))),
      ONE("pairwise_distance", pairwise_distance(x[0], x[1], a.number("p", 2))),
      ONE("binary_cross_entropy", binary_cross_entropy(x[0], x[1], {}, a.reduction())),
      ONE("cross_entropy", cross_entropy(x[0], x[1], {.label_smoothing = a.number("smoothing"),
                                                      .reduction = a.reduction()})),
      ONE("cdist", cdist(x[0], x[1], a.number("p", 2))),
      ONE("pdist", pdist(x[0], a.number("p", 2))),
      ONE("cosine_embedding_loss", cosine_embedding_loss(x[0], x[1], x[2], a.number("margin"), a.reduction())),
      ONE("margin_ranking_loss", margin_ranking_loss(x[0], x[1], x[2], a.number("margin"), a.reduction())),
      ONE("hinge_embedding_loss", hinge_embedding_loss(x[0], x[1], a.number("margin", 1), a.reduction())),
      ONE("soft_margin_loss", soft_margin_loss(x[0], x[1], a.reduction())),
      ONE("ctc_loss", ctc_loss(log_softmax(x[0], -1), x[1], x[2], x[3],
                               {.reduction = a.reduction(), .zero_infinity = a.on("zero_infinity")})),
      ONE("huber_loss", huber_loss(x[0], x[1], a.number("delta", 1), a.reduction())),
      ONE("smooth_l1_loss", smooth_l1_loss(x[0], x[1], a.number("beta", 1), a.reduction())),
      ONE("kl_div", kl_div(x[0], x[1],
                           a.choice<KlReduction>("reduction", {{"none", KlReduction::none},
                                                               {"sum", KlReduction::sum},
                                                               {"mean", KlReduction::mean},
                                                               {"batchmean", KlReduction::batchmean}}),
                           a.on("log_target") ? LogTarget::yes : LogTarget::no)),
      ONE("poisson_nll_loss",
          poisson_nll_loss(x[0], x[1], {.input = a.on("log_input") ? RateInput::log : RateInput::rate,
                                        .constant = a.on("full") ? LossConstant::full : LossConstant::without,
                                        .eps = a.number("eps", 1e-8),
                                        .reduction = a.reduction()})),
      ONE("gaussian_nll_loss",
          gaussian_nll_loss(x[0], x[1], x[2], {.constant = a.on("full") ? LossConstant::full : LossConstant::without,
                                               .eps = a.number("eps", 1e-6),
                                               .reduction = a.reduction()})),
      ONE("triplet_margin_loss",
          triplet_margin_loss(x[0], x[1], x[2], {.margin = a.number("margin", 1),
                                                 .p = a.number("p", 2),
                                                 .swap = a.on("swap") ? SwapAnchor::yes : SwapAnchor::no,
                                                 .reduction = a.reduction()})),
      ONE("multi_margin_loss",
          multi_margin_loss(x[0], x[1], {.p = int(a.integer("p", 1)),
                                         .margin = a.number("margin", 1),
                                         .weight = maybe(x, 2).defined() ? x[2].detach() : Tensor(),
                                         .reduction = a.reduction()})),
      ONE("multilabel_margin_loss", multilabel_margin_loss(x[0], x[1], a.reduction())),
      ONE("multilabel_soft_margin_loss", multilabel_soft_margin_loss(x[0], x[1], maybe(x, 2), a.reduction())),
      // Images
      {"interpolate",
       [](const In& x, const Arguments& a) -> Tensors {
         using M = InterpolateMode;
         InterpolateOptions o;
         if (a.has("size")) o.size = a.dims("size");
         if (a.has("scale")) o.scale_factor = {a.number("scale")};
         o.mode = a.choice<M>("mode", {{"nearest", M::nearest},
                                       {"nearest-exact", M::nearest_exact},
                                       {"linear", M::linear},
                                       {"bilinear", M::bilinear},
                                       {"trilinear", M::trilinear},
                                       {"bicubic", M::bicubic},
                                       {"area", M::area}});
         o.align_corners = a.on("align_corners");
         o.antialias = a.on("antialias");
         return {interpolate(x[0], o)};
       }},
      ONE("pixel_shuffle", pixel_shuffle(x[0], a.integer("factor"))),
      ONE("pixel_unshuffle", pixel_unshuffle(x[0], a.integer("factor"))),
      ONE("channel_shuffle", channel_shuffle(x[0], a.integer("groups"))),
      ONE("pad_circular", pad(x[0], a.dims("pads"), PadMode::circular)),
      ONE("conv3d", conv3d(x[0], x[1], maybe(x, 2), {.stride = sizes<3>(a, "stride", 1),
                                                     .padding = sizes<3>(a, "padding", 0),
                                                     .dilation = sizes<3>(a, "dilation", 1),
                                                     .groups = a.integer("groups", 1)})),
      ONE("conv1d_same", conv1d(x[0], x[1], maybe(x, 2), {.dilation = a.integer("dilation", 1),
                                                          .groups = a.integer("groups", 1),
                                                          .padding_rule = PaddingRule::same})),
      ONE("conv2d_same", conv2d(x[0], x[1], maybe(x, 2), {.dilation = sizes<2>(a, "dilation", 1),
                                                          .groups = a.integer("groups", 1),
                                                          .padding_rule = PaddingRule::same})),
      ONE("conv3d_same", conv3d(x[0], x[1], maybe(x, 2), {.dilation = sizes<3>(a, "dilation", 1),
                                                          .groups = a.integer("groups", 1),
                                                          .padding_rule = PaddingRule::same})),
      ONE("conv_transpose1d",
          conv_transpose1d(x[0], x[1], maybe(x, 2), {.stride = a.integer("stride", 1),
                                                     .padding = a.integer("padding"),
                                                     .output_padding = a.integer("output_padding"),
                                                     .dilation = a.integer("dilation", 1),
                                                     .groups = a.integer("groups", 1)})),
      ONE("conv_transpose3d",
          conv_transpose3d(x[0], x[1], maybe(x, 2), {.stride = sizes<3>(a, "stride", 1),
                                                     .padding = sizes<3>(a, "padding", 0),
                                                     .output_padding = sizes<3>(a, "output_padding", 0),
                                                     .dilation = sizes<3>(a, "dilation", 1),
                                                     .groups = a.integer("groups", 1)})),
      ONE("max_pool1d", max_pool1d(x[0], P1{.kernel = a.integer("kernel"), .padding = a.integer("padding"),
                                            .dilation = a.integer("dilation", 1), .ceil_mode = a.on("ceil_mode")})),
      ONE("avg_pool1d", avg_pool1d(x[0], P1{.kernel = a.integer("kernel"), .padding = a.integer("padding"),
                                            .ceil_mode = a.on("ceil_mode")})),
      ONE("max_pool3d", max_pool3d(x[0], P3{.kernel = sizes<3>(a, "kernel", 2), .padding = sizes<3>(a, "padding", 0),
                                            .dilation = sizes<3>(a, "dilation", 1), .ceil_mode = a.on("ceil_mode")})),
      ONE("avg_pool3d", avg_pool3d(x[0], P3{.kernel = sizes<3>(a, "kernel", 2), .padding = sizes<3>(a, "padding", 0),
                                            .ceil_mode = a.on("ceil_mode")})),
      ONE("adaptive_avg_pool1d", adaptive_avg_pool1d(x[0], a.integer("output"))),
      ONE("adaptive_max_pool1d", adaptive_max_pool1d(x[0], a.integer("output"))),
      ONE("adaptive_avg_pool3d", adaptive_avg_pool3d(x[0], sizes<3>(a, "output", 1))),
      ONE("adaptive_max_pool3d", adaptive_max_pool3d(x[0], sizes<3>(a, "output", 1))),
      MANY("max_pool2d_with_indices",
           both(max_pool2d_with_indices(x[0], P2{.kernel = sizes<2>(a, "kernel", 2),
                                                 .padding = sizes<2>(a, "padding", 0),
                                                 .dilation = sizes<2>(a, "dilation", 1)}))),
      MANY("max_pool1d_with_indices",
           both(max_pool1d_with_indices(x[0], P1{.kernel = a.integer("kernel"), .padding = a.integer("padding"),
                                                 .dilation = a.integer("dilation", 1)}))),
      MANY("max_pool3d_with_indices",
           both(max_pool3d_with_indices(x[0], P3{.kernel = sizes<3>(a, "kernel", 2),
                                                 .padding = sizes<3>(a, "padding", 0),
                                                 .dilation = sizes<3>(a, "dilation", 1)}))),
      ONE("max_unpool1d", max_unpool1d(x[0], x[1], {.kernel = a.integer("kernel"), .padding = a.integer("padding")})),
      ONE("max_unpool2d", max_unpool2d(x[0], x[1], {.kernel = sizes<2>(a, "kernel", 2),
                                                    .padding = sizes<2>(a, "padding", 0)})),
      ONE("max_unpool3d", max_unpool3d(x[0], x[1], {.kernel = sizes<3>(a, "kernel", 2),
                                                    .padding = sizes<3>(a, "padding", 0)})),
      ONE("grid_sample", sampled(x, a)), ONE("grid_sample_bicubic", sampled(x, a)),
      ONE("affine_grid", affine_grid(x[0], Shape(std::span<const std::int64_t>(a.list("size"))),
                                     a.on("align_corners") ? AlignCorners::yes : AlignCorners::no)),
      ONE("lp_pool2d", lp_pool2d(x[0], a.number("p", 2), P2{.kernel = sizes<2>(a, "kernel", 2)})),
      // Sequences
      ONE("attention_gqa",
          scaled_dot_product_attention(x[0], x[1], x[2], {.causal = causal_of(a), .enable_gqa = true})),
      {"attention_weights",
       [](const In& x, const Arguments& a) -> Tensors {
         AttentionOptions o{.mask = maybe(x, 3), .causal = causal_of(a)};
         if (a.has("scale")) o.scale = a.number("scale");
         return {scaled_dot_product_attention(x[0], x[1], x[2], o), attention_weights(x[0], x[1], o)};
       }},
      ONE("rotary_embedding",
          rotary_embedding(x[0], x[1], {.base = a.number("base", 10000),
                                        .pairs = a.on("interleaved") ? RotaryPairs::interleaved : RotaryPairs::halves,
                                        .dim = a.maybe("rotated")})),
      // Distributions: parameters, then values
      MANY("dist_normal", facts(Normal{x[0], x[1]}, x[2])),
      MANY("dist_half_normal", facts(HalfNormal{x[0]}, x[1])),
      MANY("dist_uniform", facts(Uniform{x[0], x[1]}, x[2])),
      MANY("dist_exponential", facts(Exponential{x[0]}, x[1])),
      MANY("dist_laplace", facts(Laplace{x[0], x[1]}, x[2])),
      MANY("dist_log_normal", facts(LogNormal{x[0], x[1]}, x[2])),
      MANY("dist_gumbel", facts(Gumbel{x[0], x[1]}, x[2])),
      MANY("dist_cauchy", facts(Cauchy{x[0], x[1]}, x[2])),
      MANY("dist_multivariate_normal", facts(MultivariateNormal{x[0], x[1]}, x[2])),
      MANY("dist_gamma", facts_but_entropy(Gamma{x[0], x[1]}, x[2])),
      ONE("entropy_gamma", (Gamma{x[0], x[1]}.entropy())),
      MANY("dist_chi2", facts_but_entropy(Chi2{x[0]}, x[1])),
      ONE("entropy_chi2", (Chi2{x[0]}.entropy())),
      MANY("dist_student_t", facts_but_entropy(StudentT{x[0], x[1], x[2]}, x[3])),
      ONE("entropy_student_t", (StudentT{x[0], x[1], x[2]}.entropy())),
      MANY("dist_beta", facts_but_entropy(Beta{x[0], x[1]}, x[2])),
      ONE("entropy_beta", (Beta{x[0], x[1]}.entropy())),
      MANY("dist_dirichlet", facts_but_entropy(Dirichlet{x[0]}, x[1])),
      ONE("entropy_dirichlet", (Dirichlet{x[0]}.entropy())),
      MANY("dist_bernoulli", facts(Bernoulli{x[0]}, x[1])),
      MANY("dist_geometric", facts(Geometric{x[0]}, x[1])),
      MANY("dist_categorical", facts(Categorical{x[0]}, x[1])),
      MANY("dist_one_hot_categorical", facts(OneHotCategorical{x[0]}, x[1])),
      ONE("kl_normal", kl_divergence(Normal{x[0], x[1]}, Normal{x[2], x[3]})),
      ONE("kl_bernoulli", kl_divergence(Bernoulli{x[0]}, Bernoulli{x[1]})),
      ONE("kl_geometric", kl_divergence(Geometric{x[0]}, Geometric{x[1]})),
      ONE("kl_categorical", kl_divergence(Categorical{x[0]}, Categorical{x[1]})),
      ONE("kl_one_hot_categorical", kl_divergence(OneHotCategorical{x[0]}, OneHotCategorical{x[1]})),
      ONE("kl_multivariate_normal",
          kl_divergence(MultivariateNormal{x[0], x[1]}, MultivariateNormal{x[2], x[3]})),
      ONE("kl_gamma", kl_divergence(Gamma{x[0], x[1]}, Gamma{x[2], x[3]})),
      ONE("kl_beta", kl_divergence(Beta{x[0], x[1]}, Beta{x[2], x[3]})),
      ONE("kl_dirichlet", kl_divergence(Dirichlet{x[0]}, Dirichlet{x[1]})),
  };
  return table;
}

}  // namespace
}  // namespace levin

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: peer_ops CASES.safetensors RESULTS.safetensors\n", stderr);
    return 2;
  }
  try {
    return levin::run_all(argv[1], argv[2]);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "peer_ops: %s\n", e.what());
    return 1;
  }
}
