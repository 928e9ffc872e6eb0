// Runs of indices whose elements go past the caches.
#include "kernels/index/index.cuh"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/index/sort.cuh"

using namespace levin;
using namespace levin::kernels;

namespace {

// Rows of x and of indices, whose runs end inside a block.
struct Runs {
  std::int64_t rows = 0, row = 0, indices = 0;
  std::vector<float> x{}, src{};
  std::vector<std::int64_t> index{};

  Runs(std::int64_t rows_, std::int64_t row_, std::int64_t indices_) : rows(rows_), row(row_), indices(indices_) {
    for (std::int64_t i = 0; i < rows * row; ++i) x.push_back(float(i % 1009));
    for (std::int64_t i = 0; i < rows * indices; ++i) {
      src.push_back(float(i % 83));
      index.push_back(i * 7919 % 104729 % row);
    }
  }
  // Of x for gather's b and scatter's y; src has the index's shape.
  [[nodiscard]] IndexWalk walk() const {
    return IndexWalk({rows, indices}, 1, contiguous_strides({rows, row}), contiguous_strides({rows, indices}));
  }
};

const std::vector<Runs>& runs() {
  static const std::vector<Runs> all{{1, 1, 64}, {3, 5, 65}, {4, 1000, 200}, {5, 4096, 131}, {2, 70, 1000}};
  return all;
}

}  // namespace

TEST_CASE("gather beyond the cache reads the elements that its indices name, to the end of each run") {
  for (const Runs& r : runs()) {
    CAPTURE(r.row);
    std::vector<float> y(r.index.size(), -1);
    REQUIRE(cpu::gather_beyond_cache(Cpu(), r.walk(), r.row, r.x.data(), r.index.data(), y.data()));
    for (std::size_t i = 0; i < y.size(); ++i)
      REQUIRE(y[i] == r.x[std::size_t(std::int64_t(i) / r.indices * r.row + r.index[i])]);
  }
}

TEST_CASE("rows beyond the cache are copied and then written or added to in the order of their indices") {
  for (const Runs& r : runs()) {
    CAPTURE(r.row);
    for (const bool adds : {false, true}) {
      std::vector<float> y(r.x.size(), -1), expected = r.x;
      const auto body = [=](float& to, float from) { to = adds ? to + from : from; };
      for (std::size_t i = 0; i < r.index.size(); ++i)
        body(expected[std::size_t(std::int64_t(i) / r.indices * r.row + r.index[i])], r.src[i]);
      REQUIRE(cpu::each_index_onto_beyond_cache(Cpu(), r.walk(), r.row, r.x.data(), y.data(), r.index.data(),
                                                r.src.data(), body));
      CHECK(y == expected);
    }
  }
}

TEST_CASE("an index outside of its row ends gather and scatter beyond the cache before it is used") {
  for (const std::int64_t wrong : {std::int64_t(-1), std::int64_t(1000), std::int64_t(1) << 62}) {
    Runs r(4, 1000, 200);
    r.index[3 * 200 + 199] = wrong;
    std::vector<float> y(r.x.size());
    CHECK_FALSE(cpu::gather_beyond_cache(Cpu(), r.walk(), r.row, r.x.data(), r.index.data(), y.data()));
    CHECK_FALSE(cpu::each_index_onto_beyond_cache(Cpu(), r.walk(), r.row, r.x.data(), y.data(), r.index.data(),
                                                  r.src.data(), [](float& to, float from) { to = from; }));
  }
}

TEST_CASE("rows are added in the order of their indices, whatever the range of rows a call has") {
  for (const CpuLevel level : {CpuLevel::base, CpuLevel::v3, CpuLevel::v4}) {
    if (level > cpu_level()) continue;
    Cpu on;
    on.level = level;
    for (const std::int64_t inner : {1, 5, 33, 700}) {
      const std::int64_t rows = 37, m = 301, skip = 11;
      std::vector<float> x, src;
      std::vector<std::int64_t> index;
      for (std::int64_t i = 0; i < rows * inner; ++i) x.push_back(float(i % 91) / 7);
      for (std::int64_t i = 0; i < m * inner; ++i) src.push_back(float(i % 1013) / 3);
      for (std::int64_t i = 0; i < m; ++i) index.push_back(i * i % (rows - 3));  // the last three rows get nothing
      std::vector<float> expected = x;
      for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < inner && index[std::size_t(i)] != skip; ++j)
          expected[std::size_t(index[std::size_t(i)] * inner + j)] += src[std::size_t(i * inner + j)];
      for (const std::int64_t piece : {std::int64_t(1), std::int64_t(8), rows}) {
        std::vector<float> y(x.size(), -1);
        for (std::int64_t first = 0; first < rows; first += piece)
          cpu::add_to_rows(on, static_cast<const float*>(x.data() + first * inner), index.data(), m, first,
                           std::min(rows, first + piece), static_cast<const float*>(src.data()),
                           y.data() + first * inner, inner, skip);
        CHECK(y == expected);
      }
    }
  }
}

