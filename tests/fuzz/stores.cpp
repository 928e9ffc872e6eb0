// Stores of tensors and what lies in them: shared tensors, record files, graphs with features. One file in memory is
// read in all ways.
#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "levin/data/graph_store.h"
#include "levin/data/store.h"
#include "levin/serialize.h"
#include "tests/fuzz/target.h"

namespace levin::fuzz {
namespace {

// data/store/layout.h
constexpr std::size_t kHeader = 128, kBytesAt = 16, kTableBytesAt = 32, kHashAt = 40, kTableAt = 80, kHash = 32;
constexpr std::size_t kNoHashAt = 88;  // zeros in a store; here 1 leaves the sections' hashes as they are

template <class T>
T get(const std::vector<std::uint8_t>& from, std::size_t at) {
  T value;
  std::memcpy(&value, from.data() + at, sizeof value);
  return value;
}
// The hash of [from, from + bytes) at `to`, where both lie in the store.
void correct_hash(std::vector<std::uint8_t>& store, std::uint64_t from, std::uint64_t bytes, std::size_t to) {
  if (from > store.size() || bytes > store.size() - from) return;
  const std::string hash = content_hash({reinterpret_cast<const char*>(store.data()) + from, bytes});
  std::copy(hash.begin(), hash.end(), store.begin() + static_cast<std::ptrdiff_t>(to));
}

// The size of the store, the hashes of its sections and of its table: most mutations would end at one of them.
std::vector<std::uint8_t> with_right_hashes(Bytes in) {
  std::vector<std::uint8_t> out(in.begin(), in.end());
  if (out.size() < kHeader) return out;
  const std::uint64_t size = out.size();
  std::memcpy(&out[kBytesAt], &size, sizeof size);
  const auto table = get<std::uint64_t>(out, kTableAt), bytes = get<std::uint64_t>(out, kTableBytesAt);
  if (table > size || bytes > size - table) return out;
  constexpr std::size_t kEntry = 24, kLeast = kEntry + kHash;
  for (std::uint64_t at = table; out[kNoHashAt] != 1 && bytes - (at - table) >= kLeast;) {
    correct_hash(out, get<std::uint64_t>(out, at + 8), get<std::uint64_t>(out, at + 16), at + kEntry);
    const std::uint64_t rest = std::uint64_t{8} * out[at + 5] + get<std::uint32_t>(out, at);
    if (rest > bytes - (at - table) - kLeast) break;
    at += kLeast + rest;
  }
  correct_hash(out, table, bytes, kHashAt);
  return out;
}

void look_at(const Tensor& x, std::size_t most_bytes) {
  expect(x.device().is_cpu() && x.is_contiguous(), "a store's tensor is not dense on cpu");
  expect(static_cast<std::uint64_t>(x.numel()) * itemsize(x.dtype()) <= most_bytes, "a store's tensor is too large");
  (void)content_hash("", x);
}

void shared(const std::string& path, std::size_t bytes) {
  const auto store = data::SharedStore::attach(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  expect(store.bytes() == static_cast<std::int64_t>(bytes), "a store has another size than its file");
  for (const Tensor& x : store.views()) look_at(x, bytes);
  store.verify();
  for (const Tensor& x : store.views()) {
    if (x.dtype() == DType::b8 && x.numel() > 0) (void)x.to_vector<bool>();
  }
}

void records(const std::string& path, std::size_t bytes) {
  const data::RecordFile file(path);
  const std::int64_t n = file.size();
  expect(n >= 0 && file.key().size() <= bytes, "a record file has a negative size, or a key beyond its bytes");
  expect(refused([&] { (void)file.sample(n); }), "a record file has a sample behind its end");
  for (const std::int64_t i : {std::int64_t{0}, n / 2, n - 1}) {
    if (i < 0 || i >= n) continue;
    const data::Sample sample = file.sample(i);
    expect(!sample.empty(), "a record file has a sample without fields");
    for (const Tensor& x : sample) look_at(x, bytes);
  }
}

void in_range(const Tensor& ids, std::int64_t bound) {
  if (!ids.defined()) return;
  expect(ids.dtype() == DType::i64 && ids.rank() == 1, "nodes or classes are no i64 [n]");
  const auto* at = ids.data<std::int64_t>();
  expect(std::all_of(at, at + ids.numel(), [&](std::int64_t id) { return id >= 0 && id < bound; }),
         "a node or a class is out of range");
}

void graph(const std::string& path, std::size_t bytes) {
  const gnn::NodeData nodes = gnn::open_graph(path);
  const gnn::Graph& g = nodes.graph;
  g.validate();
  (void)g.is_undirected();
  const std::int64_t n = g.num_nodes();
  expect(g.edges().src.numel() == g.num_edges(), "a graph has another number of edges");
  expect(nodes.num_classes >= 0, "a graph has a negative number of classes");
  if (nodes.x.defined()) {
    expect(is_float(nodes.x.dtype()) && nodes.x.rank() == 2, "x is no matrix of floats");
    expect(g.is_bipartite() || nodes.x.size(0) == n, "x has no row a node");
    look_at(nodes.x, bytes);
  }
  if (nodes.y.defined()) expect(g.is_bipartite() || nodes.y.numel() == n, "y is not one class a node");
  in_range(nodes.y, nodes.num_classes);
  for (const Tensor* part : {&nodes.train, &nodes.val, &nodes.test}) in_range(*part, std::max(g.num_src(), n));
  // open_graph vouches for what attach_graph trusts.
  const gnn::NodeData attached = gnn::attach_graph(path);
  const CsrFacts *found = g.csr().known(), *trusted = attached.graph.csr().known();
  expect(found && trusted && found->ascending && found->longest_row == trusted->longest_row &&
             found->longest_column == trusted->longest_column,
         "attach_graph has other facts than open_graph found");
}

}  // namespace

// A store's file. Every way to read it refuses what is no store.
bool store(Bytes in) {
  const std::vector<std::uint8_t> content = with_right_hashes(in);
  const MemoryFile file(content);
  if (refused([&] { shared(file.path(), content.size()); })) return false;
  (void)refused([&] { records(file.path(), content.size()); });
  const auto attach = [&] { (void)refused([&] { (void)gnn::attach_graph(file.path()); }); };
  try {
    graph(file.path(), content.size());
  } catch (const FormatError&) { attach(); } catch (const IndexError&) {
    attach();
  }  // open_graph promises no other errors
  return true;
}

}  // namespace levin::fuzz
