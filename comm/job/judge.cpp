#include "comm/job/judge.h"

#include <algorithm>
#include <utility>

#include "levin/error.h"
#include "tensor/text/number_text.h"

namespace levin::dist {
namespace {

using std::string;

string seconds(double s) { return detail::general(std::max(s, 0.0), 3) + " s"; }

// "0, 2 and 3", at most eight of them.
string numbers(const std::vector<int>& ranks) {
  constexpr std::size_t kShown = 8;
  string out;
  const std::size_t shown = std::min(ranks.size(), kShown);
  for (std::size_t i = 0; i < shown; ++i) {
    if (i != 0) out += i + 1 == ranks.size() ? " and " : ", ";
    out += text(ranks[i]);
  }
  return ranks.size() > kShown ? out + " and " + text(ranks.size() - kShown) + " more" : out;
}
string ranks_text(const std::vector<int>& ranks) { return (ranks.size() == 1 ? "rank " : "ranks ") + numbers(ranks); }

}  // namespace

Judge::Judge(int world, const Limits& limits) : ranks_(static_cast<std::size_t>(world)), limits_(limits) {
  for (int r = 0; r < world; ++r) of(r).name = "rank " + text(r);
}

void Judge::start(std::vector<string> names, double now) {
  started_ = true;
  window_ = now;
  for (int r = 0; r < size(); ++r) {
    of(r).name = std::move(names[static_cast<std::size_t>(r)]);
    of(r).heard_at = of(r).beat_at = now;
  }
}

void Judge::heard(int rank, double now) { of(rank).heard_at = now; }

void Judge::beat(int rank, const Beat& beat, double now) {
  of(rank).beat = beat;
  of(rank).beat_at = of(rank).heard_at = now;
}

void Judge::passed(int rank, const string& group, std::uint64_t collectives) {
  of(rank).passed[group] = collectives;
  meetings_changed_ = true;
}

void Judge::answered(int rank, std::string_view words) {
  of(rank).has_answered = true;
  of(rank).words = words;
}

void Judge::gathers(int rank, const string& group, const std::vector<int>& members, std::uint64_t ordinal,
                    std::string_view what, double now) {
  of(rank).gathers[key_of(group, ordinal)] = {group, string(what), members, ordinal, now};
  meetings_changed_ = true;
}
void Judge::gathered(int rank, const string& group, std::uint64_t ordinal) {
  of(rank).gathers.erase(key_of(group, ordinal));
}

// What a rank was doing at its last beat: "in phase forward, 3 steps completed".
string Judge::doing(const Rank& rank) const {
  string out = string("in phase ") + name_of(rank.beat.phase);
  if (rank.beat.step >= 0)
    out += ", " + text(rank.beat.step) + (rank.beat.step == 1 ? " step" : " steps") + " completed";
  return out;
}

void Judge::cause(Verdict::Kind kind, int rank, string text, double now, bool by_end) {
  if (cause_ || finished_) return;
  cause_ = Cause{kind, rank, std::move(text), now, by_end};
}

void Judge::lost(int rank, double now) {
  Rank& r = of(rank);
  if (r.gone || r.has_left) return;
  r.gone = true;
  cause(Verdict::Kind::lost, rank,
        r.name + " was lost " + doing(r) + ": its connection closed " + seconds(now - r.heard_at) +
            " after its last sign of life; it was killed, or it ended without a word",
        now);
}

void Judge::ends(int rank, const string& group) {
  of(rank).ended.insert(group);
  meetings_changed_ = true;
}

void Judge::closes(int rank) {
  of(rank).closes = true;
  meetings_changed_ = true;
}

void Judge::left(int rank) {
  of(rank).has_left = true;
  closes(rank);
}

void Judge::failed(int rank, std::string_view what, double now) {
  Rank& r = of(rank);
  r.gone = true;
  cause(Verdict::Kind::failed, rank, r.name + " failed " + doing(r) + ": " + string(what), now);
}

void Judge::reported(int by, int rank, std::string_view what, double now) {
  if (report_ || cause_) return;
  if (rank < 0) {
    cause(Verdict::Kind::aborted, -1, of(by).name + " ended the job: " + string(what), now);
    return;
  }
  report_ = Report{by, rank, string(what), now};
}

void Judge::finish() { finished_ = true; }

void Judge::slept(double now) {
  for (Rank& r : ranks_) r.heard_at = now;
}

double Judge::waits_since(const Rank& rank, double now) const {
  double since = now;
  if (rank.beat.site != 0) since = std::min(since, rank.beat_at - rank.beat.wait_age);
  for (const auto& [key, gathering] : rank.gathers) since = std::min(since, gathering.since);
  return since;
}

// Note [What ends a job]: a rank compares the n-th collective of a group, and a member has passed n without comparing.
void Judge::find_mismatch(double now) {
  for (int r = 0; r < size(); ++r) {
    for (const auto& [key, gathering] : of(r).gathers) {
      for (const int member : gathering.members) {
        const Rank& other = of(member);
        const auto both = other.gathers.find(key);
        if (both != other.gathers.end() && both->second.ordinal == gathering.ordinal) continue;
        if (other.closes) {
          cause(Verdict::Kind::mismatch, member,
                other.name + " has come to its end of the job, and " + of(r).name + " waits for it in " +
                    gathering.what + "; call the same collectives on all ranks",
                now, /*by_end=*/true);
          return;
        }
        const auto passed = other.passed.find(gathering.group);
        if (gathering.ordinal == 0 || passed == other.passed.end() || passed->second < gathering.ordinal) continue;
        // The fewer are to blame: a collective on one rank alone.
        std::vector<int> here, there;
        for (const int m : gathering.members) (of(m).gathers.contains(key) ? here : there).push_back(m);
        const int blamed = here.size() <= there.size() ? here.front() : there.front();
        cause(Verdict::Kind::mismatch, blamed, "collectives differ between ranks", now);
        return;
      }
    }
  }
}

// An expected collective moves data at once, so the store does not see who meets in it: the counts tell.
void Judge::find_wait_for_end(double now) {
  struct Counts {
    int ended = -1, other = -1;  // the rank with the fewest of those that have ended, and with the most of the others
    std::uint64_t fewest = 0, most = 0;
  };
  std::map<std::string_view, Counts> groups;
  for (int r = 0; r < size(); ++r) {
    for (const auto& [group, collectives] : of(r).passed) {
      Counts& counts = groups[group];
      if (of(r).closes || of(r).ended.contains(group)) {
        if (counts.ended < 0 || collectives < counts.fewest) counts.ended = r, counts.fewest = collectives;
      } else if (!of(r).gone && (counts.other < 0 || collectives > counts.most)) {
        counts.other = r, counts.most = collectives;
      }
    }
  }
  for (const auto& [group, counts] : groups) {
    if (counts.ended < 0 || counts.other < 0 || counts.most <= counts.fewest) continue;
    cause(Verdict::Kind::mismatch, counts.ended,
          of(counts.ended).name + " has come to its end of the group after " + text(counts.fewest) +
              (counts.fewest == 1 ? " collective" : " collectives") + ", and " + of(counts.other).name +
              " waits for it in one more; call the same collectives on all ranks",
          now, /*by_end=*/true);
    return;
  }
}

void Judge::find_stuck(double now) {
  std::vector<int> waiting, working;
  double longest = 0;
  for (int r = 0; r < size(); ++r) {
    if (!alive(r)) continue;
    const double waits = now - waits_since(of(r), now);
    longest = std::max(longest, waits);
    (waits > 0 ? waiting : working).push_back(r);
  }
  if (longest < limits_.timeout) return;
  if (working.empty()) {
    cause(Verdict::Kind::stuck, -1, "all ranks wait in collectives, the longest for " + seconds(longest), now);
    return;
  }
  // The one that has been in its phase for longest.
  const auto age = [&](int r) { return now - of(r).beat_at + of(r).beat.phase_age; };
  const int r = *std::max_element(working.begin(), working.end(), [&](int a, int b) { return age(a) < age(b); });
  cause(Verdict::Kind::stuck, r,
        of(r).name + " is alive and has not come to a collective for " + seconds(longest) + ": it is " + doing(of(r)) +
            " for " + seconds(age(r)),
        now);
}

void Judge::look(double now) {
  if (!started_ || finished_ || cause_ || now < looked_ + kLookEvery) return;
  looked_ = now;
  for (int r = 0; r < size() && !cause_; ++r) {
    const double silent = now - of(r).heard_at;
    if (!alive(r) || silent <= limits_.silence) continue;
    cause(Verdict::Kind::silent, r,
          of(r).name + " has been silent for " + seconds(silent) + ", last heard " + doing(of(r)) +
              "; it is stopped, or its host or network is gone",
          now);
  }
  if (!cause_ && std::exchange(meetings_changed_, false)) {
    find_mismatch(now);
    if (!cause_) find_wait_for_end(now);
  }
  if (!cause_) find_stuck(now);
  if (!cause_ && report_ && now >= report_->at + kReportGrace) {
    cause(Verdict::Kind::aborted, report_->rank,
          of(report_->by).name + " lost its connection to " + of(report_->rank).name + " (" + doing(of(report_->rank)) +
              "): " + report_->what,
          now);
  }
}

bool Judge::asks(double now) {
  look(now);
  if (!cause_ || asked_) return false;
  asked_ = true;
  if (cause_->rank >= 0 && cause_->kind != Verdict::Kind::mismatch && cause_->kind != Verdict::Kind::stuck)
    of(cause_->rank).gone = true;
  return true;
}

// "ranks 0 and 1 wait in all_reduce f32[4096]": ranks with the same words together.
string Judge::waiting(int but) const {
  std::vector<std::pair<string, std::vector<int>>> groups;
  for (int r = 0; r < size(); ++r) {
    if (!alive(r) || r == but || of(r).closes || of(r).words.empty()) continue;
    const bool waits = of(r).beat.site != 0 || !of(r).gathers.empty();
    const string words = (waits ? "in " : "after ") + of(r).words;
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == words; });
    if (same == groups.end())
      groups.push_back({words, {r}});
    else
      same->second.push_back(r);
  }
  string out;
  for (const auto& [words, ranks] : groups)
    out += string(out.empty() ? "" : ", ") + ranks_text(ranks) + (ranks.size() == 1 ? " is " : " are ") + words;
  return out;
}

