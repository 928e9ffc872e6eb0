// Benchmarks of single ops: what an op costs whatever its size, then kernels over sizes and dtypes, each beside the bound that
// this machine's own copy bandwidth and product of matrices set. Flags are in bench/main.h. A row is called op/dtype/shape;
// bench/compare_torch.py runs PyTorch on the same.
//
//   real_time  median of the warm samples; low_us, high_us hold four fifths of them; cold_us: with empty caches
//   bytes, flops  what the op can not avoid: reads and writes of its operands, multiplications and additions
//   of_bound   max(bytes / copy bandwidth, flops / rate of products) / real_time; launch-bound rows stay far below 1
#include <functional>
#include <map>
#include <optional>

#include "bench/main.h"
#include "bench/stopwatch.h"
#include "levin/levin.h"

namespace levin::bench {
namespace {

Device device() { return settings().device; }

// ---- Overhead: one element, by the host's clock.
void add_1(benchmark::State& state) {
  const Tensor a = ones({1}, device()), b = ones({1}, device());
  for (auto _ : state) benchmark::DoNotOptimize(add(a, b));
}
void add_1_recorded(benchmark::State& state) {
  Tensor a = ones({1}, device()), b = ones({1}, device());
  a.requires_grad_();
  for (auto _ : state) benchmark::DoNotOptimize(add(a, b));
}
void view_1(benchmark::State& state) {
  const Tensor a = ones({1, 1}, device());
  for (auto _ : state) benchmark::DoNotOptimize(transpose(a, 0, 1));
}
// One backward over a chain of 1000 nodes; the chain is rebuilt outside the timing.
template <bool kMultiply>
void backward_chain(benchmark::State& state) {
  constexpr int kNodes = 1000;
  Tensor x = ones({1}, device());
  const Tensor b = ones({1}, device());
  x.requires_grad_();
  for (auto _ : state) {
    state.PauseTiming();
    Tensor y = x;
    for (int i = 0; i < kNodes; ++i) y = kMultiply ? mul(y, b) : add(y, b);
    x.set_grad({});
    state.ResumeTiming();
    backward(y);
    state.PauseTiming();
    y = Tensor();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * kNodes);
}

// ---- Kernels
struct Work {
  std::function<void()> run;
  double bytes = 0;
};

Tensor random(const Shape& shape, DType dtype = DType::f32) {
  Generator generator(7);
  return randn(shape, generator, device(), dtype);
}
Tensor integers(std::int64_t bound, const Shape& shape) {
  Generator generator(8);
  return randint(0, bound, shape, generator, device());
}
double bytes_of(const Tensor& t) { return static_cast<double>(t.numel()) * static_cast<double>(itemsize(t.dtype())); }

// The gradient of f alone: f is recorded once, its backward runs again and again. `passes`: tensors of x's size moved.
Work backward_of(Tensors inputs, const std::function<Tensor(const Tensors&)>& f, double passes) {
  for (Tensor& t : inputs) t.requires_grad_();
  const Tensor y = f(inputs);
  const Tensor seed = ones_like(y.detach());
  const double bytes = passes * bytes_of(inputs[0]);
  return {[=] { (void)grad(std::span(&y, 1), inputs, std::span(&seed, 1), {.retain_graph = true}); }, bytes};
}
Work unary(const Shape& s, DType d, Tensor (*f)(const Tensor&)) {
  const Tensor x = random(s, d);
  return {[=] { (void)f(x); }, 2 * bytes_of(x)};
}
Work unary_backward(const Shape& s, DType d, Tensor (*f)(const Tensor&)) {
  return backward_of(
      {random(s, d)}, [=](const Tensors& in) { return f(in[0]); }, 3);
}
Tensor gelu_erf(const Tensor& x) { return gelu(x); }
Tensor gelu_tanh(const Tensor& x) { return gelu(x, GeluForm::tanh); }
Tensor softmax_rows(const Tensor& x) { return softmax(x, 1); }
Tensor log_softmax_rows(const Tensor& x) { return log_softmax(x, 1); }

using Make = std::function<Work(const Shape&, DType)>;
enum class Sizes : std::uint8_t { flat, rows, own };
struct Kernel {
  std::string op;
  Sizes sizes;  // flat: vectors; rows: matrices; own: those listed
  std::vector<DType> dtypes;
  Make make;
  std::vector<Shape> shapes{};                  // besides the sweep
  std::function<double(const Shape&)> flops{};  // of kernels that multiply matrices
};

std::vector<DType> floats() { return {DType::f32, DType::bf16}; }

void pointwise(std::vector<Kernel>& k) {
  k.push_back({"add", Sizes::flat, floats(), [](const Shape& s, DType d) {
                 const Tensor a = random(s, d), b = random(s, d);
                 return Work{[=] { (void)add(a, b); }, 3 * bytes_of(a)};
               }});
  k.push_back({"relu", Sizes::flat, floats(), [](const Shape& s, DType d) { return unary(s, d, relu); }});
  k.push_back(
      {"relu_backward", Sizes::flat, floats(), [](const Shape& s, DType d) { return unary_backward(s, d, relu); }});
  for (const auto& [name, f] : std::map<std::string, Tensor (*)(const Tensor&)>{
           {"exp", exp}, {"gelu_erf", gelu_erf}, {"gelu_tanh", gelu_tanh}}) {
    k.push_back({name, Sizes::rows, floats(), [f = f](const Shape& s, DType d) { return unary(s, d, f); }});
    k.push_back({name + "_backward", Sizes::rows, floats(),
                 [f = f](const Shape& s, DType d) { return unary_backward(s, d, f); }});
  }
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
  reduce("argmax_rows", Sizes::rows, [](const Tensor& x) { return argmax(x, 1); });
  k.push_back({"cumsum_rows", Sizes::rows, floats(), [](const Shape& s, DType d) {
                 const Tensor x = random(s, d);
                 return Work{[=] { (void)cumsum(x, 1); }, 2 * bytes_of(x)};
               }});
  k.push_back({"sort_rows", Sizes::rows, {DType::f32}, [](const Shape& s, DType d) {
                 const Tensor x = random(s, d);
                 return Work{[=] { (void)sort(x, 1); }, 4 * bytes_of(x)};  // values, and indices of 8 bytes
               }});
  k.push_back({"topk_rows", Sizes::rows, {DType::f32}, [](const Shape& s, DType d) {
                 const Tensor x = random(s, d);
                 return Work{[=] { (void)topk(x, std::min<std::int64_t>(8, s[1])); }, bytes_of(x)};
               }});
}

void rows(std::vector<Kernel>& k) {
  const std::vector<Shape> wide{{512, 1024}, {16384, 4096}};
  for (const auto& [name, f] :
       std::map<std::string, Tensor (*)(const Tensor&)>{{"softmax", softmax_rows}, {"log_softmax", log_softmax_rows}}) {
    k.push_back({name, Sizes::rows, floats(), [f = f](const Shape& s, DType d) { return unary(s, d, f); }, wide});
    k.push_back({name + "_backward", Sizes::rows, floats(),
                 [f = f](const Shape& s, DType d) { return unary_backward(s, d, f); }, wide});
  }
  const std::vector<Shape> vocabulary{{512, 1024}, {65536, 50304}};
  k.push_back({"cross_entropy", Sizes::rows, floats(),
               [](const Shape& s, DType d) {
                 const Tensor x = random(s, d), target = integers(s[1], {s[0]});
                 return Work{[=] { (void)cross_entropy(x, target); }, bytes_of(x)};
               },
               vocabulary});
  k.push_back({"cross_entropy_both", Sizes::rows, floats(),
               [](const Shape& s, DType d) {
                 Tensor x = random(s, d);
                 x.requires_grad_();
                 const Tensor target = integers(s[1], {s[0]});
                 return Work{[=] { (void)grad(cross_entropy(x, target), std::span(&x, 1)); }, 3 * bytes_of(x)};
               },
               vocabulary});
  k.push_back({"layer_norm", Sizes::rows, floats(),
               [](const Shape& s, DType d) {
                 const Tensor x = random(s, d), w = ones({s[1]}, device()), b = zeros({s[1]}, device());
                 return Work{[=] { (void)layer_norm(x, w, b); }, 2 * bytes_of(x)};
               },
               wide});
  k.push_back({"layer_norm_backward", Sizes::rows, floats(),
               [](const Shape& s, DType d) {
                 return backward_of(
                     {random(s, d), ones({s[1]}, device()), zeros({s[1]}, device())},
                     [](const Tensors& in) { return layer_norm(in[0], in[1], in[2]); }, 3);
               },
               wide});
  k.push_back({"rms_norm", Sizes::rows, floats(),
               [](const Shape& s, DType d) {
                 const Tensor x = random(s, d), w = ones({s[1]}, device());
                 return Work{[=] { (void)rms_norm(x, w); }, 2 * bytes_of(x)};
               },
               wide});
  k.push_back({"rms_norm_backward", Sizes::rows, floats(),
               [](const Shape& s, DType d) {
                 return backward_of(
                     {random(s, d), ones({s[1]}, device())}, [](const Tensors& in) { return rms_norm(in[0], in[1]); },
                     3);
               },
               wide});
  const std::vector<Shape> images{{2, 8, 8, 8}, {64, 32, 28, 28}, {256, 64, 112, 112}};
  k.push_back({"batch_norm", Sizes::own, floats(),
               [](const Shape& s, DType d) {
                 const Tensor x = random(s, d), w = ones({s[1]}, device()), b = zeros({s[1]}, device());
                 return Work{[=] { (void)batch_norm_train(x, w, b); }, 3 * bytes_of(x)};
               },
               images});
  k.push_back({"batch_norm_backward", Sizes::own, floats(),
               [](const Shape& s, DType d) {
                 return backward_of(
                     {random(s, d), ones({s[1]}, device()), zeros({s[1]}, device())},
                     [](const Tensors& in) { return batch_norm_train(in[0], in[1], in[2]).y; }, 5);
               },
               images});
}

void indexing(std::vector<Kernel>& k) {
  // [rows looked up, width of a row]; tables of 50304 rows, or as many as are looked up.
  const std::vector<Shape> tokens{{64, 64}, {4096, 256}, {65536, 768}};
  const auto table = [](const Shape& s, DType d) { return random({std::min<std::int64_t>(50304, 4 * s[0]), s[1]}, d); };
  k.push_back({"embedding", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Tensor w = table(s, d), index = integers(w.size(0), {s[0]});
                 const double moved = 2.0 * double(s[0] * s[1]) * double(itemsize(d)) + 8.0 * double(s[0]);
                 return Work{[=] { (void)embedding(w, index); }, moved};
               },
               tokens});
  k.push_back({"embedding_backward", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Tensor w = table(s, d), index = integers(w.size(0), {s[0]});
                 Work work = backward_of(
                     {w}, [=](const Tensors& in) { return embedding(in[0], index); }, 1);
                 work.bytes += double(s[0] * s[1]) * double(itemsize(d));
                 return work;
               },
               tokens});
  const std::vector<Shape> nodes{{64, 32}, {16384, 128}, {1000000, 128}};
  k.push_back({"gather_rows", Sizes::own, floats(),
               [](const Shape& s, DType d) {
                 const Tensor x = random(s, d), index = integers(s[0], {s[0]});
                 return Work{[=] { (void)index_select(x, 0, index); }, 2 * bytes_of(x) + 8.0 * double(s[0])};
               },
               nodes});
  k.push_back({"scatter_add_rows", Sizes::own, floats(),
               [](const Shape& s, DType d) {
                 const Tensor x = zeros(s, device(), d), src = random(s, d), index = integers(s[0], {s[0]});
                 return Work{[=] { (void)index_add(x, 0, index, src); }, 3 * bytes_of(x) + 8.0 * double(s[0])};
               },
               nodes});
}

