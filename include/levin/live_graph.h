// Which recorded ops are alive.
#pragma once

#include <cstdint>

#include "levin/export.h"

namespace levin {

// The number of recorded ops of the process, leaves included, that tensors with history still hold.
[[nodiscard]] LEVIN_API std::int64_t live_graph_nodes() noexcept;

// Notes the ops that any thread records while the watch lives. One at a time: a second watch notes nothing.
class LEVIN_API GraphWatch {
 public:
  GraphWatch() noexcept;
  ~GraphWatch();
  GraphWatch(const GraphWatch&) = delete;
  GraphWatch& operator=(const GraphWatch&) = delete;
  // The name of the newest noted op that is alive; null without any.
  [[nodiscard]] const char* newest_alive() const;

 private:
  bool mine_;
};

}  // namespace levin
