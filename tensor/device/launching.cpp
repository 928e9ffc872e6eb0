#include "tensor/device/launching.h"

#include <atomic>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "levin/error.h"
#include "levin/tensor.h"
#include "tensor/device/launch_ledger.h"
#include "tensor/device/runtime.h"
#include "tensor/errors/rethrow.h"

namespace levin::detail {
namespace {

bool asked() {
  for (const char* name : {"LEVIN_LAUNCH_BLOCKING", "CUDA_LAUNCH_BLOCKING"}) {
    const char* value = std::getenv(name);
    if (value && *value && std::string_view(value) != "0") return true;
  }
  return false;
}
std::atomic<bool>& blocking() {
  static std::atomic<bool> on{asked()};
  return on;
}
thread_local const Launching* launching = nullptr;
thread_local const ModuleCall* module_call = nullptr;

// Paths by their numbers, and numbers by paths.
struct Paths {
  std::mutex mutex;
  std::deque<std::string> texts{""};  // references stay valid
  std::map<std::string_view, std::uint32_t> ids{{"", 0}};
};
Paths& paths() {
  static auto* all = new Paths;  // never destroyed: errors of static destructors use it
  return *all;
}

// "add (f32 [2, 3] on cuda:0, f32 [3] on cuda:0), launched at pointwise.cuh:159: "
std::string origin(const std::source_location& where) {
  std::string out = "launch";
  if (const Launching* now = launching) {
    out = std::string(now->op) + " (";
    for (std::size_t i = 0; i < now->count; ++i) {
      out += (i ? ", " : "") + (now->inputs[i].defined() ? text(now->inputs[i]) : std::string("none"));
    }
    out += ")";
  }
  return out + ", launched at " + place_of(where) + ": ";
}

[[gnu::cold, gnu::noinline]] void wait_here(Stream stream, const std::source_location& where) {
  try {
    wait_for(stream, "launch");
  } catch (const Error&) { rethrow_named<IndexError, ConfigError, CudaError, InternalError>(origin(where)); }
}

}  // namespace

bool blocking_launches() noexcept { return blocking().load(std::memory_order_relaxed); }
void set_blocking_launches(bool on) noexcept { blocking() = on; }
const Launching* set_launching(const Launching* now) noexcept {
#if defined(LEVIN_SIMT)
  if (LaunchLedger* const ledger = LaunchLedger::of_thread()) ledger->set_call(now);
#endif
  return std::exchange(launching, now);
}
const ModuleCall* set_module_call(const ModuleCall* now) noexcept { return std::exchange(module_call, now); }
std::uint32_t module_path_id() noexcept { return module_call ? module_call->path : 0; }

std::uint32_t path_id(const std::string& path) {
  Paths& all = paths();
  const std::lock_guard lock(all.mutex);
  const auto known = all.ids.find(path);
  if (known != all.ids.end()) return known->second;
  const auto id = static_cast<std::uint32_t>(all.texts.size());
  all.texts.push_back(path);
  all.ids.emplace(all.texts.back(), id);
  return id;
}
const std::string& path_text(std::uint32_t id) noexcept {
  Paths& all = paths();
  const std::lock_guard lock(all.mutex);
  return all.texts[id];
}

void launched(Stream stream, const std::source_location& where) {
  if (blocking_launches() && !is_capturing(stream.device())) [[unlikely]]
    wait_here(stream, where);
}

std::string late_error_hint(int code) {
  if (code < 700 || code > 719 || blocking_launches()) return "";
  return "; the origin may be an earlier launch, LEVIN_LAUNCH_BLOCKING=1 in the environment finds it";
}

bool breaks_recording(int code) noexcept {
  return code >= 900 && code <= 908;  // cudaErrorStreamCaptureUnsupported to cudaErrorStreamCaptureWrongThread
}

std::string place_of(const std::source_location& where) {
  const std::string_view path = where.file_name();
  return std::string(path.substr(path.rfind('/') + 1)) + ":" + std::to_string(where.line());
}

}  // namespace levin::detail
