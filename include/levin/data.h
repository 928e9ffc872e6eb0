// Datasets, samplers and the loader that turns them into batches.
//
// Sample i of epoch e, its random numbers included, is a function of (seed, e, i) alone: worker count, thread count and
// arrival order change nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/function.h"
#include "levin/generator.h"
#include "levin/tensor.h"

namespace levin::data {

// The fields of one sample: {image, label}.
using Sample = Tensors;

// The random numbers of one epoch's samples.
class LEVIN_API EpochRandom {
 public:
  EpochRandom(const Generator& base, std::int64_t epoch) : seed_(base.seed()), epoch_(epoch) {}
  // A generator of this sample's own: a function of (seed, epoch, index).
  [[nodiscard]] Generator sample(std::int64_t index) const;
  [[nodiscard]] std::int64_t epoch() const { return epoch_; }
  // The position in the epoch of the batch that a loader gathers; -1 outside of a loader.
  [[nodiscard]] std::int64_t batch() const { return batch_; }
  [[nodiscard]] EpochRandom of_batch(std::int64_t batch) const {
    EpochRandom copy = *this;
    copy.batch_ = batch;
    return copy;
  }

 private:
  std::uint64_t seed_;
  std::int64_t epoch_, batch_ = -1;
};

// A set of samples by index. Both getters are called by several threads at once.
class LEVIN_API Dataset {
 public:
  virtual ~Dataset();
  [[nodiscard]] virtual std::int64_t size() const = 0;
  // Sample `index`, 0 <= index < size(). All randomness comes from `rng`, by its draws for the host: rng.uniform(),
  // rng.normal(), rng.integer(low, high), rng.permutation(n).
  [[nodiscard]] virtual Sample get(std::int64_t index, Generator& rng) const = 0;
  // The fields of a batch of these samples; by default each by get, then collate. Override it where whole batches are
  // cheaper, with the same result.
  [[nodiscard]] virtual Tensors gather(std::span<const std::int64_t> indices, const EpochRandom& random) const;
  // The same in the memory of an earlier batch: `spare` has its fields, or none. A loader calls this function. By
  // default gather, without that memory. Override both where batches come at a high rate; recycled() gives the fields.
  [[nodiscard]] virtual Tensors gather_into(std::span<const std::int64_t> indices, const EpochRandom& random,
                                            Tensors spare) const;
  // The index whose random numbers sample `index` gets: its own. A dataset over another one returns that one's.
  [[nodiscard]] virtual std::int64_t random_index(std::int64_t index) const;
};
using DatasetRef = std::shared_ptr<const Dataset>;

// A tensor on cpu of this shape and dtype whose elements are to be written: `spare` if it has them and its memory is in
// no other use, else a new one. Page-locked memory stays page-locked. In gather_into:
//
//   spare.resize(1);
//   spare[0] = recycled(std::move(spare[0]), {n, 3}, DType::f32);
[[nodiscard]] LEVIN_API Tensor recycled(Tensor spare, const Shape& shape, DType dtype);

// Stacks each field on a new dimension 0. Throws ShapeError or DTypeError naming field and sample where they differ,
// DataError for no samples, undefined fields or fields that differ in number, DeviceError for one that is not on cpu.
[[nodiscard]] LEVIN_API Tensors collate(std::span<const Sample> samples);

// Rows of tensors in memory: sample i is {field[i], ...}. Batches are copied row by row without a tensor a sample.
// Throws DataError unless there is a field and all have the same size(0), DeviceError for one that is not on cpu.
[[nodiscard]] LEVIN_API DatasetRef tensor_dataset(Tensors fields);
// Rows of pictures kept as u8: field 0 becomes f32, (x / 255 - mean) / std, field 1 (labels u8 [N]) becomes i64. Throws
// DTypeError unless both are u8, DataError unless there is one label for each picture, ConfigError unless std > 0.
struct Normalization {
  float mean = 0;
  float std = 1;
};
[[nodiscard]] LEVIN_API DatasetRef image_dataset(Tensor images, Tensor labels, Normalization normalization = {});
// Images [N, C, H, W] with a mean and a std for each of the C channels. Throws ShapeError for other shapes or another
// C.
[[nodiscard]] LEVIN_API DatasetRef image_dataset(Tensor images, Tensor labels,
                                                 const std::vector<Normalization>& channels);

// f(sample, rng) for each sample of `base`. Several threads call f at once. An augmentation that mirrors half of the
// images [C, H, W] and changes their brightness, differently in each epoch:
//
//   auto augmented = data::transform(train, [](data::Sample s, Generator& rng) {
//     if (rng.uniform() < 0.5) s[0] = flip(s[0], {2});
//     s[0] = s[0] * rng.normal(1, 0.1);
//     return s;
//   });
[[nodiscard]] LEVIN_API DatasetRef transform(DatasetRef base, Function<Sample(Sample, Generator&)> f);
// The samples of `base` at these indices, with the random numbers they have there. Throws IndexError for one outside.
[[nodiscard]] LEVIN_API DatasetRef subset(DatasetRef base, std::vector<std::int64_t> indices);
// Disjoint random subsets of these sizes. Throws DataError unless they sum to base's size.
[[nodiscard]] LEVIN_API std::vector<DatasetRef> random_split(DatasetRef base, const std::vector<std::int64_t>& sizes,
                                                             const Generator& generator);
// The same by parts of the whole: random_split(base, Fractions{{0.9, 0.1}}, generator). Sizes are rounded down; samples
// left over go one each to the first subsets. Throws DataError unless each part is 0 to 1 and their sum is 1 within
// 1e-9.
struct Fractions {
  std::vector<double> parts;
};
[[nodiscard]] LEVIN_API std::vector<DatasetRef> random_split(DatasetRef base, const Fractions& fractions,
                                                             const Generator& generator);
// The samples of all parts, one part after the other, each with the random numbers of its index in the whole. Throws
// ConfigError for no parts and a null one, DataError where the sizes sum to more than 2^63 - 1.
[[nodiscard]] LEVIN_API DatasetRef concat(std::vector<DatasetRef> parts);

// ---- Samplers

// The order of the samples in an epoch, a function of the epoch alone. A loader asks for the epoch that it is in, also
// through a sampler or batch sampler over another one, so only DataLoader has a set_epoch.
class LEVIN_API Sampler {
 public:
  virtual ~Sampler();
  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual std::vector<std::int64_t> indices(std::int64_t epoch) const = 0;  // size() of them
  [[nodiscard]] virtual bool shuffles() const { return false; }                           // a new order in each epoch
  // Whether the order is one process's part already, as that of distributed_sampler. A Trainer divides all others.
  [[nodiscard]] virtual bool is_distributed() const { return false; }
};
using SamplerRef = std::shared_ptr<const Sampler>;
// 0, 1, ... n-1 in each epoch.
[[nodiscard]] LEVIN_API SamplerRef sequential_sampler(std::int64_t n);
// A new permutation of 0 .. n-1 in each epoch: Fisher-Yates from i = n-1 down to 1, which swaps i with
// (w (i + 1)) / 2^32 for the word w of Philox4x32-10 with the number i.
[[nodiscard]] LEVIN_API SamplerRef random_sampler(std::int64_t n, const Generator& generator);
// `samples` draws with replacement, index i with probability weights[i] / sum. Throws ConfigError for a negative or
// infinite weight, or when all are 0.
[[nodiscard]] LEVIN_API SamplerRef weighted_sampler(std::vector<double> weights, std::int64_t samples,
                                                    const Generator& generator);

// These indices in each epoch: as given, or in a new order each time.
[[nodiscard]] LEVIN_API SamplerRef subset_sampler(std::vector<std::int64_t> indices);
[[nodiscard]] LEVIN_API SamplerRef subset_random_sampler(std::vector<std::int64_t> indices, const Generator& generator);

// How 0 .. n-1 are dealt to the processes of a training: rank r takes positions r, r + world, r + 2 world, ... of the
// order, which is the same for all ranks. As torch.utils.data.DistributedSampler.
struct DistributedSamplerOptions {
  int rank = 0, world = 1;
  bool shuffle = true;  // the order of random_sampler(n, Generator(seed)); false: 0, 1, ... n-1
  // The order is repeated from its start until all ranks have ceil(n / world) samples. false: none is repeated, and the
  // counts of ranks differ by one where world does not divide n; for evaluations.
  bool pad = true;
  bool drop_last = false;  // instead of padding: the end of the order is cut, so that all ranks have n / world samples
  std::uint64_t seed = 0;  // the same on all ranks
  // Each rank reads for `shards` ranks of a world that is `shards` times as large, and its batches of batch_size
  // samples have batch_size / shards samples of each in turn. So 2 ranks of 4 shards get the batches that 8 ranks of 1
  // get.
  int shards = 1;
  std::int64_t batch_size = 1;  // of the loader; used with shards > 1 alone
};
// Throws ConfigError for a rank outside of 0 .. world-1, for drop_last with pad = false, and for a batch_size that
// shards does not divide.
[[nodiscard]] LEVIN_API SamplerRef distributed_sampler(std::int64_t n, const DistributedSamplerOptions& options);
// The same of another sampler's order, which options.shuffle and options.seed do not change. `order` must give the same
// indices on all ranks.
[[nodiscard]] LEVIN_API SamplerRef distributed_sampler(SamplerRef order, const DistributedSamplerOptions& options);

// The samples of each batch of an epoch, a function of the epoch alone.
class LEVIN_API BatchSampler {
 public:
  virtual ~BatchSampler();
  [[nodiscard]] virtual std::int64_t size() const = 0;  // batches in an epoch
  [[nodiscard]] virtual std::vector<std::vector<std::int64_t>> batches(std::int64_t epoch) const = 0;

