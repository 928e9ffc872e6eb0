// Readers of graph data sets, on files in memory.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "data/graph/planetoid.h"
#include "data/graph/tu.h"
#include "tests/fuzz/target.h"

namespace levin::fuzz {
namespace {

const std::string kAbsent("\0absent", 7);
constexpr std::size_t kMostBytes = 256;  // longer inputs are slower and show nothing else

template <std::size_t N>
gnn::Files files_of(const std::array<std::pair<std::string_view, std::string>, N>& contents) {
  return {.open = [&contents](const std::string& name) -> std::unique_ptr<detail::Source> {
            for (const auto& [own, content] : contents) {
              if (own == name && content != kAbsent)
                return std::make_unique<detail::MemorySource>(name, std::as_bytes(std::span<const char>(content)));
            }
            return nullptr;
          },
          .place = "memory"};
}

void look_at(const Tensor& x, std::int64_t rows) {
  if (!x.defined()) return;
  expect(x.rank() == 2 && x.size(0) == rows, "features are not one row a node");
  for (std::int64_t i = 0; i < x.numel(); ++i) expect(std::isfinite(x.data<float>()[i]), "a feature is not finite");
}
void in_range(const Tensor& ids, std::int64_t bound) {
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    const std::int64_t id = ids.data<std::int64_t>()[i];
    expect(id >= 0 && id < bound, "an id is out of range");
  }
}

bool folds(const std::string& train, const std::string& test) {
  constexpr std::int64_t kGraphs = 20;
  const gnn::Files files{.open = [&](const std::string& name) -> std::unique_ptr<detail::Source> {
                           const std::string& content = name.find("train") == std::string::npos ? test : train;
                           return std::make_unique<detail::MemorySource>(name,
                                                                         std::as_bytes(std::span<const char>(content)));
                         },
                         .place = "memory"};
  return !refused([&] {
    for (const gnn::Fold& f : gnn::read_folds(files, kGraphs)) {
      in_range(f.train, kGraphs);
      in_range(f.test, kGraphs);
    }
  });
}

}  // namespace

// A first byte of options, then files: '=', a letter, the end of the line, and the file's text up to the next '='.
bool tu(Bytes in) {
  std::array<std::pair<std::string_view, std::string>, 9> contents{{{"S_A.txt", kAbsent},
                                                                    {"S_graph_indicator.txt", kAbsent},
                                                                    {"S_graph_labels.txt", kAbsent},
                                                                    {"S_node_labels.txt", kAbsent},
                                                                    {"S_node_attributes.txt", kAbsent},
                                                                    {"S_edge_labels.txt", kAbsent},
                                                                    {"S_edge_attributes.txt", kAbsent},
                                                                    {"train", kAbsent},
                                                                    {"test", kAbsent}}};
  constexpr std::string_view kLetters = "Ailnmefts";
  if (in.empty() || in.size() > kMostBytes) return false;
  const gnn::TuOptions options{.use_node_attr = (in[0] & 1) != 0,
                               .use_edge_attr = (in[0] & 2) != 0,
                               .features = static_cast<gnn::TuFeatures>((in[0] >> 2) % 3),
                               .feature_bytes = 1 << 12};
  std::string_view rest(reinterpret_cast<const char*>(in.data()) + 1, in.size() - 1);
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('=', 1), rest.size());
    const std::string_view part = rest.substr(0, end);
    rest.remove_prefix(end);
    if (part.size() < 3 || part[0] != '=') continue;
    const std::size_t which = kLetters.find(part[1]);
    if (which != std::string_view::npos) contents[which].second = part.substr(3);
  }
  if (contents[7].second != kAbsent) return folds(contents[7].second, contents[8].second);
  return !refused([&] {
    const gnn::GraphSamples s = gnn::read_tu(files_of(contents), "S", options);
    for (const gnn::GraphSample& g : s.graphs) {
      g.graph.validate();
      look_at(g.x, g.graph.num_nodes());
      look_at(g.graph.attr(), g.graph.num_edges());
      const auto y = g.y.item<std::int64_t>();
      expect(y >= 0 && y < s.num_classes, "a class is out of range");
    }
  });
}

