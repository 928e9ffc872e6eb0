// Counters that kernels count blocks with.
#pragma once

#include "levin/stream.h"

namespace levin::detail {

// Note [Tickets]
//
// Kernels whose last block finishes (kernels/device/last_block.cuh) count blocks in tickets: kTickets counters in
// memory of the device, 0 between launches. A stream runs one launch after another, so its launches share one set. A
// recorded graph has sets of its own, one for each stream that is recorded with it: its replays may run beside later
// work of these streams. The sets of a graph that has ended serve the next graph. On simt threads run what they enqueue
// on one stream side by side, so there each thread has its sets.
inline constexpr int kTickets = 256;

// The set of launches on the stream, by the calling thread. Throws OutOfMemoryError, and CaptureError when a graph is
// recorded on more than kRecordedStreams streams.
[[nodiscard]] unsigned* tickets(Stream stream);

inline constexpr int kRecordedStreams = 8;
// The sets of a graph.
class RecordedTickets {
 public:
  explicit RecordedTickets(Device device);
  ~RecordedTickets();  // when no replay runs
  RecordedTickets(const RecordedTickets&) = delete;
  RecordedTickets& operator=(const RecordedTickets&) = delete;
  [[nodiscard]] unsigned* of(const void* stream);

 private:
  Device device_;
  unsigned* counters_;
  const void* streams_[kRecordedStreams] = {};
  int used_ = 0;
};
// The calling thread's recording on the device: its sets and its queue. Null: none.
void set_recorded_tickets(Device device, RecordedTickets* sets, const void* queue) noexcept;

}  // namespace levin::detail
