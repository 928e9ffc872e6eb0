// random_crop, flips, random_affine and cutout: where a pixel of the result comes from.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "data/transforms/step.h"
#include "tensor/image/affine.h"

namespace levin::data {
namespace {

void check_fill(const char* name, double fill) {
  if (!std::isfinite(fill)) fail<ConfigError>(name, ": fill is ", fill, ", expected a finite number");
}

// The pixel of 0 .. n - 1 that lies at i; negative for `fill`.
std::int64_t mapped(PaddingMode mode, std::int64_t i, std::int64_t n) {
  if (i >= 0 && i < n) return i;
  switch (mode) {
    case PaddingMode::constant: return -1;
    case PaddingMode::edge: return i < 0 ? 0 : n - 1;
    case PaddingMode::reflect: return i < 0 ? -i : 2 * n - 2 - i;
    case PaddingMode::symmetric: return i < 0 ? -i - 1 : 2 * n - 1 - i;
  }
  return -1;
}

// memcpy, inline for the short rows of small images.
void copy_row(void* to, const void* from, std::size_t bytes) {
  using Piece = std::array<std::byte, 16>;
  if (bytes < sizeof(Piece) || bytes > 8 * sizeof(Piece)) {
    std::memcpy(to, from, bytes);
    return;
  }
  const auto copy = [&](std::size_t at) {
    std::memcpy(static_cast<std::byte*>(to) + at, static_cast<const std::byte*>(from) + at, sizeof(Piece));
  };
  for (std::size_t at = 0; at + sizeof(Piece) < bytes; at += sizeof(Piece)) copy(at);
  copy(bytes - sizeof(Piece));
}

class RandomCrop final : public Transform::Step {
 public:
  RandomCrop(const RandomCropOptions& o, std::size_t field) : Step("random_crop", field), o_(o) {
    check_fill(name(), o.fill);
    constexpr std::int64_t kMost = std::int64_t{1} << 31;
    const auto [height, width] = o.size;
    if (height < 0 || width < 0 || (height == 0) != (width == 0) || height > kMost || width > kMost)
      fail<ConfigError>("random_crop: size is {", height, ", ", width,
                        "}, expected two numbers from 1 to 2^31, or {0, 0} for the image's");
    for (const std::int64_t p : o.padding)
      if (p < 0 || p > kMost) fail<ConfigError>("random_crop: padding is ", p, ", expected 0 to 2^31");
  }
  Plane plan(const Plane& in) const override {
    check_image(in);
    const Plane out{in.dtype, o_.size[0] == 0 ? in.shape : Shape{in.channels(), o_.size[0], o_.size[1]}};
    for (const int d : {1, 2}) {
      const std::int64_t pad = o_.padding[static_cast<std::size_t>(d - 1)], n = in.shape[d];
      if (n + 2 * pad < out.shape[d])
        fail<ShapeError>("random_crop: a window of ", out.shape[d], " pixels along dimension ", d, " of shape ",
                         in.shape, " with padding ", pad, ", expected at most ", n + 2 * pad);
      const std::int64_t most = o_.mode == PaddingMode::reflect ? n - 1 : n;
      if (pad > 0 && n == 0) fail<ShapeError>("random_crop: an image of shape ", in.shape, " has nothing to pad");
      if ((o_.mode == PaddingMode::reflect || o_.mode == PaddingMode::symmetric) && pad > most)
        fail<ShapeError>("random_crop: padding ", pad, " mirrors dimension ", d, " of shape ", in.shape,
                         ", expected at most ", most);
    }
    return out;
  }
  void run(const Plane& in, const std::byte* from, std::byte* to, Generator& rng) const override {
    const std::int64_t height = o_.size[0] == 0 ? in.height() : o_.size[0],
                       width = o_.size[1] == 0 ? in.width() : o_.size[1];
    const std::int64_t top = rng.integer(0, in.height() + 2 * o_.padding[0] - height + 1) - o_.padding[0],
                       left = rng.integer(0, in.width() + 2 * o_.padding[1] - width + 1) - o_.padding[1];
    // Columns [begin, end) lie in the image.
    const std::int64_t begin = std::clamp<std::int64_t>(-left, 0, width),
                       end = std::clamp<std::int64_t>(in.width() - left, begin, width);
    with_pixels(in.dtype, [&]<class T>(T) {
      const T* x = pixels<T>(from);
      T* y = pixels<T>(to);
      const T fill = pixel_of<T>(o_.fill);
      for (std::int64_t c = 0; c < in.channels(); ++c, x += in.height() * in.width()) {
        for (std::int64_t i = 0; i < height; ++i, y += width) {
          const std::int64_t r = mapped(o_.mode, top + i, in.height());
          if (r < 0) {
            std::fill_n(y, width, fill);
            continue;
          }
          const T* const row = x + r * in.width();
          const auto outside = [&](std::int64_t j) {
            const std::int64_t s = mapped(o_.mode, left + j, in.width());
            y[j] = s < 0 ? fill : row[s];
          };
          for (std::int64_t j = 0; j < begin; ++j) outside(j);
          if (end > begin) copy_row(y + begin, row + (left + begin), static_cast<std::size_t>(end - begin) * sizeof(T));
          for (std::int64_t j = end; j < width; ++j) outside(j);
        }
      }
    });
  }

