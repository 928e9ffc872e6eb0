// Optimizers, clipping and loss scaling with gradients of rows, against the same with dense gradients.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "levin/autograd.h"
#include "levin/error.h"
#include "levin/ops.h"
#include "levin/optim.h"
#include "levin/stream.h"
#include "tests/device.h"
#include "tests/skip.h"

namespace levin::optim {
namespace {

const Device cpu = Device::cpu();

// A table and a matrix behind it, whose step t names some rows, some of them again.
struct Lookup {
  Tensor weight, matrix;
  EmbeddingGrad gradient;

  Lookup(EmbeddingGrad gradient_, Device device, DType dtype = DType::f32) : gradient(gradient_) {
    Generator gen(3);
    weight = randn({50, 7}, gen, cpu).to(dtype).to(device);
    matrix = randn({7, 2}, gen, cpu).to(dtype).to(device);
    weight.requires_grad_(), matrix.requires_grad_();
  }
  Parameters parameters() { return {{.value = &weight, .name = "weight"}, {.value = &matrix, .name = "matrix"}}; }
  Parameters table() { return {{.value = &weight, .name = "weight"}}; }
  Tensor loss(int t) {
    std::vector<std::int64_t> rows;
    for (int k = 0; k < 9; ++k) rows.push_back((7 * k * k + 11 * t) % 50);
    const Tensor index = from_data(rows, {9}, cpu).to(weight.device());
    return sum(square(matmul(embedding(weight, index, {}, gradient), matrix)));
  }
  void run_backward(int t, double scale = 1) { backward(loss(t) * scale); }
};
bool same(const Tensor& a, const Tensor& b) { return equal(a.detach().to(cpu), b.detach().to(cpu)); }
bool has_rows(const Tensor& leaf) { return row_grad(leaf).rows.defined(); }

using Make = std::function<std::unique_ptr<Optimizer>(Parameters)>;
template <class O, class Options>
Make make(Options options) {
  return [options](Parameters p) { return std::make_unique<O>(std::move(p), options); };
}
struct Kind {
  const char* name;
  Make make;
  bool keeps_rows;
};
const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{
      {"sgd", make<SGD>(SGDOptions{.lr = 0.1}), true},
      {"sgd up", make<SGD>(SGDOptions{.lr = 0.01, .maximize = true}), true},
      {"momentum", make<SGD>(SGDOptions{.lr = 0.05, .momentum = 0.9}), false},
      {"decay", make<SGD>(SGDOptions{.lr = 0.05, .weight_decay = 0.1}), false},
      {"adagrad", make<Adagrad>(AdagradOptions{.lr = 0.1, .lr_decay = 0.1, .initial_accumulator_value = 0.5}), true},
      {"adagrad decay", make<Adagrad>(AdagradOptions{.lr = 0.1, .weight_decay = 0.1}), false},
      {"adam", make<Adam>(AdamOptions{.lr = 0.1}), false},
  };
  return all;
}

void check_steps(Device device) {
  for (const Kind& kind : kinds()) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      CAPTURE(kind.name);
      CAPTURE(dtype);
      Lookup rows(EmbeddingGrad::rows, device, dtype), dense(EmbeddingGrad::dense, device, dtype);
      const auto a = kind.make(rows.parameters()), b = kind.make(dense.parameters());
      for (int t = 0; t < 4; ++t) {
        a->zero_grad(), b->zero_grad();
        rows.run_backward(t), dense.run_backward(t);
        REQUIRE(has_rows(rows.weight));
        a->step(), b->step();
        CHECK(has_rows(rows.weight) == kind.keeps_rows);
        CHECK(same(rows.weight, dense.weight));
        CHECK(same(rows.matrix, dense.matrix));
      }
      const NamedTensors mine = a->state_dict(), theirs = b->state_dict();
      REQUIRE(mine.size() == theirs.size());
      for (std::size_t k = 0; k < mine.size(); ++k) {
        CAPTURE(mine[k].first);
        CHECK(same(mine[k].second, theirs[k].second));
      }
    }
  }
}

