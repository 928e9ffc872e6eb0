// The streams of one epoch of a loader over an IterableDataset.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "levin/data.h"

namespace levin::data {

// Note [Batches of streams]
// A loader with W workers reads W streams, and one without workers reads 1. Batch p of the epoch is batch p / W of
// stream p % W, so position and stream follow from each other, also after some streams have ended: their positions then
// have no batch (Batch::absent). The positions of a stream that were handed out are its first ones. So LoaderState says
// how far each stream was read, also without in_order, and a resume skips that many batches of each.
//
// Any thread reads any stream, one thread at a time in the order of batches. Sample j of batch p has the number
// (p * world + rank) * batch_size + j, where rank and world are the process's. The number is its index in
// Batch::indices, and its random numbers follow from it. Where streams give the samples that WorkerInfo::owns names, it
// is the sample's place in the whole data.
class Streams {
 public:
  Streams(IterableDatasetRef of, const DataLoaderOptions& options, const LoaderState& from);

  [[nodiscard]] std::int64_t count() const { return count_; }
  // The samples of batch `position`, none after its stream has ended. Waits for the batch before it in the stream,
  // which another thread has begun. Behind a batch that failed: none.
  [[nodiscard]] std::vector<Sample> read(std::int64_t position);
  // The load of batch `position` threw, before, in or after read: later batches of its stream do not wait for it.
  void fail(std::int64_t position);
  // With the caller's lock held: batch `position` was loaded, `samples` of them.
  void loaded(std::int64_t position, std::int64_t samples);
  void handed_out() { --left_; }
  // The number of the first sample of batch `position`.
  [[nodiscard]] std::int64_t number(std::int64_t position) const { return (position * world_ + rank_) * batch_size_; }
  [[nodiscard]] bool all_ended() const { return ended_ == count_; }
  [[nodiscard]] bool all_handed_out() const { return all_ended() && left_ == 0; }

 private:
  struct One {
    std::mutex mutex;
    std::condition_variable turn;
    std::int64_t next = 0;  // the batch of this stream to be read
    std::unique_ptr<SampleStream> samples;
    bool ended = false;
    std::int64_t failed = std::numeric_limits<std::int64_t>::max();  // the first batch whose load threw
  };
  void open(One& one, const WorkerInfo& info, std::int64_t position);
  [[nodiscard]] std::optional<Sample> next(One& one, std::int64_t index);

  IterableDatasetRef of_;
  std::int64_t batch_size_, count_, epoch_;
  int rank_, world_;
  bool drop_last_;
  Generator generator_;
  EpochRandom random_;
  std::unique_ptr<One[]> all_;
  // Under the lock of the pass: batches that each stream still gives, -1 until it has ended; how many have ended.
  std::vector<std::int64_t> first_, end_;
  std::int64_t ended_ = 0, left_ = 0;  // left_: batches of ended streams, less those handed out
};

}  // namespace levin::data
