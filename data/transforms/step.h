// What a transform of Levin's is made of: a function from the bytes of one field to those of its result, so that a
// sample's tensors and the rows of a batch take the same way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "levin/data/transforms.h"

namespace levin::data {

// A field of a sample: dense, on cpu.
struct Plane {
  DType dtype = DType::u8;
  Shape shape{};
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(shape.numel()) * itemsize(dtype); }
  // Of an image [C, H, W].
  [[nodiscard]] std::int64_t channels() const { return shape[0]; }
  [[nodiscard]] std::int64_t height() const { return shape[1]; }
  [[nodiscard]] std::int64_t width() const { return shape[2]; }
};

// One transform.
class Transform::Step {
 public:
  virtual ~Step() = default;
  // A step of a field; a function of the user's is the one step that is none.
  [[nodiscard]] virtual bool of_field() const { return true; }
  [[nodiscard]] virtual Sample apply(Sample sample, Generator& rng) const;

  [[nodiscard]] std::size_t field() const { return field_; }
  // The result's field for this one, or an error that begins with the transform's name.
  [[nodiscard]] virtual Plane plan(const Plane& in) const = 0;
  // Writes the result of plan(in) to `to`; the two do not overlap.
  virtual void run(const Plane& in, const std::byte* from, std::byte* to, Generator& rng) const = 0;

 protected:
  Step(const char* name, std::size_t field) : name_(name), field_(field) {}
  // Throws unless the field is an image [C, H, W], u8 or f32.
  void check_image(const Plane& in) const;
  [[nodiscard]] const char* name() const { return name_; }

 private:
  const char* name_;
  std::size_t field_;
};

// Calls f(T{}) for the dtype of an image's pixels.
template <class F>
void with_pixels(DType dtype, F&& f) {
  if (dtype == DType::u8)
    f(std::uint8_t{});
  else
    f(float{});
}
template <class T>
const T* pixels(const std::byte* p) {
  return reinterpret_cast<const T*>(p);
}
template <class T>
T* pixels(std::byte* p) {
  return reinterpret_cast<T*>(p);
}
// `fill` as a pixel; u8 is limited to 0 .. 255 and rounded down.
template <class T>
T pixel_of(double fill) {
  if constexpr (std::is_same_v<T, float>)
    return static_cast<float>(fill);
  else
    return fill >= 255 ? std::uint8_t{255} : fill > 0 ? static_cast<std::uint8_t>(fill) : std::uint8_t{0};
}

// Draws a number of a range, also of one that holds a single number: always one draw.
inline double draw_between(Generator& rng, double low, double high) { return low + rng.uniform() * (high - low); }

}  // namespace levin::data
