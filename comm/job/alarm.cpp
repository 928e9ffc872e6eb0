#include "comm/job/alarm.h"

#include <algorithm>

#include "levin/error.h"

namespace levin::dist {

const char* name_of(Verdict::Kind kind) {
  switch (kind) {
    case Verdict::Kind::none: return "none";
    case Verdict::Kind::lost: return "lost";
    case Verdict::Kind::silent: return "silent";
    case Verdict::Kind::stuck: return "stuck";
    case Verdict::Kind::failed: return "failed";
    case Verdict::Kind::mismatch: return "mismatch";
    case Verdict::Kind::aborted: return "aborted";
  }
  return "unknown";
}

void Alarm::raise(Verdict verdict) noexcept {
  std::unique_lock lock(mutex_);
  if (raised()) return;
  verdict_ = std::move(verdict);
  caller_ = std::this_thread::get_id();
  raised_.store(true, std::memory_order_release);
  // Outside of the lock, so that a waker may ask for the verdict.
  while (!wakers_.empty()) {
    const auto [id, wake] = std::move(wakers_.back());
    wakers_.pop_back();
    calling_ = id;
    lock.unlock();
    try {
      wake();
    } catch (...) {  // no caller is there to tell that a waker failed
    }
    lock.lock();
    calling_ = 0;
    called_.notify_all();
  }
}

Verdict Alarm::verdict() const {
  const std::lock_guard lock(mutex_);
  return verdict_;
}

void Alarm::check() const {
  if (raised()) fail<CommError>(verdict().text);
}

std::uint64_t Alarm::add(Function<void()> wake) {
  {
    const std::lock_guard lock(mutex_);
    if (!raised()) {
      wakers_.emplace_back(next_, std::move(wake));
      return next_++;
    }
  }
  wake();
  return 0;
}

void Alarm::remove(std::uint64_t id) noexcept {
  if (id == 0) return;
  std::unique_lock lock(mutex_);
  std::erase_if(wakers_, [&](const auto& waker) { return waker.first == id; });
  if (calling_ == id && caller_ == std::this_thread::get_id()) return;
  called_.wait(lock, [&] { return calling_ != id; });
}

}  // namespace levin::dist
