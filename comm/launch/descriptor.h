// File descriptors that close themselves, and pipes.
#pragma once

#include <utility>

#include "comm/fd.h"

namespace levin::dist {

// Both ends are closed by exec, and above 2 where a process has closed its stdin: dup2 onto 0, 1 and 2 cannot meet
// them.
struct Pipe {
  Fd read, write;
};
[[nodiscard]] Pipe make_pipe();                           // throws ConfigError where the system has no more
[[nodiscard]] Fd above_stderr(int fd, const char* what);  // takes fd; throws ConfigError for -1, with errno
void set_nonblocking(const Fd& fd) noexcept;

// A terminal of our own: what its slave's side writes is read from `master` unchanged.
struct Terminal {
  Fd master, slave;
};
[[nodiscard]] Terminal make_terminal(int like);  // of the size of the terminal `like`; empty where the system has none

}  // namespace levin::dist
