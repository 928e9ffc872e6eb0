// Optimizers of a part of each parameter: several of them do together what one does alone.
#include "levin/stream.h"
#include "optim/kinds_test.h"

namespace levin::optim {
namespace {

// Elements [begin, end) of every parameter of a net, as one of `ranks` ranks updates them.
struct Shared {
  std::vector<Net> nets;
  Shared(const Make& kind, Device device, DType dtype, int ranks, bool masters) {
    for (int r = 0; r < ranks; ++r) {
      nets.emplace_back(kind, device, dtype);
      Net& net = nets.back();
      if (masters && r % 2 == 0) net.optimizer->use_master_weights();
      net.optimizer->use_pieces([&](const ParamRef& p) {
        const std::int64_t n = p.value->numel(), share = (n + ranks - 1) / ranks, begin = std::min(n, r * share),
                           end = std::min(n, begin + share);
        return Optimizer::Piece{as_strided(*p.value, {end - begin}, {1}, begin), begin};
      });
      if (masters) net.optimizer->use_master_weights();
    }
  }
  void step(int t) {
    for (Net& net : nets) {
      net.set_gradients(t);
      const auto pieces = net.optimizer->pieces();
      for (std::size_t k = 0; k < pieces.size(); ++k) {
        const Tensor g = net.values[k].grad();
        const std::int64_t begin = (*pieces[k].value).offset();
        pieces[k].value->set_grad(g.defined() ? as_strided(g, pieces[k].value->shape(), {1}, begin).clone() : Tensor{});
      }
      net.optimizer->step();
    }
  }
  // Of parameter k: the elements that each rank updated.
  [[nodiscard]] std::vector<double> values(std::size_t k) const {
    std::vector<double> all;
    for (const Net& net : nets) {
      const Tensor piece = net.optimizer->pieces()[k].value->detach().to(Device::cpu()).to(DType::f64);
      for (const double x : piece.contiguous().to_vector<double>()) all.push_back(x);
    }
    return all;
  }
};

}  // namespace

TEST_CASE("optimizers of pieces give the bits of one optimizer, stochastic rounding and masters included") {
  auto kinds = elementwise_kinds();
  kinds.emplace_back("stochastic", make<Adam>(AdamOptions{.lr = 0.1, .rounding = Rounding::stochastic}));
  for (const Device device : devices()) {
    for (const auto& [name, kind] : kinds) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        for (const bool masters : {false, true}) {
          CAPTURE(text(device));
          CAPTURE(name);
          CAPTURE(masters);
          Net whole(kind, device, dtype);
          if (masters) whole.optimizer->use_master_weights();
          Shared shared(kind, device, dtype, 3, masters);
          for (int t = 0; t < 3; ++t) {
            whole.set_gradients(t);
            whole.optimizer->step();
            shared.step(t);
          }
          for (std::size_t k = 0; k < whole.values.size(); ++k) {
            const auto want =
                whole.values[k].detach().to(Device::cpu()).to(DType::f64).contiguous().to_vector<double>();
            CHECK(shared.values(k) == want);
          }
        }
      }
    }
  }
}

TEST_CASE("an optimizer of pieces has state of their size, under the parameters' names, and clears their gradients") {
  Net net(make<Adam>(AdamOptions{}), Device::cpu(), DType::f32);
  const std::size_t before = net.optimizer->parameters().size();
  net.optimizer->use_pieces([](const ParamRef& p) {
    return Optimizer::Piece{as_strided(*p.value, {p.value->numel() / 4}, {1}, 0), 0};
  });
  CHECK(net.optimizer->parameters().size() == before);
  CHECK(net.optimizer->model_parameters()[2].value == &net.values[2]);
  for (const ParamRef& p : net.optimizer->pieces()) p.value->set_grad(ones_like(p.value->detach()));
  net.optimizer->step();
  std::size_t bytes = 0;
  for (const std::size_t b : net.optimizer->state_sizes()) bytes += b;
  CHECK(bytes == 2 * 4 * (0 + 0 + 1250 + 16));
  for (const auto& [name, t] : net.optimizer->state_dict()) {
    if (name == "p5000.exp_avg") CHECK(t.shape() == Shape{1250});
  }
  net.optimizer->zero_grad();
  for (const ParamRef& p : net.optimizer->pieces()) CHECK_FALSE(p.value->grad().defined());
}

TEST_CASE("use_pieces refuses LBFGS, later calls, other groups, and what is no part of the parameter") {
  const auto half = [](const ParamRef& p) {
    return Optimizer::Piece{as_strided(*p.value, {p.value->numel() / 2}, {1}, 0), 0};
  };
  Net net(make<SGD>(SGDOptions{.lr = 0.1}), Device::cpu(), DType::f32);
  LBFGS lbfgs(net.parameters());
  CHECK_THROWS_AS(lbfgs.use_pieces(half), ConfigError);
  LAMB lamb(net.parameters());
  CHECK_THROWS_WITH_AS(lamb.use_pieces(half), doctest::Contains("lamb: it updates all elements"), ConfigError);
  CHECK_THROWS_AS(net.optimizer->use_pieces([](const ParamRef& p) {
    return Optimizer::Piece{*p.value, 1};
  }),
                  ConfigError);
  CHECK_THROWS_AS(net.optimizer->use_pieces([](const ParamRef&) { return Optimizer::Piece{}; }), ConfigError);
  CHECK(net.optimizer->pieces().empty());  // nothing has changed
  net.optimizer->use_pieces(half);
  CHECK_THROWS_AS(net.optimizer->use_pieces(half), StateError);
  Tensor more = ones({2}, Device::cpu());
  more.requires_grad_();
  CHECK_THROWS_AS(dynamic_cast<SGD&>(*net.optimizer).add_group({{.value = &more, .name = "more"}}, {}), StateError);
  Net stepped(make<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9}), Device::cpu(), DType::f32);
  stepped.set_gradients(0);
  stepped.optimizer->step();
  CHECK_THROWS_AS(stepped.optimizer->use_pieces(half), StateError);
}

}  // namespace levin::optim
