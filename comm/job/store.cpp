#include "comm/job/store.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <vector>

#include "comm/job/card.h"
#include "comm/job/judge.h"
#include "comm/job/messages.h"
#include "comm/job/secret.h"
#include "comm/job/wire.h"
#include "levin/error.h"
#include "levin/warning.h"
#include "tensor/text/number_text.h"

namespace levin::dist {
namespace {

using std::string;
using std::string_view;
using Body = std::shared_ptr<const string>;

struct Connection {
  Fd socket;
  Digest challenge{};
  double since = 0;
  bool proven = false, has_left = false, broken = false, writable = true;
  int rank = -1;
  string in;
  std::deque<Body> out;
  std::size_t sent = 0, queued = 0;  // bytes of out.front() that are sent; of all that wait
};

struct Gather {
  std::vector<string> values;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> requests;  // connection, number
  std::vector<std::uint8_t> here;
  std::size_t bytes = 0;
};

}  // namespace

// Everything but close() and the destructor runs on the thread.
class Store::Server {
 public:
  Server(Fd listener, const Options& options);
  ~Server();
  void close(double seconds) noexcept;

 private:
  enum class State : std::uint8_t { arriving, running, refused };

  void run();
  void accept_all(double now);
  void drop_oldest_stranger();
  void read(std::uint64_t id, Connection& c, double now);
  void flush(std::uint64_t id, Connection& c);
  void send(std::uint64_t id, Connection& c, const Header& header, const Body& body);
  void send_all(const Header& header, const string& body);
  void drop(std::uint64_t id, double now);
  void give_up(std::uint64_t id, Connection& c);  // drop() follows
  // False: a message that no rank sends; its connection is closed.
  [[nodiscard]] bool handle(std::uint64_t id, Connection& c, const Header& header, string_view body, double now);
  [[nodiscard]] bool hello(std::uint64_t id, Connection& c, const Header& header, string_view body, double now);
  [[nodiscard]] bool gather(std::uint64_t id, Connection& c, const Header& header, string_view body, double now);
  [[nodiscard]] bool group(Connection& c, string_view body);
  void refuse_all(Refusal kind, const string& text);
  void welcome_all(double now);
  void look(double now);
  [[nodiscard]] double next_look(double now) const;
  [[nodiscard]] bool all_gone() const;

  Options options_;
  Fd listener_, poll_, wake_, spare_;
  std::unordered_map<std::uint64_t, Connection> connections_;
  std::set<std::uint64_t> strangers_;  // connections without a proof, oldest first
  std::vector<std::uint64_t> broken_;  // connections to drop
  std::uint64_t next_id_ = 2;          // 0: the listener, 1: the wake
  State state_ = State::arriving;
  double started_ = 0, differs_since_ = -1;
  int refused_strangers_ = 0;
  string refusal_;  // the body
  std::vector<Card> cards_;
  std::vector<Digest> proofs_;          // the store's, for each rank's welcome
  std::vector<std::uint64_t> members_;  // connection of each rank; 0: none
  std::vector<std::uint8_t> answered_;  // whether the rank got its welcome or refusal
  int arrived_ = 0;
  Judge judge_;
  std::map<string, string, std::less<>> values_;
  std::map<string, std::vector<std::pair<std::uint64_t, std::uint64_t>>, std::less<>> getters_;
  std::map<string, std::vector<int>, std::less<>> groups_;
  std::map<std::pair<string, std::uint64_t>, Gather> gathers_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stops_ = false, gone_ = false;  // gone: all ranks are
  std::thread thread_;
};

Store::Server::Server(Fd listener, const Options& options)
    : options_(options),
      listener_(std::move(listener)),
      poll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      spare_(::open("/dev/null", O_RDONLY | O_CLOEXEC)),
      started_(steady_seconds()),
      cards_(static_cast<std::size_t>(options.world)),
      proofs_(static_cast<std::size_t>(options.world)),
      members_(static_cast<std::size_t>(options.world)),
      answered_(static_cast<std::size_t>(options.world)),
      judge_(options.world, {.silence = options.silence, .timeout = options.timeout}) {
  if (!poll_ || !wake_) fail<CommError>("init_process_group: the store cannot poll: ", std::strerror(errno));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = 0;
  (void)::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, listener_.get(), &event);
  event.data.u64 = 1;
  (void)::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
  std::vector<int> world(static_cast<std::size_t>(options.world));
  for (int r = 0; r < options.world; ++r) world[static_cast<std::size_t>(r)] = r;
  groups_.emplace(kWorldKey, std::move(world));
  thread_ = std::thread([this] { run(); });
}

