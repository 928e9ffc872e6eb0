// One step of an LSTM's state, and its gradient, in passes that read up to three tensors each.
#include <array>
#include <tuple>

#include "autograd/autocast.h"
#include "autograd/op_table.h"
#include "autograd/ops/pointwise/gate.h"
#include "autograd/ops/pointwise/lstm_cell.h"
#include "levin/layer_ops.h"

namespace levin {
namespace pointwise {
namespace {

constexpr std::int64_t kGateGrain = 4096;  // two exponentials are about a hundred instructions

// tanh(a) sigmoid(b)
struct GatedTanh {
  static constexpr std::int64_t kGrain = kGateGrain;
  template <class T>
  LEVIN_HD T operator()(T a, T b) const {
    return m::tanh_times_sigmoid(a, b);
  }
  template <class H>
  LEVIN_HD float for_half(float a, float b) const {
    return h::tanh<H>(a) * h::sigmoid(b);
  }
};
// a sigmoid(b) + more
struct GatedSum {
  static constexpr std::int64_t kGrain = kGateGrain;
  template <class T>
  LEVIN_HD T operator()(T a, T b, T more) const {
    return a * m::sigmoid(b) + more;
  }
  template <class H>
  LEVIN_HD float for_half(float a, float b, float more) const {
    return a * h::sigmoid(b) + more;
  }
};
// g times the derivative of tanh(a) sigmoid(b) by b.
struct OfTanhGate {
  static constexpr std::int64_t kGrain = kGateGrain;
  template <class T>
  LEVIN_HD T operator()(T g, T a, T b) const {
    const T s = m::sigmoid(b);
    return g * m::tanh(a) * (s * (T(1) - s));
  }
  template <class H>
  LEVIN_HD float for_half(float g, float a, float b) const {
    const float s = h::sigmoid(b);
    return g * h::tanh<H>(a) * (s * (1.0f - s));
  }
};
// g times the derivative of tanh(a) sigmoid(b) by a.
struct OfGatedTanh {
  static constexpr std::int64_t kGrain = kGateGrain;
  template <class T>
  LEVIN_HD T operator()(T g, T a, T b) const {
    const T t = m::tanh(a);
    return g * m::sigmoid(b) * (T(1) - t * t);
  }
  template <class H>
  LEVIN_HD float for_half(float g, float a, float b) const {
    const float t = h::tanh<H>(a);
    return g * h::sigmoid(b) * (1.0f - t * t);
  }
};

// One of the gates i, f, g and o, which stand beside each other in the last dimension.
enum class Part : std::uint8_t { in, forget, candidate, out };
Tensor part_of(const Tensor& gates, Part part) {
  const std::int64_t size = gates.size(-1) / 4;
  return narrow(gates, -1, static_cast<std::int64_t>(part) * size, size);
}

}  // namespace
}  // namespace pointwise

Tensor lstm_cell_into(const Tensor& h, const Tensor& gates, const Tensor& c) {
  using namespace pointwise;
  constexpr OpInfo info{.name = "lstm_cell"};
  const Tensor added = empty(c.shape(), c.device(), c.dtype());
  Tensor next = empty_like(added);
  dispatch(info, gates, kFloats, [&]<class T>(const auto& on, T) {
    constexpr Signature<T, T, T> two;
    run(on, GatedTanh{}, two, added, part_of(gates, Part::candidate), part_of(gates, Part::in));
    run(on, GatedSum{}, Signature<T, T, T, T>{}, next, c, part_of(gates, Part::forget), added);
    run(on, GatedTanh{}, two, h, next, part_of(gates, Part::out));
  });
  return next;
}

Tensor lstm_cell_backward_into(const Tensor& g_gates, const Tensor& gh, const Tensor& gc, const Tensor& gates,
                               const Tensor& c, const Tensor& next) {
  using namespace pointwise;
  constexpr OpInfo info{.name = "lstm_cell_backward"};
  const Tensor in = part_of(gates, Part::in), forget = part_of(gates, Part::forget),
               candidate = part_of(gates, Part::candidate), out = part_of(gates, Part::out);
  Tensor g_c = empty(c.shape(), c.device(), c.dtype()), g_next = empty_like(g_c);
  dispatch(info, gates, kFloats, [&]<class T>(const auto& on, T) {
    constexpr Signature<T, T, T, T> three;
    run(on, OfTanhGate{}, three, part_of(g_gates, Part::out), gh, next, out);
    run(on, OfGatedTanh{}, three, g_next, gh, next, out);
  });
  const Tensor g_state = gc + g_next;
  dispatch(info, gates, kFloats, [&]<class T>(const auto& on, T) {
    constexpr Signature<T, T, T> two;
    constexpr Signature<T, T, T, T> three;
    run(on, GateSlope{}, three, part_of(g_gates, Part::forget), g_state, c, forget);
    run(on, OfTanhGate{}, three, part_of(g_gates, Part::in), g_state, candidate, in);
    run(on, OfGatedTanh{}, three, part_of(g_gates, Part::candidate), g_state, candidate, in);
    run(on, Gate{}, two, g_c, g_state, forget);
  });
  return g_c;
}

namespace pointwise {
namespace {

struct LstmCellBackward {
  static constexpr OpInfo info{.name = "lstm_cell_backward"};
  SavedInput gh{}, gc{}, gates{}, c{}, next{};

