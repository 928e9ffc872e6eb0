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
// how far each stream was read, also without in_order, and a resume skips that many batches of each. Two threads may
// finish two batches of a stream in either order. A finished batch waits until those before it in its stream were
// handed out. A state that other numbers of workers left may lack some between a stream's first ones. A resume passes
// over those that were handed out, wherever they lie.
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
  // With the caller's lock held: whether all batches before batch `position` of its stream were handed out.
  [[nodiscard]] bool is_due(std::int64_t position) const {
    return due_[static_cast<std::size_t>(position % count_)] == position / count_;
  }
  // With the caller's lock held: batch `position` was handed out, or left out because it has no samples.
  void handed_out(std::int64_t position, std::int64_t samples);
  // The number of the first sample of batch `position`.
  [[nodiscard]] std::int64_t number(std::int64_t position) const { return (position * world_ + rank_) * batch_size_; }
  [[nodiscard]] bool all_ended() const { return ended_ == count_; }
  [[nodiscard]] bool all_handed_out() const { return all_ended() && left_ == 0; }

 private:
  struct One {
    std::mutex mutex;
    std::condition_variable turn;
    std::int64_t next = 0;  // the batch of this stream to be read
    std::int64_t at = 0;    // the batch that `samples` stand before
    std::unique_ptr<SampleStream> samples;
    bool ended = false;
    std::int64_t failed = std::numeric_limits<std::int64_t>::max();  // the first batch whose load threw
  };
  void open(One& one, const WorkerInfo& info);
  void pass_over(One& one, int id, std::int64_t batch);  // up to `batch`
  // Of stream `id`: the first batch from `batch` on that the state had not handed out; how many such are in a range.
  [[nodiscard]] std::int64_t to_come(std::int64_t id, std::int64_t batch) const;
  [[nodiscard]] std::int64_t to_come(std::int64_t id, std::int64_t begin, std::int64_t end) const;
  [[nodiscard]] std::optional<Sample> next(One& one, std::int64_t index);

  IterableDatasetRef of_;
  std::int64_t batch_size_, count_, epoch_;
  int rank_, world_;
  bool drop_last_;
  Generator generator_;
  std::vector<std::int64_t> ahead_;  // of the state that the loop began with
  EpochRandom random_;
  std::unique_ptr<One[]> all_;
  // Under the lock of the pass: batches that each stream still gives, -1 until it has ended; the batch of each that is
  // to be handed out next; how many have ended.
  std::vector<std::int64_t> first_, end_, due_;
  std::int64_t ended_ = 0, left_ = 0;  // left_: batches of ended streams, less those handed out
};

}  // namespace levin::data
