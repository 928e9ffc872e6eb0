#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <utility>
#include <variant>

#include "data/graph/draws.h"
#include "data/graph/growing.h"
#include "data/graph/local_ids.h"
#include "data/random.h"
#include "levin/data/neighbor.h"

// Note [Sampling by hops]
// A hop is three passes, so that the memory that a pass reads at random is asked for well before: (1) the in-edges of
// each new node, and from them the place of its picks; (2) the draws, into that place; (3) the sources of the picks and
// their local numbers. Distances of prefetching are those at which longer ones gain nothing.
namespace levin::gnn {
namespace {

constexpr std::uint32_t kBatchStream = 0x42415443u;
constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kOffsetsAhead = 12, kEdgesAhead = 32, kNumbersAhead = 16;  // kNumbersAhead: a power of two

template <class T>
const T* read(const Tensor& t) {
  return t.defined() ? t.data<T>() : nullptr;
}
Tensor prefix(const Tensor& t, std::int64_t n) { return as_strided(t, {n}, {1}, t.offset()); }
template <class T>
std::int64_t sum(const std::vector<T>& v, std::int64_t n) {
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < n; ++i) total += v[static_cast<std::size_t>(i)];
  return total;
}

// `a`, whose legality follows from how it was made.
Csr promised(Csr a, std::int64_t longest_row, std::int64_t longest_column = -1) {
  a.facts = std::make_shared<const CsrFacts>(a, CsrFacts::Promise{longest_row, longest_column});
  return a;
}

// The memory of a thread.
struct Scratch {
  std::variant<Marker, Hash> ids;
  DrawMemory draws{};
  std::vector<std::int64_t> first{}, degree{};  // of the nodes of a hop
};

// The lists of a sample under way.
struct Lists {
  explicit Lists(SampledSubgraph& out)
      : n_id(std::move(out.n_id)),
        e_id(std::move(out.e_id)),
        crow(std::move(out.crow)),
        seed_index(std::move(out.seed_index)),
        src(std::move(out.src)),
        dst(std::move(out.dst)),
        tree(std::move(out.tree)) {}
  Growing<std::int64_t> n_id, e_id, crow, seed_index;
  Growing<std::int32_t> src, dst, tree;
  std::int64_t nodes = 0, edges = 0;
};

}  // namespace

struct NeighborSampler::Impl {
  Csr graph;
  NeighborSamplerOptions options;
  mutable std::mutex mutex{};
  mutable std::vector<std::unique_ptr<Scratch>> idle{};
  mutable std::int64_t made = 0;

  std::unique_ptr<Scratch> take() const {
    {
      const std::lock_guard lock(mutex);
      if (!idle.empty()) {
        std::unique_ptr<Scratch> s = std::move(idle.back());
        idle.pop_back();
        return s;
      }
      ++made;
      idle.reserve(static_cast<std::size_t>(made));  // so that giving back allocates nothing
    }
    const std::int64_t words = std::max<std::int64_t>(0, options.marker_bytes) / 8 / made;
    if (!options.disjoint && graph.rows() <= words) return std::make_unique<Scratch>(Scratch{Marker(graph.rows())});
    return std::make_unique<Scratch>(Scratch{Hash()});
  }
  void give_back(std::unique_ptr<Scratch> s) const {
    const std::lock_guard lock(mutex);
    idle.push_back(std::move(s));
  }

  void check_seeds(std::span<const std::int64_t> seeds) const {
    for (std::size_t i = 0; i < seeds.size(); ++i) {
      if (seeds[i] < 0 || seeds[i] >= graph.rows())
        fail<IndexError>("sample: seed ", i, " is ", seeds[i], ", expected 0 to ", graph.rows() - 1);
    }
  }
  static void check_edges(std::int64_t nodes, std::int64_t edges) {
    if (nodes + edges > kMost)
      fail<ConfigError>("sample: the batch has ", nodes, " nodes and ", edges,
                        " edges or more, expected at most 2^31 - 1 together; lower the fanouts or the number of seeds");
  }

  // The key of a node in the tables.
  [[nodiscard]] std::uint64_t key_of(std::uint64_t node, std::uint64_t tree) const {
    return tree * static_cast<std::uint64_t>(graph.rows()) + node;
  }

