// Warnings: what may be wrong and does not stop a run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "levin/export.h"
#include "levin/function.h"

namespace levin {

// `possible_user` may be a false alarm; `info` reports a decision.
enum class WarningCategory : std::uint8_t { possible_user, user, deprecated, runtime, info };
struct Warning {
  std::string id;  // "W-TRAIN-EPOCHS"
  WarningCategory category = WarningCategory::user;
  std::string text;
};
enum class Repeat : bool { no, yes };
// Prints on stderr, above a progress bar: once for each id and run of a Trainer, outside of runs once since the last
// run; each time with Repeat::yes. Of several processes of a training only rank 0 prints.
LEVIN_API void warn(std::string_view id, WarningCategory category, std::string_view text, Repeat repeat = Repeat::no);
// `handler` receives every warning, repeated ones too, instead of stderr; an empty function restores printing. Returns
// the previous handler. Call it while no other thread warns.
LEVIN_API Function<void(const Warning&)> set_warning_handler(Function<void(const Warning&)> handler);

// A filter drops warnings that match all of its fields: the handler does not see them either.
struct WarningFilter {
  std::optional<WarningCategory> category{};
  std::string id{};
  std::string regex{};  // POSIX extended, found anywhere in the text: ".*does not have many workers.*"
};
// Adds a filter, removes all. Throws ConfigError for a filter without a field and for an invalid regex. The environment
// variable LEVIN_POSSIBLE_USER_WARNINGS=off drops category possible_user.
LEVIN_API void ignore_warnings(const WarningFilter& filter);
LEVIN_API void forget_warning_filters();

}  // namespace levin
