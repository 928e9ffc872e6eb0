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

 private:
  std::uint64_t seed_;
  std::int64_t epoch_;
};

// A set of samples by index. Both getters are called by several threads at once.
class LEVIN_API Dataset {
 public:
  virtual ~Dataset();
  [[nodiscard]] virtual std::int64_t size() const = 0;
  // Sample `index`, 0 <= index < size(). All randomness comes from `rng`, by its draws for the host: rng.uniform(),
  // rng.normal(), rng.integer(low, high), rng.permutation(n).
  [[nodiscard]] virtual Sample get(std::int64_t index, Generator& rng) const = 0;
  // The fields of a batch of these samples. Default: each by get, then collate. Override it where whole batches are
  // cheaper; the result must be the same.
  [[nodiscard]] virtual Tensors gather(std::span<const std::int64_t> indices, const EpochRandom& random) const;
  // The index whose random numbers sample `index` is given: its own. A dataset over another's samples passes on theirs.
  [[nodiscard]] virtual std::int64_t random_index(std::int64_t index) const;
};
using DatasetRef = std::shared_ptr<const Dataset>;

// Stacks each field on a new dimension 0. Throws ShapeError or DTypeError naming field and sample where they differ,
// DataError for no samples, undefined fields or fields that differ in number, DeviceError for one that is not on cpu.
[[nodiscard]] LEVIN_API Tensors collate(std::span<const Sample> samples);

// Rows of tensors in memory: sample i is {field[i], ...}. Batches are copied row by row without a tensor a sample.
// Throws DataError unless there is a field and all have the same size(0), DeviceError for one that is not on cpu.
[[nodiscard]] LEVIN_API DatasetRef tensor_dataset(Tensors fields);
// The same for pictures kept as u8: field 0 becomes f32, (x / 255 - mean) / std, field 1 (labels u8 [N]) becomes i64.
// Throws DTypeError unless both are u8, ConfigError unless std is above 0.
struct Normalization {
  float mean = 0;
  float std = 1;
};
[[nodiscard]] LEVIN_API DatasetRef image_dataset(Tensor images, Tensor labels, Normalization normalization = {});
// Images [N, C, H, W] with a mean and a std for each of the C channels. Throws ShapeError for other shapes or another
// C.
[[nodiscard]] LEVIN_API DatasetRef image_dataset(Tensor images, Tensor labels,
                                                 const std::vector<Normalization>& channels);

// Samples of `base` after f(sample, rng). f is called by several threads at once. An augmentation, here images [C, H,
// W] mirrored in half of the cases and made brighter or darker, other each epoch:
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
// The same by parts of the whole: random_split(base, Fractions{{0.9, 0.1}}, generator). Each subset has the whole
// samples of its part; those left over go one each to the first subsets. Throws DataError unless each is 0 to 1 and
// they sum to 1 within 1e-9.
struct Fractions {
  std::vector<double> parts;
};
[[nodiscard]] LEVIN_API std::vector<DatasetRef> random_split(DatasetRef base, const Fractions& fractions,
                                                             const Generator& generator);
// The samples of all parts, one part behind the other, each with the random numbers of its own index in the whole.
// Throws ConfigError for no parts and a null one, DataError where the sizes sum to more than 2^63 - 1.
[[nodiscard]] LEVIN_API DatasetRef concat(std::vector<DatasetRef> parts);

// ---- Samplers: the order of an epoch, a function of the epoch alone.
class LEVIN_API Sampler {
 public:
  virtual ~Sampler();
  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual std::vector<std::int64_t> indices(std::int64_t epoch) const = 0;  // size() of them
  [[nodiscard]] virtual bool shuffles() const { return false; }                           // another order each epoch
};
using SamplerRef = std::shared_ptr<const Sampler>;
[[nodiscard]] LEVIN_API SamplerRef sequential_sampler(std::int64_t n);
// A new permutation of 0 .. n-1 each epoch (Fisher-Yates over Philox).
[[nodiscard]] LEVIN_API SamplerRef random_sampler(std::int64_t n, const Generator& generator);
// `samples` draws with replacement, index i with probability weights[i] / sum. Throws ConfigError for a negative or
// infinite weight, or when all are 0.
[[nodiscard]] LEVIN_API SamplerRef weighted_sampler(std::vector<double> weights, std::int64_t samples,
                                                    const Generator& generator);

