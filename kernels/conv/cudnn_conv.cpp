// Convolutions by cuDNN.
#include <array>

#include "kernels/conv/conv_library.h"
#include "kernels/lib/cudnn_graph.h"

namespace levin::kernels::lib {
namespace {

using namespace cudnn;

enum Uid : std::int64_t { kX = 1, kW, kY, kBias, kProduct };

// The names of an operation's attributes, which differ from pass to pass.
struct Names {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t form, x, w, y, alpha, beta;
};
Names names_of(ConvPass pass) {
  switch (pass) {
    case ConvPass::input_gradient:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
    case ConvPass::weight_gradient:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
    case ConvPass::forward: break;
  }
  return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
}

Descriptor graph_of_conv(const LibraryConv& c, const Target& target) {
  Descriptor form(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  form.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, std::int64_t{2})
      .set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION)
      .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, c.padding)
      .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, c.padding)
      .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, c.dilation)
      .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, c.stride)
      .finish();
  const auto operand = [&](Uid uid, const LibraryConv::Operand& o) {
    return memory(uid, type_of(c.dtype), o.sizes, o.strides);
  };
  const Descriptor x = operand(kX, c.x), w = operand(kW, c.w), y = operand(kY, c.y);
  Descriptor product;  // what a bias is added to, in f32
  if (c.bias) product = passing(kProduct, CUDNN_DATA_FLOAT, c.y.sizes, c.y.strides);
  const Names names = names_of(c.pass);
  const float one = 1, zero = 0;
  std::vector<Descriptor> operations;
  operations.push_back(Descriptor(names.type)
                           .set(names.form, form)
                           .set(names.x, x)
                           .set(names.w, w)
                           .set(names.y, c.bias ? product : y)
                           .set(names.alpha, CUDNN_TYPE_FLOAT, one)
                           .set(names.beta, CUDNN_TYPE_FLOAT, zero)
                           .finish());
  if (c.bias) {
    const std::int64_t channels = c.y.sizes[1];
    const Descriptor bias = memory(kBias, type_of(c.dtype), std::array<std::int64_t, 4>{1, channels, 1, 1},
                                   std::array<std::int64_t, 4>{channels, 1, channels, channels});
    operations.push_back(pointwise(CUDNN_POINTWISE_ADD, product, &bias, y));
  }
  return graph_of(operations, target);
}

// `c` is used as long as the call is.
Call call_of(const LibraryConv& c) {
  Call call{.dtype = c.dtype,
            .tf32 = c.dtype == DType::f32 && allow_tf32(EngineFamily::convolution) == AllowTf32::yes,
            .graph = [&c](const Target& target) { return graph_of_conv(c, target); },
            .said = [&c] { return said(c); }};
  call.key = {kConvolution, std::int64_t(c.pass), std::int64_t(c.dtype), std::int64_t(c.bias != nullptr)};
  for (const auto* o : {&c.x, &c.w, &c.y}) call.plan_by(o->sizes), call.plan_by(o->strides);
  call.plan_by(c.stride), call.plan_by(c.padding), call.plan_by(c.dilation);
  call.operand(kX, c.x.data), call.operand(kW, c.w.data), call.operand(kY, c.y.data);
  if (c.bias) call.operand(kBias, c.bias);
  return call;
}

}  // namespace

bool cudnn_convolve(const LibraryConv& conv, Stream stream) {
  return run(call_of(conv), engine_choice(EngineFamily::convolution), stream);
}

CudnnPlans cudnn_plans(const LibraryConv& conv, std::string_view device) {
  constexpr std::size_t kAll = 64;
  return plans_for(call_of(conv), device, kAll);
}

}  // namespace levin::kernels::lib
