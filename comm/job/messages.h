// The bodies of the messages that have several fields.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/job/alarm.h"
#include "comm/job/judge.h"

namespace levin::dist {

inline constexpr const char* kWorldKey = "w";  // of the group of all ranks
inline constexpr double kDifferenceGrace = 0.5;

// Flags of headers.
inline constexpr std::uint16_t kHasSecret = 1;        // challenge, hello
inline constexpr std::uint16_t kTooLarge = 1;         // answer of a gather
inline constexpr std::uint16_t kAnswersQuestion = 1;  // beat
inline constexpr std::uint16_t kTellsAll = 2;         // beat of rank 0: all ranks are to have it

enum class Refusal : std::uint8_t { config, comm, stale };
[[nodiscard]] std::string packed(Refusal kind, std::string_view text);
struct ReadRefusal {
  Refusal kind = Refusal::comm;
  std::string text{};
};
[[nodiscard]] ReadRefusal read_refusal(std::string_view body);

[[nodiscard]] std::string packed(const Verdict& verdict);
[[nodiscard]] Verdict read_verdict(std::string_view body);

using Passed = std::vector<std::pair<std::string, std::uint64_t>>;  // collectives by group
[[nodiscard]] std::string packed(const Beat& beat, const Passed& passed = {}, std::string_view words = {});
struct ReadBeat {
  Beat beat;
  Passed passed;
  std::string words;
  bool good = false;
};
[[nodiscard]] ReadBeat read_beat(std::string_view body);

// plan: of entries that ranks compare; close: the last of all, which no rank must come to.
enum class GatherKind : std::uint8_t { plain, plan, close };
struct GatherCall {
  std::string group{};
  std::uint64_t nth = 0;  // gather of the group
  GatherKind kind{};
  std::uint64_t ordinal = 0;  // plan: of the collective that is compared
  std::string what{};
};
[[nodiscard]] std::string packed(const GatherCall& call, std::string_view value);
struct ReadGather : GatherCall {
  std::string_view value{};
  bool good = false;
};
[[nodiscard]] ReadGather read_gather(std::string_view body);

}  // namespace levin::dist
