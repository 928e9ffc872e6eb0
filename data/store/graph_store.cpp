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
  if (const SparseFeatures& sparse = nodes.sparse_x; sparse.defined()) {
    if (x.defined()) fail<E>(where, ": x and sparse_x are both there, expected one");
    if (sparse.values.dtype() != DType::f32 || sparse.values.shape() != sparse.csr.col.shape())
      fail<E>(where, ": the values of sparse_x are ", sparse.values.dtype(), " ", sparse.values.shape(),
              ", expected f32 ", sparse.csr.col.shape());
    if (!g.is_bipartite() && sparse.csr.crow.numel() != n + 1)
      fail<E>(where, ": sparse_x has ", sparse.csr.crow.numel() - 1, " rows, expected ", n, ", one a node");
  }
}

// A sparse matrix is the sections PREFIXcrow, PREFIXcol, and t_crow, t_col, t_edge where it has its transpose.
template <class Find>
Csr csr_of(const std::string& prefix, std::int64_t cols, Find&& section) {
  return {.crow = section(prefix + "crow"),
          .col = section(prefix + "col"),
          .cols = cols,
          .t_crow = section(prefix + "t_crow"),
          .t_col = section(prefix + "t_col"),
          .t_edge = section(prefix + "t_edge")};
}
// Throws FormatError for sections that are no matrix; `what` names it.
void check_sections(const std::string& path, const char* what, const Csr& a) {
  if (!a.crow.defined() || a.crow.dtype() != DType::i64 || a.crow.rank() != 1 || a.crow.numel() == 0 ||
      !a.col.defined() || a.col.rank() != 1)
    fail<FormatError>(path, ": no ", what, " is in this store; expected sections crow and col");
  const bool turned = a.t_crow.defined();
  const auto is_offsets = [&](const Tensor& t) {
    return t.dtype() == DType::i64 && t.rank() == 1 && t.numel() == a.cols + 1;
  };
  const auto is_index = [&](const Tensor& t) { return t.dtype() == a.col.dtype() && t.shape() == a.col.shape(); };
  if (a.cols < 0 || a.cols > kMaxDim || a.t_col.defined() != turned || a.t_edge.defined() != turned ||
      (turned && (!is_offsets(a.t_crow) || !is_index(a.t_col) || !is_index(a.t_edge))))
    fail<FormatError>(path, ": the sections of the transpose do not fit ", a.cols, " columns and ", a.col.numel(),
                      " entries of the ", what, "; save the graph again");
}
void check_facts(const std::string& path, const char* what, const CsrFacts* facts, std::int64_t row,
                 std::int64_t column) {
  if (!facts || facts->longest_row != row || facts->longest_column != column)
    fail<FormatError>(path, ": the longest row and column of the ", what, " are ", row, " and ", column,
                      " by the file, others by its pattern; save the graph again");
}

NodeData read(const std::string& path, bool trusted) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) fail<FileError>(path, ": opening failed: ", std::generic_category().message(errno));
  const auto mapping = std::make_shared<Mapping>(std::move(file), path);
  if (!trusted) mapping->verify();
  const auto section = [&](std::string_view name) {
    const auto& all = mapping->sections();
    const auto at = std::find_if(all.begin(), all.end(), [&](const Section& s) { return s.name == name; });
    return at == all.end() ? Tensor() : mapping->view(static_cast<std::size_t>(at - all.begin()));
  };
  const Tensor numbers = section("numbers"), name = section("name");
  if (!numbers.defined() || numbers.dtype() != DType::i64 || numbers.numel() != kNumbers || !name.defined() ||
      name.dtype() != DType::u8)
    fail<FormatError>(path, ": no graph is in this store; expected sections numbers, name, crow and col");
  const auto* n = numbers.data<std::int64_t>();
  const Numbers of{n[0], n[1], n[2], n[3], n[4]};
  Csr a = csr_of("", of.cols, section);
  check_sections(path, "graph", a);
  if (trusted)
    a.facts = std::make_shared<const CsrFacts>(a, CsrFacts::Promise{of.longest_row, of.longest_column, true});
  GraphOptions options;
  options.bipartite = of.bipartite != 0;
  options.transposed = a.t_crow.defined();
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
  check_facts(path, "graph", nodes.graph.csr().known(), of.longest_row, of.longest_column);
  if (name.numel() > 0)
    nodes.name.assign(reinterpret_cast<const char*>(name.data<std::uint8_t>()), static_cast<std::size_t>(name.numel()));
  nodes.x = section("x");
  nodes.y = section("y");
  nodes.train = section("train");
  nodes.val = section("val");
  nodes.test = section("test");
  nodes.num_classes = of.num_classes;
  if (const Tensor values = section("sparse_x"); values.defined()) {
    const Tensor features = section("sparse_x_numbers");
    if (!features.defined() || features.dtype() != DType::i64 || features.numel() != 3)
      fail<FormatError>(path, ": section sparse_x_numbers has no three i64; save the graph again");
    const auto* k = features.data<std::int64_t>();
    Csr sparse = csr_of("sparse_x_", k[0], section);
    check_sections(path, "matrix of features", sparse);
    if (trusted)
      sparse.facts = std::make_shared<const CsrFacts>(sparse, CsrFacts::Promise{k[1], k[2], true});
    else
      sparse = checked(std::move(sparse));
    check_facts(path, "matrix of features", sparse.known(), k[1], k[2]);
    nodes.sparse_x = {.csr = std::move(sparse), .values = values};
  }
  if (const Tensor letters = section("class_names"); letters.defined()) {
    if (letters.dtype() != DType::u8 || letters.numel() == 0 || letters.data<std::uint8_t>()[letters.numel() - 1] != 0)
      fail<FormatError>(path, ": section class_names has no names that end in 0; save the graph again");
    std::string one;
    for (std::int64_t i = 0; i < letters.numel(); ++i) {
      const auto c = static_cast<char>(letters.data<std::uint8_t>()[i]);
      if (c != 0)
        one += c;
      else
        nodes.class_names.push_back(std::exchange(one, {}));
    }
    if (static_cast<std::int64_t>(nodes.class_names.size()) != nodes.num_classes)
      fail<FormatError>(path, ": ", nodes.class_names.size(), " names of ", nodes.num_classes, " classes");
  }
  check_nodes<FormatError>(path, nodes, !trusted);
  return nodes;
}

}  // namespace

