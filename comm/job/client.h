// A rank's end of the connection to the job's store, and its watcher: the thread that sends the rank's beats, receives
// answers and the verdict, and raises the alarm.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/job/alarm.h"
#include "comm/job/card.h"
#include "comm/job/messages.h"
#include "comm/job/note.h"
#include "comm/job/socket.h"
#include "comm/job/wire.h"
#include "levin/function.h"

namespace levin::dist {

class Client {
 public:
  struct Options {
    Endpoint at{};
    Card card{};
    std::optional<std::string> secret{};
    double rendezvous_timeout = 60, silence = 3;
  };
  struct Member {
    std::string memory;  // equal for ranks that can share memory
    std::string name;    // "rank 2 (host a, process 77)"
  };
  // What the watcher asks its process for.
  struct Sources {
    Function<Passed()> passed;      // collectives by group
    Function<std::string()> words;  // the last collective
  };

  // Connects, and returns when all ranks of the job have. Throws ConfigError, CommError.
  explicit Client(const Options& options);
  ~Client();  // without a farewell
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  [[nodiscard]] const std::vector<Member>& members() const { return members_; }
  [[nodiscard]] std::string address() const { return local_address(socket_); }
  [[nodiscard]] std::string store_address() const { return peer_address(socket_); }

  // Starts the watcher; once.
  void watch(Note& note, std::shared_ptr<Alarm> alarm, Sources sources);

  // Sends and waits for the answer, `timeout` seconds at most. Throws CommError: the verdict, `what` in other errors.
  std::string request(Message op, std::uint16_t flags, std::string_view body, double timeout, std::string_view what);
  // Sends. False: the store is gone.
  bool post(Message op, std::string_view body) noexcept;
  // A beat at once; returns when the store has it, or is gone.
  void sync_note() noexcept;
  // No end of the connection is a failure from here.
  void expect_end() noexcept { ends_ = true; }

 private:
  struct Waiter {
    bool done = false, too_large = false;
    std::string answer;
  };
  void join();
  [[nodiscard]] bool try_join(double deadline, std::string& error, bool& unknown_host);
  void run();
  [[nodiscard]] bool read();  // false: the connection has ended
  void handle(const Header& header, std::string_view body);
  [[nodiscard]] Passed unsent_passed();
  [[nodiscard]] bool send_beat(std::uint16_t flags);
  void lose_store(Verdict::Kind kind, const std::string& how);
  [[nodiscard]] bool send(const Header& header, std::string_view body) noexcept;

  Options options_;
  Fd socket_, wake_;
  std::vector<Member> members_;

  Note* note_ = nullptr;
  std::shared_ptr<Alarm> alarm_;
  Sources sources_;
  std::string in_;
  double heard_ = 0, beat_at_ = 0;
  Note::Copy beat_of_;
  std::map<std::string, std::uint64_t> sent_passed_;
  Beat main_beat_;  // of rank 0, as of the last ack

  std::mutex write_mutex_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Waiter*> waiters_;
  std::uint64_t next_ = 1, acked_ = 0, beats_ = 0;
  bool gone_ = false;  // the store
  bool asks_beat_ = false;
  std::atomic<bool> ends_{false}, stops_{false};
  std::thread thread_;
};

}  // namespace levin::dist
