// What optimizers read and write of gradients that hold rows alone (row_grad). Autograd, which keeps gradients, defines
// these functions, as it does Tensor::grad.
#pragma once

#include "levin/tensor.h"

namespace levin::detail {

// What kernels read and write of the leaf's gradient: the values of its rows, or grad().
[[nodiscard]] Tensor gradient_values(const Tensor& leaf);

// from[rows[k]], of from [N, ...]; row 0 for a row of -1, which names nothing.
[[nodiscard]] Tensor take_rows(const Tensor& from, const Tensor& rows);
// to[rows[k]] = from[k], in place, for rows in [0, N), which differ; others name nothing. `to` [N, ...] and `from`
// are contiguous and of one dtype.
void put_rows_(const Tensor& to, const Tensor& rows, const Tensor& from);

}  // namespace levin::detail