void products(std::vector<Kernel>& k) {
  const auto times = [](double factor) {  // of all dimensions' product
    return [factor](const Shape& s) {
      double all = factor;
      for (int i = 0; i < s.rank(); ++i) all *= double(s[i]);
      return all;
    };
  };
  k.push_back({"matmul",
               Sizes::own,
               floats(),
               [](const Shape& s, DType d) {  // [m, k, n]
                 const Tensor a = random({s[0], s[1]}, d), b = random({s[1], s[2]}, d);
                 return Work{[=] { (void)matmul(a, b); }, bytes_of(a) + bytes_of(b)};
               },
               {{16, 16, 16},
                {256, 256, 256},
                {512, 512, 512},
                {1024, 1024, 1024},
                {2048, 2048, 2048},
                {128, 784, 512},
                {8192, 8192, 8192}},
               times(2)});
  k.push_back({"bmm",
               Sizes::own,
               floats(),
               [](const Shape& s, DType d) {  // [batch, m, n, k]
                 const Tensor a = random({s[0], s[1], s[3]}, d), b = random({s[0], s[3], s[2]}, d);
                 return Work{[=] { (void)matmul(a, b); }, bytes_of(a) + bytes_of(b)};
               },
               {{2, 16, 16, 8}, {64, 128, 128, 64}},
               times(2)});
  const std::vector<Shape> layers{{16, 16, 16}, {512, 768, 3072}, {65536, 768, 3072}};  // [rows, in, out], with bias
  k.push_back({"linear", Sizes::own, floats(),
               [](const Shape& s, DType d) {
                 const Tensor x = random({s[0], s[1]}, d), w = random({s[2], s[1]}, d), b = random({s[2]}, d);
                 return Work{[=] { (void)linear(x, w, b); }, bytes_of(x) + bytes_of(w)};
               },
               layers, times(2)});
  k.push_back({"linear_both", Sizes::own, floats(),
               [](const Shape& s, DType d) {
                 Tensors in{random({s[0], s[1]}, d), random({s[2], s[1]}, d), random({s[2]}, d)};
                 for (Tensor& t : in) t.requires_grad_();
                 const Tensor seed = random({s[0], s[2]}, d);
                 return Work{[=] {
                               const Tensor y = linear(in[0], in[1], in[2]);
                               (void)grad(std::span(&y, 1), in, std::span(&seed, 1));
                             },
                             2 * (bytes_of(in[0]) + bytes_of(in[1]) + bytes_of(seed))};
               },
               layers, times(6)});
  // [batch, heads, length, head size]
  const std::vector<Shape> heads{{1, 1, 16, 32}, {2, 4, 256, 64}, {64, 12, 1024, 64}, {2, 64, 8192, 128}};
  for (const Causal causal : {Causal::no, Causal::yes}) {
    const bool half = causal == Causal::yes;
    const std::string name = half ? "attention_causal" : "attention";
    const auto flops = [half](double products) {
      return
          [=](const Shape& s) { return products * (half ? 1 : 2) * double(s[0] * s[1] * s[2]) * double(s[2] * s[3]); };
    };
    k.push_back(
        {name, Sizes::own, floats(),
         [=](const Shape& s, DType d) {
           const Tensor q = random(s, d), key = random(s, d), v = random(s, d);
           return Work{[=] { (void)scaled_dot_product_attention(q, key, v, {.causal = causal}); }, 4 * bytes_of(q)};
         },
         heads, flops(2)});
    k.push_back(
        {name + "_backward", Sizes::own, floats(),
         [=](const Shape& s, DType d) {
           return backward_of(
               {random(s, d), random(s, d), random(s, d)},
               [=](const Tensors& in) { return scaled_dot_product_attention(in[0], in[1], in[2], {.causal = causal}); },
               8);
         },
         heads, flops(5)});
  }
  // [batch, in channels, out channels, image side, kernel side]
  const std::vector<Shape> convolutions{
      {2, 2, 4, 6, 3}, {64, 1, 32, 28, 5}, {64, 32, 64, 14, 5}, {32, 64, 64, 56, 3}, {256, 64, 64, 56, 3}};
  const auto conv_flops = [](double factor) {
    return [factor](const Shape& s) {
      return factor * double(s[0] * s[1] * s[2]) * double(s[3] * s[3]) * double(s[4] * s[4]);
    };
  };
  k.push_back({"conv2d", Sizes::own, floats(),
               [](const Shape& s, DType d) {
                 const Tensor x = random({s[0], s[1], s[3], s[3]}, d), w = random({s[2], s[1], s[4], s[4]}, d);
                 const ConvOptions options{.padding = {s[4] / 2, s[4] / 2}};
                 return Work{[=] { (void)conv2d(x, w, {}, options); }, bytes_of(x) * (1 + double(s[2]) / double(s[1]))};
               },
               convolutions, conv_flops(2)});
  k.push_back({"conv2d_both", Sizes::own, floats(),
               [](const Shape& s, DType d) {
                 Tensors in{random({s[0], s[1], s[3], s[3]}, d), random({s[2], s[1], s[4], s[4]}, d)};
                 for (Tensor& t : in) t.requires_grad_();
                 const ConvOptions options{.padding = {s[4] / 2, s[4] / 2}};
                 const Tensor seed = ones_like(conv2d(in[0], in[1], {}, options).detach());
                 return Work{[=] {
                               const Tensor y = conv2d(in[0], in[1], {}, options);
                               (void)grad(std::span(&y, 1), in, std::span(&seed, 1));
                             },
                             3 * (bytes_of(in[0]) + bytes_of(seed))};
               },
               convolutions, conv_flops(6)});
}