  // ---- For a Trainer of several processes, which gives each a part of the order.
  [[nodiscard]] virtual bool is_distributed() const { return false; }  // as Sampler::is_distributed
  // The sampler whose order becomes batches; null, which is the default: there is none.
  [[nodiscard]] virtual std::shared_ptr<const Sampler> order() const { return nullptr; }
  // The same rule for the order of another sampler. Null, which is the default: a Trainer of several processes throws
  // ConfigError, unless use_distributed_sampler is false.
  [[nodiscard]] virtual std::shared_ptr<const BatchSampler> over(std::shared_ptr<const Sampler> order) const;
  [[nodiscard]] virtual std::int64_t batch_size() const { return 0; }  // of all batches but the last; 0: it varies
};
using BatchSamplerRef = std::shared_ptr<const BatchSampler>;
// Consecutive parts of a sampler's order; drop_last leaves out a short last one. Throws ConfigError for a null sampler
// and a batch_size below 1.
[[nodiscard]] LEVIN_API BatchSamplerRef batch_sampler(SamplerRef sampler, std::int64_t batch_size,
                                                      bool drop_last = false);

// ---- Streams

// Which part of the data a stream reads.
struct WorkerInfo {
  int id = 0;              // 0 <= id < num_workers
  int num_workers = 1;     // the streams of an epoch; 1 for a loader without workers
  std::uint64_t seed = 0;  // of the loader's generator
  std::int64_t epoch = 0;
  std::int64_t batch_size = 1;
  int rank = 0, world = 1;  // the process among those of a training; see DataLoaderOptions
  // Whether sample i of the whole data belongs to this stream if the processes, and in each its streams, take whole
  // batches in turn. Streams that give the samples that they own, in order, give the same batches with the same random
  // numbers for any number of workers. Any other division makes the batches depend on the number of workers, as in
  // PyTorch. Streams that ignore rank and world give every process the whole data.
  [[nodiscard]] bool owns(std::int64_t i) const {
    const std::int64_t batch = i / batch_size;
    return batch % world == rank && batch / world % num_workers == id;
  }
};
// Of the stream that the calling thread opens or reads for a loader; elsewhere no value.
[[nodiscard]] LEVIN_API std::optional<WorkerInfo> worker_info();

// One pass over a part of the data. Several threads read it, one at a time.
class LEVIN_API SampleStream {
 public:
  virtual ~SampleStream();
  // The next sample; no value at the end. `rng` as for Dataset::get: a function of seed, epoch and the sample's place.
  [[nodiscard]] virtual std::optional<Sample> next(Generator& rng) = 0;
  // Passes over the next n samples, or over all where there are fewer, and returns true. Returns false, which is the
  // default, where it cannot: the loader of a run that resumes then reads and drops them.
  [[nodiscard]] virtual bool skip(std::int64_t n);
};

// Samples without an index, such as lines of a file or messages of a queue. A loader reads one stream for each worker,
// each of which gives a part of the data:
//
//   struct Lines : data::IterableDataset {
//     std::unique_ptr<data::SampleStream> stream(const data::WorkerInfo& info) const override {
//       return std::make_unique<LinesOf>("lines.txt", info);  // line i if info.owns(i)
//     }
//   };
//   data::DataLoader loader(std::make_shared<Lines>(), {.batch_size = 32, .num_workers = 2});
class LEVIN_API IterableDataset {
 public:
  virtual ~IterableDataset();
  // A stream from the beginning of info.epoch. Several threads call it at once.
  [[nodiscard]] virtual std::unique_ptr<SampleStream> stream(const WorkerInfo& info) const = 0;
  // The samples of all streams of all processes together; by default no value: not known before the end.
  [[nodiscard]] virtual std::optional<std::int64_t> size() const;
  // Whether the streams never end. A Trainer then demands a limit of its own; by default false.
  [[nodiscard]] virtual bool endless() const;
};
using IterableDatasetRef = std::shared_ptr<const IterableDataset>;

// ---- The loader

// One loader's part of a batch of combined loaders: fields [first, first + count), 0 of them after its loader has
// ended.
struct BatchPart {
  std::string name;
  std::size_t first = 0, count = 0;
  std::vector<std::int64_t> indices{};
};
// What a loader gives in one turn.
struct Batch {
  Tensors fields{};  // of combined loaders: those of all parts, one after the other
  // Of the samples in the dataset; of combined loaders: of the first part that has a batch; of streams: sample j of the
  // batch at position p is (p * world + rank) * batch_size + j.
  std::vector<std::int64_t> indices{};
  std::int64_t position = 0;       // in the epoch, from 0
  std::vector<BatchPart> parts{};  // of combined loaders
  // Positions, most of them before this one, that have no batch because their stream had ended: W streams take turns.
  std::vector<std::int64_t> absent{};
  // Throws IndexError when there is no such field.
  [[nodiscard]] LEVIN_API const Tensor& operator[](std::size_t field) const;
  // The fields of one part: b.part("labeled")[0]; none after its loader has ended. Throws IndexError for an unknown
  // part.
  [[nodiscard]] LEVIN_API std::span<const Tensor> part(std::size_t k) const;
  [[nodiscard]] LEVIN_API std::span<const Tensor> part(std::string_view name) const;
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(indices.size()); }
};

