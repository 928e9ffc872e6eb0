// Threads that work together: one for each device of a process.
#pragma once

#include <memory>

#include "levin/function.h"

namespace levin::detail {

class Team {
 public:
  // `size` members of 1 or more; the calling thread is member 0, the others wait until run() is called. Throws
  // StateError if the system gives no thread.
  explicit Team(int size);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  [[nodiscard]] int size() const;
  // Calls body(k) on the thread of each member k, with the modes of the calling thread, and returns when all have
  // returned. Then rethrows the exception of the least k. For one thread at a time.
  void run(const Function<void(int)>& body);

 private:
  struct Shared;
  std::unique_ptr<Shared> shared_;
};

}  // namespace levin::detail
