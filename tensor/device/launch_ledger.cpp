#include "tensor/device/launch_ledger.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <mutex>
#include <utility>

#include "tensor/device/launching.h"
#include "tensor/device/runtime.h"

namespace levin::detail {
namespace {

thread_local LaunchLedger* ledger = nullptr;
std::uint32_t next_number() {
  static std::atomic<std::uint32_t> last{0};
  return ++last;
}

constexpr std::size_t kSector = 32;
constexpr std::size_t kRange = std::size_t{32} << 30;

// A sector's history within one ledger. Masks have a bit a byte.
struct Sector {
  std::uint32_t of = 0;                       // the ledger's number
  std::uint32_t read_by = 0, written_by = 0;  // the last launches, counted from 1 on
  std::uint32_t call = 0;                     // counted from 1 on: the call whose masks are
  std::uint32_t taken = 0, made = 0;          // bytes that it read before it wrote them; bytes that it wrote
  std::uint32_t maker = 0;                    // the call that wrote
  std::uint32_t open = 0;                     // these bytes, which no other call has read
  std::uint32_t reread = 0;                   // and of these those that `maker` read
  std::uint32_t written = 0, old = 0;         // bytes that anything wrote; that were read before anything wrote them
};

// Addresses of all memory of simt, and a Sector for each 32 bytes of them. The system backs neither until it is used.
struct Range {
  std::byte* begin = nullptr;
  Sector* sectors = nullptr;
  std::size_t used = 0;
  std::mutex mutex{};
  Range() {
    const auto reserve = [](std::size_t bytes) {
      void* const p =
          ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      return p == MAP_FAILED ? nullptr : p;
    };
    sectors = static_cast<Sector*>(reserve(kRange / kSector * sizeof(Sector)));
    if (sectors) begin = static_cast<std::byte*>(reserve(kRange));
  }
};
Range& range() {
  static auto* one = new Range;
  return *one;
}

// What the thread's launch adds up.
struct Counting {
  std::uint32_t of, launch, call;
  LedgerLaunch* sums;
  std::vector<LedgerCall>* calls;
  std::vector<std::size_t>* touched;
};
thread_local Counting counting{};
thread_local std::vector<std::size_t> touched;
thread_local std::uint32_t launches = 0;

void add_least(std::uint32_t call, std::uint32_t bytes) { (*counting.calls)[call - 1].least += std::popcount(bytes); }

template <bool kWrite>
void touch(std::size_t at, std::size_t bytes) {
  const Counting& now = counting;
  now.sums->asked += static_cast<std::int64_t>(bytes);
  for (const std::size_t end = at + bytes; at < end;) {
    const std::size_t index = at / kSector, from = at % kSector, n = std::min(end - at, kSector - from);
    const auto mask = static_cast<std::uint32_t>(((std::uint64_t{1} << n) - 1) << from);
    at += n;
    Sector& s = range().sectors[index];
    if (s.of != now.of) {
      s = Sector{.of = now.of};
      now.touched->push_back(index);
    }
    if (s.call != now.call) s.call = now.call, s.taken = s.made = 0;
    if constexpr (kWrite) {
      if (s.written_by != now.launch) s.written_by = now.launch, now.sums->written += std::int64_t{kSector};
      const std::uint32_t fresh = mask & ~s.made;
      s.made |= mask;
      s.written |= mask;
      add_least(now.call, fresh & s.old);  // a value that outlives the step
      if (s.maker != now.call) s.maker = now.call, s.open = s.reread = 0;
      s.open |= fresh & ~s.old;
    } else {
      if (s.read_by != now.launch) s.read_by = now.launch, now.sums->read += std::int64_t{kSector};
      const std::uint32_t fresh = mask & ~s.made & ~s.taken;
      s.taken |= fresh;
      s.old |= mask & ~s.written;
      add_least(now.call, fresh);
      if (s.maker == now.call) {
        s.reread |= mask & s.open;
      } else if (const std::uint32_t used = mask & s.open) {
        add_least(s.maker, used);
        s.open &= ~used;
      }
    }
  }
}

template <bool kWrite>
void touch(const void* p, std::size_t bytes) noexcept {
  if (!counting.sums) return;
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(p) - range().begin);
  if (offset < kRange) touch<kWrite>(offset, bytes);
}

}  // namespace

LaunchLedger::LaunchLedger()
    : number_(next_number()), outer_(std::exchange(ledger, this)), blocking_before_(blocking_launches()) {
  set_blocking_launches(true);
}
LaunchLedger::~LaunchLedger() {
  set_blocking_launches(blocking_before_);
  ledger = outer_;
  touched.clear();
}
LaunchLedger* LaunchLedger::of_thread() noexcept { return ledger; }

void LaunchLedger::set_call(const Launching* now) {
  while (!scopes_.empty() && scopes_.back().op != now) {
    const bool known = std::any_of(scopes_.begin(), scopes_.end(), [&](const Scope& s) { return s.op == now; });
    if (now && !known) break;
    scopes_.pop_back();
  }
  if (now && (scopes_.empty() || scopes_.back().op != now)) scopes_.push_back({now, -1});
  outside_ = -1;
}

std::size_t LaunchLedger::call_of_launch() {
  std::int64_t& call = scopes_.empty() ? outside_ : scopes_.back().call;
  if (call < 0) {
    call = static_cast<std::int64_t>(calls_.size());
    calls_.push_back({.op = scopes_.empty() ? "" : scopes_.back().op->op, .module = path_text(module_path_id())});
  }
  return static_cast<std::size_t>(call);
}

std::function<void()> LaunchLedger::entered(const std::source_location& where, std::function<void()> work) {
  return [number = number_, call = call_of_launch(), place = place_of(where), work = std::move(work)] {
    LaunchLedger* const of = ledger;
    if (!of || of->number_ != number) return work();
    LedgerCall& entry = of->calls_[call];
    entry.launches.push_back({.place = place});
    struct Scope {
      Scope(const Counting& now) { counting = now; }
      ~Scope() { counting = {}; }
    } const scope({.of = number,
                   .launch = ++launches,
                   .call = static_cast<std::uint32_t>(call + 1),
                   .sums = &entry.launches.back(),
                   .calls = &of->calls_,
                   .touched = &touched});
    work();
  };
}

std::vector<LedgerCall> LaunchLedger::take() {
  for (const std::size_t index : std::exchange(touched, {})) {
    const Sector& s = range().sectors[index];
    if (s.open != 0) calls_[s.maker - 1].least += std::popcount(s.open & ~s.reread);
  }
  number_ = next_number();  // work that still waits enters nothing
  next_call();
  return std::exchange(calls_, {});
}

bool LaunchLedger::counts_bytes() noexcept {
#if defined(LEVIN_LEDGER)
  return true;
#else
  return false;
#endif
}

// Addresses are used once: a Sector's history is that of one tensor.
std::byte* ledger_allocate(std::size_t bytes) {
  Range& r = range();
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t size = (bytes + page - 1) / page * page;
  const std::lock_guard lock(r.mutex);
  if (!r.begin || size > kRange - r.used) return nullptr;
  return r.begin + std::exchange(r.used, r.used + size);
}
void ledger_release(std::byte* block, std::size_t bytes) noexcept { (void)::madvise(block, bytes, MADV_DONTNEED); }
void ledger_read(const void* p, std::size_t bytes) noexcept { touch<false>(p, bytes); }
void ledger_write(const void* p, std::size_t bytes) noexcept { touch<true>(p, bytes); }

}  // namespace levin::detail
