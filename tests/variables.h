// Variables of the environment for a test: as the test sets them, until the object ends.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::test {

// Removes the variables of all launchers that the machine may have set, sets those given, and restores all at its end.
class PlantedVariables {
 public:
  using List = std::initializer_list<std::pair<const char*, const char*>>;
  explicit PlantedVariables(List set) {
    for (char** entry = environ; *entry; ++entry) before_.emplace_back(*entry);
    for (const std::string& entry : before_) {
      const std::string name = entry.substr(0, entry.find('='));
      for (const std::string_view prefix :
           {"SLURM_", "OMPI_", "PMI_", "PMIX_", "MPI_", "TORCHELASTIC_", "LSB_", "JSM_", "MASTER_", "LEVIN_"})
        if (name.starts_with(prefix) && name != "LEVIN_TORCHRUN") ::unsetenv(name.c_str());
      for (const char* own : {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK",
                              "GROUP_WORLD_SIZE", "OMP_NUM_THREADS"})
        if (name == own) ::unsetenv(own);
    }
    for (const auto& [name, value] : set) ::setenv(name, value, 1);
  }
  ~PlantedVariables() {
    ::clearenv();
    for (const std::string& entry : before_) {
      const std::size_t equals = entry.find('=');
      ::setenv(entry.substr(0, equals).c_str(), entry.substr(equals + 1).c_str(), 1);
    }
  }
  PlantedVariables(const PlantedVariables&) = delete;
  PlantedVariables& operator=(const PlantedVariables&) = delete;

 private:
  std::vector<std::string> before_;
};

}  // namespace levin::test