void save_graph(const std::string& path, const NodeData& nodes) {
  const Csr& a = nodes.graph.csr();
  if (!nodes.graph.device().is_cpu())
    fail<DeviceError>("save_graph: the graph is on ", nodes.graph.device(), ", expected cpu");
  check_nodes<DataError>("save_graph", nodes, true);
  const CsrFacts* facts = a.known();
  if (!facts) fail<StateError>("save_graph: the graph's tensors were written after it was made");
  const CsrFacts* sparse = nullptr;
  if (nodes.sparse_x.defined() && !(sparse = nodes.sparse_x.csr.known()))
    fail<StateError>("save_graph: the pattern of sparse_x is not checked(), or was written after it");
  std::vector<std::uint8_t> names;
  for (const std::string& name : nodes.class_names) {
    if (name.find('\0') != std::string::npos) fail<DataError>("save_graph: the name of a class has a character 0");
    names.insert(names.end(), name.c_str(), name.c_str() + name.size() + 1);
  }
  const Numbers numbers{a.cols, facts->longest_row, facts->longest_column, nodes.graph.is_bipartite(),
                        nodes.num_classes};
  const std::array<std::int64_t, kNumbers> list{numbers.cols, numbers.longest_row, numbers.longest_column,
                                                numbers.bipartite, numbers.num_classes};
  const std::vector<std::uint8_t> letters(nodes.name.begin(), nodes.name.end());
  NamedTensors tensors;
  const auto add = [&](const std::string& name, const Tensor& t) {
    if (t.defined()) tensors.emplace_back(name, levin::detail::dense_on_host("save_graph: " + name, t));
  };
  const auto add_csr = [&](const std::string& prefix, const Csr& m) {
    add(prefix + "crow", m.crow);
    add(prefix + "col", m.col);
    add(prefix + "t_crow", m.t_crow);
    add(prefix + "t_col", m.t_col);
    add(prefix + "t_edge", m.t_edge);
  };
  add("numbers", from_data<std::int64_t>(std::span<const std::int64_t>(list), {kNumbers}, Device::cpu()));
  add("name", from_data<std::uint8_t>(letters, {static_cast<std::int64_t>(letters.size())}, Device::cpu()));
  add_csr("", a);
  add("ids", nodes.graph.edge_ids());
  add("weight", nodes.graph.weight());
  add("attr", nodes.graph.attr());
  add("x", nodes.x);
  add("y", nodes.y);
  add("train", nodes.train);
  add("val", nodes.val);
  add("test", nodes.test);
  if (sparse) {
    const std::array<std::int64_t, 3> of{nodes.sparse_x.csr.cols, sparse->longest_row, sparse->longest_column};
    add("sparse_x_numbers", from_data<std::int64_t>(std::span<const std::int64_t>(of), {3}, Device::cpu()));
    add_csr("sparse_x_", nodes.sparse_x.csr);
    add("sparse_x", nodes.sparse_x.values);
  }
  if (!names.empty())
    add("class_names", from_data<std::uint8_t>(names, {static_cast<std::int64_t>(names.size())}, Device::cpu()));
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
