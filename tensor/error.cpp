#include "levin/error.h"

#include <fmt/format.h>

namespace levin {

std::string_view Error::op() const noexcept {
  const std::string_view message = what();
  const std::size_t colon = message.find(':');
  return colon == std::string_view::npos ? std::string_view() : message.substr(0, colon);
}

std::string text(double x) { return fmt::format("{}", x); }
std::string text(std::int64_t x) { return fmt::format("{}", x); }
std::string text(std::uint64_t x) { return fmt::format("{}", x); }

}  // namespace levin
