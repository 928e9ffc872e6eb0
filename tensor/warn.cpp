#include <cstdio>
#include <mutex>
#include <set>

#include "levin/warning.h"

namespace levin {
namespace {

// Which ids were printed already. Never changes what is computed.
struct Warnings {
  std::mutex mutex;
  std::set<std::string, std::less<>> printed;
  Function<void(const Warning&)> handler;
};
Warnings& warnings() {
  static Warnings w;
  return w;
}

}  // namespace

void warn(std::string_view id, WarningCategory category, std::string_view text, Repeat repeat) {
  Warnings& w = warnings();
  const std::lock_guard lock(w.mutex);
  if (w.handler) {
    w.handler(Warning{std::string(id), category, std::string(text)});
    return;
  }
  if (!w.printed.emplace(id).second && repeat == Repeat::no) return;
  std::fprintf(stderr, "%s: %.*s [%.*s]\n", category == WarningCategory::info ? "note" : "warning",
               static_cast<int>(text.size()), text.data(), static_cast<int>(id.size()), id.data());
}

Function<void(const Warning&)> set_warning_handler(Function<void(const Warning&)> handler) {
  Warnings& w = warnings();
  const std::lock_guard lock(w.mutex);
  std::swap(w.handler, handler);
  return handler;
}

}  // namespace levin
