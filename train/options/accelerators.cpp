#include "train/options/accelerators.h"

#include <cctype>
#include <string>

#include "levin/device.h"
#include "levin/error.h"

namespace levin::train {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

namespace {

std::string backends() {
  std::string all = "cpu";
  for (const DeviceType type : {DeviceType::cuda, DeviceType::simt}) {
    if (device_count(type) > 0) all += std::string(", ") + (type == DeviceType::cuda ? "cuda" : "simt");
  }
  return all;
}

std::string nearest(const std::string& accelerator) {
  return accelerator == "tpu" ? "accelerator = \"auto\"; XLA_USE_BF16 is precision = \"bf16-true\""
                              : "accelerator = \"auto\"";
}

}  // namespace

void fail_unsupported(const std::string& option, const std::string& accelerator) {
  fail<ConfigError>("TrainerOptions: ", option, ": ", accelerator,
                    " is a known accelerator and this build has no backend for it; it has ", backends(),
                    ". The nearest is ", nearest(accelerator));
}

void check_accelerator_name(std::string_view given) {
  const std::string name = lower(given);
  if (name.empty() || name == "auto" || name == "cpu") return;
  if (name == "tpu" || name == "ipu" || name == "hpu")
    fail_unsupported("accelerator = \"" + std::string(given) + "\"", name);
  const bool cuda = name == "cuda" || name == "gpu";
  if (!cuda && name != "simt")
    fail<ConfigError>("TrainerOptions: accelerator is \"", given, "\", expected auto, cpu, cuda (gpu) or simt");
  if (device_count(cuda ? DeviceType::cuda : DeviceType::simt) == 0)
    fail<ConfigError>("TrainerOptions: accelerator is \"", given, "\", and there is no such device: ",
                      cuda ? "the build is without CUDA (-Dcuda=enabled), or no driver or device was found"
                           : "the build is without -Dsimt=true",
                      "; usable are ", backends());
}

std::optional<Device> accelerator_device(const TrainerOptions& options) {
  const std::string name = lower(options.accelerator);
  if (name.empty() || name == "auto") return std::nullopt;
  return name == "cpu" ? Device::cpu() : name == "simt" ? Device::simt() : Device::cuda();
}

void check_accelerator(const TrainerOptions& options, const char* call, Device device) {
  if (const std::optional<Device> wanted = accelerator_device(options); wanted && device.type() != wanted->type())
    fail<ConfigError>(call, ": accelerator is \"", options.accelerator, "\" and the parameters are on ", device,
                      "; make them there ({.device = ...}), or leave accelerator out");
}

}  // namespace levin::train
