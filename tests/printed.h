// A function's output on stderr, captured, with its warnings.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>

#include "levin/function.h"
#include "levin/serialize.h"
#include "levin/warning.h"
#include "tests/temporary.h"

namespace levin::test {

inline std::string printed(const Function<void()>& f) {
  const TemporaryFolder folder;
  const std::string path = folder / "stderr";
  Function<void(const Warning&)> handler = set_warning_handler({});
  std::fflush(stderr);
  const int before = ::dup(STDERR_FILENO);
  std::FILE* const file = std::fopen(path.c_str(), "w");
  ::dup2(::fileno(file), STDERR_FILENO);
  const auto back = [&] {
    std::fflush(stderr);
    ::dup2(before, STDERR_FILENO);
    ::close(before);
    std::fclose(file);
    set_warning_handler(std::move(handler));
  };
  try {
    f();
  } catch (...) {
    back();
    throw;
  }
  back();
  return read_file(path, 1 << 20);
}

}  // namespace levin::test
