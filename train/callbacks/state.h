// Reads and writes the states of callbacks that keep averages.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "levin/train.h"

namespace levin::train {

// The named tensor, or null.
template <class Tensors_>
[[nodiscard]] auto* find(Tensors_& tensors, std::string_view name) {
  const auto it = std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.first == name; });
  return it == tensors.end() ? nullptr : &it->second;
}
inline void append_below(NamedTensors& to, const std::string& prefix, const NamedTensors& tensors) {
  for (const auto& [name, t] : tensors) to.emplace_back(prefix + name, t);
}
[[nodiscard]] inline NamedTensors names_below(const NamedTensors& tensors, std::string_view prefix) {
  NamedTensors out;
  for (const auto& [name, t] : tensors) {
    if (name.starts_with(prefix)) out.emplace_back(name.substr(prefix.size()), t);
  }
  return out;
}

[[nodiscard]] inline Tensor count_tensor(std::int64_t n) { return tensor({n}, Device::cpu()); }
// Throws ConfigError unless it is one i64.
[[nodiscard]] inline std::int64_t count_in(const char* callback, const NamedTensors& tensors, const std::string& name) {
  const Tensor* t = find(tensors, name);
  if (!t || t->dtype() != DType::i64 || t->numel() != 1)
    fail<ConfigError>(callback, ": the state's ", name, " is ", t ? text(*t) : "missing", ", expected one i64");
  return t->item<std::int64_t>();
}

// The tree of the run. Throws ConfigError for bare tensors.
[[nodiscard]] inline nn::Module& module_to_average(const char* callback, const Trainer& trainer) {
  nn::Module* module = trainer.module();
  if (!module)
    fail<ConfigError>(
        callback, ": the parameters belong to no module; averages are kept by a module's names, put them below one");
  return *module;
}

}  // namespace levin::train
