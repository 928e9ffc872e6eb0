// TCP sockets of the store: addresses, deadlines, no signals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "comm/fd.h"

namespace levin::dist {

struct Endpoint {
  std::string host;
  int port = 0;
};
[[nodiscard]] std::string address_text(const Endpoint& at);  // "host:29500", "[::1]:29500"

// Whether the name means this machine alone: localhost, 127.0.0.0/8, ::1, and names that resolve to those only.
[[nodiscard]] bool is_loopback(const std::string& host);

enum class Reach : bool { loopback, network };
// Listens at the port, 0: a free one. loopback: at the host's own addresses; network: at all addresses of the machine,
// IPv6 and IPv4. Retries a taken port for `patience` seconds. Throws CommError with the address and the error.
[[nodiscard]] Fd listen_at(const Endpoint& at, Reach reach, double patience);
void without_delay(const Fd& socket);  // small messages leave at once
[[nodiscard]] int port_of(const Fd& socket);
// Where this process reaches the listener.
[[nodiscard]] Endpoint own_end(const Fd& listener);
// The numeric address of this end of a connection, and of the other one.
[[nodiscard]] std::string local_address(const Fd& connection);
[[nodiscard]] std::string peer_address(const Fd& connection);

// Connects at one of the host's addresses, until `deadline` (steady seconds). An empty Fd, and the cause in `error`:
// "Connection refused".
struct Connected {
  Fd socket;
  std::string error{};
  bool unknown_host = false;
};
[[nodiscard]] Connected connect_once(const Endpoint& at, double deadline);

// Connections do not block. Each returns what ended it.
enum class Sent : std::uint8_t { done, late, closed };
[[nodiscard]] Sent send_all(const Fd& socket, std::string_view bytes, double deadline) noexcept;
[[nodiscard]] Sent receive_all(const Fd& socket, void* out, std::size_t bytes, double deadline) noexcept;

}  // namespace levin::dist
