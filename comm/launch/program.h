// Other programs that the library asks: sbatch, scontrol.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace levin::dist {

struct ProgramEnd {
  int code = 0;  // 128 + signal where a signal killed it
  std::string out, err;
};
// Runs a program, found by PATH, with `input` on its stdin, and waits for its end. Throws ConfigError where it cannot
// be
// started.
[[nodiscard]] ProgramEnd run_program(const std::vector<std::string>& words, std::string_view input);

}  // namespace levin::dist
