// The forward derivative by two backward passes: the first is linear in its seeds, and the derivative of that linear
// map along the tangents is what is asked for.
#include <utility>
#include <vector>

#include "autograd/seeds.h"
#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin {

JvpResult jvp(const Function<Tensors(std::span<const Tensor>)>& fn, std::span<const Tensor> inputs,
              std::span<const Tensor> tangents, JvpOptions options) {
  if (inputs.empty()) fail<AutogradError>("jvp: no inputs are given");
  if (inputs.size() != tangents.size())
    fail<AutogradError>("jvp: ", tangents.size(), " tangents are given for ", inputs.size(),
                        " inputs, expected one for each");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!is_float(inputs[i].dtype())) fail<DTypeError>("jvp: input ", i, " is ", inputs[i], ", expected floats");
    if (tangents[i].defined()) detail::check_seed("jvp", inputs[i], tangents[i]);
  }
  JvpResult result;
  {
    const GradMode on(true);
    Tensors at;
    for (const Tensor& x : inputs) at.push_back(detail::recorded_alias(options.create_graph ? x : x.detach()));
    result.outputs = fn(at);
    // Zeros: the value of the linear map does not matter, its derivative does.
    Tensors roots, seeds;
    std::vector<std::size_t> place;
    for (std::size_t k = 0; k < result.outputs.size(); ++k) {
      if (!result.outputs[k].requires_grad()) continue;
      roots.push_back(result.outputs[k]);
      seeds.push_back(zeros_like(result.outputs[k]));
      seeds.back().requires_grad_();
      place.push_back(k);
    }
    result.tangents.resize(result.outputs.size());
    if (!roots.empty()) {
      const Tensors pulled = grad(roots, at, seeds, {.create_graph = true, .allow_unused = true});
      Tensors linear, along;
      for (std::size_t i = 0; i < pulled.size(); ++i) {
        if (!pulled[i].defined() || !pulled[i].requires_grad() || !tangents[i].defined()) continue;
        linear.push_back(pulled[i]);
        along.push_back(tangents[i]);
      }
      if (!linear.empty()) {
        Tensors pushed = grad(linear, seeds, along, {.create_graph = options.create_graph, .allow_unused = true});
        for (std::size_t k = 0; k < place.size(); ++k) result.tangents[place[k]] = std::move(pushed[k]);
      }
    }
  }
  for (std::size_t k = 0; k < result.outputs.size(); ++k) {
    if (!result.tangents[k].defined()) result.tangents[k] = zeros_like(result.outputs[k]);
    if (options.create_graph) continue;
    result.outputs[k] = result.outputs[k].detach();
    result.tangents[k] = result.tangents[k].detach();
  }
  return result;
}

}  // namespace levin
