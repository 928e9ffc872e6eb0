// color_jitter: brightness, contrast, saturation and hue by torchvision's formulas.
#include <algorithm>
#include <cmath>

#include "data/transforms/step.h"

namespace levin::data {
namespace {

template <class T>
constexpr float kMost = std::is_same_v<T, float> ? 1.f : 255.f;

// A value limited to the range of pixels; u8 is rounded down.
template <class T>
T limited(float value) {
  return static_cast<T>(std::clamp(value, 0.f, kMost<T>));
}
template <class T>
float grey(const T* p, std::int64_t plane) {
  const float value = 0.2989f * static_cast<float>(p[0]) + 0.587f * static_cast<float>(p[plane]) +
                      0.114f * static_cast<float>(p[2 * plane]);
  return std::is_same_v<T, float> ? value : std::floor(value);
}

template <class T>
void brightness(T* p, std::int64_t n, float factor) {
  for (std::int64_t i = 0; i < n; ++i) p[i] = limited<T>(static_cast<float>(p[i]) * factor);
}
template <class T>
void contrast(T* p, std::int64_t channels, std::int64_t plane, double by) {
  double sum = 0;
  for (std::int64_t i = 0; i < plane; ++i) sum += channels == 3 ? grey(p + i, plane) : static_cast<float>(p[i]);
  const float factor = static_cast<float>(by),
              rest = static_cast<float>(1 - by) * static_cast<float>(sum / static_cast<double>(plane));
  for (std::int64_t i = 0; i < channels * plane; ++i) p[i] = limited<T>(static_cast<float>(p[i]) * factor + rest);
}
template <class T>
void saturation(T* p, std::int64_t plane, double by) {
  const float factor = static_cast<float>(by), back = static_cast<float>(1 - by);
  for (std::int64_t i = 0; i < plane; ++i) {
    const float rest = back * grey(p + i, plane);
    for (const std::int64_t c : {i, plane + i, 2 * plane + i})
      p[c] = limited<T>(static_cast<float>(p[c]) * factor + rest);
  }
}
template <class T>
void hue(T* p, std::int64_t plane, float turn) {
  for (std::int64_t i = 0; i < plane; ++i) {
    const float r = static_cast<float>(p[i]) / kMost<T>, g = static_cast<float>(p[plane + i]) / kMost<T>,
                b = static_cast<float>(p[2 * plane + i]) / kMost<T>;
    const float most = std::max({r, g, b}), least = std::min({r, g, b}), range = most - least;
    const float by = range > 0 ? range : 1, s = range / (range > 0 ? most : 1);
    const float rc = (most - r) / by, gc = (most - g) / by, bc = (most - b) / by;
    const float sixths = most == r ? bc - gc : most == g ? rc + 2 - bc : gc + 4 - rc;
    float h = std::fmod(sixths / 6 + 1, 1.f) + turn;
    h -= std::floor(h);
    const float at = std::floor(h * 6), f = h * 6 - at;
    const int sector = at >= 0 && at < 6 ? static_cast<int>(at) : 0;  // h may round up to 1, or be NaN
    const auto part = [&](float v) { return std::clamp(v * most, 0.f, 1.f); };
    const float low = part(1 - s), falling = part(1 - s * f), rising = part(s * f + (1 - s));
    float rgb[3];
    switch (sector) {
      case 0: rgb[0] = most, rgb[1] = rising, rgb[2] = low; break;
      case 1: rgb[0] = falling, rgb[1] = most, rgb[2] = low; break;
      case 2: rgb[0] = low, rgb[1] = most, rgb[2] = rising; break;
      case 3: rgb[0] = low, rgb[1] = falling, rgb[2] = most; break;
      case 4: rgb[0] = rising, rgb[1] = low, rgb[2] = most; break;
      default: rgb[0] = most, rgb[1] = low, rgb[2] = falling; break;
    }
    for (std::int64_t c = 0; c < 3; ++c) {
      // torchvision: 0 .. 1 times a little less than 256 rounds down to 0 .. 255.
      if constexpr (std::is_same_v<T, float>)
        p[c * plane + i] = rgb[c];
      else
        p[c * plane + i] = static_cast<T>(rgb[c] * 255.999f);
    }
  }
}

class ColorJitter final : public Transform::Step {
 public:
  ColorJitter(const ColorJitterOptions& o, std::size_t field) : Step("color_jitter", field) {
    constexpr double kMostFactor = 1e30;  // sums of pixels by it are finite in f32
    const auto range = [](const char* what, const Spread& s, double neutral, double least, double most) {
      const Range r{std::max(least, s.low(neutral)), s.high(neutral)};
      if (!(s.low(neutral) <= s.high(neutral) && r.high >= least && r.high <= most) ||
          (neutral == 0 && s.low(neutral) < least))
        fail<ConfigError>("color_jitter: ", what, " is ", s.low(neutral), " to ", s.high(neutral),
                          ", expected rising numbers within ", least, " to ", most);
      return r;
    };
    ranges_ = {range("brightness", o.brightness, 1, 0, kMostFactor), range("contrast", o.contrast, 1, 0, kMostFactor),
               range("saturation", o.saturation, 1, 0, kMostFactor), range("hue", o.hue, 0, -0.5, 0.5)};
  }
  Plane plan(const Plane& in) const override {
    check_image(in);
    if (in.channels() != 1 && in.channels() != 3)
      fail<ShapeError>("color_jitter: field ", field(), " has shape ", in.shape, ", expected 1 or 3 channels");
    return in;
  }
  void run(const Plane& in, const std::byte* from, std::byte* to, Generator& rng) const override {
    // The order of the four: the factorial digits of one of 24.
    std::array<std::size_t, 4> order{0, 1, 2, 3};
    std::int64_t which = rng.integer(0, 24);
    for (std::int64_t i = 3; i > 0; which /= i + 1, --i)
      std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(which % (i + 1))]);
    std::array<double, 4> by{};
    for (std::size_t k = 0; k < 4; ++k) by[k] = draw_between(rng, ranges_[k].low, ranges_[k].high);
    const std::int64_t plane = in.height() * in.width(), channels = in.channels();
    if (plane == 0) return;
    std::copy_n(from, in.bytes(), to);
    with_pixels(in.dtype, [&]<class T>(T) {
      T* const p = pixels<T>(to);
      for (const std::size_t k : order) {
        const double neutral = k == 3 ? 0 : 1;
        if (ranges_[k].low == neutral && ranges_[k].high == neutral) continue;
        if (k == 0) brightness(p, channels * plane, static_cast<float>(by[k]));
        if (k == 1) contrast(p, channels, plane, by[k]);
        if (k == 2 && channels == 3) saturation(p, plane, by[k]);
        if (k == 3 && channels == 3) hue(p, plane, static_cast<float>(by[k]));
      }
    });
  }

 private:
  struct Range {
    double low, high;
  };
  std::array<Range, 4> ranges_;
};

}  // namespace

Transform color_jitter(ColorJitterOptions options, std::size_t field) {
  return Transform(std::make_shared<ColorJitter>(options, field));
}

}  // namespace levin::data
