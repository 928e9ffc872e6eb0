#include "comm/launch/variables.h"

#include <cstdlib>

#include "comm/launch/nodelist.h"
#include "levin/error.h"

namespace levin::dist {

bool has_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string Variables::text(const char* name) const {
  if (!has_variable(name)) {
    fail<ConfigError>(launcher_, ": the environment variable ", name, " is missing; start the program by ", launcher_,
                      ", which sets it");
  }
  return variable(name);
}

int Variables::number(const char* name, int least, int most) const {
  const std::string value = text(name);
  const auto number = read_count(value, most);
  if (!number || *number < least) {
    fail<ConfigError>(launcher_, ": the environment variable ", name, " is \"", value,
                      "\", expected a whole number from ", least, " to ", most);
  }
  return static_cast<int>(*number);
}

int Variables::number_or(const char* name, int otherwise, int least, int most) const {
  return has_variable(name) ? number(name, least, most) : otherwise;
}

}  // namespace levin::dist
