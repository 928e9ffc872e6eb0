#include "nn/channels_last_test.h"

#include <filesystem>

#include "levin/serialize.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();

}  // namespace

TEST_CASE("a module in channels-last memory lays out 4-d weights and their gradients, and keeps values and names") {
  Generator gen(1);
  LastNet net({.gen = gen, .device = cpu});
  backward(cross_entropy(net(images(cpu)), classes(cpu)));
  const auto before = net.state_dict();
  std::vector<std::vector<double>> values, gradients;
  for (const auto& [name, value] : before) values.push_back(doubles(value));
  for (const ParamRef& p : net.parameters()) gradients.push_back(doubles(p.value->grad()));
  net.to(kLast);
  const auto after = net.state_dict();
  REQUIRE(after.size() == before.size());
  for (std::size_t i = 0; i < after.size(); ++i) {
    CAPTURE(after[i].first);
    CHECK(after[i].first == before[i].first);
    CHECK(doubles(after[i].second) == values[i]);
    CHECK(after[i].second.is_contiguous(after[i].second.rank() == 4 ? kLast : MemoryFormat::contiguous));
  }
  CHECK_FALSE(net.conv.weight.is_contiguous());
  std::size_t k = 0;
  for (const ParamRef& p : net.parameters()) {
    CAPTURE(p.name);
    CHECK(doubles(p.value->grad()) == gradients[k++]);
    CHECK(p.value->grad().strides().steps == p.value->strides().steps);
  }
  net.to(MemoryFormat::contiguous);
  CHECK(net.conv.weight.is_contiguous());
  CHECK(doubles(net.conv.weight) == doubles(before[0].second));
}

TEST_CASE("a network in channels-last memory keeps it forward and backward, with the values of contiguous memory") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    CAPTURE(text(dtype));
    Generator gen(1);
    LastNet net({.gen = gen, .device = cpu, .dtype = dtype});
    Tensor x = images(cpu, dtype);
    x.requires_grad_();
    const Tensor want = net(x);
    backward(cross_entropy(want, classes(cpu)));
    const Tensor want_gx = x.grad();
    std::vector<Tensor> want_gw;
    for (const ParamRef& p : net.parameters()) want_gw.push_back(p.value->grad());
    net.zero_grad();
    net.to(kLast);
    Tensor last = x.detach().contiguous(kLast);
    last.requires_grad_();
    const Tensor features = net.features(last);
    CHECK(features.suggest_memory_format() == kLast);
    const Tensor got = net.fc(mean(features, {2, 3}));
    backward(cross_entropy(got, classes(cpu)));
    CHECK(last.grad().suggest_memory_format() == kLast);
    check_near(got, want, 64);
    check_near(last.grad(), want_gx, 512);
    std::size_t k = 0;
    for (const ParamRef& p : net.parameters()) {
      CAPTURE(p.name);
      CHECK(p.value->grad().is_contiguous(p.value->suggest_memory_format()));
      check_near(p.value->grad(), want_gw[k++], 512);
    }
  }
}

TEST_CASE("a convolution gives channels-last memory where its image or its weight lies so, and nowhere else") {
  Generator gen(1);
  const Tensor x = randn({2, 3, 5, 4}, gen, cpu), w = randn({6, 3, 3, 3}, gen, cpu), b = randn({6}, gen, cpu);
  const Tensor want = conv2d(x, w, b, {.padding = {1, 1}});
  CHECK(want.is_contiguous());
  for (const auto& [image, weight] : {std::pair(kLast, MemoryFormat::contiguous), std::pair(kLast, kLast),
                                      std::pair(MemoryFormat::contiguous, kLast)}) {
    Tensor own = w.contiguous(weight).detach();
    own.requires_grad_();
    const Tensor y = conv2d(x.contiguous(image), own, b, {.padding = {1, 1}});
    CHECK(y.suggest_memory_format() == kLast);
    CHECK(doubles(y) == doubles(want));
    backward(sum(y * y));
    CHECK(own.grad().suggest_memory_format() == weight);  // gradients lie as their weight
  }
}

