#include "nn/channels_last_test.h"

#include <functional>
#include <map>
#include <optional>

#include "levin/extend.h"
#include "levin/stream.h"
#include "tensor/device/launch_ledger.h"
#include "tests/device.h"

#if defined(LEVIN_SIMT)
#include "kernels/simt/run.h"
#endif

namespace levin::testing {
namespace {

Tensor last_leaf(const Shape& shape, Device device, DType dtype, std::uint64_t seed) {
  Generator gen(seed);
  Tensor t = randn(shape, gen, Device::cpu()).to(dtype).to(device).contiguous(kLast).detach();
  t.requires_grad_();
  return t;
}
Tensor contiguous_leaf(const Tensor& t) {
  Tensor own = t.detach().contiguous();
  own.requires_grad_();
  return own;
}

}  // namespace

TEST_CASE("a convolution of channels-last images on a device has the values and gradients of contiguous ones") {
  DEVICE_OR_SKIP();
  struct Case {
    Shape x, w;
    ConvOptions o;
  };
  // Chunks of channels, channels that fill no chunk, groups, 1 x 1 kernels, strides, dilation, long sums of few tiles.
  for (const Case& c :
       {Case{{2, 16, 9, 7}, {24, 16, 3, 3}, {.padding = {1, 1}}},
        Case{{2, 16, 9, 8}, {40, 16, 3, 3}, {.stride = {2, 2}, .padding = {1, 1}}},
        Case{{1, 6, 8, 7}, {5, 6, 3, 2}, {.dilation = {2, 1}}},
        Case{{2, 32, 5, 6}, {16, 16, 3, 3}, {.padding = {1, 1}, .groups = 2}}, Case{{2, 16, 5, 6}, {8, 16, 1, 1}, {}},
        Case{{2, 32, 6, 6}, {16, 16, 1, 1}, {.stride = {2, 2}, .groups = 2}},
        Case{{2, 12, 4, 4}, {9, 4, 1, 1}, {.groups = 3}}, Case{{1, 64, 4, 4}, {8, 64, 3, 3}, {.padding = {1, 1}}}}) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      CAPTURE(text(c.x));
      CAPTURE(text(c.w));
      CAPTURE(text(dtype));
      Tensor x = last_leaf(c.x, device, dtype, 1), w = last_leaf(c.w, device, dtype, 2);
      Generator gen(3);
      Tensor b = randn({c.w[0]}, gen, Device::cpu()).to(dtype).to(device);
      b = b.detach();
      b.requires_grad_();
      Tensor cx = contiguous_leaf(x), cw = contiguous_leaf(w), cb = contiguous_leaf(b);
      const Tensor y = conv2d(x, w, b, c.o), want = conv2d(cx, cw, cb, c.o);
      CHECK(y.is_contiguous(kLast));
      check_near(y, want, 64);
      const Tensor seed = randn(y.shape(), gen, Device::cpu()).to(dtype).to(device);
      const Tensors got = grad(std::array{y}, std::array{x, w, b}, std::array{seed}),
                    of_contiguous = grad(std::array{want}, std::array{cx, cw, cb}, std::array{seed});
      for (std::size_t k = 0; k < 3; ++k) {
        CAPTURE(k);
        if (k < 2) CHECK(got[k].is_contiguous(kLast));
        check_near(got[k], of_contiguous[k], 128);
      }
    }
  }
}

TEST_CASE("pooling of channels-last images on a device and on the cpu has the bits of contiguous ones") {
  const std::vector<Device> devices = test::all_devices();
  for (const Device device : devices) {
    for (const std::int64_t channels : {16, 5}) {
      for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
        CAPTURE(text(device));
        CAPTURE(channels);
        CAPTURE(text(dtype));
        Tensor x = last_leaf({2, channels, 9, 7}, device, dtype, 1), cx = contiguous_leaf(x);
        const PoolOptions o{.kernel = {3, 2}, .stride = {{2, 1}}, .padding = {1, 1}, .ceil_mode = true};
        const PoolOptions gaps{.kernel = {3, 2}, .stride = {{2, 1}}, .padding = {1, 1}, .dilation = {3, 2}};
        using Pool = std::function<Tensor(const Tensor&)>;
        for (const Pool& pool : {Pool([&](const Tensor& t) { return max_pool2d(t, o); }),
                                 Pool([&](const Tensor& t) { return max_pool2d(t, gaps); }),
                                 Pool([&](const Tensor& t) { return avg_pool2d(t, o); }), Pool([&](const Tensor& t) {
                                   return adaptive_avg_pool2d(t, {4, 3});
                                 }),
                                 Pool([&](const Tensor& t) {
                                   return adaptive_max_pool2d(t, {4, 3});
                                 })}) {
          const Tensor y = pool(x), want = pool(cx);
          CHECK(y.suggest_memory_format() == kLast);
          CHECK(doubles(y) == doubles(want));
          CHECK(doubles(pool(x.detach())) == doubles(want));  // without places of maxima
          Generator gen(2);
          Tensor seed = randn(y.shape(), gen, Device::cpu()).to(dtype).to(device);
          seed = seed.detach();
          seed.requires_grad_();
          const GradOptions recorded{.create_graph = true};
          const Tensors got = grad(std::array{y}, std::array{x}, std::array{seed}, recorded),
                        of_contiguous = grad(std::array{want}, std::array{cx}, std::array{seed}, recorded);
          CHECK(got[0].suggest_memory_format() == kLast);
          CHECK(doubles(got[0]) == doubles(of_contiguous[0]));
          const Tensors second = grad(std::array{got[0]}, std::array{seed}, std::array{x.detach()}),
                        want_second = grad(std::array{of_contiguous[0]}, std::array{seed}, std::array{cx.detach()});
          CHECK(doubles(second[0]) == doubles(want_second[0]));
        }
      }
    }
  }
}

