#include "tests/where.h"

namespace levin::test {

const std::string& source_dir() {
  static const std::string dir = LEVIN_SOURCE_DIR;
  return dir;
}
const std::string& build_dir() {
  static const std::string dir = LEVIN_BUILD_DIR;
  return dir;
}

}  // namespace levin::test
