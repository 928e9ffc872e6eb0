// Rows of bench_kernels: products of matrices, attention and convolutions.
#include "bench/rows.h"

namespace levin::bench {
namespace {

void matrices(std::vector<Kernel>& k) {
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
                {65536, 768, 3072},  // `linear` of this shape without its bias
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
                 const Tensors in{random({s[0], s[1]}, d), random({s[2], s[1]}, d), random({s[2]}, d)};
                 return both_of(
                     in, [](const Tensors& t) { return linear(t[0], t[1], t[2]); },
                     2 * (bytes_of(in[0]) + bytes_of(in[1]) + double(s[0] * s[2]) * double(itemsize(d))));
               },
               layers, times(6)});
  // The last layer of a language model with its loss, [rows, in, classes], in one op and in two.
  const auto head = [&](const std::string& op, auto loss) {
    k.push_back({op,
                 Sizes::own,
                 floats(),
                 [=](const Shape& s, DType d) {
                   const Tensor target = integers(s[2], {s[0]});
                   const Tensors in{random({s[0], s[1]}, d), random({s[2], s[1]}, d)};
                   return both_of(
                       in, [=](const Tensors& t) { return loss(t[0], t[1], target); },
                       3 * (bytes_of(in[0]) + bytes_of(in[1])));
                 },
                 {{512, 128, 1024}, {2048, 256, 32000}, {512, 768, 50257}},
                 times(6)});
  };
  head("linear_cross_entropy_both",
       [](const Tensor& x, const Tensor& w, const Tensor& t) { return linear_cross_entropy(x, w, t); });
  head("linear_then_cross_entropy_both",
       [](const Tensor& x, const Tensor& w, const Tensor& t) { return cross_entropy(linear(x, w), t); });
  // [rows, width, hidden]: both products of a transformer's block, with GELU in tanh form at the end of the first.
  const auto mlp_inputs = [](const Shape& s, DType d) {
    return Tensors{random({s[0], s[1]}, d), random({s[2], s[1]}, d), random({s[2]}, d), random({s[1], s[2]}, d),
                   random({s[1]}, d)};
  };
  const auto mlp = [](const Tensors& t) { return gelu_mlp(t[0], t[1], t[2], t[3], t[4], GeluForm::tanh); };
  const auto mlp_bytes = [](const Tensors& t, const Shape& s,
                            DType d) {  // the hidden values go to memory once and back
    return 2 * (bytes_of(t[0]) + bytes_of(t[1]) + double(s[0] * s[2]) * double(itemsize(d)));
  };
  k.push_back({"gelu_mlp", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Tensors in = mlp_inputs(s, d);
                 return Work{[=] { (void)mlp(in); }, mlp_bytes(in, s, d)};
               },
               layers, times(4)});
  k.push_back({"gelu_mlp_both", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Tensors in = mlp_inputs(s, d);
                 return both_of(in, mlp, 3 * mlp_bytes(in, s, d));
               },
               layers, times(12)});
}

