// The table of all ops: constant-initialised entries in a linker section, which tests enumerate. Calls do not use it.
#pragma once

#include <span>

#include "levin/extend.h"

namespace levin {

struct OpEntry {
  const OpInfo* info;
  bool differentiable;
};

// Every op linked into this program, in no order. Tests link the whole library to see all ops.
[[nodiscard]] std::span<const OpEntry> op_table();

}  // namespace levin

#define LEVIN_OP_TABLE_JOIN2(a, b) a##b
#define LEVIN_OP_TABLE_JOIN(a, b) LEVIN_OP_TABLE_JOIN2(a, b)
// Stands beside the op's struct: LEVIN_OP_TABLE(LayerNorm), or for an instance of a template
// LEVIN_OP_TABLE(Binary<Add>).
#define LEVIN_OP_TABLE(...)                                                                                  \
  namespace {                                                                                                \
  [[gnu::used, gnu::section("levin_op_table")]] constinit ::levin::OpEntry LEVIN_OP_TABLE_JOIN(op_entry_,    \
                                                                                               __COUNTER__){ \
      &__VA_ARGS__::info, ::levin::detail::Differentiable<__VA_ARGS__>};                                     \
  }
