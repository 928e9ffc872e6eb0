// The ledger of host waits: where the host waits for a device that launches kernels, how often and how long.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "levin/export.h"

namespace levin {

// What a wait beyond the budget causes: nothing, a record, a warning for each place, a StateError before the wait.
enum class SyncCheck : std::uint8_t { off, count, warn, forbid };

struct SyncRecord {
  std::string call;    // "item", "to", "synchronize"
  std::string where;   // "train.cpp:42": the user's line
  std::string module;  // "layers.0.fc1": the module whose call waited (levin/nn/call.h); empty outside of calls
  std::int64_t count = 0;
  std::int64_t charged = 0;  // of them, those that counted against a budget
  double seconds = 0;
};
// Copies between the host and a device that launches kernels, by direction, and copies between two devices of one kind
// (cuda:0 and cuda:1, cpu and cpu:1). A replayed graph's are not counted.
struct CopyCounts {
  std::int64_t to_device = 0, to_device_bytes = 0, to_host = 0, to_host_bytes = 0;
  std::int64_t between = 0, between_bytes = 0;
  CopyCounts& operator+=(const CopyCounts& o) {
    to_device += o.to_device;
    to_device_bytes += o.to_device_bytes;
    to_host += o.to_host;
    to_host_bytes += o.to_host_bytes;
    between += o.between;
    between_bytes += o.between_bytes;
    return *this;
  }
  friend CopyCounts operator-(const CopyCounts& a, const CopyCounts& b) {
    return {a.to_device - b.to_device, a.to_device_bytes - b.to_device_bytes,
            a.to_host - b.to_host,     a.to_host_bytes - b.to_host_bytes,
            a.between - b.between,     a.between_bytes - b.between_bytes};
  }
  friend bool operator==(const CopyCounts&, const CopyCounts&) = default;
};
[[nodiscard]] LEVIN_API CopyCounts copy_counts() noexcept;   // of copies that this thread has made or enqueued so far
[[nodiscard]] LEVIN_API std::int64_t host_waits() noexcept;  // of this thread so far, with and without guards

// Waits by place and module, in the order of the first wait of each. For one thread at a time.
class LEVIN_API SyncLedger {
 public:
  [[nodiscard]] const std::vector<SyncRecord>& records() const { return records_; }
  [[nodiscard]] std::int64_t count() const;  // of all waits
  [[nodiscard]] double seconds() const;
  void clear() { records_.clear(); }

 private:
  friend class SyncGuard;
  std::vector<SyncRecord> records_;
};

// While the guard lives, waits of this thread (item(), to_vector, printing, copies to the host, synchronize) go into
// `ledger`; the innermost guard counts. Calls on the cpu device do not wait and are not counted.
//
//   SyncLedger ledger;
//   const SyncGuard guard(ledger, SyncCheck::forbid);
//   loss.item();  // StateError: item (train.cpp:42): waits for the device, ...
//                 // inside of a module: in layers.0: item (...): ...
class LEVIN_API SyncGuard {
 public:
  // The first `budget` waits pass under every check; `count` and `off` ignore it.
  explicit SyncGuard(SyncLedger& ledger, SyncCheck check = SyncCheck::count, std::int64_t budget = 0);
  ~SyncGuard();
  SyncGuard(const SyncGuard&) = delete;
  SyncGuard& operator=(const SyncGuard&) = delete;

  // For the layers: the host is about to wait at this place (StateError when it must not), and has waited.
  static void about_to_wait(const char* call, const char* file, std::int64_t line);
  static void has_waited(double seconds) noexcept;
  [[nodiscard]] static bool watching() noexcept;

 private:
  SyncGuard* before_;
  SyncLedger* ledger_;
  SyncCheck check_;
  std::int64_t budget_;
  std::size_t at_ = 0;  // the record of the present wait
};

}  // namespace levin