TEST_CASE("every optimizer makes of a gradient of rows what it makes of the dense one, to the bit") {
  check_steps(cpu);
}
TEST_CASE("optimizers on a device make of rows what they make of dense gradients, to the bit") {
  DEVICE_OR_SKIP();
  check_steps(device);
}

TEST_CASE("SparseAdam gives PyTorch's values, and rows that no index named keep theirs, on a device, too") {
  // torch.optim.SparseAdam(lr=0.1, betas=(0.8, 0.9), eps=0.01), three steps of torch.nn.Embedding(4, 2, sparse=True)
  const std::vector<std::vector<std::int64_t>> rows{{1, 3, 1}, {1}, {0, 3}};
  const std::vector<std::vector<double>> gradients{{1, 2, -0.5, 0.25, 0.5, -1}, {0.1, 0.2}, {3, -3, 0.01, 0.02}};
  const std::vector<std::vector<double>> want{
      {0.5, -1.0, 1.9020646582882403, 0.15306534300317154, -3.0, 1.5, 0.8440516512848024, -0.0887712290237058},
      {0.5, -1.0, 1.8337925445241445, 0.07657592634551905, -3.0, 1.5, 0.8440516512848024, -0.0887712290237058},
      {0.43323622074209955, -0.9332362207420996, 1.8337925445241445, 0.07657592634551905, -3.0, 1.5, 0.8960451430831705,
       -0.1438191118729218},
  };
  for (const Device device : test::all_devices()) {
    Tensor w = reshape(tensor<double>({0.5, -1, 2, 0.25, -3, 1.5, 0.75, 0}, cpu), {4, 2}).to(device);
    w.requires_grad_();
    SparseAdam optimizer({{.value = &w, .name = "w"}}, {.lr = 0.1, .beta1 = 0.8, .beta2 = 0.9, .eps = 0.01});
    for (std::size_t t = 0; t < rows.size(); ++t) {
      CAPTURE(t);
      const auto n = static_cast<std::int64_t>(rows[t].size());
      optimizer.zero_grad();
      backward(embedding(w, from_data(rows[t], {n}, cpu).to(device), {}, EmbeddingGrad::rows),
               from_data(gradients[t], {n, 2}, cpu).to(device));
      optimizer.step();
      const auto got = w.detach().to(cpu).to_vector<double>();
      for (std::size_t k = 0; k < got.size(); ++k) {
        CAPTURE(k);
        CHECK(std::abs(got[k] - want[t][k]) <= 1e-15 * std::abs(want[t][k]));
      }
    }
    // What it resumes from is what it had.
    Tensor again = w.detach().clone();
    again.requires_grad_();
    SparseAdam resumed({{.value = &again, .name = "w"}}, {.lr = 0.1, .beta1 = 0.8, .beta2 = 0.9, .eps = 0.01});
    resumed.load_state_dict(optimizer.state_dict());
    for (Tensor* p : {&w, &again})
      set_row_grad(*p, {from_data(std::vector<std::int64_t>{2, 1}, {2}, cpu).to(device),
                        ones({2, 2}, cpu, DType::f64).to(device)});
    optimizer.step(), resumed.step();
    CHECK(same(w, again));
  }
}

TEST_CASE("SparseAdam refuses a dense gradient and what needs one, before anything changes") {
  Lookup net(EmbeddingGrad::rows, cpu);
  SparseAdam optimizer(net.table());
  optimizer.step();  // no gradient, no step
  net.run_backward(0);
  const Tensor before = net.weight.detach().clone();
  (void)net.weight.grad();
  CHECK_THROWS_WITH_AS(optimizer.step(),
                       "sparse_adam: the gradient of weight is dense, expected rows, which embeddings with sparse = "
                       "true give; grad(), hooks of the parameter, another op that reads it, masters and strategies of "
                       "several ranks make them dense",
                       StateError);
  CHECK(same(net.weight, before));
  CHECK(optimizer.state_dict().size() == SparseAdam(net.table()).state_dict().size());
  CHECK_THROWS_AS(optimizer.use_pieces([](const ParamRef&) { return Optimizer::Piece{}; }), ConfigError);
  CHECK_THROWS_AS(SparseAdam(net.table(), {.eps = 0}), ConfigError);
  CHECK_THROWS_AS(SparseAdam(net.table(), {.beta2 = 1}), ConfigError);
  optimizer.zero_grad();
  net.run_backward(1);
  optimizer.step();
  CHECK_FALSE(same(net.weight, before));
}

