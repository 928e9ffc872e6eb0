// The store against strangers, and against ranks that break its rules.
#include "comm/job/store.h"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "comm/job/job.h"
#include "comm/job/secret.h"
#include "comm/job/wire.h"
#include "levin/error.h"
#include "tests/skip.h"

namespace levin::dist {
namespace {

using std::string;

bool contains(const string& text, const string& part) { return text.find(part) != string::npos; }

// LEVIN_JOB_SECRET for this process while it lives.
struct SecretVariable {
  explicit SecretVariable(const char* value) { ::setenv("LEVIN_JOB_SECRET", value, 1); }
  SecretVariable(const SecretVariable&) = delete;
  SecretVariable& operator=(const SecretVariable&) = delete;
  ~SecretVariable() { ::unsetenv("LEVIN_JOB_SECRET"); }
};

struct Running {
  explicit Running(Store::Options options = {.world = 2, .run = "levin", .rendezvous_timeout = 20}) {
    Fd listener = listen_at({"127.0.0.1", 0}, Reach::loopback, 0);
    at = own_end(listener);
    store.emplace(std::move(listener), options);
  }
  Endpoint at;
  std::optional<Store> store;
};

double soon() { return steady_seconds() + 10; }

Fd connected(const Endpoint& at) {
  Connected out = connect_once(at, soon());
  REQUIRE(out.socket);
  return std::move(out.socket);
}

Digest challenge_on(const Fd& socket, std::uint16_t* flags = nullptr) {
  Header header;
  Digest out{};
  REQUIRE(receive_all(socket, &header, sizeof header, soon()) == Sent::done);
  CHECK(header.op == Message::challenge);
  if (flags != nullptr) *flags = header.flags;
  REQUIRE(receive_all(socket, out.data(), out.size(), soon()) == Sent::done);
  return out;
}

// Whether the store closes the connection without another byte.
bool is_closed(const Fd& socket) {
  char byte = 0;
  return receive_all(socket, &byte, 1, soon()) == Sent::closed;
}

// Joins as the rank, without a watcher.
Fd joined(const Endpoint& at, int rank) {
  Fd socket = connected(at);
  (void)challenge_on(socket);
  Card card = own_card(2, "");
  card.rank = rank;
  card.run = "levin";
  Packer hello;
  hello.put(Digest{}).put(Digest{});
  const Header header{.op = Message::hello, .rank = static_cast<std::uint32_t>(rank)};
  REQUIRE(send_all(socket, framed(header, string(hello.bytes()).append(packed(card))), soon()) == Sent::done);
  return socket;
}

// Both ranks of a job reach each other through the store.
void works(const Endpoint& at, const InitOptions& options = {.rendezvous_timeout = 10}) {
  std::array<string, 2> errors;
  std::vector<std::thread> ranks;
  for (int r = 0; r < 2; ++r) {
    ranks.emplace_back([&, r] {
      try {
        Client::Options mine{.at = at,
                             .card = own_card(2, ""),
                             .secret = job_secret().key,
                             .rendezvous_timeout = options.rendezvous_timeout};
        mine.card.rank = r;
        mine.card.run = "levin";
        const Client client(mine);
        if (client.members().size() != 2) errors[static_cast<std::size_t>(r)] = "members";
      } catch (const Error& e) { errors[static_cast<std::size_t>(r)] = e.what(); }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(errors == std::array<string, 2>{});
}

TEST_CASE("strangers with garbage, oversized, cut and unproven messages are cut off, and the job works") {
  Running running;
  std::vector<Fd> stalled;
  for (int i = 0; i < 20; ++i) stalled.push_back(connected(running.at));  // they say nothing
  stalled.push_back(connected(running.at));
  REQUIRE(send_all(stalled.back(), "\x4c\x56", soon()) == Sent::done);  // a part of a header
  const auto closes = [&](const string& bytes) {
    const Fd socket = connected(running.at);
    (void)challenge_on(socket);
    (void)send_all(socket, bytes, soon());
    return is_closed(socket);
  };
  CHECK(closes("GET / HTTP/1.1\r\nHost: levin\r\n\r\n"));
  CHECK(closes(string(100000, '\xff')));
  Header large{.op = Message::hello, .size = kBodyLimit + 1};
  CHECK(closes(string(reinterpret_cast<const char*>(&large), sizeof large)));
  CHECK(closes(framed({.op = Message::hello}, "short")));
  CHECK(closes(framed({.op = Message::gather}, string(500, 'x'))));  // before a hello
  CHECK(closes(framed({.op = Message::verdict}, "")));
  Packer zeros;
  zeros.put(Digest{}).put(Digest{});
  CHECK(closes(framed({.op = Message::hello}, string(zeros.bytes()) + "no card")));
  // A half message, and then the end.
  const string half = framed({.op = Message::hello}, string(1000, 'x')).substr(0, 300);
  REQUIRE(send_all(connected(running.at), half, soon()) == Sent::done);
  works(running.at);
}

TEST_CASE("more strangers than the store takes do not keep a rank out") {
  Running running;
  std::vector<Fd> strangers;
  for (int i = 0; i < 400; ++i) {
    Connected one = connect_once(running.at, soon());
    if (one.socket) strangers.push_back(std::move(one.socket));
  }
  works(running.at);
}

// What rank 0 of a job of two hears when it waits for rank 1.
string rank_0_hears(const Endpoint& at, const std::function<void()>& meanwhile) {
  try {
    Client::Options options{.at = at, .card = own_card(2, "")};
    options.card.run = "levin";
    Client client(options);
    Note note;
    client.watch(note, std::make_shared<Alarm>(),
                 {.passed = [] { return Passed{}; }, .words = [] { return string(); }});
    meanwhile();
    (void)client.request(Message::get, 0, Packer().put_text("never").bytes(), 10, "get");
  } catch (const CommError& e) { return e.what(); }
  return {};
}

TEST_CASE("a rank that breaks the rules is lost, and the other hears of it") {
  const std::vector<string> wrong{
      framed({.op = Message::gather, .rank = 1}, "cut"),
      framed({.op = Message::gather, .rank = 1}, packed(GatherCall{.group = "unknown"}, "")),
      framed({.op = Message::beat, .rank = 1}, "cut"),
      framed({.op = Message::beat, .rank = 0}, packed(Beat{})),  // of another rank
      framed({.op = Message::group, .rank = 1}, string("\x01\0\0\0w\x07\0\0\0", 9)),
      framed({.op = Message::ends, .rank = 1}, string(Packer().put_text("unknown").bytes())),
      framed({.op = Message::report, .rank = 1}, string("\x09\0\0\0", 4)),
      framed({.op = Message::hello, .rank = 1}, ""),
      string(200, 'x')};
  for (const string& bytes : wrong) {
    Running running;
    const Fd bad = joined(running.at, 1);
    const string error = rank_0_hears(running.at, [&] { REQUIRE(send_all(bad, bytes, soon()) == Sent::done); });
    CHECK(contains(error, "rank 1 (host "));
    CHECK(contains(error, "was lost in phase rendezvous"));
  }
}

TEST_CASE("a rank that is lost while the ranks arrive is named") {
  Running running;
  joined(running.at, 1).reset();
  const string error = rank_0_hears(running.at, [] {});
  CHECK(contains(error, "rank 1 (host "));
  CHECK(contains(error, "was lost in phase rendezvous"));
}

TEST_CASE("a job with a secret takes ranks that prove it, and gives others no word") {
  if (!can_prove()) return test::skip("no libcrypto in this build");
  const Store::Options options{.world = 2, .run = "levin", .secret = "right", .rendezvous_timeout = 20};
  Running running(options);
  {
    const Fd socket = connected(running.at);
    std::uint16_t flags = 0;
    (void)challenge_on(socket, &flags);
    CHECK(flags == kHasSecret);
    Packer hello;
    hello.put(Digest{}).put(Digest{});
    Card card = own_card(2, "");
    REQUIRE(send_all(socket, framed({.op = Message::hello}, string(hello.bytes()) + packed(card)), soon()) ==
            Sent::done);
    CHECK(is_closed(socket));
  }
  const auto join = [&](std::optional<string> secret) {
    Client::Options mine{.at = running.at, .card = own_card(2, ""), .secret = std::move(secret)};
    mine.card.run = "levin";
    const Client client(mine);
  };
  CHECK_THROWS_WITH_AS(join("wrong"), doctest::Contains("LEVIN_JOB_SECRET of this rank is another than rank 0's"),
                       CommError);
  CHECK_THROWS_WITH_AS(join(std::nullopt), doctest::Contains("LEVIN_JOB_SECRET is set on rank 0 and not on rank 0"),
                       ConfigError);
  {
    const SecretVariable variable("right");
    works(running.at);
  }
  Running without;
  Client::Options mine{.at = without.at, .card = own_card(2, ""), .secret = "some"};
  mine.card.run = "levin";
  CHECK_THROWS_WITH_AS(Client{mine}, doctest::Contains("is set on rank 0 and not on rank 0"), ConfigError);
}

TEST_CASE("a rank does not join a stranger's store, nor another program at the port") {
  if (!can_prove()) return test::skip("no libcrypto in this build");
  const Fd listener = listen_at({"127.0.0.1", 0}, Reach::loopback, 0);
  const Endpoint at = own_end(listener);
  const auto answers = [&](const string& greeting, const string& answer) {
    std::thread stranger([&] {
      for (;;) {
        const Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!socket) continue;
        (void)send_all(socket, greeting, soon());
        (void)send_all(socket, answer, soon());
        char byte = 0;
        while (receive_all(socket, &byte, 1, soon()) == Sent::done) continue;
        return;
      }
    });
    string error;
    try {
      Client::Options mine{.at = at, .card = own_card(2, ""), .secret = "right", .rendezvous_timeout = 1};
      mine.card.rank = 1;
      const Client client(mine);
    } catch (const CommError& e) { error = e.what(); }
    stranger.join();
    return error;
  };
  const string greeting = framed({.op = Message::challenge, .flags = kHasSecret}, string(32, 'n'));
  CHECK(contains(answers(greeting, framed({.op = Message::welcome}, string(32, 'p'))), "it is a stranger's"));
  CHECK(contains(answers("SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n", ""), "is not the store of this job"));
}

TEST_CASE("a rank whose store does not listen yet is not connected to itself") {
  // The system gives each connection a port of a range, of the other parity than listeners get first; one of about
  // 28,000 attempts meets the wanted one.
  const int port = port_of(listen_at({"127.0.0.1", 0}, Reach::loopback, 0)) ^ 1;
  int connected = 0;
  for (int i = 0; i < 60'000 && connected == 0; ++i) {
    if (connect_once({"127.0.0.1", port}, steady_seconds() + 1).socket) ++connected;
  }
  CHECK(connected == 0);
}

TEST_CASE("a store that listens at all addresses is reached by its own process at 127.0.0.1, also without IPv6") {
  const Fd listener = listen_at({"0.0.0.0", 0}, Reach::network, 0);
  const Endpoint at = own_end(listener);
  CHECK(at.host == "127.0.0.1");
  CHECK(at.port == port_of(listener));
  const Connected there = connect_once(at, soon());
  REQUIRE(there.socket);
  CHECK(peer_address(there.socket) == "127.0.0.1");
}

TEST_CASE("a job on a network without a secret is refused, and LEVIN_JOB_SECRET=none accepts it") {
  const InitOptions options{.rendezvous_timeout = 0.1};
  const Job::Place place{.main = {"192.0.2.1", 29500}, .world = 2, .rank = 1};  // an address of no machine
  CHECK_THROWS_WITH_AS((void)Job::join(options, place, own_card(2, "")),
                       doctest::Contains("LEVIN_JOB_SECRET is not set"), ConfigError);
  const SecretVariable none("none");
  CHECK_THROWS_WITH_AS((void)Job::join(options, place, own_card(2, "")),
                       doctest::Contains("did not reach the store of rank 0 at 192.0.2.1:29500"), CommError);
}

}  // namespace
}  // namespace levin::dist
