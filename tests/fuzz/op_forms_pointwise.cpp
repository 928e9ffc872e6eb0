// Ops of single elements, factories and views.
#include <iterator>

#include "levin/autograd.h"
#include "tests/fuzz/op_forms.h"

namespace levin::fuzz {
namespace {

// At most as many parts as a list holds.
bool few_parts(const Tensor& x) {
  for (const std::int64_t d : x.shape()) {
    if (d > 1024) return false;
  }
  return true;
}

// One byte chooses a form, so these functions share a few.
constexpr Tensor (*kUnary[])(const Tensor&) = {asin,        acos,      atan,     sinh,        cosh, asinh, acosh,
                                               atanh,       erfinv,    lgamma,   digamma,     selu, mish,  relu6,
                                               hardsigmoid, hardswish, softsign, bitwise_not, erfc, exp2};
constexpr Tensor (*kBinary[])(const Tensor&, const Tensor&) = {
    floor_divide, fmod,      bitwise_and, bitwise_or, bitwise_xor, bitwise_left_shift, bitwise_right_shift,
    hypot,        logaddexp, logaddexp2,  xlogy,      copysign,    heaviside};
constexpr Tensor (*kScaled[])(const Tensor&, Scalar) = {
    floor_divide, remainder, fmod, bitwise_and, bitwise_or, bitwise_xor, bitwise_left_shift, bitwise_right_shift};
constexpr Tensor (*kScaling[])(Scalar, const Tensor&) = {pow, floor_divide, remainder, fmod};

constexpr Form kForms[] = {
    // Pointwise
    LEVIN_BINARY(add),
    LEVIN_BINARY(sub),
    LEVIN_BINARY(mul),
    LEVIN_BINARY(div),
    LEVIN_BINARY(pow),
    LEVIN_BINARY(maximum),
    LEVIN_BINARY(minimum),
    LEVIN_BINARY(remainder),
    LEVIN_BINARY(atan2),
    LEVIN_BINARY(eq),
    LEVIN_BINARY(ne),
    LEVIN_BINARY(lt),
    LEVIN_BINARY(le),
    LEVIN_BINARY(gt),
    LEVIN_BINARY(ge),
    LEVIN_BINARY(logical_and),
    LEVIN_BINARY(logical_or),
    LEVIN_BINARY(logical_xor),
    LEVIN_SCALED(add),
    LEVIN_SCALED(sub),
    LEVIN_SCALED(mul),
    LEVIN_SCALED(div),
    LEVIN_SCALED(pow),
    LEVIN_SCALED(eq),
    LEVIN_SCALED(lt),
    LEVIN_SCALED(full_like),
    LEVIN_UNARY(neg),
    LEVIN_UNARY(abs),
    LEVIN_UNARY(sign),
    LEVIN_UNARY(square),
    LEVIN_UNARY(sqrt),
    LEVIN_UNARY(rsqrt),
    LEVIN_UNARY(reciprocal),
    LEVIN_UNARY(exp),
    LEVIN_UNARY(expm1),
    LEVIN_UNARY(log),
    LEVIN_UNARY(log1p),
    LEVIN_UNARY(log2),
    LEVIN_UNARY(log10),
    LEVIN_UNARY(sin),
    LEVIN_UNARY(cos),
    LEVIN_UNARY(tan),
    LEVIN_UNARY(tanh),
    LEVIN_UNARY(erf),
    LEVIN_UNARY(floor),
    LEVIN_UNARY(ceil),
    LEVIN_UNARY(round),
    LEVIN_UNARY(trunc),
    LEVIN_UNARY(relu),
    LEVIN_UNARY(silu),
    LEVIN_UNARY(sigmoid),
    LEVIN_UNARY(logsigmoid),
    LEVIN_UNARY(isnan),
    LEVIN_UNARY(isinf),
    LEVIN_UNARY(isfinite),
    LEVIN_UNARY(logical_not),
    {"a number minus and over x",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Scalar s = c.scalar();
       return Tensors{sub(s, x), div(s, x)};
     }},
    {"clamp",
     [](Chooser& c, Pool& p) {
       std::optional<Scalar> low, high;
       if (!c.one_in(4)) low = c.scalar();
       if (!c.one_in(4)) high = c.scalar();
       return Tensors{clamp(p.any(), low, high)};
     }},
    {"functions of one tensor, by a second byte",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       return Tensors{kUnary[c.below(std::size(kUnary))](x)};
     }},
    {"functions of two tensors, by a second byte",
     [](Chooser& c, Pool& p) {
       const Tensor a = p.any(), b = p.matching(a);
       return Tensors{kBinary[c.below(std::size(kBinary))](a, b)};
     }},
    {"functions of a tensor and a number, by a second byte",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Scalar s = c.scalar();
       if (c.one_in(4)) return Tensors{kScaling[c.below(std::size(kScaling))](s, x)};
       return Tensors{kScaled[c.below(std::size(kScaled))](x, s)};
     }},
    {"clamp by tensors, nan_to_num, logit and polygamma",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       if (c.one_in(3)) return Tensors{polygamma(c.integer(), x)};
       if (c.one_in(4)) return Tensors{nan_to_num(x)};
       if (c.one_in(4)) return Tensors{c.one_in(2) ? logit(x) : logit(x, c.real())};
       if (c.one_in(2)) {
         const double nan = c.real(), high = c.real();
         return Tensors{nan_to_num(x, nan, high, c.real())};
       }
       const Tensor low = c.one_in(4) ? Tensor() : p.matching(x);
       return Tensors{clamp(x, low, c.one_in(4) ? Tensor() : p.matching(x))};
     }},
    {"celu, hardtanh, prelu, glu and lstm_cell",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       if (c.one_in(5)) {
         const LstmCellState y = lstm_cell(x, p.matching(x));
         return Tensors{y.h, y.c};
       }
       if (c.one_in(4)) return Tensors{celu(x, c.real())};
       if (c.one_in(3)) return Tensors{prelu(x, p.any())};
       if (c.one_in(2)) return Tensors{glu(x, c.integer())};
       const double low = c.real();
       return Tensors{hardtanh(x, low, c.real())};
     }},
    {"hook_gradient",
     [](Chooser&, Pool& p) {
       return Tensors{LEVIN_CALL(hook_gradient, p.any(), [](const Tensor& g) { return g * 0.5; })};
     }},
    {"gelu", [](Chooser& c, Pool& p) { return Tensors{LEVIN_CALL(gelu, p.any(), c.choice<GeluForm>(2))}; }},
    {"leaky_relu", [](Chooser& c, Pool& p) { return Tensors{LEVIN_CALL(leaky_relu, p.any(), c.real())}; }},
    {"elu", [](Chooser& c, Pool& p) { return Tensors{LEVIN_CALL(elu, p.any(), c.real())}; }},
    {"softplus",
     [](Chooser& c, Pool& p) {
       const double beta = c.real();
       return Tensors{LEVIN_CALL(softplus, p.any(), beta, c.real())};
     }},
    {"where",
     [](Chooser&, Pool& p) {
       const Tensor a = p.any(), b = p.matching(a);
       return Tensors{where(p.mask(), a, b)};
     }},
    {"where with a number, and alone",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any(), mask = p.mask();
       if (c.one_in(3)) return where(x);
       const Scalar s = c.scalar();
       return Tensors{c.one_in(2) ? where(mask, x, s) : where(mask, s, x)};
     }},
    {"masked_fill",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       return Tensors{LEVIN_CALL(masked_fill, x, p.mask(), c.scalar())};
     }},
    {"equal, allclose and isclose",
     [](Chooser& c, Pool& p) {
       const Tensor a = p.any(), b = p.matching(a);
       (void)equal(a, b);
       (void)LEVIN_CALL(allclose, a, b, c.real(), c.real());
       return Tensors{isclose(a, b)};
     }},
    {"isclose and allclose of NaN",
     [](Chooser& c, Pool& p) {
       const Tensor a = p.any(), b = p.matching(a);
       const double rtol = c.real(), atol = c.real();
       const auto equal_nan = c.choice<EqualNan>(2);
       (void)allclose(a, b, rtol, atol, equal_nan);
       return Tensors{isclose(a, b, rtol, atol, equal_nan)};
     }},
    // In place
    {"copy_",
     [](Chooser&, Pool& p) {
       const NoGrad off;
       Tensor x = p.any();
       copy_(x, p.any());
       return Tensors{};
     }},
    {"fill_, add_ and mul_",
     [](Chooser& c, Pool& p) {
       Tensor x = p.any();
       const Tensor y = p.matching(x);
       std::optional<NoGrad> off;
       if (!c.one_in(4)) off.emplace();
       add_(x, y, c.scalar());
       mul_(x, y);
       mul_(x, c.scalar());
       fill_(x, c.scalar());
       return Tensors{};
     }},
    // Factories and conversions
    {"factories",
     [](Chooser& c, Pool&) {
       const Shape shape = c.one_in(4) ? Shape(c.dims().span()) : c.shape();
       const Device device = c.one_in(8) ? Device::meta() : Device::cpu();
       return Tensors{zeros(shape, device, c.dtype()), LEVIN_CALL(full, shape, c.scalar(), device, c.dtype())};
     }},
    {"arange",
     [](Chooser& c, Pool&) {
       const Scalar begin = c.scalar(), end = c.scalar();
       return Tensors{LEVIN_CALL(arange, begin, end, c.scalar(), Device::cpu(), c.dtype())};
     }},
    {"linspace and eye",
     [](Chooser& c, Pool&) {
       const Scalar begin = c.scalar(), end = c.scalar();
       return Tensors{LEVIN_CALL(linspace, begin, end, c.integer(), Device::cpu(), c.dtype()),
                      LEVIN_CALL(eye, c.integer(), c.integer(), Device::cpu(), c.dtype())};
     }},
    {"random tensors",
     [](Chooser& c, Pool& p) {
       Generator gen(c.byte());
       const std::int64_t low = c.integer();
       return Tensors{LEVIN_CALL(rand, c.shape(), gen, Device::cpu(), c.dtype()),
                      LEVIN_CALL(randint, low, c.integer(), c.shape(), gen, Device::cpu(), c.dtype()),
                      randperm(c.integer(), gen, Device::cpu()), bernoulli(p.any(), gen)};
     }},
    {"dropout",
     [](Chooser& c, Pool& p) {
       Generator gen(c.byte());
       return Tensors{LEVIN_CALL(dropout, p.any(), c.real(), gen)};
     }},
    {"cast", [](Chooser& c, Pool& p) { return Tensors{LEVIN_CALL(cast, p.any(), c.dtype())}; }},
    {"clone, contiguous and detach",
     [](Chooser&, Pool& p) {
       const Tensor x = p.any();
       const MemoryFormat format = x.rank() == 4 ? MemoryFormat::channels_last : MemoryFormat::contiguous;
       return Tensors{x.clone(), x.contiguous(), x.contiguous(format), x.detach()};
     }},
    {"texts",
     [](Chooser&, Pool& p) {
       const Tensor x = p.any();
       (void)text(x);
       (void)to_string(x);
       return Tensors{};
     }},
    // Views
    {"slice",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const std::int64_t dim = c.integer(), begin = c.integer(), end = c.integer();
       return Tensors{slice(x, dim, begin, end, c.one_in(2) ? c.integer() : 1)};
     }},
    {"narrow",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const std::int64_t dim = c.integer(), begin = c.integer();
       return Tensors{narrow(x, dim, begin, c.integer())};
     }},
    {"select",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const std::int64_t dim = c.integer();
       return Tensors{select(x, dim, c.integer())};
     }},
    {"transpose",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const std::int64_t dim = c.integer();
       return Tensors{transpose(x, dim, c.integer())};
     }},
    LEVIN_UNARY(t),
    {"permute", [](Chooser& c, Pool& p) { return Tensors{LEVIN_CALL(permute, p.any(), c.dims())}; }},
    {"a permutation backwards",
     [](Chooser&, Pool& p) {
       const Tensor x = p.any();
       std::vector<std::int64_t> order(static_cast<std::size_t>(x.rank()));
       for (std::size_t d = 0; d < order.size(); ++d) order[d] = -1 - static_cast<std::int64_t>(d);
       return Tensors{permute(x, Dims(std::span<const std::int64_t>(order)))};
     }},
    {"expand",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       return Tensors{expand(x, c.one_in(2) ? Shape(c.dims().span()) : c.shape())};
     }},
    {"view", [](Chooser& c, Pool& p) { return Tensors{LEVIN_CALL(view, p.any(), c.dims())}; }},
    {"reshape", [](Chooser& c, Pool& p) { return Tensors{LEVIN_CALL(reshape, p.any(), c.dims())}; }},
    {"reshape to one dimension", [](Chooser&, Pool& p) { return Tensors{reshape(p.any(), {-1})}; }},
    {"unflatten",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const std::int64_t dim = c.integer();
       return Tensors{unflatten(x, dim, c.dims())};
     }},
    {"flatten",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const std::int64_t begin = c.integer();
       return Tensors{flatten(x, begin, c.integer())};
     }},
    {"squeeze", [](Chooser& c, Pool& p) { return Tensors{LEVIN_CALL(squeeze, p.any(), c.dims())}; }},
    LEVIN_ALONG(unsqueeze),
    {"unfold",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const std::int64_t dim = c.integer(), size = c.integer();
       return Tensors{unfold(x, dim, size, c.integer())};
     }},
    {"diagonal",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const std::int64_t offset = c.integer(), dim = c.integer();
       return Tensors{diagonal(x, offset, dim, c.integer())};
     }},
    {"as_strided",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       Strides strides;
       const Shape shape = c.shape();
       for (int d = 0; d < shape.rank(); ++d) strides[d] = c.integer();
       return Tensors{as_strided(x, shape, strides, c.integer())};
     }},
    {"split",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       if (!few_parts(x)) return Tensors{};
       const std::int64_t size = c.integer();
       return split(x, size, c.integer());
     }},
    {"split by a list",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Dims sizes = c.dims();
       return split(x, sizes.span(), c.integer());
     }},
    {"chunk",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       if (!few_parts(x)) return Tensors{};
       const std::int64_t chunks = c.integer();
       return chunk(x, chunks, c.integer());
     }},
    {"repeat, tile and meshgrid",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       if (c.one_in(3)) return meshgrid(Tensors{x, p.any()}, c.choice<Indexing>(2));
       const std::array<std::int64_t, 3> times{small(c), small(c), small(c)};
       const std::span<const std::int64_t> all = times;
       return Tensors{c.one_in(2) ? tile(x, Dims(all.first(2))) : repeat(x, Dims(all))};
     }},
    {"diag, trace, cross, kron and tensordot",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any(), y = p.matching(x);
       if (c.one_in(5)) return Tensors{diag(x, x.rank() == 1 ? small(c) - 2 : c.integer())};
       if (c.one_in(4)) return Tensors{trace(x)};
       if (c.one_in(3)) return Tensors{cross(x, y, c.integer())};
       if (c.one_in(2)) return Tensors{kron(x, y)};
       if (c.one_in(2)) return Tensors{tensordot(x, y, c.integer())};
       const Dims a = c.dims(), b = c.dims();
       return Tensors{tensordot(x, y, a, b)};
     }},
    {"index_copy and lerp",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any(), y = p.matching(x);
       if (c.one_in(2)) return Tensors{index_copy(x, c.integer(), p.index(), y)};
       return Tensors{c.one_in(2) ? lerp(x, y, c.real()) : lerp(x, y, p.matching(x))};
     }},
    {"unbind",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       return few_parts(x) ? unbind(x, c.integer()) : Tensors{};
     }},
};

}  // namespace

std::span<const Form> pointwise_forms() { return kForms; }

}  // namespace levin::fuzz
