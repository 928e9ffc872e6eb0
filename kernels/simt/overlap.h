// Launches that begin before the work ahead of them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/simt/run.h"
#include "tensor/device/runtime.h"

namespace levin::simt {

class Engine;

// A launch in two parts: begin(), then the work ahead of it, then finish(); all by one OS thread.
//
// Note [Launches that overlap]
// A GPU may run a launch that follows another before, beside or after that other one, up to wait_for_prerequisites. The
// shim does what shows most: up to 8 blocks run so far before it. What they read is old data, and what they write is
// there when the other launch begins. finish() resumes them and runs the other blocks; without begin() it runs all.
// Each block must call wait_for_prerequisites, in either case.
class OverlappingGrid : public levin::detail::runtime::TwoParts {
 public:
  // Throws as run_grid what CUDA refuses.
  OverlappingGrid(const Launch& launch, std::function<void()> body, std::string name);
  ~OverlappingGrid() override;  // unwinds blocks that have begun and not ended
  OverlappingGrid(const OverlappingGrid&) = delete;
  OverlappingGrid& operator=(const OverlappingGrid&) = delete;
  void begin() override;
  void finish() override;

 private:
  Launch launch_;
  std::function<void()> body_;
  std::string name_;
  std::vector<std::unique_ptr<Engine>> begun_;  // one a cluster
  std::thread::id thread_{};                    // that has begun them
};

}  // namespace levin::simt
