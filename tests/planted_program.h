// A program of the system that a test replaces.
#pragma once

#include <stdlib.h>
#include <sys/stat.h>

#include <cstdlib>
#include <string>

#include "levin/serialize.h"
#include "tests/temporary.h"

namespace levin::test {

// A folder whose program `name` is a shell script; PATH begins with it. Make it in the scope of PlantedVariables, which
// restores PATH.
// A folder whose program `name` is a shell script; PATH begins with it.
class PlantedProgram {
 public:
  PlantedProgram(const char* name, const std::string& body) {
    write_file_atomically(folder_ / name, "#!/bin/sh\n" + body);
    ::chmod((folder_ / name).c_str(), 0700);
    ::setenv("PATH", (folder_.path() + ":" + std::getenv("PATH")).c_str(), 1);
  }
  [[nodiscard]] const TemporaryFolder& folder() const { return folder_; }

 private:
  TemporaryFolder folder_;
};

}  // namespace levin::test
