// Rows of bench_kernels: what a training step does to all parameters or gradients at once. Shapes are [tensors, shape
// of each]; 148 tensors of 841,216 hold as many numbers as GPT-2 124M.
#include "bench/rows.h"

namespace levin::bench {
namespace {

std::vector<Shape> lists() { return {{2, 8}, {100, 4}, {148, 54000}, {148, 841216}}; }

Tensors drawn(const Shape& s, DType d) {
  Tensors all;
  for (std::int64_t i = 0; i < s[0]; ++i) all.push_back(random(Shape(s.dims().subspan(1)), d));
  return all;
}
double bytes_of_list(const Shape& s, double of_each) { return double(s.numel()) * of_each; }

// Parameters with gradients at fixed addresses, and the objects that work on them.
struct Weights {
  Tensors values;
  std::unique_ptr<optim::Optimizer> optimizer;
  optim::GradScaler scaler;
  optim::Parameters parameters() {
    optim::Parameters all;
    for (Tensor& t : values) all.push_back({.value = &t, .name = {}, .owner = nullptr});
    return all;
  }
};
std::shared_ptr<Weights> weights(const Shape& s, DType d) {
  auto w = std::make_shared<Weights>();
  w->values = drawn(s, d);
  for (Tensor& t : w->values) {
    t.requires_grad_();
    t.set_grad(random(t.shape(), d));
  }
  return w;
}

// `of_each`: bytes read and written of one number's value, gradient and state.
template <class O, class Options>
Kernel update_of(const char* name, double of_each, Options options, std::vector<Shape> shapes = lists()) {
  return {name,
          Sizes::own,
          {DType::f32},
          [=](const Shape& s, DType d) {
            auto w = weights(s, d);
            w->optimizer = std::make_unique<O>(w->parameters(), options);
            return Work{[w] { w->optimizer->step(); }, bytes_of_list(s, of_each)};
          },
          std::move(shapes)};
}

void updates(std::vector<Kernel>& k) {
  const optim::AdamWOptions adamw{.lr = 1e-4};
  k.push_back(update_of<optim::AdamW>("adamw", 28, adamw));
  k.push_back(update_of<optim::SGD>("sgd_momentum", 20, optim::SGDOptions{.lr = 1e-4, .momentum = 0.9}));
  // Value, gradient and each state read, value and states written.
  const std::vector<Shape> few{{100, 4}, {148, 54000}};
  k.push_back(update_of<optim::RMSprop>("rmsprop", 20, optim::RMSpropOptions{.lr = 1e-4}, few));
  k.push_back(update_of<optim::Adagrad>("adagrad", 20, optim::AdagradOptions{.lr = 1e-4}, few));
  k.push_back(update_of<optim::NAdam>("nadam", 28, optim::NAdamOptions{.lr = 1e-4}, few));
  k.push_back(update_of<optim::RAdam>("radam", 28, optim::RAdamOptions{.lr = 1e-4}, few));
  k.push_back(update_of<optim::Adamax>("adamax", 28, optim::AdamaxOptions{.lr = 1e-4}, few));
  k.push_back(update_of<optim::Adadelta>("adadelta", 28, optim::AdadeltaOptions{.lr = 1e-4}, few));
  k.push_back(update_of<optim::ASGD>("asgd", 20, optim::ASGDOptions{.lr = 1e-4}, few));
  k.push_back(update_of<optim::Rprop>("rprop", 28, optim::RpropOptions{.lr = 1e-4}, few));
  k.push_back(
      update_of<optim::Muon>("muon", 20, optim::MuonOptions{.lr = 1e-4}, {{4, 16, 32}, {8, 64, 128}, {4, 256, 768}}));
  // Matrices: value and gradient read, value written.
  k.push_back(
      update_of<optim::Adafactor>("adafactor", 12, optim::AdafactorOptions{}, {{100, 16, 16}, {12, 768, 3072}}));
  // 16-bit values and gradients; f32 masters and averages.
  k.push_back({"adamw_masters",
               Sizes::own,
               {DType::bf16, DType::f16},
               [=](const Shape& s, DType d) {
                 auto w = weights(s, d);
                 w->optimizer = std::make_unique<optim::AdamW>(w->parameters(), adamw);
                 w->optimizer->use_master_weights();
                 return Work{[w] { w->optimizer->step(); }, bytes_of_list(s, 28)};
               },
               lists()});
}

// A step of a linear layer [rows, in, out] whose weight a parametrization computes, with its gradients.
template <class Parametrization>
Kernel parametrized(const char* name) {
  return {name,
          Sizes::own,
          {DType::f32},
          [](const Shape& s, DType d) {
            struct Net : nn::Module {
              Net(nn::Options options, std::int64_t in, std::int64_t out)
                  : Module(std::move(options)), layer(*this, "layer", {.in = in, .out = out}), norm(layer) {}
              nn::Linear layer;
              Parametrization norm;
            };
            const auto net = std::make_shared<Net>(nn::Options{.gen = Generator(1), .device = device()}, s[1], s[2]);
            const Tensor x = random({s[0], s[1]}, d), seed = random({s[0], s[2]}, d);
            return Work{[=] {
                          net->zero_grad();
                          backward(net->layer(x), seed);
                        },
                        // x is read twice, y written and its gradient read; the original and the weight are read
                        // once a direction, the weight and two gradients written.
                        2 * (bytes_of(x) + bytes_of(seed)) + 7 * double(s[1] * s[2]) * double(itemsize(d))};
          },
          {{4, 8, 16}, {64, 256, 512}, {16, 1024, 1024}},
          [](const Shape& s) { return 4.0 * double(s.numel()); }};
}

// A lookup of [rows, width] in a table of 50304 rows, its backward and the update of the rows that it named.
template <class O, class Options>
Kernel lookup_step(const char* name, double passes, Options options) {
  return {name,
          Sizes::own,
          {DType::f32},
          [=](const Shape& s, DType d) {
            auto w = std::make_shared<Weights>();
            w->values.push_back(random({50304, s[1]}, d));
            w->values[0].requires_grad_();
            w->optimizer = std::make_unique<O>(w->parameters(), options);
            const Tensor index = integers(50304, {s[0]}), seed = random(s, d);
            return Work{[=] {
                          w->optimizer->zero_grad();
                          backward(embedding(w->values[0], index, {}, EmbeddingGrad::rows), seed);
                          w->optimizer->step();
                        },
                        passes * double(s.numel()) * double(itemsize(d))};
          },
          {{64, 64}, {4096, 256}, {65536, 64}}};
}

void steps_of_layers(std::vector<Kernel>& k) {
  k.push_back(parametrized<nn::WeightNorm>("weight_norm_step"));
  k.push_back(parametrized<nn::SpectralNorm>("spectral_norm_step"));
  k.push_back(lookup_step<optim::SGD>("sparse_sgd", 6, optim::SGDOptions{.lr = 1e-4}));
  k.push_back(lookup_step<optim::SparseAdam>("sparse_adam", 10, optim::SparseAdamOptions{.lr = 1e-4}));
}

void averages_and_norms(std::vector<Kernel>& k) {
  k.push_back({"ema",
               Sizes::own,
               {DType::f32},
               [](const Shape& s, DType d) {
                 const Tensors averages = drawn(s, d), values = drawn(s, d);
                 const Tensor decay = full({}, 0.999, device(), DType::f64);
                 return Work{[=] { optim::ema_update_(averages, values, decay); }, bytes_of_list(s, 12)};
               },
               lists()});
  // The norm reads all gradients, the scaling reads and writes them. With this limit the factor stays below 1, however
  // often f32 or bf16 gradients are clipped.
  k.push_back({"clip_grad_norm", Sizes::own, floats(),
               [](const Shape& s, DType d) {
                 auto w = weights(s, d);
                 return Work{[w, all = w->parameters()] { (void)optim::clip_grad_norm_(all, 1e-6); },
                             bytes_of_list(s, 3.0 * double(itemsize(d)))};
               },
               lists()});
  // Unscaling, the norm and the check for finite values, in one pass.
  k.push_back({"unscale",
               Sizes::own,
               {DType::f32},
               [](const Shape& s, DType d) {
                 auto w = weights(s, d);
                 w->optimizer = std::make_unique<optim::SGD>(w->parameters(), optim::SGDOptions{.lr = 1e-4});
                 (void)w->scaler.scale(device());
                 return Work{[w] {
                               w->scaler.unscale_(*w->optimizer);
                               w->scaler.forget();
                             },
                             bytes_of_list(s, 8)};
               },
               lists()});
}

void buckets(std::vector<Kernel>& k) {
  k.push_back({"flatten", Sizes::own, floats(),
               [](const Shape& s, DType d) {
                 const Tensors all = drawn(s, d);
                 return Work{[all, flat = optim::flatten(all)]() mutable { optim::flatten_into_(flat, all); },
                             bytes_of_list(s, 2.0 * double(itemsize(d)))};
               },
               lists()});
  k.push_back({"unflatten", Sizes::own, floats(),
               [](const Shape& s, DType d) {
                 const Tensors all = drawn(s, d);
                 return Work{[all, flat = optim::flatten(all)] { optim::unflatten_into_(all, flat); },
                             bytes_of_list(s, 2.0 * double(itemsize(d)))};
               },
               lists()});
}

}  // namespace

void list_rows(std::vector<Kernel>& k) {
  updates(k);
  steps_of_layers(k);
  averages_and_norms(k);
  buckets(k);
}

}  // namespace levin::bench