std::optional<Verdict> Judge::decide(double now) {
  if (!cause_ || decided_ || !asked_) return std::nullopt;
  bool all = true;
  for (int r = 0; r < size(); ++r) all = all && (!alive(r) || of(r).has_answered);
  if (!all && now < cause_->at + kAskGrace) return std::nullopt;
  decided_ = true;
  Verdict out{.kind = cause_->kind, .rank = cause_->rank, .text = cause_->text};
  const bool both = out.kind == Verdict::Kind::mismatch || out.kind == Verdict::Kind::stuck;
  if (both && out.rank >= 0 && !cause_->by_end && !of(out.rank).words.empty())
    out.text += string(out.kind == Verdict::Kind::stuck ? ", after " : ": rank ") +
                (out.kind == Verdict::Kind::stuck ? "" : text(out.rank) + " is in ") + of(out.rank).words;
  if (const string others = waiting(both ? out.rank : -1); !others.empty()) out.text += "; " + others;
  for (int r = 0; r < size(); ++r) {
    const bool stuck = out.kind == Verdict::Kind::stuck && r == out.rank;
    // A rank at its end of the job is in no stage and saves nothing.
    if (!alive(r) || stuck || of(r).closes || of(r).beat.step <= out.newest_step) continue;
    out.newest_step = of(r).beat.step;
    out.writer = r;
  }
  if (out.writer >= 0) {
    out.text +=
        "; rank " + text(out.writer) + " has completed the most steps of the survivors, " + text(out.newest_step);
  }
  return out;
}