struct DataLoaderOptions {
  std::optional<std::int64_t> batch_size = 1;            // nullopt: each batch is a sample as it is, not stacked
  bool shuffle = false;                                  // random_sampler of `generator`
  SamplerRef sampler{};                                  // instead of shuffle
  BatchSamplerRef batch_sampler{};                       // instead of batch_size, shuffle, sampler and drop_last
  int num_workers = 0;                                   // 0: load in the calling thread
  Function<Tensors(std::span<const Sample>)> collate{};  // instead of data::collate; called by several threads at once
  // Batches on cpu lie in page-locked memory, for to(device, NonBlocking::yes). Without a CUDA device only a warning.
  bool pin_memory = false;
  bool drop_last = false;                // drop the short last batch
  double timeout = 0;                    // seconds to wait for a batch of the workers, 0: no limit; Note [Workers]
  Function<void(int)> worker_init{};     // Note [Workers]
  std::optional<int> prefetch_factor{};  // batches ahead for each worker, default 2
  bool persistent_workers = false;       // Note [Workers]
  bool in_order = true;                  // false: batches come as they finish, with the samples of their `position`
  Generator generator{0};                // for the order and for the samples' random numbers
  // For streams: the process among those that read the data, which WorkerInfo passes on. A Trainer of several processes
  // sets both. Loaders over a Dataset have a distributed_sampler instead.
  int rank = 0, world = 1;
};

