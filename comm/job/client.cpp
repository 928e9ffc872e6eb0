#include "comm/job/client.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <set>

#include "comm/job/point.h"
#include "comm/job/secret.h"
#include "levin/error.h"
#include "tensor/text/number_text.h"

namespace levin::dist {
namespace {

using std::string;
using std::string_view;

constexpr double kBeatEvery = 0.5;     // seconds, while nothing changes
constexpr double kChangeEvery = 0.02;  // while phases or steps change

string seconds(double s) { return levin::detail::general(s, 3) + " s"; }

void pause(double s) { std::this_thread::sleep_for(std::chrono::duration<double>(s)); }

Beat beat_of(const Note::Copy& note) {
  const double now = steady_seconds();
  return {.phase = note.phase,
          .step = note.step,
          .phase_age = now - note.since,
          .entry = note.entry,
          .site = note.site,
          .wait_age = now - note.wait_since,
          .waited = note.waited};
}

// The addresses at which this process has joined a job. The store there may be the one of that job, which ends while
// the process introduces itself for the next one.
class JoinedBefore {
 public:
  static void add(const string& address) {
    const std::lock_guard lock(mutex());
    addresses().insert(address);
  }
  [[nodiscard]] static bool at(const string& address) {
    const std::lock_guard lock(mutex());
    return addresses().contains(address);
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::set<string>& addresses() {
    static std::set<string> all;
    return all;
  }
};

bool same_moment(const Note::Copy& a, const Note::Copy& b) {
  return a.since == b.since && a.wait_since == b.wait_since && a.phase == b.phase && a.step == b.step &&
         a.entry == b.entry && a.site == b.site;
}

}  // namespace

Client::Client(const Options& options) : options_(options), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) fail<CommError>("init_process_group: no event descriptor: ", std::strerror(errno));
  join();
}

Client::~Client() {
  stops_ = true;
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
  if (thread_.joinable()) thread_.join();
}

void Client::join() {
  const double start = steady_seconds(), deadline = start + options_.rendezvous_timeout;
  // A name that is unknown stays so, but the network of a machine that starts may be late.
  const double name_deadline = std::min(deadline, start + 5);
  string error;
  for (double wait = 0.01;; wait = std::min(wait * 1.5, 1.0)) {
    bool unknown_host = false;
    if (try_join(deadline, error, unknown_host)) return;
    const double now = steady_seconds();
    if (unknown_host && now >= name_deadline) {
      fail<CommError>("init_process_group: the address of rank 0, ", options_.at.host, ", is unknown: ", error,
                      "; set MASTER_ADDR to the name or address of rank 0's machine");
    }
    if (now >= deadline) {
      fail<CommError>("init_process_group: rank ", options_.card.rank, " did not reach the store of rank 0 at ",
                      address_text(options_.at), " within ", seconds(options_.rendezvous_timeout), ": ", error,
                      "; see that rank 0 runs, and that MASTER_ADDR and MASTER_PORT name its machine and port");
    }
    pause(std::min(wait, std::max(deadline - now, 0.001)));
  }
}

