// Which launches share counters.
#include "tensor/device/tickets.h"

#include <doctest/doctest.h>

#include <optional>
#include <set>
#include <vector>

#include "levin/error.h"
#include "levin/levin.h"
#include "tests/device.h"
using namespace levin;
using detail::tickets;

TEST_CASE("a device's streams have counters of their own, and so has each stream of a recorded graph") {
  DEVICE_OR_SKIP();
  const Stream first = Stream::current(device), second = Stream::next_of(device);
  const unsigned* const eager = tickets(first);
  CHECK(tickets(first) == eager);
  std::set<const unsigned*> all{eager, tickets(second)};
  CHECK(all.size() == 2);
  const auto record = [&] {
    return Graph(first, [&] {
      const Stream own = Stream::current(device);
      all.insert(tickets(own));
      CHECK(tickets(first.index() == own.index() ? own : first) == tickets(own));
      CHECK(tickets(second) != tickets(own));  // not recorded yet: its launches run now
      const unsigned* const before = tickets(second);
      second.wait(own);
      CHECK(tickets(second) != before);
      all.insert(tickets(second));
      own.wait(second);
    });
  };
  std::optional<Graph> one = record();
  CHECK(all.size() == 4);
  const Graph two = record();
  CHECK(all.size() == 6);
  one.reset();
  const Graph three = record();  // serves itself from what the first had
  CHECK(all.size() == 6);
  CHECK(tickets(first) == eager);
  CHECK(tickets(second) != nullptr);
}

TEST_CASE("a recording on a device with more streams than it has counters for is a CaptureError") {
  DEVICE_OR_SKIP();
  const Stream first = Stream::current(device);
  const auto fork = [&](int streams) {
    return Graph(first, [&] {
      const Stream own = Stream::current(device);
      (void)tickets(own);
      std::vector<Stream> forked;
      for (int i = 1; i < streams; ++i) {
        forked.push_back(Stream::next_of(device));
        forked.back().wait(own);
      }
      for (const Stream& s : forked) own.wait(s);
      for (const Stream& s : forked) (void)tickets(s);
    });
  };
  CHECK_NOTHROW(fork(detail::kRecordedStreams));
  CHECK_THROWS_WITH_AS(fork(detail::kRecordedStreams + 1),
                       doctest::Contains("more than 8 streams are recorded together"), CaptureError);
}