Store::Server::~Server() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
  thread_.join();
}

void Store::Server::close(double seconds) noexcept {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return gone_; });
}

void Store::Server::run() {
  double last = steady_seconds(), planned = 0;
  for (;;) {
    std::array<epoll_event, 64> events{};
    const int n = ::epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()),
                               static_cast<int>(std::ceil(planned * 1000)));
    const double now = steady_seconds();
    if (now - last > planned + options_.silence / 2) judge_.slept(now);
    last = now;
    for (int i = 0; i < n; ++i) {
      const std::uint64_t id = events[static_cast<std::size_t>(i)].data.u64;
      if (id == 0) {
        accept_all(now);
      } else if (id == 1) {
        std::uint64_t count = 0;
        (void)!::read(wake_.get(), &count, sizeof count);
      } else if (const auto at = connections_.find(id); at != connections_.end()) {
        if (events[static_cast<std::size_t>(i)].events & EPOLLOUT) flush(id, at->second);
        if (events[static_cast<std::size_t>(i)].events & ~static_cast<unsigned>(EPOLLOUT)) read(id, at->second, now);
      }
    }
    look(now);
    for (std::size_t i = 0; i < broken_.size(); ++i) drop(broken_[i], now);  // drop() may add some
    broken_.clear();
    {
      const std::lock_guard lock(mutex_);
      const bool gone = all_gone();
      if (gone && !gone_) {
        gone_ = true;
        changed_.notify_all();
      }
      if (stops_) break;
    }
    planned = std::clamp(next_look(now) - now, 0.0, 1.0);
  }
  // Ranks that are still here go on without the store.
  if (state_ == State::running) send_all({.op = Message::farewell}, {});
}

bool Store::Server::all_gone() const {
  if (state_ == State::arriving) return false;
  for (std::size_t r = 0; r < members_.size(); ++r) {
    if (answered_[r] == 0) return false;
    const auto at = connections_.find(members_[r]);
    if (at != connections_.end() && !at->second.has_left) return false;
  }
  return true;
}

void Store::Server::drop_oldest_stranger() {
  if (strangers_.empty()) return;
  connections_.erase(*strangers_.begin());
  strangers_.erase(strangers_.begin());
  ++refused_strangers_;
}

void Store::Server::accept_all(double now) {
  for (;;) {
    Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket && (errno == EMFILE || errno == ENFILE)) {
      // The spare descriptor takes the connection, so that it leaves the queue.
      spare_.reset();
      Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)).reset();
      spare_ = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      return;
    }
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return;
    }
    if (connections_.size() >= kConnectionLimit) drop_oldest_stranger();
    if (connections_.size() >= kConnectionLimit) continue;
    without_delay(socket);
    const std::uint64_t id = next_id_++;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = id;
    if (::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, socket.get(), &event) != 0) continue;
    Connection& c = connections_[id];
    c.socket = std::move(socket);
    c.since = now;
    strangers_.insert(id);
    c.challenge = random_digest();
    const string_view bytes(reinterpret_cast<const char*>(c.challenge.data()), c.challenge.size());
    const auto flags = options_.secret ? kHasSecret : std::uint16_t{0};
    send(id, c, {.op = Message::challenge, .flags = flags, .number = static_cast<std::uint64_t>(options_.restart)},
         std::make_shared<const string>(bytes));
  }
}

void Store::Server::send(std::uint64_t id, Connection& c, const Header& header, const Body& body) {
  if (c.broken) return;
  Header sized = header;
  sized.size = static_cast<std::uint32_t>(body ? body->size() : 0);
  c.out.push_back(std::make_shared<const string>(reinterpret_cast<const char*>(&sized), sizeof sized));
  c.queued += sizeof sized;
  if (sized.size != 0) {
    c.out.push_back(body);
    c.queued += sized.size;
  }
  // A rank that does not read is no rank.
  if (c.queued > 2 * static_cast<std::size_t>(kAnswerLimit)) give_up(id, c);
  if (c.writable) flush(id, c);
}

