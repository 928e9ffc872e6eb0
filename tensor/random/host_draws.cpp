// Random numbers for the host: Generator's draws that make no tensor.
#include <cmath>
#include <limits>
#include <numeric>

#include "levin/error.h"
#include "levin/generator.h"
#include "tensor/device/graph_random.h"
#include "tensor/random/philox.h"

namespace levin {
namespace {

using detail::PhiloxCounter;

// The words of counter `k` of a range: Note [Random numbers by element] in kernels/device/philox.cuh, part 0.
PhiloxCounter words(const RandomRange& range, std::uint64_t k = 0) {
  const std::uint64_t counter = range.offset + k;
  return detail::philox({static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0},
                        range.seed);
}
std::uint64_t joined(std::uint32_t low, std::uint32_t high) { return std::uint64_t{high} << 32 | low; }
double unit(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }  // 0 <= unit < 1

RandomRange drawn(Generator& from, const char* what, std::int64_t n) {
  if (detail::GraphRandom::recording())
    fail<CaptureError>(std::string("generator: ") + what +
                       " gives the host a number while a graph is recorded, and every replay would use that one; draw "
                       "it before, or draw a tensor");
  return from.reserve(n);
}

// log and cos from additions, multiplications and divisions alone: the C library's functions differ between machines in
// their last bit. 0 < x <= 1.
double log_of(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // 0.5 <= m < 1
  if (m < 0.7071067811865476) m *= 2, --exponent;
  const double s = (m - 1) / (m + 1), square = s * s;  // |s| < 0.172: twelve terms of 2 artanh(s) reach 2^-53
  double sum = 0;
  for (int k = 23; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
  return 2 * s * sum + exponent * 0.6931471805599453;
}
// cos(2 pi turns), 0 <= turns < 1.
double cos_of(double turns) {
  const double quarters = turns * 4;
  const int nearest = static_cast<int>(quarters + 0.5);
  const double x = (quarters - nearest) * 1.5707963267948966, square = x * x;  // |x| <= pi / 4
  double even = 0, odd = 0;
  for (int k = 16; k >= 2; k -= 2) even = (even + 1) * -square / (k * (k - 1));
  for (int k = 17; k >= 3; k -= 2) odd = (odd + 1) * -square / (k * (k - 1));
  const double cosine = 1 + even, sine = x * (1 + odd);
  switch (nearest & 3) {
    case 0: return cosine;
    case 1: return -sine;
    case 2: return -cosine;
    default: return sine;
  }
}

}  // namespace

double Generator::uniform(double low, double high) {
  if (!(low < high) || !std::isfinite(high - low))
    fail<ConfigError>("uniform: low is ", low, " and high ", high, ", expected low < high, a finite way apart");
  const PhiloxCounter w = words(drawn(*this, "uniform", 1));
  const double x = low + unit(joined(w[0], w[1])) * (high - low);
  return x < high ? x : std::nextafter(high, low);  // rounding may reach `high`
}

double Generator::normal(double mean, double std) {
  if (!std::isfinite(mean) || !(std >= 0) || !std::isfinite(std))
    fail<ConfigError>("normal: mean is ", mean, " and std ", std, ", expected finite numbers and std from 0");
  const PhiloxCounter w = words(drawn(*this, "normal", 1));
  // Box and Muller, 1958. 1 - unit is above 0.
  const double radius = std::sqrt(-2 * log_of(1 - unit(joined(w[0], w[1]))));
  return mean + std * radius * cos_of(unit(joined(w[2], w[3])));
}

std::int64_t Generator::integer(std::int64_t low, std::int64_t high) {
  if (low >= high) fail<ConfigError>("integer: low is ", low, " and high ", high, ", expected low < high");
  const PhiloxCounter w = words(drawn(*this, "integer", 1));
  // The upper half of word * width, by halves.
  const std::uint64_t width = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  const std::uint64_t upper = width >> 32, lower = width & 0xffffffffu;
  const std::uint64_t middle = (w[0] * lower >> 32) + w[0] * upper;
  const std::uint64_t sum = w[1] * lower + (middle & 0xffffffffu);
  const std::uint64_t at = w[1] * upper + (middle >> 32) + (sum >> 32);
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + at);
}

std::vector<std::int64_t> Generator::permutation(std::int64_t n) {
  if (n < 0 || n > std::int64_t{1} << 32) fail<ConfigError>("permutation: n is ", n, ", expected 0 to 2^32");
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const RandomRange range = drawn(*this, "permutation", n);
  PhiloxCounter w{};
  // Fisher and Yates from the end: position i swaps with one of 0 .. i, drawn by word i.
  for (std::size_t i = order.size(); i-- > 0;) {
    if (i + 1 == order.size() || i % 4 == 3) w = words(range, i / 4);
    std::swap(order[i], order[detail::bounded(w[i % 4], i + 1)]);
  }
  return order;
}

}  // namespace levin
