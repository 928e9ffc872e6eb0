// A simulated network: a thousand ranks in one thread, on a virtual clock, for tests of the algorithms and for studies
// of their time.
//
//   const SimResult r = simulate({.ranks = 1000, .link = {.latency = 5e-6}}, [](SimRank& me) { ... });
//
// Each rank is a fiber, which runs until it waits. The result depends on the options alone.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "comm/group/transport.h"
#include "levin/function.h"

namespace levin::dist {

// A message of n bytes arrives latency + n / bandwidth after its sender and its receiver are done with earlier ones.
struct SimLink {
  double latency = 5e-6;    // seconds
  double bandwidth = 10e9;  // bytes a second, of each rank in each direction
  double jitter = 0;        // up to this share of the latency is added, at random
  double loss = 0;          // probability that a message is lost and sent again
  double retransmit = 0.2;  // seconds until then
};

// What happens to a rank, or to the link of two, at a time.
struct SimFault {
  enum class Kind : std::uint8_t {
    kill,      // the rank runs no further; its connections close
    stop,      // the rank does not run for `seconds`
    slow,      // its compute() takes `seconds` times as long
    link_down  // messages between rank and other wait `seconds`
  };
  Kind kind = Kind::kill;
  int rank = 0;
  double at = 0;            // seconds; not before the message below
  std::int64_t after = -1;  // that many messages of the rank; -1: at `at` alone
  double seconds = std::numeric_limits<double>::infinity();
  int other = -1;
};

struct SimOptions {
  int ranks = 2;
  SimLink link{};
  std::uint64_t seed = 0;
  double timeout = 1800;  // seconds a wait may take
  double silence = 3;     // seconds after which a stopped rank is given up
  std::vector<SimFault> faults{};
};

struct SimResult {
  double seconds = 0;  // until the last rank ended
  std::int64_t messages = 0, bytes = 0;
  std::vector<double> ended;          // by rank; infinity: killed
  std::vector<std::string> errors;    // what ended a rank's body; empty: it returned
  std::vector<std::string> verdicts;  // what the job told a rank; empty: nothing
};

class SimRank {
 public:
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual Transport& transport() = 0;
  [[nodiscard]] virtual double now() const = 0;  // seconds of the virtual clock
  virtual void compute(double seconds) = 0;      // the rank is busy that long

 protected:
  ~SimRank() = default;
};

// Runs body(rank) for each rank. A wait that nothing can end is an error of its rank: "deadlock: ...". Throws
// ConfigError for options out of range.
[[nodiscard]] SimResult simulate(const SimOptions& options, const Function<void(SimRank&)>& body);

}  // namespace levin::dist