void Store::Server::flush(std::uint64_t id, Connection& c) {
  bool blocked = false;
  while (!c.out.empty() && !c.broken) {
    const string& front = *c.out.front();
    const int more = c.out.size() > 1 ? MSG_MORE : 0;
    const ssize_t n = ::send(c.socket.get(), front.data() + c.sent, front.size() - c.sent, MSG_NOSIGNAL | more);
    if (n < 0) {
      if (errno == EINTR) continue;
      blocked = errno == EAGAIN;
      if (!blocked) give_up(id, c);
      break;
    }
    c.sent += static_cast<std::size_t>(n);
    c.queued -= static_cast<std::size_t>(n);
    if (c.sent < front.size()) continue;
    c.out.pop_front();
    c.sent = 0;
  }
  if (blocked != c.writable) return;
  c.writable = !blocked;
  epoll_event event{};
  event.events = blocked ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = id;
  (void)::epoll_ctl(poll_.get(), EPOLL_CTL_MOD, c.socket.get(), &event);
}

void Store::Server::send_all(const Header& header, const string& body) {
  const Body shared = std::make_shared<const string>(body);
  for (const std::uint64_t id : members_) {
    if (const auto at = connections_.find(id); at != connections_.end() && !at->second.has_left)
      send(id, at->second, header, shared);
  }
}

void Store::Server::give_up(std::uint64_t id, Connection& c) {
  if (!std::exchange(c.broken, true)) broken_.push_back(id);
}

void Store::Server::drop(std::uint64_t id, double now) {
  const auto at = connections_.find(id);
  if (at == connections_.end()) return;
  const Connection& c = at->second;
  const int rank = c.rank;
  const bool is_member = rank >= 0 && members_[static_cast<std::size_t>(rank)] == id;
  const bool has_left = c.has_left;
  if (strangers_.erase(id) != 0) ++refused_strangers_;
  connections_.erase(at);  // closes
  if (!is_member || has_left) return;
  if (state_ == State::running) {
    judge_.lost(rank, now);
  } else if (state_ == State::arriving) {
    const string name = name_of(cards_[static_cast<std::size_t>(rank)]);
    refuse_all(Refusal::comm,
               "init_process_group: " + name + " was lost in phase rendezvous, before all ranks were there");
  }
}

void Store::Server::read(std::uint64_t id, Connection& c, double now) {
  std::array<char, 65536> buffer;
  bool ended = false;
  for (int i = 0; i < 16; ++i) {  // then the others
    const ssize_t n = ::recv(c.socket.get(), buffer.data(), buffer.size(), 0);
    if (n > 0) {
      c.in.append(buffer.data(), static_cast<std::size_t>(n));
      if (static_cast<std::size_t>(n) < buffer.size()) break;
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
      ended = true;
      break;
    } else if (errno == EAGAIN) {
      break;
    }
  }
  std::size_t at = 0;
  while (!c.broken && c.in.size() - at >= sizeof(Header)) {
    Header header;
    std::memcpy(static_cast<void*>(&header), c.in.data() + at, sizeof header);
    const bool may_be_long = header.op == Message::gather || header.op == Message::set;
    if (header.magic != kMagic || header.size > (c.proven && may_be_long ? kPlanLimit : kBodyLimit)) {
      give_up(id, c);
      break;
    }
    if (c.in.size() - at - sizeof header < header.size) break;
    const string_view body = string_view(c.in).substr(at + sizeof header, header.size);
    at += sizeof header + header.size;
    if (!handle(id, c, header, body, now)) give_up(id, c);
  }
  c.in.erase(0, at);
  if (ended) give_up(id, c);
}

