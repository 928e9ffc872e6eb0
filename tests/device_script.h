// Runs bench/device.sh and bench/device_table.py with built or made-up programs.
#pragma once

#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/train/program.h"
#include "tests/where.h"

namespace levin::test::script {

struct Ran {
  int code;
  std::string said;
};
inline Ran run_line(const TemporaryFolder& dir, const std::string& line) {
  const std::string said = dir / "said.txt";
  const int status = std::system(("(" + line + ") >'" + said + "' 2>&1").c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(said, std::size_t{1} << 20)};
}
inline Ran stage(const TemporaryFolder& dir, const std::string& programs, const std::string& arguments) {
  return run_line(dir, "PATH='" + dir.path() + "/tools':$PATH OUT='" + dir.path() + "/out' PROGRAMS='" + programs +
                           "' bash '" + source_dir() + "/bench/device.sh' " + arguments);
}
inline Ran table(const TemporaryFolder& dir, const std::string& arguments) {
  return run_line(dir, "python3 '" + source_dir() + "/bench/device_table.py' " + arguments);
}
inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
inline bool have_tools() {
  if (std::system("python3 -c pass 2>/dev/null && bash -c 'command -v xargs tar timeout sha256sum' >/dev/null 2>&1") ==
      0)
    return true;
  skip("no python3, or no tools of coreutils, findutils or tar");
  return false;
}

inline void make_program(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << "#!/bin/bash\n" << text;
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
}

}  // namespace levin::test::script
