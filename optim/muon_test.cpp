// Muon against PyTorch's steps, its definition in f64, and itself on a device.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "levin/stream.h"
#include "optim/kinds_test.h"

namespace levin::optim {
namespace {

const Device cpu = Device::cpu();

// Matrices of several shapes, more than one block among them, and their optimizer.
struct Matrices : Stepped<Muon> {
  Matrices(const MuonOptions& options, Device device, DType dtype, const Shape& last = {0, 4})
      : Stepped(starts(device, dtype, last), options) {}
  static std::vector<Tensor> starts(Device device, DType dtype, const Shape& last) {
    std::vector<Tensor> values;
    for (const Shape& s : {Shape{3, 5}, Shape{6, 2}, Shape{1, 1}, Shape{70, 90}, last})
      values.push_back(view(linspace(-1, 1, s.numel(), cpu, DType::f64), {s[0], s[1]}).to(dtype).to(device));
    return values;
  }
};
void check_within(const std::vector<double>& got, const std::vector<double>& want, double tolerance) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    REQUIRE(std::abs(got[i] - want[i]) <= tolerance);
  }
}
// The definition, in f64.
struct Reference {
  Tensor p, b;
  explicit Reference(const Tensor& start) : p(start.detach().to(DType::f64).clone()), b(zeros_like(p)) {}
  void step(const Tensor& g, const MuonOptions& o) {
    b = b + (g - b) * (1 - o.momentum);
    Tensor x = o.nesterov ? g + (b - g) * o.momentum : b;
    x = x / std::max(norm(x).item(), o.eps);
    for (int i = 0; i < o.ns_steps; ++i) {
      const Tensor square = matmul(x, transpose(x, 0, 1));
      const Tensor mix = square * o.ns_coefficients[1] + matmul(square, square) * o.ns_coefficients[2];
      x = x * o.ns_coefficients[0] + matmul(mix, x);
    }
    const double rows = double(p.shape()[0]), columns = double(p.shape()[1]);
    const double scale = o.adjust_lr_fn == AdjustLr::original ? std::sqrt(std::max(1.0, rows / columns))
                                                              : 0.2 * std::sqrt(std::max(rows, columns));
    p = p * (1 - o.lr * o.weight_decay) - x * (o.lr * scale);
  }
};

}  // namespace

TEST_CASE("five steps of Muon give PyTorch's parameters, but for steps of bf16") {
  // torch 2.13, f32, lr 0.1: p from -1 to 1 in equal steps, p.grad[i] = sin(i + 1.5 t) at step t = 0..4.
  Matrices m({.lr = 0.1}, cpu, DType::f32);
  for (int t = 0; t < 5; ++t) m.step(t);
  const std::vector<double> wide{-0.999659, -0.917335, -0.731037, -0.543538, -0.393004, -0.202079, -0.122739, -0.061983,
                                 0.083270,  0.298119,  0.435598,  0.566725,  0.686604,  0.753980,  0.840871},
      tall{-0.942260, -0.899952, -0.710330, -0.362653, -0.179958, -0.022862,
           0.127366,  0.136683,  0.319922,  0.644728,  0.830349,  1.043064};
  // A step of bf16 of O, 1 part in 256, in each of five steps of length 0.1 or 0.1 sqrt(3).
  check_within(m.values[0].to(DType::f64).to_vector<double>(), wide, 0.01);
  check_within(m.values[1].to(DType::f64).to_vector<double>(), tall, 0.01);
}