bool Store::Server::handle(std::uint64_t id, Connection& c, const Header& header, string_view body, double now) {
  if (!c.proven) return header.op == Message::hello && hello(id, c, header, body, now);
  if (state_ != State::running || c.has_left || header.rank != static_cast<std::uint32_t>(c.rank)) return false;
  judge_.heard(c.rank, now);
  Unpacker in(body);
  switch (header.op) {
    case Message::set: {
      const string key(in.get_text());
      if (!in.good()) return false;
      const Body value = std::make_shared<const string>(values_[key] = in.rest());
      for (const auto& [getter, number] : getters_[key]) {
        if (const auto at = connections_.find(getter); at != connections_.end())
          send(getter, at->second, {.op = Message::answer, .number = number}, value);
      }
      getters_.erase(key);
      send(id, c, {.op = Message::answer, .number = header.number}, nullptr);
      return true;
    }
    case Message::get: {
      const string key(in.get_text());
      if (!in.good()) return false;
      if (const auto at = values_.find(key); at != values_.end())
        send(id, c, {.op = Message::answer, .number = header.number}, std::make_shared<const string>(at->second));
      else
        getters_[key].emplace_back(id, header.number);
      return true;
    }
    case Message::gather: return gather(id, c, header, body, now);
    case Message::group: return group(c, body);
    case Message::ends: {
      const string key(in.get_text());
      if (!in.good() || !groups_.contains(key)) return false;
      judge_.ends(c.rank, key);
      return true;
    }
    case Message::beat: {
      const ReadBeat beat = read_beat(body);
      if (!beat.good) return false;
      judge_.beat(c.rank, beat.beat, now);
      for (const auto& [key, passed] : beat.passed) {
        if (groups_.contains(key)) judge_.passed(c.rank, key, passed);
      }
      if (header.flags & kAnswersQuestion) {
        judge_.answered(c.rank, beat.words);
      } else {
        if (c.rank == 0 && (header.flags & kTellsAll) != 0) send_all({.op = Message::ack}, packed(judge_.last_beat(0)));
        send(id, c, {.op = Message::ack, .number = header.number},
             std::make_shared<const string>(packed(judge_.last_beat(0))));
      }
      return true;
    }
    case Message::report: {
      const auto rank = in.get<std::int32_t>();
      if (!in.good() || rank < -1 || rank >= options_.world) return false;
      judge_.reported(c.rank, rank, in.rest(), now);
      return true;
    }
    case Message::failed: judge_.failed(c.rank, body, now); return true;
    case Message::bye:
      c.has_left = true;
      judge_.left(c.rank);
      send(id, c, {.op = Message::answer, .number = header.number}, nullptr);
      return true;
    default: return false;
  }
}

bool Store::Server::hello(std::uint64_t id, Connection& c, const Header& header, string_view body, double now) {
  Unpacker in(body);
  const auto nonce = in.get<Digest>();
  const auto proof = in.get<Digest>();
  const string_view bytes = in.rest();
  if (!in.good()) return false;
  const auto refuse = [&](Refusal kind, const string& text) {
    send(id, c, {.op = Message::refusal}, std::make_shared<const string>(packed(kind, text)));
    return true;
  };
  if (!options_.secret && (header.flags & kHasSecret) != 0) {
    const string text = "init_process_group: LEVIN_JOB_SECRET is set on rank " + levin::text(header.rank) +
                        " and not on rank 0; set it on all ranks";
    if (state_ == State::arriving) refuse_all(Refusal::config, text);
    return refuse(Refusal::config, text);
  }
  if (!same(proof, rank_proof(options_.secret, c.challenge, nonce, header.rank, bytes))) return false;
  c.proven = true;
  strangers_.erase(id);
  const ReadCard read = read_card(bytes);
  if (!read.good || read.card.rank < 0 || static_cast<std::uint32_t>(read.card.rank) != header.rank) return false;
  const Card& card = read.card;
  if (card.run != options_.run) {
    return refuse(Refusal::config, "init_process_group: " + name_of(card) + " is of the job `" + card.run +
                                       "`, and the store at its address is of the job `" + options_.run +
                                       "`; give each job its own MASTER_PORT");
  }
  if (card.restart != options_.restart) {
    return refuse(Refusal::stale, "init_process_group: " + name_of(card) + " is of start " + text(card.restart) +
                                      " of the job, and the store at its address is of start " +
                                      text(options_.restart));
  }
  if (state_ == State::refused) {
    send(id, c, {.op = Message::refusal}, std::make_shared<const string>(refusal_));
    if (card.rank < options_.world) answered_[static_cast<std::size_t>(card.rank)] = 1;
    return true;
  }
  if (state_ == State::running) {
    // A process may begin a new job at the address of the one that it has left.
    if (card.rank < options_.world && judge_.has_ended(card.rank)) {
      return refuse(Refusal::stale, "init_process_group: the store at the address of rank 0 is of a job that " +
                                        judge_.name(card.rank) + " has left");
    }
    const string known = card.rank < options_.world ? judge_.name(card.rank) : text(options_.world) + " ranks";
    return refuse(Refusal::config, "init_process_group: " + name_of(card) +
                                       " arrived at a job that runs already, with " + known +
                                       "; give each job its own MASTER_PORT");
  }
  if (card.rank >= options_.world) {
    refuse_all(Refusal::config, "init_process_group: " + name_of(card) +
                                    " arrived at a job whose rank 0 says world size " + text(options_.world) +
                                    "; set the same world size on all ranks");
    return refuse(Refusal::config, read_refusal(refusal_).text);
  }
  const auto r = static_cast<std::size_t>(card.rank);
  if (members_[r] != 0) {
    refuse_all(Refusal::config, "init_process_group: rank " + text(card.rank) +
                                    " arrived twice: " + name_of(cards_[r]) + " and " + name_of(card) +
                                    "; give each process its own rank, and each job its own MASTER_PORT");
    return refuse(Refusal::config, read_refusal(refusal_).text);
  }
  c.rank = card.rank;
  members_[r] = id;
  cards_[r] = card;
  proofs_[r] = store_proof(options_.secret, c.challenge, nonce, header.rank);
  ++arrived_;
  // The others get half a second to arrive, so that they hear of the difference too.
  if (members_[0] != 0 && differs_since_ < 0) {
    for (std::size_t other = 0; other < members_.size(); ++other) {
      if (members_[other] != 0 && cards_[other].equal != cards_[0].equal) differs_since_ = now;
    }
  }
  if (arrived_ == options_.world) {
    if (differs_since_ < 0)
      welcome_all(now);
    else
      differs_since_ = now - kDifferenceGrace;
  }
  return true;
}

