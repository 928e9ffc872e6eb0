// Gloo's point-to-point half behind a C face.
//
// Note [Gloo's traps]: a receive of another size than the message ends the process in Gloo's own thread, so a slot
// names its size (gloo.cpp) and such a pair never meets. A wait that no abort ends outlives closed connections, so each
// message under way is in a registry and an abort goes through it. After a timeout the connections are of no use. A
// write to a lost peer raises SIGPIPE, which is ignored while a context lives. A connection that is closed before its
// connect() begins may wait for its peer up to the timeout, so an abort closes all connections until connect() has
// returned.
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "comm/group/gloo_face.h"

namespace {

class NoSigpipe {
 public:
  NoSigpipe() {
    const std::lock_guard lock(mutex());
    if (count()++ > 0) return;
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, nullptr, &before());
    // A handler of the program's own is no death.
    if (before().sa_handler == SIG_DFL) sigaction(SIGPIPE, &ignore, nullptr);
  }
  ~NoSigpipe() {
    const std::lock_guard lock(mutex());
    if (--count() > 0) return;
    struct sigaction now {};
    sigaction(SIGPIPE, nullptr, &now);
    if (now.sa_handler == SIG_IGN) sigaction(SIGPIPE, &before(), nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex m;
    return m;
  }
  static int& count() {
    static int n = 0;
    return n;
  }
  static struct sigaction& before() {
    static struct sigaction action {};
    return action;
  }
};

struct Message {
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  bool sends = false;
};

struct Context {
  NoSigpipe quiet;
  int rank = 0, size = 0;
  std::shared_ptr<gloo::transport::Device> device;
  std::shared_ptr<gloo::transport::Context> context;
  std::string card;
  std::mutex mutex;  // guards the members below
  std::condition_variable connected;
  std::set<Message*> under_way;
  bool connecting = false, aborted = false;
};

void write_error(char* error, const char* text) {
  const std::size_t n = std::min(std::strlen(text), static_cast<std::size_t>(kLevinGlooError - 1));
  std::memcpy(error, text, n);
  error[n] = '\0';
}
// What `body` returns, or `otherwise` and the text of its exception.
template <class R, class Body>
R guarded(char* error, R otherwise, const Body& body) noexcept {
  try {
    return body();
  } catch (const std::exception& e) { write_error(error, e.what()); } catch (...) {
    write_error(error, "an exception that is no std::exception");
  }
  return otherwise;
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<long long>(std::clamp(seconds, 0.001, 1e8) * 1000));
}

void* open(int rank, int size, const char* address, double timeout, char* error) {
  return guarded<void*>(error, nullptr, [&] {
    auto c = std::make_unique<Context>();
    c->rank = rank;
    c->size = size;
    c->device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(address));
    c->context = c->device->createContext(rank, size);
    c->context->setTimeout(milliseconds(timeout));
    // A card has the length and the bytes of this rank's address for each other rank.
    for (int r = 0; r < size; ++r) {
      std::vector<char> bytes;
      if (r != rank) bytes = c->context->createPair(r)->address().bytes();
      const auto n = static_cast<std::uint32_t>(bytes.size());
      c->card.append(reinterpret_cast<const char*>(&n), sizeof n);
      c->card.append(bytes.data(), bytes.size());
    }
    return static_cast<void*>(c.release());
  });
}

const char* card(void* context, std::size_t* bytes) {
  const auto& c = *static_cast<Context*>(context);
  *bytes = c.card.size();
  return c.card.data();
}

// The address in a rank's card that is for `reader`.
std::vector<char> address_in(const char* card, std::size_t bytes, int reader) {
  for (int r = 0;; ++r) {
    std::uint32_t n = 0;
    if (bytes < sizeof n) throw std::runtime_error("a rank's card is cut");
    std::memcpy(&n, card, sizeof n);
    card += sizeof n;
    bytes -= sizeof n;
    if (n > bytes) throw std::runtime_error("a rank's card is cut");
    if (r == reader) return {card, card + n};
    card += n;
    bytes -= n;
  }
}