  std::array<Tensor, 2> forward(const Tensor& gh_, const Tensor& gc_, const Tensor& gates_, const Tensor& c_,
                                const Tensor& next_) {
    gh = gh_, gc = gc_, gates = gates_, c = c_, next = next_;
    const Tensor g_gates = empty(gates_.shape(), gates_.device(), gates_.dtype());
    return {g_gates, lstm_cell_backward_into(g_gates, gh_, gc_, gates_, c_, next_)};
  }
  // The composite twin, in public ops.
  [[nodiscard]] static std::array<Tensor, 2> twin(const Tensor& gh, const Tensor& gc, const Tensor& gates,
                                                  const Tensor& c, const Tensor& next) {
    const Tensor in = sigmoid(part_of(gates, Part::in)), forget = sigmoid(part_of(gates, Part::forget)),
                 candidate = tanh(part_of(gates, Part::candidate)), out = sigmoid(part_of(gates, Part::out)),
                 t = tanh(next), g_state = gc + gh * out * (1 - t * t);
    return {cat({g_state * candidate * (in * (1 - in)), g_state * c * (forget * (1 - forget)),
                 g_state * in * (1 - candidate * candidate), gh * t * (out * (1 - out))},
                -1),
            g_state * forget};
  }
  Grads<5> backward(const Tensor& gg, const Tensor& ggc, Need<5> need) {
    return vjp<5>([](const auto& in) { return twin(in[0], in[1], in[2], in[3], in[4]); },
                  {gh.get(), gc.get(), gates.get(), c.get(), next.get()}, std::array{gg, ggc}, need);
  }
};
LEVIN_OP_TABLE(LstmCellBackward)

struct LstmCell {
  static constexpr OpInfo info{.name = "lstm_cell", .autocast = AutocastPolicy::widest};
  SavedInput gates{}, c{};
  SavedOutput next{};

  // c', h
  std::array<Tensor, 2> forward(const Tensor& gates_, const Tensor& c_) {
    gates = gates_, c = c_;
    Tensor y = empty(c_.shape(), c_.device(), c_.dtype());
    const Tensor state = lstm_cell_into(y, gates_, c_);
    next = state;
    return {state, y};
  }
  auto saved_outputs() { return std::tie(next); }
  Grads<2> backward(const Tensor& gc, const Tensor& gh, Need<2>) {
    auto [g_gates, g_c] = apply(LstmCellBackward{}, gh, gc, gates.get(), c.get(), next.get());
    return {g_gates, g_c};
  }
};
LEVIN_OP_TABLE(LstmCell)

}  // namespace
}  // namespace pointwise

LstmCellState lstm_cell(const Tensor& gates, const Tensor& c) {
  constexpr const char* op = "lstm_cell";
  check_defined(op, gates, c);
  check_dtypes_meet(op, gates, c);
  check_same_device(op, gates, c);
  if (c.rank() < 1 || gates.rank() != c.rank() || gates.shape() != c.shape().with(c.rank() - 1, 4 * c.size(-1))) {
    fail<ShapeError>(op, ": gates have shape ", gates.shape(), " and c ", c.shape(),
                     ", expected [..., 4 hidden] and [..., hidden]");
  }
  auto [next, h] = apply(pointwise::LstmCell{}, gates, c);
  return {h, next};
}

}  // namespace levin
