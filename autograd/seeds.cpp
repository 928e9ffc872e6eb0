#include "autograd/seeds.h"

#include <map>
#include <mutex>
#include <tuple>

#include "levin/autograd.h"
#include "levin/error.h"
#include "levin/ops.h"
#include "levin/stream.h"

namespace levin::detail {

Tensor ones_seed(const Tensor& out, const char* what) {
  if (out.numel() != 1) {
    fail<AutogradError>(what, ": the output has shape ", out.shape(),
                        ", a gradient needs a scalar; pass a seed, or take sum()");
  }
  return ones_like(out.detach());
}

Tensor kept_seed(const Tensor& out, const char* what) {
  const Device device = out.device();
  if (!device.launches() || out.numel() != 1) return ones_seed(out, what);
  using Key = std::tuple<DeviceType, int, std::uint32_t, DType>;
  struct Seed {
    Tensor ones;
    std::uint32_t version;
  };
  static auto* const seeds = new std::map<Key, Seed>;
  static auto* const written = new Tensors;  // graphs may read them
  static auto* const mutex = new std::mutex;
  const Key key{device.type(), device.index(), Stream::current(device).index(), out.dtype()};
  const NoGrad off;
  const std::lock_guard lock(*mutex);
  auto found = seeds->find(key);
  if (found == seeds->end() || found->second.ones.version() != found->second.version) {
    if (is_capturing(device)) return ones_seed(out, what);
    if (found != seeds->end()) {
      written->push_back(std::move(found->second.ones));
      seeds->erase(found);
    }
    const Tensor one = ones({}, device, out.dtype());
    found = seeds->emplace(key, Seed{one, one.version()}).first;
  }
  const Tensor& one = found->second.ones;
  return out.rank() == 0 ? one : reshape(one, Dims(out.shape().dims()));
}

void check_seed(const char* what, const Tensor& out, const Tensor& seed) {
  if (seed.shape() != out.shape())
    fail<ShapeError>(what, ": the seed has shape ", seed.shape(), ", expected the output's ", out.shape());
  if (seed.dtype() != out.dtype())
    fail<DTypeError>(what, ": the seed is ", seed.dtype(), ", expected the output's ", out.dtype());
  if (seed.device() != out.device())
    fail<DeviceError>(what, ": the seed is on ", seed.device(), ", expected ", out.device());
}

}  // namespace levin::detail
