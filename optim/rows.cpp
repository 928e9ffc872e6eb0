// Updates of the rows of a parameter that its gradient has.
#include "optim/updates.h"
#include "tensor/core/gradient_rows.h"

namespace levin::optim {

Updates::Rows::Rows(const Tensor& of, const Tensor& at, const Optimizer::State& states)
    : value(of.detach()), rows(at), whole(states), state(states) {
  if (!value.device().launches()) return;
  part = detail::take_rows(value, rows);
  for (Tensor& t : state.tensors) {
    if (t.defined()) t = detail::take_rows(t, rows);
  }
}

void Updates::Rows::put_back() const {
  detail::put_rows_(value, rows, part);
  for (std::size_t k = 0; k < state.tensors.size(); ++k) {
    if (state.tensors[k].defined()) detail::put_rows_(whole.tensors[k], rows, state.tensors[k]);
  }
}

RowGradient Updates::rows_of(const Optimizer& optimizer, const Optimizer::Group& g, std::size_t i) {
  const Tensor& value = *g.parameters[i].value;
  const bool whole = !optimizer.memory_ && g.pieces.empty() && (g.masters.empty() || !g.masters[i]) &&
                     value.is_contiguous() && (g.rounding == Rounding::nearest || itemsize(value.dtype()) > 2);
  return whole ? row_grad(value) : RowGradient();
}

void Updates::check_rows(const Optimizer& optimizer, const Optimizer::Group& g) {
  for (std::size_t i = 0; i < g.parameters.size(); ++i) {
    if (!has_grad(g.source(i)) || rows_of(optimizer, g, i).rows.defined()) continue;
    fail<StateError>(
        optimizer.name(), ": the gradient of ", g.parameters[i].name,
        " is dense, expected rows, which embeddings with sparse = true give; grad(), hooks of the parameter, "
        "another op that reads it, masters and strategies of several ranks make them dense");
  }
}

}  // namespace levin::optim
