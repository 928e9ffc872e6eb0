// Reductions, sorting, indexing and products.
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
       return Tensors{embedding(weight, p.index(), padding)};
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
       return Tensors{roll(x, shift, c.integer())};
     }},
    {"repeat_interleave",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const std::int64_t repeats = c.integer();
       return Tensors{repeat_interleave(x, repeats, c.integer())};
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
    {"normalize, cosine_similarity and pairwise_distance",
     [](Chooser& c, Pool& p) {
       const Tensor a = p.any(), b = p.matching(a);
       const double number = c.real(), eps = c.real();
       if (c.one_in(3)) return Tensors{normalize(a, number, c.integer(), eps)};
       if (c.one_in(2)) return Tensors{cosine_similarity(a, b, c.integer(), eps)};
       return Tensors{pairwise_distance(a, b, number, eps, c.choice<KeepDim>(2))};
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
