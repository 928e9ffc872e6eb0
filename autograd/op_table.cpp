#include "autograd/op_table.h"

extern "C" {
// The linker makes these for a section whose name is a C identifier.
extern levin::OpEntry __start_levin_op_table[] __attribute__((weak, visibility("hidden")));
extern levin::OpEntry __stop_levin_op_table[] __attribute__((weak, visibility("hidden")));
}

namespace levin {

std::span<const OpEntry> op_table() { return {__start_levin_op_table, __stop_levin_op_table}; }

}  // namespace levin
