// The libraries that kernels use, and which version of each is loaded.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace levin::kernels::lib {

[[nodiscard]] std::vector<std::pair<std::string, std::string>> versions();

}  // namespace levin::kernels::lib
