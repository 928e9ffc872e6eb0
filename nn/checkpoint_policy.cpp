#include "levin/nn/checkpoint_policy.h"

#include <utility>

namespace levin::nn {
namespace {

CheckpointPolicy*& of_thread() noexcept {
  static thread_local constinit CheckpointPolicy* policy = nullptr;
  return policy;
}

struct Inside {
  explicit Inside(int& regions) : regions(regions) { ++regions; }
  ~Inside() { --regions; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  int& regions;
};

}  // namespace

CheckpointPolicy::CheckpointPolicy(Function<bool(const Module&)> takes) : takes_(std::move(takes)) {
  if (!takes_) fail<ConfigError>("CheckpointPolicy: the function is empty, expected one of a module");
  outer_ = std::exchange(of_thread(), this);
}
CheckpointPolicy::~CheckpointPolicy() { of_thread() = outer_; }

bool CheckpointPolicy::takes(const Module& module) {
  const CheckpointPolicy* const policy = of_thread();
  return policy && policy->regions_ == 0 && policy->takes_(module);
}

Tensor CheckpointPolicy::apply(Function<Tensor(const Tensor&)> call, const Tensor& x) {
  CheckpointPolicy* const policy = of_thread();
  if (!policy) return call(x);
  const Inside inside(policy->regions_);
  return checkpoint(std::move(call), x);
}

void CheckpointPolicy::called(const Module& module, std::span<const Tensor* const>) {
  if (of_thread() != this || !takes(module)) return;
  const std::string path = module.path();
  fail<ConfigError>("the activation checkpoint policy takes ", path.empty() ? module.type_name() : path,
                    ", whose caller does not ask it; call it by nn::run(module, x), or hold it in nn::Sequential");
}
void CheckpointPolicy::returned(const Module&, std::span<const Tensor* const>) {}

}  // namespace levin::nn
