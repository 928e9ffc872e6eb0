// The seed of a program.
#pragma once

#include <cstdint>
#include <optional>

#include "levin/export.h"
#include "levin/generator.h"

namespace levin {

// The program's root generator, from which it forks all others; there is no global one.
//
//   const Generator root = seed_everything(42);
//   Net net({.gen = root.fork("net"), .device = Device::cpu()});
//   data::DataLoader train(digits, {.shuffle = true, .generator = root.fork("order")});
//
// Without a seed that of the environment's LEVIN_GLOBAL_SEED, else 0 with a warning (W-SEED). Every rank of a training
// calls it with the same number, so weights and the order of samples agree; the trainer gives each rank draws of its
// own, such as dropout's. Throws ConfigError for a number outside of 0 .. 2^32 - 1, and for a text that is no such
// number.
[[nodiscard]] LEVIN_API Generator seed_everything(std::optional<std::int64_t> seed = {});

}  // namespace levin
