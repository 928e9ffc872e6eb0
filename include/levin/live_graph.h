// What the tape keeps: how many recorded ops are alive, and which of those of a while.
#pragma once

#include <cstdint>

#include "levin/export.h"

namespace levin {

// Recorded ops of the process, leaves among them, that somebody still holds: a tensor with history, or what was made from it.
[[nodiscard]] LEVIN_API std::int64_t live_graph_nodes() noexcept;

// Notes the ops that are recorded while it lives, by any thread. One at a time: a second one notes nothing.
class LEVIN_API GraphWatch {
 public:
  GraphWatch() noexcept;
  ~GraphWatch();
  GraphWatch(const GraphWatch&) = delete;
  GraphWatch& operator=(const GraphWatch&) = delete;
  // The name of the newest of them that is alive; null: none is.
  [[nodiscard]] const char* newest_alive() const;

 private:
  bool mine_;
};

}  // namespace levin
