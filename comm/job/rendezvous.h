// What a backend needs to connect the ranks of one group, and to stop waiting when one of them fails.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/job/alarm.h"
#include "comm/job/note.h"
#include "comm/job/plan.h"

namespace levin::dist {

// Of a job over its store (comm/job/job.h), or of threads of one process (comm/group/local.h).
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  [[nodiscard]] virtual int rank() const = 0;  // in this group
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual int world_rank(int rank) const = 0;    // the job's rank of a rank of this group, for messages
  [[nodiscard]] virtual std::string host(int rank) const = 0;  // equal for ranks that can share memory
  // The address by which this process reaches the job's rank 0, a loopback one on rank 0's host, and that of rank 0 as
  // this process reaches it; empty: no network.
  [[nodiscard]] virtual std::string address() const { return {}; }
  [[nodiscard]] virtual std::string main_address() const { return {}; }
  // Every rank's bytes, in the order of ranks: addresses, names of shared memory, NCCL's id. Waits for all; throws
  // CommError with the ranks that did not come. `what` is for that message.
  virtual std::vector<std::string> gather(std::string_view what, std::string_view mine) = 0;
  // The rendezvous of a part of this group: `ranks` of this group, this rank among them.
  [[nodiscard]] virtual std::shared_ptr<Rendezvous> part(const std::vector<int>& ranks) = 0;
  [[nodiscard]] virtual const std::shared_ptr<Alarm>& alarm() const = 0;  // of the job
  [[nodiscard]] virtual const std::shared_ptr<Plans>& plans() const = 0;  // of this group
  [[nodiscard]] virtual Note& note() = 0;                                 // of this process
  [[nodiscard]] virtual double timeout() const = 0;                       // seconds; InitOptions::timeout
  // This rank calls no further collective of this group: a rank that waits for it in one ends with CommError. Of a
  // backend whose end waits for the other ranks; the job's end tells the same of all groups.
  virtual void ends() noexcept {}
  // Reports an error that a backend found (a peer's reset, a bad message), so that the job decides on one cause, and
  // returns when it has decided, or throws CommError after a second without a decision. `rank` is of this group; -1: of
  // no single rank.
  virtual void report(std::string_view what, int rank) = 0;
};

}  // namespace levin::dist
