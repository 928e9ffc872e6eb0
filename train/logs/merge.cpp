#include "train/logs/merge.h"

#include <algorithm>
#include <limits>
#include <set>

#include "train/run/packed.h"

namespace levin::train {
namespace {

// A NaN stays.
double least(double a, double b) { return b < a || b != b ? b : a; }
double most(double a, double b) { return b > a || b != b ? b : a; }

std::string packed(const std::vector<LogPart>& parts) {
  Packed out;
  for (const LogPart& p : parts) {
    out.add(p.name).add(p.hook).add(p.loader).add(p.on_step).add(p.prog_bar).add(p.logger).add(p.of_epochs);
    out.add(p.rank_zero_only).add(p.reduce).add(p.sum).add(p.weight).add(p.is_metric);
    out.add(static_cast<std::uint64_t>(p.states.size()));
    for (const MetricState& s : p.states) {
      out.add(s.across).add(static_cast<std::uint64_t>(s.values.size()));
      for (const double x : s.values) out.add(x);
    }
  }
  return out.bytes();
}

std::vector<LogPart> unpacked(const std::string& bytes) {
  std::vector<LogPart> parts;
  for (Unpacked in(bytes); !in.empty();) {
    LogPart& p = parts.emplace_back();
    p.name = in.take<std::string>();
    p.hook = in.take<std::string>();
    p.loader = in.take<int>();
    for (bool* flag : {&p.on_step, &p.prog_bar, &p.logger, &p.of_epochs, &p.rank_zero_only}) *flag = in.take<bool>();
    p.reduce = in.take<EpochReduce>();
    p.sum = in.take<double>();
    p.weight = in.take<double>();
    p.is_metric = in.take<bool>();
    for (auto states = in.take<std::uint64_t>(); states > 0; --states) {
      MetricState& s = p.states.emplace_back();
      s.across = in.take<Metric::Across>();
      for (auto n = in.take<std::uint64_t>(); n > 0; --n) s.values.push_back(in.take<double>());
    }
  }
  return parts;
}

std::string listed(const std::set<std::string>& names) {
  std::string all;
  for (const std::string& n : names) all += (all.empty() ? "" : ", ") + n;
  return all.empty() ? "nothing" : all;
}

void check_names(const std::vector<std::vector<LogPart>>& ranks) {
  std::set<std::pair<int, bool>> groups;
  for (const auto& parts : ranks) {
    for (const LogPart& p : parts) groups.emplace(p.loader, p.of_epochs);
  }
  for (const auto& [loader, of_epochs] : groups) {
    std::vector<std::set<std::string>> names(ranks.size());
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      for (const LogPart& p : ranks[r]) {
        if (p.loader == loader && p.of_epochs == of_epochs && !p.rank_zero_only) names[r].insert(p.name);
      }
    }
    const bool with_data = !of_epochs;
    std::size_t first = 0;
    while (with_data && first + 1 < names.size() && names[first].empty()) ++first;
    for (std::size_t r = first + 1; r < names.size(); ++r) {
      if (names[r] == names[first] || (with_data && names[r].empty())) continue;
      fail<ConfigError>("log: rank ", first, " logged ", listed(names[first]), " and rank ", r, " logged ",
                        listed(names[r]),
                        ", and the epoch's values are those of all ranks together; log the same names on every rank "
                        "that has data, or set LogOptions::rank_zero_only");
    }
  }
}

void combine(LogPart& into, const LogPart& other) {
  into.weight += other.weight;
  ++into.ranks;
  switch (into.reduce) {
    case EpochReduce::mean:
    case EpochReduce::sum: into.sum += other.sum; break;
    case EpochReduce::min: into.sum = least(into.sum, other.sum); break;
    case EpochReduce::max: into.sum = most(into.sum, other.sum); break;
  }
  if (into.states.size() != other.states.size())
    fail<ConfigError>("log: the metric \"", into.name, "\" has ", into.states.size(), " states on one rank and ",
                      other.states.size(), " on another; log the same Metric on every rank");
  for (std::size_t s = 0; s < into.states.size(); ++s) combine(into.states[s], other.states[s]);
}

}  // namespace

double start_of(EpochReduce reduce) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return reduce == EpochReduce::min ? kInfinity : reduce == EpochReduce::max ? -kInfinity : 0;
}

void combine(MetricState& into, const MetricState& other) {
  if (into.values.size() != other.values.size())
    fail<ConfigError>("log: a metric has states of ", into.values.size(), " and of ", other.values.size(),
                      " elements on two ranks; give its states one shape");
  for (std::size_t i = 0; i < into.values.size(); ++i) {
    double& to = into.values[i];
    const double x = other.values[i];
    to = into.across == Metric::Across::sum ? to + x : into.across == Metric::Across::min ? least(to, x) : most(to, x);
  }
}

std::vector<LogPart> merged(const std::vector<LogPart>& mine, const Exchange& gather) {
  std::vector<std::vector<LogPart>> ranks;
  for (const std::string& bytes : gather(packed(mine))) ranks.push_back(unpacked(bytes));
  check_names(ranks);
  std::vector<LogPart> all;
  for (std::vector<LogPart>& parts : ranks) {
    for (LogPart& p : parts) {
      const auto known = std::find_if(all.begin(), all.end(), [&](const LogPart& a) { return a.same_entry(p); });
      if (known == all.end())
        all.push_back(std::move(p));
      else
        combine(*known, p);
    }
  }
  for (LogPart& p : all) p.everywhere = p.ranks == ranks.size();
  return all;
}

void fill_from_ranks(std::vector<std::pair<bool, double>>& values, const Exchange& gather) {
  Packed mine;
  for (const auto& [known, value] : values) mine.add(known).add(value);
  for (const std::string& bytes : gather(mine.bytes())) {
    Unpacked in(bytes);
    for (auto& [known, value] : values) {
      const bool theirs = in.take<bool>();
      const auto x = in.take<double>();
      if (!known && theirs) value = x, known = true;
    }
  }
}

}  // namespace levin::train
