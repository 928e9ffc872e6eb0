#include "levin/device.h"

namespace levin {

std::string text(Device d) {
  switch (d.type()) {
    case DeviceType::cpu: return d.index() == 0 ? "cpu" : "cpu:" + text(d.index());
    case DeviceType::cuda: return "cuda:" + text(d.index());
    case DeviceType::simt: return "simt";
    case DeviceType::meta: return "meta";
  }
  return "?";
}

}  // namespace levin
