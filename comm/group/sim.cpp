#include "comm/group/sim.h"

#include <cxxabi.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "levin/error.h"
#include "tensor/text/number_text.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace levin::dist {
namespace {

constexpr std::size_t kStack = std::size_t{256} << 10;
constexpr double kNever = std::numeric_limits<double>::infinity();

// Note [Fibers of the simulation]
//
// A fiber is a stack of its own, entered and left by swapcontext. The exceptions that a thread has caught and not left
// belong to the stack, so they are exchanged with it. The sanitizers learn of each change of stacks.
class Fiber {
 public:
  explicit Fiber(Function<void()> body) : body_(std::move(body)) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    bytes_ = kStack + page;
    stack_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack_ == MAP_FAILED) fail<OutOfMemoryError>("simulate: no memory for a stack of ", bytes_, " bytes");
    mprotect(stack_, page, PROT_NONE);  // an overflow is a fault, not another rank's stack
    getcontext(&own_);
    own_.uc_stack.ss_sp = static_cast<std::byte*>(stack_) + page;
    own_.uc_stack.ss_size = kStack;
    own_.uc_link = nullptr;
    const auto self = reinterpret_cast<std::uintptr_t>(this);
    makecontext(&own_, reinterpret_cast<void (*)()>(&Fiber::begin), 2, static_cast<unsigned>(self),
                static_cast<unsigned>(self >> 32));
#if defined(__SANITIZE_THREAD__)
    tsan_ = __tsan_create_fiber(0);
#endif
  }
  ~Fiber() {
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(tsan_);
#endif
    munmap(stack_, bytes_);
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  [[nodiscard]] bool over() const { return over_; }

  void enter() {  // from the scheduler
    exchange_exceptions();
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, own_.uc_stack.ss_sp, kStack);
#endif
#if defined(__SANITIZE_THREAD__)
    tsan_scheduler_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(tsan_, 0);
#endif
    swapcontext(&scheduler_, &own_);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
    exchange_exceptions();
  }
  void leave() {  // from the fiber
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(over_ ? nullptr : &fake, scheduler_stack_, scheduler_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(tsan_scheduler_, 0);
#endif
    swapcontext(&own_, &scheduler_);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, &scheduler_stack_, &scheduler_bytes_);
#endif
  }

 private:
  static void begin(unsigned low, unsigned high) {
    auto* const self =
        reinterpret_cast<Fiber*>(static_cast<std::uintptr_t>(low) | static_cast<std::uintptr_t>(high) << 32);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &self->scheduler_stack_, &self->scheduler_bytes_);
#endif
    self->body_();
    self->over_ = true;
    self->leave();
  }
  void exchange_exceptions() {
    auto* const now = reinterpret_cast<Exceptions*>(abi::__cxa_get_globals());
    std::swap(*now, exceptions_);
  }

  struct Exceptions {  // of the C++ ABI
    void* caught = nullptr;
    unsigned uncaught = 0;
  };
  Function<void()> body_;
  void* stack_;
  std::size_t bytes_;
  ucontext_t own_{}, scheduler_{};
  Exceptions exceptions_;
  bool over_ = false;
#if defined(__SANITIZE_ADDRESS__)
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_bytes_ = 0;
#endif
#if defined(__SANITIZE_THREAD__)
  void *tsan_ = nullptr, *tsan_scheduler_ = nullptr;
#endif
};

struct Killed {};  // unwinds the fiber of a rank that was killed

struct Message {
  const std::byte* from = nullptr;  // until the sender's part is done
  std::vector<std::byte> bytes;
};
struct Flight {  // one direction of a handle
  bool over = false;
  bool dropped = false;
  std::byte* to = nullptr;
  std::size_t n = 0;
  int peer = -1;
  std::string error;
  std::shared_ptr<Message> message;
};

class Network;

class Rank final : public SimRank, public Transport {
 public:
  Rank(Network& network, int rank) : network_(network), rank_(rank) {}
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override;
  [[nodiscard]] Transport& transport() override { return *this; }
  [[nodiscard]] double now() const override;
  void compute(double seconds) override;
  Handle send(int to, std::uint64_t slot, const std::byte* bytes, std::size_t n) override;
  Handle recv(int from, std::uint64_t slot, std::byte* bytes, std::size_t n) override;
  void wait(Handle handle) override;
  void drop(Handle handle) noexcept override;
  void abort(std::string_view reason) noexcept override;

