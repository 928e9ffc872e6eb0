// What the launches of a thread read and write on simt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <string>
#include <vector>

#include "levin/op_info.h"

namespace levin::detail {

// Note [Launch ledger]
//
// While a LaunchLedger lives, each kernel and copy that its thread enqueues on simt is entered under the call of the op
// that launched it; blocking launches, which name ops, are on so long. Who makes one sets detail::mode().detour
// (levin/extend.h), as for blocking launches.
//
// A build with -Dledger=true also counts bytes. g++ compiles its kernels with -fsanitize=thread, which calls a function
// at each read and write of memory (kernels/simt/accesses.cpp); no part of ThreadSanitizer's own library is linked. All
// tensors on simt then lie in one range of addresses, of which each sector of 32 bytes has an entry. Registers, shared
// memory and constants lie outside of the range and are not counted.
//
//   read, written  bytes of the distinct sectors that a launch reads, writes: what it moves where a cache serves
//                  everything that one launch reads twice
//   asked          bytes of all reads and writes of its threads
//   least          of a call: the bytes that it reads before it has written them, and the bytes it writes that
//                  something else reads, or that nothing reads at all. So scratch memory, second passes by further
//                  launches, and bytes of a sector beside those that are used are not in it.
//
// Memory that was read before it was first written (parameters, states of optimizers) counts as read by something else.
struct LedgerLaunch {
  std::string place;  // "norm_device.cuh:152", the line that launched it
  std::int64_t read = 0, written = 0, asked = 0;
};
struct LedgerCall {
  std::string op;      // empty outside of ops (optimizers, copies): what is launched between two ops is one call
  std::string module;  // the path of the module whose call is under way
  std::vector<LedgerLaunch> launches{};
  std::int64_t least = 0;
};

class LaunchLedger {
 public:
  LaunchLedger();
  ~LaunchLedger();
  LaunchLedger(const LaunchLedger&) = delete;
  LaunchLedger& operator=(const LaunchLedger&) = delete;
  [[nodiscard]] std::size_t size() const { return calls_.size(); }  // calls that have launched something
  // Launches that follow outside of ops begin a call.
  void next_call() { outside_ = -1; }
  // The calls since the ledger was made or last asked, in order of their first launch. Outside of calls of ops.
  [[nodiscard]] std::vector<LedgerCall> take();
  // Whether this build counts bytes.
  [[nodiscard]] static bool counts_bytes() noexcept;

  // For the runtime: the ledger of this thread, and work that enters itself when it runs.
  [[nodiscard]] static LaunchLedger* of_thread() noexcept;
  [[nodiscard]] std::function<void()> entered(const std::source_location& where, std::function<void()> work);
  // For set_launching: a call of an op begins, or one that another interrupted goes on.
  void set_call(const Launching* now);

 private:
  struct Scope {
    const Launching* op;
    std::int64_t call;  // -1 until its first launch
  };
  std::size_t call_of_launch();

  std::uint32_t number_;
  LaunchLedger* outer_;
  bool blocking_before_;
  std::vector<LedgerCall> calls_{};
  std::vector<Scope> scopes_{};
  std::int64_t outside_ = -1;  // the call of launches outside of ops, between two ops
};

// Where bytes are counted: memory of simt from the ledger's range (null where there is none left), and its return.
[[nodiscard]] std::byte* ledger_allocate(std::size_t bytes);
void ledger_release(std::byte* block, std::size_t bytes) noexcept;
// A read or a write of memory by the launch that this thread runs. Nothing happens outside of launches and the range.
void ledger_read(const void* p, std::size_t bytes) noexcept;
void ledger_write(const void* p, std::size_t bytes) noexcept;

}  // namespace levin::detail
