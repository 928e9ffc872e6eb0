#include "comm/job/alarm.h"

#include <doctest/doctest.h>

#include <condition_variable>
#include <thread>

#include "comm/job/note.h"
#include "levin/error.h"

namespace levin::dist {
namespace {

TEST_CASE("an alarm keeps its first verdict, and wakes each waiter once") {
  Alarm alarm;
  CHECK_FALSE(alarm.raised());
  CHECK_NOTHROW(alarm.check());
  int first = 0, second = 0, removed = 0;
  alarm.add([&] { ++first; });
  alarm.add([&] {
    ++second;
    CHECK(alarm.verdict().rank == 2);  // a waker may read the verdict
  });
  alarm.remove(alarm.add([&] { ++removed; }));
  alarm.raise({.kind = Verdict::Kind::lost, .rank = 2, .text = "rank 2 was lost"});
  alarm.raise({.kind = Verdict::Kind::failed, .rank = 1, .text = "rank 1 failed"});
  CHECK(first == 1);
  CHECK(second == 1);
  CHECK(removed == 0);
  CHECK(alarm.verdict().kind == Verdict::Kind::lost);
  CHECK_THROWS_WITH_AS(alarm.check(), "rank 2 was lost", CommError);
  int late = 0;
  alarm.remove(alarm.add([&] { ++late; }));
  CHECK(late == 1);
}

TEST_CASE("removing a waker waits for its call, and works within the call") {
  Alarm alarm;
  std::mutex mutex;
  std::condition_variable changed;
  bool entered = false, release = false, done = false;
  const std::uint64_t id = alarm.add([&] {
    std::unique_lock lock(mutex);
    entered = true;
    changed.notify_all();
    changed.wait(lock, [&] { return release; });
    done = true;
  });
  std::uint64_t own = 0;
  own = alarm.add([&] { alarm.remove(own); });
  std::thread raiser([&] { alarm.raise({.kind = Verdict::Kind::aborted, .text = "end"}); });
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return entered; });
  }
  std::thread remover([&] {
    alarm.remove(id);
    const std::lock_guard lock(mutex);
    CHECK(done);
  });
  {
    const std::lock_guard lock(mutex);
    release = true;
    changed.notify_all();
  }
  remover.join();
  raiser.join();
}

TEST_CASE("a note is read as it was written, while two threads write it") {
  Note note;
  std::atomic<bool> stop{false};
  std::thread trains([&] {
    for (std::int64_t step = 0; !stop; ++step) {
      note.set_phase(step % 2 == 0 ? Phase::forward : Phase::backward);
      note.set_step(step);
    }
  });
  std::thread waits([&] {
    for (std::uint64_t entry = 1; !stop; ++entry) {
      note.enter_wait(entry, entry + 7);
      note.leave_wait();
    }
  });
  double waited = 0;
  for (int i = 0; i < 20000; ++i) {
    const Note::Copy copy = note.read();
    const bool site_of_entry = copy.site == 0 || copy.site == copy.entry + 7;
    if (!site_of_entry || copy.waited < waited) FAIL("a torn note: entry " << copy.entry << ", site " << copy.site);
    waited = copy.waited;
  }
  stop = true;
  trains.join();
  waits.join();
  note.set_phase(Phase::save);
  note.set_step(41);
  const Note::Copy copy = note.read();
  CHECK(copy.phase == Phase::save);
  CHECK(copy.step == 41);
  CHECK(copy.site == 0);
  CHECK(copy.since <= steady_seconds());
}

}  // namespace
}  // namespace levin::dist
