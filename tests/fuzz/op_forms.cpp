// The forms of calls of ops. A byte of the corpus chooses one by its place, so the order stays.
#include "tests/fuzz/op_forms.h"

#include <vector>

#include "levin/autograd.h"

namespace levin::fuzz {
namespace {

constexpr Form kAutogradForms[] = {
    {"checkpoint",
     [](Chooser&, Pool& p) { return Tensors{checkpoint([](const Tensor& x) { return relu(x) * x; }, p.any())}; }},
};

std::vector<Form> all_forms() {
  std::vector<Form> all;
  for (const std::span<const Form> family : {pointwise_forms(), reduce_forms(), image_forms(), network_forms(),
                                             graph_forms(), std::span<const Form>(kAutogradForms)})
    all.insert(all.end(), family.begin(), family.end());
  return all;
}

}  // namespace

std::span<const Form> forms() {
  static const std::vector<Form> all = all_forms();
  return all;
}

}  // namespace levin::fuzz
