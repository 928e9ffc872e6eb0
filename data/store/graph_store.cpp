#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "data/store/mapping.h"
#include "levin/data/graph_store.h"
#include "levin/serialize.h"
#include "tensor/files/file.h"

namespace levin::gnn {
namespace {

using namespace data::store;
constexpr std::size_t kPage = 4096;

// The numbers of a graph, in section "numbers".
struct Numbers {
  std::int64_t cols = 0, longest_row = 0, longest_column = 0, bipartite = 0, num_classes = 0;
};
constexpr std::int64_t kNumbers = sizeof(Numbers) / sizeof(std::int64_t);

// Throws E where features, classes or parts do not fit the graph; looks at their values where it has `values`.
template <class E>
void check_nodes(const std::string& where, const NodeData& nodes, bool values) {
  const Graph& g = nodes.graph;
  const std::int64_t n = std::max(g.num_src(), g.num_dst());
  const auto fits = [&](const Tensor& t) { return g.is_bipartite() || t.size(0) == n; };
  const Tensor &x = nodes.x, &y = nodes.y;
  if (x.defined() && (!is_float(x.dtype()) || x.rank() != 2 || !fits(x)))
    fail<E>(where, ": x is ", x.dtype(), " ", x.shape(), ", expected floats [", n, ", F], a row a node");
  const auto check = [&](const char* name, const Tensor& t, std::int64_t bound) {
    if (!t.defined()) return;
    if (t.dtype() != DType::i64 || t.rank() != 1)
      fail<E>(where, ": ", name, " is ", t.dtype(), " ", t.shape(), ", expected i64 with one dimension");
    if (!values) return;
    const Tensor dense = t.contiguous();
    const auto* at = dense.data<std::int64_t>();
    for (std::int64_t i = 0; i < t.numel(); ++i) {
      if (at[i] < 0 || at[i] >= bound)
        fail<E>(where, ": ", name, "[", i, "] is ", at[i], ", expected 0 to ", bound - 1);
    }
  };
  if (nodes.num_classes < 0) fail<E>(where, ": num_classes is ", nodes.num_classes, ", expected 0 or more");
  check("y", y, nodes.num_classes);
  if (y.defined() && !fits(y)) fail<E>(where, ": y is ", y.shape(), ", expected [", n, "], a class a node");
  check("train", nodes.train, n);
  check("val", nodes.val, n);
  check("test", nodes.test, n);
}

NodeData read(const std::string& path, bool trusted) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) fail<FileError>(path, ": opening failed: ", std::generic_category().message(errno));
  const auto mapping = std::make_shared<Mapping>(std::move(file), path);
  if (!trusted) mapping->verify();
  const auto section = [&](const char* name) {
    const auto& all = mapping->sections();
    const auto at = std::find_if(all.begin(), all.end(), [&](const Section& s) { return s.name == name; });
    return at == all.end() ? Tensor() : mapping->view(static_cast<std::size_t>(at - all.begin()));
  };
  const Tensor numbers = section("numbers"), crow = section("crow"), col = section("col"), name = section("name");
  if (!numbers.defined() || numbers.dtype() != DType::i64 || numbers.numel() != kNumbers || !crow.defined() ||
      crow.dtype() != DType::i64 || crow.rank() != 1 || crow.numel() == 0 || !col.defined() || col.rank() != 1 ||
      !name.defined() || name.dtype() != DType::u8)
    fail<FormatError>(path, ": no graph is in this store; expected sections numbers, name, crow and col");
  const auto* n = numbers.data<std::int64_t>();
  const Numbers of{n[0], n[1], n[2], n[3], n[4]};
  Csr a{.crow = crow,
        .col = col,
        .cols = of.cols,
        .t_crow = section("t_crow"),
        .t_col = section("t_col"),
        .t_edge = section("t_edge")};
  const bool turned = a.t_crow.defined();
  const auto is_offsets = [&](const Tensor& t) {
    return t.dtype() == DType::i64 && t.rank() == 1 && t.numel() == of.cols + 1;
  };
  const auto is_index = [&](const Tensor& t) { return t.dtype() == col.dtype() && t.shape() == col.shape(); };
  if (of.cols < 0 || of.cols > kMaxDim || a.t_col.defined() != turned || a.t_edge.defined() != turned ||
      (turned && (!is_offsets(a.t_crow) || !is_index(a.t_col) || !is_index(a.t_edge))))
    fail<FormatError>(path, ": the sections of the transpose do not fit ", of.cols, " nodes and ", col.numel(),
                      " edges; save the graph again");
  if (trusted)
    a.facts = std::make_shared<const CsrFacts>(a, CsrFacts::Promise{of.longest_row, of.longest_column, true});
  GraphOptions options;
  options.bipartite = of.bipartite != 0;
  options.transposed = turned;
  options.trusted = trusted;
  const auto make = [&] {
    try {
      return Graph::from_csr(std::move(a), options, section("weight"), section("attr"), section("ids"));
    } catch (const ShapeError& e) { fail<FormatError>(path, ": ", e.what()); } catch (const DTypeError& e) {
      fail<FormatError>(path, ": ", e.what());
    } catch (const ConfigError& e) { fail<FormatError>(path, ": ", e.what()); }
  };
  NodeData nodes{.graph = make()};
  // attach_graph trusts these numbers where open_graph has taken the file.
  if (const CsrFacts* facts = nodes.graph.csr().known();
      !facts || facts->longest_row != of.longest_row || facts->longest_column != of.longest_column)
    fail<FormatError>(path, ": the longest row and column are ", of.longest_row, " and ", of.longest_column,
                      " by the file, others by its pattern; save the graph again");
  if (name.numel() > 0)
    nodes.name.assign(reinterpret_cast<const char*>(name.data<std::uint8_t>()), static_cast<std::size_t>(name.numel()));
  nodes.x = section("x");
  nodes.y = section("y");
  nodes.train = section("train");
  nodes.val = section("val");
  nodes.test = section("test");
  nodes.num_classes = of.num_classes;
  check_nodes<FormatError>(path, nodes, !trusted);
  return nodes;
}

}  // namespace

