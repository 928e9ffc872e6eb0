// What the tasks of gnn share: settings, and the graphs that they train on.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <concepts>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "examples/dataset.h"
#include "examples/training.h"
#include "levin/data/graph.h"
#include "levin/data/graph_batch.h"
#include "levin/data/graph_store.h"
#include "levin/data/neighbor.h"
#include "levin/data/store.h"
#include "levin/nn/graph.h"

namespace levin::examples::gnn_program {

struct Settings : TrainingSettings {
  std::string task, model, sampler = "full", fanout = "15,10";
  std::int64_t runs = 1;
};

// The numbers of "15,10".
inline std::vector<std::int64_t> fanouts(const Settings& s) {
  std::vector<std::int64_t> all;
  for (const std::string& word : words(s.fanout)) {
    std::int64_t k = 0;
    const auto [at, error] = std::from_chars(word.data(), word.data() + word.size(), k);
    if (error != std::errc() || at != word.data() + word.size() || k < -1)
      fail<ConfigError>("--fanout: \"", s.fanout, "\" is no list of two counts such as 15,10 (-1: all neighbours)");
    all.push_back(k);
  }
  if (all.size() != 2)
    fail<ConfigError>("--fanout: \"", s.fanout, "\" has ", all.size(), " counts, expected one for each of 2 layers");
  return all;
}

// ---- Several trainings of one program: seeds, or folds

struct OneOfSeveral : Trained {
  int signal = 0;
  Result result;
  void end(const Settings& s, const Trainer& trainer, const nn::Module& net, bool real_data) {
    signal = trainer.stop_signal();
    result = training_result("gnn", s, trainer, net, real_data, *this);
  }
};

// Keeps a SIGINT that comes between two trainings, which handle signals themselves, until received() is called.
class BetweenTrainings {
 public:
  BetweenTrainings() : before_(SIG_DFL) {
    number_ = 0;
    before_ = std::signal(SIGINT, note);
    if (before_ == SIG_IGN) (void)std::signal(SIGINT, SIG_IGN);
  }
  ~BetweenTrainings() { (void)std::signal(SIGINT, before_); }
  BetweenTrainings(const BetweenTrainings&) = delete;
  BetweenTrainings& operator=(const BetweenTrainings&) = delete;
  // The signal that this or another rank has got; 0: none came. All ranks call it.
  [[nodiscard]] int received(const Settings& s) const {
    const int mine = number_;
    return s.joined && s.joined->ranks().size > 1 ? s.joined->vote({.signal = static_cast<std::uint8_t>(mine)}).signal
                                                  : mine;
  }

 private:
  static void note(int number) { number_ = number; }
  inline static volatile std::sig_atomic_t number_ = 0;
  void (*before_)(int);
};

// The first training, whose result the program writes, with seconds, steps and samples of all.
template <std::derived_from<OneOfSeveral> Outcome>
struct Several {
  Outcome first;
  bool any = false;

