#include "tensor/image/affine.h"

#include <cmath>

#include "levin/error.h"

namespace levin::detail {

void check_affine(const char* name, const RandomAffineOptions& o) {
  const auto check = [&](const char* what, const Spread& s, double neutral, double least, double most) {
    const double low = s.low(neutral), high = s.high(neutral);
    if (!(low <= high && low > least && high < most))
      fail<ConfigError>(name, ": ", what, " is ", low, " to ", high, ", expected rising numbers between ", least,
                        " and ", most, ", exclusive");
  };
  check("degrees", o.degrees, 0, -1e6, 1e6);
  check("scale", o.scale, 1, 0, 1e6);
  check("shear_x", o.shear_x, 0, -90, 90);
  check("shear_y", o.shear_y, 0, -90, 90);
  for (const double t : o.translate)
    if (!(t >= 0 && t <= 1)) fail<ConfigError>(name, ": translate is ", t, ", expected 0 to 1");
  if (!std::isfinite(o.fill)) fail<ConfigError>(name, ": fill is ", o.fill, ", expected a finite number");
}

AffineRanges affine_ranges(const RandomAffineOptions& o, std::int64_t height, std::int64_t width) {
  const double dx = o.translate[1] * static_cast<double>(width), dy = o.translate[0] * static_cast<double>(height);
  return {{o.degrees.low(0), -dx, -dy, o.scale.low(1), o.shear_x.low(0), o.shear_y.low(0)},
          {o.degrees.high(0), dx, dy, o.scale.high(1), o.shear_x.high(0), o.shear_y.high(0)}};
}

}  // namespace levin::detail