void save_graph(const std::string& path, const NodeData& nodes) {
  if (nodes.sparse_x.defined())
    fail<UnsupportedError>("save_graph: the features are sparse; make them dense as x, or leave them out");
  const Csr& a = nodes.graph.csr();
  if (!nodes.graph.device().is_cpu())
    fail<DeviceError>("save_graph: the graph is on ", nodes.graph.device(), ", expected cpu");
  check_nodes<DataError>("save_graph", nodes, true);
  const CsrFacts* facts = a.known();
  if (!facts) fail<StateError>("save_graph: the graph's tensors were written after it was made");
  const Numbers numbers{a.cols, facts->longest_row, facts->longest_column, nodes.graph.is_bipartite(),
                        nodes.num_classes};
  const std::array<std::int64_t, kNumbers> list{numbers.cols, numbers.longest_row, numbers.longest_column,
                                                numbers.bipartite, numbers.num_classes};
  const std::vector<std::uint8_t> letters(nodes.name.begin(), nodes.name.end());
  NamedTensors tensors;
  const auto add = [&](const char* name, const Tensor& t) {
    if (t.defined()) tensors.emplace_back(name, levin::detail::dense_on_host(std::string("save_graph: ") + name, t));
  };
  add("numbers", from_data<std::int64_t>(std::span<const std::int64_t>(list), {kNumbers}, Device::cpu()));
  add("name", from_data<std::uint8_t>(letters, {static_cast<std::int64_t>(letters.size())}, Device::cpu()));
  add("crow", a.crow);
  add("col", a.col);
  add("t_crow", a.t_crow);
  add("t_col", a.t_col);
  add("t_edge", a.t_edge);
  add("ids", nodes.graph.edge_ids());
  add("weight", nodes.graph.weight());
  add("attr", nodes.graph.attr());
  add("x", nodes.x);
  add("y", nodes.y);
  add("train", nodes.train);
  add("val", nodes.val);
  add("test", nodes.test);
  const Layout layout = plan(tensors, kPage);
  // The bytes in order: header and table, then each section after its zeros.
  const std::uint64_t first = layout.sections.front().offset;
  std::vector<std::uint64_t> head((first + 7) / 8);
  auto* const to = reinterpret_cast<std::byte*>(head.data());
  write_header(to, layout.bytes, layout.sections.size(), kHeader, layout.table);
  std::copy_n(reinterpret_cast<const std::byte*>(layout.table.data()), layout.table.size(), to + kHeader);
  set_ready(to);
  const std::vector<std::byte> zeros(kPage);
  std::vector<std::span<const std::byte>> parts{{to, static_cast<std::size_t>(first)}};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Section& s = layout.sections[i];
    parts.push_back(levin::detail::bytes_of(tensors[i].second));
    const std::uint64_t next = i + 1 < tensors.size() ? layout.sections[i + 1].offset : layout.bytes;
    parts.push_back({zeros.data(), static_cast<std::size_t>(next - s.offset - s.bytes)});
  }
  write_file_atomically(path, parts);
}

NodeData open_graph(const std::string& path) { return read(path, false); }
NodeData attach_graph(const std::string& path) { return read(path, true); }

}  // namespace levin::gnn