  void sleep();  // until the scheduler resumes the fiber; throws what happened meanwhile

  Network& network_;
  int rank_;
  std::unique_ptr<Fiber> fiber;
  std::unordered_map<Handle, std::shared_ptr<Flight>> flights;
  Handle next = 1;
  std::uint64_t waits = 0;    // numbers waits, so that a late timeout is known as one
  std::uint64_t waiting = 0;  // the wait under way; 0: none
  Flight* flight = nullptr;   // what it waits for; null: the clock
  bool timed_out = false, stuck = false, killed = false;
  double stopped_until = 0, slowness = 1;
  double out_free = 0, in_free = 0;  // when the rank's network is done with earlier messages
  std::int64_t sent = 0;
  std::string verdict, error;
  double ended = kNever;
};

class Network {
 public:
  Network(const SimOptions& options, const Function<void(SimRank&)>& body) : options_(options), body_(body) {
    state_ = options.seed * 0x9e3779b97f4a7c15ull + 0x2545f4914f6cdd1dull;
  }

  SimResult run() {
    for (const SimFault& fault : options_.faults) {
      if (fault.after < 0) at(fault.at, [this, fault] { strike(fault); });
    }
    for (int r = 0; r < options_.ranks; ++r) {
      Rank& rank = *ranks_.emplace_back(std::make_unique<Rank>(*this, r));
      rank.fiber = std::make_unique<Fiber>([this, &rank] { live(rank); });
      at(0, [this, &rank] { enter(rank); });
    }
    for (;;) {
      while (!events_.empty()) {
        const Event event = events_.top();
        events_.pop();
        clock_ = std::max(clock_, event.at);
        event.what();
      }
      // Nothing is under way: what waits, waits for ever.
      bool any = false;
      for (const auto& rank : ranks_) {
        if (rank->waiting == 0 || rank->killed) continue;
        rank->stuck = any = true;
        wake(*rank);
      }
      if (!any) break;
    }
    SimResult result{.messages = messages_, .bytes = bytes_, .ended{}, .errors{}, .verdicts{}};
    for (const auto& rank : ranks_) {
      if (!rank->fiber->over()) {  // killed: its stack is unwound
        rank->killed = true;
        rank->fiber->enter();
      } else {
        result.seconds = std::max(result.seconds, rank->ended);
      }
      result.ended.push_back(rank->ended);
      result.errors.push_back(rank->error);
      result.verdicts.push_back(rank->verdict);
    }
    return result;
  }

  void at(double time, Function<void()> what) { events_.push({time, ++order_, std::move(what)}); }

  void enter(Rank& rank) {
    if (rank.killed || rank.fiber->over()) return;
    if (rank.stopped_until > clock_) {
      if (rank.stopped_until < kNever) at(rank.stopped_until, [this, &rank] { enter(rank); });
      return;
    }
    rank.fiber->enter();
  }
  // The rank's wait is over.
  void wake(Rank& rank) {
    if (rank.waiting == 0) return;
    rank.waiting = 0;
    at(clock_, [this, &rank] { enter(rank); });
  }

