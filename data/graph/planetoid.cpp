#include "data/graph/planetoid.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "data/sampler.h"
#include "levin/error.h"
#include "tensor/core/formats.h"
#include "tensor/graph/rows.h"

namespace levin::gnn {
namespace {

using Ids = std::vector<std::int64_t>;

// More classes than this are ids that were taken for labels.
constexpr std::int64_t kMostClasses = std::int64_t{1} << 16;

Tensor as_tensor(const Ids& ids) {
  return from_data<std::int64_t>(ids, {static_cast<std::int64_t>(ids.size())}, Device::cpu());
}

// An array of a file, with the file's name for messages.
struct Array {
  std::string file;
  Tensor t;
};

Array read_array(levin::detail::Source& source) { return {source.name(), levin::detail::read_npy(source)}; }
std::optional<Array> read_if_there(const Files& files, const std::string& name) {
  const auto source = files.open(name);
  return source ? std::optional(read_array(*source)) : std::nullopt;
}

void check_shape(const Array& a, bool good, const char* expected) {
  if (!good) fail<FormatError>(a.file, ": has shape ", a.t.shape(), ", expected ", expected);
}
// Integers as i64, of any shape.
Array integers(Array a) {
  if (a.t.dtype() != DType::i64 && a.t.dtype() != DType::i32)
    fail<FormatError>(a.file, ": is ", a.t.dtype(), ", expected i64 or i32");
  a.t = a.t.to(DType::i64);
  return a;
}
// Floats as f32, all finite.
Array finite(Array a) {
  if (!is_float(a.t.dtype())) fail<FormatError>(a.file, ": is ", a.t.dtype(), ", expected a float dtype");
  const DType dtype = a.t.dtype();
  a.t = a.t.to(DType::f32);
  const float* at = a.t.data<float>();
  const auto* end = at + a.t.numel();
  const auto* bad = std::find_if(at, end, [](float x) { return !std::isfinite(x); });
  if (bad != end) {
    const std::int64_t i = bad - at, width = a.t.rank() == 2 ? a.t.size(1) : 1;
    fail<FormatError>(a.file, ": element ", i,
                      a.t.rank() == 2 ? ", row " + text(i / width) + ", column " + text(i % width) : "", ", is ", *bad,
                      " (", dtype, "), expected a finite f32");
  }
  return a;
}
void check_range(const Array& a, std::int64_t begin, std::int64_t end, std::int64_t bound, const char* what) {
  const auto* at = a.t.data<std::int64_t>();
  for (std::int64_t i = begin; i < end; ++i) {
    if (at[i] < 0 || at[i] >= bound)
      fail<FormatError>(a.file, ": element ", i, " is ", at[i], ", expected 0 to ", bound - 1, ", ", what);
  }
}

// ---- Features

// x_data, x_indices, x_indptr and x_shape as a checked pattern with values.
SparseFeatures read_sparse(const Files& files, levin::detail::Source& data_source, std::int64_t nodes) {
  constexpr const char* kWhy = "x_data.npy needs x_indices, x_indptr and x_shape beside it";
  const Array values = finite(read_array(data_source));
  Array indices = integers(read_array(*files.need("x_indices.npy", kWhy)));
  const Array indptr = integers(read_array(*files.need("x_indptr.npy", kWhy)));
  const Array shape = integers(read_array(*files.need("x_shape.npy", kWhy)));
  check_shape(shape, shape.t.shape() == Shape{2}, "[2]");
  const auto* size = shape.t.data<std::int64_t>();
  if (size[0] != nodes)
    fail<FormatError>(shape.file, ": says ", size[0], " rows, expected ", nodes, ", the nodes of y");
  if (size[1] < 0 || size[1] > kMaxDim)
    fail<FormatError>(shape.file, ": says ", size[1], " columns, expected 0 to ", kMaxDim);
  check_shape(indptr, indptr.t.shape() == Shape{nodes + 1}, "one element more than there are nodes");
  check_shape(indices, indices.t.rank() == 1, "[entries]");
  const std::int64_t entries = indices.t.numel();
  if (values.t.shape() != indices.t.shape())
    fail<FormatError>(values.file, ": has shape ", values.t.shape(), ", expected ", indices.t.shape(),
                      ", that of x_indices");
  const auto *row = indptr.t.data<std::int64_t>(), *col = indices.t.data<std::int64_t>();
  std::int64_t longest = 0;
  for (std::int64_t i = 0; i <= nodes; ++i) {
    const std::int64_t least = i == 0 ? 0 : row[i - 1], most = i == 0 ? 0 : entries;
    if (row[i] < least || row[i] > most || (i == nodes && row[i] != entries))
      fail<FormatError>(indptr.file, ": element ", i, " is ", row[i], ", expected ", i == nodes ? entries : least,
                        " to ", most);
    longest = std::max(longest, row[i] - least);
  }
  check_range(indices, 0, entries, size[1], "a column");
  for (std::int64_t i = 0; i < nodes; ++i) {
    for (std::int64_t k = row[i] + 1; k < row[i + 1]; ++k) {
      if (col[k] <= col[k - 1])
        fail<FormatError>(indices.file, ": element ", k, " is ", col[k], " after ", col[k - 1], " in row ", i,
                          ", expected columns that ascend");
    }
  }
  if (size[1] <= std::numeric_limits<std::int32_t>::max() && entries <= std::numeric_limits<std::int32_t>::max())
    indices.t = indices.t.to(DType::i32);
  Csr a{.crow = indptr.t, .col = indices.t, .cols = size[1]};
  a.facts = std::make_shared<const CsrFacts>(a, CsrFacts::Promise{.longest_row = longest, .ascending = true});
  return {std::move(a), values.t};
}

Tensor dense(const SparseFeatures& x, const std::string& place, std::int64_t most_bytes) {
  const std::int64_t rows = x.csr.rows(), width = x.csr.cols;
  if (width > 0 && rows > most_bytes / 4 / width)
    fail<OutOfMemoryError>(place, ": x as a dense f32 [", rows, ", ", width, "] has more than ", most_bytes,
                           " bytes; set sparse_features, or raise dense_bytes");
  Tensor out = empty({rows, width}, Device::cpu());
  float* to = out.mutable_data<float>();
  std::fill_n(to, out.numel(), 0.0f);
  const auto* row = x.csr.crow.data<std::int64_t>();
  const float* value = x.values.data<float>();
  const auto put = [&]<class I>(I) {
    const I* col = x.csr.col.data<I>();
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t k = row[i]; k < row[i + 1]; ++k) to[i * width + col[k]] = value[k];
    }
  };
  x.csr.col.dtype() == DType::i32 ? put(std::int32_t{}) : put(std::int64_t{});
  return out;
}

