#include "levin/ops.h"
#include "nn/graph/init.h"

namespace levin::gnn {
namespace {

const SAGEConvOptions& checked(const SAGEConvOptions& o) {
  nn::check_size("SAGEConv", "in.src", o.in.src);
  nn::check_size("SAGEConv", "in.dst", o.in.dst);
  nn::check_size("SAGEConv", "out", o.out);
  return o;
}

// Rows of length 1, or of length |y| / 1e-12 where that is shorter; in f32 at least, whose exponents hold the squares.
Tensor unit_rows(const Tensor& y) {
  const Tensor wide = y.dtype() == DType::f64 ? y : y.to(DType::f32);
  return (wide * rsqrt(clamp(sum(square(wide), {-1}, KeepDim::yes), 1e-24, std::nullopt))).to(y.dtype());
}

}  // namespace

SAGEConv::SAGEConv(nn::Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked(given)),
      lin(linear_if(options.project, *this, "lin", {options.in.src, options.in.src})),
      lin_l(*this, "lin_l", {.in = options.in.src, .out = options.out, .bias = options.bias}),
      lin_r(linear_if(options.root_weight, *this, "lin_r", {options.in.dst, options.out, false})) {}

Tensor SAGEConv::operator()(const Tensor& x_src, const Tensor& x_dst, const Adj& on) const {
  const nn::Call call(*this, x_src, x_dst);
  const Csr& a = on.csr();
  const Tensor x = lin ? relu((*lin)(x_src)) : x_src;
  const bool linear_aggr = options.aggr == Reduce::sum || options.aggr == Reduce::mean;
  // The product with the graph at the smaller width, where the linear layer has no more rows then.
  Tensor y;
  if (linear_aggr && options.out < options.in.src && a.rows() == a.cols) {
    y = spmm(a, {}, linear(x, lin_l.weight), options.aggr);
    if (lin_l.bias.defined()) y = y + lin_l.bias;
  } else {
    y = lin_l(spmm(a, {}, x, options.aggr));
  }
  if (lin_r && x_dst.defined()) y = y + (*lin_r)(x_dst);
  return call.gives(options.normalize ? unit_rows(y) : y);
}

}  // namespace levin::gnn