  void send(Rank& from, int to, std::uint64_t slot, const std::shared_ptr<Flight>& flight, const std::byte* bytes) {
    Rank& receiver = *ranks_[static_cast<std::size_t>(to)];
    const double wire = static_cast<double>(flight->n) / options_.link.bandwidth;
    double start = std::max(clock_, from.out_free);
    for (const auto& [a, b, begin, end] : down_) {
      const bool meets = (a == from.rank_ && (b == to || b < 0)) || (a == to && (b == from.rank_ || b < 0));
      if (meets && start >= begin && start < end) start = end;
    }
    ++messages_;
    bytes_ += static_cast<std::int64_t>(flight->n);
    flight->message = std::make_shared<Message>(Message{.from = bytes, .bytes{}});
    if (start == kNever) return;
    const double out = start + wire;
    from.out_free = out;
    // The bytes are read when they have left: a sender that changes them earlier is found.
    at(out, [this, &from, flight] {
      if (flight->dropped) return;
      Message& m = *flight->message;
      if (flight->n > 0) m.bytes.assign(m.from, m.from + flight->n);
      flight->over = true;
      if (from.flight == flight.get()) wake(from);
    });
    double arrival = out + options_.link.latency * (1 + options_.link.jitter * uniform());
    while (options_.link.loss > 0 && uniform() < options_.link.loss) arrival += options_.link.retransmit;
    Box& box = boxes_[{from.rank_, to, slot}];
    arrival = std::max({arrival, box.last, receiver.in_free + wire});
    box.last = arrival;
    receiver.in_free = arrival;
    at(arrival, [this, &box, &receiver, flight] {
      if (flight->dropped && flight->message->bytes.size() != flight->n) return;
      box.arrived.push_back(flight->message);
      match(box, receiver);
    });
    for (const SimFault& fault : options_.faults) {
      if (fault.after == from.sent && fault.rank == from.rank_) {
        at(std::max(clock_, fault.at), [this, fault] { strike(fault); });
      }
    }
    ++from.sent;
  }
  void recv(Rank& to, int from, std::uint64_t slot, const std::shared_ptr<Flight>& flight) {
    Box& box = boxes_[{from, to.rank_, slot}];
    box.expected.push_back(flight);
    match(box, to);
  }

  void strike(const SimFault& fault) {
    Rank& rank = *ranks_[static_cast<std::size_t>(fault.rank)];
    switch (fault.kind) {
      case SimFault::Kind::kill:
        if (rank.fiber->over()) return;
        rank.killed = true;
        at(clock_ + options_.link.latency,
           [this, r = fault.rank] { decide("rank " + text(r) + " is lost: its process has ended"); });
        return;
      case SimFault::Kind::stop:
        rank.stopped_until = clock_ + fault.seconds;
        if (fault.seconds > options_.silence) {
          at(clock_ + options_.silence, [this, &rank] {
            if (!rank.fiber->over())
              decide("rank " + text(rank.rank_) + " is silent for " + text(options_.silence) + " s");
          });
        }
        return;
      case SimFault::Kind::slow: rank.slowness = fault.seconds; return;
      case SimFault::Kind::link_down:
        down_.emplace_back(fault.rank, fault.other, clock_, clock_ + fault.seconds);
        return;
    }
  }
  // The first cause is the job's; every rank hears it a message later.
  void decide(std::string verdict) {
    if (!verdict_.empty()) return;
    verdict_ = std::move(verdict);
    for (const auto& rank : ranks_) {
      at(clock_ + options_.link.latency * (1 + options_.link.jitter * uniform()), [this, r = rank.get()] {
        if (r->killed || r->fiber->over()) return;
        r->verdict = verdict_;
        wake(*r);
      });
    }
  }

  [[nodiscard]] const SimOptions& options() const { return options_; }
  [[nodiscard]] double clock() const { return clock_; }

 private:
  struct Event {
    double at;
    std::uint64_t order;
    Function<void()> what;
    friend bool operator<(const Event& a, const Event& b) {
      return std::tie(b.at, b.order) < std::tie(a.at, a.order);  // the earliest first
    }
  };
  struct Box {
    std::deque<std::shared_ptr<Message>> arrived;
    std::deque<std::shared_ptr<Flight>> expected;
    double last = 0;
  };

  void live(Rank& rank) {
    try {
      body_(rank);
    } catch (const Killed&) { return; } catch (const std::exception& e) {
      rank.error = e.what();
    }
    rank.ended = clock_;
  }
  void match(Box& box, Rank& receiver) {
    while (!box.arrived.empty() && !box.expected.empty()) {
      const std::shared_ptr<Flight> flight = box.expected.front();
      box.expected.pop_front();
      if (flight->dropped) continue;
      const std::shared_ptr<Message> message = box.arrived.front();
      box.arrived.pop_front();
      if (message->bytes.size() != flight->n) {
        flight->error =
            "a message of " + text(message->bytes.size()) + " bytes came where " + text(flight->n) + " were expected";
      } else if (flight->n > 0) {
        std::memcpy(flight->to, message->bytes.data(), flight->n);
      }
      flight->over = true;
      if (receiver.flight == flight.get()) wake(receiver);
    }
  }
  double uniform() {  // xorshift64*
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return static_cast<double>((state_ * 0x2545f4914f6cdd1dull) >> 11) * 0x1p-53;
  }