// Every node has `degree` edges from nodes drawn at random.
Csr drawn_graph(std::int64_t nodes, std::int64_t degree) {
  return with_transpose({.crow = arange(0, nodes * degree + 1, degree, device()),
                         .col = integers(nodes, {nodes * degree}),
                         .cols = nodes});
}
void graphs(std::vector<Kernel>& k) {
  const std::vector<Shape> sizes{
      {32, 4, 16}, {2708, 4, 16}, {20000, 25, 128}, {1000000, 25, 128}};  // [nodes, degree, features]
  // What a gather of rows without any reuse moves, and the positions.
  const auto moved = [](const Shape& s, DType d) {
    return double(s[0]) * (double(s[1] + 1) * double(s[2]) * double(itemsize(d)) + 8.0 * double(s[1] + 1));
  };
  k.push_back({"spmm", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Csr a = drawn_graph(s[0], s[1]);
                 const Tensor x = random({s[0], s[2]}, d), value = random({a.entries()}, d);
                 return Work{[=] { (void)spmm(a, value, x); }, moved(s, d)};
               },
               sizes});
  k.push_back({"spmm_backward", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Csr a = drawn_graph(s[0], s[1]);
                 Work w = backward_of(
                     {random({s[0], s[2]}, d), random({a.entries()}, d)},
                     [=](const Tensors& in) { return spmm(a, in[1], in[0]); }, 0);
                 w.bytes = 2 * moved(s, d);
                 return w;
               },
               sizes});
  k.push_back({"sddmm", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Csr a = drawn_graph(s[0], s[1]);
                 const Tensor x = random({s[0], s[2]}, d), z = random({s[0], s[2]}, d);
                 return Work{[=] { (void)sddmm(a, x, z); }, moved(s, d)};
               },
               sizes});
  const std::vector<Shape> segments{{64, 4, 1}, {2708, 4, 16}, {1000000, 25, 1}};
  k.push_back({"segment_sum", Sizes::own, floats(),
               [](const Shape& s, DType d) {
                 const Tensor x = random({s[0] * s[1], s[2]}, d), offsets = arange(0, s[0] * s[1] + 1, s[1], device());
                 return Work{[=] { (void)segment_reduce(x, offsets); },
                             bytes_of(x) * (1 + 1.0 / double(s[1])) + 8.0 * double(s[0])};
               },
               segments});
}

