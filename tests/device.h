// The device under test besides the CPU: cuda or simt, depending on the build and the machine.
#pragma once

#include <optional>
#include <vector>

#include "levin/device.h"
#include "levin/engines.h"
#include "tests/skip.h"

namespace levin::test {

// The device that launches kernels, where there is one.
[[nodiscard]] inline std::optional<Device> launching_device() {
  if (device_count(DeviceType::cuda) > 0) return Device::cuda();
  if (device_count(DeviceType::simt) > 0) return Device::simt();
  return std::nullopt;
}

// The CPU, and that device.
[[nodiscard]] inline std::vector<Device> all_devices() {
  std::vector<Device> devices{Device::cpu()};
  if (const auto other = launching_device()) devices.push_back(*other);
  return devices;
}

// Who computes a family of ops on a GPU, while it lives.
class ChosenEngine {
 public:
  ChosenEngine(EngineFamily family, EngineChoice choice)
      : family_(family), before_(set_engine_choice(family, choice)) {}
  ChosenEngine(const ChosenEngine&) = delete;
  ChosenEngine& operator=(const ChosenEngine&) = delete;
  ~ChosenEngine() { set_engine_choice(family_, before_); }

 private:
  EngineFamily family_;
  EngineChoice before_;
};

}  // namespace levin::test

// Stands first in a test: `device` launches kernels, or the test is skipped with a reason.
#define DEVICE_OR_SKIP()                                                        \
  const auto found = levin::test::launching_device();                           \
  if (!found) return levin::test::skip("no device that launches kernels here"); \
  const levin::Device device = *found
