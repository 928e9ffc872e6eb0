// cuDNN's plans in plain host code, so that every build tests it: which call may make one, and what cuDNN says of a
// call for a device that is described to it, which is how tests without a device learn whether it would be taken.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/error.h"

namespace levin::kernels {

// A call in an error's words: the op's name and what it is called with, as in "x [8, 64, 56, 56] and w [64, 64, 3, 3]
// in bf16".
struct LibraryCallText {
  std::string_view op;
  std::string with;
};

// Note [Plans and recordings]
// A plan is made at the first call of a shape and kept. Making one loads kernels and may wait for times, which a
// recording forbids. To record our kernel instead would give every replay other bits than the eager calls had, and our
// kernel's time, without a word. So a shape that a recording meets first is refused, before anything is enqueued, and
// one eager call of it mends that. Where cuDNN was asked and has no engine, our kernel computes the eager calls, and
// the recorded ones, too.
template <class Plan>  // has made(): whether cuDNN has an engine for it
class PlansByShape {
 public:
  // The plan of a key, which `make` makes; null where there is no engine. Throws CaptureError where it is not made yet
  // and `recording`; `said` then gives the LibraryCallText. The plan stays where it is.
  template <class Make, class Said>
  const Plan* plan_for(const std::vector<std::int64_t>& key, bool recording, Make&& make, Said&& said) {
    auto at = plans_.find(key);
    if (at == plans_.end()) {
      if (recording) refuse(said());
      at = plans_.emplace(key, std::forward<Make>(make)()).first;
    }
    return at->second.made() ? &at->second : nullptr;
  }

 private:
  [[noreturn]] static void refuse(const LibraryCallText& call) {
    fail<CaptureError>(call.op, ": cuDNN has no plan yet for ", call.with,
                       ", and none can be made while a graph is recorded; call it once like this before the recording");
  }
  std::map<std::vector<std::int64_t>, Plan> plans_;
};

}  // namespace levin::kernels

namespace levin::kernels::lib {

// The plans that cuDNN makes for a device that is described (in cuDNN's JSON) and need not be here.
struct CudnnPlans {
  int engines = 0;             // named by the heuristics
  int refused = 0;             // of these: bits that vary, or sums or products in less than f32
  int plans = 0;               // of the others: made for the device
  int unloaded = 0;            // or compiled for it, and not loaded because there is no driver
  std::int64_t workspace = 0;  // bytes, of the first
  std::string why;             // cuDNN's last message where there is neither
};

}  // namespace levin::kernels::lib
