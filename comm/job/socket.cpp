#include "comm/job/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>

#include "comm/job/note.h"
#include "levin/error.h"

namespace levin::dist {
namespace {

using std::string;

struct Found {
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> list{nullptr, ::freeaddrinfo};
  string error{};
};
Found resolve(const string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int rc = ::getaddrinfo(host.empty() ? nullptr : host.c_str(), text(port).c_str(), &hints, &list);
  Found out;
  if (rc == 0)
    out.list.reset(list);
  else
    out.error = rc == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(rc);
  return out;
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, address, sizeof in);
    return ntohl(in.sin_addr.s_addr) >> 24 == 127;
  }
  if (address->sa_family == AF_INET6) {
    sockaddr_in6 in{};
    std::memcpy(&in, address, sizeof in);
    if (IN6_IS_ADDR_V4MAPPED(&in.sin6_addr)) return in.sin6_addr.s6_addr[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(&in.sin6_addr);
  }
  return false;
}

string numeric(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST] = "";
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host, nullptr, 0, NI_NUMERICHOST) !=
      0)
    return {};
  string out(host);
  // An IPv4 address in IPv6's clothes.
  if (const string mapped = "::ffff:"; out.starts_with(mapped) && out.find('.') != string::npos)
    out.erase(0, mapped.size());
  return out;
}

int port_in(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

void set(int fd, int level, int option, int value) { (void)::setsockopt(fd, level, option, &value, sizeof value); }

int milliseconds_until(double deadline) {
  const double left = std::ceil((deadline - steady_seconds()) * 1000);
  return static_cast<int>(std::clamp(left, 0.0, 1e6));
}

// Ready, or late.
bool wait_for(int fd, short events, double deadline) noexcept {
  for (;;) {
    pollfd one{fd, events, 0};
    const int n = ::poll(&one, 1, milliseconds_until(deadline));
    if (n > 0) return true;
    if ((n == 0 || errno != EINTR) && steady_seconds() >= deadline) return false;
  }
}

// A listening socket at one address, or the error.
Fd listen_on(const addrinfo& at, int& error) {
  Fd fd(::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) {
    error = errno;
    return fd;
  }
  set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (at.ai_family == AF_INET6) set(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  constexpr int kBacklog = 4096;
  if (::bind(fd.get(), at.ai_addr, at.ai_addrlen) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    error = errno;
    fd.reset();
  }
  return fd;
}

}  // namespace

string address_text(const Endpoint& at) {
  const bool v6 = at.host.find(':') != string::npos;
  return (v6 ? "[" + at.host + "]" : at.host) + ":" + text(at.port);
}

bool is_loopback(const string& host) {
  if (host == "localhost") return true;
  const Found found = resolve(host, 0, 0);
  if (!found.list) return false;
  for (const addrinfo* at = found.list.get(); at != nullptr; at = at->ai_next) {
    if (!is_loopback(at->ai_addr)) return false;
  }
  return true;
}

Fd listen_at(const Endpoint& at, Reach reach, double patience) {
  const double deadline = steady_seconds() + patience;
  for (;;) {
    string error;
    int code = 0;
    Found found = reach == Reach::loopback ? resolve(at.host, at.port, 0) : resolve("", at.port, AI_PASSIVE);
    error = found.error;
    // IPv6's wildcard serves IPv4 too; of a name's own addresses the first that works.
    for (const int family : {AF_INET6, AF_INET}) {
      for (const addrinfo* one = found.list.get(); one != nullptr; one = one->ai_next) {
        if (reach == Reach::network ? one->ai_family != family : family == AF_INET6) continue;
        if (Fd fd = listen_on(*one, code)) return fd;
        if (code == EADDRINUSE) break;
      }
      if (code == EADDRINUSE) break;
    }
    if (code != 0) error = std::strerror(code);
    if (code != EADDRINUSE || steady_seconds() >= deadline) {
      fail<CommError>("init_process_group: rank 0 cannot listen at ", address_text(at), ": ", error,
                      code == EADDRINUSE ? "; another program has the port: set MASTER_PORT to a free one"
                                         : "; set MASTER_ADDR to an address of rank 0's machine");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

void without_delay(const Fd& socket) { set(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1); }

int port_of(const Fd& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return port_in(address);
}

Endpoint own_end(const Fd& listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  const string host = numeric(address, size);
  if (host == "0.0.0.0") return {"127.0.0.1", port_in(address)};
  if (host == "::") return {"127.0.0.1", port_in(address)};  // of both families; ::1 may be missing
  return {host, port_in(address)};
}

string local_address(const Fd& connection) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(connection.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  return numeric(address, size);
}

string peer_address(const Fd& connection) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(connection.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  return numeric(address, size);
}

namespace {

// Whether the socket is connected to itself: where nothing listens at a port of this host, the system may give a new
// connection that very port as its own.
bool is_its_own_peer(const Fd& socket) {
  sockaddr_storage own{}, peer{};
  socklen_t own_size = sizeof own, peer_size = sizeof peer;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &own_size) != 0) return false;
  if (::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0) return false;
  return port_in(own) == port_in(peer) && numeric(own, own_size) == numeric(peer, peer_size);
}

}  // namespace

Connected connect_once(const Endpoint& at, double deadline) {
  const Found found = resolve(at.host, at.port, 0);
  if (!found.list) return {.socket = {}, .error = found.error, .unknown_host = true};
  Connected out;
  for (const addrinfo* one = found.list.get(); one != nullptr; one = one->ai_next) {
    Fd fd(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    int error = errno;
    if (fd) {
      error = ::connect(fd.get(), one->ai_addr, one->ai_addrlen) == 0 ? 0 : errno;
      if (error == EINPROGRESS) {
        error = ETIMEDOUT;
        if (wait_for(fd.get(), POLLOUT, deadline)) {
          socklen_t size = sizeof error;
          if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
        }
      }
    }
    if (error == 0 && is_its_own_peer(fd)) error = ECONNREFUSED;
    if (error == 0) {
      without_delay(fd);
      out.socket = std::move(fd);
      return out;
    }
    out.error = std::strerror(error);
  }
  return out;
}

Sent send_all(const Fd& socket, std::string_view bytes, double deadline) noexcept {
  while (!bytes.empty()) {
    const ssize_t n = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno == EAGAIN) {
      if (!wait_for(socket.get(), POLLOUT, deadline)) return Sent::late;
    } else if (errno != EINTR) {
      return Sent::closed;
    }
  }
  return Sent::done;
}

Sent receive_all(const Fd& socket, void* out, std::size_t bytes, double deadline) noexcept {
  char* place = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t n = ::recv(socket.get(), place, bytes, 0);
    if (n > 0) {
      place += n;
      bytes -= static_cast<std::size_t>(n);
    } else if (n < 0 && errno == EAGAIN) {
      if (!wait_for(socket.get(), POLLIN, deadline)) return Sent::late;
    } else if (n == 0 || errno != EINTR) {
      return Sent::closed;
    }
  }
  return Sent::done;
}

}  // namespace levin::dist
