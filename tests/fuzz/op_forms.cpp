// The forms of calls of ops, one line each.
#include <string>
#include <tuple>

#include "levin/augment.h"
#include "levin/autograd.h"
#include "levin/sparse.h"
#include "tests/fuzz/chooser.h"

namespace levin::fuzz {
namespace {

// f(arguments), evaluated from left to right: the same bytes are the same calls with every compiler.
#define LEVIN_CALL(f, ...) std::apply([](auto&&... argument) { return f(argument...); }, std::tuple{__VA_ARGS__})

// ---- Functions of one type, by their names
#define LEVIN_UNARY(f)                                         \
  Form {                                                       \
#f, [](Chooser&, Pool & p) { return Tensors{f(p.any())}; } \
  }
#define LEVIN_BINARY(f)                   \
  Form {                                  \
#f, [](Chooser&, Pool& p) {             \
      const Tensor a = p.any();             \
      return Tensors{f(a, p.matching(a))};  \
    } \
  }
#define LEVIN_SCALED(f)                                                                                  \
  Form {                                                                                                 \
#f " by a number", [](Chooser & c, Pool & p) { return Tensors{LEVIN_CALL(f, p.any(), c.scalar())}; } \
  }
#define LEVIN_REDUCTION(f)                        \
  Form {                                          \
#f, [](Chooser& c, Pool& p) {                   \
      const Tensor x = p.any();                     \
      const Dims dims = c.dims();                   \
      return Tensors{f(x, dims, c.keep())};         \
    } \
  }
#define LEVIN_ALONG(f)                         \
  Form {                                       \
#f, [](Chooser& c, Pool& p) {                \
      const Tensor x = p.any();                  \
      return Tensors{f(x, c.integer())};         \
    } \
  }
#define LEVIN_LOSS(f)                                  \
  Form {                                               \
#f, [](Chooser& c, Pool& p) {                        \
      const Tensor x = p.any(), to = p.matching(x);      \
      return Tensors{f(x, to, c.reduction())};           \
    } \
  }

Tensors both(const ValuesIndices& x) { return {x.values, x.indices}; }

// At most as many parts as a list holds.
bool few_parts(const Tensor& x) {
  for (const std::int64_t d : x.shape()) {
    if (d > 1024) return false;
  }
  return true;
}

ConvOptions conv_options(Chooser& c) {
  ConvOptions o;
  if (c.one_in(2)) o = {.stride = c.positive_pair(), .padding = c.pair(), .dilation = c.positive_pair()};
  if (c.one_in(4)) o.groups = c.integer();
  return o;
}
PoolOptions pool_options(Chooser& c) {
  PoolOptions o{.kernel = c.positive_pair()};
  if (c.one_in(2)) o.stride = c.positive_pair();
  if (c.one_in(3)) o.padding = c.pair();
  o.ceil_mode = c.one_in(3);
  o.count_include_pad = !c.one_in(3);
  return o;
}
WindowOptions window_options(Chooser& c) {
  WindowOptions o{.kernel = c.positive_pair()};
  if (c.one_in(2)) o.stride = c.positive_pair();
  if (c.one_in(2)) o.padding = c.pair();
  if (c.one_in(3)) o.dilation = c.positive_pair();
  return o;
}
std::int64_t small(Chooser& c) { return 1 + static_cast<std::int64_t>(c.below(3)); }

// An image and a kernel that fits it, or any two tensors.
Tensors image_and_kernel(Chooser& c, Pool& p, bool transposed) {
  if (c.one_in(4)) return {p.any(), p.any(), p.optional()};
  const std::int64_t in = small(c), out = small(c);
  const DType dtype = c.dtype();
  const Tensor x = p.of({c.size(), in, c.size() + 2, c.size() + 2}, dtype);
  const Tensor w = p.of(transposed ? Shape{in, out, small(c), small(c)} : Shape{out, in, small(c), small(c)}, dtype);
  return {x, w, c.one_in(2) ? p.of({out}, dtype) : p.optional()};
}

