// What the tests over the op table share: inputs of a sample, its run forward and backward, and how results are compared.
#pragma once

#include <cstdint>

#include "tests/ops/samples.h"

namespace levin::testing {

// Random values by the standard library's engine, not Levin's: what is under test does not feed itself. On cpu.
Tensors make_inputs(const OpSample& s, DType dtype, std::uint64_t seed);
bool takes_dtype(const Input& in);
Tensors widened(const OpSample& s, const Tensors& inputs);  // reals as f64

bool same_bits(const Tensor& a, const Tensor& b);  // on whatever device; both undefined is the same too
// Largest difference allowed: ulps * eps * sqrt(sums) of the largest reference value.
void check_close(const OpCase& c, DType dtype, const Tensors& got, const Tensors& want);

// The same values in another layout: dimensions reversed in memory, every second element, off by one element.
enum class Layout { transposed, stepped, unaligned };
Tensor laid_out(const Tensor& t, Layout layout);

struct Run {
  Tensors outputs, gradients;  // of the real inputs, undefined where nothing flows
};
// Forward and, for floats, backward with fixed cotangents; `only` restricts requires_grad to one input.
Run run(const OpSample& s, const Tensors& given, int only = -1);

}  // namespace levin::testing
