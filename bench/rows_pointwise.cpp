// Rows of bench_kernels: ops element by element, copies, reductions, scans and sorts.
#include "bench/rows.h"

namespace levin::bench {
namespace {

Tensor gelu_erf(const Tensor& x) { return gelu(x); }
Tensor gelu_tanh(const Tensor& x) { return gelu(x, GeluForm::tanh); }

void elements(std::vector<Kernel>& k) {
  k.push_back({"add", Sizes::flat, floats(), [](const Shape& s, DType d) {
                 const Tensor a = random(s, d), b = random(s, d);
                 return Work{[=] { (void)add(a, b); }, 3 * bytes_of(a)};
               }});
  k.push_back({"relu", Sizes::flat, floats(), [](const Shape& s, DType d) { return unary(s, d, relu); }});
  k.push_back(
      {"relu_backward", Sizes::flat, floats(), [](const Shape& s, DType d) { return unary_backward(s, d, relu); }});
  for (const auto& [name, f] : std::map<std::string, Unary>{{"exp", exp},
                                                            {"gelu_erf", gelu_erf},
                                                            {"gelu_tanh", gelu_tanh},
                                                            {"mish", mish},
                                                            {"hardswish", hardswish},
                                                            {"atan", atan},
                                                            {"sinh", sinh},
                                                            {"asinh", asinh}}) {
    k.push_back({name, Sizes::rows, floats(), [f = f](const Shape& s, DType d) { return unary(s, d, f); }});
    k.push_back({name + "_backward", Sizes::rows, floats(),
                 [f = f](const Shape& s, DType d) { return unary_backward(s, d, f); }});
  }
  // By a mask, by a comparison, and of two operands whose functions compilers do not make vector code of.
  k.push_back({"where", Sizes::flat, floats(), [](const Shape& s, DType d) {
                 const Tensor a = random(s, d), b = neg(a), mask = gt(a, 0);
                 return Work{[=] { (void)where(mask, a, b); }, 3 * bytes_of(a)};
               }});
  k.push_back({"masked_fill", Sizes::flat, floats(), [](const Shape& s, DType d) {
                 const Tensor a = random(s, d), mask = gt(a, 0);
                 return Work{[=] { (void)masked_fill(a, mask, 0); }, 2 * bytes_of(a)};
               }});
  using Two = Tensor (*)(const Tensor&, const Tensor&);
  for (const auto& [name, f] :
       std::map<std::string, Two>{{"lt", lt},
                                  {"maximum", maximum},
                                  {"remainder", remainder},
                                  {"atan2", atan2},
                                  {"hypot", hypot},
                                  {"logaddexp", logaddexp},
                                  {"lerp", [](const Tensor&a, const Tensor&b) { return lerp(a, b, 0.3); }}}) {
    k.push_back({name, Sizes::flat, {DType::f32}, [f = f](const Shape& s, DType d) {
                   const Tensor a = random(s, d), b = exp(random(s, d));
                   return Work{[=] { (void)f(a, b); }, 3 * bytes_of(a)};
                 }});
  }
  k.push_back({"pow", Sizes::flat, {DType::f32}, [](const Shape& s, DType d) {
                 const Tensor x = exp(random(s, d));
                 return Work{[=] { (void)pow(x, 2.5); }, 2 * bytes_of(x)};
               }});
  k.push_back({"clamp", Sizes::flat, {DType::f32}, [](const Shape& s, DType d) {
                 const Tensor x = random(s, d);
                 return Work{[=] { (void)clamp(x, -1, 1); }, 2 * bytes_of(x)};
               }});
  k.push_back({"flip", Sizes::rows, {DType::f32}, [](const Shape& s, DType d) {
                 const Tensor x = random(s, d);
                 return Work{[=] { (void)flip(x, {1}); }, 2 * bytes_of(x)};
               }});
  k.push_back({"repeat", Sizes::rows, {DType::f32}, [](const Shape& s, DType d) {
                 const Tensor x = random(s, d);
                 return Work{[=] { (void)repeat(x, {2, 2}); }, 5 * bytes_of(x)};
               }});
  k.push_back({"cast_to_bf16", Sizes::flat, {DType::f32}, [](const Shape& s, DType d) {
                 const Tensor x = random(s, d);
                 return Work{[=] { (void)cast(x, DType::bf16); }, 1.5 * bytes_of(x)};
               }});
  k.push_back({"bias_add", Sizes::rows, floats(), [](const Shape& s, DType d) {
                 const Tensor x = random(s, d), b = random({s[1]}, d);
                 return Work{[=] { (void)add(x, b); }, 2 * bytes_of(x)};
               }});
  k.push_back({"dropout", Sizes::flat, floats(), [](const Shape& s, DType d) {
                 const Tensor x = random(s, d);
                 return Work{[=, gen = Generator(3)]() mutable { (void)dropout(x, 0.1, gen); }, 2 * bytes_of(x)};
               }});
  k.push_back({"standard_gamma", Sizes::flat, {DType::f32}, [](const Shape& s, DType d) {
                 const Tensor a = exp(random(s, d));
                 return Work{[=, gen = Generator(3)]() mutable { (void)distributions::standard_gamma(a, gen); },
                             2 * bytes_of(a)};
               }});
  k.push_back({"gamma_log_prob", Sizes::flat, {DType::f32}, [](const Shape& s, DType d) {
                 const Tensor x = exp(random(s, d));
                 const distributions::Gamma gamma{x + 0.5, x + 1};
                 return Work{[=] { (void)gamma.log_prob(x); }, 4 * bytes_of(x)};
               }});
  k.push_back({"add_transposed", Sizes::rows, floats(), [](const Shape& s, DType d) {
                 const Tensor a = random(s, d), b = transpose(random({s[1], s[0]}, d), 0, 1);
                 return Work{[=] { (void)add(a, b); }, 3 * bytes_of(a)};
               }});
  k.push_back({"transpose",
               Sizes::rows,
               floats(),
               [](const Shape& s, DType d) {
                 const Tensor x = transpose(random(s, d), 0, 1);
                 return Work{[=] { (void)x.contiguous(); }, 2 * bytes_of(x)};
               },
               {{16384, 16384}}});
  k.push_back({"nchw_to_nhwc",
               Sizes::own,
               floats(),
               [](const Shape& s, DType d) {
                 const Tensor x = permute(random(s, d), {0, 2, 3, 1});
                 return Work{[=] { (void)x.contiguous(); }, 2 * bytes_of(x)};
               },
               {{8, 64, 28, 28}, {256, 256, 56, 56}}});
}

void reductions(std::vector<Kernel>& k) {
  const auto reduce = [&](const char* name, Sizes sizes, std::function<Tensor(const Tensor&)> f,
                          std::vector<Shape> shapes = {}) {
    k.push_back({name, sizes, floats(),
                 [f = std::move(f)](const Shape& s, DType d) {
                   const Tensor x = random(s, d);
                   return Work{[=] { (void)f(x); }, bytes_of(x)};
                 },
                 std::move(shapes)});
  };
  reduce("sum_all", Sizes::flat, [](const Tensor& x) { return sum(x); });
  reduce("sum_rows", Sizes::rows, [](const Tensor& x) { return sum(x, 1); }, {{16384, 4096}});
  reduce("sum_columns", Sizes::rows, [](const Tensor& x) { return sum(x, 0); }, {{65536, 3072}});
  reduce("amax_columns", Sizes::rows, [](const Tensor& x) { return amax(x, {0}); });
  reduce("logsumexp_columns", Sizes::rows, [](const Tensor& x) { return logsumexp(x, {0}); });
  reduce("median_rows", Sizes::rows, [](const Tensor& x) { return median(x, 1).values; });
  k.push_back({"quantile_rows",
               Sizes::own,
               {DType::f32},
               [](const Shape& s, DType d) {
                 const Tensor x = random(s, d);
                 return Work{[=] { (void)quantile(x, 0.3, 1); }, bytes_of(x)};
               },
               {{8, 32}, {256, 1024}}});
  k.push_back({"quantiles_rows_both",
               Sizes::own,
               {DType::f32},
               [](const Shape& s, DType d) {
                 const Tensor x = random(s, d);
                 return both_of(
                     {x},
                     [](const Tensors& in) {
                       return quantile(in[0], {0.25, 0.5, 0.9}, 1);
                     },
                     3 * bytes_of(x));
               },
               {{8, 1024}, {256, 1024}}});
  reduce("argmax_rows", Sizes::rows, [](const Tensor& x) { return argmax(x, 1); });
  const auto scan = [&](const char* name, double passes, std::function<void(const Tensor&)> f) {
    k.push_back({name, Sizes::rows, floats(), [=](const Shape& s, DType d) {
                   const Tensor x = random(s, d);
                   return Work{[=] { f(x); }, passes * bytes_of(x)};
                 }});
  };
  scan("cumsum_rows", 2, [](const Tensor& x) { (void)cumsum(x, 1); });
  scan("cumprod_rows", 2, [](const Tensor& x) { (void)cumprod(x, 1); });
  // Of numbers near 1, whose products stay in range.
  k.push_back({"prod_rows_both", Sizes::rows, {DType::f32}, [](const Shape& s, DType d) {
                 const Tensor x = random(s, d) * 0.01 + 1;
                 return both_of(
                     {x}, [](const Tensors& in) { return prod(in[0], 1); }, 3 * bytes_of(x));
               }});
  k.push_back({"cumprod_rows_backward", Sizes::rows, {DType::f32}, [](const Shape& s, DType d) {
                 return unary_backward(s, d, [](const Tensor& x) { return cumprod(x, 1); });
               }});
  scan("logcumsumexp_rows", 2, [](const Tensor& x) { (void)logcumsumexp(x, 1); });
  scan("cummax_rows", 4, [](const Tensor& x) { (void)cummax(x, 1); });  // and indices of 8 bytes
  k.push_back({"sort_rows", Sizes::rows, {DType::f32}, [](const Shape& s, DType d) {
                 const Tensor x = random(s, d);
                 return Work{[=] { (void)sort(x, 1); }, 4 * bytes_of(x)};  // values, and indices of 8 bytes
               }});
  k.push_back({"topk_rows", Sizes::rows, {DType::f32}, [](const Shape& s, DType d) {
                 const Tensor x = random(s, d);
                 return Work{[=] { (void)topk(x, std::min<std::int64_t>(8, s[1])); }, bytes_of(x)};
               }});
}

}  // namespace

void pointwise_rows(std::vector<Kernel>& k) {
  elements(k);
  reductions(k);
}

}  // namespace levin::bench