  const SimOptions& options_;
  const Function<void(SimRank&)>& body_;
  std::uint64_t state_, order_ = 0;
  double clock_ = 0;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::priority_queue<Event> events_;
  std::map<std::tuple<int, int, std::uint64_t>, Box> boxes_;  // from, to, slot
  std::vector<std::tuple<int, int, double, double>> down_;
  std::int64_t messages_ = 0, bytes_ = 0;
  std::string verdict_;
};

int Rank::size() const { return network_.options().ranks; }
double Rank::now() const { return network_.clock(); }

void Rank::sleep() {
  if (!killed) fiber->leave();
  flight = nullptr;
  if (killed) throw Killed{};
  if (!verdict.empty()) fail<CommError>(verdict);
}

void Rank::compute(double seconds) {
  const double until = now() + seconds * slowness;
  while (now() < until) {
    network_.at(until, [this] { network_.enter(*this); });
    sleep();
  }
}

Transport::Handle Rank::send(int to, std::uint64_t slot, const std::byte* bytes, std::size_t n) {
  if (killed) throw Killed{};
  if (!verdict.empty()) fail<CommError>(verdict);
  auto sent_flight = std::make_shared<Flight>();
  sent_flight->n = n;
  sent_flight->peer = to;
  network_.send(*this, to, slot, sent_flight, bytes);
  flights[next] = std::move(sent_flight);
  return next++;
}

Transport::Handle Rank::recv(int from, std::uint64_t slot, std::byte* bytes, std::size_t n) {
  if (killed) throw Killed{};
  if (!verdict.empty()) fail<CommError>(verdict);
  auto expected = std::make_shared<Flight>();
  expected->to = bytes;
  expected->n = n;
  expected->peer = from;
  network_.recv(*this, from, slot, expected);
  flights[next] = std::move(expected);
  return next++;
}

void Rank::wait(Handle handle) {
  const auto at = flights.find(handle);
  if (at == flights.end()) fail<InternalError>("sim: a handle is waited for twice");
  const std::shared_ptr<Flight> mine = at->second;
  flights.erase(at);
  if (!mine->over) {
    waiting = ++waits;
    flight = mine.get();
    timed_out = stuck = false;
    const double limit = network_.options().timeout;
    if (std::isfinite(limit)) {
      network_.at(now() + limit, [this, id = waits] {
        if (waiting != id) return;
        timed_out = true;
        network_.wake(*this);
      });
    }
    try {
      sleep();
    } catch (...) {
      mine->dropped = true;
      throw;
    }
    if (!mine->over) {
      mine->dropped = true;
      if (timed_out) fail<CommError>("rank ", mine->peer, " sent no message for ", network_.options().timeout, " s");
      fail<CommError>("deadlock: rank ", rank_, " waits for rank ", mine->peer, " and nothing is under way");
    }
  }
  if (!mine->error.empty()) fail<CommError>(mine->error);
}

void Rank::drop(Handle handle) noexcept {
  const auto at = flights.find(handle);
  if (at == flights.end()) return;
  at->second->dropped = true;
  flights.erase(at);
}

void Rank::abort(std::string_view reason) noexcept { network_.decide(std::string(reason)); }

}  // namespace

SimResult simulate(const SimOptions& options, const Function<void(SimRank&)>& body) {
  const SimLink& link = options.link;
  if (options.ranks < 1 || options.ranks > 100000)
    fail<ConfigError>("simulate: 1 to 100000 ranks, got ", options.ranks);
  if (!(link.latency >= 0) || !(link.bandwidth > 0) || !(link.jitter >= 0) || !(link.loss >= 0 && link.loss < 1)) {
    fail<ConfigError>("simulate: latency ", link.latency, ", bandwidth ", link.bandwidth, ", jitter ", link.jitter,
                      " and loss ", link.loss, " must be at least 0, the bandwidth above 0, the loss below 1");
  }
  for (const SimFault& fault : options.faults) {
    if (fault.rank < 0 || fault.rank >= options.ranks || fault.other >= options.ranks) {
      fail<ConfigError>("simulate: a fault names rank ", fault.rank, " of ", options.ranks);
    }
  }
  return Network(options, body).run();
}

}  // namespace levin::dist
