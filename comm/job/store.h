// The job's store on rank 0: one TCP port, one thread. It introduces the ranks to each other, answers their gathers,
// hears their beats and decides what ended the job (comm/job/judge.h). Strangers get nothing from it and harm nothing:
// before the proof of comm/job/secret.h a connection may send one message of kBodyLimit bytes within kProofSeconds.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "comm/job/socket.h"

namespace levin::dist {

class Store {
 public:
  struct Options {
    int world = 1;
    std::string run{};  // of rank 0; other runs are refused
    int restart = 0;
    std::optional<std::string> secret{};
    double rendezvous_timeout = 60, silence = 3, timeout = 1800;
  };
  static constexpr double kProofSeconds = 10;

  Store(Fd listener, const Options& options);
  ~Store();  // at once
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Returns when all ranks have said goodbye or are gone, at the latest after `seconds`; ranks that are left hear that
  // the store closes.
  void close(double seconds) noexcept;

 private:
  class Server;
  std::unique_ptr<Server> server_;
};

}  // namespace levin::dist
