#include "data/loader_streams.h"

#include <algorithm>
#include <utility>

#include "data/errors.h"

namespace levin::data {
namespace {

thread_local const WorkerInfo* reading = nullptr;  // what worker_info() gives

class Reading {
 public:
  explicit Reading(const WorkerInfo& info) : before_(std::exchange(reading, &info)) {}
  ~Reading() { reading = before_; }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  const WorkerInfo* before_;
};

}  // namespace

SampleStream::~SampleStream() = default;
bool SampleStream::skip(std::int64_t) { return false; }
IterableDataset::~IterableDataset() = default;
std::optional<std::int64_t> IterableDataset::size() const { return std::nullopt; }
bool IterableDataset::endless() const { return false; }
std::optional<WorkerInfo> worker_info() { return reading ? std::optional(*reading) : std::nullopt; }

Streams::Streams(IterableDatasetRef of, const DataLoaderOptions& options, const LoaderState& from)
    : of_(std::move(of)),
      batch_size_(options.batch_size.value_or(1)),
      count_(std::max(1, options.num_workers)),
      epoch_(from.epoch),
      rank_(options.rank),
      world_(options.world),
      drop_last_(options.drop_last),
      generator_(options.generator),
      ahead_(from.ahead),
      random_(options.generator, from.epoch),
      all_(new One[static_cast<std::size_t>(count_)]),
      first_(static_cast<std::size_t>(count_)),
      end_(static_cast<std::size_t>(count_), -1) {
  for (std::int64_t w = 0; w < count_; ++w) {
    const auto at = static_cast<std::size_t>(w);
    all_[at].next = first_[at] = to_come(w, (from.batch - w + count_ - 1) / count_);
  }
  due_ = first_;
}

std::optional<Sample> Streams::next(One& one, std::int64_t index) {
  Generator rng = random_.sample(index);
  try {
    return one.samples->next(rng);
  } catch (...) { rethrow_with("; reading sample " + text(index) + " of epoch " + text(epoch_)); }
}

void Streams::open(One& one, const WorkerInfo& info) {
  one.samples = of_->stream(info);
  if (!one.samples)
    levin::fail<DataError>("loader: stream() returned null for reader ", info.id, ", expected a SampleStream");
}

void Streams::pass_over(One& one, int id, std::int64_t batch) {
  const std::int64_t batches = batch - one.at;
  if (batches == 0 || one.samples->skip(batches * batch_size_)) return;
  for (std::int64_t b = one.at; b < batch; ++b) {
    for (std::int64_t j = 0; j < batch_size_; ++j) {
      if (next(one, number(b * count_ + id) + j)) continue;
      one.ended = true;
      return;
    }
  }
}

std::int64_t Streams::to_come(std::int64_t id, std::int64_t batch) const {
  while (std::binary_search(ahead_.begin(), ahead_.end(), batch * count_ + id)) ++batch;
  return batch;
}

std::int64_t Streams::to_come(std::int64_t id, std::int64_t begin, std::int64_t end) const {
  return end - begin - std::count_if(ahead_.begin(), ahead_.end(), [&](std::int64_t p) {
           return p % count_ == id && begin <= p / count_ && p / count_ < end;
         });
}

std::vector<Sample> Streams::read(std::int64_t position) {
  const std::int64_t id = position % count_;
  One& one = all_[static_cast<std::size_t>(id)];
  std::unique_lock lock(one.mutex);
  one.turn.wait(lock, [&] { return one.failed < position / count_ || one.next == position / count_; });
  std::vector<Sample> samples;
  if (one.failed < position / count_) return samples;
  const WorkerInfo info{.id = static_cast<int>(id),
                        .num_workers = static_cast<int>(count_),
                        .seed = generator_.seed(),
                        .epoch = epoch_,
                        .batch_size = batch_size_,
                        .rank = rank_,
                        .world = world_};
  const Reading scope(info);
  if (!one.ended && !one.samples) open(one, info);
  if (!one.ended) pass_over(one, info.id, position / count_);
  while (!one.ended && static_cast<std::int64_t>(samples.size()) < batch_size_) {
    std::optional<Sample> s = next(one, number(position) + static_cast<std::int64_t>(samples.size()));
    if (s)
      samples.push_back(std::move(*s));
    else
      one.ended = true;
  }
  if (drop_last_ && static_cast<std::int64_t>(samples.size()) < batch_size_) samples.clear();
  one.at = position / count_ + 1;
  one.next = to_come(id, one.at);
  one.turn.notify_all();
  return samples;
}

void Streams::fail(std::int64_t position) {
  One& one = all_[static_cast<std::size_t>(position % count_)];
  const std::lock_guard lock(one.mutex);
  one.failed = std::min(one.failed, position / count_);
  one.turn.notify_all();
}

void Streams::handed_out(std::int64_t position, std::int64_t samples) {
  due_[static_cast<std::size_t>(position % count_)] = to_come(position % count_, position / count_ + 1);
  left_ -= samples > 0;
}

void Streams::loaded(std::int64_t position, std::int64_t samples) {
  const std::int64_t id = position % count_, batch = position / count_;
  const auto w = static_cast<std::size_t>(id);
  if (samples > 0 || (end_[w] >= 0 && end_[w] <= batch)) return;
  if (end_[w] < 0) {
    ++ended_;
    left_ += to_come(id, first_[w], batch);
  } else {
    left_ -= to_come(id, batch, end_[w]);  // an earlier one of the stream's empty places came later
  }
  end_[w] = batch;
}

}  // namespace levin::data