  template <class Ids>
  void seed(std::span<const std::int64_t> seeds, Ids& ids, Lists& l) const {
    const auto count = static_cast<std::int64_t>(seeds.size());
    check_edges(count, 0);
    ids.start();
    ids.reserve(count);
    std::int64_t* const n_id = l.n_id.reserve(count + 1);
    std::int64_t* const index = l.seed_index.reserve(count);
    std::int32_t* const tree = options.disjoint ? l.tree.reserve(count + 1) : nullptr;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto node = static_cast<std::uint64_t>(seeds[static_cast<std::size_t>(i)]);
      const auto next = static_cast<std::uint32_t>(l.nodes);
      const std::uint32_t number = ids.number(key_of(node, tree ? static_cast<std::uint64_t>(i) : 0), next);
      n_id[next] = static_cast<std::int64_t>(node);
      if (tree) tree[next] = static_cast<std::int32_t>(i);
      l.nodes += number == next;
      index[i] = number;
    }
  }

  // Draws for nodes [begin, l.nodes) of hop `hop`. Returns the longest row.
  template <class I, class Ids>
  std::int64_t hop(int hop, std::uint64_t batch_key, std::int64_t begin, Scratch& scratch, Ids& ids, Lists& l) const {
    const auto* crow = read<std::int64_t>(graph.crow);
    const std::int64_t k = options.fanouts[static_cast<std::size_t>(hop)], end = l.nodes, count = end - begin;
    scratch.first.resize(static_cast<std::size_t>(count));
    scratch.degree.resize(static_cast<std::size_t>(count));
    std::int64_t* const out_crow = l.crow.reserve(end + 1, begin + 1);
    out_crow[0] = 0;
    std::int64_t* n_id = l.n_id.data();
    std::int64_t edges = l.edges, longest = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      if (i + kOffsetsAhead < end) __builtin_prefetch(crow + n_id[i + kOffsetsAhead]);
      const std::int64_t first = crow[n_id[i]], degree = crow[n_id[i] + 1] - first;
      scratch.first[static_cast<std::size_t>(i - begin)] = first;
      scratch.degree[static_cast<std::size_t>(i - begin)] = degree;
      const std::int64_t picks = k < 0 ? degree : options.replace && degree > 0 ? k : std::min(k, degree);
      longest = std::max(longest, picks);
      out_crow[i + 1] = edges += picks;
      if (edges > kMost) check_edges(end, edges);
    }
    check_edges(end, edges);

    std::int64_t* const pick = l.e_id.reserve(edges, l.edges);
    std::int32_t* const dst = l.dst.reserve(edges, l.edges);
    const std::int32_t* tree = options.disjoint ? l.tree.data() : nullptr;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t picks = out_crow[i + 1] - out_crow[i];
      if (picks == 0) continue;
      draws::pick({batch_key, static_cast<std::uint64_t>(n_id[i]), static_cast<std::uint32_t>(hop),
                   tree ? static_cast<std::uint32_t>(tree[i]) : 0},
                  picks, scratch.degree[static_cast<std::size_t>(i - begin)],
                  scratch.first[static_cast<std::size_t>(i - begin)], options.replace && k >= 0, scratch.draws,
                  pick + out_crow[i]);
      std::fill(dst + out_crow[i], dst + out_crow[i + 1], static_cast<std::int32_t>(i));
    }
    number<I>(edges, ids, l);
    return longest;
  }

  // Gives the sources of picks [l.edges, edges) local numbers, and the picks the graph's ids.
  template <class I, class Ids>
  void number(std::int64_t edges, Ids& ids, Lists& l) const {
    const I *col = read<I>(graph.col), *edge = read<I>(graph.edge);
    std::int64_t* const pick = l.e_id.data();
    const std::int32_t* const dst = l.dst.data();
    std::int32_t* const src = l.src.reserve(edges, l.edges);
    // A node more than may come: numbers are written before it is known whether they are new.
    const std::int64_t most = std::min(l.nodes + edges - l.edges, options.disjoint ? kMost : graph.rows());
    std::int64_t* const n_id = l.n_id.reserve(most + 1, l.nodes);
    std::int32_t* const tree = options.disjoint ? l.tree.reserve(most + 1, l.nodes) : nullptr;
    ids.reserve(most);
    struct Source {
      std::uint64_t node, key;
    };
    std::array<Source, kNumbersAhead> ahead;
    constexpr auto kMask = static_cast<std::uint64_t>(kNumbersAhead - 1);
    std::int64_t nodes = l.nodes;
    const auto fetch = [&](std::int64_t e) {
      const auto node = static_cast<std::uint64_t>(col[pick[e]]);
      const std::uint64_t key = tree ? key_of(node, static_cast<std::uint64_t>(tree[dst[e]])) : node;
      ids.prefetch(key);
      ahead[static_cast<std::uint64_t>(e) & kMask] = {node, key};
    };
    const auto ask = [&](std::int64_t e) {
      __builtin_prefetch(col + pick[e]);
      if (edge) __builtin_prefetch(edge + pick[e]);
    };
    for (std::int64_t e = l.edges; e < std::min(edges, l.edges + kEdgesAhead); ++e) ask(e);
    for (std::int64_t e = l.edges; e < std::min(edges, l.edges + kNumbersAhead); ++e) fetch(e);
    for (std::int64_t e = l.edges; e < edges; ++e) {
      const Source source = ahead[static_cast<std::uint64_t>(e) & kMask];
      if (e + kEdgesAhead < edges) ask(e + kEdgesAhead);
      if (e + kNumbersAhead < edges) fetch(e + kNumbersAhead);
      const auto next = static_cast<std::uint32_t>(nodes);
      const std::uint32_t number = ids.number(source.key, next);
      n_id[next] = static_cast<std::int64_t>(source.node);
      if (tree) tree[next] = tree[dst[e]];
      nodes += number == next;
      src[e] = static_cast<std::int32_t>(number);
      if (edge) pick[e] = edge[pick[e]];
    }
    l.nodes = nodes;
    l.edges = edges;
  }

  // Instead of the drawn edges: all between the nodes.
  template <class I, class Ids>
  std::int64_t induce(const Ids& ids, Lists& l) const {
    const auto* crow = read<std::int64_t>(graph.crow);
    const I *col = read<I>(graph.col), *edge = read<I>(graph.edge);
    const std::int64_t* const n_id = l.n_id.data();
    std::int64_t* const out_crow = l.crow.reserve(l.nodes + 1);
    std::int64_t edges = 0, longest = 0;
    out_crow[0] = 0;
    for (std::int64_t i = 0; i < l.nodes; ++i) {
      const std::int64_t first = crow[n_id[i]], last = crow[n_id[i] + 1];
      std::int64_t* const e_id = l.e_id.reserve(edges + last - first, edges);
      std::int32_t* const src = l.src.reserve(edges + last - first, edges);
      std::int32_t* const dst = l.dst.reserve(edges + last - first, edges);
      for (std::int64_t e = first; e < last; ++e) {
        if (e + kNumbersAhead < last) ids.prefetch(static_cast<std::uint64_t>(col[e + kNumbersAhead]));
        const std::int64_t number = ids.find(static_cast<std::uint64_t>(col[e]));
        if (number < 0) continue;
        e_id[edges] = edge ? std::int64_t{edge[e]} : e;
        src[edges] = static_cast<std::int32_t>(number);
        dst[edges++] = static_cast<std::int32_t>(i);
      }
      check_edges(l.nodes, edges);
      longest = std::max(longest, edges - out_crow[i]);
      out_crow[i + 1] = edges;
    }
    l.edges = edges;
    return longest;
  }

  template <class I, class Ids>
  void sample(std::span<const std::int64_t> seeds, std::uint64_t batch_key, Scratch& scratch, Ids& ids, Lists& l,
              SampledSubgraph& out) const {
    seed(seeds, ids, l);
    out.nodes_per_hop.assign(1, l.nodes);
    const int hops = static_cast<int>(options.fanouts.size());
    for (int h = 0; h < hops; ++h) {
      const std::int64_t nodes = l.nodes, edges = l.edges;
      out.longest_row.push_back(hop<I>(h, batch_key, nodes - out.nodes_per_hop.back(), scratch, ids, l));
      out.nodes_per_hop.push_back(l.nodes - nodes);
      out.edges_per_hop.push_back(l.edges - edges);
    }
    if (options.type == SubgraphType::induced) {
      out.edges_per_hop.clear();
      out.longest_row.assign(1, induce<I>(ids, l));
      return;
    }
    // Nodes of the last hop have drawn nothing.
    const std::int64_t drawn = l.nodes - (hops > 0 ? out.nodes_per_hop.back() : l.nodes);
    std::int64_t* const crow = l.crow.reserve(l.nodes + 1, drawn + 1);
    if (hops == 0) crow[0] = 0;
    std::fill(crow + drawn + 1, crow + l.nodes + 1, l.edges);
  }

  void finish(Lists& l, SampledSubgraph& out) const {
    out.n_id = l.n_id.finish(l.nodes);
    out.src = l.src.finish(l.edges);
    out.dst = l.dst.finish(l.edges);
    out.e_id = l.e_id.finish(l.edges);
    out.crow = l.crow.finish(l.nodes + 1);
    out.seed_index = l.seed_index.finish(out.batch_size);
    if (options.disjoint) out.tree = l.tree.finish(l.nodes);
  }

  // The transpose of a block by counting sort. `spare`: three tensors.
  static std::int64_t transpose(const SampledSubgraph& s, std::int64_t sources, std::int64_t edges, Tensor* spare) {
    const auto *src = s.src.data<std::int32_t>(), *dst = s.dst.data<std::int32_t>();
    Growing<std::int64_t> crow(std::move(spare[0]));
    Growing<std::int32_t> col(std::move(spare[1])), edge(std::move(spare[2]));
    std::int64_t* const at = crow.reserve(sources + 1);
    std::int32_t *const to = col.reserve(edges), *const position = edge.reserve(edges);
    std::fill(at, at + sources + 1, 0);
    for (std::int64_t e = 0; e < edges; ++e) ++at[src[e] + 1];
    std::int64_t longest = 0;
    for (std::int64_t i = 0; i < sources; ++i) {
      longest = std::max(longest, at[i + 1]);
      at[i + 1] += at[i];
    }
    for (std::int64_t e = 0; e < edges; ++e) {
      const std::int64_t p = at[src[e]]++;
      to[p] = dst[e];
      position[p] = static_cast<std::int32_t>(e);
    }
    std::copy_backward(at, at + sources, at + sources + 1);  // each entry has moved to the end of its column
    at[0] = 0;
    spare[0] = crow.finish(sources + 1);
    spare[1] = col.finish(edges);
    spare[2] = edge.finish(edges);
    return longest;
  }
  void transpose(SampledSubgraph& out) const {
    const std::size_t hops = options.fanouts.size();
    const bool any = options.transposes != Transposes::none && options.type == SubgraphType::directional;
    out.transposed.resize(any ? 3 * hops : 0);
    out.longest_column.assign(hops, -1);
    if (!any) return;
    for (std::size_t layer = options.transposes == Transposes::all ? 0 : 1; layer < hops; ++layer) {
      const auto reach = static_cast<std::int64_t>(hops - layer);
      out.longest_column[layer] = transpose(out, sum(out.nodes_per_hop, reach + 1), sum(out.edges_per_hop, reach),
                                            out.transposed.data() + 3 * layer);
    }
  }
};

