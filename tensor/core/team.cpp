#include "tensor/core/team.h"

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "levin/error.h"
#include "tensor/core/thread_modes.h"

namespace levin::detail {

struct Team::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  const Function<void(int)>* body = nullptr;
  ThreadModes modes;
  std::uint64_t round = 0;
  int running = 0;  // threads that have not ended the round
  bool over = false;
  std::vector<std::exception_ptr> errors;
  std::vector<std::thread> threads;

  void one(int member, const Function<void(int)>& call) noexcept {
    try {
      call(member);
    } catch (...) { errors[static_cast<std::size_t>(member)] = std::current_exception(); }
  }
  void serve(int member) {
    for (std::uint64_t done = 0;; ++done) {
      const Function<void(int)>* call = nullptr;
      ThreadModes with;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return over || round != done; });
        if (over) return;
        call = body;
        with = modes;
      }
      {
        const ThreadModesScope scope(with);
        one(member, *call);
      }
      const std::lock_guard lock(mutex);
      if (--running == 0) changed.notify_all();
    }
  }
  void end() {
    {
      const std::lock_guard lock(mutex);
      over = true;
    }
    changed.notify_all();
    for (std::thread& t : threads) t.join();
  }
};

Team::Team(int size) : shared_(std::make_unique<Shared>()) {
  shared_->errors.resize(static_cast<std::size_t>(size));
  shared_->threads.reserve(static_cast<std::size_t>(size));
  try {
    for (int k = 1; k < size; ++k) shared_->threads.emplace_back([s = shared_.get(), k] { s->serve(k); });
  } catch (const std::system_error& e) {
    shared_->end();
    fail<StateError>("Team: the system gives no thread for member ", shared_->threads.size() + 1, " of ", size, ": ",
                     e.what());
  }
}
Team::~Team() { shared_->end(); }
int Team::size() const { return static_cast<int>(shared_->errors.size()); }

void Team::run(const Function<void(int)>& body) {
  Shared& s = *shared_;
  for (std::exception_ptr& e : s.errors) e = nullptr;
  {
    const std::lock_guard lock(s.mutex);
    s.body = &body;
    s.modes = thread_modes();
    s.running = size() - 1;
    ++s.round;
  }
  s.changed.notify_all();
  s.one(0, body);
  {
    std::unique_lock lock(s.mutex);
    s.changed.wait(lock, [&] { return s.running == 0; });
  }
  for (const std::exception_ptr& e : s.errors) {
    if (e) std::rethrow_exception(e);
  }
}

}  // namespace levin::detail