SparseFeatures sparse(const Tensor& x) {
  const std::int64_t rows = x.size(0), width = x.size(1);
  const float* at = x.data<float>();
  Ids row{0}, col;
  std::vector<float> values;
  std::int64_t longest = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t f = 0; f < width; ++f) {
      if (at[i * width + f] == 0) continue;
      col.push_back(f);
      values.push_back(at[i * width + f]);
    }
    row.push_back(static_cast<std::int64_t>(col.size()));
    longest = std::max(longest, row.back() - row[row.size() - 2]);
  }
  Csr a{.crow = as_tensor(row), .col = as_tensor(col), .cols = width};
  if (a.entries() <= std::numeric_limits<std::int32_t>::max()) a.col = a.col.to(DType::i32);
  a.facts = std::make_shared<const CsrFacts>(a, CsrFacts::Promise{.longest_row = longest, .ascending = true});
  return {std::move(a), from_data<float>(values, {static_cast<std::int64_t>(values.size())}, Device::cpu())};
}

void read_features(const Files& files, const PlanetoidOptions& o, NodeData& out) {
  const std::int64_t nodes = out.y.numel();
  if (auto x = read_if_there(files, "x.npy")) {
    check_shape(*x, x->t.rank() == 2 && x->t.size(0) == nodes, ("[" + text(nodes) + ", F], a row a node of y").c_str());
    out.x = finite(std::move(*x)).t;
    if (!o.sparse_features) return;
    out.sparse_x = sparse(out.x);
    out.x = {};
  } else if (const auto data = files.open("x_data.npy")) {
    out.sparse_x = read_sparse(files, *data, nodes);
    if (o.sparse_features) return;
    out.x = dense(out.sparse_x, files.place, o.dense_bytes);
    out.sparse_x = {};
  }
}