namespace {

Csr checked_square(Csr graph) {
  if (!graph.known()) graph = checked(std::move(graph));
  if (graph.rows() != graph.cols)
    fail<ShapeError>("NeighborSampler: the graph has ", graph.cols, " sources and ", graph.rows(),
                     " destinations, expected the same nodes");
  if (graph.crow.device() != Device::cpu())
    fail<DeviceError>("NeighborSampler: the graph is on ", graph.crow.device(), ", expected cpu");
  constexpr std::int64_t kMostEdges = std::int64_t{1} << 32;  // the words that draw an edge have 32 bits
  if (graph.known()->longest_row >= kMostEdges)
    fail<ShapeError>("NeighborSampler: a node has ", graph.known()->longest_row, " in-edges, expected less than 2^32");
  return graph;
}
// The in-edges of a graph with their ids.
Csr by_id(const Graph& graph) {
  const Csr& in_edges = graph.csr();
  const CsrFacts* facts = in_edges.known();
  Csr a{.crow = in_edges.crow, .col = in_edges.col, .cols = in_edges.cols};
  if (graph.edge_ids().defined()) a.edge = graph.edge_ids().to(a.col.dtype());
  return facts ? promised(std::move(a), facts->longest_row) : a;
}
void check(const NeighborSamplerOptions& options) {
  for (std::size_t h = 0; h < options.fanouts.size(); ++h) {
    if (options.fanouts[h] < -1)
      fail<ConfigError>("NeighborSampler: fanout ", h, " is ", options.fanouts[h], ", expected -1 (all) or more");
  }
  if (options.fanouts.size() > 255)
    fail<ConfigError>("NeighborSampler: ", options.fanouts.size(), " fanouts are given, expected at most 255");
  if (options.disjoint && options.type == SubgraphType::induced)
    fail<ConfigError>(
        "NeighborSampler: disjoint and induced are both given; the trees of seeds share no edges, give one");
}

}  // namespace