TEST_CASE("pointwise ops, casts and dropout keep channels-last memory; other ops have the values of contiguous") {
  Generator gen(1);
  const Tensor a = randn({2, 3, 4, 5}, gen, cpu), b = randn({2, 3, 4, 5}, gen, cpu), c = randn({3, 1, 1}, gen, cpu);
  const Tensor la = a.contiguous(kLast), lb = b.contiguous(kLast);
  const auto keeps = [](const Tensor& got, const Tensor& want) {
    CHECK(got.suggest_memory_format() == kLast);
    CHECK(doubles(got) == doubles(want));
  };
  keeps(la + lb, a + b);
  keeps(la * c, a * c);
  keeps(c * la, c * a);
  keeps(2 - la, 2 - a);
  keeps(relu(la), relu(a));
  keeps(gelu(la), gelu(a));
  keeps(gt(la, lb), gt(a, b));
  keeps(where(gt(la, lb), la, lb), where(gt(a, b), a, b));
  keeps(masked_fill(la, gt(lb, 0), 1), masked_fill(a, gt(b, 0), 1));
  keeps(la.to(DType::bf16), a.to(DType::bf16));
  keeps(la.to(DType::f64), a.to(DType::f64));
  keeps(la + b, a + b);
  CHECK((a + lb).is_contiguous());
  keeps(la.clone(), a);
  keeps(zeros_like(la), zeros_like(a));
  keeps(cat({la, lb}, 1), cat({a, b}, 1));
  keeps(cat({la, lb}, 3), cat({a, b}, 3));
  CHECK(cat({la, b}, 1).is_contiguous());
  const Tensor mask = narrow(a, 1, 0, 1).contiguous();  // one channel: contiguous and channels-last
  keeps(cat({mask, la}, 1), cat({mask, a}, 1));
  keeps(expand(c, a.shape()) + la, c + a);  // an expanded operand lies in no format
  // Ops that do not keep it have the values of contiguous memory.
  const auto equals = [](const Tensor& got, const Tensor& want) { CHECK(doubles(got) == doubles(want)); };
  equals(flatten(la, 1), flatten(a, 1));
  equals(reshape(la, {6, 20}), reshape(a, {6, 20}));
  equals(softmax(la, 1), softmax(a, 1));
  equals(pad(la, {1, 2, 0, 1}), pad(a, {1, 2, 0, 1}));
  equals(flip(la, {1, 3}), flip(a, {1, 3}));
  equals(cumsum(la, 2), cumsum(a, 2));
  equals(amax(la, {1}), amax(a, {1}));
  equals(narrow(la, 1, 1, 2) + narrow(lb, 1, 0, 2), narrow(a, 1, 1, 2) + narrow(b, 1, 0, 2));
  Tensor drawn = la.detach();
  drawn.requires_grad_();
  const Tensor dropped = dropout(drawn, 0.5, gen);
  CHECK(dropped.suggest_memory_format() == kLast);
  backward(sum(dropped));
  const auto y = doubles(dropped), x = doubles(la), g = doubles(drawn.grad());
  for (std::size_t i = 0; i < y.size(); ++i) CHECK(y[i] == doctest::Approx(x[i] * g[i]));  // the mask of forward
  Tensor in_place = la.clone();
  add_(in_place, b);
  keeps(in_place, a + b);
}

TEST_CASE("an image of one channel or one pixel counts as contiguous, and 3 dimensions have no channels-last memory") {
  for (const Shape& s : {Shape{2, 1, 4, 5}, Shape{2, 3, 1, 1}, Shape{1, 1, 1, 1}}) {
    CAPTURE(text(s));
    const Tensor t = zeros(s, cpu), last = empty(s, cpu, DType::f32, kLast);
    for (const Tensor& x : {t, last}) {
      CHECK(x.is_contiguous());
      CHECK(x.is_contiguous(kLast));
      CHECK(x.suggest_memory_format() == MemoryFormat::contiguous);
      CHECK(x.contiguous(kLast).impl() == x.impl());
    }
  }
  CHECK_FALSE(zeros({2, 3, 4}, cpu).is_contiguous(kLast));
  CHECK_FALSE(zeros({2, 3, 4, 5}, cpu).is_contiguous(kLast));
  CHECK_THROWS_WITH_AS((void)zeros({2, 3, 4}, cpu).contiguous(kLast), doctest::Contains("[2, 3, 4]"), ShapeError);
  CHECK_THROWS_WITH_AS((void)empty({2, 3, 4}, cpu, DType::f32, kLast), doctest::Contains("[2, 3, 4]"), ShapeError);
  const Tensor none = empty({2, 0, 4, 5}, cpu, DType::f32, kLast);
  CHECK(conv2d(none, zeros({3, 0, 3, 3}, cpu)).shape() == Shape{2, 3, 2, 3});
}

TEST_CASE("states of channels-last modules are saved row by row and loaded into modules of both formats") {
  Generator gen(1), other(2);
  LastNet last({.gen = gen, .device = cpu}), plain({.gen = other, .device = cpu}), again({.gen = other, .device = cpu});
  const auto want = doubles(last.conv.weight);
  last.to(kLast);
  again.to(kLast);
  const auto path = std::filesystem::temp_directory_path() / "levin_channels_last_test.safetensors";
  save_safetensors(path.string(), last.state_dict());
  const NamedTensors read = load_safetensors(path.string()).tensors;
  std::filesystem::remove(path);
  for (LastNet* net : {&plain, &again}) {
    net->load_state_dict(read);
    CHECK(doubles(net->conv.weight) == want);
    CHECK(net->conv.weight.suggest_memory_format() == (net == &again ? kLast : MemoryFormat::contiguous));
  }
}