// ---- Splits

Tensor read_part(const Files& files, const std::string& part, std::int64_t nodes) {
  if (const auto mask = read_if_there(files, part + "_mask.npy")) {
    if (mask->t.dtype() != DType::b8) fail<FormatError>(mask->file, ": is ", mask->t.dtype(), ", expected bool");
    check_shape(*mask, mask->t.shape() == Shape{nodes}, ("[" + text(nodes) + "], an element a node of y").c_str());
    Ids in;
    for (std::int64_t i = 0; i < nodes; ++i) {
      if (mask->t.data<bool>()[i]) in.push_back(i);
    }
    return as_tensor(in);
  }
  const auto source = files.open(part + "_idx.npy");
  if (!source)
    fail<FileError>(files.place, ": has neither ", part, "_idx.npy nor ", part,
                    "_mask.npy; set split to NodeSplit::random");
  const Array index = integers(read_array(*source));
  check_shape(index, index.t.rank() == 1, "[nodes of the part]");
  check_range(index, 0, index.t.numel(), nodes, "a node");
  std::vector<std::uint8_t> seen(static_cast<std::size_t>(nodes));
  for (std::int64_t i = 0; i < index.t.numel(); ++i) {
    const auto node = static_cast<std::size_t>(index.t.data<std::int64_t>()[i]);
    if (seen[node]++ != 0)
      fail<FormatError>(index.file, ": element ", i, " is ", node,
                        ", which an earlier one is; expected distinct nodes");
  }
  return index.t;
}

void split_at_random(const PlanetoidOptions& o, NodeData& out) {
  const std::int64_t nodes = out.y.numel();
  const auto* y = out.y.data<std::int64_t>();
  Ids taken(static_cast<std::size_t>(out.num_classes)), train, rest;
  for (const std::int64_t i : data::permutation(nodes, o.seed, 0, data::Purpose::split))
    (taken[static_cast<std::size_t>(y[i])]++ < o.train_per_class ? train : rest).push_back(i);
  const auto left = static_cast<std::int64_t>(rest.size());
  if (o.num_val > left || o.num_test > left - o.num_val)
    fail<ConfigError>("planetoid: num_val is ", o.num_val, " and num_test ", o.num_test, ", expected at most ", left,
                      " together, the nodes that are not for training");
  const auto part = [&](std::int64_t begin, std::int64_t count) {
    Ids nodes_of(rest.begin() + begin, rest.begin() + begin + count);
    std::sort(nodes_of.begin(), nodes_of.end());
    return as_tensor(nodes_of);
  };
  std::sort(train.begin(), train.end());
  out.train = as_tensor(train);
  out.val = part(0, o.num_val);
  out.test = part(o.num_val, o.num_test);
}

void read_split(const Files& files, const PlanetoidOptions& o, NodeData& out) {
  if (o.split == NodeSplit::random) return split_at_random(o, out);
  const std::int64_t nodes = out.y.numel();
  out.val = read_part(files, "val", nodes);
  out.test = read_part(files, "test", nodes);
  if (o.split == NodeSplit::files) {
    out.train = read_part(files, "train", nodes);
    return;
  }
  std::vector<std::uint8_t> held(static_cast<std::size_t>(nodes));
  for (const Tensor& part : {out.val, out.test}) {
    for (std::int64_t i = 0; i < part.numel(); ++i) held[static_cast<std::size_t>(part.data<std::int64_t>()[i])] = 1;
  }
  Ids train;
  for (std::int64_t i = 0; i < nodes; ++i) {
    if (held[static_cast<std::size_t>(i)] == 0) train.push_back(i);
  }
  out.train = as_tensor(train);
}

// ---- Names

struct KnownClasses {
  std::string_view data_set;
  std::vector<std::string> names;
};
std::vector<std::string> names_of_classes(const std::string& data_set, std::int64_t classes) {
  // In the order of the labels: the sizes of the classes in the original files say which is which.
  static const std::array<KnownClasses, 3> known{{
      {"cora",
       {"Theory", "Reinforcement_Learning", "Genetic_Algorithms", "Neural_Networks", "Probabilistic_Methods",
        "Case_Based", "Rule_Learning"}},
      {"citeseer", {"AI", "ML", "IR", "DB", "Agents", "HCI"}},
      {"pubmed", {"Diabetes Mellitus, Experimental", "Diabetes Mellitus Type 1", "Diabetes Mellitus Type 2"}},
  }};
  std::string lower;
  for (const char c : data_set) lower += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  for (const KnownClasses& k : known) {
    if (k.data_set == lower && static_cast<std::int64_t>(k.names.size()) == classes) return k.names;
  }
  return numbered_classes(classes);
}