void Store::Server::refuse_all(Refusal kind, const string& text) {
  state_ = State::refused;
  refusal_ = packed(kind, text);
  send_all({.op = Message::refusal}, refusal_);
  for (std::size_t r = 0; r < members_.size(); ++r) answered_[r] = members_[r] != 0 ? 1 : 0;
}

void Store::Server::welcome_all(double now) {
  state_ = State::running;
  Packer hosts;
  std::vector<string> names;
  for (const Card& card : cards_) {
    hosts.put_text(card.memory).put_text(name_of(card));
    names.push_back(name_of(card));
  }
  for (std::size_t r = 0; r < members_.size(); ++r) {
    answered_[r] = 1;
    Connection& c = connections_[members_[r]];
    Packer body;
    body.put(proofs_[r]);
    send(members_[r], c, {.op = Message::welcome}, std::make_shared<const string>(body.bytes() + hosts.bytes()));
  }
  judge_.start(std::move(names), now);
}

bool Store::Server::group(Connection& c, string_view body) {
  Unpacker in(body);
  const string key(in.get_text());
  std::vector<int> ranks;
  while (in.good() && !in.rest().empty()) ranks.push_back(in.get<std::int32_t>());
  if (!in.good() || ranks.empty()) return false;
  for (const int r : ranks) {
    if (r < 0 || r >= options_.world) return false;
  }
  if (std::find(ranks.begin(), ranks.end(), c.rank) == ranks.end()) return false;
  const auto [at, is_new] = groups_.try_emplace(key, ranks);
  if (!is_new && at->second != ranks) {
    judge_.reported(c.rank, -1,
                    "its part of a group has other ranks than another rank's; split with the same colors and "
                    "keys on all ranks",
                    steady_seconds());
  }
  return true;
}