// Note [Workers]
// Workers are threads of oneTBB's pool, which outlive each loop: a loop starts no thread and copies no dataset. In each
// loop worker_init(id) is called on a thread before its first batch as worker `id`, 0 <= id < num_workers; with
// persistent_workers only in the first loop. A thread of the pool may later serve as another worker and is initialized
// for that one then. The calling thread loads a batch itself when no worker has begun it; it is worker `num_workers`,
// initialized in each loop. Several threads call worker_init at once. An error of worker_init is the error of the
// batch. With num_workers 0 worker_init is not called.
//
// `timeout` limits the wait of a loop for a batch that a worker loads; the loop then ends by a DataError. With a
// timeout one more thread, as worker `num_workers`, loads what the calling thread would load, so that a dataset that
// blocks cannot hold the loop. With num_workers 0 the calling thread itself runs the dataset, and `timeout` has no
// effect.

// The position of a loader, for a run that resumes: the next batch is number `batch` of `epoch`.
struct LoaderState {
  std::int64_t epoch = 0;
  std::int64_t batch = 0;             // all before it were handed out
  std::vector<std::int64_t> ahead{};  // later ones that were handed out, ascending; only with in_order = false
  // Whether this epoch has the order of the dataset, also with shuffle; with a sampler that of epoch 0.
  bool in_sequence = false;
  // Counts the batch at `position` as handed out; of a batch, also the positions that are absent.
  LEVIN_API void hand_out(std::int64_t position);
  LEVIN_API void hand_out(const Batch& batch);
  [[nodiscard]] std::int64_t handed_out() const { return batch + static_cast<std::int64_t>(ahead.size()); }
};

