// bench_step --ledger: the launches of a recorded step, and the bytes that they move beside those that they must.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "levin/error.h"
#include "levin/extend.h"
#include "levin/flops.h"
#include "levin/stream.h"

#if defined(LEVIN_SIMT)
#include "tensor/device/launch_ledger.h"
#endif

namespace levin::bench {

// What a step tells as it passes from one phase to the next. Without a ledger it does nothing.
class Phases {
 public:
  virtual ~Phases() = default;
  virtual void end(const char*) {}
};

#if defined(LEVIN_SIMT)
// Note [Launch ledger] in tensor/device/launch_ledger.h has the meaning of the figures.
class StepLedger final : public Phases {
 public:
  StepLedger() { detail::mode().detour = true; }
  void end(const char* phase) override {
    phases_.push_back({phase, ledger_.size(), flops_.by_op()});
    ledger_.next_call();
  }

  // Records the step, replays it once, and prints what the replay moved.
  template <class Step, class Prepare>
  void run(Stream stream, Step&& step, Prepare&& prepare_replay) {
    if (!detail::LaunchLedger::counts_bytes())
      fail<ConfigError>(
          "--ledger: this build counts no bytes; configure one with -Dsimt=true -Dledger=true, or use "
          "./run bench step --ledger");
    Graph graph(stream, [&] { step(*this); });
    const std::size_t recorded = ledger_.size();
    prepare_replay();
    graph.replay();
    std::vector<detail::LedgerCall> calls = ledger_.take();
    calls.resize(recorded);
    print(graph.nodes(), calls);
  }

 private:
  struct Sums {
    std::size_t calls = 0, launches = 0;
    std::int64_t read = 0, written = 0, asked = 0, least = 0;
    std::int64_t flops = 0;  // of products; below 0: not known
    std::vector<std::string> places{};
    void add(const detail::LedgerCall& c);
  };
  static void print_head(const char* rows);
  static void print_row(const std::string& what, const Sums& s);
  void print(int nodes, const std::vector<detail::LedgerCall>& calls) const;

  detail::LaunchLedger ledger_;
  FlopCounter flops_;
  struct Phase {
    const char* name;
    std::size_t end;             // calls up to its end
    std::vector<OpFlops> flops;  // of products up to its end
  };
  std::vector<Phase> phases_{};
};
#endif

}  // namespace levin::bench
