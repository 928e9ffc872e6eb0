// Where the sources and this build lie. A file of its own knows, so that a compiler cache serves every other test from any clone.
#pragma once

#include <string>

namespace levin::test {

[[nodiscard]] const std::string& source_dir();
[[nodiscard]] const std::string& build_dir();

}  // namespace levin::test