// The end of connect(), for an abort that waits for it.
class Ended {
 public:
  explicit Ended(Context& context) : context_(context) {}
  ~Ended() {
    const std::lock_guard lock(context_.mutex);
    context_.connecting = false;
    context_.connected.notify_all();
  }
  Ended(const Ended&) = delete;
  Ended& operator=(const Ended&) = delete;

 private:
  Context& context_;
};

int connect(void* context, const char* const* cards, const std::size_t* bytes, char* error) {
  return guarded(error, 1, [&] {
    auto& c = *static_cast<Context*>(context);
    const auto check = [&] {
      const std::lock_guard lock(c.mutex);
      if (c.aborted) throw std::runtime_error("the connections are closed");
      c.connecting = true;
    };
    const Ended ended(c);
    for (int r = 0; r < c.size; ++r) {
      check();
      if (r != c.rank) c.context->getPair(r)->connect(address_in(cards[r], bytes[r], c.rank));
    }
    check();
    return 0;
  });
}

void* start(void* context, int peer, std::uint64_t slot, void* bytes, std::size_t n, bool sends, char* error) {
  return guarded<void*>(error, nullptr, [&] {
    auto& c = *static_cast<Context*>(context);
    auto message = std::make_unique<Message>();
    message->sends = sends;
    message->buffer = c.context->createUnboundBuffer(bytes, n);
    {
      const std::lock_guard lock(c.mutex);
      if (c.aborted) throw std::runtime_error("the connections are closed");
      c.under_way.insert(message.get());
    }
    try {
      if (sends) {
        message->buffer->send(peer, slot, 0, n);
      } else {
        message->buffer->recv(peer, slot, 0, n);
      }
    } catch (...) {
      const std::lock_guard lock(c.mutex);
      c.under_way.erase(message.get());
      throw;
    }
    return static_cast<void*>(message.release());
  });
}
void* send(void* context, int to, std::uint64_t slot, const void* bytes, std::size_t n, char* error) {
  return start(context, to, slot, const_cast<void*>(bytes), n, true, error);
}
void* recv(void* context, int from, std::uint64_t slot, void* bytes, std::size_t n, char* error) {
  return start(context, from, slot, bytes, n, false, error);
}

void drop(void* context, void* message) {
  auto& c = *static_cast<Context*>(context);
  const std::unique_ptr<Message> owned(static_cast<Message*>(message));
  const std::lock_guard lock(c.mutex);
  c.under_way.erase(owned.get());
}

int wait(void* context, void* message, double timeout, char* error) {
  auto& m = *static_cast<Message*>(message);
  const int result = guarded(error, 2, [&] {
    const auto bound = milliseconds(timeout);
    return (m.sends ? m.buffer->waitSend(nullptr, bound) : m.buffer->waitRecv(nullptr, bound)) ? 0 : 1;
  });
  drop(context, message);
  return result;
}

void abort_all(void* context) {
  auto& c = *static_cast<Context*>(context);
  {
    const std::lock_guard lock(c.mutex);
    if (std::exchange(c.aborted, true)) return;
    for (Message* const m : c.under_way) {
      if (m->sends) {
        m->buffer->abortWaitSend();
      } else {
        m->buffer->abortWaitRecv();
      }
    }
  }
  char error[kLevinGlooError];
  const auto close_all = [&] {
    for (int r = 0; r < c.size; ++r) {
      guarded(error, 0, [&] {
        if (auto& pair = c.context->getPair(r)) pair->close();
        return 0;
      });
    }
  };
  close_all();
  std::unique_lock lock(c.mutex);
  while (c.connecting) {
    lock.unlock();
    close_all();
    lock.lock();
    c.connected.wait_for(lock, std::chrono::milliseconds(5), [&] { return !c.connecting; });
  }
}

void close_context(void* context) {
  abort_all(context);
  delete static_cast<Context*>(context);
}

}  // namespace

const LevinGloo* levin_gloo() {
  static const LevinGloo face{kLevinGlooVersion, open, card, connect, send, recv, wait, drop, abort_all, close_context};
  return &face;
}
