#include "levin/sync.h"

#include <algorithm>

#include "levin/error.h"
#include "levin/warning.h"
#include "tensor/core/counted.h"
#include "tensor/device/launching.h"

namespace levin {
namespace {
thread_local SyncGuard* innermost = nullptr;
thread_local CopyCounts copies;
thread_local std::int64_t waits = 0;
}  // namespace

CopyCounts copy_counts() noexcept { return copies; }
std::int64_t host_waits() noexcept { return waits; }
void detail::count_wait() noexcept { ++waits; }
void detail::count_copy(runtime::Copy kind, std::size_t bytes) noexcept {
  const auto n = static_cast<std::int64_t>(bytes);
  if (kind == runtime::Copy::to_device) copies += {.to_device = 1, .to_device_bytes = n};
  if (kind == runtime::Copy::to_host) copies += {.to_host = 1, .to_host_bytes = n};
  if (kind == runtime::Copy::within) copies += {.between = 1, .between_bytes = n};
}

std::int64_t SyncLedger::count() const {
  std::int64_t n = 0;
  for (const SyncRecord& r : records_) n += r.count;
  return n;
}
double SyncLedger::seconds() const {
  double s = 0;
  for (const SyncRecord& r : records_) s += r.seconds;
  return s;
}

SyncGuard::SyncGuard(SyncLedger& ledger, SyncCheck check, std::int64_t budget)
    : before_(innermost), ledger_(&ledger), check_(check), budget_(budget) {
  innermost = this;
}
SyncGuard::~SyncGuard() { innermost = before_; }

bool SyncGuard::watching() noexcept { return innermost && innermost->check_ != SyncCheck::off; }

void SyncGuard::about_to_wait(const char* call, const char* file, std::int64_t line) {
  SyncGuard& guard = *innermost;
  const std::string_view source = file;
  const std::string where =
      source.empty() ? std::string() : std::string(source.substr(source.rfind('/') + 1)) + ":" + std::to_string(line);
  const bool charged = guard.check_ == SyncCheck::warn || guard.check_ == SyncCheck::forbid;
  const bool over = charged && guard.budget_ <= 0;
  const std::string& path = detail::path_text(detail::module_path_id());
  const std::string line_of = std::string(call) + (where.empty() ? "" : " (" + where + ")");
  if (over && guard.check_ == SyncCheck::forbid)
    fail<StateError>(line_of,
                     ": waits for the device, and no wait is left in the budget; keep the value on the device (log it, "
                     "detach() it), or raise sync_budget");
  if (over)
    warn("W-SYNC-" + line_of, WarningCategory::user,
         line_of + (path.empty() ? "" : " in " + path) +
             ": waits for the device; keep the value on the device, for example by log()");
  if (charged) --guard.budget_;
  std::vector<SyncRecord>& records = guard.ledger_->records_;
  const auto it = std::find_if(records.begin(), records.end(), [&](const SyncRecord& r) {
    return r.call == call && r.where == where && r.module == path;
  });
  guard.at_ = static_cast<std::size_t>(it - records.begin());
  if (it == records.end()) records.push_back({.call = call, .where = where, .module = path});
  records[guard.at_].count += 1;
  records[guard.at_].charged += charged ? 1 : 0;
}

void SyncGuard::has_waited(double seconds) noexcept { innermost->ledger_->records_[innermost->at_].seconds += seconds; }

}  // namespace levin
