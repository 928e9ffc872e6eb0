// The folders of the sources and of this build. Only where.cpp knows them, so a compiler cache serves every other test
// from any clone.
#pragma once

#include <string>

namespace levin::test {

[[nodiscard]] const std::string& source_dir();
[[nodiscard]] const std::string& build_dir();

}  // namespace levin::test
