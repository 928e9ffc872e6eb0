// What tests over the op table share: inputs of a sample, its forward and backward, and the comparison of results.
#pragma once

#include <cstdint>

#include "tests/ops/samples.h"

namespace levin::testing {

// Random values on cpu, from the standard library's engine: Levin's own random numbers are under test.
Tensors make_inputs(const OpSample& s, DType dtype, std::uint64_t seed);
bool takes_dtype(const Input& in);
Tensors widened(const OpSample& s, const Tensors& inputs);  // reals as f64

bool same_bits(const Tensor& a, const Tensor& b);  // on any device; two undefined tensors are equal
// The largest allowed difference: ulps * eps * sqrt(sums) of the largest reference value, or of `floor` above it.
void check_close(const OpCase& c, DType dtype, const Tensors& got, const Tensors& want, double floor = 0);
// For each element ulps * (eps * the larger of its reference and `floor` + the smallest number). A NaN in the reference
// requires NaN, or with NanMeans::anything accepts every value.
enum class NanMeans { nan, anything };
void check_each(double ulps, double floor, NanMeans nan, DType dtype, const Tensor& got, const Tensor& want);
// The derivatives of a sample with `slopes`, from cotangents of 1, in every float dtype.
void check_slopes(const OpCase& c, const OpSample& s);

// The same values in another layout: dimensions reversed in memory, every second element, off by one element, images in
// channels-last memory.
enum class Layout { transposed, stepped, unaligned, channels_last };
inline constexpr Layout kLayouts[] = {Layout::transposed, Layout::stepped, Layout::unaligned, Layout::channels_last};
Tensor laid_out(const Tensor& t, Layout layout);

struct Run {
  Tensors outputs, gradients;  // of the real inputs, undefined where no gradient flows
};
// Forward and, for floats, backward with fixed cotangents; `only` restricts requires_grad to one input.
Run run(const OpSample& s, const Tensors& given, int only = -1);
// The gradients of two runs: the same ones, within the error of the case and of the sample's cancelled terms.
void check_gradients(const OpCase& c, const OpSample& s, DType dtype, const Run& got, const Run& want);

}  // namespace levin::testing
