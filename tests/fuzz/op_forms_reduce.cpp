// Reductions, sorting, indexing and products.
#include "levin/distributions.h"
#include "levin/linalg.h"
#include "tests/fuzz/op_forms.h"

namespace levin::fuzz {
namespace {

Tensors both(const ValuesIndices& x) { return {x.values, x.indices}; }

constexpr Form kForms[] = {
    // Reductions
    LEVIN_REDUCTION(sum),
    LEVIN_REDUCTION(mean),
    LEVIN_REDUCTION(prod),
    LEVIN_REDUCTION(amax),
    LEVIN_REDUCTION(amin),
    LEVIN_REDUCTION(logsumexp),
    LEVIN_REDUCTION(any),
    LEVIN_REDUCTION(all),
    {"var and std",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Dims dims = c.dims();
       const double correction = c.one_in(2) ? 1 : c.real();
       return Tensors{var(x, dims, correction, c.keep()), std(x, dims, correction)};
     }},
    {"norm",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const double power = c.one_in(2) ? 2 : c.real();
       return Tensors{LEVIN_CALL(norm, x, power, c.dims(), c.keep())};
     }},
    {"argmax and argmin",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       std::optional<std::int64_t> dim;
       if (!c.one_in(4)) dim = c.integer();
       return Tensors{argmax(x, dim, c.keep()), argmin(x, dim)};
     }},
    {"max",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       return both(LEVIN_CALL(max, x, c.integer(), c.keep()));
     }},
    {"min",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       return both(LEVIN_CALL(min, x, c.integer(), c.keep()));
     }},
    LEVIN_ALONG(cumsum),
    {"sum_to",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       return Tensors{sum_to(x, c.shape())};
     }},
    // Sorting
    {"sort",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       return both(LEVIN_CALL(sort, x, c.integer(), c.choice<Order>(2)));
     }},
    {"argsort",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       return Tensors{LEVIN_CALL(argsort, x, c.integer(), c.choice<Order>(2))};
     }},
    {"topk",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const std::int64_t k = c.integer(), dim = c.integer();
       return both(topk(x, k, dim, c.choice<Order>(2)));
     }},
    // Joining, indexing
    {"cat",
     [](Chooser& c, Pool& p) {
       const Tensor a = p.any(), b = p.matching(a);
       Tensors all{a, b};
       if (c.one_in(3)) all.push_back(p.any());
       return Tensors{cat(all, c.integer())};
     }},
    {"stack",
     [](Chooser& c, Pool& p) {
       const Tensor a = p.any(), b = p.matching(a);
       return Tensors{stack({a, b}, c.integer())};
     }},
    {"index_select",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const std::int64_t dim = c.integer();
       const Tensor index = p.index();
       return Tensors{index_select(x, dim, c.one_in(4) ? index : reshape(index, {-1}))};
     }},
    {"gather",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const std::int64_t dim = c.integer();
       return Tensors{gather(x, dim, p.index())};
     }},
    {"scatter",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any(), index = p.index();
       return Tensors{LEVIN_CALL(scatter, x, c.integer(), index, p.of(index.shape(), x.dtype()))};
     }},
    {"scatter_add",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any(), index = p.index();
       return Tensors{
           LEVIN_CALL(scatter_add, x, c.integer(), index, c.one_in(4) ? p.any() : p.of(index.shape(), x.dtype()))};
     }},
    {"index_add",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any(), index = p.index();
       return Tensors{LEVIN_CALL(index_add, x, c.integer(), reshape(index, {-1}), p.matching(x))};
     }},
    {"embedding",
     [](Chooser& c, Pool& p) {
       std::optional<std::int64_t> padding;
       if (c.one_in(3)) padding = c.integer();
       const Tensor weight = p.any();
       const auto gradient = c.one_in(3) ? EmbeddingGrad::rows : EmbeddingGrad::dense;
       return Tensors{embedding(weight, p.index(), padding, gradient)};
     }},
    {"masked_select",
     [](Chooser&, Pool& p) {
       const Tensor x = p.any();
       return Tensors{masked_select(x, p.mask())};
     }},
    LEVIN_UNARY(nonzero),
    {"one_hot", [](Chooser& c, Pool& p) { return Tensors{LEVIN_CALL(one_hot, p.index(), c.integer())}; }},
    {"bincount", [](Chooser& c, Pool& p) { return Tensors{LEVIN_CALL(bincount, p.index(), c.integer())}; }},
    {"pad",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Dims pads = c.dims();
       return Tensors{c.one_in(2) ? pad(x, pads, c.scalar()) : pad(x, pads, c.choice<PadMode>(4))};
     }},
    {"flip", [](Chooser& c, Pool& p) { return Tensors{LEVIN_CALL(flip, p.any(), c.dims())}; }},
    {"roll",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const std::int64_t shift = c.integer();
       if (c.one_in(4)) return Tensors{roll(x, shift)};
       if (c.one_in(3)) {
         const Dims dims = c.dims();
         return Tensors{roll(x, c.dims(), dims)};
       }
       return Tensors{roll(x, shift, c.integer())};
     }},
    {"repeat_interleave",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const std::int64_t repeats = c.integer();
       if (c.one_in(4)) return Tensors{repeat_interleave(x, reshape(p.index(), {-1}), repeats)};
       return Tensors{repeat_interleave(x, repeats, c.integer())};
     }},
    {"hstack and vstack",
     [](Chooser& c, Pool& p) {
       const Tensor a = p.any(), b = p.matching(a);
       return Tensors{c.one_in(2) ? hstack({a, b}) : vstack({a, b})};
     }},
    {"gumbel_softmax",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       Generator gen(c.byte());
       const double tau = c.one_in(2) ? 1 : c.real();
       const bool hard = c.one_in(2);
       return Tensors{gumbel_softmax(x, gen, {.tau = tau, .hard = hard, .dim = c.integer()})};
     }},
    LEVIN_ALONG(tril),
    LEVIN_ALONG(triu),
    // Products
    LEVIN_BINARY(matmul),
    LEVIN_BINARY(outer),
    {"matmul that fits",
     [](Chooser& c, Pool& p) {
       const Tensor a = p.any();
       return Tensors{matmul(a, p.of({a.size(-1), c.size()}, a.dtype()))};
     }},
    {"linear",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const std::int64_t out = c.size();
       const Tensor w = c.one_in(4) ? p.any() : p.of({out, x.size(-1)}, x.dtype());
       return Tensors{linear(x, w, c.one_in(2) ? p.of({out}, x.dtype()) : p.optional())};
     }},
    {"gelu_mlp",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const std::int64_t hidden = c.size(), out = c.size();
       const Tensor w1 = c.one_in(8) ? p.any() : p.of({hidden, x.size(-1)}, x.dtype());
       const Tensor w2 = c.one_in(8) ? p.any() : p.of({out, hidden}, x.dtype());
       return Tensors{LEVIN_CALL(gelu_mlp, x, w1, c.one_in(2) ? p.of({hidden}, x.dtype()) : p.optional(), w2,
                                 c.one_in(2) ? p.of({out}, x.dtype()) : p.optional(), c.choice<GeluForm>(2))};
     }},
    {"kthvalue, median, quantile and unique",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       if (c.one_in(4)) return Tensors{kthvalue(x, c.integer(), c.integer(), c.choice<KeepDim>(2)).values};
       if (c.one_in(3)) return Tensors{c.one_in(2) ? median(x) : median(x, c.integer(), c.choice<KeepDim>(2)).values};
       if (c.one_in(2)) return Tensors{unique(x).inverse};
       const double q = c.real();
       return Tensors{quantile(x, q, c.one_in(2) ? std::optional(c.integer()) : std::nullopt,
                               {.between = c.choice<Between>(5), .keep = c.choice<KeepDim>(2)})};
     }},
    {"index and index_put",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       Tensors at;
       for (std::size_t n = 1 + c.below(3); n > 0; --n) {
         const std::size_t kind = c.below(8);
         at.push_back(kind == 0 ? p.mask() : kind == 1 ? p.optional() : kind == 2 ? Tensor() : p.index());
       }
       if (c.one_in(2)) return Tensors{index(x, at)};
       const Tensor values = c.one_in(3) ? p.any() : p.of({}, x.dtype());
       return Tensors{index_put(x, at, values, c.choice<Accumulate>(2))};
     }},
    {"masked_scatter, take and take_along_dim",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       if (c.one_in(3)) return Tensors{take(x, p.index())};
       if (c.one_in(2)) {
         const Tensor at = p.index();
         return Tensors{take_along_dim(x, at, c.one_in(4) ? std::nullopt : std::optional(c.integer()))};
       }
       const Tensor chosen = p.mask();
       return Tensors{masked_scatter(x, chosen, c.one_in(4) ? p.any() : p.of({x.numel()}, x.dtype()))};
     }},
    {"scatter_reduce and index_reduce",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any(), at = p.index();
       const std::int64_t dim = c.integer();
       const auto reduce = c.choice<ScatterReduce>(5);
       const auto include = c.choice<IncludeSelf>(2);
       if (c.one_in(3)) return Tensors{index_reduce(x, dim, reshape(at, {-1}), p.matching(x), reduce, include)};
       return Tensors{scatter_reduce(x, dim, at, p.of(at.shape(), x.dtype()), reduce, include)};
     }},
    LEVIN_ALONG(cumprod),
    LEVIN_ALONG(logcumsumexp),
    {"cummax and cummin",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const std::int64_t dim = c.integer();
       return both(c.one_in(2) ? cummax(x, dim) : cummin(x, dim));
     }},
    {"searchsorted, bucketize, isin, histc and bincount of weights",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any(), y = p.matching(x);
       const auto side = c.choice<SearchSide>(2);
       if (c.one_in(5)) return Tensors{isin(x, y)};
       if (c.one_in(4)) return Tensors{bucketize(x, reshape(y, {-1}), side)};
       if (c.one_in(3)) return Tensors{LEVIN_CALL(histc, x, c.integer(), c.real(), c.real())};
       if (c.one_in(2)) return Tensors{LEVIN_CALL(bincount, reshape(p.index(), {-1}), reshape(x, {-1}), c.integer())};
       return Tensors{searchsorted(c.one_in(2) ? reshape(x, {-1}) : x, y, side)};
     }},
    {"aminmax, var_mean, std_mean, nansum, nanmean and count_nonzero",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Dims dims = c.dims();
       if (c.one_in(6)) return Tensors{aminmax(x, c.integer(), c.keep()).max};
       if (c.one_in(5)) return Tensors{var_mean(x, dims, c.real()).spread};
       if (c.one_in(4)) return Tensors{std_mean(x, dims).mean};
       if (c.one_in(3)) return Tensors{nansum(x, dims, c.keep())};
       return Tensors{c.one_in(2) ? nanmean(x, dims) : count_nonzero(x, dims)};
     }},
    {"movedim, swapaxes, rot90, diff and diag_embed",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       if (c.one_in(5)) return Tensors{LEVIN_CALL(movedim, x, c.dims(), c.dims())};
       if (c.one_in(4)) return Tensors{LEVIN_CALL(swapaxes, x, c.integer(), c.integer())};
       if (c.one_in(3)) return Tensors{LEVIN_CALL(rot90, x, c.integer(), c.dims())};
       if (c.one_in(2)) return Tensors{LEVIN_CALL(diff, x, c.integer(), c.integer())};
       return Tensors{LEVIN_CALL(diag_embed, x, c.integer(), c.integer(), c.integer())};
     }},
    {"block_diag, cartesian_prod, unique_consecutive and triangles' indices",
     [](Chooser& c, Pool& p) {
       if (c.one_in(4)) return Tensors{LEVIN_CALL(tril_indices, c.integer(), c.size(), Device::cpu(), c.integer())};
       if (c.one_in(3)) return Tensors{LEVIN_CALL(triu_indices, c.size(), c.integer(), Device::cpu(), c.integer())};
       const Tensor a = p.any();
       if (c.one_in(3)) return Tensors{unique_consecutive(a).inverse};
       const Tensors all{a, p.matching(a)};
       return Tensors{c.one_in(2) ? block_diag(all) : cartesian_prod(all)};
     }},
    {"multinomial and distributions",
     [](Chooser& c, Pool& p) {
       Generator gen(c.byte());
       const Tensor a = p.any(), b = p.matching(a);
       const Shape shape = c.one_in(2) ? Shape{} : Shape{c.size()};
       if (c.one_in(4)) return Tensors{multinomial(a, c.integer(), gen, c.choice<Replacement>(2))};
       if (c.one_in(3)) return Tensors{distributions::Categorical{a}.sample(gen, shape)};
       if (c.one_in(2)) return Tensors{distributions::Laplace{a, b}.rsample(gen, shape)};
       if (c.one_in(4)) return Tensors{distributions::standard_gamma(a, gen, c.choice<distributions::Logarithm>(2))};
       if (c.one_in(4)) return Tensors{distributions::Beta{a, b}.rsample(gen, shape)};
       if (c.one_in(4)) return Tensors{distributions::Dirichlet{a}.log_prob(p.any())};
       if (c.one_in(4)) return Tensors{distributions::StudentT{a, b, p.any()}.rsample(gen, shape)};
       return Tensors{distributions::Normal{a, b}.log_prob(p.any()), distributions::Categorical{b}.entropy()};
     }},
    {"linear algebra",
     [](Chooser& c, Pool& p) {
       const Tensor a = p.any();
       if (c.one_in(8)) return Tensors{linalg::solve(a, p.matching(a))};
       if (c.one_in(7)) {
         const linalg::Triangular form{.upper = c.one_in(2), .left = c.one_in(2), .unitriangular = c.one_in(2)};
         return Tensors{linalg::solve_triangular(a, p.matching(a), form)};
       }
       if (c.one_in(6)) return Tensors{linalg::det(a), linalg::slogdet(a).logabsdet};
       if (c.one_in(5)) return Tensors{linalg::inv(a)};
       if (c.one_in(4)) return Tensors{linalg::cholesky(a)};
       if (c.one_in(3)) return Tensors{linalg::qr(a).r};
       if (c.one_in(3)) return Tensors{linalg::pinv(a)};
       if (c.one_in(3)) return Tensors{linalg::lstsq(a, p.matching(a))};
       return Tensors{c.one_in(2) ? linalg::eigh(a).eigenvalues : linalg::svd(a).s};
     }},
    {"normalize, cosine_similarity and pairwise_distance",
     [](Chooser& c, Pool& p) {
       const Tensor a = p.any(), b = p.matching(a);
       const double number = c.real(), eps = c.real();
       if (c.one_in(3)) return Tensors{normalize(a, number, c.integer(), eps)};
       if (c.one_in(2)) return Tensors{cosine_similarity(a, b, c.integer(), eps)};
       return Tensors{pairwise_distance(a, b, number, eps, c.choice<KeepDim>(2))};
     }},
    {"cdist and pdist",
     [](Chooser& c, Pool& p) {
       const double power = c.one_in(2) ? double(c.below(4)) : c.real();
       if (c.one_in(4)) return Tensors{pdist(p.any(), power)};
       const Tensor a = p.any();
       return Tensors{cdist(a, p.matching(a), power)};
     }},
    {"several quantiles",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const QuantileOptions options{.between = c.choice<Between>(5), .keep = c.choice<KeepDim>(2)};
       const auto dim = c.one_in(3) ? std::nullopt : std::optional(c.integer());
       if (c.one_in(2)) {
         const Tensor q = p.of({static_cast<std::int64_t>(c.below(4))}, x.dtype());
         return Tensors{quantile(x, c.one_in(4) ? q : sigmoid(q), dim, options)};
       }
       std::vector<double> qs(c.below(4));
       for (double& q : qs) q = c.one_in(8) ? c.real() : double(c.byte()) / 255;
       return Tensors{quantile(x, qs, dim, options)};
     }},
    {"unique and consecutive slices",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const UniqueResult y = c.one_in(2) ? unique(x, c.integer()) : unique_consecutive(x, c.integer());
       return Tensors{y.values, y.inverse, y.counts};
     }},
    {"einsum",
     [](Chooser& c, Pool& p) {
       static constexpr std::array<const char*, 8> kEquations{
           "ij,jk->ik", "...ij,...jk->...ik", "ii", "ij->", "i,j->ij", "bij,bjk", "ij,ij->j", "ab,ab,a->b"};
       const std::string_view equation = c.of(kEquations);
       const Tensor a = p.any(), b = p.matching(a);
       if (c.one_in(4)) return Tensors{einsum(equation, {a})};
       return Tensors{c.one_in(4) ? einsum(equation, {a, b, p.any()}) : einsum(equation, {a, b})};
     }},
};

}  // namespace

std::span<const Form> reduce_forms() { return kForms; }

}  // namespace levin::fuzz