TEST_CASE("derivatives of channels-last images and weights agree with differences, to the second order") {
  Generator gen(3);
  const auto leaf = [&](const Shape& s, MemoryFormat format) {
    Tensor t = randn(s, gen, cpu, DType::f64).contiguous(format);
    t = t.detach();
    t.requires_grad_();
    return t;
  };
  const MemoryFormat row = MemoryFormat::contiguous;
  const Tensor x = leaf({2, 2, 4, 3}, kLast), w = leaf({3, 2, 2, 2}, kLast), scale = leaf({3}, row),
               shift = leaf({3}, row), more = leaf({2, 3, 3, 2}, kLast);
  const auto net = [](std::span<const Tensor> in) {
    const RunningStatistics running{zeros({3}, cpu, DType::f64), ones({3}, cpu, DType::f64),
                                    zeros({}, cpu, DType::i64)};
    const Tensor y = batch_norm_relu_train(conv2d(in[0], in[1]), in[2], in[3], running, in[4]);
    const Tensor n = batch_norm_train(max_pool2d(y, {.kernel = {2, 2}, .stride = {{1, 1}}}), in[2], in[3]).y;
    return Tensors{avg_pool2d(n * n, {.kernel = {2, 1}, .stride = {{1, 1}}})};
  };
  const std::vector<Tensor> inputs{x, w, scale, shift, more};
  const GradcheckResult first = gradcheck(net, inputs), second = gradgradcheck(net, inputs, gen);
  CHECK_MESSAGE(first.ok, first.message);
  CHECK_MESSAGE(second.ok, second.message);
}

TEST_CASE("optimizers update channels-last weights as contiguous ones, bit for bit, also with 16-bit weights") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    CAPTURE(text(dtype));
    std::vector<std::vector<double>> ends;
    for (const MemoryFormat format : {MemoryFormat::contiguous, kLast}) {
      Generator gen(4);
      Tensor w = randn({4, 3, 3, 2}, gen, cpu).to(dtype).contiguous(format).detach();
      w.requires_grad_();
      optim::AdamW opt({{&w, "w"}}, {.lr = 0.1});
      if (dtype == DType::bf16) opt.use_master_weights();
      NamedTensors state;
      for (int step = 0; step < 3; ++step) {
        w.set_grad(randn({4, 3, 3, 2}, gen, cpu).to(dtype));  // a gradient in the other format is laid out
        opt.step();
        if (step == 1) state = opt.state_dict();
        if (step == 1) opt.load_state_dict(state);
      }
      CHECK(w.suggest_memory_format() == format);
      ends.push_back(doubles(w));
      for (const auto& [name, value] : opt.state_dict()) ends.push_back(doubles(value));
    }
    const std::size_t half = ends.size() / 2;
    for (std::size_t i = 0; i < half; ++i) CHECK(ends[i] == ends[half + i]);
  }
}

TEST_CASE("batch norm with relu is the norm, the sum and relu, in training, evaluation and without statistics") {
  for (const MemoryFormat format : {MemoryFormat::contiguous, kLast}) {
    for (const bool tracks : {true, false}) {
      for (const bool adds : {true, false}) {
        CAPTURE(int(format));
        CAPTURE(tracks);
        CAPTURE(adds);
        Generator gen(5);
        nn::Sequential root({.gen = gen, .device = cpu});
        nn::BatchNorm2d fused(root, "fused", {.features = 3, .track_running_stats = tracks}),
            parts(root, "parts", {.features = 3, .track_running_stats = tracks});
        for (int step = 0; step < 3; ++step) {
          if (step == 2) root.eval();
          const auto leaf = [&] {
            Tensor t = randn({4, 3, 5, 6}, gen, cpu).contiguous(format).detach();
            t.requires_grad_();
            return t;
          };
          Tensor x = leaf(), r = leaf();
          const Tensor y = fused.relu(x, adds ? r : Tensor());
          const Tensor n = parts(x), want = relu(adds ? n + r : n);
          CHECK(y.suggest_memory_format() == format);
          check_near(y, want, 4);
          const Tensor seed = randn(y.shape(), gen, cpu);
          const std::vector<Tensor> in{x, r};
          const Tensors got = grad(std::array{y}, in, std::array{seed}, {.allow_unused = true});
          const Tensors of_parts = grad(std::array{want}, in, std::array{seed}, {.allow_unused = true});
          check_near(got[0], of_parts[0], 64);
          REQUIRE(got[1].defined() == adds);
          if (adds) check_near(got[1], of_parts[1], 2);
        }
        if (!tracks) continue;
        CHECK(doubles(fused.running_mean) == doubles(parts.running_mean));
        CHECK(doubles(fused.running_var) == doubles(parts.running_var));
        CHECK(fused.num_batches_tracked.item<std::int64_t>() == 2);
      }
    }
  }
}

}  // namespace levin::testing
