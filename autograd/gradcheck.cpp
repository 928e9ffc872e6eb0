// Numerical checks of derivatives, in f64 by central differences.
#include <cmath>

#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin {
namespace {

// sum_k <fn(inputs)[k], cotangents[k]> over the floating outputs.
double inner_product(const GradcheckFn& fn, std::span<const Tensor> inputs, std::span<const Tensor> cotangents) {
  const NoGrad off;
  const Tensors out = fn(inputs);
  double total = 0;
  std::size_t k = 0;
  for (const Tensor& t : out) {
    if (is_float(t.dtype())) total += sum(t * cotangents[k++]).item();
  }
  return total;
}

Tensors recording_copies(std::span<const Tensor> inputs) {
  Tensors copies;
  for (const Tensor& t : inputs) {
    if (!t.requires_grad()) {
      copies.push_back(t);
      continue;
    }
    if (t.dtype() != DType::f64) fail<DTypeError>("gradcheck: an input is ", t.dtype(), ", expected f64");
    copies.push_back(t.detach().clone());
    copies.back().requires_grad_();
  }
  return copies;
}

}  // namespace

GradcheckResult gradcheck(const GradcheckFn& fn, std::span<const Tensor> given, GradcheckOptions options) {
  Tensors inputs = recording_copies(given);
  const GradMode on(true);
  const Tensors all = fn(inputs);
  Tensors outputs, cotangents;
  Generator generator(0x6a09e667f3bcc908u);  // any fixed stream: cotangents only must not be special
  for (const Tensor& t : all) {
    if (!is_float(t.dtype())) continue;
    cotangents.push_back(rand(t.shape(), generator, t.device(), t.dtype()) + 0.5);
    outputs.push_back(t);
  }
  std::vector<std::size_t> which;
  Tensors wanted;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].requires_grad()) continue;
    which.push_back(i);
    wanted.push_back(inputs[i]);
  }
  Tensors roots, seeds;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    if (!outputs[k].requires_grad()) continue;
    roots.push_back(outputs[k]);
    seeds.push_back(cotangents[k]);
  }
  Tensors analytic(wanted.size());
  if (!roots.empty() && !wanted.empty()) analytic = grad(roots, wanted, seeds, {.allow_unused = true});
  for (std::size_t w = 0; w < which.size(); ++w) {
    Tensor& x = inputs[which[w]];
    const Tensor dense =
        analytic[w].defined() ? analytic[w].detach().contiguous(x.suggest_memory_format()) : zeros_like(x);
    if (dense.shape() != x.shape()) {
      return {false, "input " + text(which[w]) + ": the gradient has shape " + text(dense.shape()) + ", expected " +
                         text(x.shape())};
    }
    const double* g = dense.data<double>();
    Tensors moved(inputs.begin(), inputs.end());
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      double at[2];
      for (int side = 0; side < 2; ++side) {
        Tensor copy = x.detach().clone();
        copy.mutable_data<double>()[i] += side ? options.eps : -options.eps;
        moved[which[w]] = copy;
        at[side] = inner_product(fn, moved, cotangents);
      }
      const double numeric = (at[1] - at[0]) / (2 * options.eps);
      if (!(std::abs(numeric - g[i]) <= options.atol + options.rtol * std::abs(numeric))) {
        return {false, "input " + text(which[w]) + ", element " + text(i) + ": numeric " + text(numeric) +
                           ", analytic " + text(g[i])};
      }
    }
  }
  return {};
}

GradcheckResult gradgradcheck(const GradcheckFn& fn, std::span<const Tensor> given, Generator& generator,
                              GradcheckOptions options) {
  Tensors inputs = recording_copies(given);
  const std::size_t count = inputs.size();
  Tensors probe;
  {
    const GradMode on(true);
    probe = fn(inputs);
  }
  // The checked function: (inputs, cotangents) -> gradients of the inputs.
  std::vector<std::size_t> recorded;
  for (std::size_t k = 0; k < probe.size(); ++k) {
    if (!is_float(probe[k].dtype()) || !probe[k].requires_grad()) continue;
    recorded.push_back(k);
    inputs.push_back(randn(probe[k].shape(), generator, probe[k].device(), probe[k].dtype()));
    inputs.back().requires_grad_();
  }
  if (recorded.empty()) return {};
  const GradcheckFn first = [&](std::span<const Tensor> all) {
    const GradMode on(true);
    Tensors at(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count)), wanted;
    for (std::size_t i = 0; i < count; ++i) {
      if (!given[i].requires_grad()) continue;
      if (!at[i].requires_grad()) at[i].requires_grad_();
      wanted.push_back(at[i]);
    }
    const Tensors out = fn(at);
    Tensors roots, seeds;
    for (std::size_t k = 0; k < recorded.size(); ++k) {
      roots.push_back(out[recorded[k]]);
      seeds.push_back(all[count + k]);
    }
    Tensors result = grad(roots, wanted, seeds, {.create_graph = true, .allow_unused = true});
    Tensors defined;
    for (Tensor& t : result) {
      if (t.defined()) defined.push_back(std::move(t));
    }
    return defined;
  };
  return gradcheck(first, inputs, options);
}

}  // namespace levin