TEST_CASE("a step of Muon is its definition in every dtype, with each option, to the digits of bf16") {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    for (const MuonOptions& options :
         {MuonOptions{.lr = 0.1}, MuonOptions{.lr = 0.1, .weight_decay = 0, .momentum = 0.5, .nesterov = false},
          MuonOptions{.lr = 0.1, .ns_steps = 3, .adjust_lr_fn = AdjustLr::match_rms_adamw}}) {
      CAPTURE(text(dtype));
      Generator gen(7);
      Matrices m(options, cpu, dtype);
      std::vector<Reference> want;
      for (const Tensor& v : m.values) want.emplace_back(v);
      for (int t = 0; t < 2; ++t) {
        // Of full rank: directions without a gradient are the rounding of bf16, which the steps blow up.
        for (std::size_t k = 0; k < m.values.size(); ++k) {
          m.values[k].set_grad(randn(m.values[k].shape(), gen, cpu, DType::f64).to(dtype));
          if (k < 4) want[k].step(m.values[k].grad().to(DType::f64), options);
        }
        m.optimizer->step();
      }
      for (std::size_t k = 0; k < 4; ++k) {
        CAPTURE(k);
        // Steps have a length of 0.1 to 0.2; the longest matrix of match_rms_adamw moves by 0.19 times its O.
        check_within(m.values[k].to(DType::f64).to_vector<double>(), want[k].p.to_vector<double>(),
                     dtype == DType::bf16 ? 0.02 : 0.01);
      }
    }
  }
}

TEST_CASE("Muon resumes bit for bit, with masters too, and the same for any number of threads") {
  for (const bool masters : {false, true}) {
    const DType dtype = masters ? DType::bf16 : DType::f32;
    const Shape chunks{130, 140};  // more than one chunk of a sum
    Matrices whole({.lr = 0.1}, cpu, dtype, chunks), part({.lr = 0.1}, cpu, dtype, chunks);
    for (Matrices* m : {&whole, &part}) {
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
  std::vector<std::string> names;
  Matrices m({}, cpu, DType::f32);
  m.step(0);
  for (const auto& [name, value] : m.optimizer->state_dict()) names.push_back(name);
  CHECK(std::find(names.begin(), names.end(), "p0.momentum_buffer") != names.end());
}

TEST_CASE("Muon on a device makes the cpu's steps, skips where an overflow was found, and is recorded") {
  DEVICE_OR_SKIP();
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    CAPTURE(text(dtype));
    Matrices here({.lr = 0.1}, cpu, dtype), there({.lr = 0.1}, device, dtype);
    for (int t = 0; t < 2; ++t) here.step(t), there.step(t);
    check_within(there.all(), here.all(), dtype == DType::bf16 ? 0.03 : 0.015);
  }
  Matrices eager({.lr = 0.1}, device, DType::f32), replayed({.lr = 0.1}, device, DType::f32);
  for (Matrices* m : {&eager, &replayed}) m->step(0);
  const auto before = replayed.all();
  replayed.optimizer->step_unless(ones({1}, device));
  CHECK(replayed.all() == before);
  Graph graph(Stream::current(device), [&] { replayed.optimizer->step(); });
  for (int t = 1; t < 3; ++t) {
    for (Matrices* m : {&eager, &replayed}) m->optimizer->set_lr(0, 0.1 / t);
    eager.optimizer->step();
    replayed.optimizer->prepare_replay();
    graph.replay();
  }
  CHECK(eager.all() == replayed.all());
  CHECK(same_state(eager.optimizer->state_dict(), replayed.optimizer->state_dict()));
}

TEST_CASE("Muon refuses what is no matrix, wrong numbers, and a shared update") {
  Tensor p = ones({2, 3}, cpu), bias = ones({3}, cpu);
  for (Tensor* t : {&p, &bias}) t->requires_grad_();
  const Parameters matrix{{.value = &p, .name = "p"}};
  CHECK_THROWS_WITH_AS(Muon({{.value = &p, .name = "p"}, {.value = &bias, .name = "bias"}}),
                       doctest::Contains("muon: parameter bias is f32 [3] on cpu, expected a matrix"), ConfigError);
  const double nan = std::nan("");
  for (const MuonOptions& bad :
       {MuonOptions{.lr = -1}, MuonOptions{.weight_decay = nan}, MuonOptions{.momentum = -0.5}, MuonOptions{.eps = nan},
        MuonOptions{.ns_coefficients = {1, nan, 1}}, MuonOptions{.ns_steps = 0}, MuonOptions{.ns_steps = 100}})
    CHECK_THROWS_AS(Muon(matrix, bad), ConfigError);
  Muon o(matrix);
  CHECK_FALSE(o.elementwise());
  CHECK_THROWS_AS(o.use_pieces([](const ParamRef&) { return Optimizer::Piece{}; }), ConfigError);
  CHECK(*o.momentum(0) == 0.95);
}

}  // namespace levin::optim