NeighborSampler::NeighborSampler(Csr graph, NeighborSamplerOptions options) {
  check(options);
  graph = checked_square(std::move(graph));
  impl_.reset(new Impl{std::move(graph), std::move(options)});
}
NeighborSampler::NeighborSampler(const Graph& graph, NeighborSamplerOptions options)
    : NeighborSampler(by_id(graph), std::move(options)) {}
NeighborSampler::~NeighborSampler() = default;
NeighborSampler::NeighborSampler(NeighborSampler&&) noexcept = default;
NeighborSampler& NeighborSampler::operator=(NeighborSampler&&) noexcept = default;
std::int64_t NeighborSampler::num_nodes() const { return impl_->graph.rows(); }
const NeighborSamplerOptions& NeighborSampler::options() const { return impl_->options; }

SampledSubgraph NeighborSampler::sample(std::span<const std::int64_t> seeds, std::int64_t epoch,
                                        std::int64_t batch) const {
  SampledSubgraph out;
  sample_into(seeds, epoch, batch, out);
  return out;
}

void NeighborSampler::sample_into(std::span<const std::int64_t> seeds, std::int64_t epoch, std::int64_t batch,
                                  SampledSubgraph& out) const {
  const Impl& impl = *impl_;
  if (epoch < 0 || batch < 0)
    fail<ConfigError>("sample: epoch is ", epoch, " and batch ", batch, ", expected 0 or more");
  if (!impl.graph.known())
    fail<StateError>("sample: the graph's tensors were written after the sampler was made; make a new one");
  impl.check_seeds(seeds);
  const auto low = [](std::int64_t x) { return static_cast<std::uint32_t>(x); };
  const data::Counter words = data::philox({low(batch), low(batch >> 32), low(epoch), kBatchStream}, impl.options.seed);
  const std::uint64_t batch_key = std::uint64_t{words[1]} << 32 | words[0];
  std::unique_ptr<Scratch> scratch = impl.take();
  try {
    Lists lists(out);
    out.tree = {};
    out.input_id = {};
    out.is_padding = false;
    out.edges_per_hop.clear();
    out.longest_row.clear();
    out.batch_size = static_cast<std::int64_t>(seeds.size());
    std::visit(
        [&](auto& ids) {
          if (impl.graph.col.dtype() == DType::i32)
            impl.sample<std::int32_t>(seeds, batch_key, *scratch, ids, lists, out);
          else
            impl.sample<std::int64_t>(seeds, batch_key, *scratch, ids, lists, out);
        },
        scratch->ids);
    impl.finish(lists, out);
    impl.transpose(out);
    out.versions = {out.crow.version(), out.src.version()};
  } catch (...) {
    out = {};
    impl.give_back(std::move(scratch));
    throw;
  }
  impl.give_back(std::move(scratch));
}