// Updates of [tensors, elements each].
struct Weights {
  std::vector<Tensor> values;
  std::unique_ptr<optim::Optimizer> optimizer;
};
template <class O, class Options>
Kernel update_of(const char* name, double passes, Options options) {
  return {name,
          Sizes::own,
          {DType::f32},
          [=](const Shape& s, DType d) {
            auto w = std::make_shared<Weights>();
            for (std::int64_t i = 0; i < s[0]; ++i) {
              Tensor t = random({s[1]}, d);
              t.requires_grad_();
              t.set_grad(random({s[1]}, d));
              w->values.push_back(t);
            }
            optim::Parameters parameters;
            for (Tensor& t : w->values) parameters.push_back({.value = &t, .name = {}, .owner = nullptr});
            w->optimizer = std::make_unique<O>(parameters, options);
            const double bytes = passes * double(s[0] * s[1]) * double(itemsize(d));
            return Work{[w] { w->optimizer->step(); }, bytes};
          },
          {{2, 8}, {100, 4}, {148, 54000}, {148, 841216}}};
}

std::vector<Kernel> all_kernels() {
  std::vector<Kernel> k;
  pointwise(k);
  reductions(k);
  rows(k);
  indexing(k);
  products(k);
  graphs(k);
  k.push_back(update_of<optim::AdamW>("adamw", 7, optim::AdamWOptions{.lr = 1e-4}));
  k.push_back(update_of<optim::SGD>("sgd_momentum", 5, optim::SGDOptions{.lr = 1e-4, .momentum = 0.9}));
  return k;
}

