#include "comm/job/torch_store.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

#include "comm/job/note.h"
#include "comm/job/wire.h"
#include "levin/error.h"
#include "tensor/text/number_text.h"

namespace levin::dist {
namespace {

using std::string;

// Note [torchrun's store]
enum class Query : std::uint8_t { validate = 0, set = 1, get = 3, wait = 6 };
constexpr std::uint32_t kValidation = 0x3C85F7CE;
constexpr std::uint64_t kValueLimit = 4096;

Packer& put_long_text(Packer& out, const string& text) {
  out.put(static_cast<std::uint64_t>(text.size()));
  for (const char c : text) out.put(c);
  return out;
}

Packer greeting() { return Packer().put(Query::validate).put(kValidation); }

// Runs `talk` on a connection, anew after each connection that fails, until the time is over.
template <class Talk>
void converse(const Endpoint& agent, const char* what, double timeout, const Talk& talk) {
  const double deadline = steady_seconds() + timeout;
  string error;
  for (double wait = 0.01;; wait = std::min(wait * 1.5, 1.0)) {
    const Connected connected = connect_once(agent, deadline);
    error = connected.error;
    if (connected.socket) {
      const Sent end = talk(connected.socket, deadline);
      if (end == Sent::done) return;
      error = end == Sent::late ? "no answer" : "the connection closed";
    }
    if (steady_seconds() >= deadline) {
      fail<CommError>("init_process_group: torchrun's store at ", address_text(agent), " did not ", what, " within ",
                      detail::general(timeout, 3), " s: ", error,
                      "; see that rank 0 runs, and that MASTER_ADDR and MASTER_PORT are torchrun's");
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(wait));
  }
}

}  // namespace

void publish(const Endpoint& agent, const string& key, const string& value, double timeout) {
  converse(agent, "take the address of rank 0", timeout, [&](const Fd& socket, double deadline) {
    Packer out = greeting();
    put_long_text(put_long_text(out.put(Query::set), key), value);
    // SET has no answer: a WAIT for the same key shows that it arrived.
    put_long_text(out.put(Query::wait).put(std::uint64_t{1}), key);
    const Sent sent = send_all(socket, out.bytes(), deadline);
    std::uint8_t ready = 1;
    return sent == Sent::done ? receive_all(socket, &ready, 1, deadline) : sent;
  });
}

string look_up(const Endpoint& agent, const string& key, double timeout) {
  string value;
  converse(agent, "give the address of rank 0", timeout, [&](const Fd& socket, double deadline) {
    Packer out = greeting();
    put_long_text(out.put(Query::wait).put(std::uint64_t{1}), key);
    Sent end = send_all(socket, out.bytes(), deadline);
    std::uint8_t ready = 1;
    if (end == Sent::done) end = receive_all(socket, &ready, 1, deadline);
    Packer get;
    put_long_text(get.put(Query::get), key);
    if (end == Sent::done) end = send_all(socket, get.bytes(), deadline);
    std::uint64_t size = 0;
    if (end == Sent::done) end = receive_all(socket, &size, sizeof size, deadline);
    if (end != Sent::done) return end;
    if (ready != 0 || size > kValueLimit) {
      fail<CommError>("init_process_group: what listens at ", address_text(agent),
                      " does not answer as torchrun's store; set MASTER_ADDR and MASTER_PORT to torchrun's");
    }
    value.resize(size);
    return receive_all(socket, value.data(), size, deadline);
  });
  return value;
}

}  // namespace levin::dist
