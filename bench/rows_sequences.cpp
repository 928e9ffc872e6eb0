// Rows of bench_kernels: recurrent layers over [steps, batch, hidden], forward and backward.
#include <memory>

#include "bench/rows.h"
#include "levin/nn.h"

namespace levin::bench {
namespace {

// A layer as a model of its own, because modules have a parent.
template <class Layer>
struct Alone : nn::Module {
  Layer layer;
  Alone(std::int64_t hidden, Generator& generator)
      : Module(nn::Options{.gen = generator, .device = bench::device()}),
        layer(*this, "layer", {.in = hidden, .hidden = hidden}) {}
};

template <class Layer>
Kernel row_of(const std::string& name) {
  return {name + "_both",
          Sizes::own,
          {DType::f32},
          [](const Shape& s, DType d) {
            Generator generator(9);
            const auto net = std::make_shared<Alone<Layer>>(s[2], generator);
            const Tensor x = random(s, d);
            return Work{[=] {
                          for (const ParamRef& p : net->parameters()) p.value->set_grad({});
                          backward(sum(net->layer(x).y));
                        },
                        3 * bytes_of(x)};
          },
          {{16, 4, 32}, {64, 32, 256}}};
}

}  // namespace

void sequence_rows(std::vector<Kernel>& k) {
  k.push_back(row_of<nn::LSTM>("lstm"));
  k.push_back(row_of<nn::GRU>("gru"));
  k.push_back(row_of<nn::RNN>("rnn"));
}

}  // namespace levin::bench