void check(const PlanetoidOptions& o) {
  for (const auto& [name, value] : {std::pair<const char*, std::int64_t>{"train_per_class", o.train_per_class},
                                    {"num_val", o.num_val},
                                    {"num_test", o.num_test},
                                    {"dense_bytes", o.dense_bytes}}) {
    if (value < 0) fail<ConfigError>("planetoid: ", name, " is ", value, ", expected 0 or more");
  }
}

// Loops and repeats leave the rows, in place.
template <class I>
Csr simple_rows(Csr a) {
  auto* crow = a.crow.mutable_data<std::int64_t>();
  I* col = a.col.mutable_data<I>();
  std::int64_t kept = 0, longest = 0, begin = 0;
  for (std::int64_t i = 0; i < a.rows(); ++i) {
    const std::int64_t first = kept, end = crow[i + 1];
    for (std::int64_t k = begin; k < end; ++k) {
      if (col[k] != i && (kept == first || col[kept - 1] != col[k])) col[kept++] = col[k];
    }
    begin = end;
    crow[i + 1] = kept;
    longest = std::max(longest, kept - first);
  }
  if (kept != a.entries()) {  // a copy, so that the rest of the memory is freed
    Tensor rest = empty({kept}, Device::cpu(), dtype_of<I>);
    std::copy_n(col, kept, rest.mutable_data<I>());
    a.col = rest;
  }
  a.facts = std::make_shared<const CsrFacts>(a, CsrFacts::Promise{.longest_row = longest, .ascending = true});
  return a;
}

}  // namespace

std::vector<std::string> numbered_classes(std::int64_t classes) {
  std::vector<std::string> names;
  for (std::int64_t c = 0; c < classes; ++c) names.push_back(text(c));
  return names;
}

Graph simple_graph(const char* op, const EdgeList& list) {
  Csr a = levin::detail::rows_of_edges(op, list.src, list.dst, list.num_src, list.num_dst, false).csr;
  a = a.col.dtype() == DType::i32 ? simple_rows<std::int32_t>(std::move(a)) : simple_rows<std::int64_t>(std::move(a));
  return Graph::from_csr(std::move(a), {.trusted = true});
}

NodeData read_planetoid(const Files& files, const std::string& name, const PlanetoidOptions& options) {
  check(options);
  constexpr const char* kWhy = "Planetoid's arrays are edge_index, y, x and the splits";
  const Array y = integers(read_array(*files.need("y.npy", kWhy)));
  check_shape(y, y.t.rank() == 1, "[N]");
  const std::int64_t nodes = y.t.numel();
  check_range(y, 0, nodes, kMostClasses, "a class");
  const Array index = integers(read_array(*files.need("edge_index.npy", kWhy)));
  check_shape(index, index.t.rank() == 2 && index.t.size(0) == 2, "[2, E]");
  check_range(index, 0, index.t.numel(), nodes, "a node of y");
  const std::int64_t edges = index.t.size(1);
  const auto row = [&](std::int64_t r) { return as_strided(index.t, {edges}, Strides{{1}}, r * edges); };
  NodeData out{.name = name,
               .graph = simple_graph("planetoid", {.src = row(0), .dst = row(1), .num_src = nodes, .num_dst = nodes})};
  out.y = y.t;
  const auto* label = y.t.data<std::int64_t>();
  out.num_classes = nodes == 0 ? 0 : 1 + *std::max_element(label, label + nodes);
  out.class_names = names_of_classes(name, out.num_classes);
  read_features(files, options, out);
  read_split(files, options, out);
  return out;
}

NodeData planetoid(const std::string& dir, const std::string& name, const PlanetoidOptions& options) {
  const std::filesystem::path folder(dir);
  return read_planetoid(files_of(name.empty() ? dir : (folder / name).string()),
                        name.empty() ? (folder / "").parent_path().filename().string() : name, options);
}

}  // namespace levin::gnn
