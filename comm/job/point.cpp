#include "comm/job/point.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/job/note.h"
#include "levin/error.h"
#include "tensor/text/number_text.h"

namespace levin::dist {
namespace {

using std::string;
using std::string_view;

enum class Action : std::uint8_t { kill, stop, raise_error, hold };

struct Planned {
  std::int64_t rank = 0;
  string name;
  std::optional<std::int64_t> index, step;
  Action action{};
  bool done = false;
};

struct Points {
  std::mutex mutex;
  std::vector<Planned> planned;
  int rank = 0, events = -1, release = -1;
  const Note* note = nullptr;
  Function<void()> before;
};
Points& points() {
  static Points all;
  return all;
}

[[noreturn]] void refuse(string_view line) {
  fail<ConfigError>("LEVIN_POINTS: `", line,
                    "` is no line of it; write `rank 2: at NAME 1 of step 3 -> kill`, with "
                    "kill, stop, throw or hold");
}

// The next word of the line, which must be there.
string_view word(string_view& rest, string_view line) {
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  const string_view out = rest.substr(0, rest.find(' '));
  if (out.empty()) refuse(line);
  rest.remove_prefix(out.size());
  return out;
}

std::optional<std::int64_t> number(string_view text) {
  std::int64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return out;
}

Planned planned_in(string_view line) {
  string_view rest = line;
  Planned out;
  const auto expect = [&](string_view wanted) {
    if (word(rest, line) != wanted) refuse(line);
  };
  const auto required = [&](string_view text) {
    const auto value = number(text);
    if (!value) refuse(line);
    return *value;
  };
  expect("rank");
  string_view rank = word(rest, line);
  if (!rank.ends_with(':')) refuse(line);
  rank.remove_suffix(1);
  out.rank = required(rank);
  expect("at");
  out.name = word(rest, line);
  string_view next = word(rest, line);
  if (number(next)) {
    out.index = number(next);
    next = word(rest, line);
  }
  if (next == "of") {
    expect("step");
    out.step = required(word(rest, line));
    next = word(rest, line);
  }
  if (next != "->") refuse(line);
  const string_view action = word(rest, line);
  if (action == "kill") {
    out.action = Action::kill;
  } else if (action == "stop") {
    out.action = Action::stop;
  } else if (action == "throw") {
    out.action = Action::raise_error;
  } else if (action == "hold") {
    out.action = Action::hold;
  } else {
    refuse(line);
  }
  if (rest.find_first_not_of(' ') != string_view::npos) refuse(line);
  return out;
}

int descriptor(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? -1 : static_cast<int>(number(value).value_or(-1));
}

}  // namespace

void arm_points(int rank, const Note& note, Function<void()> before) {
  const char* script = std::getenv("LEVIN_POINTS");
  if (script == nullptr || *script == 0) return;
  std::vector<Planned> planned;
  for (string_view rest = script; !rest.empty();) {
    const std::size_t end = rest.find(';');
    const string_view line = rest.substr(0, end);
    rest = end == string_view::npos ? string_view{} : rest.substr(end + 1);
    if (line.find_first_not_of(' ') == string_view::npos) continue;
    Planned one = planned_in(line);
    if (one.rank == rank) planned.push_back(std::move(one));
  }
  Points& all = points();
  const std::lock_guard lock(all.mutex);
  all.planned = std::move(planned);
  all.rank = rank;
  all.note = &note;
  all.before = std::move(before);
  all.events = descriptor("LEVIN_POINTS_EVENTS");
  all.release = descriptor("LEVIN_POINTS_RELEASE");
  detail::points_armed = !all.planned.empty();
}

void disarm_points(const Note& note) noexcept {
  Points& all = points();
  const std::lock_guard lock(all.mutex);
  if (all.note != &note) return;
  detail::points_armed = false;
  all.planned.clear();
  all.note = nullptr;
  all.before = {};
}

void detail::reach_point(const char* name, std::int64_t index) {
  Points& all = points();
  std::unique_lock lock(all.mutex);
  if (all.note == nullptr) return;
  const std::int64_t step = std::max<std::int64_t>(all.note->read().step, 0);
  for (Planned& one : all.planned) {
    if (one.done || one.name != name || one.index.value_or(index) != index || one.step.value_or(step) != step) continue;
    one.done = true;
    const Action action = one.action;
    const Function<void()> before = all.before;
    const string event = "rank " + text(all.rank) + " at " + name + " " + text(index);
    const int release = all.release, events = all.events;
    lock.unlock();
    if (before) before();
    const string line = event + "\t" + levin::detail::fixed(steady_seconds(), 6) + "\n";
    if (events >= 0) (void)!::write(events, line.data(), line.size());
    char byte = 0;
    switch (action) {
      case Action::kill: (void)::raise(SIGKILL); return;
      case Action::stop: (void)::raise(SIGSTOP); return;
      case Action::raise_error: fail<DataError>("LEVIN_POINTS: ", event);
      case Action::hold: (void)!::read(release, &byte, 1); return;
    }
    return;
  }
}

}  // namespace levin::dist
