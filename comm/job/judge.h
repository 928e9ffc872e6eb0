// Decides what ended a job: one cause, from what the store hears of the ranks. No sockets and no clock: the store gives
// the time.
//
// Note [What ends a job]
//
//   lost      a rank's connection closed before its farewell: it was killed, or ended without a word
//   silent    nothing was heard of a rank for `silence` seconds: it is stopped, or its host or link is gone
//   stuck     a rank is alive and does not come to a collective in which others wait for `timeout` seconds
//   failed    a rank reports the exception that ends it
//   mismatch  a rank waits to compare a collective that another has passed as expected, so they never meet; or
//             waits for a rank that has come to its end of the group or the job
//   aborted   a rank reports an error of a connection, and nothing better is known after kReportGrace
//
// The first cause counts. The store then asks all survivors what they do, and after kAskGrace at the latest it sends
// the verdict with the answers to all.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "comm/job/alarm.h"
#include "comm/job/note.h"

namespace levin::dist {

// What a rank says about itself. Ages are seconds before the message was sent, since clocks of hosts differ.
struct Beat {
  Phase phase = Phase::rendezvous;
  std::int64_t step = -1;
  double phase_age = 0;
  std::uint64_t entry = 0, site = 0;
  double wait_age = 0, waited = 0;
};

class Judge {
 public:
  struct Limits {
    double silence = 3, timeout = 1800;
  };
  static constexpr double kReportGrace = 0.3;
  static constexpr double kAskGrace = 0.25;
  static constexpr double kLookEvery = 0.005;
  static constexpr double kSlowWindow = 10, kSlowRatio = 3;

  Judge(int world, const Limits& limits);

  // ---- What is known of the ranks. Ranks are in range.
  void start(std::vector<std::string> names, double now);  // all have arrived; "rank 2 (host a, process 77)"
  void heard(int rank, double now);                        // any message
  void beat(int rank, const Beat& beat, double now);
  // The rank has passed that many collectives of the group: compared with all ranks, or expected.
  void passed(int rank, const std::string& group, std::uint64_t collectives);
  void answered(int rank, std::string_view words);  // to the question after a cause
  // ordinal: of the collective that the group's ranks compare; 0: they exchange something else.
  void gathers(int rank, const std::string& group, const std::vector<int>& members, std::uint64_t ordinal,
               std::string_view what, double now);
  void gathered(int rank, const std::string& group, std::uint64_t ordinal);
  void lost(int rank, double now);
  // passed() has told all collectives that the rank calls in the group; of all groups: at its end of the job.
  void ends(int rank, const std::string& group);
  void closes(int rank);
  void left(int rank);
  void failed(int rank, std::string_view text, double now);
  void reported(int by, int rank, std::string_view what, double now);
  void finish();           // all ranks have come to the end: nothing that follows is a failure
  void slept(double now);  // the store itself did not run: silence until now proves nothing

  // ---- Decisions
  [[nodiscard]] bool asks(double now);                      // true once: a cause is known, and the ranks must be asked
  [[nodiscard]] std::optional<Verdict> decide(double now);  // once
  [[nodiscard]] std::optional<std::string> warning(double now);
  [[nodiscard]] double next_look(double now) const;  // when time alone may change something
  [[nodiscard]] const Beat& last_beat(int rank) const { return ranks_[static_cast<std::size_t>(rank)].beat; }
  // Whether the job is over for the rank: it has left, or was lost, or all ranks have come to the end.
  [[nodiscard]] bool has_ended(int rank) const { return finished_ || !alive(rank); }
  [[nodiscard]] const std::string& name(int rank) const { return ranks_[static_cast<std::size_t>(rank)].name; }

 private:
  struct Gathering {
    std::string group;
    std::string what;
    std::vector<int> members;
    std::uint64_t ordinal = 0;  // of the collective that is compared; 0: none
    double since = 0;
  };
  struct Rank {
    std::string name;
    Beat beat;
    double beat_at = 0, heard_at = 0;
    bool gone = false, closes = false, has_left = false, has_answered = false;
    std::string words;                            // of the last collective
    std::map<std::string, std::uint64_t> passed;  // by group
    std::set<std::string> ended;                  // groups
    std::map<std::string, Gathering> gathers;     // by key_of
    double window_waited = 0;                     // at the start of the window of warnings
    std::int64_t window_step = -1;
  };
  struct Cause {
    Verdict::Kind kind;
    int rank;
    std::string text;  // without what the survivors do
    double at;
    bool by_end;  // `rank` is in no collective: it has come to an end
  };
  struct Report {
    int by, rank;
    std::string what;
    double at;
  };

  static std::string key_of(const std::string& group, std::uint64_t ordinal) { return group + (ordinal ? "!" : "?"); }
  [[nodiscard]] Rank& of(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const Rank& of(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] bool alive(int rank) const { return !of(rank).gone && !of(rank).has_left; }
  [[nodiscard]] double waits_since(const Rank& rank, double now) const;  // now: it does not wait
  [[nodiscard]] std::string doing(const Rank& rank) const;
  [[nodiscard]] std::string waiting(int but) const;
  void cause(Verdict::Kind kind, int rank, std::string text, double now, bool by_end = false);
  void look(double now);
  void find_mismatch(double now);
  void find_wait_for_end(double now);
  void find_stuck(double now);

  std::vector<Rank> ranks_;
  Limits limits_;
  bool started_ = false, finished_ = false, asked_ = false, decided_ = false;
  std::optional<Cause> cause_;
  std::optional<Report> report_;
  double window_ = 0;
  double looked_ = -1;             // look() costs time that grows with the ranks
  bool meetings_changed_ = false;  // who waits for whom, since find_mismatch
};

}  // namespace levin::dist
