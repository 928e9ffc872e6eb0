#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <mutex>
#include <numbers>
#include <span>
#include <utility>
#include <vector>

#include "data/random.h"
#include "levin/data.h"

// Digits as strokes: points in the unit square (y down), each moved a little, put through a random affine map, drawn
// with a pen of random width, with noise added.
namespace levin::data {
namespace {

constexpr int kSide = 28;

struct Point {
  float x, y;
};
using Stroke = std::vector<Point>;
using Strokes = std::vector<Stroke>;

Stroke ellipse(float cx, float cy, float rx, float ry) {
  Stroke s;
  for (int i = 0; i <= 14; ++i) {
    const float a = static_cast<float>(i) * std::numbers::pi_v<float> / 7;
    s.push_back({cx + rx * std::sin(a), cy - ry * std::cos(a)});
  }
  return s;
}

std::array<Strokes, 10> make_digits() {
  std::array<Strokes, 10> d;
  d[0] = {ellipse(.5f, .5f, .27f, .42f)};
  d[1] = {{{.34f, .26f}, {.53f, .09f}, {.53f, .91f}}};
  d[2] = {{{.25f, .3f},
           {.3f, .17f},
           {.45f, .1f},
           {.62f, .14f},
           {.71f, .28f},
           {.66f, .45f},
           {.46f, .66f},
           {.25f, .88f},
           {.76f, .88f}}};
  d[3] = {{{.27f, .17f},
           {.45f, .1f},
           {.64f, .15f},
           {.7f, .29f},
           {.62f, .42f},
           {.44f, .48f},
           {.65f, .54f},
           {.74f, .7f},
           {.65f, .85f},
           {.45f, .91f},
           {.26f, .83f}}};
  d[4] = {{{.62f, .91f}, {.62f, .1f}, {.22f, .63f}, {.8f, .63f}}};
  d[5] = {{{.72f, .1f},
           {.33f, .1f},
           {.29f, .46f},
           {.5f, .41f},
           {.67f, .49f},
           {.73f, .66f},
           {.64f, .84f},
           {.45f, .91f},
           {.26f, .84f}}};
  d[6] = {{{.65f, .1f},
           {.45f, .25f},
           {.31f, .48f},
           {.28f, .7f},
           {.4f, .89f},
           {.58f, .89f},
           {.7f, .75f},
           {.66f, .58f},
           {.5f, .51f},
           {.32f, .6f}}};
  d[7] = {{{.24f, .12f}, {.76f, .12f}, {.58f, .48f}, {.44f, .91f}}};
  d[8] = {ellipse(.5f, .29f, .19f, .19f), ellipse(.5f, .7f, .24f, .21f)};
  d[9] = d[6];  // turned by half a circle
  for (Point& p : d[9][0]) p = {1 - p.x, 1 - p.y};
  return d;
}

// Uniform numbers of one picture.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : words_(seed, 0, Purpose::sample) {}
  std::uint32_t word() { return words_(next_++); }
  float between(float low, float high) { return low + (high - low) * (static_cast<float>(word() >> 8) * 0x1p-24f); }

