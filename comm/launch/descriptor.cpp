#include "comm/launch/descriptor.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>
#include <cstdlib>

#include <cerrno>
#include <cstring>

#include "levin/error.h"

namespace levin::dist {

Fd above_stderr(int fd, const char* what) {
  if (fd < 0) fail<ConfigError>("launch: ", what, ": ", std::strerror(errno));
  Fd low(fd);
  if (fd > 2) return low;
  const int high = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (high < 0) fail<ConfigError>("launch: ", what, ": ", std::strerror(errno));
  return Fd(high);
}

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail<ConfigError>("launch: no pipe: ", std::strerror(errno));
  Fd second(ends[1]);  // closed where the first throws
  Fd read = above_stderr(ends[0], "no pipe");
  const int write = std::exchange(ends[1], -1);
  if (write > 2) return {std::move(read), std::move(second)};
  const int high = ::fcntl(write, F_DUPFD_CLOEXEC, 3);
  if (high < 0) fail<ConfigError>("launch: no pipe: ", std::strerror(errno));
  return {std::move(read), Fd(high)};
}

void set_nonblocking(const Fd& fd) noexcept {
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags >= 0) ::fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK);
}

Terminal make_terminal(int like) {
  Fd master(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  char name[128];
  if (!master || ::grantpt(master.get()) != 0 || ::unlockpt(master.get()) != 0 ||
      ::ptsname_r(master.get(), name, sizeof name) != 0)
    return {};
  Fd slave(::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!slave || slave.get() < 3 || master.get() < 3) return {};
  termios settings{};
  if (::tcgetattr(slave.get(), &settings) != 0) return {};
  ::cfmakeraw(&settings);  // the real terminal turns \n into \r\n
  winsize size{};
  if (::tcsetattr(slave.get(), TCSANOW, &settings) != 0) return {};
  if (::ioctl(like, TIOCGWINSZ, &size) == 0) ::ioctl(slave.get(), TIOCSWINSZ, &size);
  return {std::move(master), std::move(slave)};
}

}  // namespace levin::dist
