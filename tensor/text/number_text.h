// Numbers as text and back, the same in every locale: files and results do not depend on the host program's setlocale.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace levin::detail {

// As printf's %.<digits>f, %.<digits>g and %a in the "C" locale; `width` pads with blanks on the left.
[[nodiscard]] std::string fixed(double x, int digits, std::size_t width = 0);
[[nodiscard]] std::string general(double x, int digits, std::size_t width = 0);
[[nodiscard]] std::string hexadecimal(double x);
// The whole text as strtod reads it in the "C" locale, without leading blanks; none for any other text, and for numbers
// that are too large or too small for a double.
[[nodiscard]] std::optional<double> read_double(std::string_view text);

}  // namespace levin::detail
