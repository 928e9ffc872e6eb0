#include "tensor/text/number_text.h"

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>

using namespace levin::detail;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Doubles of all sizes and signs.
double some(std::uint64_t n) {
  std::uint64_t bits = n * 0x9e3779b97f4a7c15u;
  bits ^= bits >> 29;
  return std::bit_cast<double>(bits * 0xbf58476d1ce4e5b9u);
}
std::string printed(const char* format, double x) {
  std::array<char, 400> buffer{};
  (void)std::snprintf(buffer.data(), buffer.size(), format, x);
  return buffer.data();
}

}  // namespace

TEST_CASE("numbers as text are what printf writes in the C locale") {
  for (const double x : {0.0, -0.0, 1.0, 0.5, -2.25, 123456.7, 1e-7, 1e22, 1e300, 5e-324, kInfinity, -kInfinity}) {
    CAPTURE(x);
    CHECK(fixed(x, 3) == printed("%.3f", x));
    CHECK(fixed(x, 1, 9) == printed("%9.1f", x));
    CHECK(general(x, 6) == printed("%.6g", x));
    CHECK(general(x, 4, 10) == printed("%10.4g", x));
  }
  for (std::uint64_t n = 0; n < 2000; ++n) {
    if (!std::isnan(some(n))) CHECK(general(some(n), 17) == printed("%.17g", some(n)));
  }
  CHECK(hexadecimal(0.5) == printed("%a", 0.5));
  CHECK(hexadecimal(-1.9140625) == printed("%a", -1.9140625));
}

TEST_CASE("a number that was written exactly reads back as the same bits") {
  for (std::uint64_t n = 0; n < 2000; ++n) {
    const double x = some(n);
    if (std::isnan(x)) continue;
    CHECK(read_double(hexadecimal(x)) == x);
    CHECK(read_double(general(x, 17)) == x);
  }
  for (const double x : {0.0, 5e-324, std::numeric_limits<double>::max(), kInfinity, -kInfinity})
    CHECK(read_double(hexadecimal(x)) == x);
  CHECK(std::signbit(read_double(hexadecimal(-0.0)).value()));
  CHECK(std::isnan(read_double(hexadecimal(std::nan(""))).value()));
  CHECK(read_double(printed("%a", -0x1.f5p-7)) == -0x1.f5p-7);
  CHECK(read_double("+12.5e1") == 125);
}

TEST_CASE("text that is no number or not a number alone reads as none") {
  for (const char* text : {"", " 1", "1 ", "1,5", "0x", "--1", "-+1", "0x-1", "one", "1e999", "1.5.2"}) {
    CAPTURE(text);
    CHECK(!read_double(text));
  }
}