bool Store::Server::gather(std::uint64_t id, Connection& c, const Header& header, string_view body, double now) {
  const ReadGather in = read_gather(body);
  if (!in.good) return false;
  const auto at = groups_.find(in.group);
  if (at == groups_.end()) return false;
  const std::vector<int>& members = at->second;
  const auto place = static_cast<std::size_t>(std::find(members.begin(), members.end(), c.rank) - members.begin());
  if (place == members.size()) return false;
  const std::pair<string, std::uint64_t> key(in.group, in.nth);
  Gather& gather = gathers_[key];
  if (gather.values.empty()) {
    gather.values.resize(members.size());
    gather.here.resize(members.size());
  }
  if (std::exchange(gather.here[place], std::uint8_t{1}) != 0) return false;
  gather.values[place] = in.value;
  gather.bytes += in.value.size();
  gather.requests.emplace_back(id, header.number);
  const std::uint64_t ordinal = in.kind == GatherKind::plan ? in.ordinal : 0;
  if (in.kind == GatherKind::close)
    judge_.closes(c.rank);
  else
    judge_.gathers(c.rank, in.group, members, ordinal, in.what, now);
  if (gather.requests.size() < members.size()) return true;
  Packer all;
  const bool fits = gather.bytes + 4 * members.size() <= kAnswerLimit;
  if (fits) {
    for (const string& value : gather.values) all.put_text(value);
  }
  const Body shared = std::make_shared<const string>(all.bytes());
  for (const auto& [requester, number] : gather.requests) {
    if (const auto to = connections_.find(requester); to != connections_.end()) {
      const Header answer{.op = Message::answer, .flags = fits ? std::uint16_t{0} : kTooLarge, .number = number};
      send(requester, to->second, answer, shared);
    }
  }
  for (const int r : members) judge_.gathered(r, in.group, ordinal);
  gathers_.erase(key);
  if (in.kind == GatherKind::close && members.size() == members_.size()) judge_.finish();
  return true;
}

void Store::Server::look(double now) {
  for (const std::uint64_t id : strangers_) {
    Connection& c = connections_.at(id);
    if (now <= c.since + kProofSeconds) break;
    give_up(id, c);
  }
  if (state_ == State::arriving) {
    if (differs_since_ >= 0 && now >= differs_since_ + kDifferenceGrace) {
      std::vector<const Card*> cards;
      for (std::size_t r = 0; r < cards_.size(); ++r) {
        if (members_[r] != 0) cards.push_back(&cards_[r]);
      }
      refuse_all(Refusal::config,
                 "init_process_group: ranks differ; start all with the same program, version and options:" +
                     differences(cards));
    } else if (now >= started_ + options_.rendezvous_timeout) {
      string missing;
      int n = 0;
      for (std::size_t r = 0; r < members_.size(); ++r) {
        if (members_[r] != 0) continue;
        constexpr int kShown = 16;
        if (++n <= kShown) missing += (n > 1 ? ", " : "") + text(r);
      }
      if (n > 16) missing += " and " + text(n - 16) + " more";
      string out = string("init_process_group: ") + (n == 1 ? "rank " : "ranks ") + missing + " of " +
                   text(options_.world) + " did not arrive within " + detail::general(options_.rendezvous_timeout, 3) +
                   " s";
      if (refused_strangers_ > 0)
        out += "; " + text(refused_strangers_) +
               " connections did not prove the job's secret (LEVIN_JOB_SECRET of rank 0)";
      refuse_all(Refusal::comm, out + "; see the output of the missing ranks, and MASTER_ADDR and MASTER_PORT there");
    }
  }
  if (state_ != State::running) return;
  if (judge_.asks(now)) send_all({.op = Message::ask}, {});
  if (const auto verdict = judge_.decide(now)) send_all({.op = Message::verdict}, packed(*verdict));
  if (const auto slow = judge_.warning(now)) warn("W-COMM-SLOW-RANK", WarningCategory::runtime, *slow);
}

double Store::Server::next_look(double now) const {
  double next = now + 1;
  if (!broken_.empty()) return now;
  if (!strangers_.empty()) next = std::min(next, connections_.at(*strangers_.begin()).since + kProofSeconds);
  if (state_ == State::arriving) {
    next = std::min(next, started_ + options_.rendezvous_timeout);
    if (differs_since_ >= 0) next = std::min(next, differs_since_ + kDifferenceGrace);
  } else if (state_ == State::running) {
    next = std::min(next, judge_.next_look(now));
  }
  return next;
}

Store::Store(Fd listener, const Options& options) : server_(std::make_unique<Server>(std::move(listener), options)) {}
Store::~Store() = default;
void Store::close(double seconds) noexcept { server_->close(seconds); }

}  // namespace levin::dist