 private:
  RandomCropOptions o_;
};

// The bytes of eight pixels are turned at once where they are u8.
void reverse_row(const std::uint8_t* x, std::uint8_t* y, std::int64_t n) {
  std::int64_t j = 0;
  for (; j + 8 <= n; j += 8) {
    std::uint64_t eight;
    std::memcpy(&eight, x + n - 8 - j, sizeof eight);
    eight = __builtin_bswap64(eight);
    std::memcpy(y + j, &eight, sizeof eight);
  }
  for (; j < n; ++j) y[j] = x[n - 1 - j];
}
void reverse_row(const float* x, float* y, std::int64_t n) { std::reverse_copy(x, x + n, y); }

class RandomFlip final : public Transform::Step {
 public:
  RandomFlip(const char* name, bool horizontal, double p, std::size_t field)
      : Step(name, field), horizontal_(horizontal), p_(p) {
    if (!(p >= 0 && p <= 1)) fail<ConfigError>(name, ": p is ", p, ", expected a probability in [0, 1]");
  }
  Plane plan(const Plane& in) const override {
    check_image(in);
    return in;
  }
  void run(const Plane& in, const std::byte* from, std::byte* to, Generator& rng) const override {
    const bool flipped = rng.uniform() < p_;
    if (in.bytes() == 0) return;
    if (!flipped) {
      std::memcpy(to, from, in.bytes());
      return;
    }
    with_pixels(in.dtype, [&]<class T>(T) {
      const std::int64_t width = in.width(), rows = in.channels() * in.height();
      const T* x = pixels<T>(from);
      T* y = pixels<T>(to);
      for (std::int64_t i = 0; i < rows; ++i, y += width) {
        if (horizontal_) {
          reverse_row(x + i * width, y, width);
        } else {
          const std::int64_t c = i / in.height(), r = (c + 1) * in.height() - 1 - (i - c * in.height());
          std::memcpy(y, x + r * width, static_cast<std::size_t>(width) * sizeof(T));
        }
      }
    });
  }

 private:
  bool horizontal_;
  double p_;
};

class RandomAffine final : public Transform::Step {
 public:
  RandomAffine(const char* name, const RandomAffineOptions& o, std::size_t field) : Step(name, field), o_(o) {
    levin::detail::check_affine(name, o);
  }
  Plane plan(const Plane& in) const override {
    check_image(in);
    return in;
  }
  void run(const Plane& in, const std::byte* from, std::byte* to, Generator& rng) const override {
    double u[6];
    for (double& x : u) x = rng.uniform();
    const Map map{levin::detail::affine_map<double>(levin::detail::affine_ranges(o_, in.height(), in.width()), u,
                                                    [](double x) { return x; }),
                  static_cast<double>(in.width() - 1) / 2, static_cast<double>(in.height() - 1) / 2};
    with_pixels(in.dtype, [&]<class T>(T) {
      if (o_.interpolation == Interpolation::nearest)
        nearest(in, map, pixels<T>(from), pixels<T>(to));
      else
        bilinear(in, map, pixels<T>(from), pixels<T>(to));
    });
  }

