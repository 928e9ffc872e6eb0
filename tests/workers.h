// Several processes run the tests together: each claims the next test when it is done with one.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "levin/function.h"

namespace levin::test {

struct Counts {
  int passed = 0, failed = 0, skipped = 0;
  [[nodiscard]] int all() const { return passed + failed + skipped; }
};

class Workers {
 public:
  // Forks `size` processes, and returns in each of them and in the caller. One: the caller is the worker.
  explicit Workers(int size);
  [[nodiscard]] bool is_parent() const { return size_ > 1 && index_ < 0; }
  [[nodiscard]] bool several() const { return size_ > 1; }

  // ---- In a worker
  [[nodiscard]] int claim() const;                     // the number of a test, from 1; each once
  void begins(const char* name) const;                 // a test
  [[nodiscard]] Counts ends(const Counts& one) const;  // a test; returns the counts of all workers
  void finishes() const;                               // no test is left
  void skipped(const std::string& reason) const;       // a test
  void exclusively(const Function<void()>& f) const;   // what one worker prints at a time

  // ---- In the caller
  // Returns false after the ends of the workers. A worker that ends within a test is a failure, which is printed with
  // the test's name, and a new worker takes its place: there the call returns true.
  [[nodiscard]] bool wait();
  [[nodiscard]] Counts counts() const;
  [[nodiscard]] std::vector<std::string> reasons() const;  // of each skipped test

 private:
  struct Shared;
  [[nodiscard]] bool fork_worker(int index);  // true: in the worker
  Shared* shared_;                            // until the process ends
  int size_, index_ = -1, reasons_ = -1;
  std::vector<pid_t> workers_;
};

}  // namespace levin::test
