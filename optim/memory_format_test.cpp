// Optimizers of parameters in channels-last memory: their states mean the same as those of contiguous parameters.
#include <doctest/doctest.h>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "levin/optim.h"
#include "levin/stream.h"

namespace levin::optim {
namespace {

const Device cpu = Device::cpu();

Tensor parameter(const Shape& shape, MemoryFormat format, DType dtype) {
  Generator gen(3);
  Tensor p = randn(shape, gen, cpu, DType::f64).to(dtype).contiguous(format);
  p.requires_grad_();
  return p;
}
Tensor target(const Shape& shape) {
  Generator gen(4);
  return randn(shape, gen, cpu, DType::f64);
}

}  // namespace

TEST_CASE("LBFGS resumes a state that was saved with parameters in another memory format") {
  const Shape shape{3, 4, 2, 5};
  const auto steps = [&](LBFGS& o, const Tensor& p, int n) {
    const Tensor to = target(shape), scale = arange(1, 121, 1, cpu, DType::f64);
    for (int i = 0; i < n; ++i) {
      (void)o.step([&] {
        o.zero_grad();
        Tensor loss = sum(reshape(square(p - to), {-1}) * scale);
        backward(loss);
        return loss;
      });
    }
    return p.detach().contiguous();
  };
  for (const MemoryFormat saved : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    for (const MemoryFormat resumed : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      Tensor p = parameter(shape, saved, DType::f64);
      LBFGS first({{&p, "p", nullptr}}, {.lr = 0.01, .max_iter = 3});
      (void)steps(first, p, 2);
      Tensor q = p.detach().clone().contiguous(resumed);
      q.requires_grad_();
      LBFGS second({{&q, "p", nullptr}}, {.lr = 0.01, .max_iter = 3});
      second.load_state_dict(first.state_dict());
      const Tensor want = steps(first, p, 2);
      CHECK(equal(steps(second, q, 2), want));
      CHECK(q.is_contiguous(resumed));
    }
  }
}

TEST_CASE("pieces of a parameter take over masters that lie in channels-last memory") {
  Tensor p = parameter({4, 3, 2, 2}, MemoryFormat::channels_last, DType::bf16);
  SGD o({{&p, "p", nullptr}}, {.lr = 0.5});
  o.use_master_weights();
  const Tensor before = p.detach().contiguous();
  o.use_pieces([&](const ParamRef&) {  // as a strategy does that moves parameters into flat memory
    return Optimizer::Piece{reshape(before, {-1}).clone(), 0};
  });
  const Tensor piece = *o.pieces()[0].value;
  o.pieces()[0].value->set_grad(zeros({48}, cpu, DType::bf16));
  o.step();
  CHECK(equal(o.pieces()[0].value->detach(), reshape(before, {-1})));
}

TEST_CASE("flatten puts channels-last tensors into flat memory in the order of contiguous ones") {
  const Tensor a = parameter({2, 3, 4, 5}, MemoryFormat::channels_last, DType::f32).detach();
  CHECK(flatten({a}).to_vector<float>() == a.contiguous().to_vector<float>());
}

}  // namespace levin::optim
