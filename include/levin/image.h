// What transforms of samples (levin/data/transforms.h) and of batches (levin/augment.h) share.
#pragma once

#include <array>
#include <cstdint>

namespace levin {

// Where a number is drawn from, uniformly: around the value that changes nothing, .degrees = 30 for -30 to 30 and
// .brightness = 0.4 for 0.6 to 1.4; or between two, .degrees = {0, 90}.
class Spread {
 public:
  constexpr Spread(double amount) : low_(amount), high_(amount), around_(true) {}  // NOLINT: a number is a spread
  constexpr Spread(double low, double high) : low_(low), high_(high) {}
  // The ends, given the value that changes nothing.
  [[nodiscard]] constexpr double low(double neutral) const { return around_ ? neutral - low_ : low_; }
  [[nodiscard]] constexpr double high(double neutral) const { return around_ ? neutral + high_ : high_; }

 private:
  double low_, high_;
  bool around_ = false;
};

// nearest: the pixel whose center is nearest (of two the even one). bilinear: between the four around the point.
enum class Interpolation : std::uint8_t { nearest, bilinear };

// A random affine map about the center of an image. Angles are in degrees.
struct RandomAffineOptions {
  Spread degrees = 0;                 // clockwise
  std::array<double, 2> translate{};  // at most these parts of {height, width}, 0 to 1; whole pixels
  Spread scale = 0;                   // above 0; 1 changes nothing
  Spread shear_x = 0, shear_y = 0;    // -90 to 90, exclusive
  Interpolation interpolation = Interpolation::nearest;
  double fill = 0;  // a pixel outside of the image, in the image's range: 0 .. 255 for u8
};

}  // namespace levin
