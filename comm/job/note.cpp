#include "comm/job/note.h"

#include <chrono>

namespace levin::dist {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// A sequence lock over atomics. ThreadSanitizer knows no fences, so the data is stored with release and loaded with
// acquire: free on x86.
constexpr auto kStore = std::memory_order_release;
constexpr auto kLoad = std::memory_order_acquire;

template <class Body>
void write(std::atomic<std::uint32_t>& sequence, const Body& body) {
  const std::uint32_t before = sequence.load(kRelaxed);
  sequence.store(before + 1, kRelaxed);
  body();  // release: no store of the body comes before the odd number
  sequence.store(before + 2, kStore);
}

template <class Body>
void read(const std::atomic<std::uint32_t>& sequence, const Body& body) {
  for (;;) {
    const std::uint32_t before = sequence.load(kLoad);
    body();  // acquire: the second load of the number comes after it
    if (before % 2 == 0 && sequence.load(kRelaxed) == before) return;
  }
}

}  // namespace

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::rendezvous: return "rendezvous";
    case Phase::setup: return "setup";
    case Phase::loop: return "loop";
    case Phase::data: return "data";
    case Phase::forward: return "forward";
    case Phase::backward: return "backward";
    case Phase::collective: return "collective";
    case Phase::optimizer: return "optimizer";
    case Phase::hooks: return "hooks";
    case Phase::validation: return "validation";
    case Phase::save: return "save";
    case Phase::logging: return "logging";
    case Phase::exit: return "exit";
    case Phase::idle: return "idle";
  }
  return "unknown";
}

double steady_seconds() noexcept {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Note::set(Phase phase, std::int64_t completed) noexcept {
  write(run_sequence_, [&] {
    phase_.store(phase, kStore);
    step_.store(completed, kStore);
    since_.store(steady_seconds(), kStore);
  });
}

void Note::set_phase(Phase phase) noexcept {
  write(run_sequence_, [&] {
    phase_.store(phase, kStore);
    since_.store(steady_seconds(), kStore);
  });
}

void Note::set_step(std::int64_t completed) noexcept {
  write(run_sequence_, [&] {
    step_.store(completed, kStore);
    since_.store(steady_seconds(), kStore);
  });
}

void Note::enter_wait(std::uint64_t entry, std::uint64_t site) noexcept {
  write(wait_sequence_, [&] {
    entry_.store(entry, kStore);
    site_.store(site, kStore);
    wait_since_.store(steady_seconds(), kStore);
  });
}

void Note::leave_wait() noexcept {
  write(wait_sequence_, [&] {
    const double now = steady_seconds();
    if (site_.load(kRelaxed) != 0) waited_.store(waited_.load(kRelaxed) + now - wait_since_.load(kRelaxed), kStore);
    site_.store(0, kStore);
    wait_since_.store(now, kStore);
  });
}

Note::Copy Note::read() const noexcept {
  Copy out;
  dist::read(run_sequence_, [&] {
    out.phase = phase_.load(kLoad);
    out.step = step_.load(kLoad);
    out.since = since_.load(kLoad);
  });
  dist::read(wait_sequence_, [&] {
    out.entry = entry_.load(kLoad);
    out.site = site_.load(kLoad);
    out.wait_since = wait_since_.load(kLoad);
    out.waited = waited_.load(kLoad);
  });
  return out;
}

}  // namespace levin::dist
