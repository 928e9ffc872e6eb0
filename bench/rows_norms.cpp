// Rows of bench_kernels: softmax, cross-entropy, norms and pooling.
#include "bench/rows.h"

namespace levin::bench {
namespace {

Tensor softmax_rows(const Tensor& x) { return softmax(x, 1); }
Tensor log_softmax_rows(const Tensor& x) { return log_softmax(x, 1); }

void of_rows(std::vector<Kernel>& k) {
  const std::vector<Shape> wide{{512, 1024}, {16384, 4096}};
  for (const auto& [name, f] :
       std::map<std::string, Unary>{{"softmax", softmax_rows}, {"log_softmax", log_softmax_rows}}) {
    k.push_back({name, Sizes::columns, floats(), [f = f](const Shape& s, DType d) { return unary(s, d, f); }, wide});
    k.push_back({name + "_backward", Sizes::columns, floats(),
                 [f = f](const Shape& s, DType d) { return unary_backward(s, d, f); }, wide});
  }
  const std::vector<Shape> vocabulary{{512, 1024}, {65536, 50304}};
  k.push_back({"cross_entropy", Sizes::columns, floats(),
               [](const Shape& s, DType d) {
                 const Tensor x = random(s, d), target = integers(s[1], {s[0]});
                 return Work{[=] { (void)cross_entropy(x, target); }, bytes_of(x)};
               },
               vocabulary});
  k.push_back({"cross_entropy_both", Sizes::columns, floats(),
               [](const Shape& s, DType d) {
                 Tensor x = random(s, d);
                 x.requires_grad_();
                 const Tensor target = integers(s[1], {s[0]});
                 return Work{[=] { (void)grad(cross_entropy(x, target), std::span(&x, 1)); }, 3 * bytes_of(x)};
               },
               vocabulary});
  k.push_back({"nll_loss_both",
               Sizes::own,
               {DType::f32},
               [](const Shape& s, DType d) {
                 const Tensor target = integers(s[1], {s[0]});
                 return both_of(
                     {random(s, d)}, [=](const Tensors& in) { return nll_loss(log_softmax(in[0], 1), target); },
                     3 * bytes_of(random(s, d)));
               },
               {{16, 16}, {256, 512}, {1024, 1024}}});
  k.push_back({"layer_norm", Sizes::columns, floats(),
               [](const Shape& s, DType d) {
                 const Tensor x = random(s, d), w = ones({s[1]}, device()), b = zeros({s[1]}, device());
                 return Work{[=] { (void)layer_norm(x, w, b); }, 2 * bytes_of(x)};
               },
               wide});
  k.push_back({"layer_norm_backward", Sizes::columns, floats(),
               [](const Shape& s, DType d) {
                 return backward_of(
                     {random(s, d), ones({s[1]}, device()), zeros({s[1]}, device())},
                     [](const Tensors& in) { return layer_norm(in[0], in[1], in[2]); }, 3);
               },
               wide});
  k.push_back({"rms_norm", Sizes::columns, floats(),
               [](const Shape& s, DType d) {
                 const Tensor x = random(s, d), w = ones({s[1]}, device());
                 return Work{[=] { (void)rms_norm(x, w); }, 2 * bytes_of(x)};
               },
               wide});
  k.push_back({"rms_norm_backward", Sizes::columns, floats(),
               [](const Shape& s, DType d) {
                 return backward_of(
                     {random(s, d), ones({s[1]}, device())}, [](const Tensors& in) { return rms_norm(in[0], in[1]); },
                     3);
               },
               wide});
  k.push_back({"glu", Sizes::columns, floats(),
               [](const Shape& s, DType d) {
                 const Tensor x = random(s, d);
                 return Work{[=] { (void)glu(x); }, 1.5 * bytes_of(x)};
               },
               wide});
  k.push_back({"glu_backward", Sizes::columns, floats(),
               [](const Shape& s, DType d) {
                 return backward_of(
                     {random(s, d)}, [](const Tensors& in) { return glu(in[0]); }, 2.5);
               },
               wide});
  const std::vector<Shape> vectors{{16, 16}, {4096, 128}};
  k.push_back({"triplet_margin_loss_both",
               Sizes::own,
               {DType::f32},
               [](const Shape& s, DType d) {
                 const Tensor x = random(s, d);
                 return both_of(
                     {x, flip(x, {0}), flip(x, {1})},
                     [](const Tensors& in) { return triplet_margin_loss(in[0], in[1], in[2]); }, 9 * bytes_of(x));
               },
               vectors});
  // With gradients for the means and the variances.
  k.push_back({"gaussian_nll_loss_both",
               Sizes::own,
               {DType::f32},
               [](const Shape& s, DType d) {
                 const Tensor x = random(s, d), target = flip(x, {0});
                 return both_of(
                     {x, exp(x)}, [=](const Tensors& in) { return gaussian_nll_loss(in[0], target, in[1]); },
                     8 * bytes_of(x));
               },
               vectors});
  // [steps, texts, classes, labels of a text]: speech by characters and by pieces of words.
  k.push_back(
      {"ctc_loss_both",
       Sizes::own,
       {DType::f32},
       [](const Shape& s, DType d) {
         Tensor x = log_softmax(random({s[0], s[1], s[2]}, d), -1).detach();
         x.requires_grad_();
         const Tensor targets = integers(s[2] - 1, {s[1], s[3]}) + 1;
         const Tensor steps = full({s[1]}, s[0], device(), DType::i64);
         const Tensor labels = full({s[1]}, s[3], device(), DType::i64);
         return Work{[=] { (void)grad(ctc_loss(x, targets, steps, labels), std::span(&x, 1)); }, 2 * bytes_of(x)};
       },
       {{5, 2, 4, 2}, {400, 16, 29, 60}, {250, 8, 512, 30}}});
  // [batch, heads, positions, width]
  const std::vector<Shape> heads{{1, 2, 4, 8}, {4, 8, 512, 64}, {8, 32, 2048, 128}};
  for (const auto& [name, pairs] : std::map<std::string, RotaryPairs>{{"rotary", RotaryPairs::halves},
                                                                      {"rotary_pairs", RotaryPairs::interleaved}}) {
    const auto turn_of = [pairs = pairs](const Shape& s) {
      return [=, table = rotary_table(arange(s[2], device()), s[3])](const Tensors& in) {
        return apply_rotary(in[0], table, pairs);
      };
    };
    k.push_back({name, Sizes::own, floats(),
                 [=](const Shape& s, DType d) {
                   const Tensors in{random(s, d)};
                   return Work{[=, turn = turn_of(s)] { (void)turn(in); }, 2 * bytes_of(in[0])};
                 },
                 heads});
    k.push_back({name + "_backward", Sizes::own, floats(),
                 [=](const Shape& s, DType d) { return backward_of({random(s, d)}, turn_of(s), 2); }, heads});
  }
  // [rows, others, length] and the power
  const std::vector<Shape> pairs{{2, 3, 4}, {1024, 1024, 3}, {1024, 1024, 64}, {512, 512, 512}};
  const auto flops = [](const Shape& s) { return 3 * double(s[0] * s[1] * s[2]); };
  for (const auto& [name, p] : std::map<std::string, double>{{"cdist", 2}, {"cdist_1", 1}, {"cdist_3", 3}}) {
    const auto distances = [p = p](const Tensors& in) { return cdist(in[0], in[1], p); };
    const auto rows = [](const Shape& s, DType d) { return Tensors{random({s[0], s[2]}, d), random({s[1], s[2]}, d)}; };
    k.push_back({name,
                 Sizes::own,
                 {DType::f32},
                 [=](const Shape& s, DType d) {
                   const Tensors in = rows(s, d);
                   return Work{[=] { (void)distances(in); }, bytes_of(distances(in))};
                 },
                 pairs,
                 flops});
    k.push_back({name + "_backward",
                 Sizes::own,
                 {DType::f32},
                 [=](const Shape& s, DType d) { return backward_of(rows(s, d), distances, 2); },
                 pairs,
                 flops});
  }
  k.push_back({"pdist",
               Sizes::own,
               {DType::f32},
               [](const Shape& s, DType d) {
                 const Tensor x = random(s, d);
                 return Work{[=] { (void)pdist(x); }, bytes_of(pdist(x))};
               },
               {{4, 3}, {512, 64}}});
  k.push_back({"pdist_backward",
               Sizes::own,
               {DType::f32},
               [](const Shape& s, DType d) {
                 return backward_of(
                     {random(s, d)}, [](const Tensors& in) { return pdist(in[0]); }, 2);
               },
               {{4, 3}, {512, 64}}});
}

// 16-bit rows under autocast, in `passes` over x: results and their gradients are f32, gradients of rows have 16 bits.
void of_rows_under_autocast(std::vector<Kernel>& k) {
  const auto add = [&](const std::string& op, const Shape& large, double passes,
                       const std::function<Work(const Shape&, DType, double)>& make) {
    k.push_back({op,
                 Sizes::columns,
                 {DType::bf16},
                 [=](const Shape& s, DType d) { return make(s, d, passes); },
                 {{512, 1024}, large}});
  };
  const auto softmax_of = [](const Tensors& in) {
    const Autocast on(DType::bf16);
    return softmax(in[0], 1);
  };
  const auto norm_of = [](const Tensors& in) {
    const Autocast on(DType::bf16);
    return layer_norm(in[0], in[1], in[2]);
  };
  const auto inputs = [](const Shape& s, DType d) {
    return Tensors{random(s, d), ones({s[1]}, device()), zeros({s[1]}, device())};
  };
  const Shape wide{16384, 4096};
  add("softmax_autocast", wide, 3, [=](const Shape& s, DType d, double passes) {
    const Tensors in{random(s, d)};
    return Work{[=] { (void)softmax_of(in); }, passes * bytes_of(in[0])};
  });
  add("softmax_autocast_backward", wide, 5,
      [=](const Shape& s, DType d, double passes) { return backward_of({random(s, d)}, softmax_of, passes); });
  add("layer_norm_autocast", wide, 3, [=](const Shape& s, DType d, double passes) {
    const Tensors in = inputs(s, d);
    return Work{[=] { (void)norm_of(in); }, passes * bytes_of(in[0])};
  });
  add("layer_norm_autocast_backward", wide, 4,
      [=](const Shape& s, DType d, double passes) { return backward_of(inputs(s, d), norm_of, passes); });
  add("cross_entropy_autocast_both", {65536, 50304}, 3, [](const Shape& s, DType d, double passes) {
    Tensor x = random(s, d);
    x.requires_grad_();
    const Tensor target = integers(s[1], {s[0]});
    const auto loss_of = [=] {
      const Autocast on(DType::bf16);
      return cross_entropy(x, target);
    };
    return Work{[=] { (void)grad(loss_of(), std::span(&x, 1)); }, passes * bytes_of(x)};
  });
}

// [batch, channels, length]
std::vector<Shape> sequences() { return {{2, 8, 16}, {16, 64, 512}}; }
// [batch, channels, height, width]
std::vector<Shape> images() { return {{2, 8, 8, 8}, {64, 32, 28, 28}, {256, 64, 112, 112}}; }

Tensor group_norm_8(const Tensors& in) {
  return group_norm(in[0], std::min<std::int64_t>(8, in[0].size(1)), in[1], in[2]);
}
Tensors with_parameters(const Shape& s, DType d) {
  return {random(s, d), ones({s[1]}, device()), zeros({s[1]}, device())};
}

void of_images(std::vector<Kernel>& k) {
  k.push_back({"batch_norm", Sizes::own, floats(),
               [](const Shape& s, DType d) {
                 const Tensors in = with_parameters(s, d);
                 return Work{[=] { (void)batch_norm_train(in[0], in[1], in[2]); }, 3 * bytes_of(in[0])};
               },
               images()});
  k.push_back({"batch_norm_backward", Sizes::own, floats(),
               [](const Shape& s, DType d) {
                 return backward_of(
                     with_parameters(s, d), [](const Tensors& in) { return batch_norm_train(in[0], in[1], in[2]).y; },
                     5);
               },
               images()});
  // A group fits the chip, so nothing is read twice.
  k.push_back({"group_norm", Sizes::own, floats(),
               [](const Shape& s, DType d) {
                 const Tensors in = with_parameters(s, d);
                 return Work{[=] { (void)group_norm_8(in); }, 2 * bytes_of(in[0])};
               },
               images()});
  k.push_back({"group_norm_backward", Sizes::own, floats(),
               [](const Shape& s, DType d) { return backward_of(with_parameters(s, d), group_norm_8, 3); }, images()});
  const Unary max_pool_of_lines = [](const Tensor& x) { return max_pool1d(x, 2); };
  k.push_back({"max_pool1d", Sizes::own, floats(),
               [=](const Shape& s, DType d) { return unary(s, d, max_pool_of_lines, 1.5); }, sequences()});
  k.push_back({"max_pool1d_backward", Sizes::own, floats(),
               [=](const Shape& s, DType d) { return unary_backward(s, d, max_pool_of_lines, 1.5); }, sequences()});
  // A quarter as many outputs as inputs.
  for (const auto& [name, f] :
       std::map<std::string, Unary>{{"max_pool", [](const Tensor& x) { return max_pool2d(x, 2); }},
                                    {"max_pool_3_2",
                                     [](const Tensor& x) {
                                       return max_pool2d(x, {.kernel = {3, 3}, .stride = {{2, 2}}, .padding = {1, 1}});
                                     }},
                                    {"avg_pool", [](const Tensor& x) { return avg_pool2d(x, 2); }},
                                    {"global_avg_pool", [](const Tensor& x) {
                                       return adaptive_avg_pool2d(x, {1, 1});
                                     }}}) {
    k.push_back(
        {name, Sizes::own, floats(), [f = f](const Shape& s, DType d) { return unary(s, d, f, 1.25); }, images()});
    k.push_back({name + "_backward", Sizes::own, floats(),
                 [f = f](const Shape& s, DType d) { return unary_backward(s, d, f, 1.25); }, images()});
  }
}

}  // namespace

void norm_rows(std::vector<Kernel>& k) {
  of_rows(k);
  of_rows_under_autocast(k);
  of_images(k);
}

}  // namespace levin::bench
