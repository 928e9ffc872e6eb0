#include <regex.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "levin/error.h"
#include "levin/warning.h"
#include "tensor/errors/warn.h"
#include "tensor/text/screen.h"

namespace levin {
namespace {

struct FreeRegex {
  void operator()(regex_t* r) const {
    ::regfree(r);
    delete r;
  }
};
struct Filter {
  WarningFilter what;
  std::unique_ptr<regex_t, FreeRegex> regex;  // null: any text
  [[nodiscard]] bool fits(std::string_view id, WarningCategory category, const std::string& text) const {
    return (!what.category || *what.category == category) && (what.id.empty() || what.id == id) &&
           (!regex || ::regexec(regex.get(), text.c_str(), 0, nullptr, 0) == 0);
  }
};

// The ids that this run has printed. It never changes what is computed.
struct Warnings {
  std::mutex mutex;
  std::set<std::string, std::less<>> printed;
  std::vector<Filter> filters;
  Function<void(const Warning&)> handler;
  bool prints = true;  // Note [Warnings of ranks]
};
Warnings& warnings() {
  static Warnings w;
  return w;
}

bool silenced_by_environment(WarningCategory category) {
  if (category != WarningCategory::possible_user) return false;
  const char* const text = std::getenv("LEVIN_POSSIBLE_USER_WARNINGS");
  return text && std::string_view(text) == "off";
}

}  // namespace

void warn(std::string_view id, WarningCategory category, std::string_view text, Repeat repeat) {
  if (silenced_by_environment(category)) return;
  const std::string words(text);
  Warnings& w = warnings();
  {
    const std::lock_guard lock(w.mutex);
    if (std::any_of(w.filters.begin(), w.filters.end(), [&](const Filter& f) { return f.fits(id, category, words); }))
      return;
    if (w.handler) {
      w.handler(Warning{std::string(id), category, words});
      return;
    }
    if (!w.prints || (!w.printed.emplace(id).second && repeat == Repeat::no)) return;
  }
  detail::print_above(
      stderr, (category == WarningCategory::info ? "note: " : "warning: ") + words + " [" + std::string(id) + "]\n");
}

void detail::begin_warnings_of_a_run() noexcept {
  Warnings& w = warnings();
  const std::lock_guard lock(w.mutex);
  w.printed.clear();
}

void detail::print_warnings(bool on) noexcept {
  Warnings& w = warnings();
  const std::lock_guard lock(w.mutex);
  w.prints = on;
}

Function<void(const Warning&)> set_warning_handler(Function<void(const Warning&)> handler) {
  Warnings& w = warnings();
  const std::lock_guard lock(w.mutex);
  std::swap(w.handler, handler);
  return handler;
}

void ignore_warnings(const WarningFilter& filter) {
  if (!filter.category && filter.id.empty() && filter.regex.empty())
    fail<ConfigError>(
        "ignore_warnings: the filter says nothing, so that all warnings would be dropped; give a category, "
        "an id or a regex");
  Filter made{.what = filter, .regex = nullptr};
  if (!filter.regex.empty()) {
    auto compiled = std::make_unique<regex_t>();
    if (::regcomp(compiled.get(), filter.regex.c_str(), REG_EXTENDED | REG_NOSUB) != 0)
      fail<ConfigError>("ignore_warnings: \"", filter.regex, "\" is no regular expression (POSIX extended)");
    made.regex.reset(compiled.release());
  }
  Warnings& w = warnings();
  const std::lock_guard lock(w.mutex);
  w.filters.push_back(std::move(made));
}
void forget_warning_filters() {
  Warnings& w = warnings();
  const std::lock_guard lock(w.mutex);
  w.filters.clear();
}

}  // namespace levin
