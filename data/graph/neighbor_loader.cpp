#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "data/graph/growing.h"
#include "levin/data/neighbor.h"
#include "tensor/files/file.h"

// Note [A neighbourhood in a batch]
// The fields of a batch are x, y, the tensors of the subgraph, and empty tensors whose shapes are its numbers: a shape
// stays on the host when the batch moves to a device, so unpack waits for nothing. The last field says which fields
// there are. A number of -1 is kept as 0, and all others one larger.
namespace levin::gnn {
namespace {

constexpr std::size_t kNumbers = 7;  // of a shape, beside the 0 that makes its tensor empty
constexpr std::size_t kMostHops = kNumbers - 1;
constexpr std::int64_t kMark = 0x4e424c;  // of the last field

Tensor keep_numbers(Tensor spare, std::span<const std::int64_t> numbers) {
  Shape shape{0};
  for (const std::int64_t n : numbers) shape = shape.inserted(shape.rank(), n + 1);
  return resized(std::move(spare), shape, DType::u8);
}
void read_numbers(const Tensor& t, std::vector<std::int64_t>& out) {
  out.clear();
  for (int d = 1; d < t.rank(); ++d) out.push_back(t.shape()[d] - 1);
}

// Which optional fields a batch has.
struct Layout {
  bool x = false, y = false, tree = false, transposed = false, padding = false;
  [[nodiscard]] Tensor kept(Tensor spare) const {
    return keep_numbers(std::move(spare), std::array<std::int64_t, 6>{kMark, x, y, tree, transposed, padding});
  }
};

// Calls visit(field) for each tensor of a batch, in the order of the fields.
template <class Visit>
void each_tensor(const Layout& layout, NeighborBatch& b, Visit&& visit) {
  if (layout.x) visit(b.x);
  if (layout.y) visit(b.y);
  SampledSubgraph& g = b.graph;
  for (Tensor* t : {&g.n_id, &g.src, &g.dst, &g.e_id, &g.crow, &g.seed_index, &g.input_id}) visit(*t);
  if (layout.tree) visit(g.tree);
  if (!layout.transposed) return;
  for (std::size_t i = 0; i < g.transposed.size(); ++i) {
    if (g.longest_column[i / 3] >= 0) visit(g.transposed[i]);
  }
}
template <class Visit>
void each_numbers(SampledSubgraph& g, Visit&& visit) {
  for (std::vector<std::int64_t>* n : {&g.nodes_per_hop, &g.edges_per_hop, &g.longest_row, &g.longest_column})
    visit(*n);
}

void pack(NeighborBatch& b, Tensors& fields) {
  const bool transposed = std::any_of(b.graph.longest_column.begin(), b.graph.longest_column.end(),
                                      [](std::int64_t longest) { return longest >= 0; });
  const Layout layout{b.x.defined(), b.y.defined(), b.graph.tree.defined(), transposed, b.graph.is_padding};
  std::array<Tensor, 5> numbers;  // of the batch whose memory is used again
  for (std::size_t i = 0; i < numbers.size() && fields.size() >= numbers.size(); ++i)
    numbers[i] = std::move(fields[fields.size() - numbers.size() + i]);
  fields.clear();
  each_tensor(layout, b, [&](Tensor& t) { fields.push_back(std::move(t)); });
  std::size_t i = 0;
  each_numbers(b.graph, [&](const auto& n) { fields.push_back(keep_numbers(std::move(numbers[i++]), n)); });
  fields.push_back(layout.kept(std::move(numbers.back())));
}

// The parts of `fields`, which are handed over or shared. False where they are no such batch.
template <class Fields>
bool unpack_fields(Fields& fields, NeighborBatch& b) {
  if (fields.size() < 5 || !fields.back().defined()) return false;
  std::vector<std::int64_t>& marks = b.graph.longest_row;  // memory that is filled below
  read_numbers(fields.back(), marks);
  if (marks.size() != 6 || marks[0] != kMark) return false;
  const Layout layout{marks[1] != 0, marks[2] != 0, marks[3] != 0, marks[4] != 0, marks[5] != 0};
  std::size_t at = fields.size() - 5;
  each_numbers(b.graph, [&](auto& n) { read_numbers(fields[at++], n); });
  b.graph.is_padding = layout.padding;
  b.graph.transposed.resize(layout.transposed ? 3 * b.graph.longest_column.size() : 0);
  std::size_t count = 5;
  each_tensor(layout, b, [&](Tensor&) { ++count; });
  if (count != fields.size()) return false;
  at = 0;
  each_tensor(layout, b, [&](Tensor& t) {
    if constexpr (std::is_const_v<Fields>)
      t = fields[at++];
    else
      t = std::move(fields[at++]);
  });
  b.graph.batch_size = b.graph.seed_index.defined() ? b.graph.seed_index.numel() : 0;
  return true;
}

// Rows `index` of `from`. Whole rows are asked for ahead, because they lie anywhere.
Tensor rows_of(Tensor spare, const Tensor& from, const std::int64_t* index, std::int64_t count) {
  constexpr std::int64_t kAhead = 6;
  constexpr std::size_t kLine = 64, kMostBytes = 2048;
  Shape shape = from.shape();
  const auto bytes = static_cast<std::size_t>(shape.removed(0).numel()) * itemsize(from.dtype());
  Tensor out = resized(std::move(spare), shape.removed(0).inserted(0, count), from.dtype());
  const std::byte* const rows = levin::detail::bytes_of(from).data();
  std::byte* to = out.get().storage->data;
  for (std::int64_t i = 0; i < count && bytes > 0; ++i, to += bytes) {
    if (i + kAhead < count) {
      const std::byte* const next = rows + static_cast<std::size_t>(index[i + kAhead]) * bytes;
      for (std::size_t at = 0; at < std::min(bytes, kMostBytes); at += kLine) __builtin_prefetch(next + at);
    }
    std::memcpy(to, rows + static_cast<std::size_t>(index[i]) * bytes, bytes);
  }
  return out;
}

Tensor rows_for_nodes(const char* name, const Tensor& t, std::int64_t nodes) {
  if (!t.defined()) return t;
  if (!t.device().is_cpu()) fail<DeviceError>("NeighborLoader: ", name, " is on ", t.device(), ", expected cpu");
  if (t.rank() == 0 || t.size(0) != nodes)
    fail<ShapeError>("NeighborLoader: ", name, " has shape ", t.shape(), ", expected [", nodes,
                     ", ...], a row for each node");
  return levin::detail::dense_on_host(std::string("NeighborLoader: ") + name, t);
}

// Nodes by their positions in the list of inputs; undefined where these are the nodes themselves.
Tensor nodes_of(const Tensor& inputs, std::int64_t nodes) {
  if (!inputs.defined()) return inputs;
  if (!inputs.device().is_cpu())
    fail<DeviceError>("NeighborLoader: input_nodes are on ", inputs.device(), ", expected cpu");
  if (inputs.rank() != 1)
    fail<ShapeError>("NeighborLoader: input_nodes have shape ", inputs.shape(), ", expected [S], or [", nodes,
                     "] for a mask");
  if (inputs.dtype() == DType::b8) {
    if (inputs.numel() != nodes)
      fail<ShapeError>("NeighborLoader: the mask has shape ", inputs.shape(), ", expected [", nodes, "]");
    const Tensor mask = inputs.contiguous();
    const bool* const wanted = mask.data<bool>();
    std::vector<std::int64_t> list;
    for (std::int64_t i = 0; i < nodes; ++i) {
      if (wanted[i]) list.push_back(i);
    }
    return from_data<std::int64_t>(list, {static_cast<std::int64_t>(list.size())}, Device::cpu());
  }
  if (inputs.dtype() != DType::i64 && inputs.dtype() != DType::i32)
    fail<DTypeError>("NeighborLoader: input_nodes are ", inputs.dtype(), ", expected i64, i32, or bool for a mask");
  const std::vector<std::int64_t> list = inputs.dtype() == DType::i64 ? inputs.to_vector<std::int64_t>() : [&] {
    const std::vector<std::int32_t> narrow = inputs.to_vector<std::int32_t>();
    return std::vector<std::int64_t>(narrow.begin(), narrow.end());
  }();
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] < 0 || list[i] >= nodes)
      fail<IndexError>("NeighborLoader: input_nodes[", i, "] is ", list[i], ", expected 0 to ", nodes - 1);
  }
  return from_data<std::int64_t>(list, {static_cast<std::int64_t>(list.size())}, Device::cpu());
}

