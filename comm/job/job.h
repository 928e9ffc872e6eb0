// The processes of a job, connected: rendezvous, watcher, verdict. A process group of processes has one.
//
// Note [Life of a job]: rank 0 runs the store; each rank, rank 0 too, is a client of it with a watcher thread. The job
// ends with its last handle: a barrier of kCloseSeconds, so that no rank ends while another still needs it, then a
// farewell. After a verdict, or when an exception is on its way that the ranks did not agree on, there is no barrier.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "comm/job/alarm.h"
#include "comm/job/card.h"
#include "comm/job/client.h"
#include "comm/job/note.h"
#include "comm/job/plan.h"
#include "comm/job/rendezvous.h"
#include "comm/job/store.h"
#include "levin/comm.h"

namespace levin::dist {

class Job : public std::enable_shared_from_this<Job> {
 public:
  static constexpr double kCloseSeconds = 5;

  // Where a process stands in its job, as its environment says.
  struct Place {
    Endpoint main{};             // of rank 0
    bool port_is_taken = false;  // by torchrun's store, in which rank 0 publishes a port of its own
    int world = 1, rank = 0, local_rank = 0, node_rank = 0;
    std::string run{"levin"};
    int restart = 0;
  };
  // Returns when all ranks have arrived. Throws as init_process_group. `card`: own_card(), completed here.
  [[nodiscard]] static std::shared_ptr<Job> join(const InitOptions& options, const Place& place, Card card);

  // The job of a group that init_process_group made; null: of one process, and of parts.
  [[nodiscard]] static std::shared_ptr<Job> of(const ProcessGroup& group);
  void serves(const std::shared_ptr<ProcessGroup>& group);  // of() finds this job for it

  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] std::string name(int rank) const;  // "rank 2 (host a, process 77)"
  [[nodiscard]] Note& note() { return note_; }
  [[nodiscard]] const std::shared_ptr<Alarm>& alarm() const { return alarm_; }
  // The group of all ranks.
  [[nodiscard]] std::shared_ptr<Rendezvous> rendezvous();
  [[nodiscard]] const std::shared_ptr<Plans>& plans() const { return world_plans_; }

  // This rank ends with an exception of that text, while others work. The first verdict names it on all ranks.
  void failed(std::string_view text) noexcept;
  // Whether the ranks have agreed to end: an exception that then ends this rank's use of the job is no failure.
  void agreed_to_end(bool agreed) noexcept { agreed_to_end_ = agreed; }
  // After an error of a collective: waits `seconds` at most for the verdict that explains it.
  [[nodiscard]] Verdict await_verdict(double seconds) const;
  // The other ranks know this rank's note when it returns: before a phase that may take long, or kill.
  void sync_note() noexcept { client_->sync_note(); }

  // Small values for all ranks. get() waits until the key is set.
  void set(std::string_view key, std::string_view value);
  [[nodiscard]] std::string get(std::string_view key);

 private:
  struct Group;
  class Part;
  class EntryExchange;

  Job(const InitOptions& options, int rank, int size);
  [[nodiscard]] std::shared_ptr<Plans> plans_of(const std::shared_ptr<Group>& group);
  [[nodiscard]] std::vector<std::string> gather(Group& group, GatherKind kind, std::uint64_t ordinal,
                                                std::string_view what, std::string_view mine, double timeout);
  [[nodiscard]] Passed passed();
  [[nodiscard]] std::string last_words();
  void close() noexcept;

  static std::mutex groups_mutex_;
  static std::vector<std::pair<std::weak_ptr<const ProcessGroup>, std::weak_ptr<Job>>> groups_;

  int rank_, size_;
  double timeout_;
  pid_t process_;
  int exceptions_;  // on their way when the job began
  Note note_;
  std::shared_ptr<Alarm> alarm_ = std::make_shared<Alarm>();
  std::unique_ptr<Store> store_;  // on rank 0
  std::unique_ptr<Client> client_;
  std::mutex mutex_;
  struct Counted {
    std::string group;
    std::weak_ptr<Plans> plans;
    std::shared_ptr<const std::atomic<std::uint64_t>> passed;  // of a group that has ended too
  };
  std::vector<Counted> plans_;
  std::shared_ptr<Group> world_;
  std::shared_ptr<Plans> world_plans_;
  bool failed_ = false, agreed_to_end_ = false;
};

}  // namespace levin::dist
