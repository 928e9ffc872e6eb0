// The matrix of a random affine map, the same bits on hosts and devices: the C library's sine differs between machines
// in its last bit, and so would every pixel.
#pragma once

#include <cstdint>

#include "levin/image.h"

namespace levin::detail {

// Leads from a pixel of the result to its place in the image, both from the center: x' = m[0] x + m[1] y + m[2],
// y' = m[3] x + m[4] y + m[5].
struct AffineMap {
  double m[6];
};

// The ends of what is drawn: degrees, pixels to the right, pixels down, scale, shears along x and y in degrees.
struct AffineRanges {
  double low[6], high[6];
};
// Of options for an image of this size. Throws ConfigError, which begins with `name`.
void check_affine(const char* name, const RandomAffineOptions& options);
[[nodiscard]] AffineRanges affine_ranges(const RandomAffineOptions& options, std::int64_t height, std::int64_t width);

// R is a double whose operations are never fused: `double` where the compiler does not fuse, or Rn<double> of
// kernels/device/draw.cuh.
template <class R>
struct Angle {
  R sine, cosine;
};
template <class R>
constexpr R rounded(R x) {  // to the nearest whole number, half to even; |x| < 2^51
  return (x + R{0x1.8p52}) - R{0x1.8p52};
}
template <class R, class Value>
constexpr Angle<R> angle_of(R degrees, const Value& value) {
  const R quarters = rounded(degrees / R{90.0});
  const R x = (degrees - quarters * R{90.0}) * R{0.017453292519943295}, square = x * x;  // |x| <= pi / 4
  // Taylor: the terms left out are below 2^-53.
  R even{0.0}, odd{0.0};
  for (int k = 16; k >= 2; k -= 2) even = (even + R{1.0}) * square * R{-1.0 / (k * (k - 1))};
  for (int k = 17; k >= 3; k -= 2) odd = (odd + R{1.0}) * square * R{-1.0 / (k * (k - 1))};
  const R c = R{1.0} + even, s = x + x * odd, zero{0.0};
  switch (static_cast<std::int64_t>(value(quarters)) & 3) {
    case 0: return {s, c};
    case 1: return {c, zero - s};
    case 2: return {zero - s, zero - c};
    default: return {zero - c, s};
  }
}

// u: six uniform numbers, 0 <= u < 1. torchvision's R(angle) SHy(sy) SHx(sx) has determinant 1; its inverse by the
// scale leads from the result to the image. `value` gives the double of an R.
template <class R, class Value>
constexpr AffineMap affine_map(const AffineRanges& ranges, const double (&u)[6], const Value& value) {
  const auto drawn = [&](int k) { return R{ranges.low[k]} + R{u[k]} * (R{ranges.high[k]} - R{ranges.low[k]}); };
  const R degrees = drawn(0), tx = rounded(drawn(1)), ty = rounded(drawn(2)), scale = drawn(3), zero{0.0};
  const Angle<R> turn = angle_of(degrees, value), x = angle_of(drawn(4), value), y = angle_of(drawn(5), value),
                 rest = angle_of(degrees - drawn(5), value);
  const R tangent = x.sine / x.cosine;
  const R a = rest.cosine / y.cosine, b = zero - (a * tangent + turn.sine);
  const R c = rest.sine / y.cosine, d = turn.cosine - c * tangent;
  const R xx = d / scale, xy = zero - b / scale, yx = zero - c / scale, yy = a / scale;
  return {{value(xx), value(xy), value(zero - (xx * tx + xy * ty)), value(yx), value(yy),
           value(zero - (yx * tx + yy * ty))}};
}

}  // namespace levin::detail