  // False: an interrupt ended the training, and the program ends.
  bool add(Outcome next) {
    const bool interrupted = next.interrupted;
    if (!any) {
      first = std::move(next);
    } else {
      first.seconds += next.seconds;
      first.samples += next.samples;
      first.result.optimizer_steps += next.result.optimizer_steps;
      if (interrupted) {
        first.interrupted = true;
        first.signal = next.signal;
        first.result.status = "interrupted";
      }
    }
    any = true;
    first.result.train_seconds = first.seconds;
    first.result.samples_per_second = first.samples_per_second();
    return !interrupted;
  }
  // Ends the program as an interrupted training does, for a signal that came after one.
  bool interrupt(int number) {
    if (number == 0) return false;
    first.interrupted = true;
    first.signal = number;
    first.result.status = "interrupted";
    return true;
  }
  void write(const std::string& path) const { first.result.write(path); }
  [[nodiscard]] int exit_code() const { return first.interrupted ? 128 + first.signal : kDone; }
};

// ---- One graph

struct NodeTask {
  gnn::NodeData data;
  bool real = false;
  std::string said;  // the program's first line
  [[nodiscard]] std::int64_t features() const { return data.x.defined() ? data.x.size(1) : data.sparse_x.csr.cols; }
};

// The identity: features of nodes that have none.
inline gnn::SparseFeatures identity(std::int64_t nodes) {
  return {.csr = checked({.crow = arange(0, nodes + 1, 1, Device::cpu()),
                          .col = arange(0, nodes, 1, Device::cpu()),
                          .cols = nodes,
                          .t_crow = arange(0, nodes + 1, 1, Device::cpu()),
                          .t_col = arange(0, nodes, 1, Device::cpu()),
                          .t_edge = arange(0, nodes, 1, Device::cpu())}),
          .values = ones({nodes}, Device::cpu())};
}

// --data, else $LEVIN_DATA/cora, else the karate club; for sampled neighbourhoods a planted partition.
inline NodeTask find_nodes(const Settings& s) {
  std::string dir = s.data;
  if (dir.empty()) {
    const std::string root = environment("LEVIN_DATA");
    if (!root.empty() && std::filesystem::exists(root + "/cora/edge_index.npy")) dir = root + "/cora";
  }
  if (!dir.empty()) {
    NodeTask task{.data = gnn::planetoid(dir, "", {.sparse_features = s.sampler == "full"}),
                  .real = true,
                  .said = "data: " + dir};
    gnn::NodeData& d = task.data;
    if (d.sparse_x.defined()) d.sparse_x = gnn::row_normalize(d.sparse_x);
    if (d.x.defined()) d.x = gnn::row_normalize(d.x);
    if (!d.x.defined() && !d.sparse_x.defined()) {
      if (s.sampler != "full")
        fail<DataError>("--data: ", dir,
                        " has no features of nodes, which --sampler neighbor needs; take --sampler full");
      d.sparse_x = identity(d.graph.num_nodes());
      task.said += " (no features: each node has its own)";
    }
    return task;
  }
  const std::string give = "; --data DIR names a folder with edge_index.npy, y.npy and so on";
  if (s.sampler == "neighbor") {
    return {.data = gnn::planted_partition({.num_nodes = std::int64_t{1} << 15, .seed = s.seed}),
            .said = "data: a generated graph of planted classes" + give};
  }
  return {.data = gnn::karate_club(), .said = "data: Zachary's karate club" + give};
}

// A file that is removed at the end of its scope.
struct TemporaryFile {
  std::string path;
  TemporaryFile() = default;
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    std::error_code ignored;
    if (!path.empty()) std::filesystem::remove(path, ignored);
  }
};

// find_nodes, once on each machine: its first process reads the graph and writes it into a file in memory, which all of
// them map. The file has no name when this returns.
inline NodeTask shared_nodes(const Settings& s) {
  if (!s.joined || s.joined->ranks().size == 1) return find_nodes(s);
  Strategy& ranks = *s.joined;
  const RankInfo me = ranks.ranks();
  std::optional<NodeTask> task;
  TemporaryFile file;
  nlohmann::json mine = nlohmann::json::object();
  if (me.local_rank == 0) {
    task = find_nodes(s);
    std::error_code error;
    std::string folder = data::preload_target();
    if (!std::filesystem::create_directories(folder, error) && error) folder = std::filesystem::temp_directory_path();
    file.path = folder + "/gnn-" + std::to_string(::getpid()) + ".graph";
    gnn::save_graph(file.path, task->data);
    task->said += ", in memory once for " + std::to_string(me.local_size) + " processes";
    mine = {{"node", me.node}, {"path", file.path}, {"real", task->real}, {"said", task->said}};
  }
  for (const std::string& entry : ranks.gather(mine.dump())) {
    const nlohmann::json of = nlohmann::json::parse(entry);
    if (!of.contains("node") || of["node"] != me.node) continue;
    task = NodeTask{.data = gnn::attach_graph(of["path"]), .real = of["real"], .said = of["said"]};
  }
  ranks.barrier();
  if (!task) fail<InternalError>("gnn: no process of node ", me.node, " read the graph");
  return *std::move(task);
}

// ---- Many graphs

struct GraphTask {
  gnn::GraphSamples data;
  std::vector<gnn::Fold> folds{};
  bool real = false;
  std::string said{};
};