void heads_and_images(std::vector<Kernel>& k) {
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
  // [batch, heads, length, head size], four heads of queries for each head of keys and values
  const std::vector<Shape> grouped{{1, 4, 4, 32}, {2, 8, 256, 64}};
  const auto grouped_inputs = [](const Shape& s, DType d) {
    const Shape fewer{s[0], s[1] / 4, s[2], s[3]};
    return Tensors{random(s, d), random(fewer, d), random(fewer, d)};
  };
  const auto grouped_attention = [](const Tensors& in) {
    return scaled_dot_product_attention(in[0], in[1], in[2], {.enable_gqa = true});
  };
  const auto grouped_flops = [](double products) {
    return [=](const Shape& s) { return products * 2 * double(s[0] * s[1] * s[2]) * double(s[2] * s[3]); };
  };
  k.push_back({"attention_grouped", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Tensors in = grouped_inputs(s, d);
                 return Work{[=] { (void)grouped_attention(in); }, 2.5 * bytes_of(in[0])};
               },
               grouped, grouped_flops(2)});
  k.push_back({"attention_grouped_backward", Sizes::own, floats(),
               [=](const Shape& s, DType d) { return backward_of(grouped_inputs(s, d), grouped_attention, 5); },
               grouped, grouped_flops(5)});
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
                 const Tensors in{random({s[0], s[1], s[3], s[3]}, d), random({s[2], s[1], s[4], s[4]}, d)};
                 const ConvOptions options{.padding = {s[4] / 2, s[4] / 2}};
                 return both_of(
                     in, [=](const Tensors& t) { return conv2d(t[0], t[1], {}, options); },
                     3 * bytes_of(in[0]) * (1 + double(s[2]) / double(s[1])));
               },
               convolutions, conv_flops(6)});
  // [batch, channels, side of the image], a filter of 3 x 3 for each channel
  const std::vector<Shape> single{{1, 2, 4}, {8, 64, 28}, {4, 128, 56}};
  k.push_back({"depthwise_both", Sizes::own, floats(),
               [](const Shape& s, DType d) {
                 const Tensors in{random({s[0], s[1], s[2], s[2]}, d), random({s[1], 1, 3, 3}, d)};
                 const ConvOptions options{.padding = {1, 1}, .groups = s[1]};
                 return both_of(
                     in, [=](const Tensors& t) { return conv2d(t[0], t[1], {}, options); }, 6 * bytes_of(in[0]));
               },
               single});
  // [batch, channels, side of the image], kernels of 4 x 4 with stride 2 to an image twice as large
  const std::vector<Shape> upwards{{1, 2, 4}, {8, 64, 14}};
  const auto upward_inputs = [](const Shape& s, DType d) {
    return Tensors{random({s[0], s[1], s[2], s[2]}, d), random({s[1], s[1], 4, 4}, d)};
  };
  const auto upward = [](const Tensors& t) {
    return conv_transpose2d(t[0], t[1], {}, {.stride = {2, 2}, .padding = {1, 1}});
  };
  const auto upward_flops = [](double factor) {
    return [=](const Shape& s) { return factor * 16 * double(s[0] * s[1] * s[1]) * double(s[2] * s[2]); };
  };
  k.push_back({"conv_transpose2d", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Tensors in = upward_inputs(s, d);
                 return Work{[=] { (void)upward(in); }, 5 * bytes_of(in[0]) + bytes_of(in[1])};
               },
               upwards, upward_flops(2)});
  k.push_back({"conv_transpose2d_both", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Tensors in = upward_inputs(s, d);
                 return both_of(in, upward, 3 * (5 * bytes_of(in[0]) + bytes_of(in[1])));
               },
               upwards, upward_flops(6)});
  // [batch, channels, length], kernels of 5
  const std::vector<Shape> lines{{1, 2, 16}, {16, 64, 512}};
  const auto line_inputs = [](const Shape& s, DType d) { return Tensors{random(s, d), random({s[1], s[1], 5}, d)}; };
  const auto line = [](const Tensors& t) { return conv1d(t[0], t[1], {}, {.padding = 2}); };
  const auto line_flops = [](double factor) {
    return [=](const Shape& s) { return factor * 5 * double(s[0] * s[1] * s[1]) * double(s[2]); };
  };
  k.push_back({"conv1d", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Tensors in = line_inputs(s, d);
                 return Work{[=] { (void)line(in); }, 2 * bytes_of(in[0]) + bytes_of(in[1])};
               },
               lines, line_flops(2)});
  k.push_back({"conv1d_both", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Tensors in = line_inputs(s, d);
                 return both_of(in, line, 3 * (2 * bytes_of(in[0]) + bytes_of(in[1])));
               },
               lines, line_flops(6)});
  // [batch, channels, channels out, side of the volume], kernels of 3 x 3 x 3
  const std::vector<Shape> volumes{{1, 2, 2, 4}, {2, 16, 32, 16}, {2, 32, 32, 32}};
  const auto volume_flops = [](double factor) {
    return [factor](const Shape& s) { return factor * 27 * double(s[0] * s[1] * s[2]) * double(s[3] * s[3] * s[3]); };
  };
  const auto volume = [](const Shape& s, DType d) { return random({s[0], s[1], s[3], s[3], s[3]}, d); };
  k.push_back({"conv3d",
               Sizes::own,
               {DType::f32},
               [=](const Shape& s, DType d) {
                 const Tensor x = volume(s, d), w = random({s[2], s[1], 3, 3, 3}, d);
                 return Work{[=] {
                               (void)conv3d(x, w, {}, {.padding = {1, 1, 1}});
                             },
                             bytes_of(x) * (1 + double(s[2]) / double(s[1]))};
               },
               volumes,
               volume_flops(2)});
  k.push_back({"conv3d_both",
               Sizes::own,
               {DType::f32},
               [=](const Shape& s, DType d) {
                 const Tensors in{volume(s, d), random({s[2], s[1], 3, 3, 3}, d)};
                 return both_of(
                     in,
                     [](const Tensors& t) {
                       return conv3d(t[0], t[1], {}, {.padding = {1, 1, 1}});
                     },
                     3 * bytes_of(in[0]) * (1 + double(s[2]) / double(s[1])));
               },
               volumes,
               volume_flops(6)});
  for (const auto& [name, f] : std::map<std::string, std::function<Tensor(const Tensor&)>>{
           {"max_pool3d", [](const Tensor& x) { return max_pool3d(x, 2); }},
           {"avg_pool3d", [](const Tensor& x) { return avg_pool3d(x, 2); }}}) {
    k.push_back({name,
                 Sizes::own,
                 {DType::f32},
                 [=, f = f](const Shape& s, DType d) {
                   const Tensor x = volume(s, d);
                   return Work{[=] { (void)f(x); }, 1.125 * bytes_of(x)};
                 },
                 volumes});
  }
  k.push_back({"max_pool3d_with_indices",
               Sizes::own,
               {DType::f32},
               [=](const Shape& s, DType d) {
                 const Tensor x = volume(s, d);
                 return Work{[=] { (void)max_pool3d_with_indices(x, {}); }, 1.375 * bytes_of(x)};
               },
               volumes});
  k.push_back({"max_unpool3d",
               Sizes::own,
               {DType::f32},
               [=](const Shape& s, DType d) {
                 const Tensor x = volume(s, d);
                 const ValuesIndices y = max_pool3d_with_indices(x, {});
                 return Work{[=] { (void)max_unpool3d(y.values, y.indices, {}); }, 1.375 * bytes_of(x)};
               },
               volumes});
  // [batch, channels, image side, kernel side, stride]; with stride 1 as many windows as pixels, else patches
  const std::vector<Shape> windows{{2, 2, 6, 3, 1}, {64, 1, 28, 5, 1}, {32, 64, 56, 3, 1}, {32, 3, 224, 16, 16}};
  const auto of = [](const Shape& s) {
    const std::int64_t padding = s[4] == 1 ? s[3] / 2 : 0;
    return WindowOptions{.kernel = {s[3], s[3]}, .stride = {s[4], s[4]}, .padding = {padding, padding}};
  };
  k.push_back({"im2col", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Tensor x = random({s[0], s[1], s[2], s[2]}, d);
                 return Work{[=] { (void)im2col(x, of(s)); }, bytes_of(x) + bytes_of(im2col(x, of(s)))};
               },
               windows});
  k.push_back({"col2im", Sizes::own, floats(),
               [=](const Shape& s, DType d) {
                 const Tensor y = im2col(random({s[0], s[1], s[2], s[2]}, d), of(s));
                 const auto image = [=] { return col2im(y, {s[2], s[2]}, of(s)); };
                 return Work{[=] { (void)image(); }, bytes_of(y) + bytes_of(image())};
               },
               windows});
}

}  // namespace

void product_rows(std::vector<Kernel>& k) {
  matrices(k);
  heads_and_images(k);
}

}  // namespace levin::bench
