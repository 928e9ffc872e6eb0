#include "tensor/text/number_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <system_error>

namespace levin::detail {
namespace {

constexpr std::size_t kMostChars = 400;  // of the largest double as %f, with 60 digits after the point

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.insert(0, width - text.size(), ' ');
  return text;
}

template <class... A>
std::string written(double x, A... how) {
  std::array<char, kMostChars> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), x, how...);
  return {buffer.data(), error == std::errc() ? end : buffer.data()};
}

}  // namespace

std::string fixed(double x, int digits, std::size_t width) {
  return padded(written(x, std::chars_format::fixed, digits), width);
}
std::string general(double x, int digits, std::size_t width) {
  return padded(written(x, std::chars_format::general, digits), width);
}

std::string hexadecimal(double x) {
  if (!std::isfinite(x)) return written(x, std::chars_format::general);
  return (std::signbit(x) ? "-0x" : "0x") + written(std::fabs(x), std::chars_format::hex);
}

std::optional<double> read_double(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const bool hex = text.starts_with("0x") || text.starts_with("0X");
  if (hex) text.remove_prefix(2);
  if (text.empty() || text.starts_with('-')) return std::nullopt;  // from_chars would accept a second sign
  double x = 0;
  const auto how = hex ? std::chars_format::hex : std::chars_format::general;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x, how);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return negative ? -x : x;
}

}  // namespace levin::detail
