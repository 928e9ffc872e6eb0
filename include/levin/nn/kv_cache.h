// Keys and values that attention keeps while a text grows token by token.
#pragma once

#include <cstdint>

#include "levin/tensor.h"

namespace levin::nn {

struct KeyValueCacheOptions {
  std::int64_t batch = 0, heads = 0, capacity = 0;  // heads of keys; tokens of a sample at most
  std::int64_t width = 0;                           // of a head
  Device device;
  DType dtype = DType::f32;
};
// The keys and values of one layer, in memory that is allocated once.
//
//   nn::KeyValueCache cache({.batch = 1, .heads = 8, .capacity = 2048, .width = 64, .device = device});
//   NoGrad off;
//   auto [k, v] = cache.append(new_k, new_v);   // of all tokens so far
//   y = scaled_dot_product_attention(q, k, v, {.mask = cache.causal_mask(q.size(2)), .enable_gqa = true});
//
// The length is a number of the host: a recorded graph keeps the one of its recording.
class LEVIN_API KeyValueCache {
 public:
  using Options = KeyValueCacheOptions;
  struct Views {
    Tensor k, v;  // [batch, heads, length, width]
  };
  // Throws ConfigError for sizes below 1, DTypeError unless the dtype is floating.
  explicit KeyValueCache(const Options& options);

  // Writes k and v [batch, heads, T, width] behind what is there, and returns views of the cache with all tokens. The
  // views share the cache's memory; what they hold stays as it is until truncate or clear make room. No gradient
  // passes. Throws ShapeError where k or v do not fit, or more than the capacity would be kept, DTypeError,
  // DeviceError, and AutogradError where k or v would be recorded: generation takes a NoGrad. A refused call writes
  // nothing.
  Views append(const Tensor& k, const Tensor& v);
  [[nodiscard]] Views views() const;
  // Bool [queries, length], as scaled_dot_product_attention takes it: each of the last `queries` tokens sees itself and
  // what is before it. Undefined for one query, which sees all. Throws ShapeError unless 1 <= queries <= length.
  [[nodiscard]] Tensor causal_mask(std::int64_t queries) const;

  [[nodiscard]] std::int64_t length() const { return length_; }
  void truncate(std::int64_t length);  // keeps the first tokens; throws ShapeError unless 0 <= length <= length()
  void clear() { length_ = 0; }

  const Options options;

 private:
  Tensor k_, v_;
  std::int64_t length_ = 0;
};

}  // namespace levin::nn
