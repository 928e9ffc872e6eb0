// Messages between ranks: what the algorithms of transport backends are written over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace levin::dist {

// The messages of one rank. Messages of a pair of ranks and a slot arrive in the order of their sends, and each has the
// length that its receiver gives; messages of different slots or pairs may overtake each other.
class Transport {
 public:
  using Handle = std::uint64_t;
  virtual ~Transport() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  // Both return at once. The bytes stay as they are, and belong to the message, until wait() of the handle has
  // returned or thrown. Each handle is waited for once, or dropped.
  [[nodiscard]] virtual Handle send(int to, std::uint64_t slot, const std::byte* bytes, std::size_t n) = 0;
  [[nodiscard]] virtual Handle recv(int from, std::uint64_t slot, std::byte* bytes, std::size_t n) = 0;
  // Throws CommError when the peer is lost, the timeout is over or the transport was aborted.
  virtual void wait(Handle handle) = 0;
  // Ends a message that is not waited for, after an error: its memory is free on return.
  virtual void drop(Handle handle) noexcept = 0;
  virtual void abort(std::string_view reason) noexcept = 0;  // from any thread; ends all waits
};

}  // namespace levin::dist
