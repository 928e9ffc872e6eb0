#include "levin/nn/kv_cache.h"

#include <array>

#include "levin/autograd.h"
#include "levin/extend.h"
#include "levin/ops.h"
#include "nn/options.h"

namespace levin::nn {
namespace {

constexpr const char* kName = "KeyValueCache";

const KeyValueCacheOptions& checked(const KeyValueCacheOptions& o) {
  check_size(kName, "batch", o.batch);
  check_size(kName, "heads", o.heads);
  check_size(kName, "capacity", o.capacity);
  check_size(kName, "width", o.width);
  if (!is_float(o.dtype)) fail<DTypeError>(kName, ": dtype is ", o.dtype, ", expected a floating one");
  return o;
}

}  // namespace

KeyValueCache::KeyValueCache(const Options& given) : options(checked(given)) {
  const Shape shape{options.batch, options.heads, options.capacity, options.width};
  k_ = zeros(shape, options.device, options.dtype);
  v_ = zeros(shape, options.device, options.dtype);
}

KeyValueCache::Views KeyValueCache::append(const Tensor& k, const Tensor& v) {
  const std::array<const Tensor*, 2> given{&k, &v};
  const std::array<const char*, 2> names{"k", "v"};
  for (std::size_t i = 0; i < 2; ++i) {
    const Tensor& t = *given[i];
    if (!t.defined()) fail<StateError>(kName, ": ", names[i], " is undefined");
    if (t.device() != k_.device())
      fail<DeviceError>(kName, ": ", names[i], " is on ", t.device(), ", expected the cache's ", k_.device());
    if (t.dtype() != options.dtype)
      fail<DTypeError>(kName, ": ", names[i], " is ", t.dtype(), ", expected the cache's ", options.dtype);
    if (t.rank() != 4 || t.shape() != k_.shape().with(2, t.size(2)) || t.size(2) != k.size(2)) {
      fail<ShapeError>(kName, ": ", names[i], " has shape ", t.shape(), ", expected [", options.batch, ", ",
                       options.heads, ", T, ", options.width, "] with one T of k and v");
    }
    if (detail::mode().grad && records(t)) {
      fail<AutogradError>(kName, ": ", names[i],
                          " is recorded, and no gradient passes through the cache; generate under NoGrad");
    }
  }
  const std::int64_t tokens = k.size(2);
  if (tokens > options.capacity - length_) {
    fail<ShapeError>(kName, ": ", length_, " tokens and ", tokens, " more, expected at most the capacity ",
                     options.capacity);
  }
  const NoGrad off;
  Tensor k_end = narrow(k_, 2, length_, tokens), v_end = narrow(v_, 2, length_, tokens);
  copy_(k_end, k);
  copy_(v_end, v);
  length_ += tokens;
  return views();
}

KeyValueCache::Views KeyValueCache::views() const { return {narrow(k_, 2, 0, length_), narrow(v_, 2, 0, length_)}; }

Tensor KeyValueCache::causal_mask(std::int64_t queries) const {
  if (queries < 1 || queries > length_)
    fail<ShapeError>(kName, ": ", queries, " queries of ", length_, " tokens, expected 1 to all of them");
  if (queries == 1) return {};
  const Tensor row = arange(length_ - queries, length_, 1, options.device);
  return le(arange(length_, options.device), unsqueeze(row, 1));
}

void KeyValueCache::truncate(std::int64_t length) {
  if (length < 0 || length > length_)
    fail<ShapeError>(kName, ": truncated to ", length, " tokens, expected 0 to ", length_);
  length_ = length;
}

}  // namespace levin::nn
