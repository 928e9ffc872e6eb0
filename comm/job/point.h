// Places where a test may end, stop or hold a rank: point("reduce:bucket", i) costs one relaxed load elsewhere.
//
// The environment arms them:
//   LEVIN_POINTS="rank 2: at reduce:bucket 1 of step 3 -> kill; rank 0: at save -> hold"
//   LEVIN_POINTS_EVENTS   a file descriptor: the line "rank 2 at reduce:bucket 1" before the action, and behind a
//                         tab the seconds of the steady clock, which all processes of a host share
//   LEVIN_POINTS_RELEASE  a file descriptor: `hold` waits until it can be read
// Index and step may be left out; a step is the number of completed ones. Actions: kill (SIGKILL), stop (SIGSTOP),
// throw (DataError), hold. Each happens once.
#pragma once

#include <atomic>
#include <cstdint>

#include "levin/function.h"

namespace levin::dist {

class Note;

namespace detail {
inline std::atomic<bool> points_armed{false};
void reach_point(const char* name, std::int64_t index);
}  // namespace detail

inline void point(const char* name, std::int64_t index = 0) {
  if (detail::points_armed.load(std::memory_order_relaxed)) [[unlikely]]
    detail::reach_point(name, index);
}

// Reads the environment for this process's rank. `before` runs ahead of an action: the other ranks then know this
// rank's note as it is. Throws ConfigError for a script that is none.
void arm_points(int rank, const Note& note, Function<void()> before);
void disarm_points(const Note& note) noexcept;  // that arm_points() got

}  // namespace levin::dist