// Sample i is the neighbourhood of input i. The batches of a loader are sampled as a whole.
class Neighborhoods final : public data::Dataset {
 public:
  Neighborhoods(NeighborSampler sampler, const NeighborData& data, const NeighborLoaderOptions& options)
      : sampler_(std::move(sampler)),
        x_(rows_for_nodes("x", data.x, sampler_.num_nodes())),
        y_(rows_for_nodes("y", data.y, sampler_.num_nodes())),
        inputs_(nodes_of(data.input_nodes, sampler_.num_nodes())),
        rank_(options.rank),
        world_(options.world) {}
  std::int64_t size() const override { return inputs_.defined() ? inputs_.numel() : sampler_.num_nodes(); }
  void set_batches(std::int64_t batches) { batches_ = batches; }  // of all ranks; before the first

  data::Sample get(std::int64_t, Generator&) const override {
    fail<StateError>("NeighborLoader: a sample has no neighbourhood of its own; take batches of the loader");
  }
  Tensors gather(std::span<const std::int64_t> indices, const data::EpochRandom& random) const override {
    return gather_into(indices, random, {});
  }
  Tensors gather_into(std::span<const std::int64_t> indices, const data::EpochRandom& random,
                      Tensors fields) const override {
    if (random.batch() < 0) fail<StateError>("NeighborLoader: the batch has no position; take batches of the loader");
    static thread_local NeighborBatch kept;  // its lists keep their memory
    NeighborBatch b = std::exchange(kept, {});
    if (!unpack_fields(fields, b)) b = {};
    Tensor input_id = resized(std::move(b.graph.input_id), {static_cast<std::int64_t>(indices.size())}, DType::i64);
    std::int64_t* const position = reinterpret_cast<std::int64_t*>(input_id.get().storage->data);
    std::copy(indices.begin(), indices.end(), position);
    std::int64_t g = random.batch();
    bool padding = false;
    if (world_ > 1) {
      g = g * world_ + rank_;
      padding = g >= batches_;
      g %= batches_;
    }
    if (inputs_.defined()) {
      const auto* node = inputs_.data<std::int64_t>();
      static thread_local std::vector<std::int64_t> seeds;
      seeds.resize(indices.size());
      for (std::size_t i = 0; i < seeds.size(); ++i) seeds[i] = node[indices[i]];
      sampler_.sample_into(seeds, random.epoch(), g, b.graph);
    } else {
      sampler_.sample_into(indices, random.epoch(), g, b.graph);
    }
    b.graph.input_id = std::move(input_id);
    b.graph.is_padding = padding;
    const auto* n_id = b.graph.n_id.data<std::int64_t>();
    if (x_.defined()) b.x = rows_of(std::move(b.x), x_, n_id, b.graph.n_id.numel());
    if (y_.defined()) b.y = rows_of(std::move(b.y), y_, n_id, b.graph.nodes_per_hop[0]);
    pack(b, fields);
    kept = std::move(b);
    return fields;
  }

