#include "train/strategy/local_devices.h"

#include <algorithm>
#include <optional>

#include "train/options/accelerators.h"

namespace levin::train {

std::string words(const std::vector<Device>& devices) {
  std::string all;
  for (const Device d : devices) all += (all.empty() ? "" : ", ") + text(d);
  return all;
}

void check_local_devices(const char* op, const std::vector<Device>& devices) {
  for (const Device d : devices) {
    if (d.is_meta() || std::count(devices.begin(), devices.end(), d) > 1)
      fail<ConfigError>(op, ": devices lists ", d, d.is_meta() ? "" : " twice", " (", words(devices),
                        "); name each device once, and none without memory");
  }
}

std::vector<Device> local_devices(const std::string& strategy, const std::vector<Device>& listed,
                                  const TrainerOptions& o) {
  if (o.num_nodes.value() > 1)
    fail<ConfigError>("Trainer: num_nodes is ", o.num_nodes.value(), " and strategy ", strategy,
                      " is one process on one node; use ddp");
  if (!listed.empty()) {
    if (!o.devices.is_auto())
      fail<ConfigError>("Trainer: devices is ", text(o.devices), " and the options of strategy ", strategy, " list ",
                        words(listed), "; leave one of them out");
    return listed;
  }
  const std::optional<Device> where = accelerator_device(o);
  if (where ? !where->is_cuda() : device_count(DeviceType::cuda) == 0)
    fail<ConfigError>("Trainer: strategy is ", strategy, " and the accelerator is ", where ? text(*where) : "cpu",
                      ", which is one device; use ddp, or list CPU devices in the options of the strategy");
  const int there = device_count(DeviceType::cuda);
  std::vector<Device> devices;
  for (const int i : o.devices.indices()) {
    if (i >= there)
      fail<ConfigError>("Trainer: devices lists ", i, ", and there are ", there, " CUDA devices, 0 to ", there - 1);
    devices.push_back(Device::cuda(i));
  }
  if (o.devices.is_list()) return devices;
  const std::int64_t count = o.devices.count().value_or(there);
  if (count > there) fail<ConfigError>("Trainer: devices is ", count, ", and there are ", there, " CUDA devices");
  for (int i = 0; i < count; ++i) devices.push_back(Device::cuda(i));
  return devices;
}

}  // namespace levin::train
