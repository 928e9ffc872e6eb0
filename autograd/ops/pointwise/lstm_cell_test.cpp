// Samples of lstm_cell for the conformance suite.
#include <cmath>
#include <vector>

#include "levin/layer_ops.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

// h and c', number by number.
Tensors step_by_numbers(const Tensor& gates, const Tensor& c) {
  const std::int64_t hidden = c.size(-1), rows = hidden == 0 ? 0 : c.numel() / hidden;
  const std::vector<double> g = gates.contiguous().to_vector<double>(), from = c.contiguous().to_vector<double>();
  std::vector<double> h, next;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t k = 0; k < hidden; ++k) {
      const auto gate = [&](std::int64_t part) { return g[static_cast<std::size_t>((r * 4 + part) * hidden + k)]; };
      const double state =
          logistic(gate(1)) * from[static_cast<std::size_t>(r * hidden + k)] + logistic(gate(0)) * std::tanh(gate(2));
      next.push_back(state);
      h.push_back(logistic(gate(3)) * std::tanh(state));
    }
  }
  return {from_data(h, c.shape(), cpu), from_data(next, c.shape(), cpu)};
}

}  // namespace

LEVIN_OP_CASE(lstm_cell) {
  OpCase c{.ops = {"lstm_cell", "lstm_cell_backward"}, .dtypes = kFloatDTypes, .ulps = 6, .sums = 2};
  for (const Shape& s : {Shape{5}, Shape{3, 4}, Shape{2, 1, 3}, Shape{0, 2}, Shape{2, 0}}) {
    c.samples.push_back({.inputs = {real(s.with(s.rank() - 1, 4 * s[s.rank() - 1]), -4, 4), real(s)},
                         .call =
                             [](const Tensors& in) {
                               const LstmCellState y = lstm_cell(in[0], in[1]);
                               return Tensors{y.h, y.c};
                             },
                         .reference = [](const Tensors& in) { return step_by_numbers(in[0], in[1]); }});
  }
  c.no_single = "gates are four times as many";
  c.errors.push_back({"gates",
                      [] {
                        (void)lstm_cell(zeros({2, 6}, cpu), zeros({2, 2}, cpu));
                      },
                      throws<ShapeError>,
                      "lstm_cell: gates have shape [2, 6] and c [2, 2], expected [..., 4 hidden] and [..., hidden]"});
  c.errors.push_back({"a point", [] { (void)lstm_cell(zeros({}, cpu), zeros({}, cpu)); }, throws<ShapeError>,
                      "lstm_cell: gates have shape []"});
  c.errors.push_back({"dtypes",
                      [] {
                        (void)lstm_cell(zeros({2, 8}, cpu), zeros({2, 2}, cpu, DType::f64));
                      },
                      throws<DTypeError>, "lstm_cell"});
  return c;
}

}  // namespace levin::testing