// How loaders become one (combine).
enum class CombineMode : std::uint8_t {
  max_size_cycle,  // as long as the longest; the shorter ones start again, each time in a new order
  min_size,        // as long as the shortest
  max_size,        // as long as the longest; a part whose loader has ended is empty
  sequential,      // one after the other, for evaluations: a Trainer treats the parts as several loaders
};

// for (const Batch& b : loader) is one epoch; the next loop is the next epoch. One loop at a time.
//
// An error of a dataset, transform or collate reaches the loop in the place of its batch: a levin::Error with its type,
// std::bad_alloc as OutOfMemoryError, others as DataError, with sample, epoch and worker added to the text. A loop that
// waits for a worker warns every 10 seconds what it waits for (W-DATA-WAIT).
//
// Leaving the loop, early or by an error, waits at most one second for the samples being loaded. What takes longer is
// left behind with a warning (W-DATA-LEFT): its thread runs on, keeps dataset and options alive until it is done, and
// its result is dropped. Objects that a dataset or function refers to without owning them must live as long. The loader
// can be looped over again; threads that were left behind do not work for it until they are done.
class LEVIN_API DataLoader {
 public:
  struct Impl;
  struct Combination;  // data/combined.cpp
  struct Pass;

  // Throws ConfigError for options out of range or in contradiction: sampler with shuffle, drop_last without
  // batch_size, prefetch_factor or persistent_workers without workers, batch_sampler with any option that it decides.
  // Warns of more workers than CPUs (W-DATA-MANY-WORKERS) and of pin_memory without a CUDA device (W-DATA-PIN).
  explicit DataLoader(DatasetRef dataset, DataLoaderOptions options = {});
  // Over streams. Also throws ConfigError for shuffle, sampler and batch_sampler, which need indices. Without in_order
  // a batch still follows from its position. A run resumes with the number of workers that it had, unless streams give
  // what WorkerInfo::owns names.
  explicit DataLoader(IterableDatasetRef dataset, DataLoaderOptions options = {});
  explicit DataLoader(std::nullptr_t, DataLoaderOptions options = {}) : DataLoader(DatasetRef(), std::move(options)) {}
  DataLoader(DataLoader&&) noexcept;
  DataLoader& operator=(DataLoader&&) noexcept;
  ~DataLoader();

