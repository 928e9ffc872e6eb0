#include "bench/ledger.h"

#if defined(LEVIN_SIMT)

#include <algorithm>
#include <cstdio>

namespace levin::bench {

void StepLedger::Sums::add(const detail::LedgerCall& c) {
  ++calls;
  least += c.least;
  for (const detail::LedgerLaunch& l : c.launches) {
    ++launches;
    read += l.read;
    written += l.written;
    asked += l.asked;
    if (std::find(places.begin(), places.end(), l.place) == places.end()) places.push_back(l.place);
  }
}

void StepLedger::print_row(const std::string& what, const Sums& s) {
  const double moved = double(s.read + s.written);
  std::string lines;
  for (const std::string& p : s.places) lines += (lines.empty() ? "" : " ") + p;
  char flops[32] = "";
  if (s.flops >= 0) std::snprintf(flops, sizeof flops, "%.1f", double(s.flops) / 1e6);
  std::printf("| %-34s | %5zu | %8zu | %9.1f | %9.1f | %9.1f | %5.2f | %5.2f | %9s | %s |\n", what.c_str(), s.calls,
              s.launches, double(s.read) / 1e3, double(s.written) / 1e3, double(s.least) / 1e3,
              moved / std::max(1.0, double(s.least)), double(s.asked) / std::max(1.0, moved), flops, lines.c_str());
}

void StepLedger::print_head(const char* rows) {
  std::printf(
      "| %-34s | calls | launches |   read kB | written kB |  least kB | ratio | asked |     MFLOP | launched at |\n"
      "|---|---|---|---|---|---|---|---|---|---|\n",
      rows);
}

void StepLedger::print(int nodes, const std::vector<detail::LedgerCall>& calls) const {
  std::printf("\n%d nodes, %.3f GFLOP of products (MFLOP below, under the op that FlopCounter names)\n\n", nodes,
              double(flops_.total()) / 1e9);
  print_head("phase, op");
  Sums all;
  std::map<std::string, std::vector<std::pair<std::string, Sums>>> of_modules;  // of the model's children, by phase
  std::size_t from = 0;
  std::vector<OpFlops> before;
  const auto of_op = [](const std::vector<OpFlops>& flops, const std::string& op) {
    const auto at = std::find_if(flops.begin(), flops.end(), [&](const OpFlops& f) { return op == f.op; });
    return at == flops.end() ? 0 : at->flops;
  };
  for (const auto& [phase, to, flops] : phases_) {
    Sums whole;
    std::vector<std::pair<std::string, Sums>> ops;
    for (std::size_t i = from; i < to; ++i) {
      const detail::LedgerCall& c = calls[i];
      whole.add(c);
      all.add(c);
      const std::string op = c.op.empty() ? "(no op)" : c.op;
      auto at = std::find_if(ops.begin(), ops.end(), [&](const auto& known) { return known.first == op; });
      if (at == ops.end()) at = ops.insert(ops.end(), {op, {}});
      at->second.add(c);
      auto& of_child = of_modules[c.module.substr(0, c.module.find('.'))];
      if (of_child.empty() || of_child.back().first != phase) of_child.push_back({phase, {}});
      of_child.back().second.add(c);
    }
    from = to;
    for (const OpFlops& f : flops) {
      const std::int64_t made = f.flops - of_op(before, f.op);
      whole.flops += made;
      all.flops += made;
      const auto at = std::find_if(ops.begin(), ops.end(), [&](const auto& known) { return known.first == f.op; });
      if (at != ops.end()) at->second.flops += made;
    }
    before = flops;
    whole.places.clear();
    print_row(std::string("**") + phase + "**", whole);
    for (const auto& [op, sums] : ops) print_row(op, sums);
  }
  all.places.clear();
  print_row("**step**", all);
  std::printf("\n");
  print_head("module, phase");
  for (auto& [module, phases] : of_modules)
    for (auto& [phase, sums] : phases) {
      sums.places.clear();
      sums.flops = -1;  // counted by op alone
      print_row((module.empty() ? "(no module)" : module) + ' ' + phase, sums);
    }
}

}  // namespace levin::bench

#endif
