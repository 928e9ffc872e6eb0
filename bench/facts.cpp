#include "bench/facts.h"

#include <dlfcn.h>

#include <fstream>

#include "levin/build_info.h"

namespace levin::bench {

extern const char* const built_commit;  // commit.cpp, which each build makes

namespace {

// Note [What a GPU says of itself]
//
// The program opens the driver's two libraries by path and looks up the few functions that it uses by name. So no build
// needs their headers, and a machine without them has benchmarks, too. Each function returns 0 on success.
template <class F>
F* symbol(void* library, const char* name) {
  return library ? reinterpret_cast<F*>(dlsym(library, name)) : nullptr;
}

struct Driver {
  std::string name, version, cuda_version;
  void* handle = nullptr;  // nvmlDevice_t
  int (*clock)(void*, int, unsigned*) = nullptr;
  int (*power)(void*, unsigned*) = nullptr;
};

Driver open_driver(int index) {
  Driver d;
  void* const cuda = dlopen("libcuda.so.1", RTLD_NOW);
  char text[256] = {}, bus[64] = {};
  int device = 0, version = 0;
  const auto device_of = symbol<int(int*, int)>(cuda, "cuDeviceGet");
  const auto name_of = symbol<int(char*, int, int)>(cuda, "cuDeviceGetName");
  const auto bus_of = symbol<int(char*, int, int)>(cuda, "cuDeviceGetPCIBusId");
  const auto version_of = symbol<int(int*)>(cuda, "cuDriverGetVersion");
  if (version_of && version_of(&version) == 0)
    d.cuda_version = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  if (!device_of || device_of(&device, index) != 0) return d;
  if (name_of && name_of(text, sizeof text, device) == 0) d.name = text;
  if (!bus_of || bus_of(bus, sizeof bus, device) != 0) return d;

  void* const nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  const auto init = symbol<int()>(nvml, "nvmlInit_v2");
  const auto driver_of = symbol<int(char*, unsigned)>(nvml, "nvmlSystemGetDriverVersion");
  const auto handle_of = symbol<int(const char*, void**)>(nvml, "nvmlDeviceGetHandleByPciBusId_v2");
  if (!init || init() != 0) return d;
  if (driver_of && driver_of(text, sizeof text) == 0) d.version = text;
  if (!handle_of || handle_of(bus, &d.handle) != 0) d.handle = nullptr;
  d.clock = symbol<int(void*, int, unsigned*)>(nvml, "nvmlDeviceGetClockInfo");
  d.power = symbol<int(void*, unsigned*)>(nvml, "nvmlDeviceGetPowerUsage");
  return d;
}
const Driver& driver(Device device) {
  static const Driver d = open_driver(device.index());
  return d;
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return {};
}

}  // namespace

std::vector<std::pair<std::string, std::string>> facts(Device device) {
  const BuildInfo build = build_info();
  std::vector<std::pair<std::string, std::string>> all{
      {"levin_commit", built_commit},
      {"levin_compiler",
       build.compiler + (build.optimized ? "" : ", not optimised") + (build.sanitizers ? ", with sanitizers" : "")},
  };
  const auto tell = [&](const char* what, const std::string& value) {
    if (!value.empty()) all.emplace_back(what, value);
  };
  if (device.is_cuda()) {
    const Driver& d = driver(device);
    tell("levin_device_name", d.name);
    tell("levin_driver", d.version);
    tell("levin_driver_cuda", d.cuda_version);
    if (const Clocks c = clocks(device); c.sm_mhz > 0) {
      tell("levin_sm_MHz", std::to_string(static_cast<int>(c.sm_mhz)));
      tell("levin_memory_MHz", std::to_string(static_cast<int>(c.memory_mhz)));
    }
  } else {
    tell("levin_device_name", cpu_name());
  }
  for (const auto& [name, version] : build.libraries) tell(("levin_" + name).c_str(), version);
  return all;
}

Clocks clocks(Device device) {
  Clocks c;
  if (!device.is_cuda()) return c;
  const Driver& d = driver(device);
  constexpr int kSm = 1, kMemory = 2;  // nvmlClockType_t
  const auto read = [&](int which) {
    unsigned mhz = 0;
    return d.handle && d.clock && d.clock(d.handle, which, &mhz) == 0 ? static_cast<double>(mhz) : 0.0;
  };
  c.sm_mhz = read(kSm);
  c.memory_mhz = read(kMemory);
  unsigned milliwatts = 0;
  if (d.handle && d.power && d.power(d.handle, &milliwatts) == 0) c.watts = milliwatts * 1e-3;
  return c;
}

}  // namespace levin::bench
