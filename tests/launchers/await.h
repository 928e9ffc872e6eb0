// Waiting for a file that another process makes by a rename.
#pragma once

#include <sys/inotify.h>
#include <unistd.h>

#include <string>

namespace levin::test {

inline void await_file(const std::string& path) {
  const int watch = ::inotify_init1(IN_CLOEXEC);
  ::inotify_add_watch(watch, path.substr(0, path.rfind('/')).c_str(), IN_MOVED_TO);
  while (::access(path.c_str(), F_OK) != 0) {
    char events[4096];
    (void)!::read(watch, events, sizeof events);
  }
  ::close(watch);
}

}  // namespace levin::test