TEST_CASE("16-bit rows are added in f32 and rounded once, onto x or onto zeros") {
  const std::int64_t rows = 9, m = 200, inner = 19;
  std::vector<bf16> x(std::size_t(rows * inner), bf16(256.0f)), src(std::size_t(m * inner), bf16(0.5f));
  std::vector<std::int64_t> index;
  for (std::int64_t i = 0; i < m; ++i) index.push_back(i % 7);  // the last two rows get nothing
  for (const bf16* from : {static_cast<const bf16*>(x.data()), static_cast<const bf16*>(nullptr)}) {
    std::vector<bf16> y(x.size(), bf16(-1.0f));
    cpu::add_to_rows(Cpu(), from, index.data(), m, std::int64_t{0}, rows, static_cast<const bf16*>(src.data()),
                     y.data(), inner, std::int64_t{3});
    for (std::int64_t r = 0; r < rows; ++r) {
      const float start = from ? 256 : 0, sum = r < 7 && r != 3 ? 0.5f * float(r < 4 ? 29 : 28) : 0;
      CHECK(y[std::size_t(r * inner + inner - 1)] == bf16(start + sum));
    }
  }
}

// Lines of n elements in orders that a selection by pivots meets: random, few different values, all equal, sorted both
// ways, and up and down again.
template <class T>
std::vector<std::vector<T>> lines_of(std::int64_t n) {
  std::vector<std::vector<T>> lines(7, std::vector<T>(std::size_t(n)));
  for (std::int64_t i = 0; i < n; ++i) {
    const auto at = std::size_t(i);
    lines[0][at] = T(float(i * 7919 % 10007 - 5000));
    lines[1][at] = T(float(i * 7919 % 10007 % 3));
    lines[2][at] = T(1.0f);
    lines[3][at] = T(float(i));
    lines[4][at] = T(float(n - i));
    lines[5][at] = T(float(std::min(i, n - i)));
    lines[6][at] = T(float(i % 2 == 0 ? i : -i));
  }
  return lines;
}

TEST_CASE_TEMPLATE("the element at a place of the sorted order is found in lines of any length and order", T, float,
                   double, bf16, std::int64_t, std::uint8_t) {
  for (const std::int64_t n : {1, 2, 31, 32, 33, 200, 5000}) {
    for (const std::vector<T>& line : lines_of<T>(n)) {
      std::vector<std::int64_t> order(line.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
        return sort_detail::key_of(line[std::size_t(a)]) < sort_detail::key_of(line[std::size_t(b)]);
      });
      // Twice the same line, as two columns.
      std::vector<T> columns;
      for (const T v : line) columns.insert(columns.end(), 2, v);
      for (const std::int64_t k : {std::int64_t{0}, n / 3, n / 2, n - 1}) {
        const std::int64_t ks[] = {k, n - 1, k, n / 2}, at = order[std::size_t(k)];
        std::vector<std::int64_t> one(1), columns_of_two(4), four(4);
        cpu::kth_places(Cpu(), line.data(), one.data(), 1, n, 1, std::span(ks, 1), false);
        CHECK(one[0] == at);
        cpu::kth_places(Cpu(), columns.data(), columns_of_two.data(), 1, n, 2, std::span(ks, 2), false);
        CHECK(columns_of_two == std::vector<std::int64_t>{at, at, order.back(), order.back()});
        cpu::kth_places(Cpu(), line.data(), four.data(), 1, n, 1, ks, false);
        CHECK(four == std::vector<std::int64_t>{at, order.back(), at, order[std::size_t(n / 2)]});
      }
    }
  }
}

TEST_CASE("of a line with NaN its first place is given where that is asked for, else NaN is the largest element") {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> line(100);
  for (std::size_t i = 0; i < line.size(); ++i) line[i] = float(i * 37 % 101);
  line[40] = line[70] = kNan;
  const std::int64_t ks[] = {0, 99};
  std::vector<std::int64_t> at(2);
  cpu::kth_places(Cpu(), line.data(), at.data(), 1, 100, 1, ks, true);
  CHECK(at == std::vector<std::int64_t>{40, 40});
  cpu::kth_places(Cpu(), line.data(), at.data(), 1, 100, 1, ks, false);
  CHECK(at == std::vector<std::int64_t>{0, 70});
}
