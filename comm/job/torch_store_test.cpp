#include "comm/job/torch_store.h"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/job/job.h"
#include "comm/job/note.h"
#include "levin/error.h"

namespace levin::dist {
namespace {

using std::string;

// torchrun's agent, as far as four messages: Note [torchrun's store].
class Agent {
 public:
  explicit Agent(int connections) : listener_(listen_at({"127.0.0.1", 0}, Reach::loopback, 0)) {
    for (int i = 0; i < connections; ++i) {
      threads_.emplace_back([this] {
        Fd socket;
        while (!socket) socket = Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        serve(socket);
      });
    }
  }
  ~Agent() {
    for (std::thread& thread : threads_) thread.join();
  }
  [[nodiscard]] Endpoint at() const { return own_end(listener_); }
  [[nodiscard]] const std::map<string, string>& values() const { return values_; }

 private:
  template <class T>
  static bool get(const Fd& socket, T& value) {
    return receive_all(socket, &value, sizeof value, steady_seconds() + 10) == Sent::done;
  }
  static bool get_text(const Fd& socket, string& out) {
    std::uint64_t size = 0;
    if (!get(socket, size) || size > 4096) return false;
    out.resize(size);
    return receive_all(socket, out.data(), size, steady_seconds() + 10) == Sent::done;
  }
  void serve(const Fd& socket) {
    std::uint8_t query = 0;
    std::uint64_t keys = 0;
    std::uint32_t validation = 0;
    string key, value;
    while (get(socket, query)) {
      string answer;
      if (query == 0) {
        if (!get(socket, validation) || validation != 0x3C85F7CE) return;
      } else if (query == 1) {
        if (!get_text(socket, key) || !get_text(socket, value)) return;
        const std::lock_guard lock(mutex_);
        values_[key] = value;
        changed_.notify_all();
      } else if (query == 6) {
        if (!get(socket, keys) || keys != 1 || !get_text(socket, key)) return;
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return values_.contains(key); });
        answer.assign(1, '\0');
      } else if (query == 3) {
        if (!get_text(socket, key)) return;
        const std::lock_guard lock(mutex_);
        const std::uint64_t size = values_[key].size();
        answer.assign(reinterpret_cast<const char*>(&size), sizeof size);
        answer += values_[key];
      } else {
        return;
      }
      (void)send_all(socket, answer, steady_seconds() + 10);
    }
  }

  Fd listener_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<string, string> values_;
};

TEST_CASE("ranks under torchrun meet at a store whose address its agent keeps") {
  Agent agent(2);
  const Endpoint at = agent.at();
  std::vector<string> errors(2);
  std::vector<std::thread> ranks;
  for (int r = 0; r < 2; ++r) {
    ranks.emplace_back([&, r] {
      try {
        const Job::Place place{.main = at, .port_is_taken = true, .world = 2, .rank = r, .run = "id", .restart = 3};
        const auto job = Job::join({.rendezvous_timeout = 10}, place, own_card(2, ""));
        if (job->rendezvous()->gather("x", text(r)) != std::vector<string>{"0", "1"})
          errors[static_cast<std::size_t>(r)] = "values";
      } catch (const Error& e) { errors[static_cast<std::size_t>(r)] = e.what(); }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(errors == std::vector<string>(2));
  REQUIRE(agent.values().contains("levin/id/3/store"));
  CHECK(agent.values().at("levin/id/3/store").starts_with("127.0.0.1:"));
}

TEST_CASE("an agent that is not there is named with its address") {
  const int port = port_of(listen_at({"127.0.0.1", 0}, Reach::loopback, 0));
  const string at = "torchrun's store at 127.0.0.1:" + text(port);
  CHECK_THROWS_WITH_AS((void)look_up({"127.0.0.1", port}, "key", 0.1),
                       doctest::Contains((at + " did not give the address of rank 0 within 0.1 s").c_str()), CommError);
  CHECK_THROWS_WITH_AS(publish({"127.0.0.1", port}, "key", "value", 0.1),
                       doctest::Contains((at + " did not take the address of rank 0").c_str()), CommError);
}

}  // namespace
}  // namespace levin::dist
