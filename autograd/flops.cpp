#include "levin/flops.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

namespace levin {
namespace {
FlopCounter*& of_thread() noexcept {
  static thread_local constinit FlopCounter* counter = nullptr;
  return counter;
}

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
std::int64_t product(std::initializer_list<std::int64_t> factors) {
  if (std::find(factors.begin(), factors.end(), 0) != factors.end()) return 0;
  std::int64_t out = 1;
  for (const std::int64_t f : factors) {
    if (__builtin_mul_overflow(out, f, &out)) return kMost;
  }
  return out;
}
void raise(std::int64_t& sum, std::int64_t by) {
  if (__builtin_add_overflow(sum, by, &sum)) sum = kMost;
}
}  // namespace

FlopCounter::FlopCounter() noexcept : outer_(std::exchange(of_thread(), this)) {}
FlopCounter::~FlopCounter() { of_thread() = outer_; }

FlopCounter* FlopCounter::newest() noexcept { return of_thread(); }

void FlopCounter::add(const char* op, std::initializer_list<std::int64_t> factors) {
  const std::int64_t flops = product(factors);
  for (FlopCounter* c = this; c; c = c->outer_) {
    raise(c->total_, flops);
    const auto known = std::find_if(c->by_op_.begin(), c->by_op_.end(),
                                    [&](const OpFlops& o) { return std::string_view(o.op) == op; });
    if (known == c->by_op_.end())
      c->by_op_.push_back({op, flops});
    else
      raise(known->flops, flops);
  }
}

}  // namespace levin