 private:
  Words words_;
  std::uint64_t next_ = 0;
};

// The distance of pixel p from the segment a b.
float distance(Point p, Point a, Point b) {
  const float dx = b.x - a.x, dy = b.y - a.y;
  const float length = dx * dx + dy * dy;
  const float t = length > 0 ? std::clamp(((p.x - a.x) * dx + (p.y - a.y) * dy) / length, 0.f, 1.f) : 0.f;
  return std::hypot(p.x - a.x - t * dx, p.y - a.y - t * dy);
}

void draw_one(const Strokes& strokes, Draw& draw, std::uint8_t* pixels) {
  const float angle = draw.between(-.22f, .22f), shear = draw.between(-.25f, .25f);
  const float sx = draw.between(14.f, 21.f), sy = draw.between(17.f, 22.f);  // pixels a unit
  const float cx = 13.5f + draw.between(-2.f, 2.f), cy = 13.5f + draw.between(-2.f, 2.f);
  const float pen = draw.between(.7f, 1.5f), ink = draw.between(.75f, 1.f), noise = draw.between(0.f, .08f);
  const float c = std::cos(angle), s = std::sin(angle);
  std::array<float, kSide * kSide> light{};
  for (const Stroke& stroke : strokes) {
    std::vector<Point> points;
    for (const Point p : stroke) {
      const float y = (p.y - .5f + draw.between(-.025f, .025f)) * sy;
      const float x = (p.x - .5f + draw.between(-.025f, .025f)) * sx - shear * y;
      points.push_back({cx + c * x - s * y, cy + s * x + c * y});
    }
    for (std::size_t i = 1; i < points.size(); ++i) {
      const Point a = points[i - 1], b = points[i];
      const float reach = pen + 1;
      const int x0 = std::max(0, static_cast<int>(std::min(a.x, b.x) - reach));
      const int x1 = std::min(kSide - 1, static_cast<int>(std::max(a.x, b.x) + reach) + 1);
      const int y0 = std::max(0, static_cast<int>(std::min(a.y, b.y) - reach));
      const int y1 = std::min(kSide - 1, static_cast<int>(std::max(a.y, b.y) + reach) + 1);
      for (int y = y0; y <= y1; ++y) {
        for (int x = x0; x <= x1; ++x) {
          float& at = light[static_cast<std::size_t>(y * kSide + x)];
          const float d = distance({static_cast<float>(x), static_cast<float>(y)}, a, b);
          at = std::max(at, std::clamp(pen + .5f - d, 0.f, 1.f));
        }
      }
    }
  }
  for (std::size_t i = 0; i < light.size(); ++i) {
    const float grain = noise * draw.between(-1.f, 1.f);
    pixels[i] = static_cast<std::uint8_t>(std::clamp(255 * (ink * light[i] + grain), 0.f, 255.f));
  }
}

// Images u8 [count, 1, 28, 28] and labels u8 [count], each drawn by a call of draw.
class Sheet {
 public:
  Sheet(Split split, const Generator& generator, std::int64_t count)
      : random_(generator.fork(split == Split::train ? "digits.train" : "digits.test"), 0) {
    if (count < 0) fail<ConfigError>("draw_digits: count is ", count, ", expected 0 or more");
    images = empty({count, 1, kSide, kSide}, Device::cpu(), DType::u8);
    labels = empty({count}, Device::cpu(), DType::u8);
    pixels_ = images.mutable_data<std::uint8_t>();
    label_ = labels.mutable_data<std::uint8_t>();
  }
  void draw(std::int64_t i) const {
    Draw draw(random_.sample(i).seed());
    label_[i] = static_cast<std::uint8_t>(bounded(draw.word(), 10));
    draw_one(digits_[label_[i]], draw, pixels_ + i * kSide * kSide);
  }
  Tensor images, labels;

 private:
  std::array<Strokes, 10> digits_ = make_digits();
  EpochRandom random_;
  std::uint8_t *pixels_, *label_;
};

// Draws a digit when it is first asked for: a run of a few batches begins at once, and a loader's workers share the
// work of a long one.
class DrawnDigits final : public Dataset {
 public:
  DrawnDigits(Split split, const Generator& generator, std::int64_t count, Normalization normalization)
      : sheet_(split, generator, count),
        all_(image_dataset(sheet_.images, sheet_.labels, normalization)),
        drawn_(static_cast<std::size_t>(count)) {}
  [[nodiscard]] std::int64_t size() const override { return all_->size(); }
  [[nodiscard]] Sample get(std::int64_t index, Generator& rng) const override {
    draw(std::span(&index, 1));
    return all_->get(index, rng);
  }
  [[nodiscard]] Tensors gather(std::span<const std::int64_t> indices, const EpochRandom& random) const override {
    draw(indices);
    return all_->gather(indices, random);
  }
  [[nodiscard]] Tensors gather_into(std::span<const std::int64_t> indices, const EpochRandom& random,
                                    Tensors spare) const override {
    draw(indices);
    return all_->gather_into(indices, random, std::move(spare));
  }

 private:
  void draw(std::span<const std::int64_t> indices) const {
    for (const std::int64_t i : indices) {
      if (i < 0 || i >= size()) return;  // all_ refuses it
      std::atomic<bool>& drawn = drawn_[static_cast<std::size_t>(i)];
      if (drawn.load(std::memory_order_acquire)) continue;
      const std::lock_guard lock(pens_[static_cast<std::size_t>(i) % pens_.size()]);
      if (drawn.load(std::memory_order_relaxed)) continue;
      sheet_.draw(i);
      drawn.store(true, std::memory_order_release);
    }
  }

  Sheet sheet_;
  DatasetRef all_;
  mutable std::vector<std::atomic<bool>> drawn_;
  mutable std::array<std::mutex, 64> pens_;
};

}  // namespace

std::pair<Tensor, Tensor> draw_digits(Split split, const Generator& generator, std::int64_t count) {
  const Sheet sheet(split, generator, count);
  for (std::int64_t i = 0; i < count; ++i) sheet.draw(i);
  const Shape shape{count, kSide, kSide};  // by as_strided, since squeeze is an op and data/ stands below the ops
  return {as_strided(sheet.images, shape, contiguous_strides(shape), 0), sheet.labels};
}

DatasetRef generated_digits(Split split, const Generator& generator, std::int64_t count, Normalization normalization) {
  return std::make_shared<DrawnDigits>(split, generator, count, normalization);
}

}  // namespace levin::data
