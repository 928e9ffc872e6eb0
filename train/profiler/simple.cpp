#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <vector>

#include "levin/error.h"
#include "levin/serialize.h"
#include "levin/sync.h"
#include "levin/train/profiler.h"
#include "tensor/text/number_text.h"

namespace levin {

std::int64_t steady_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Profiler::~Profiler() = default;
void Profiler::finish() {}

void ProfilerScope::start(std::string_view action) {
  action_ = action;
  profiler_->start(*action_);
}
void ProfilerScope::stop() noexcept {
  try {
    profiler_->stop(*action_);
  } catch (...) {}  // the user stopped the action, and the work inside of it matters more
}

struct SimpleProfiler::Actions {
  struct Action {
    std::string name;
    std::int64_t started = -1;  // -1: not running
    std::int64_t waits_before = 0;
    std::int64_t total = 0, calls = 0, waits = 0;
  };
  SimpleProfilerOptions options;
  [[nodiscard]] Action* find(std::string_view name) {
    for (Action& action : actions) {
      if (action.name == name) return &action;
    }
    return nullptr;
  }
  std::vector<Action> actions;        // a few dozen
  std::int64_t first = -1, last = 0;  // the begin of the first action (-1: none), the end of the last
};

SimpleProfiler::SimpleProfiler(SimpleProfilerOptions options) : actions_(std::make_unique<Actions>()) {
  actions_->options = std::move(options);
}
SimpleProfiler::~SimpleProfiler() = default;

void SimpleProfiler::start(std::string_view action) {
  Actions& a = *actions_;
  Actions::Action* it = a.find(action);
  if (!it) it = &a.actions.emplace_back(Actions::Action{.name = std::string(action)});
  if (it->started >= 0)
    fail<StateError>("SimpleProfiler: action \"", action, "\" is started while it runs; stop it first");
  const std::int64_t now = a.options.clock();
  if (a.first < 0) a.first = now;
  it->started = now;
  it->waits_before = host_waits();
}

void SimpleProfiler::stop(std::string_view action) {
  Actions& a = *actions_;
  const std::int64_t now = a.options.clock();
  Actions::Action* it = a.find(action);
  if (!it || it->started < 0)
    fail<StateError>("SimpleProfiler: action \"", action, "\" is stopped and does not run; start it first");
  it->total += now - it->started;
  it->waits += host_waits() - it->waits_before;
  it->started = -1;
  ++it->calls;
  a.last = now;
}

std::string SimpleProfiler::report() const {
  const Actions& a = *actions_;
  std::vector<const Actions::Action*> left;
  std::size_t width = std::string_view("Action").size();
  for (const Actions::Action& action : a.actions) {
    if (action.calls == 0) continue;
    left.push_back(&action);
    width = std::max(width, action.name.size());
  }
  const auto seconds = [](std::int64_t ns) { return static_cast<double>(ns) / 1e9; };
  const double whole = std::max(seconds(a.last - a.first), 1e-12);
  std::string out = "Action";
  out.append(width - out.size(), ' ').append(" |     Mean s |      Calls |    Total s | Share % |    Waits\n");
  out.append(width + 60, '-').append("\n");
  while (!left.empty()) {  // a few dozen: the longest of those left, the first of equals
    const auto longest =
        std::max_element(left.begin(), left.end(), [](const auto* x, const auto* y) { return x->total < y->total; });
    const Actions::Action& action = **longest;
    const double total = seconds(action.total);
    const auto count = [](std::int64_t n, std::size_t columns) {
      const std::string digits = text(n);
      return std::string(columns - std::min(columns, digits.size()), ' ') + digits;
    };
    out.append(action.name).append(width - action.name.size(), ' ');
    out += " | " + detail::general(total / static_cast<double>(action.calls), 4, 10) + " | " + count(action.calls, 10) +
           " | " + detail::general(total, 4, 10) + " | " + detail::fixed(100 * total / whole, 2, 7) + " | " +
           count(action.waits, 8) + "\n";
    left.erase(longest);
  }
  return out;
}

void SimpleProfiler::finish() {
  if (actions_->options.path.empty())
    std::fputs(report().c_str(), stderr);
  else
    write_file_atomically(actions_->options.path, report());
}

}  // namespace levin
