#include "comm/group/lane.h"

#include <system_error>
#include <utility>

namespace levin::dist {
namespace {

struct Range {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
};
Range range_of(const Tensor& t) {
  if (!t.defined()) return {};
  const levin::detail::TensorImpl& p = t.get();
  const std::byte* const begin = p.storage->data + p.offset * static_cast<std::int64_t>(itemsize(p.dtype));
  return {begin, begin + p.shape.numel() * static_cast<std::int64_t>(itemsize(p.dtype))};
}
bool overlap(Range a, Range b) { return a.begin < b.end && b.begin < a.end; }

}  // namespace

bool HostWork::meets(const HostWork& earlier) const {
  // A send writes nothing: its `out_` is undefined.
  const Range out = range_of(out_), in = range_of(in_);
  const Range other_out = range_of(earlier.out_), other_in = range_of(earlier.in_);
  return overlap(out, other_out) || overlap(out, other_in) || overlap(in, other_out);
}

void HostWork::wait() {
  if (!done()) lane_->wait(*this);
  if (error_) std::rethrow_exception(error_);
}

Lane::~Lane() { close(); }

void Lane::collect(const HostWork& work, std::vector<std::shared_ptr<HostWork>>& out) {
  const std::lock_guard lock(mutex_);
  for (const auto& earlier : pending_) {
    if (work.meets(*earlier)) out.push_back(earlier);
  }
}

void Lane::add(const std::shared_ptr<HostWork>& work, std::vector<std::shared_ptr<HostWork>> after, RunsOn where) {
  work->after_ = std::move(after);
  {
    const std::lock_guard lock(mutex_);
    if (where == RunsOn::thread && !thread_.joinable()) {
      try {
        thread_ = std::thread([this] { loop(); });
      } catch (const std::system_error&) {
        // Without a thread the works run in the waits.
      }
    }
    pending_.push_back(work);
  }
  // A thread that wakes finds the lock free.
  if (where == RunsOn::thread) changed_.notify_all();
}

void Lane::run_next(std::unique_lock<std::mutex>& lock) {
  busy_ = true;
  const std::shared_ptr<HostWork> work = pending_.front();
  lock.unlock();
  try {
    for (const auto& earlier : work->after_) {
      if (!earlier->done()) earlier->lane_->wait(*earlier);
    }
    run_(work->task_);
  } catch (...) { work->error_ = std::current_exception(); }
  lock.lock();
  Tensor out = std::exchange(work->out_, {}), in = std::exchange(work->in_, {});
  const std::vector<std::shared_ptr<HostWork>> after = std::exchange(work->after_, {});
  pending_.pop_front();
  busy_ = false;
  work->done_.store(true, std::memory_order_release);
  changed_.notify_all();
  lock.unlock();  // the tensors go without the lock
  out = {};
  in = {};
  lock.lock();
}

void Lane::wait(HostWork& work) {
  std::unique_lock lock(mutex_);
  while (!work.done()) {
    if (busy_) {
      changed_.wait(lock, [&] { return work.done() || !busy_; });
    } else {
      run_next(lock);
    }
  }
}

void Lane::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return pending_.empty() ? closing_ : !busy_; });
    if (pending_.empty()) return;
    run_next(lock);
  }
}

void Lane::close() noexcept {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  std::unique_lock lock(mutex_);
  while (!pending_.empty()) run_next(lock);
}

}  // namespace levin::dist