// ---- Registration: every kernel at every size that the device is for.
std::vector<Shape> sweep(Sizes sizes, DType dtype, double most) {
  std::vector<Shape> out;
  if (sizes == Sizes::own) return out;
  for (const double bytes : {0x1p10, 0x1p16, 0x1p20, 0x1p24, 0x1p28, 0x1p31}) {
    if (bytes > most) break;
    const auto n = static_cast<std::int64_t>(bytes) / static_cast<std::int64_t>(itemsize(dtype));
    const std::int64_t columns = std::min<std::int64_t>(n, 1024);
    out.push_back(sizes == Sizes::flat ? Shape{n} : Shape{n / columns, columns});
  }
  return out;
}

std::string joined(const Shape& s) {
  std::string out;
  for (int i = 0; i < s.rank(); ++i) out += (i ? "x" : "") + std::to_string(s[i]);
  return out;
}

void measure(benchmark::State& state, const Kernel& kernel, const Shape& shape, DType dtype, const Ceilings& ceilings) {
  const Work work = kernel.make(shape, dtype);
  Stopwatch watch(device());
  const Spread warm = watch.warm(work.run);
  for (auto _ : state) state.SetIterationTime(warm.median);
  const double rate = dtype == DType::f32 ? ceilings.flops_f32 : ceilings.flops_16;
  const double flops = kernel.flops ? kernel.flops(shape) : 0;
  const double bound = std::max(work.bytes / ceilings.bytes_per_second, flops / rate);
  state.counters["bytes"] = work.bytes;
  state.counters["flops"] = flops;
  state.counters["low_us"] = warm.low * 1e6;
  state.counters["high_us"] = warm.high * 1e6;
  if (settings().cold) state.counters["cold_us"] = watch.cold(work.run).median * 1e6;
  state.counters["of_bound"] = bound / warm.median;
}