// The ranks of a job take as long for a step, whatever each computes: the slow one is the one that does not wait.
std::optional<string> Judge::warning(double now) {
  if (!started_ || finished_ || cause_ || now < window_ + kSlowWindow) return std::nullopt;
  const double length = now - window_;
  window_ = now;
  std::vector<double> busy;  // seconds a step
  bool steps = true;
  for (Rank& r : ranks_) {
    const double waited = r.beat.waited + (r.beat.site != 0 ? r.beat.wait_age : 0);
    const std::int64_t n = r.beat.step - r.window_step;
    steps = steps && n >= 2 && r.window_step >= 0;
    busy.push_back(std::max(length - (waited - r.window_waited), 0.0) /
                   static_cast<double>(std::max<std::int64_t>(n, 1)));
    r.window_waited = waited;
    r.window_step = r.beat.step;
  }
  if (!steps || size() < 2) return std::nullopt;
  const auto slow = static_cast<std::size_t>(std::max_element(busy.begin(), busy.end()) - busy.begin());
  std::vector<double> others = busy;
  others.erase(others.begin() + static_cast<std::ptrdiff_t>(slow));
  std::nth_element(others.begin(), others.begin() + static_cast<std::ptrdiff_t>(others.size() / 2), others.end());
  const double typical = others[others.size() / 2];
  if (typical <= 0 || busy[slow] <= kSlowRatio * typical) return std::nullopt;
  return ranks_[slow].name + " is " + detail::general(busy[slow] / typical, 2) +
         " times slower than the others: outside of collectives it takes " + seconds(busy[slow]) +
         " a step, the others " + seconds(typical);
}

double Judge::next_look(double now) const {
  if (finished_ || decided_) return now + 1;
  if (cause_) return cause_->at + kAskGrace;
  double next = std::min(now + limits_.silence / 4, now + 1);
  if (report_) next = std::min(next, report_->at + kReportGrace);
  if (meetings_changed_) next = std::min(next, looked_ + kLookEvery);
  return next;
}

}  // namespace levin::dist
