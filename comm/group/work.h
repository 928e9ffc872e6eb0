// What a Work waits for.
#pragma once

#include "levin/comm.h"

namespace levin::dist::detail {

class WorkState {
 public:
  WorkState() = default;
  virtual ~WorkState() = default;
  WorkState(const WorkState&) = delete;
  WorkState& operator=(const WorkState&) = delete;
  virtual void wait() = 0;
  [[nodiscard]] virtual bool done() = 0;
};

}  // namespace levin::dist::detail