// Whether the job has begun. False, with the cause in `error`: a later attempt may succeed.
bool Client::try_join(double deadline, string& error, bool& unknown_host) {
  const string at = address_text(options_.at);
  Connected connected = connect_once(options_.at, deadline);
  if (!connected.socket) {
    error = connected.error;
    unknown_host = connected.unknown_host;
    return false;
  }
  Fd socket = std::move(connected.socket);
  const auto no_store = [&](const string& why) {
    fail<CommError>("init_process_group: what listens at ", at, " is not the store of this job (", why,
                    "); another program has the port: set MASTER_PORT to a free one");
  };
  // The store greets at once. Silence: its thread is busy, or another program waits for a first word.
  Header header;
  const double greeting = std::min(std::max(deadline, steady_seconds() + 1), steady_seconds() + 10);
  Sent got = receive_all(socket, &header, sizeof header, greeting);
  if (got == Sent::closed) {
    error = "the connection closed before a greeting";
    return false;
  }
  if (got == Sent::late) no_store("it sends no greeting");
  Digest challenge{};
  if (header.magic != kMagic || header.op != Message::challenge || header.size != challenge.size())
    no_store("it sends another greeting");
  if (receive_all(socket, challenge.data(), challenge.size(), greeting) != Sent::done) {
    error = "the connection closed within the greeting";
    return false;
  }
  if (header.number != static_cast<std::uint64_t>(options_.card.restart)) {  // about to end
    error = "the store there is of start " + text(header.number) + " of a job, and this is start " +
            text(options_.card.restart);
    return false;
  }
  if ((header.flags & kHasSecret) != 0 && !options_.secret) {
    fail<ConfigError>("init_process_group: LEVIN_JOB_SECRET is set on rank 0 and not on rank ", options_.card.rank,
                      "; set it on all ranks");
  }
  const auto rank = static_cast<std::uint32_t>(options_.card.rank);
  const Digest nonce = random_digest();
  const string card = packed(options_.card);
  if (card.size() + 2 * sizeof nonce > kBodyLimit) {
    fail<ConfigError>("init_process_group: InitOptions::agreement has ", card.size(),
                      " bytes with the rest of the card; ", "the limit is ", kBodyLimit - 2 * sizeof nonce,
                      "; pass the hash of long values");
  }
  Packer hello;
  hello.put(nonce).put(rank_proof(options_.secret, challenge, nonce, rank, card));
  const Header first{.op = Message::hello, .flags = options_.secret ? kHasSecret : std::uint16_t{0}, .rank = rank};
  if (send_all(socket, framed(first, string(hello.bytes()).append(card)), greeting) != Sent::done) {
    error = "the connection closed within the introduction";
    return false;
  }
  // The store waits for all ranks; it says which do not come.
  const double limit = steady_seconds() + options_.rendezvous_timeout + 2;
  got = receive_all(socket, &header, sizeof header, limit);
  string body;
  if (got == Sent::done && header.magic == kMagic && header.size <= kAnswerLimit) {
    body.resize(header.size);
    got = receive_all(socket, body.data(), body.size(), limit);
  }
  if (got == Sent::closed && JoinedBefore::at(at)) {
    error = "the connection closed after the introduction";
    return false;
  }
  if (got == Sent::closed) {
    fail<CommError>("init_process_group: rank 0's store at ", at, " closed the connection of rank ", options_.card.rank,
                    options_.secret ? ": LEVIN_JOB_SECRET of this rank is another than rank 0's, or rank 0 has ended"
                                    : ": rank 0 was lost in phase rendezvous");
  }
  if (got == Sent::late || header.magic != kMagic) {
    fail<CommError>("init_process_group: the store of rank 0 at ", at, " did not answer rank ", options_.card.rank,
                    " within ", seconds(options_.rendezvous_timeout + 2),
                    "; rank 0 is stopped, or the network is gone");
  }
  if (header.op == Message::refusal) {
    const ReadRefusal refusal = read_refusal(body);
    error = refusal.text;
    if (refusal.kind == Refusal::stale) {  // the store of an earlier job, about to end
      point("rendezvous:stale");
      return false;
    }
    if (refusal.kind == Refusal::config) fail<ConfigError>(refusal.text);
    fail<CommError>(refusal.text);
  }
  Unpacker in(body);
  const auto proof = in.get<Digest>();
  while (in.good() && !in.rest().empty()) {
    const string memory(in.get_text());
    members_.push_back({memory, string(in.get_text())});
  }
  if (header.op != Message::welcome || !in.good() || !same(proof, store_proof(options_.secret, challenge, nonce, rank)))
    fail<CommError>("init_process_group: the store at ", at, " does not prove LEVIN_JOB_SECRET: it is a stranger's");
  JoinedBefore::add(at);
  socket_ = std::move(socket);
  return true;
}

void Client::watch(Note& note, std::shared_ptr<Alarm> alarm, Sources sources) {
  note_ = &note;
  alarm_ = std::move(alarm);
  sources_ = std::move(sources);
  heard_ = steady_seconds();
  thread_ = std::thread([this] { run(); });
}

bool Client::send(const Header& header, string_view body) noexcept {
  try {
    Header mine = header;
    mine.rank = static_cast<std::uint32_t>(options_.card.rank);
    const string bytes = framed(mine, body);
    const std::lock_guard lock(write_mutex_);
    return send_all(socket_, bytes, steady_seconds() + std::max(options_.silence, 1.0)) == Sent::done;
  } catch (...) { return false; }
}

bool Client::post(Message op, string_view body) noexcept { return send({.op = op}, body.substr(0, kBodyLimit)); }

string Client::request(Message op, std::uint16_t flags, string_view body, double timeout, string_view what) {
  alarm_->check();
  if (body.size() > (op == Message::gather || op == Message::set ? kPlanLimit : kBodyLimit)) {
    fail<CommError>(string(what), ": ", body.size(), " bytes are too many for the store; the limit is ",
                    std::int64_t{kPlanLimit});
  }
  Waiter waiter;
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = next_++;
    waiters_[number] = &waiter;
  }
  const std::uint64_t wakes = alarm_->add([this] {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  });
  // A message that does not leave shows in the watcher, too: the store is gone or silent.
  (void)send({.op = op, .flags = flags, .number = number}, body);
  bool gone = false;
  {
    std::unique_lock lock(mutex_);
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(std::min(timeout, 1e9));
    changed_.wait_until(lock, std::chrono::time_point_cast<std::chrono::steady_clock::duration>(end),
                        [&] { return waiter.done || alarm_->raised() || gone_; });
    gone = gone_;
    waiters_.erase(number);
  }
  alarm_->remove(wakes);
  if (waiter.done) {
    if (waiter.too_large)
      fail<CommError>(string(what), ": the values of all ranks together are too many bytes for the store");
    return std::move(waiter.answer);
  }
  alarm_->check();
  if (gone) fail<CommError>(string(what), ": rank 0 has left the job, and its store with it");
  fail<CommError>(string(what), ": not all ranks came within ", seconds(timeout));
}