TEST_CASE("batch norm of channels-last images on a device has the values and gradients of contiguous ones") {
  DEVICE_OR_SKIP();
  // Chunks of channels, channels that fill no chunk, several columns of blocks, and several parts of each.
  for (const Shape& shape : {Shape{3, 16, 9, 11}, Shape{2, 24, 5, 5}, Shape{2, 7, 6, 5}, Shape{1, 300, 3, 2},
                             Shape{2, 3, 40, 30}, Shape{2, 72, 24, 20}}) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      for (const bool fused : {false, true}) {
        CAPTURE(text(shape));
        CAPTURE(text(dtype));
        CAPTURE(fused);
        const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
        const auto run = [&](const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& r) {
          const RunningStatistics running{zeros({shape[1]}, device, wide), ones({shape[1]}, device, wide),
                                          zeros({}, device, DType::i64)};
          return fused ? batch_norm_relu_train(x, w, b, running, r) : batch_norm_train(x, w, b, running);
        };
        const Tensor x = last_leaf(shape, device, dtype, 1), r = last_leaf(shape, device, dtype, 2),
                     cx = contiguous_leaf(x), cr = contiguous_leaf(r);
        Generator gen(3);
        const auto row = [&] {
          Tensor t = randn({shape[1]}, gen, Device::cpu()).to(wide).to(device).detach();
          t.requires_grad_();
          return t;
        };
        const Tensor w = row(), b = row();
        const Tensor y = run(x, w, b, r), want = run(cx, w, b, cr);
        CHECK(y.suggest_memory_format() == kLast);
        check_near(y, want, 16);
        const Tensor seed = randn(y.shape(), gen, Device::cpu()).to(dtype).to(device);
        const GradOptions unused{.allow_unused = true};
        const Tensors got = grad(std::array{y}, std::array{x, w, b, r}, std::array{seed}, unused),
                      of_contiguous = grad(std::array{want}, std::array{cx, w, b, cr}, std::array{seed}, unused);
        CHECK(got[0].suggest_memory_format() == kLast);
        for (std::size_t k = 0; k < got.size(); ++k) {
          CAPTURE(k);
          REQUIRE(got[k].defined() == of_contiguous[k].defined());
          if (got[k].defined()) check_near(got[k], of_contiguous[k], 256);
        }
      }
    }
  }
}

TEST_CASE("a channels-last network on a device keeps the format, with the values of the cpu, also under autocast") {
  DEVICE_OR_SKIP();
  for (const bool half : {false, true}) {
    CAPTURE(half);
    Generator gen(1);
    LastNet net({.gen = gen, .device = Device::cpu()});
    const auto step = [&](const Tensor& x) {
      std::optional<Autocast> on;
      if (half) on.emplace(DType::bf16);
      const Tensor features = net.features(x);
      CHECK(features.suggest_memory_format() == x.suggest_memory_format());
      const Tensor y = net.fc(mean(features, {2, 3}));
      on.reset();
      backward(cross_entropy(y.to(DType::f32), classes(x.device())));
      return y;
    };
    const Tensor want = step(images(Device::cpu()));
    std::vector<Tensor> gradients;
    for (const ParamRef& p : net.parameters()) gradients.push_back(p.value->grad());
    net.zero_grad();
    net.to(device);
    net.to(kLast);
    CHECK(net.conv.weight.suggest_memory_format() == kLast);
    const Tensor got = step(images(device).contiguous(kLast));
    check_near(got, want, half ? 16 : 256);
    std::size_t k = 0;
    for (const ParamRef& p : net.parameters()) {
      CAPTURE(p.name);
      CHECK(p.value->grad().is_contiguous(p.value->suggest_memory_format()));
      if (!half) check_near(p.value->grad(), gradients[k++], 4096);
    }
    net.to(Device::cpu());
    CHECK(net.conv.weight.suggest_memory_format() == kLast);
  }
}