Block SampledSubgraph::block(int layer) const {
  if (hops() >= 0 && edges_per_hop.size() != static_cast<std::size_t>(hops()))
    fail<StateError>("block: an induced subgraph has no edges of single hops; use whole() for each layer");
  if (layer < 0 || layer >= hops()) fail<IndexError>("block: layer is ", layer, ", expected 0 to ", hops() - 1);
  const std::int64_t reach = hops() - layer, edges = sum(edges_per_hop, reach);
  Csr csr{.crow = prefix(crow, sum(nodes_per_hop, reach) + 1),
          .col = prefix(src, edges),
          .cols = sum(nodes_per_hop, reach + 1)};
  const auto at = static_cast<std::size_t>(layer);
  const std::int64_t columns = longest_column[at];
  if (columns >= 0) {
    csr.t_crow = transposed[3 * at];
    csr.t_col = transposed[3 * at + 1];
    csr.t_edge = transposed[3 * at + 2];
  }
  const std::int64_t rows = *std::max_element(longest_row.begin(), longest_row.begin() + reach);
  if (!is_untouched()) return {std::move(csr), prefix(e_id, edges)};
  return {promised(std::move(csr), rows, columns), prefix(e_id, edges)};
}

Block SampledSubgraph::whole() const {
  if (!crow.defined()) fail<StateError>("whole: the subgraph is empty; sample() makes one");
  const std::int64_t rows = longest_row.empty() ? 0 : *std::max_element(longest_row.begin(), longest_row.end());
  Csr csr{.crow = crow, .col = src, .cols = n_id.numel()};
  return {is_untouched() ? promised(std::move(csr), rows) : csr, e_id};
}

bool SampledSubgraph::is_untouched() const {
  return versions == std::array<std::uint32_t, 2>{crow.version(), src.version()};
}

}  // namespace levin::gnn