TEST_CASE("clipping, loss scaling and zero_grad read and write rows as they do dense gradients, on a device, too") {
  for (const Device device : test::all_devices()) {
    const auto compare = [&](const std::function<void(Lookup&, Optimizer&)>& act) {
      Lookup rows(EmbeddingGrad::rows, device), dense(EmbeddingGrad::dense, device);
      SGD a(rows.parameters(), {.lr = 0.1}), b(dense.parameters(), {.lr = 0.1});
      for (int t = 0; t < 2; ++t) {
        act(rows, a), act(dense, b);
        CHECK(has_rows(rows.weight));
        CHECK(allclose(rows.weight.detach(), dense.weight.detach(), 1e-6, 1e-7));
        CHECK(allclose(rows.matrix.detach(), dense.matrix.detach(), 1e-6, 1e-7));
      }
    };
    std::vector<double> norms;
    compare([&](Lookup& net, Optimizer& o) {
      net.run_backward(0);
      norms.push_back(clip_grad_norm_(net.parameters(), 0.5).item<double>());
      o.step();
      o.zero_grad(SetToNone::no);
    });
    REQUIRE(norms.size() == 4);
    CHECK(norms[0] == doctest::Approx(norms[1]).epsilon(1e-6));
    CHECK(norms[0] > 0.5);
    compare([](Lookup& net, Optimizer& o) {
      o.zero_grad();
      net.run_backward(1);
      clip_grad_value_(net.parameters(), 0.01);
      o.step();
    });
    compare([](Lookup& net, Optimizer& o) {
      o.zero_grad();
      net.run_backward(2);
      (void)o.step_clipped(0.5);
    });
    for (const bool fused : {false, true}) {
      compare([&](Lookup& net, Optimizer& o) {
        GradScaler scaler({.init_scale = 1024});
        o.zero_grad();
        backward(net.loss(3) * scaler.scale(device));
        if (fused) return scaler.step(o, ScaledStep{.max_norm = 0.5});
        scaler.unscale_(o);
        scaler.step(o);
        scaler.update();
      });
    }
    // An overflow skips the step: rows stay, as do states and counts.
    Lookup net(EmbeddingGrad::rows, device);
    SparseAdam optimizer(net.table());
    GradScaler scaler({.init_scale = 1024});
    net.run_backward(0, 1024);
    (void)scaler.scale(device);
    scaler.step(optimizer);
    const Tensor before = net.weight.detach().clone();
    const auto state = optimizer.state_dict();
    scaler.update();
    optimizer.zero_grad();
    net.run_backward(0, std::numeric_limits<double>::infinity());
    scaler.step(optimizer);
    CHECK(same(net.weight, before));
    const auto after = optimizer.state_dict();
    for (std::size_t k = 0; k < state.size(); ++k) CHECK(same(state[k].second, after[k].second));
  }
}

TEST_CASE("masters, stochastic rounding and pieces update a table from the dense gradient") {
  for (const int how : {0, 1}) {
    CAPTURE(how);
    Lookup rows(EmbeddingGrad::rows, cpu, DType::bf16), dense(EmbeddingGrad::dense, cpu, DType::bf16);
    const SGDOptions options{.lr = 0.1, .rounding = how == 0 ? Rounding::nearest : Rounding::stochastic};
    SGD a(rows.parameters(), options), b(dense.parameters(), options);
    if (how == 0) a.use_master_weights(), b.use_master_weights();
    for (int t = 0; t < 3; ++t) {
      a.zero_grad(), b.zero_grad();
      rows.run_backward(t), dense.run_backward(t);
      a.step(), b.step();
      CHECK(same(rows.weight, dense.weight));
    }
  }
}

}  // namespace
}  // namespace levin::optim
