// What may be wrong and does not stop a run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "levin/export.h"
#include "levin/function.h"

namespace levin {

// `possible_user` may be a false alarm; `info` tells what was decided.
enum class WarningCategory : std::uint8_t { possible_user, user, deprecated, runtime, info };
struct Warning {
  std::string id;  // "W-TRAIN-EPOCHS"
  WarningCategory category = WarningCategory::user;
  std::string text;
};
// Printed on stderr, above a progress bar that stands there; once per id and run of a Trainer, outside of runs once
// since the last, unless `repeat` says otherwise.
enum class Repeat : bool { no, yes };
LEVIN_API void warn(std::string_view id, WarningCategory category, std::string_view text, Repeat repeat = Repeat::no);
// Receives every warning, repeated ones too, instead of stderr; an empty function restores printing. Returns the one
// before. Call it while no other thread warns.
LEVIN_API Function<void(const Warning&)> set_warning_handler(Function<void(const Warning&)> handler);

// Warnings that fit all that a filter says are dropped from then on: neither printed nor told to the handler.
struct WarningFilter {
  std::optional<WarningCategory> category{};
  std::string id{};
  std::string regex{};  // POSIX extended, found anywhere in the text: ".*does not have many workers.*"
};
// Throws ConfigError for a filter that says nothing and for a regex that is none.
LEVIN_API void ignore_warnings(const WarningFilter& filter);
LEVIN_API void forget_warning_filters();
// The environment's LEVIN_POSSIBLE_USER_WARNINGS=off drops all of category possible_user.

}  // namespace levin