  struct End {};
  // The batches of one epoch, read once.
  class LEVIN_API Iterator {
   public:
    explicit Iterator(std::unique_ptr<Pass> pass);
    Iterator(Iterator&&) noexcept;
    Iterator& operator=(Iterator&&) noexcept;
    ~Iterator();
    [[nodiscard]] const Batch& operator*() const { return batch_; }
    [[nodiscard]] Batch& operator*() { return batch_; }  // the loop may move from it
    [[nodiscard]] const Batch* operator->() const { return &batch_; }
    Iterator& operator++();
    friend bool operator==(const Iterator& i, End) { return i.done_; }

   private:
    std::unique_ptr<Pass> pass_;
    Batch batch_;
    bool done_ = false;
  };
  // Throws IndexError when the sampler gives an index outside of the dataset, DataError for an empty batch and when a
  // sampler gives another number of indices or batches than its size(), StateError when the loaded state lies after the
  // epoch's end and while another iterator has not reached the end.
  [[nodiscard]] Iterator begin();
  [[nodiscard]] End end() const { return {}; }

  [[nodiscard]] std::int64_t size() const;                   // batches in an epoch; throws StateError without a length
  [[nodiscard]] std::optional<std::int64_t> length() const;  // the same; no value for streams without a declared size
  [[nodiscard]] const IterableDatasetRef& stream() const;    // null for a loader over a Dataset
  // For combined loaders: the largest dataset, whether any loader shuffles, the first batch size, the fewest workers.
  [[nodiscard]] const DatasetRef& dataset() const;  // null for a loader over streams
  [[nodiscard]] bool shuffles() const;              // by `shuffle`, or by Sampler::shuffles
  [[nodiscard]] std::optional<std::int64_t> batch_size() const;
  [[nodiscard]] int num_workers() const;
  [[nodiscard]] const DataLoaderOptions& options() const;  // of a plain loader
  // The combined loaders, as handles on those given; a plain loader has 0 parts.
  [[nodiscard]] std::size_t parts() const;
  [[nodiscard]] DataLoader& part(std::size_t k) const;  // throws IndexError
  [[nodiscard]] const std::string& part_name(std::size_t k) const;
  [[nodiscard]] CombineMode combined_by() const;

  // The epoch of the next loop; by default one more than that of the last loop.
  void set_epoch(std::int64_t epoch);
  // The position after the batches handed out; the next loop after load_state begins there.
  [[nodiscard]] LoaderState state() const;
  void load_state(const LoaderState& state);  // throws StateError as check_state does
  // Throws StateError for a state that load_state refuses: an epoch or a batch out of range, or `ahead` that no loop of
  // this loader leaves.
  void check_state(const LoaderState& state) const;

 private:
  struct Made {};  // so that DataLoader(nullptr) means a dataset
  DataLoader(Made, std::shared_ptr<Impl> impl);
  [[nodiscard]] std::unique_ptr<Pass> pass();
  [[nodiscard]] std::unique_ptr<Pass> begin_pass();
  [[nodiscard]] Impl& impl() const;  // throws StateError for a loader that was moved from
  std::shared_ptr<Impl> impl_;
};