class LEVIN_API BatchSampler {
 public:
  virtual ~BatchSampler();
  [[nodiscard]] virtual std::int64_t size() const = 0;  // batches in an epoch
  [[nodiscard]] virtual std::vector<std::vector<std::int64_t>> batches(std::int64_t epoch) const = 0;
};
using BatchSamplerRef = std::shared_ptr<const BatchSampler>;

// ---- The loader.
// Of combined loaders: whose the fields from `first` on are. `count` is 0 where the loader has ended.
struct BatchPart {
  std::string name;
  std::size_t first = 0, count = 0;
  std::vector<std::int64_t> indices{};
};
struct Batch {
  Tensors fields{};  // of combined loaders: those of all parts, one after the other
  std::vector<std::int64_t>
      indices{};              // of its samples in the dataset; of combined loaders: of the first part that has a batch
  std::int64_t position = 0;  // in the epoch, from 0
  std::vector<BatchPart> parts{};  // of combined loaders
  // Throws IndexError when there is no such field.
  [[nodiscard]] LEVIN_API const Tensor& operator[](std::size_t field) const;
  // The fields of one part: b.part("labeled")[0]; none where its loader has ended. Throws IndexError when there is no
  // such part.
  [[nodiscard]] LEVIN_API std::span<const Tensor> part(std::size_t k) const;
  [[nodiscard]] LEVIN_API std::span<const Tensor> part(std::string_view name) const;
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(indices.size()); }
};

struct DataLoaderOptions {
  std::optional<std::int64_t> batch_size = 1;            // nullopt: samples pass through as they are
  bool shuffle = false;                                  // random_sampler of `generator`
  SamplerRef sampler{};                                  // instead of shuffle
  BatchSamplerRef batch_sampler{};                       // instead of batch_size, shuffle, sampler and drop_last
  int num_workers = 0;                                   // 0: load in the calling thread
  Function<Tensors(std::span<const Sample>)> collate{};  // instead of data::collate; called by several threads at once
  // Batches on cpu come in page-locked memory, for to(device, NonBlocking::yes); without a CUDA device a warning and
  // nothing else.
  bool pin_memory = false;
  bool drop_last = false;                // drop the short last batch
  double timeout = 0;                    // seconds to wait for a batch of the workers, 0: for ever; Note [Workers]
  Function<void(int)> worker_init{};     // Note [Workers]
  std::optional<int> prefetch_factor{};  // batches ahead for each worker, default 2
  bool persistent_workers = false;       // Note [Workers]
  bool in_order = true;    // false: batches come as they finish; each holds what it holds in order, see `position`
  Generator generator{0};  // of the shuffling and of the samples' random numbers
};

// Note [Workers]
// Workers are threads of oneTBB's pool, which outlive every loop: there is nothing to start and no copy of the dataset.
// worker_init(id) is called on a thread before its first batch as worker `id`, 0 <= id < num_workers, in each loop;
// with persistent_workers in the first one alone, its effect lasts. A thread of the pool may serve as another worker
// later and is initialized for that one then. The calling thread loads a batch itself when no worker has come to it; it
// is worker `num_workers`, in each loop anew. Several threads call worker_init at once. What it throws is the error of
// the batch that was to be loaded. With num_workers 0 it is not called.
//
// `timeout` covers the wait of a loop for a batch that others load: with it, what the calling thread would load itself
// is loaded by one more thread, as worker `num_workers`, so that a dataset that blocks can not hold the loop; a loop
// that has waited so long ends by a DataError. With num_workers 0 the calling thread is itself inside of the dataset,
// nobody can end that, and `timeout` has no effect.

