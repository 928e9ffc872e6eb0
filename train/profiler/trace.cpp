#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>
#include <vector>

#include "levin/error.h"
#include "levin/serialize.h"
#include "levin/train/profiler.h"
#include "levin/warning.h"

namespace levin {
namespace {

// In JSON's quotes. A byte that is not ASCII becomes '?', because one that is not UTF-8 makes the whole file
// unreadable.
std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char letter : text) {
    const auto c = static_cast<unsigned char>(letter);
    if (c == '"' || c == '\\') {
      out += {'\\', letter};
    } else if (c < 0x20) {
      std::array<char, 8> code{};
      std::snprintf(code.data(), code.size(), "\\u%04x", c);
      out += code.data();
    } else {
      out += c < 0x80 ? letter : '?';
    }
  }
  return out + '"';
}

}  // namespace

struct TraceProfiler::Actions {
  struct Span {
    std::size_t name;
    std::int64_t begin, end;  // end -1: running
  };
  [[nodiscard]] std::size_t index_of(std::string_view name) {
    const auto it = std::find(names.begin(), names.end(), name);
    if (it != names.end()) return static_cast<std::size_t>(it - names.begin());
    names.emplace_back(name);
    return names.size() - 1;
  }
  [[nodiscard]] auto running_action(std::size_t name) {
    return std::find_if(running.begin(), running.end(), [&](const Span& s) { return s.name == name; });
  }
  TraceProfilerOptions options;
  std::vector<std::string> names;
  std::vector<Span> running, done;
  std::int64_t dropped = 0;
  bool told = false;
};

TraceProfiler::TraceProfiler(TraceProfilerOptions options) : actions_(std::make_unique<Actions>()) {
  if (options.path.empty()) fail<ConfigError>("TraceProfiler: path is empty; name the file of the trace");
  if (options.max_actions < 1)
    fail<ConfigError>("TraceProfiler: max_actions is ", options.max_actions, ", expected 1 or more");
  actions_->options = std::move(options);
}
TraceProfiler::~TraceProfiler() = default;

void TraceProfiler::start(std::string_view action) {
  Actions& a = *actions_;
  const std::size_t name = a.index_of(action);
  if (a.running_action(name) != a.running.end())
    fail<StateError>("TraceProfiler: action \"", action, "\" is started while it runs; stop it first");
  a.running.push_back({.name = name, .begin = a.options.clock(), .end = -1});
}

void TraceProfiler::stop(std::string_view action) {
  Actions& a = *actions_;
  const std::int64_t now = a.options.clock();
  const auto it = a.running_action(a.index_of(action));
  if (it == a.running.end())
    fail<StateError>("TraceProfiler: action \"", action, "\" is stopped and does not run; start it first");
  it->end = now;
  if (static_cast<std::int64_t>(a.done.size()) < a.options.max_actions)
    a.done.push_back(*it);
  else
    ++a.dropped;
  a.running.erase(it);
}

void TraceProfiler::finish() {
  Actions& a = *actions_;
  const std::int64_t now = a.options.clock();
  std::vector<Actions::Span> spans = a.done;
  for (const Actions::Span& s : a.running) spans.push_back({.name = s.name, .begin = s.begin, .end = now});
  if (a.dropped > 0 && !std::exchange(a.told, true))
    warn("W-PROFILER-FULL", WarningCategory::user,
         "TraceProfiler: " + std::to_string(a.dropped) + " actions are not in " + a.options.path + ", max_actions is " +
             std::to_string(a.options.max_actions));
  // Times count from the first action, in microseconds.
  std::int64_t first = now;
  for (const Actions::Span& s : spans) first = std::min(first, s.begin);
  std::array<char, 160> numbers{};
  std::snprintf(numbers.data(), numbers.size(),
                "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %d, \"args\": {\"name\": \"levin\"}}",
                ::getpid());
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  text += numbers.data();
  for (const Actions::Span& s : spans) {
    const std::int64_t begin = s.begin - first, length = s.end - s.begin;
    std::snprintf(numbers.data(), numbers.size(),
                  ", \"ph\": \"X\", \"pid\": %d, \"tid\": 0, \"ts\": %lld.%03lld, \"dur\": %lld.%03lld}", ::getpid(),
                  static_cast<long long>(begin / 1000), static_cast<long long>(begin % 1000),
                  static_cast<long long>(length / 1000), static_cast<long long>(length % 1000));
    text.append(",\n{\"name\": ").append(in_quotes(a.names[s.name])).append(numbers.data());
  }
  text += "\n]}\n";
  write_file_atomically(a.options.path, text);
}

}  // namespace levin