 private:
  struct Map {
    levin::detail::AffineMap map;
    double cx, cy;
    // Where the pixel (j, i) of the result lies in the image.
    [[nodiscard]] float x(double j, double i) const {
      return static_cast<float>(map.m[0] * (j - cx) + map.m[1] * (i - cy) + map.m[2] + cx);
    }
    [[nodiscard]] float y(double j, double i) const {
      return static_cast<float>(map.m[3] * (j - cx) + map.m[4] * (i - cy) + map.m[5] + cy);
    }
  };
  // Calls f(x, y, index in the result's channel) for the pixels that see the image, others(index) for the others.
  template <class F, class G>
  static void each(const Plane& in, const Map& map, F&& f, G&& others) {
    const auto h = static_cast<float>(in.height()), w = static_cast<float>(in.width());
    std::int64_t at = 0;
    for (std::int64_t i = 0; i < in.height(); ++i) {
      for (std::int64_t j = 0; j < in.width(); ++j, ++at) {
        const float x = map.x(static_cast<double>(j), static_cast<double>(i)),
                    y = map.y(static_cast<double>(j), static_cast<double>(i));
        if (x > -1 && x < w && y > -1 && y < h)
          f(x, y, at);
        else
          others(at);
      }
    }
  }
  template <class T>
  void nearest(const Plane& in, const Map& map, const T* from, T* to) const {
    const std::int64_t plane = in.height() * in.width();
    const T fill = pixel_of<T>(o_.fill);
    const auto others = [&](std::int64_t at) {
      for (std::int64_t c = 0; c < in.channels(); ++c) to[c * plane + at] = fill;
    };
    each(
        in, map,
        [&](float x, float y, std::int64_t at) {
          const auto s = static_cast<std::int64_t>(std::nearbyint(x)), r = static_cast<std::int64_t>(std::nearbyint(y));
          if (s < 0 || r < 0 || s >= in.width() || r >= in.height()) return others(at);
          for (std::int64_t c = 0; c < in.channels(); ++c) to[c * plane + at] = from[c * plane + r * in.width() + s];
        },
        others);
  }
  template <class T>
  void bilinear(const Plane& in, const Map& map, const T* from, T* to) const {
    const std::int64_t plane = in.height() * in.width(), width = in.width();
    const float fill = std::is_same_v<T, float> ? static_cast<float>(o_.fill) : pixel_of<T>(o_.fill);
    const auto others = [&](std::int64_t at) {
      for (std::int64_t c = 0; c < in.channels(); ++c) to[c * plane + at] = static_cast<T>(fill);
    };
    each(
        in, map,
        [&](float x, float y, std::int64_t at) {
          const float left = std::floor(x), top = std::floor(y), u = x - left, v = y - top;
          const auto s = static_cast<std::int64_t>(left), r = static_cast<std::int64_t>(top);
          const bool in_left = s >= 0, in_right = s + 1 < width, in_top = r >= 0, in_bottom = r + 1 < in.height();
          const float weights[4] = {(1 - u) * (1 - v), u * (1 - v), (1 - u) * v, u * v};
          for (std::int64_t c = 0; c < in.channels(); ++c) {
            const T* const p = from + c * plane;
            const auto pixel = [&](bool inside, std::int64_t i, std::int64_t j) {
              return inside ? static_cast<float>(p[i * width + j]) : fill;
            };
            const float value = weights[0] * pixel(in_top && in_left, r, s) +
                                weights[1] * pixel(in_top && in_right, r, s + 1) +
                                weights[2] * pixel(in_bottom && in_left, r + 1, s) +
                                weights[3] * pixel(in_bottom && in_right, r + 1, s + 1);
            if constexpr (std::is_same_v<T, float>)
              to[c * plane + at] = value;
            else
              to[c * plane + at] = static_cast<T>(std::nearbyint(std::clamp(value, 0.f, 255.f)));
          }
        },
        others);
  }
  RandomAffineOptions o_;
};

class Cutout final : public Transform::Step {
 public:
  Cutout(std::int64_t size, double fill, std::size_t field) : Step("cutout", field), size_(size), fill_(fill) {
    check_fill(name(), fill);
    if (size < 1 || size > std::int64_t{1} << 31)
      fail<ConfigError>("cutout: size is ", size, ", expected 1 to 2^31 pixels");
  }
  Plane plan(const Plane& in) const override {
    check_image(in);
    if (in.height() == 0 || in.width() == 0)
      fail<ShapeError>("cutout: field ", field(), " has shape ", in.shape, ", expected an image with pixels");
    return in;
  }
  void run(const Plane& in, const std::byte* from, std::byte* to, Generator& rng) const override {
    if (in.bytes() > 0) std::memcpy(to, from, in.bytes());
    const std::int64_t top = rng.integer(0, in.height()) - size_ / 2, left = rng.integer(0, in.width()) - size_ / 2;
    const std::int64_t r0 = std::max<std::int64_t>(top, 0), r1 = std::min(top + size_, in.height()),
                       c0 = std::max<std::int64_t>(left, 0), c1 = std::min(left + size_, in.width());
    with_pixels(in.dtype, [&]<class T>(T) {
      for (std::int64_t c = 0; c < in.channels(); ++c) {
        T* const plane = pixels<T>(to) + c * in.height() * in.width();
        for (std::int64_t r = r0; r < r1; ++r) std::fill_n(plane + r * in.width() + c0, c1 - c0, pixel_of<T>(fill_));
      }
    });
  }

 private:
  std::int64_t size_;
  double fill_;
};

}  // namespace

Transform random_crop(RandomCropOptions options, std::size_t field) {
  return Transform(std::make_shared<RandomCrop>(options, field));
}
Transform random_horizontal_flip(double p, std::size_t field) {
  return Transform(std::make_shared<RandomFlip>("random_horizontal_flip", true, p, field));
}
Transform random_vertical_flip(double p, std::size_t field) {
  return Transform(std::make_shared<RandomFlip>("random_vertical_flip", false, p, field));
}
Transform random_affine(RandomAffineOptions options, std::size_t field) {
  return Transform(std::make_shared<RandomAffine>("random_affine", options, field));
}
Transform random_rotation(RandomRotationOptions options, std::size_t field) {
  const RandomAffineOptions turned{.degrees = {-options.degrees.high(0), -options.degrees.low(0)},
                                   .interpolation = options.interpolation,
                                   .fill = options.fill};
  return Transform(std::make_shared<RandomAffine>("random_rotation", turned, field));
}
Transform cutout(std::int64_t size, double fill, std::size_t field) {
  return Transform(std::make_shared<Cutout>(size, fill, field));
}

}  // namespace levin::data