// Images, or any tensor; one number or a row of numbers for each image.
Tensor images(Chooser& c, Pool& p) {
  return c.one_in(6) ? p.any() : p.of({c.size(), small(c), c.size(), c.size()}, c.dtype());
}
Tensor numbers(Chooser& c, Pool& p, const Tensor& x, const Shape& each, DType dtype) {
  return c.one_in(6) ? p.any() : p.of(each.inserted(0, x.size(0)), dtype);
}
Generator generator(Chooser& c) { return Generator(c.byte()); }
RandomAffineOptions affine_options(Chooser& c) {
  RandomAffineOptions o{.degrees = c.real()};
  if (c.one_in(2)) o.translate = {c.real(), 0.5};
  if (c.one_in(2)) o.scale = {0.5, c.real()};
  if (c.one_in(2)) o.shear_x = c.real();
  o.interpolation = c.choice<Interpolation>(2);
  if (c.one_in(3)) o.fill = c.real();
  return o;
}

// Increasing offsets, or any positions.
Tensor offsets(Chooser& c, Pool& p, std::int64_t to) {
  if (c.one_in(4)) return p.index();
  std::vector<std::int64_t> all{0};
  while (all.size() < 6 && !c.one_in(4)) all.push_back(all.back() + static_cast<std::int64_t>(c.below(3)));
  if (!c.one_in(8)) all.push_back(to);
  return from_data(all, {static_cast<std::int64_t>(all.size())}, Device::cpu());
}
Csr pattern(Chooser& c, Pool& p) {
  const Tensor col = c.one_in(4) ? p.index() : p.index().to(DType::i64);
  Csr a{.crow = offsets(c, p, col.numel()), .col = col, .cols = c.one_in(4) ? c.integer() : c.size()};
  if (c.one_in(4)) a.edge = p.index();
  return c.one_in(3) ? with_transpose(a) : a;
}

