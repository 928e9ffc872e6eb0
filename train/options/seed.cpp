#include "levin/train/seed.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "levin/error.h"
#include "levin/warning.h"

namespace levin {

Generator seed_everything(std::optional<std::int64_t> seed) {
  constexpr std::int64_t kMost = 0xffffffff;
  const char* const set = std::getenv("LEVIN_GLOBAL_SEED");
  if (!seed && set && *set) {
    const std::string_view words = set;
    std::int64_t number = -1;
    const auto [at, error] = std::from_chars(words.data(), words.data() + words.size(), number);
    if (error != std::errc() || at != words.data() + words.size() || number < 0 || number > kMost)
      fail<ConfigError>("seed_everything: LEVIN_GLOBAL_SEED is \"", words, "\", expected a whole number in [0, ", kMost,
                        "]");
    seed = number;
  }
  if (!seed)
    warn("W-SEED", WarningCategory::user,
         "seed_everything: neither a seed nor LEVIN_GLOBAL_SEED is given; the seed is 0");
  const std::int64_t number = seed.value_or(0);
  if (number < 0 || number > kMost)
    fail<ConfigError>("seed_everything: seed is ", number, ", expected a whole number in [0, ", kMost, "]");
  return Generator(static_cast<std::uint64_t>(number));
}

}  // namespace levin
