// Batch norm over the batches of all ranks of a group.
#pragma once

#include <memory>

#include "levin/comm.h"
#include "levin/ops.h"

namespace levin::nn {

// batch_norm_train of the ranks' batches as one; x [N, C, ...], where N may differ between ranks and be 0 on some. A
// collective in forward, and one in backward: gradients are those of the sum of all ranks' losses. Differentiable to
// any order.
[[nodiscard]] BatchNormResult sync_batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                                              const std::shared_ptr<dist::ProcessGroup>& group);

}  // namespace levin::nn