// Where a loader stands, for a run that continues later: the next batch is number `batch` of `epoch`.
struct LoaderState {
  std::int64_t epoch = 0;
  std::int64_t batch = 0;             // all before it were handed out
  std::vector<std::int64_t> ahead{};  // so were these behind it, ascending; only with in_order = false
  bool in_sequence =
      false;  // this epoch comes in the order of the dataset, also with shuffle; by a sampler of its own always as epoch 0
  // Counts the batch at `position`.
  LEVIN_API void hand_out(std::int64_t position);
  [[nodiscard]] std::int64_t handed_out() const { return batch + static_cast<std::int64_t>(ahead.size()); }
};

// How loaders become one (combine).
enum class CombineMode : std::uint8_t {
  max_size_cycle,  // as long as the longest; the shorter ones begin anew, each time in an order of their own
  min_size,        // as long as the shortest
  max_size,        // as long as the longest; a part whose loader has ended is empty
  sequential,      // one behind the other, for evaluations: a Trainer takes the parts for several loaders
};

// for (const Batch& b : loader) is one epoch; the next loop is the next epoch. One loop at a time.
//
// An error of a dataset, transform or collate reaches the loop at the place of its batch: as the type it was when it is
// a levin::Error, as OutOfMemoryError when it is std::bad_alloc, else as DataError, with sample, epoch and worker added
// to its text. While a loop waits for a worker it warns every 10 seconds what it waits for (W-DATA-WAIT).
//
// Leaving the loop, early or by an error, waits for the samples being loaded, and for one second at most. What takes
// longer is left behind with a warning (W-DATA-LEFT): its thread goes on, keeps dataset and options alive until it is
// done, and its result is dropped. A dataset or function that refers to something it does not own must make sure that
// this lives so long. The loader can be looped over again; threads that were left behind do not work for it before they
// are done.
class LEVIN_API DataLoader {
 public:
  struct Impl;
  struct Combination;  // data/combined.cpp
  struct Pass;

  // Throws ConfigError for options out of range or in contradiction: sampler with shuffle, drop_last without
  // batch_size, prefetch_factor or persistent_workers without workers, batch_sampler with any option that it decides.
  // Warns of more workers than CPUs (W-DATA-MANY-WORKERS) and of pin_memory without a CUDA device (W-DATA-PIN).
  explicit DataLoader(DatasetRef dataset, DataLoaderOptions options = {});
  DataLoader(DataLoader&&) noexcept;
  DataLoader& operator=(DataLoader&&) noexcept;
  ~DataLoader();

  struct End {};
  class LEVIN_API Iterator {
   public:
    explicit Iterator(std::unique_ptr<Pass> pass);
    Iterator(Iterator&&) noexcept;
    Iterator& operator=(Iterator&&) noexcept;
    ~Iterator();
    [[nodiscard]] const Batch& operator*() const { return batch_; }
    [[nodiscard]] Batch& operator*() { return batch_; }  // the loop's to move from
    [[nodiscard]] const Batch* operator->() const { return &batch_; }
    Iterator& operator++();
    friend bool operator==(const Iterator& i, End) { return i.done_; }

   private:
    std::unique_ptr<Pass> pass_;
    Batch batch_;
    bool done_ = false;
  };
  // Throws IndexError when the sampler gives an index outside of the dataset, DataError for an empty batch or another
  // number of indices or batches than its size(), StateError when the state that was loaded stands behind the epoch's
  // end, or while another iterator stands before it.
  [[nodiscard]] Iterator begin();
  [[nodiscard]] End end() const { return {}; }

  [[nodiscard]] std::int64_t size() const;  // batches in an epoch
  // Of combined loaders the largest dataset, whether any shuffles, the first one's batch size and the fewest workers.
  [[nodiscard]] const DatasetRef& dataset() const;
  [[nodiscard]] bool shuffles() const;  // by `shuffle`, or by a sampler that says so
  [[nodiscard]] std::optional<std::int64_t> batch_size() const;
  [[nodiscard]] int num_workers() const;
  [[nodiscard]] const DataLoaderOptions& options() const;  // of a loader that is not combined
  // What was combined; 0 parts: this is a plain loader. They are handles on the loaders that were given.
  [[nodiscard]] std::size_t parts() const;
  [[nodiscard]] DataLoader& part(std::size_t k) const;  // throws IndexError
  [[nodiscard]] const std::string& part_name(std::size_t k) const;
  [[nodiscard]] CombineMode combined_by() const;

