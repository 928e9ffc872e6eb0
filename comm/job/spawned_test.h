// Real processes for tests: the ranks of a job, forked from a process that has no threads.
//
// Note [The zygote]: each process of tests forks a zygote in main, before any thread exists. The zygote forks the ranks
// of a group on request and reports their ends; its own end, or that of the test program, ends them all. A
// rank knows its function and its arguments alone: what the test made after the start is not in its memory.
//
//   Spawned group(3, [](Rank& rank) { rank.report("here"); }, {.argument = "29500"});
//   group.wait_for(1, "here");
//   group.kill(1, SIGKILL);
//   group.wait();
//   CHECK(group.end_of(0).error == "...");
//
// Groups may run at once. A rank reports lines; checks belong to the test. An exception that leaves its function is its
// end's `error`.
//
// Note [Times of spawned ranks]: a rank stamps each line, its points' events and its error with the steady clock, which
// the processes of a host share. A bound on the time between two of them holds for a machine with free cores. A
// survivor that stood in a run queue is granted that time: the kernel counts it for each thread (schedstat).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace levin::test {

// Called in main, before any thread exists.
void start_zygote();

// In the process of a rank.
class Rank {
 public:
  Rank(int rank, int size, std::string argument, int reports)
      : rank_(rank), size_(size), argument_(std::move(argument)), reports_(reports) {}
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] const std::string& argument() const { return argument_; }
  void report(const std::string& line) const;  // without a line's end

 private:
  int rank_, size_;
  std::string argument_;
  int reports_;
};

class Spawned {
 public:
  struct Options {
    std::string argument{};
    std::string points{};  // LEVIN_POINTS; an event is a line "rank 2 at NAME 1" of that rank
    double limit = 60;     // seconds, after which all ranks are killed and wait() fails the test
  };
  struct End {
    int code = -1;  // of exit; -1: a signal
    int signal = 0;
    std::string error;                 // "CommError: ..." of an exception; its code is 1
    std::vector<std::string> reports;  // what it reported
    std::vector<double> times;         // of the reports: seconds of the steady clock
    double failed_at = 0;              // the same of the error
    double queued = 0;                 // seconds that its threads had waited for a core by then
    std::string output;                // stdout and stderr
  };

  Spawned(int size, void (*body)(Rank&), const Options& options);
  Spawned(int size, void (*body)(Rank&)) : Spawned(size, body, Options{}) {}
  ~Spawned();  // kills what still runs
  Spawned(const Spawned&) = delete;
  Spawned& operator=(const Spawned&) = delete;

  void wait_for(int rank, const std::string& line);  // until the rank reports it
  void kill(int rank, int signal) const;
  void release();           // lets points that hold go on
  void wait();              // for the end of all
  void wait_but(int rank);  // for the end of all others
  [[nodiscard]] const End& end_of(int rank) const { return ends_[static_cast<std::size_t>(rank)]; }
  // Seconds from the first line of `rank` that begins so to the error of `survivor`, less what the survivor waited for
  // a core: Note [Times of spawned ranks]. Throws where one of the two is missing.
  [[nodiscard]] double seconds_to_error(int rank, const std::string& line, int survivor) const;

 private:
  struct Process {
    pid_t pid = -1;
    bool ended = false;
    int reports = -1, output = -1;  // to read
    std::string rest;               // of a line that is not complete
  };
  void pump();  // waits for something to happen
  bool claim_ends();
  [[noreturn]] void give_up(const std::string& why);
  [[nodiscard]] std::string all_output() const;

  std::vector<Process> processes_;
  std::vector<End> ends_;
  int release_ = -1, released_ = -1;  // the ends of a pipe
  double deadline_ = 0;
};

}  // namespace levin::test
