// One program for all targets: the name of the executable chooses the target, so a copy that libFuzzer starts under the
// same name runs the same target.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/fuzz/target.h"

namespace {
const levin::fuzz::Target* target = nullptr;
}

extern "C" int LLVMFuzzerInitialize(int*, char*** arguments) {
  std::string_view name = (*arguments)[0];
  name.remove_prefix(name.rfind('/') + 1);
  for (const auto& t : levin::fuzz::targets()) {
    if (name == t.name) target = &t;
  }
  if (target) return 0;
  std::fprintf(stderr, "levin_fuzz: call it by the name of a target; beside it are links of these names\n");
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  target->run({data, size});
  return 0;
}