  // The epoch of the next loop; without it, one more than that of the last.
  void set_epoch(std::int64_t epoch);
  // The batch after those handed out, and the way back: the next loop begins there.
  [[nodiscard]] LoaderState state() const;
  void load_state(const LoaderState& state);  // throws StateError for an epoch or a batch out of range

 private:
  struct Made {};  // so that DataLoader(nullptr) means a dataset
  DataLoader(Made, std::shared_ptr<Impl> impl);
  [[nodiscard]] std::unique_ptr<Pass> pass();
  [[nodiscard]] Impl& impl() const;  // throws StateError for a loader that was moved from
  std::shared_ptr<Impl> impl_;
};

// Several loaders as one, whose batches have a part of each:
//
//   data::DataLoader both = data::combine({{"labeled", &labeled}, {"unlabeled", &unlabeled}});
//   for (const Batch& b : both) use(b.part("labeled")[0], b.part("unlabeled")[0]);
//
// It holds the loaders, which need not outlive it; leave them alone while a loop over it runs. Its position, and with
// it that of each part, is a function of epoch and batch. A combination among the parts gives its own parts, as
// "outer.inner". Throws ConfigError for no loaders, a null one, a name given twice, one with in_order = false, one
// without batches that were to begin anew, and a combination by another mode.
struct NamedLoader {
  std::string name;
  DataLoader* loader = nullptr;
};
[[nodiscard]] LEVIN_API DataLoader combine(const std::vector<NamedLoader>& parts,
                                           CombineMode mode = CombineMode::max_size_cycle);
// Named "0", "1" and so on.
[[nodiscard]] LEVIN_API DataLoader combine(std::span<DataLoader* const> parts,
                                           CombineMode mode = CombineMode::max_size_cycle);

// The CPUs this process may use (affinity and cgroup quota), at least 1, and a good number of workers for one of
// `local_processes` on this machine.
[[nodiscard]] LEVIN_API int available_cpus();
[[nodiscard]] LEVIN_API int suggested_workers(int local_processes = 1);

// ---- Digits. IDX files: http://yann.lecun.com/exdb/mnist, plain or gzip.
enum class Split : std::uint8_t { train, test };
// One IDX file: u8 data as u8, int8 and int16 as i32, i32, f32, f64. Throws FormatError with file, value got and
// expected.
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
// Digits drawn from strokes under a random affine map, with noise: images u8 [count, 28, 28], labels u8 [count], for
// machines without the real ones. A function of the generator's seed, split and index.
[[nodiscard]] LEVIN_API std::pair<Tensor, Tensor> draw_digits(Split split, const Generator& generator,
                                                              std::int64_t count);
[[nodiscard]] LEVIN_API DatasetRef generated_digits(Split split, const Generator& generator, std::int64_t count,
                                                    Normalization normalization = {});

// ---- Pictures: u8 [H, W] grey or [H, W, 3] RGB. Throws FormatError naming the file, ShapeError for other shapes.
LEVIN_API void save_png(const std::string& path, const Tensor& image);
// The bytes of such a file; `what` begins the messages.
[[nodiscard]] LEVIN_API std::string encode_png(const Tensor& image, std::string_view what = "encode_png");
[[nodiscard]] LEVIN_API Tensor load_png(const std::string& path);
// Pictures u8 [N, H, W] side by side, `columns` in a row, one pixel of `gap` grey around each.
[[nodiscard]] LEVIN_API Tensor contact_sheet(const Tensor& images, std::int64_t columns, std::uint8_t gap = 128);

}  // namespace levin::data

namespace levin {
using data::Batch;
}