void Client::sync_note() noexcept {
  std::unique_lock lock(mutex_);
  if (gone_ || !thread_.joinable()) return;
  const std::uint64_t target = beats_ + 1;
  asks_beat_ = true;
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
  changed_.wait_for(lock, std::chrono::duration<double>(options_.silence),
                    [&] { return acked_ >= target || gone_ || stops_; });
}

Passed Client::unsent_passed() {
  Passed out = sources_.passed();
  std::erase_if(out, [&](const auto& of) {
    const auto sent = sent_passed_.find(of.first);
    return sent != sent_passed_.end() && sent->second == of.second;
  });
  return out;
}

bool Client::send_beat(std::uint16_t flags) {
  std::uint64_t number = 0;
  if ((flags & kAnswersQuestion) == 0) {
    const std::lock_guard lock(mutex_);
    number = ++beats_;  // before the note is read: sync_note() waits for this number
  }
  const Note::Copy note = note_->read();
  const Passed changed = unsent_passed();
  for (const auto& [group, passed] : changed) sent_passed_[group] = passed;
  beat_of_ = note;
  beat_at_ = steady_seconds();
  const string words = (flags & kAnswersQuestion) != 0 ? sources_.words().substr(0, kBodyLimit / 2) : string();
  return send({.op = Message::beat, .flags = flags, .number = number}, packed(beat_of(note), changed, words));
}

void Client::lose_store(Verdict::Kind kind, const string& how) {
  if (!ends_ && !alarm_->raised()) {
    string doing = string(" in phase ") + name_of(main_beat_.phase);
    if (main_beat_.step >= 0) doing += ", " + text(main_beat_.step) + " steps completed";
    alarm_->raise({.kind = kind,
                   .rank = 0,
                   .text = members_[0].name + (kind == Verdict::Kind::lost ? " was lost" : "") + how + doing +
                           "; the job's store was there"});
  }
  const std::lock_guard lock(mutex_);
  gone_ = true;
  changed_.notify_all();
}

bool Client::read() {
  std::array<char, 65536> buffer;
  for (;;) {
    const ssize_t n = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (n > 0) {
      in_.append(buffer.data(), static_cast<std::size_t>(n));
      if (static_cast<std::size_t>(n) == buffer.size()) continue;
    } else if (n < 0 && errno == EINTR) {
      continue;
    }
    std::size_t at = 0;
    while (in_.size() - at >= sizeof(Header)) {
      Header header;
      std::memcpy(static_cast<void*>(&header), in_.data() + at, sizeof header);
      if (header.magic != kMagic || header.size > kAnswerLimit) return false;
      if (in_.size() - at - sizeof header < header.size) break;
      handle(header, string_view(in_).substr(at + sizeof header, header.size));
      at += sizeof header + header.size;
    }
    in_.erase(0, at);
    return n > 0 || (n < 0 && errno == EAGAIN);
  }
}

void Client::handle(const Header& header, string_view body) {
  heard_ = steady_seconds();
  switch (header.op) {
    case Message::answer: {
      const std::lock_guard lock(mutex_);
      if (const auto at = waiters_.find(header.number); at != waiters_.end()) {
        at->second->done = true;
        at->second->too_large = (header.flags & kTooLarge) != 0;
        at->second->answer = body;
        changed_.notify_all();
      }
      return;
    }
    case Message::ack: {
      if (const ReadBeat beat = read_beat(body); beat.good) main_beat_ = beat.beat;
      const std::lock_guard lock(mutex_);
      acked_ = std::max(acked_, header.number);
      changed_.notify_all();
      return;
    }
    case Message::ask: (void)send_beat(kAnswersQuestion); return;
    case Message::verdict: alarm_->raise(read_verdict(body)); return;
    case Message::farewell: ends_ = true; return;
    default: return;
  }
}

void Client::run() {
  const double every = std::min(kBeatEvery, options_.silence / 6);
  const double tick = std::min(every, std::max(kChangeEvery, 1e-4 * static_cast<double>(members_.size())));
  double last = steady_seconds();
  while (!stops_) {
    std::array<pollfd, 2> both{{{socket_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
    (void)::poll(both.data(), both.size(), static_cast<int>(std::ceil(tick * 1000)));
    const double now = steady_seconds();
    if (now - last > tick + options_.silence / 2) heard_ = now;  // this process did not run
    last = now;
    if (both[1].revents != 0) {
      std::uint64_t count = 0;
      (void)!::read(wake_.get(), &count, sizeof count);
    }
    if (both[0].revents != 0 && !read()) return lose_store(Verdict::Kind::lost, "");
    if (now - heard_ > options_.silence && !alarm_->raised())
      return lose_store(Verdict::Kind::silent, " has been silent for " + seconds(now - heard_) + ", last heard");
    bool asked = false;
    {
      const std::lock_guard lock(mutex_);
      asked = std::exchange(asks_beat_, false);
    }
    const bool changed = now - beat_at_ >= tick && (!same_moment(note_->read(), beat_of_) || !unsent_passed().empty());
    if ((asked || changed || now - beat_at_ >= every) && !send_beat(asked ? kTellsAll : 0)) {
      (void)read();  // the store's last words
      return lose_store(Verdict::Kind::lost, "");
    }
  }
}

}  // namespace levin::dist
