// How families of ops list the forms of their calls.
#pragma once

#include <span>
#include <string>
#include <tuple>

#include "levin/ops.h"
#include "tests/fuzz/chooser.h"

namespace levin::fuzz {

// f(arguments), evaluated from left to right: the same bytes are the same calls with every compiler.
#define LEVIN_CALL(f, ...) std::apply([](auto&&... argument) { return f(argument...); }, std::tuple{__VA_ARGS__})

// ---- Functions of one type, by their names
#define LEVIN_UNARY(f)                                         \
  Form {                                                       \
#f, [](Chooser&, Pool & p) { return Tensors{f(p.any())}; } \
  }
#define LEVIN_BINARY(f)                   \
  Form {                                  \
#f, [](Chooser&, Pool& p) {             \
      const Tensor a = p.any();             \
      return Tensors{f(a, p.matching(a))};  \
    } \
  }
#define LEVIN_SCALED(f)                                                                                  \
  Form {                                                                                                 \
#f " by a number", [](Chooser & c, Pool & p) { return Tensors{LEVIN_CALL(f, p.any(), c.scalar())}; } \
  }
#define LEVIN_REDUCTION(f)                        \
  Form {                                          \
#f, [](Chooser& c, Pool& p) {                   \
      const Tensor x = p.any();                     \
      const Dims dims = c.dims();                   \
      return Tensors{f(x, dims, c.keep())};         \
    } \
  }
#define LEVIN_ALONG(f)                         \
  Form {                                       \
#f, [](Chooser& c, Pool& p) {                \
      const Tensor x = p.any();                  \
      return Tensors{f(x, c.integer())};         \
    } \
  }
#define LEVIN_LOSS(f)                                  \
  Form {                                               \
#f, [](Chooser& c, Pool& p) {                        \
      const Tensor x = p.any(), to = p.matching(x);      \
      return Tensors{f(x, to, c.reduction())};           \
    } \
  }

// A small extent of an operand.
inline std::int64_t small(Chooser& c) { return 1 + static_cast<std::int64_t>(c.below(3)); }

// The families, in the order of forms().
[[nodiscard]] std::span<const Form> pointwise_forms();
[[nodiscard]] std::span<const Form> reduce_forms();
[[nodiscard]] std::span<const Form> image_forms();
[[nodiscard]] std::span<const Form> network_forms();
[[nodiscard]] std::span<const Form> graph_forms();

}  // namespace levin::fuzz