TEST_CASE("a recorded step of a channels-last network replays an eager one's bits on a device") {
  DEVICE_OR_SKIP();
  std::vector<std::vector<double>> ends[2];
  for (const bool recorded : {false, true}) {
    Generator gen(1);
    LastNet net({.gen = gen, .device = device});
    net.to(kLast);
    optim::SGD opt(net.parameters(), {.lr = 0.1, .momentum = 0.9});
    const Tensor x = images(device).contiguous(kLast), y = classes(device);
    const auto step = [&] {
      const Tensor loss = cross_entropy(net(x), y);
      opt.zero_grad();
      backward(loss);
      opt.step();
    };
    for (int i = 0; i < 2; ++i) step();
    if (recorded) {
      Graph graph(Stream::current(device), step);
      for (int i = 0; i < 2; ++i) {
        opt.prepare_replay();
        graph.replay();
      }
    } else {
      for (int i = 0; i < 2; ++i) step();
    }
    for (const auto& [name, value] : net.state_dict()) ends[recorded ? 1 : 0].push_back(doubles(value));
  }
  REQUIRE(ends[0].size() == ends[1].size());
  for (std::size_t i = 0; i < ends[0].size(); ++i) CHECK(ends[0][i] == ends[1][i]);
}

#if defined(LEVIN_SIMT)
namespace {
struct Ledger : detail::LaunchLedger {
  Ledger() { detail::mode().detour = true; }
};
}  // namespace

TEST_CASE("a step of a channels-last network on simt makes no copy: each op has its own launches alone") {
  const Device device = Device::simt();
  for (const bool half : {false, true}) {
    CAPTURE(half);
    Generator gen(1);
    LastNet net({.gen = gen, .device = device});
    net.to(kLast);
    optim::SGD opt(net.parameters(), {.lr = 0.1, .momentum = 0.9});
    const Tensor x = images(device).contiguous(kLast), y = classes(device);
    CastPlan plan;
    const auto step = [&] {
      std::optional<Autocast> on;
      if (half) on.emplace(DType::bf16, plan);
      const Tensor loss = cross_entropy(net(x), y);
      on.reset();
      opt.zero_grad();
      backward(loss);
      opt.step();
    };
    step();
    Ledger ledger;
    step();
    std::map<std::string, std::size_t> most{{"conv2d", 1},
                                            {"conv2d_input_gradient", 2},  // the second adds parts of long sums
                                            {"conv2d_weight_gradient", 2},
                                            {"batch_norm", 2},
                                            {"batch_norm_relu", 2},
                                            {"batch_norm_backward", 2},
                                            {"max_pool2d", 1},
                                            {"max_pool2d_backward", 1},
                                            {"avg_pool2d", 1},
                                            {"avg_pool2d_backward", 2},  // the first expands the mean's gradient
                                            {"relu", 1},
                                            {"relu_backward", 1},
                                            {"add", 1}};
    std::size_t seen = 0;
    for (const auto& call : ledger.take()) {
      CAPTURE(call.op);
      CHECK(call.op != "clone");
      CHECK(call.op != "copy_");
      for (const auto& launch : call.launches) CHECK(launch.place.find("transpose") == std::string::npos);
      const auto found = most.find(call.op);
      if (found == most.end()) continue;
      ++seen;
      CHECK(call.launches.size() <= found->second);
    }
    CHECK(seen == 39);
  }
}

TEST_CASE("no order in which threads run on simt changes a bit of a channels-last step") {
  const Device device = Device::simt();
  std::vector<std::vector<double>> want;
  for (const simt::Schedule schedule : simt::kSchedules) {
    CAPTURE(simt::name(schedule));
    simt::set_schedule(schedule, 11);
    Generator gen(1);
    LastNet net({.gen = gen, .device = device});
    net.to(kLast);
    Tensor x = images(device).contiguous(kLast).detach();
    x.requires_grad_();
    backward(cross_entropy(net(x), classes(device)));
    const Tensor wide = last_leaf({2, 72, 24, 20}, device, DType::bf16, 5);
    const BatchNormResult norm = batch_norm_train(wide, {}, {});
    const Tensors of_norm = grad(std::array{norm.y}, std::array{wide}, std::array{wide.detach()});
    simt::set_schedule(simt::Schedule::ascending);
    std::vector<std::vector<double>> got{doubles(x.grad()), doubles(norm.y), doubles(norm.var), doubles(of_norm[0])};
    for (const ParamRef& p : net.parameters()) got.push_back(doubles(p.value->grad()));
    if (want.empty()) want = got;
    CHECK(got == want);
  }
}
#endif

}  // namespace levin::testing
