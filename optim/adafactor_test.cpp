// Adafactor against PyTorch's steps, its definition in f64, and itself on a device.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "levin/stream.h"
#include "optim/kinds_test.h"

namespace levin::optim {
namespace {

const Device cpu = Device::cpu();

const AdafactorOptions kPlain{.lr = 0.1};
const AdafactorOptions kAll{
    .lr = 0.05, .beta2_decay = -0.5, .eps1 = 1e-2, .eps2 = 1e-2, .d = 2, .weight_decay = 0.1, .maximize = true};

Tensor spaced(const Shape& shape) { return view(linspace(-1, 1, shape.numel(), cpu, DType::f64), Dims(shape.dims())); }

// Matrices, stacks of them and vectors: of one element, of several lines and blocks, and empty.
struct Parts : Stepped<Adafactor> {
  Parts(const AdafactorOptions& options, Device device, DType dtype) : Stepped(starts(device, dtype), options) {}
  static std::vector<Tensor> starts(Device device, DType dtype) {
    std::vector<Tensor> values;
    for (const Shape& shape : {Shape{3, 2}, Shape{2, 2, 3}, Shape{5}, Shape{1, 1}, Shape{}, Shape{150, 1100},
                               Shape{5000}, Shape{0, 4}, Shape{7, 5, 3, 3}})
      values.push_back(spaced(shape).to(dtype).to(device));
    values.push_back(spaced({4, 6, 3, 5}).contiguous(MemoryFormat::channels_last).to(dtype).to(device));
    return values;
  }
  [[nodiscard]] Tensor state(const std::string& key) const {
    for (const auto& [name, value] : optimizer->state_dict())
      if (name == key) return value;
    return {};
  }
};

// The definition, in f64.
struct Reference {
  Tensor p, row, column, whole;
  int t = 0;
  explicit Reference(const Tensor& start) : p(start.detach().to(cpu).to(DType::f64).clone()) {}
  static double rms(const Tensor& x) { return std::sqrt(sum(x * x).item() / double(x.numel())); }
  static Tensor at_least(const Tensor& x, double least) { return clamp(x, least, {}); }
  void step(const Tensor& gradient, const AdafactorOptions& o, double eps1) {
    const Tensor g = o.maximize ? -gradient : gradient;
    const double share = std::pow(++t, o.beta2_decay), rate = std::min(o.lr, 1 / std::sqrt(double(t)));
    const double alpha = std::max(o.eps2, rms(p)) * rate;
    Tensor v;
    const auto follow = [&](Tensor& state, const Tensor& now) {
      if (!state.defined()) state = zeros_like(now);
      state = state + (now - state) * share;
    };
    if (p.rank() < 2) {
      follow(whole, g * g);
      v = whole;
    } else {
      follow(row, mean(g * g, {-1}, KeepDim::yes));
      follow(column, mean(g * g, {-2}, KeepDim::yes));
      v = row * column / at_least(mean(row, {-2}, KeepDim::yes), eps1);
    }
    const Tensor u = g / sqrt(at_least(v, eps1 * eps1));
    p = p * (1 - o.lr * o.weight_decay) - u * (alpha / std::max(1.0, rms(u) / o.d));
  }
};

}  // namespace

TEST_CASE("four steps of Adafactor give PyTorch's parameters and state") {
  // torch 2.13, f64: p from -1 to 1 in equal steps, p.grad[i] = sin(i + 1.5 t) at step t = 0..3.
  Parts plain(kPlain, cpu, DType::f64), other(kAll, cpu, DType::f64);
  for (int t = 0; t < 4; ++t) plain.step(t), other.step(t);
  const auto values = [](const Tensor& t) { return t.detach().to_vector<double>(); };
  const auto near = [&](const Tensor& got, const std::vector<double>& want) { check_close(values(got), want, 1e-11); };
  near(plain.values[0],
       {-1.018402407403, -0.595329216555, -0.178861323582, 0.220216736347, 0.58604339334, 0.958083327563});
  near(plain.state("p0.row_var"), {0.533498210928, 0.483546545939, 0.488011179648});
  near(plain.state("p0.col_var"), {0.506479341, 0.496891283343});
  CHECK(plain.state("p0.row_var").shape() == Shape{3, 1});
  CHECK(plain.state("p0.col_var").shape() == Shape{1, 2});
  CHECK_FALSE(plain.state("p0.variance").defined());
  near(plain.values[1],
       {-1.015005543862, -0.803824221937, -0.60319542729, -0.511110658763, -0.282790502451, -0.123256177622,
        0.094223064378, 0.267881835587, 0.488661603165, 0.62389233423, 0.825815282511, 0.968074203503});
  near(plain.values[2], {-1.015672820007, -0.476539748508, 0.039683041539, 0.464842772992, 0.985053534355});
  near(plain.state("p2.variance"), {0.544698087724, 0.522298334132, 0.436743149857, 0.530349942021, 0.537996785419});
  near(other.values[0],
       {-0.972938483579, -0.583642618902, -0.196419886716, 0.189795876057, 0.588217201265, 0.992088723295});
  near(other.values[1],
       {-0.973843122744, -0.805120406622, -0.636742030834, -0.416089722315, -0.266029890125, -0.076989699222,
        0.084732031456, 0.271905168149, 0.43251727366, 0.633160307082, 0.796336442989, 0.99146608448});
  near(other.state("p1.col_var"),
       {0.619347382345, 0.532403288317, 0.353683565801, 0.55228296832, 0.605727241846, 0.359720917218});
  near(other.values[2], {-0.971815719546, -0.491962938386, -0.012647413095, 0.508367162712, 0.978827969818});
}

TEST_CASE("a step of Adafactor is its definition in every dtype, shape and memory format") {
  for (const auto& [dtype, eps, tolerance] :
       {std::tuple{DType::f64, 0x1p-52, 1e-12}, std::tuple{DType::f32, 0x1p-23, 2e-6},
        std::tuple{DType::f16, 0x1p-10, 2e-3}, std::tuple{DType::bf16, 0x1p-7, 2e-2}}) {
    CAPTURE(text(dtype));
    for (const AdafactorOptions& options : {kPlain, kAll}) {
      Parts m(options, cpu, dtype);
      std::vector<Reference> want;
      for (const Tensor& v : m.values) want.emplace_back(v);
      for (int t = 0; t < 3; ++t) {
        m.step(t);
        for (std::size_t k = 0; k < want.size(); ++k) {
          if (m.values[k].numel() > 0)
            want[k].step(m.values[k].grad().to(DType::f64), options, options.eps1.value_or(eps));
        }
      }
      for (std::size_t k = 0; k < want.size(); ++k) {
        CAPTURE(k);
        check_close(m.values[k].to(DType::f64).to_vector<double>(), want[k].p.to_vector<double>(), tolerance);
      }
    }
  }
}

TEST_CASE("Adafactor's state has the size of a row and a column, as planned") {
  Tensor p = ones({300, 200}, cpu).requires_grad_(), bias = ones({200}, cpu).requires_grad_();
  Adafactor o({{.value = &p, .name = "p"}, {.value = &bias, .name = "bias"}});
  std::size_t planned = 0, made = 0;
  for (const Tensor& t : o.planned_state()) planned += std::size_t(t.numel()) * 4;
  for (Tensor* t : {&p, &bias}) set_gradient(*t, 0);
  o.step();
  for (const std::size_t bytes : o.state_sizes()) made += bytes;
  CHECK(planned == (300 + 200 + 200) * 4);
  CHECK(made == planned);
}

TEST_CASE("Adafactor resumes bit for bit, with masters too, and the same for any number of threads") {
  for (const bool masters : {false, true}) {
    const DType dtype = masters ? DType::bf16 : DType::f32;
    Parts whole(kAll, cpu, dtype), part(kAll, cpu, dtype);
    for (Parts* m : {&whole, &part}) {
      if (masters) m->optimizer->use_master_weights();
    }
    for (int t = 0; t < 2; ++t) whole.step(t);
    for (std::size_t k = 0; k < whole.values.size(); ++k) {
      copy_(part.values[k].requires_grad_(false), whole.values[k].detach());
      part.values[k].requires_grad_();
    }
    part.optimizer->load_state_dict(whole.optimizer->state_dict());
    whole.step(2);
    const int threads = num_threads();
    set_num_threads(3);
    part.step(2);
    set_num_threads(threads);
    CHECK(whole.all() == part.all());
    CHECK(same_state(whole.optimizer->state_dict(), part.optimizer->state_dict()));
  }
  // A state of another shape is refused, and nothing changes.
  Parts m(kPlain, cpu, DType::f32);
  m.step(0);
  NamedTensors state = m.optimizer->state_dict();
  for (auto& [name, value] : state)
    if (name == "p0.row_var") value = ones({3}, cpu);
  CHECK_THROWS_WITH_AS(m.optimizer->load_state_dict(state), doctest::Contains("p0.row_var is f32 [3]"), ConfigError);
}

TEST_CASE("Adafactor on a device makes the cpu's steps, skips where an overflow was found, and is recorded") {
  DEVICE_OR_SKIP();
  for (const auto& [dtype, tolerance] :
       {std::pair{DType::f64, 1e-12}, std::pair{DType::f32, 2e-6}, std::pair{DType::f16, 2e-3}, {DType::bf16, 2e-2}}) {
    CAPTURE(text(dtype));
    for (const AdafactorOptions& options : {kPlain, kAll}) {
      Parts here(options, cpu, dtype), there(options, device, dtype);
      for (int t = 0; t < 3; ++t) here.step(t), there.step(t);
      check_close(there.all(), here.all(), tolerance);
      if (dtype == DType::f64) {
        const NamedTensors a = here.optimizer->state_dict(), b = there.optimizer->state_dict();
        REQUIRE(a.size() == b.size());
        for (std::size_t k = 0; k < a.size(); ++k) {
          CAPTURE(a[k].first);
          CHECK(a[k].first == b[k].first);
          check_close(b[k].second.to(cpu).to(DType::f64).to_vector<double>(),
                      a[k].second.to(DType::f64).to_vector<double>(), 1e-12);
        }
      }
    }
  }
  Parts eager(kAll, device, DType::f32), replayed(kAll, device, DType::f32);
  for (Parts* m : {&eager, &replayed}) m->step(0);
  const auto before = replayed.all();
  const NamedTensors state = replayed.optimizer->state_dict();
  replayed.optimizer->step_unless(ones({1}, device));
  CHECK(replayed.all() == before);
  CHECK(same_state(replayed.optimizer->state_dict(), state));
  Graph graph(Stream::current(device), [&] { replayed.optimizer->step(); });
  for (int t = 1; t < 3; ++t) {
    for (Parts* m : {&eager, &replayed}) m->optimizer->set_lr(0, 0.1 / t);
    eager.optimizer->step();
    replayed.optimizer->prepare_replay();
    graph.replay();
  }
  CHECK(eager.all() == replayed.all());
  CHECK(same_state(eager.optimizer->state_dict(), replayed.optimizer->state_dict()));
}

TEST_CASE("Adafactor with stochastic rounding has the same bits on the cpu twice, and other bits than with nearest") {
  AdafactorOptions options = kPlain;
  Parts nearest(options, cpu, DType::bf16);
  options.rounding = Rounding::stochastic;
  Parts once(options, cpu, DType::bf16), again(options, cpu, DType::bf16);
  for (Parts* m : {&nearest, &once, &again}) m->step(0);
  CHECK(once.all() == again.all());
  CHECK(once.all() != nearest.all());
}

TEST_CASE("Adafactor refuses wrong numbers and a shared update") {
  Tensor p = ones({2, 3}, cpu).requires_grad_();
  const Parameters matrix{{.value = &p, .name = "p"}};
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  for (const AdafactorOptions& bad :
       {AdafactorOptions{.lr = -1}, AdafactorOptions{.beta2_decay = 0.1}, AdafactorOptions{.beta2_decay = nan},
        AdafactorOptions{.beta2_decay = -inf}, AdafactorOptions{.eps1 = -1}, AdafactorOptions{.eps2 = nan},
        AdafactorOptions{.d = 0.5}, AdafactorOptions{.d = inf}, AdafactorOptions{.weight_decay = -1}})
    CHECK_THROWS_AS(Adafactor(matrix, bad), ConfigError);
  Adafactor o(matrix);
  CHECK_FALSE(o.elementwise());
  CHECK_FALSE(o.momentum(0));
  CHECK_THROWS_AS(o.use_pieces([](const ParamRef&) { return Optimizer::Piece{}; }), ConfigError);
}

}  // namespace levin::optim