 private:
  NeighborSampler sampler_;
  Tensor x_, y_, inputs_;
  int rank_, world_;
  std::int64_t batches_ = 0;
};

// The batches of one rank.
class RankBatches final : public data::BatchSampler {
 public:
  RankBatches(const data::DataLoaderOptions& o, std::int64_t inputs, const NeighborLoaderOptions& of)
      : whole_(o.batch_sampler),
        step_(o.batch_size.value_or(1)),
        drop_last_(o.drop_last),
        of_{of.rank, of.world, of.pad} {
    if (!whole_)
      order_ = o.sampler   ? o.sampler
               : o.shuffle ? data::random_sampler(inputs, o.generator)
                           : data::sequential_sampler(inputs);
  }
  [[nodiscard]] std::int64_t all() const {  // batches of all ranks
    if (whole_) return whole_->size();
    return order_->size() / step_ + (!drop_last_ && order_->size() % step_ != 0);
  }
  std::int64_t size() const override { return (all() + (of_.pad ? of_.world - 1 : 0)) / of_.world; }
  std::vector<std::vector<std::int64_t>> batches(std::int64_t epoch) const override {
    std::vector<std::vector<std::int64_t>> every, mine;
    if (whole_) {
      every = whole_->batches(epoch);
      if (static_cast<std::int64_t>(every.size()) != all())
        fail<DataError>("NeighborLoader: the batch sampler gave ", every.size(), " batches for epoch ", epoch,
                        ", its size() is ", all());
    } else {
      const std::vector<std::int64_t> order = order_->indices(epoch);
      for (std::int64_t g = 0; g < all(); ++g) {
        const auto first = order.begin() + g * step_;
        every.emplace_back(first, first + std::min<std::int64_t>(step_, order.end() - first));
      }
    }
    for (std::int64_t k = 0; k < size(); ++k)
      mine.push_back(
          every[static_cast<std::size_t>((k * of_.world + of_.rank) % static_cast<std::int64_t>(every.size()))]);
    return mine;
  }

