// Batch norm in training by cuDNN.
#include <array>

#include "kernels/lib/cudnn_graph.h"
#include "kernels/norm/norm_library.h"

namespace levin::kernels::lib {
namespace {

using namespace cudnn;

enum Uid : std::int64_t { kX = 1, kY, kGx, kWeight, kBias, kMean, kRstd, kWeightGradient, kBiasGradient, kEps };

Descriptor graph_of_norm(const LibraryBatchNorm& c, const Target& target) {
  const auto image = [&](Uid uid) { return memory(uid, type_of(c.dtype), c.sizes, c.strides); };
  const std::int64_t channels = c.sizes[1];
  const std::array<std::int64_t, 4> sizes{1, channels, 1, 1}, strides{channels, 1, channels, channels};
  const auto row = [&](Uid uid) { return memory(uid, CUDNN_DATA_FLOAT, sizes, strides); };
  const Descriptor x = image(kX), y = image(kY), w = row(kWeight), mean = row(kMean), rstd = row(kRstd);
  std::vector<Descriptor> operations;
  if (c.backward) {
    const Descriptor gx = image(kGx), gw = row(kWeightGradient), gb = row(kBiasGradient);
    operations.push_back(Descriptor(CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR)
                             .set(CUDNN_ATTR_OPERATION_NORM_BWD_MODE, CUDNN_TYPE_NORM_MODE, CUDNN_BATCH_NORM)
                             .set(CUDNN_ATTR_OPERATION_NORM_BWD_XDESC, x)
                             .set(CUDNN_ATTR_OPERATION_NORM_BWD_DYDESC, y)
                             .set(CUDNN_ATTR_OPERATION_NORM_BWD_SCALE_DESC, w)
                             .set(CUDNN_ATTR_OPERATION_NORM_BWD_MEAN_DESC, mean)
                             .set(CUDNN_ATTR_OPERATION_NORM_BWD_INV_VARIANCE_DESC, rstd)
                             .set(CUDNN_ATTR_OPERATION_NORM_BWD_DSCALE_DESC, gw)
                             .set(CUDNN_ATTR_OPERATION_NORM_BWD_DBIAS_DESC, gb)
                             .set(CUDNN_ATTR_OPERATION_NORM_BWD_DXDESC, gx)
                             .finish());
  } else {
    const Descriptor b = row(kBias), eps = number(kEps, 4);
    operations.push_back(
        Descriptor(CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR)
            .set(CUDNN_ATTR_OPERATION_NORM_FWD_MODE, CUDNN_TYPE_NORM_MODE, CUDNN_BATCH_NORM)
            .set(CUDNN_ATTR_OPERATION_NORM_FWD_PHASE, CUDNN_TYPE_NORM_FWD_PHASE, CUDNN_NORM_FWD_TRAINING)
            .set(CUDNN_ATTR_OPERATION_NORM_FWD_XDESC, x)
            .set(CUDNN_ATTR_OPERATION_NORM_FWD_SCALE_DESC, w)
            .set(CUDNN_ATTR_OPERATION_NORM_FWD_BIAS_DESC, b)
            .set(CUDNN_ATTR_OPERATION_NORM_FWD_EPSILON_DESC, eps)
            .set(CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC, mean)
            .set(CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC, rstd)
            .set(CUDNN_ATTR_OPERATION_NORM_FWD_YDESC, y)
            .finish());
  }
  return graph_of(operations, target);
}

// `c` is used as long as the call is.
Call call_of(const LibraryBatchNorm& c) {
  Call call{.dtype = c.dtype,
            .graph = [&c](const Target& target) { return graph_of_norm(c, target); },
            .said = [&c] { return said(c); }};
  call.key = {c.backward ? kBatchNormBackward : kBatchNorm, std::int64_t(c.dtype)};
  call.plan_by(c.sizes), call.plan_by(c.strides);
  call.operand(kX, c.x), call.operand(kY, c.y), call.operand(kWeight, c.w);
  call.operand(kMean, c.mean), call.operand(kRstd, c.rstd);
  if (c.backward) {
    call.operand(kGx, c.gx), call.operand(kWeightGradient, c.gw), call.operand(kBiasGradient, c.gb);
  } else {
    call.operand(kBias, c.b), call.operand(kEps, &c.eps);
  }
  return call;
}

}  // namespace

bool cudnn_batch_norm(const LibraryBatchNorm& call, Stream stream) {
  return run(call_of(call), engine_choice(EngineFamily::batch_norm), stream);
}

CudnnPlans cudnn_plans(const LibraryBatchNorm& call, std::string_view device) {
  return plans_for(call_of(call), device, 1);  // each is compiled
}

}  // namespace levin::kernels::lib
