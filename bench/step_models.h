// The models whose steps bench_step measures, and whose recorded steps tests/recorded_steps_test.cpp counts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/levin.h"

namespace levin::bench {

struct Mlp : nn::Module {
  using Module::Module;
  nn::Linear fc1{*this, "fc1", {.in = 784, .out = 512}};
  nn::Linear fc2{*this, "fc2", {.in = 512, .out = 512}};
  nn::Linear fc3{*this, "fc3", {.in = 512, .out = 10}};
  Tensor operator()(const Tensor& x) const { return fc3(relu(fc2(relu(fc1(flatten(x, 1)))))); }
};

struct SmallMlp : nn::Module {
  using Module::Module;
  nn::Linear fc1{*this, "fc1", {.in = 784, .out = 128}};
  nn::Linear fc2{*this, "fc2", {.in = 128, .out = 10}};
  Tensor operator()(const Tensor& x) const { return fc2(relu(fc1(flatten(x, 1)))); }
};

struct LeNet : nn::Module {
  using Module::Module;
  nn::Conv2d conv1{*this, "conv1", {.in = 1, .out = 32, .kernel = 5, .padding = 2}};
  nn::Conv2d conv2{*this, "conv2", {.in = 32, .out = 64, .kernel = 5, .padding = 2}};
  nn::Linear fc1{*this, "fc1", {.in = 64 * 7 * 7, .out = 256}};
  nn::Linear fc2{*this, "fc2", {.in = 256, .out = 10}};
  Tensor operator()(const Tensor& images) const {
    Tensor x = max_pool2d(relu(conv1(images)), 2);
    x = max_pool2d(relu(conv2(x)), 2);
    return fc2(relu(fc1(flatten(x, 1))));
  }
};

// GPT-2's layers (Radford et al., 2019): norm, causal attention, norm, two linear layers with GELU, each half added to
// its input. `layers`, `width` and `heads` are the model's; 124M has 12, 768, 12 and 50304 (padded) words.
struct GptShape {
  std::int64_t layers, width, heads, words;
};
struct Block : nn::Module {
  Block(Module& parent, std::string_view name, const GptShape& s) : Module(parent, name), shape(s) {}
  GptShape shape;
  nn::LayerNorm norm1{*this, "norm1", {.shape = {shape.width}}};
  nn::Linear qkv{*this, "qkv", {.in = shape.width, .out = 3 * shape.width}};
  nn::Linear out{*this, "out", {.in = shape.width, .out = shape.width}};
  nn::LayerNorm norm2{*this, "norm2", {.shape = {shape.width}}};
  nn::Linear up{*this, "up", {.in = shape.width, .out = 4 * shape.width}};
  nn::Linear down{*this, "down", {.in = 4 * shape.width, .out = shape.width}};
  // x: the stream [B, T, width]; r: what the block before adds to it, undefined for the first. Gives the same of this
  // block: an addition and the norm that follows are one op.
  struct Stream {
    Tensor x, r;
  };
  Stream operator()(const Stream& in) const {
    const nn::Call call(*this, in.x, in.r);
    const auto [x, normed] = in.r.defined() ? norm1(in.x, in.r) : AddNorm{in.x, norm1(in.x)};
    const std::int64_t b = x.size(0), n = x.size(1);
    const Tensors parts =
        unbind(permute(view(qkv(normed), {b, n, 3, shape.heads, shape.width / shape.heads}), {2, 0, 3, 1, 4}));
    const Tensor seen = scaled_dot_product_attention(parts[0], parts[1], parts[2], {.causal = Causal::yes});
    const auto [y, wide] = norm2(x, out(reshape(permute(seen, {0, 2, 1, 3}), {b, n, shape.width})));
    const Stream made{y, gelu_mlp(wide, up.weight, up.bias, down.weight, down.bias, GeluForm::tanh)};
    call.gave(made.x, made.r);
    return made;
  }
};
struct Gpt : nn::Module {
  Gpt(nn::Options options, const GptShape& s) : Module(std::move(options)), shape(s) {
    for (std::int64_t i = 0; i < s.layers; ++i)
      blocks.push_back(std::make_unique<Block>(*this, "block" + std::to_string(i), s));
  }
  GptShape shape;
  nn::Embedding words{*this, "words", {.count = shape.words, .dim = shape.width}};
  std::vector<std::unique_ptr<Block>> blocks;
  nn::LayerNorm norm{*this, "norm", {.shape = {shape.width}}};
  Tensor operator()(const Tensor& tokens) const {  // [B, T] -> [B T, words]
    Block::Stream s{words(tokens), {}};
    for (const auto& b : blocks) s = (*b)(s);
    return matmul(view(norm(s.x, s.r).normed, {-1, shape.width}), t(words.weight));
  }
};

// Two layers of graph convolution directly on spmm, full batch, as Kipf & Welling (2017) have them for Cora: node
// features to 16 to 7 classes. The edges' weights stand for the normalised adjacency.
struct Gcn : nn::Module {
  Gcn(nn::Options options, std::int64_t features)
      : Module(std::move(options)), fc1(*this, "fc1", {.in = features, .out = 16}) {}
  nn::Linear fc1;
  nn::Linear fc2{*this, "fc2", {.in = 16, .out = 7}};
  Tensor operator()(const Csr& a, const Tensor& weight, const Tensor& x) const {
    return spmm(a, weight, fc2(relu(spmm(a, weight, fc1(x)))));
  }
};

}  // namespace levin::bench