 private:
  data::BatchSamplerRef whole_;
  data::SamplerRef order_;
  std::int64_t step_;
  bool drop_last_;
  struct {
    int rank, world;
    bool pad;
  } of_;
};

std::pair<data::DatasetRef, data::DataLoaderOptions> made(NeighborSampler sampler, const NeighborData& data,
                                                          NeighborLoaderOptions options) {
  data::DataLoaderOptions o = options.loader;
  if (o.collate) fail<ConfigError>("NeighborLoader: a collate function is given; a batch is sampled as a whole");
  if (!o.batch_size) fail<ConfigError>("NeighborLoader: batch_size is nullopt, expected the number of seeds");
  if (options.world < 1 || options.rank < 0 || options.rank >= options.world)
    fail<ConfigError>("NeighborLoader: rank is ", options.rank, " of ", options.world, ", expected 0 to world - 1");
  if (sampler.options().fanouts.size() > kMostHops)
    fail<ConfigError>("NeighborLoader: ", sampler.options().fanouts.size(), " fanouts are given, expected at most ",
                      kMostHops);
  auto dataset = std::make_shared<Neighborhoods>(std::move(sampler), data, options);
  if (options.world == 1) return {std::move(dataset), std::move(o)};
  if (o.batch_sampler && (*o.batch_size != 1 || o.shuffle || o.sampler || o.drop_last))
    fail<ConfigError>("loader: batch_sampler comes with batch_size, shuffle, sampler or drop_last; it decides them");
  if (*o.batch_size < 1) fail<ConfigError>("loader: batch_size is ", *o.batch_size, ", expected 1 or more");
  if (o.sampler && o.shuffle) fail<ConfigError>("loader: sampler and shuffle are both given; give one");
  auto batches = std::make_shared<RankBatches>(o, dataset->size(), options);
  dataset->set_batches(batches->all());
  o.batch_sampler = std::move(batches);
  o.batch_size = 1;
  o.sampler = {};
  o.shuffle = o.drop_last = false;
  return {std::move(dataset), std::move(o)};
}

}  // namespace

NeighborLoader::NeighborLoader(NeighborSampler sampler, NeighborData data, NeighborLoaderOptions options)
    : NeighborLoader(made(std::move(sampler), data, std::move(options))) {}
NeighborLoader::NeighborLoader(std::pair<data::DatasetRef, data::DataLoaderOptions> made)
    : DataLoader(std::move(made.first), std::move(made.second)) {}

NeighborBatch unpack(const data::Batch& batch) {
  NeighborBatch b;
  if (!unpack_fields(batch.fields, b))
    fail<DataError>("unpack: the batch has ", batch.fields.size(), " fields, expected those of a NeighborLoader");
  b.graph.versions = {b.graph.crow.version(), b.graph.src.version()};
  return b;
}

}  // namespace levin::gnn
