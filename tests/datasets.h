// Real data sets, which tests read where they are.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/where.h"

namespace levin::test {

// The folder of a real data set: $LEVIN_DATA/name, or beside the source tree. "" where there is none.
inline std::string real_data(const std::string& name) {
  const char* data = std::getenv("LEVIN_DATA");
  for (const std::string& place : {data ? std::string(data) : std::string(), source_dir() + "/../shared/datasets",
                                   source_dir() + "/../../shared/datasets"}) {
    if (!place.empty() && std::filesystem::is_directory(place + "/" + name)) return place + "/" + name;
  }
  return "";
}

}  // namespace levin::test