// A first byte of options, then arrays: a byte for the file, one for the dtype, one for the rank, one for each
// dimension, and one for each element. So most inputs get beyond the header of .npy, which has a target of its own.
bool planetoid(Bytes in) {
  std::array<std::pair<std::string_view, std::string>, 13> contents{{{"edge_index.npy", kAbsent},
                                                                     {"y.npy", kAbsent},
                                                                     {"x.npy", kAbsent},
                                                                     {"x_data.npy", kAbsent},
                                                                     {"x_indices.npy", kAbsent},
                                                                     {"x_indptr.npy", kAbsent},
                                                                     {"x_shape.npy", kAbsent},
                                                                     {"train_idx.npy", kAbsent},
                                                                     {"val_idx.npy", kAbsent},
                                                                     {"test_idx.npy", kAbsent},
                                                                     {"train_mask.npy", kAbsent},
                                                                     {"val_mask.npy", kAbsent},
                                                                     {"test_mask.npy", kAbsent}}};
  if (in.empty() || in.size() > kMostBytes) return false;
  const gnn::PlanetoidOptions options{.split = static_cast<gnn::NodeSplit>(in[0] % 3),
                                      .train_per_class = 1,
                                      .num_val = 1,
                                      .num_test = 1,
                                      .sparse_features = (in[0] & 64) != 0,
                                      .dense_bytes = 1 << 12};
  std::size_t at = 1;
  const auto next = [&] { return at < in.size() ? in[at++] : std::uint8_t{0}; };
  while (at < in.size()) {
    std::string& file = contents[next() % contents.size()].second;
    const std::uint8_t type = next(), rank = next();
    constexpr std::array<std::string_view, 6> kTypes{"<i8", "<i4", "<f4", "<f8", "|b1", "<f2"};
    // One header of 128 bytes, as NumPy writes: its magic, version 1.0, the length of the rest, and a dict.
    file.assign("\x93NUMPY\1\0\x76\0{'descr': '", 21).append(kTypes[type % 6]);
    file.append("', 'fortran_order': False, 'shape': (");
    std::size_t count = 1;
    for (int d = 0; d < rank % 4; ++d) {
      const std::uint8_t size = next();
      file.append({static_cast<char>('0' + size / 100), static_cast<char>('0' + size / 10 % 10),
                   static_cast<char>('0' + size % 10), ','});
      count *= size;
    }
    file.append("), }");
    file.resize(127, ' ');
    file += '\n';
    const auto append = [&](auto value) { file.append(reinterpret_cast<const char*>(&value), sizeof value); };
    for (std::size_t i = 0; i < count && at < in.size(); ++i) {
      const std::uint8_t b = next();
      // Mostly small numbers.
      const std::int64_t whole = b == 128 ? std::int64_t{1} << 40 : static_cast<std::int8_t>(b);
      const double real = b == 255 ? std::numeric_limits<double>::quiet_NaN() : b == 254 ? 1e300 : (b - 64) / 8.0;
      switch (type % 6) {
        case 0: append(whole); break;
        case 1: append(static_cast<std::int32_t>(static_cast<std::int8_t>(b))); break;
        case 2: append(b == 254 ? std::numeric_limits<float>::infinity() : static_cast<float>(real)); break;
        case 3: append(real); break;
        case 4: file += static_cast<char>(b == 255 ? b : b & 1); break;
        default: append(std::uint16_t{b}); break;
      }
    }
  }
  return !refused([&] {
    const gnn::NodeData d = gnn::read_planetoid(files_of(contents), "S", options);
    const std::int64_t nodes = d.graph.num_nodes();
    d.graph.validate();
    expect(!d.graph.edge_ids().defined(), "a simple graph has ids");
    look_at(d.x, nodes);
    in_range(d.y, d.num_classes);
    for (const Tensor& part : {d.train, d.val, d.test}) in_range(part, nodes);
    if (!d.sparse_x.defined()) return;
    const Csr a = checked(d.sparse_x.csr);
    expect(a.rows() == nodes && a.known()->ascending, "sparse features are not a row a node, ascending");
    expect(a.known()->longest_row == d.sparse_x.csr.known()->longest_row, "the longest row is another");
  });
}

}  // namespace levin::fuzz
