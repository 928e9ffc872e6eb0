#include "data/graph/tu.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "data/graph/table.h"
#include "levin/error.h"
#include "tensor/graph/rows.h"

namespace levin::gnn {
namespace {

using Ints = Table<std::int64_t>;
using Ids = std::vector<std::int64_t>;

// A column of labels that spans more values is no label.
constexpr std::uint64_t kMostLabels = std::uint64_t{1} << 16;

template <class T>
std::optional<Table<T>> read_if_there(const Files& files, const std::string& name, std::int64_t rows,
                                      const char* what) {
  const auto source = files.open(name);
  if (!source) return std::nullopt;
  Table<T> table = read_table<T>(*source);
  if (table.rows != rows)
    fail<FormatError>(table.file, ": has ", table.rows, " lines, expected ", rows, ", one ", what);
  return table;
}
Ints read_needed(const Files& files, const std::string& name, std::int64_t columns, const char* why) {
  Ints table = read_table<std::int64_t>(*files.need(name, why));
  if (table.rows > 0 && table.columns != columns)
    fail<FormatError>(table.file, ": line 1 has ", table.columns, " columns, expected ", columns);
  return table;
}

// ---- Features: rows [attributes | one-hot labels]

struct Columns {
  std::int64_t width = 0;
  const Table<float>* attributes = nullptr;
  const Ints* labels = nullptr;
  Ids least{}, start{};  // of each column of labels: its least value, and its first column among all
};
Columns columns_of(const std::optional<Table<float>>& attributes, const std::optional<Ints>& labels,
                   bool use_attributes) {
  Columns c;
  if (attributes && use_attributes) {
    c.attributes = &*attributes;
    c.width = attributes->columns;
  }
  if (!labels) return c;
  c.labels = &*labels;
  for (std::int64_t k = 0; k < labels->columns; ++k) {
    std::int64_t least = labels->at(0, k), most = least, where = 0;
    for (std::int64_t i = 0; i < labels->rows; ++i) {
      const std::int64_t v = labels->at(i, k);
      least = std::min(least, v);
      if (v > most) where = i;
      most = std::max(most, v);
    }
    const std::uint64_t span = static_cast<std::uint64_t>(most) - static_cast<std::uint64_t>(least);
    if (span >= kMostLabels)
      fail<FormatError>(labels->file, ": line ", where + 1, ", column ", k + 1, " is ", most, " and the least is ",
                        least, ", expected labels that span fewer than ", kMostLabels, " values");
    c.least.push_back(least);
    c.start.push_back(c.width);
    c.width += static_cast<std::int64_t>(span) + 1;
  }
  return c;
}
void add_row(const Columns& c, std::int64_t row, double* to) {
  for (std::int64_t k = 0; c.attributes && k < c.attributes->columns; ++k)
    to[k] += static_cast<double>(c.attributes->at(row, k));
  for (std::int64_t k = 0; c.labels && k < c.labels->columns; ++k) {
    const auto at = static_cast<std::size_t>(k);
    to[c.start[at] + c.labels->at(row, k) - c.least[at]] += 1;
  }
}
Tensor allocate(const std::string& place, const char* what, std::int64_t rows, std::int64_t width,
                std::int64_t most_bytes) {
  if (width > 0 && rows > most_bytes / 4 / width)
    fail<OutOfMemoryError>(place, ": ", what, " as f32 [", rows, ", ", width, "] have more than ", most_bytes,
                           " bytes; raise feature_bytes");
  return empty({rows, width}, Device::cpu());
}

// ---- All graphs as one, cut into views

template <class I>
void shift(Tensor& t, std::int64_t begin, std::int64_t end, std::int64_t by) {
  I* at = t.mutable_data<I>();
  for (std::int64_t k = begin; k < end; ++k) at[k] = static_cast<I>(at[k] - by);
}
Tensor view(const Tensor& all, std::int64_t begin, std::int64_t count) {
  if (!all.defined()) return all;
  if (all.rank() == 1) return as_strided(all, {count}, Strides{{1}}, begin);
  const std::int64_t width = all.size(1);
  return as_strided(all, {count, width}, Strides{{width, 1}}, begin * width);
}

struct Union {
  Csr rows{};     // of all graphs, without loops and repeats, with its transpose
  Tensor attr{};  // in the same order
};
// Joins the edges of the same ends, and leaves out loops.
template <class I>
Union joined(levin::detail::Rows all, const Columns& columns, const std::string& place, std::int64_t most_bytes) {
  Csr a = std::move(all.csr);
  auto* crow = a.crow.mutable_data<std::int64_t>();
  I* col = a.col.mutable_data<I>();
  const I* ids = all.edge_ids.defined() ? all.edge_ids.data<I>() : nullptr;
  Union out;
  float* attr = nullptr;
  if (columns.width > 0) {
    out.attr = allocate(place, "attributes of edges", a.entries(), columns.width, most_bytes);
    attr = out.attr.mutable_data<float>();
  }
  std::vector<double> sum(static_cast<std::size_t>(columns.width));
  std::int64_t kept = 0, begin = 0, longest = 0;
  for (std::int64_t i = 0; i < a.rows(); ++i) {
    const std::int64_t first = kept, end = crow[i + 1];
    for (std::int64_t k = begin, run = k; k < end; k = run) {
      while (run < end && col[run] == col[k]) ++run;
      if (col[k] == i) continue;
      if (attr) {
        std::fill(sum.begin(), sum.end(), 0.0);
        for (std::int64_t e = k; e < run; ++e) add_row(columns, ids ? std::int64_t{ids[e]} : e, sum.data());
        std::transform(sum.begin(), sum.end(), attr + kept * columns.width,
                       [](double s) { return static_cast<float>(s); });
      }
      col[kept++] = col[k];
    }
    begin = end;
    crow[i + 1] = kept;
    longest = std::max(longest, kept - first);
  }
  a.col = view(a.col, 0, kept);
  out.attr = view(out.attr, 0, kept);
  a.facts = std::make_shared<const CsrFacts>(a, CsrFacts::Promise{.longest_row = longest, .ascending = true});
  out.rows = levin::detail::with_columns(std::move(a));
  return out;
}

// Graph g has the nodes [ptr[g], ptr[g + 1]) of the union.
template <class I>
std::vector<Graph> cut(Union all, const Ids& ptr) {
  Csr& a = all.rows;
  const auto graphs = static_cast<std::int64_t>(ptr.size()) - 1;
  Tensor crow = empty({a.rows() + graphs}, Device::cpu(), DType::i64), t_crow = empty_like(crow);
  const auto *from = a.crow.data<std::int64_t>(), *t_from = a.t_crow.data<std::int64_t>();
  auto *to = crow.mutable_data<std::int64_t>(), *t_to = t_crow.mutable_data<std::int64_t>();
  std::vector<CsrFacts::Promise> facts;
  for (std::int64_t g = 0; g < graphs; ++g) {
    const std::int64_t begin = ptr[static_cast<std::size_t>(g)], end = ptr[static_cast<std::size_t>(g) + 1];
    CsrFacts::Promise p{.longest_row = 0, .longest_column = 0, .ascending = true};
    for (std::int64_t i = begin; i <= end; ++i) {
      *to++ = from[i] - from[begin];
      *t_to++ = t_from[i] - from[begin];
      if (i == end) break;
      p.longest_row = std::max(p.longest_row, from[i + 1] - from[i]);
      p.longest_column = std::max(p.longest_column, t_from[i + 1] - t_from[i]);
    }
    shift<I>(a.col, from[begin], from[end], begin);
    shift<I>(a.t_col, from[begin], from[end], begin);
    shift<I>(a.t_edge, from[begin], from[end], from[begin]);
    facts.push_back(p);
  }
  std::vector<Graph> out;
  for (std::int64_t g = 0; g < graphs; ++g) {
    const std::int64_t begin = ptr[static_cast<std::size_t>(g)], nodes = ptr[static_cast<std::size_t>(g) + 1] - begin;
    const std::int64_t first = from[begin], edges = from[begin + nodes] - first;
    Csr part{.crow = view(crow, begin + g, nodes + 1),
             .col = view(a.col, first, edges),
             .cols = nodes,
             .t_crow = view(t_crow, begin + g, nodes + 1),
             .t_col = view(a.t_col, first, edges),
             .t_edge = view(a.t_edge, first, edges)};
    part.facts = std::make_shared<const CsrFacts>(part, facts[static_cast<std::size_t>(g)]);
    out.push_back(Graph::from_csr(std::move(part), {.trusted = true}, {}, view(all.attr, first, edges)));
  }
  return out;
}

}  // namespace

GraphSamples read_tu(const Files& files, const std::string& name, const TuOptions& options) {
  if (options.feature_bytes < 0)
    fail<ConfigError>("tu: feature_bytes is ", options.feature_bytes, ", expected 0 or more");
  constexpr const char* kWhy = "the TU format needs _A.txt, _graph_indicator.txt and _graph_labels.txt";
  const Ints labels = read_needed(files, name + "_graph_labels.txt", 1, kWhy);
  const Ints indicator = read_needed(files, name + "_graph_indicator.txt", 1, kWhy);
  const Ints edges = read_needed(files, name + "_A.txt", 2, kWhy);
  const std::int64_t graphs = labels.rows, nodes = indicator.rows;
  if (graphs == 0) fail<FormatError>(labels.file, ": has no line, expected a label for each graph");
  Ids ptr(static_cast<std::size_t>(graphs) + 1);
  for (std::int64_t i = 0; i < nodes; ++i) {
    const std::int64_t g = indicator.at(i);
    if (g < 1 || g > graphs)
      fail<FormatError>(indicator.file, ": line ", i + 1, " is ", g, ", expected 1 to ", graphs, ", a line of ",
                        labels.file);
    if (i > 0 && g < indicator.at(i - 1))
      fail<FormatError>(indicator.file, ": line ", i + 1, " is ", g, " after ", indicator.at(i - 1),
                        ", expected graphs in ascending order");
    ++ptr[static_cast<std::size_t>(g)];
  }
  for (std::size_t g = 1; g < ptr.size(); ++g) ptr[g] += ptr[g - 1];
  Tensor src = empty({edges.rows}, Device::cpu(), DType::i64), dst = empty_like(src);
  auto *from = src.mutable_data<std::int64_t>(), *to = dst.mutable_data<std::int64_t>();
  for (std::int64_t e = 0; e < edges.rows; ++e) {
    for (std::int64_t side = 0; side < 2; ++side) {
      if (edges.at(e, side) < 1 || edges.at(e, side) > nodes)
        fail<FormatError>(edges.file, ": line ", e + 1, ", column ", side + 1, " is ", edges.at(e, side),
                          ", expected 1 to ", nodes, ", a node");
    }
    from[e] = edges.at(e, 0) - 1;
    to[e] = edges.at(e, 1) - 1;
    if (indicator.at(from[e]) != indicator.at(to[e]))
      fail<FormatError>(edges.file, ": line ", e + 1, " joins node ", from[e] + 1, " of graph ", indicator.at(from[e]),
                        " and node ", to[e] + 1, " of graph ", indicator.at(to[e]), ", expected nodes of one graph");
  }
  const auto node_labels = read_if_there<std::int64_t>(files, name + "_node_labels.txt", nodes, "a node");
  const auto node_attr = read_if_there<float>(files, name + "_node_attributes.txt", nodes, "a node");
  const auto edge_labels =
      read_if_there<std::int64_t>(files, name + "_edge_labels.txt", edges.rows, "a line of _A.txt");
  const auto edge_attr = read_if_there<float>(files, name + "_edge_attributes.txt", edges.rows, "a line of _A.txt");

  const Columns of_edges = columns_of(edge_attr, edge_labels, options.use_edge_attr);
  levin::detail::Rows rows = levin::detail::rows_of_edges("tu", src, dst, nodes, nodes, false);
  const bool narrow = rows.csr.col.dtype() == DType::i32;
  Union all = narrow ? joined<std::int32_t>(std::move(rows), of_edges, files.place, options.feature_bytes)
                     : joined<std::int64_t>(std::move(rows), of_edges, files.place, options.feature_bytes);

  GraphSamples out{.name = name};
  const Columns of_nodes = columns_of(node_attr, node_labels, options.use_node_attr);
  Tensor x;
  if (of_nodes.width > 0) {
    out.num_features = of_nodes.width;
    x = allocate(files.place, "features of nodes", nodes, out.num_features, options.feature_bytes);
    float* at = x.mutable_data<float>();
    std::vector<double> row(static_cast<std::size_t>(of_nodes.width));
    for (std::int64_t i = 0; i < nodes; ++i) {
      std::fill(row.begin(), row.end(), 0.0);
      add_row(of_nodes, i, row.data());
      at = std::transform(row.begin(), row.end(), at, [](double v) { return static_cast<float>(v); });
    }
  } else if (options.features != TuFeatures::none) {
    const bool degree = options.features == TuFeatures::degree;
    out.num_features = degree ? all.rows.facts->longest_column + 1 : 1;
    x = allocate(files.place, "features of nodes", nodes, out.num_features, options.feature_bytes);
    float* at = x.mutable_data<float>();
    std::fill_n(at, x.numel(), degree ? 0.0f : 1.0f);
    const auto* t_crow = all.rows.t_crow.data<std::int64_t>();
    for (std::int64_t i = 0; degree && i < nodes; ++i) at[i * out.num_features + t_crow[i + 1] - t_crow[i]] = 1;
  }

  out.class_labels = labels.values;
  std::sort(out.class_labels.begin(), out.class_labels.end());
  out.class_labels.erase(std::unique(out.class_labels.begin(), out.class_labels.end()), out.class_labels.end());
  out.num_classes = static_cast<std::int64_t>(out.class_labels.size());
  Tensor y = empty({graphs}, Device::cpu(), DType::i64);
  std::transform(labels.values.begin(), labels.values.end(), y.mutable_data<std::int64_t>(), [&](std::int64_t label) {
    return std::lower_bound(out.class_labels.begin(), out.class_labels.end(), label) - out.class_labels.begin();
  });
  std::vector<Graph> parts = narrow ? cut<std::int32_t>(std::move(all), ptr) : cut<std::int64_t>(std::move(all), ptr);
  for (std::int64_t g = 0; g < graphs; ++g) {
    const std::int64_t begin = ptr[static_cast<std::size_t>(g)];
    Graph& graph = parts[static_cast<std::size_t>(g)];
    out.graphs.push_back({.graph = graph, .x = view(x, begin, graph.num_nodes()), .y = as_strided(y, {}, {}, g)});
  }
  return out;
}

GraphSamples tu(const std::string& dir, const std::string& name, const TuOptions& options) {
  const std::filesystem::path folder(dir);
  std::error_code ignored;
  return read_tu(files_of((std::filesystem::is_directory(folder / name, ignored) ? folder / name : folder).string()),
                 name, options);
}

std::vector<Fold> read_folds(const Files& files, std::int64_t num_graphs) {
  constexpr int kFolds = 10;
  if (num_graphs < 0) fail<ConfigError>("tu_folds: num_graphs is ", num_graphs, ", expected 0 or more");
  std::vector<Fold> folds;
  for (int k = 1; k <= kFolds; ++k) {
    std::vector<std::uint8_t> seen(static_cast<std::size_t>(num_graphs));
    const auto part = [&](const char* name) {
      const Ints table =
          read_needed(files, std::string("10fold_idx/") + name + "_idx-" + text(k) + ".txt", 1, "ten folds are needed");
      for (std::int64_t i = 0; i < table.rows; ++i) {
        const std::int64_t g = table.at(i);
        if (g < 0 || g >= num_graphs)
          fail<FormatError>(table.file, ": line ", i + 1, " is ", g, ", expected 0 to ", num_graphs - 1, ", a graph");
        if (seen[static_cast<std::size_t>(g)]++ != 0)
          fail<FormatError>(table.file, ": line ", i + 1, " is ", g,
                            ", which the fold has already; expected each graph once");
      }
      return from_data<std::int64_t>(table.values, {table.rows}, Device::cpu());
    };
    Tensor train = part("train");
    folds.push_back({.train = train, .test = part("test")});
  }
  return folds;
}

std::vector<Fold> tu_folds(const std::string& dir, std::int64_t num_graphs) {
  return read_folds(files_of(dir), num_graphs);
}

}  // namespace levin::gnn