void prepare() {
  const Device d = device();
  static const Ceilings ceilings = measure_ceilings(d);
  benchmark::AddCustomContext("levin_copy_GB/s", std::to_string(ceilings.bytes_per_second * 1e-9));
  benchmark::AddCustomContext("levin_matmul_f32_TFLOP/s", std::to_string(ceilings.flops_f32 * 1e-12));
  benchmark::AddCustomContext("levin_matmul_16_TFLOP/s", std::to_string(ceilings.flops_16 * 1e-12));
  benchmark::AddCustomContext("levin_launch_us", std::to_string(ceilings.launch_seconds * 1e6));
  benchmark::RegisterBenchmark("add_1", add_1);
  benchmark::RegisterBenchmark("add_1_recorded", add_1_recorded);
  benchmark::RegisterBenchmark("view_1", view_1);
  benchmark::RegisterBenchmark("backward_chain/add_1000", backward_chain<false>);
  benchmark::RegisterBenchmark("backward_chain/mul_1000", backward_chain<true>);
  // A GPU is for large tensors; on simt, which has no speed, the smallest shapes show that the kernels run.
  const double most = settings().max_bytes > 0 ? settings().max_bytes
                      : d.is_cuda()            ? 0x1p31
                      : d.is_cpu()             ? 0x1p24
                                               : 0x1p10;
  const double most_flops = d.is_cuda() ? 1e14 : d.is_cpu() ? 1e11 : 1e5;
  static const std::vector<Kernel> kernels = all_kernels();
  for (const Kernel& kernel : kernels) {
    for (const DType dtype : kernel.dtypes) {
      if (d.is_cpu() && dtype != DType::f32 && settings().max_bytes == 0) continue;  // f32 is what the CPU is fast in
      std::vector<Shape> shapes = sweep(kernel.sizes, dtype, most);
      for (const Shape& s : kernel.shapes) {
        const bool fits = kernel.flops ? kernel.flops(s) <= most_flops : 4.0 * double(s.numel()) <= 8 * most;
        if (fits && std::find(shapes.begin(), shapes.end(), s) == shapes.end()) shapes.push_back(s);
      }
      for (const Shape& s : shapes) {
        const std::string name = kernel.op + "/" + text(dtype) + "/" + joined(s);
        benchmark::RegisterBenchmark(
            name.c_str(), [&kernel, s, dtype](benchmark::State& state) { measure(state, kernel, s, dtype, ceilings); })
            ->UseManualTime()
            ->Iterations(1)
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
}

}  // namespace
}  // namespace levin::bench

LEVIN_BENCHMARK_MAIN(levin::bench::prepare)