constexpr Form kForms[] = {
    // Pointwise
    LEVIN_BINARY(add), LEVIN_BINARY(sub), LEVIN_BINARY(mul), LEVIN_BINARY(div), LEVIN_BINARY(pow),
    LEVIN_BINARY(maximum), LEVIN_BINARY(minimum), LEVIN_BINARY(remainder), LEVIN_BINARY(atan2), LEVIN_BINARY(eq),
    LEVIN_BINARY(ne), LEVIN_BINARY(lt), LEVIN_BINARY(le), LEVIN_BINARY(gt), LEVIN_BINARY(ge),
    LEVIN_BINARY(logical_and), LEVIN_BINARY(logical_or), LEVIN_BINARY(logical_xor), LEVIN_SCALED(add),
    LEVIN_SCALED(sub), LEVIN_SCALED(mul), LEVIN_SCALED(div), LEVIN_SCALED(pow), LEVIN_SCALED(eq), LEVIN_SCALED(lt),
    LEVIN_SCALED(full_like), LEVIN_UNARY(neg), LEVIN_UNARY(abs), LEVIN_UNARY(sign), LEVIN_UNARY(square),
    LEVIN_UNARY(sqrt), LEVIN_UNARY(rsqrt), LEVIN_UNARY(reciprocal), LEVIN_UNARY(exp), LEVIN_UNARY(expm1),
    LEVIN_UNARY(log), LEVIN_UNARY(log1p), LEVIN_UNARY(log2), LEVIN_UNARY(log10), LEVIN_UNARY(sin), LEVIN_UNARY(cos),
    LEVIN_UNARY(tan), LEVIN_UNARY(tanh), LEVIN_UNARY(erf), LEVIN_UNARY(floor), LEVIN_UNARY(ceil), LEVIN_UNARY(round),
    LEVIN_UNARY(trunc), LEVIN_UNARY(relu), LEVIN_UNARY(silu), LEVIN_UNARY(sigmoid), LEVIN_UNARY(logsigmoid),
    LEVIN_UNARY(isnan), LEVIN_UNARY(isinf), LEVIN_UNARY(isfinite), LEVIN_UNARY(logical_not),
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
    {"masked_fill", [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       return Tensors{LEVIN_CALL(masked_fill, x, p.mask(), c.scalar())};
     }},
    {"equal and allclose",
     [](Chooser& c, Pool& p) {
       const Tensor a = p.any(), b = p.matching(a);
       (void)equal(a, b);
       (void)LEVIN_CALL(allclose, a, b, c.real(), c.real());
       return Tensors{};
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
       return Tensors{x.clone(), x.contiguous(), x.detach()};
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
    {"unbind",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       return few_parts(x) ? unbind(x, c.integer()) : Tensors{};
     }},
    // Reductions
    LEVIN_REDUCTION(sum), LEVIN_REDUCTION(mean), LEVIN_REDUCTION(prod), LEVIN_REDUCTION(amax), LEVIN_REDUCTION(amin),
    LEVIN_REDUCTION(logsumexp), LEVIN_REDUCTION(any), LEVIN_REDUCTION(all),
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
    {"max", [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       return both(LEVIN_CALL(max, x, c.integer(), c.keep()));
     }},
    {"min", [](Chooser& c, Pool& p) {
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
    {"sort", [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       return both(LEVIN_CALL(sort, x, c.integer(), c.choice<Order>(2)));
     }},
    {"argsort", [](Chooser& c, Pool& p) {
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
       return Tensors{LEVIN_CALL(scatter_add, x, c.integer(), index,
                               c.one_in(4) ? p.any() : p.of(index.shape(), x.dtype()))};
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
       return Tensors{c.one_in(2) ? pad(x, pads, c.scalar()) : pad(x, pads, c.choice<PadMode>(3))};
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
    LEVIN_ALONG(tril), LEVIN_ALONG(triu),
    // Products
    LEVIN_BINARY(matmul), LEVIN_BINARY(outer),
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
    {"einsum",
     [](Chooser& c, Pool& p) {
       static constexpr std::array<const char*, 8> kEquations{
           "ij,jk->ik", "...ij,...jk->...ik", "ii", "ij->", "i,j->ij", "bij,bjk", "ij,ij->j", "ab,ab,a->b"};
       const std::string_view equation = c.of(kEquations);
       const Tensor a = p.any(), b = p.matching(a);
       if (c.one_in(4)) return Tensors{einsum(equation, {a})};
       return Tensors{c.one_in(4) ? einsum(equation, {a, b, p.any()}) : einsum(equation, {a, b})};
     }},
    // Images
    {"conv2d",
     [](Chooser& c, Pool& p) {
       const Tensors in = image_and_kernel(c, p, false);
       return Tensors{conv2d(in[0], in[1], in[2], conv_options(c))};
     }},
    {"conv1d",
     [](Chooser& c, Pool& p) {
       const std::int64_t channels = small(c);
       const Tensor x = c.one_in(4) ? p.any() : p.of({c.size(), channels, c.size() + 2}, DType::f32);
       const Tensor w = c.one_in(4) ? p.any() : p.of({small(c), channels, small(c)}, DType::f32);
       const ConvOptions1d o{.stride = small(c), .padding = c.integer(), .dilation = small(c)};
       return Tensors{conv1d(x, w, p.optional(), o)};
     }},
    {"conv_transpose2d",
     [](Chooser& c, Pool& p) {
       const Tensors in = image_and_kernel(c, p, true);
       ConvTransposeOptions o;
       if (c.one_in(2)) o = {.stride = c.positive_pair(), .padding = c.pair(), .output_padding = c.pair()};
       if (c.one_in(4)) o.dilation = c.positive_pair();
       if (c.one_in(4)) o.groups = c.integer();
       return Tensors{conv_transpose2d(in[0], in[1], in[2], o)};
     }},
    {"max_pool2d",
     [](Chooser& c, Pool& p) {
       return Tensors{LEVIN_CALL(max_pool2d, image_and_kernel(c, p, false)[0], pool_options(c))};
     }},
    {"avg_pool2d",
     [](Chooser& c, Pool& p) {
       return Tensors{LEVIN_CALL(avg_pool2d, image_and_kernel(c, p, false)[0], pool_options(c))};
     }},
    {"adaptive_avg_pool2d",
     [](Chooser& c, Pool& p) {
       return Tensors{LEVIN_CALL(adaptive_avg_pool2d, image_and_kernel(c, p, false)[0], c.pair())};
     }},
    {"adaptive_max_pool2d",
     [](Chooser& c, Pool& p) {
       return Tensors{LEVIN_CALL(adaptive_max_pool2d, image_and_kernel(c, p, false)[0], c.pair())};
     }},
    {"im2col",
     [](Chooser& c, Pool& p) {
       return Tensors{LEVIN_CALL(im2col, image_and_kernel(c, p, false)[0], window_options(c))};
     }},
    {"col2im of im2col",
     [](Chooser& c, Pool& p) {
       const Tensor x = image_and_kernel(c, p, false)[0];
       const WindowOptions o = window_options(c);
       const Tensor columns = c.one_in(4) ? p.any() : im2col(x, o);
       return Tensors{col2im(columns, c.one_in(4) ? c.pair() : std::array{x.size(-2), x.size(-1)}, o)};
     }},
    // Augmentations
    {"augment::crop",
     [](Chooser& c, Pool& p) {
       const Tensor x = images(c, p), at = numbers(c, p, x, {2}, DType::i64);
       const std::array<std::int64_t, 2> size = c.positive_pair();
       return Tensors{augment::crop(x, at, size, c.scalar())};
     }},
    {"augment::flip",
     [](Chooser& c, Pool& p) {
       const Tensor x = images(c, p), which = numbers(c, p, x, {}, DType::b8);
       return Tensors{augment::flip(x, which, c.one_in(8) ? c.integer() : 2 + std::int64_t(c.below(2)))};
     }},
    {"augment::erase",
     [](Chooser& c, Pool& p) {
       const Tensor x = images(c, p), boxes = numbers(c, p, x, {4}, DType::i64);
       return Tensors{augment::erase(x, boxes, c.scalar())};
     }},
    {"augment::affine",
     [](Chooser& c, Pool& p) {
       const Tensor x = images(c, p), maps = numbers(c, p, x, {2, 3}, DType::f32).detach();
       const auto how = c.choice<Interpolation>(2);
       return Tensors{augment::affine(x, maps, how, c.scalar())};
     }},
    {"augment::mix",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       return Tensors{augment::mix(x, c.one_in(6) ? p.any() : p.of({1}, DType::f32).detach())};
     }},
    {"augment::paste",
     [](Chooser& c, Pool& p) {
       const Tensor x = images(c, p);
       return Tensors{augment::paste(x, c.one_in(6) ? p.any() : p.of({4}, DType::i64))};
     }},
    {"augment::random_crop",
     [](Chooser& c, Pool& p) {
       const Tensor x = images(c, p);
       augment::RandomCropOptions o{.padding = c.pair()};
       if (c.one_in(2)) o.size = c.positive_pair();
       o.mode = c.choice<PadMode>(3);
       if (c.one_in(4)) o.fill = c.scalar();
       Generator g = generator(c);
       return Tensors{augment::random_crop(x, o, g)};
     }},
    {"augment flips and cutout",
     [](Chooser& c, Pool& p) {
       const Tensor x = images(c, p);
       Generator g = generator(c);
       if (c.one_in(2)) return Tensors{augment::cutout(x, c.integer(), g)};
       return Tensors{augment::random_vertical_flip(augment::random_horizontal_flip(x, g), g, c.real())};
     }},
    {"augment::random_affine",
     [](Chooser& c, Pool& p) {
       const Tensor x = images(c, p);
       const RandomAffineOptions o = affine_options(c);
       Generator g = generator(c);
       return Tensors{augment::random_affine(x, o, g)};
     }},
    {"augment::mixup and cutmix",
     [](Chooser& c, Pool& p) {
       const Tensor x = images(c, p);
       const Tensor labels = c.one_in(6) ? p.any() : p.of({x.size(0), c.size()}, DType::f32);
       Generator g = generator(c);
       const double alpha = c.one_in(3) ? c.real() : 0.4;
       const auto [a, b] =
           c.one_in(2) ? augment::mixup(x, labels, alpha, g) : augment::cutmix(x, labels, alpha, g);
       return Tensors{a, b};
     }},
    // Normalisation
    {"layer_norm",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Tensor w = c.one_in(2) ? p.of({x.size(-1)}, x.dtype()) : p.optional();
       return Tensors{LEVIN_CALL(layer_norm, x, w, c.one_in(2) ? p.matching(w) : Tensor(),
                               c.one_in(4) ? c.real() : 1e-5)};
     }},
    {"rms_norm",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       return Tensors{LEVIN_CALL(rms_norm, x, c.one_in(2) ? p.of({x.size(-1)}, x.dtype()) : p.optional(), c.real())};
     }},
    {"group_norm",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Tensor w = c.one_in(2) ? p.of({x.size(1)}, x.dtype()) : p.optional();
       return Tensors{LEVIN_CALL(group_norm, x, c.integer(), w, c.one_in(2) ? p.matching(w) : Tensor())};
     }},
    {"batch_norm_train",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Tensor w = c.one_in(2) ? p.of({x.size(1)}, x.dtype()) : p.optional();
       const BatchNormResult r = batch_norm_train(x, w, c.one_in(2) ? p.matching(w) : Tensor());
       return Tensors{r.y, r.mean, r.var};
     }},
    {"batch_norm_eval",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Tensor w = c.one_in(2) ? p.of({x.size(1)}, x.dtype()) : p.optional();
       return Tensors{LEVIN_CALL(batch_norm_eval, x, w, p.matching(w), p.matching(w), p.matching(w))};
     }},
    // Softmax, losses, attention
    LEVIN_ALONG(softmax), LEVIN_ALONG(log_softmax), LEVIN_LOSS(mse_loss), LEVIN_LOSS(l1_loss),
    {"cross_entropy and nll_loss",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Tensor target = c.one_in(3) ? p.any() : p.index();
       const Tensor weight = c.one_in(3) ? p.of({x.size(1)}, x.dtype()) : p.optional();
       if (c.one_in(3)) return Tensors{nll_loss(x, target, {.weight = weight, .reduction = c.reduction()})};
       return Tensors{cross_entropy(x, target, {.weight = weight,
                                                .ignore_index = c.integer(),
                                                .label_smoothing = c.one_in(2) ? 0 : c.real(),
                                                .reduction = c.reduction()})};
     }},
    {"huber_loss and smooth_l1_loss",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any(), to = p.matching(x);
       const double delta = c.real();
       return Tensors{huber_loss(x, to, delta, c.reduction()), smooth_l1_loss(x, to, delta, c.reduction())};
     }},
    {"binary_cross_entropy_with_logits",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any(), to = p.matching(x);
       return Tensors{LEVIN_CALL(binary_cross_entropy_with_logits, x, to, p.optional(), p.optional(), c.reduction())};
     }},
    {"kl_div",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any(), to = p.matching(x);
       return Tensors{LEVIN_CALL(kl_div, x, to, c.choice<KlReduction>(4), c.choice<LogTarget>(2))};
     }},
    LEVIN_BINARY(accuracy),
    {"scaled_dot_product_attention",
     [](Chooser& c, Pool& p) {
       const std::int64_t batch = small(c), rows = c.size(), cols = c.size(), width = c.size();
       const DType dtype = c.dtype();
       const Tensor q = c.one_in(8) ? p.any() : p.of({batch, rows, width}, dtype);
       const Tensor k = c.one_in(8) ? p.any() : p.of({batch, cols, width}, dtype);
       const Tensor v = c.one_in(8) ? p.any() : p.of({batch, cols, c.size()}, dtype);
       Generator gen(1);
       AttentionOptions o{.causal = c.choice<Causal>(2)};
       if (c.one_in(3)) o.mask = c.one_in(2) ? p.any() : p.of({rows, cols}, c.one_in(2) ? DType::b8 : dtype);
       if (c.one_in(4)) o.scale = c.real();
       if (c.one_in(4)) o.dropout_p = c.real();
       if (!c.one_in(8)) o.generator = &gen;
       return Tensors{scaled_dot_product_attention(q, k, v, o)};
     }},
    // Graphs
    {"segment_reduce and segment_softmax",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Tensor at = offsets(c, p, x.rank() > 0 ? x.size(0) : 0);
       return Tensors{segment_reduce(x, at, c.choice<Reduce>(4)), segment_softmax(x, at)};
     }},
    {"gather_csr",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const std::int64_t entries = c.integer();
       return Tensors{gather_csr(x, offsets(c, p, entries), entries)};
     }},
    {"spmm",
     [](Chooser& c, Pool& p) {
       const Csr a = pattern(c, p);
       const Tensor x = c.one_in(3) ? p.any() : p.of({a.cols, c.size()}, c.dtype());
       const Tensor value = c.one_in(2) ? Tensor() : c.one_in(4) ? p.any() : p.of({a.entries()}, x.dtype());
       return Tensors{spmm(a, value, x, c.choice<Reduce>(4))};
     }},
    {"sddmm",
     [](Chooser& c, Pool& p) {
       const Csr a = pattern(c, p);
       const std::int64_t width = c.size();
       const DType dtype = c.dtype();
       const Tensor x = c.one_in(4) ? p.any() : p.of({a.rows(), width}, dtype);
       return Tensors{sddmm(a, x, c.one_in(4) ? p.any() : p.of({a.cols, width}, dtype))};
     }},
    {"edge_scores",
     [](Chooser& c, Pool& p) {
       const Csr a = pattern(c, p);
       const std::int64_t heads = c.size();
       const DType dtype = c.dtype();
       const Tensor u = c.one_in(4) ? p.any() : p.of({a.cols, heads}, dtype);
       const Tensor v = c.one_in(4) ? p.any() : p.of({a.rows(), heads}, dtype);
       return Tensors{edge_scores(a, u, v, c.real())};
     }},
    {"gatv2_scores",
     [](Chooser& c, Pool& p) {
       const Csr a = pattern(c, p);
       const std::int64_t heads = c.size(), channels = c.size();
       const DType dtype = c.dtype();
       const Tensor l = c.one_in(4) ? p.any() : p.of({a.cols, heads, channels}, dtype);
       const Tensor r = c.one_in(4) ? p.any() : p.of({a.rows(), heads, channels}, dtype);
       return Tensors{gatv2_scores(a, l, r, c.one_in(4) ? p.any() : p.of({heads, channels}, dtype), c.real())};
     }},
    {"transposed pattern",
     [](Chooser& c, Pool& p) {
       const Csr a = transpose(pattern(c, p));
       return Tensors{a.crow, a.col};
     }},
    // Autograd
    {"checkpoint",
     [](Chooser&, Pool& p) {
       return Tensors{checkpoint([](const Tensor& x) { return relu(x) * x; }, p.any())};
     }},
};
static_assert(std::size(kForms) <= 256);  // one byte chooses

}  // namespace

std::span<const Form> forms() { return kForms; }

}  // namespace levin::fuzz