// `count` random trees with nodes of seven kinds, and six nodes more: a path in class 0, all joined in class 1.
inline gnn::GraphSamples draw_graphs(const Generator& gen, std::int64_t count) {
  constexpr std::int64_t kKinds = 7, kMore = 6;
  gnn::GraphSamples all{.name = "cliques", .num_classes = 2, .num_features = kKinds, .class_labels = {0, 1}};
  for (std::int64_t g = 0; g < count; ++g) {
    Generator rng = gen.fork(std::to_string(g));
    const std::int64_t label = g % 2, tree = rng.integer(6, 16), nodes = tree + kMore;
    std::vector<std::int64_t> src, dst;
    const auto join = [&](std::int64_t a, std::int64_t b) {
      src.insert(src.end(), {a, b});
      dst.insert(dst.end(), {b, a});
    };
    for (std::int64_t i = 1; i < tree; ++i) join(i, rng.integer(0, i));
    join(tree, rng.integer(0, tree));
    for (std::int64_t i = 1; i < kMore; ++i) {
      for (std::int64_t j = label == 1 ? 0 : i - 1; j < i; ++j) join(tree + i, tree + j);
    }
    Tensor x = zeros({nodes, kKinds}, Device::cpu());
    for (std::int64_t i = 0; i < nodes; ++i) x.mutable_data<float>()[i * kKinds + rng.integer(0, kKinds)] = 1;
    const auto ids = [](const std::vector<std::int64_t>& v) {
      return from_data<std::int64_t>(v, {static_cast<std::int64_t>(v.size())}, Device::cpu());
    };
    all.graphs.push_back(
        {.graph = gnn::Graph::from_coo({.src = ids(src), .dst = ids(dst), .num_src = nodes, .num_dst = nodes}),
         .x = x,
         .y = full({}, label, Device::cpu(), DType::i64)});
  }
  return all;
}

// Ten random parts of the graphs, each of which is the test part of a fold.
inline std::vector<gnn::Fold> draw_folds(std::int64_t graphs, const Generator& gen) {
  constexpr std::int64_t kFolds = 10;
  Generator rng = gen.fork("folds");
  const std::vector<std::int64_t> order = rng.permutation(graphs);
  std::vector<gnn::Fold> folds;
  for (std::int64_t k = 0; k < kFolds; ++k) {
    std::vector<std::int64_t> train, test;
    for (std::int64_t i = 0; i < graphs; ++i)
      (i * kFolds / graphs == k ? test : train).push_back(order[static_cast<std::size_t>(i)]);
    const auto ids = [](const std::vector<std::int64_t>& v) {
      return from_data<std::int64_t>(v, {static_cast<std::int64_t>(v.size())}, Device::cpu());
    };
    folds.push_back({.train = ids(train), .test = ids(test)});
  }
  return folds;
}

// --data (a folder of TU files, whose name the files have), else $LEVIN_DATA/mutag, else drawn molecules.
inline GraphTask find_graphs(const Settings& s) {
  namespace fs = std::filesystem;
  const Generator gen(s.seed);
  std::string dir = s.data;
  if (dir.empty()) {
    const std::string root = environment("LEVIN_DATA");
    if (!root.empty() && fs::exists(root + "/mutag/MUTAG_A.txt")) dir = root + "/mutag";
  }
  if (dir.empty()) {
    GraphTask task{.data = draw_graphs(gen.fork("graphs"), 200),
                   .said = "data: drawn graphs with and without a clique; --data DIR names a folder of TU files"};
    task.folds = draw_folds(static_cast<std::int64_t>(task.data.graphs.size()), gen);
    return task;
  }
  std::string name;
  std::error_code error;
  for (const fs::directory_entry& e : fs::directory_iterator(dir, error)) {
    const std::string file = e.path().filename().string(), end = "_A.txt";
    if (file.size() > end.size() && file.ends_with(end)) name = file.substr(0, file.size() - end.size());
  }
  if (name.empty()) fail<DataError>("--data: ", dir, " has no file NAME_A.txt; expected a folder of TU files");
  GraphTask task{.data = gnn::tu(dir, name), .real = true, .said = "data: " + name + " from " + dir};
  const auto count = static_cast<std::int64_t>(task.data.graphs.size());
  if (fs::exists(dir + "/10fold_idx"))
    task.folds = gnn::tu_folds(dir, count);
  else
    task.folds = draw_folds(count, gen);
  return task;
}

}  // namespace levin::examples::gnn_program
