// What the tests of attention by TMA and wgmma share: heads in memory as models have them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/attention/attention_hopper.h"
#include "tests/simt/hopper.h"

namespace levin::test {

struct AttentionForm {
  std::int64_t batches, heads, rows, cols, width;
  bool causal;
};

// Memory [batches, lines, slots, width], as a projection to heads leaves it.
template <class T>
struct HeadMemory {
  std::int64_t batches, lines, slots, width;
  Aligned<T> numbers;
  HeadMemory(std::int64_t batches_, std::int64_t lines_, std::int64_t slots_, std::int64_t width_, T value)
      : batches(batches_),
        lines(lines_),
        slots(slots_),
        width(width_),
        numbers(std::size_t(batches_ * lines_ * slots_ * width_), value) {}
  // `heads` slots from `first` on.
  kernels::LibraryAttention::Operand operand(std::int64_t heads, std::int64_t first = 0) {
    return {numbers.data() + first * width,
            {batches, heads, lines, width},
            {lines * slots * width, width, slots * width, 1}};
  }
  void fill(T value) { std::fill(numbers.data(), numbers.data() + numbers.size(), value); }
};

template <class T>
T& number_at(const kernels::LibraryAttention::Operand& o, std::int64_t b, std::int64_t h, std::int64_t line,
             std::int64_t column) {
  return static_cast<T*>(o.data)[b * o.strides[0] + h * o.strides[1] + line * o.strides[2] + column];
}
template <class T>
double value_at(const kernels::LibraryAttention::Operand& o, std::int64_t b, std::int64_t h, std::int64_t line,
                std::int64_t column) {
  return double(float(number_at<T>(o, b, h, line, column)));
}

// Numbers of a size up to `most`, each time others.
template <class T>
void fill_heads(const kernels::LibraryAttention::Operand& o, float most, std::uint32_t state) {
  for (std::int64_t b = 0; b < o.sizes[0]; ++b) {
    for (std::int64_t h = 0; h < o.sizes[1]; ++h) {
      for (std::int64_t i = 0; i < o.sizes[2]; ++i) {
        for (std::int64_t c = 0; c < o.sizes[3]; ++c) {
          state = state * 1664525u + 1013904223u;
          number_at<T>(o, b, h, i, c) = T(most * float(std::int32_t(state)) * 0x1p-31f);
        }
      }
    }
  }
}

// Half the distance of numbers of T near 1, and near 0.
template <class T>
inline constexpr double kUnit = std::is_same_v<T, f16> ? 0x1p-11 : 0x1p-8;
template <class T>
inline constexpr double kStep = std::is_same_v<T, f16> ? 0x1p-25 : 0;

// The bytes of all.
template <class... Vectors>
std::vector<std::byte> bytes_of_all(Vectors&... vectors) {
  std::vector<std::byte> all;
  const auto add = [&](auto& v) {
    const auto* const p = reinterpret_cast<const std::byte*>(v.data());
    all.insert(all.end(), p, p + v.size() * sizeof(*v.data()));
  };
  (add(vectors), ...);
  return all;
}

// Whether a problem's results are right, and have the same bits in every order of threads, copies and products.
template <class Problem>
void check_in_every_order(Problem& problem) {
  std::vector<std::byte> first;
  in_every_order([&] {
    problem.run();
    if (first.empty()) {
      first = problem.results();
      CHECK(problem.wrong() == 0);
    }
    CHECK(problem.results() == first);
  });
}

}  // namespace levin::test