// Several loaders as one, whose batches have a part of each:
//
//   data::DataLoader both = data::combine({{"labeled", &labeled}, {"unlabeled", &unlabeled}});
//   for (const Batch& b : both) use(b.part("labeled")[0], b.part("unlabeled")[0]);
//
// The combination holds the loaders, which need not outlive it; do not loop over them while a loop over it runs. The
// position of each part is a function of epoch and batch. A combination among the parts adds its own parts, named
// "outer.inner". Throws ConfigError for no loaders, a null one, a name given twice, one with in_order = false, one over
// streams, one without batches that would start again, and a combination by another mode.
struct NamedLoader {
  std::string name;
  DataLoader* loader = nullptr;
};
[[nodiscard]] LEVIN_API DataLoader combine(const std::vector<NamedLoader>& parts,
                                           CombineMode mode = CombineMode::max_size_cycle);
// Named "0", "1" and so on.
[[nodiscard]] LEVIN_API DataLoader combine(std::span<DataLoader* const> parts,
                                           CombineMode mode = CombineMode::max_size_cycle);

// The CPUs that this process may use (affinity and cgroup quota), at least 1, and a good number of workers for one of
// `local_processes` processes on this machine.
[[nodiscard]] LEVIN_API int available_cpus();
[[nodiscard]] LEVIN_API int suggested_workers(int local_processes = 1);

// ---- Digits. IDX files: http://yann.lecun.com/exdb/mnist, plain or gzip.
enum class Split : std::uint8_t { train, test };
// One IDX file: u8, i8, i16, i32, f32 or f64. Throws FormatError with file, actual and
// expected value.
[[nodiscard]] LEVIN_API Tensor load_idx(const std::string& path);
// MNIST from `dir`: train-images-idx3-ubyte and the like, with or without .gz. Sample: {f32 [1, 28, 28], i64 []}.
// Throws FileError when a file is absent, FormatError when images and labels do not fit each other.
[[nodiscard]] LEVIN_API DatasetRef mnist(const std::string& dir, Split split, Normalization normalization = {});
// Its two tensors as they are in the files: images u8 [N, 28, 28], labels u8 [N].
[[nodiscard]] LEVIN_API std::pair<Tensor, Tensor> load_mnist(const std::string& dir, Split split);
// True when both files of the split are there.
[[nodiscard]] LEVIN_API bool has_mnist(const std::string& dir, Split split);
// The usual normalization of MNIST: mean and deviation of its training pixels.
inline constexpr Normalization kMnistNormalization{0.1307f, 0.3081f};
// Digits drawn from strokes under a random affine map, with noise, for machines without MNIST: images u8 [count, 28,
// 28] and labels u8 [count], a function of the generator's seed, split and index. generated_digits: the same as a
// dataset like mnist()'s; it draws each digit when the digit is first asked for.
[[nodiscard]] LEVIN_API std::pair<Tensor, Tensor> draw_digits(Split split, const Generator& generator,
                                                              std::int64_t count);
[[nodiscard]] LEVIN_API DatasetRef generated_digits(Split split, const Generator& generator, std::int64_t count,
                                                    Normalization normalization = {});

// ---- Pictures: u8 [H, W] grey or [H, W, 3] RGB, on cpu

// Writes a PNG file. Throws DTypeError and ShapeError for other tensors, FileError where it cannot write.
LEVIN_API void save_png(const std::string& path, const Tensor& image);
// The bytes of such a file; `what` begins the error messages.
[[nodiscard]] LEVIN_API std::string encode_png(const Tensor& image, std::string_view what = "encode_png");
// Throws FileError for a file that cannot be read, FormatError for one that is no PNG or damaged.
[[nodiscard]] LEVIN_API Tensor load_png(const std::string& path);
// Pictures u8 [N, H, W] side by side, `columns` in a row, one pixel of `gap` grey around each.
[[nodiscard]] LEVIN_API Tensor contact_sheet(const Tensor& images, std::int64_t columns, std::uint8_t gap = 128);

}  // namespace levin::data

namespace levin {
using data::Batch;
}
