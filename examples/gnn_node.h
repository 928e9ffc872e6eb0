// Classes of the nodes of one graph: GCN, GAT or GraphSAGE on the whole graph, or on sampled neighbourhoods.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "examples/embedding.h"
#include "examples/gnn_data.h"
#include "examples/predictions.h"

namespace levin::examples::gnn_program {

// ---- Models

// A model of the whole graph. Its features are x, or `words` where most are 0.
struct NodeModel : TrainModule {
  NodeModel(const Settings& s, const NodeTask& task, const Generator& gen, Device device)
      : TrainModule({.gen = gen.fork("model"), .device = device}),
        settings(s),
        graph(task.data.graph.to(device)),
        y(task.data.y.to(device)) {
    if (task.data.x.defined())
      x = task.data.x.to(device);
    else
      words = {task.data.sparse_x.csr.to(device), task.data.sparse_x.values.to(device)};
  }
  // The features as a matrix, for models that take no other.
  void fill() {
    if (!x.defined()) x = spmm(words.csr, words.value, eye(words.csr.cols, words.csr.cols, words.value.device()));
  }
  const Settings settings;
  const gnn::Graph graph;
  gnn::SparseMatrix words;
  Tensor x, y;
  Tensor hidden;  // of all nodes, of the last whole() in evaluation

  // Logits of all nodes.
  [[nodiscard]] virtual Tensor whole() = 0;
  // Logits of the destinations of the last block, from the features of the first one's sources.
  [[nodiscard]] virtual Tensor sampled(const Tensor& features, std::span<const gnn::Block> blocks) = 0;

  StepOutput training_step(const Batch& batch, std::int64_t) override {
    const auto [logits, labels] = answer(batch);
    const Tensor loss = cross_entropy(logits, labels);
    log("train_loss", loss, {.prog_bar = true, .on_epoch = true, .batch_size = labels.numel()});
    return loss;
  }
  void validation_step(const Batch& batch, std::int64_t, std::int64_t) override {
    const auto [logits, labels] = answer(batch);
    log("val_loss", cross_entropy(logits, labels), {.batch_size = labels.numel()});
    log("val_accuracy", accuracy(logits, labels), {.prog_bar = true, .batch_size = labels.numel()});
  }
  // Logits and labels of a batch's nodes: {ids}, or sampled neighbourhoods.
  [[nodiscard]] std::pair<Tensor, Tensor> answer(const Batch& batch) {
    if (settings.sampler == "full") return {index_select(whole(), 0, batch[0]), index_select(y, 0, batch[0])};
    const gnn::NeighborBatch n = gnn::unpack(batch);
    std::vector<gnn::Block> blocks;
    for (int layer = 0; layer < n.graph.hops(); ++layer) blocks.push_back(n.graph.block(layer));
    return {sampled(n.x, blocks), n.y};
  }
  void keep(const Tensor& h) {
    if (!is_training()) hidden = h.detach();
  }
};

// Kipf and Welling's model: dropout, 16 features, relu, dropout; weight decay in the first layer alone.
struct GcnModel final : TrainModuleOf<GcnModel, NodeModel> {
  GcnModel(const Settings& s, const NodeTask& task, const Generator& gen, Device device)
      : TrainModuleOf(s, task, gen, device),
        conv1(*this, "conv1", {.in = task.features(), .out = 16}),
        conv2(*this, "conv2", {.in = 16, .out = task.data.num_classes}) {}
  nn::Dropout dropout1{*this, "dropout1", {.p = 0.5}}, dropout2{*this, "dropout2", {.p = 0.5}};
  gnn::GCNConv conv1, conv2;

  Tensor whole() override {
    const Tensor h = relu(x.defined() ? conv1(dropout1(x), graph)
                                      : conv1(gnn::SparseMatrix{words.csr, dropout1(words.value)}, graph));
    keep(h);
    return conv2(dropout2(h), graph);
  }
  Tensor sampled(const Tensor&, std::span<const gnn::Block>) override {
    fail<InternalError>("gcn: sampled neighbourhoods were refused before");
  }
  OptimizerConfig configure_optimizers() override {
    std::vector<ParamRef> first, rest;
    for (const ParamRef& p : parameters()) (p.name.starts_with("conv1.") ? first : rest).push_back(p);
    auto adam = std::make_shared<optim::Adam>(first, optim::AdamOptions{.lr = settings.lr, .weight_decay = 5e-4});
    adam->add_group(rest, {.lr = settings.lr});
    return {.optimizers = {adam}};
  }
};

// Two layers, each after a dropout, with an activation between them; Adam with weight decay.
template <class Conv>
struct TwoLayers : NodeModel {
  using Activation = Tensor (*)(const Tensor&);
  struct Layers {
    double dropout;
    typename Conv::Options first, second;
    Activation activation;
  };
  TwoLayers(const Settings& s, const NodeTask& task, const Generator& gen, Device device, const Layers& layers)
      : NodeModel(s, task, gen, device),
        dropout1(*this, "dropout1", {.p = layers.dropout}),
        dropout2(*this, "dropout2", {.p = layers.dropout}),
        conv1(*this, "conv1", layers.first),
        conv2(*this, "conv2", layers.second),
        activation(layers.activation) {
    fill();
  }
  nn::Dropout dropout1, dropout2;
  Conv conv1, conv2;
  const Activation activation;

  Tensor whole() override {
    const Tensor h = activation(conv1(dropout1(x), graph));
    keep(h);
    return conv2(dropout2(h), graph);
  }
  Tensor sampled(const Tensor& features, std::span<const gnn::Block> blocks) override {
    return conv2(dropout2(activation(conv1(dropout1(features), blocks[0]))), blocks[1]);
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::Adam>(parameters(),
                                                         optim::AdamOptions{.lr = settings.lr, .weight_decay = 5e-4})}};
  }
};

// Velickovic et al.: dropout of features and attention 0.6, 8 heads of 8 features, elu, one head.
struct GatModel final : TrainModuleOf<GatModel, TwoLayers<gnn::GATConv>> {
  GatModel(const Settings& s, const NodeTask& task, const Generator& gen, Device device)
      : TrainModuleOf(s, task, gen, device,
                      Layers{.dropout = 0.6,
                             .first = {.in = task.features(), .out = 8, .heads = 8, .dropout = 0.6},
                             .second = {.in = 64, .out = task.data.num_classes, .concat = false, .dropout = 0.6},
                             .activation = [](const Tensor& h) { return elu(h); }}) {}
};

// Hamilton et al., mean: dropout 0.5, 64 features, relu.
struct SageModel final : TrainModuleOf<SageModel, TwoLayers<gnn::SAGEConv>> {
  SageModel(const Settings& s, const NodeTask& task, const Generator& gen, Device device)
      : TrainModuleOf(s, task, gen, device,
                      Layers{.dropout = 0.5,
                             .first = {.in = task.features(), .out = 64},
                             .second = {.in = 64, .out = task.data.num_classes},
                             .activation = [](const Tensor& h) { return relu(h); }}) {}
};

inline std::unique_ptr<NodeModel> make_node_model(const Settings& s, const NodeTask& task, const Generator& gen,
                                                  Device device) {
  if (s.model == "gat") return std::make_unique<GatModel>(s, task, gen, device);
  if (s.model == "sage") return std::make_unique<SageModel>(s, task, gen, device);
  return std::make_unique<GcnModel>(s, task, gen, device);
}

// ---- A run

// Keeps the weights that had the best validation accuracy, also in checkpoints. It comes before an averaging of
// weights, which validates the average and takes it out at the end of a validation's epoch.
struct KeepBest final : Callback {
  explicit KeepBest(nn::Module& of) : net(of) {}
  nn::Module& net;
  double accuracy = -1;
  NamedTensors weights, validated;

  bool after_module() const override { return true; }
  void on_validation_epoch_end() override {
    validated.clear();
    if (!trainer().validating()) return;
    for (const auto& [name, value] : net.state_dict()) validated.emplace_back(name, value.clone());
  }
  void on_validation_end() override {
    if (!trainer().validating()) return;
    const double now = metric(trainer(), "val_accuracy");
    if (!(now > accuracy)) return;
    accuracy = now;
    weights = std::move(validated);
  }
  std::string state_key() const override { return "KeepBest"; }
  CallbackState state() const override { return {.values = {{"accuracy", text(accuracy)}}, .tensors = weights}; }
  void load_state(const CallbackState& s) override {
    accuracy = std::strtod(s.values.at(0).second.c_str(), nullptr);
    weights.clear();
    for (const auto& [name, value] : s.tensors) weights.emplace_back(name, value.clone());
  }
};

// Seconds of each epoch from its start to its last batch, without validation.
struct EpochClock final : Callback {
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin;
  double last = 0;
  std::vector<double> seconds;
  void on_train_epoch_start() override { begin = Clock::now(); }
  void on_train_batch_end(const StepInfo&) override {
    last = std::chrono::duration<double>(Clock::now() - begin).count();
  }
  void on_train_epoch_end() override { seconds.push_back(last); }
  [[nodiscard]] double median_ms() const {
    if (seconds.empty()) return std::nan("");
    std::vector<double> all = seconds;
    std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
    return 1e3 * all[all.size() / 2];
  }
};

struct NodeOutcome : OneOfSeveral {
  double last = std::nan(""), best = std::nan(""), val = std::nan("");  // test accuracies; validation's best
  double epoch_ms = std::nan("");
  Predictions predictions;
};

// Mean and standard deviation of a sample.
inline std::pair<double, double> mean_and_deviation(const std::vector<double>& all) {
  double mean = 0, squares = 0;
  for (const double x : all) mean += x / static_cast<double>(all.size());
  for (const double x : all) squares += (x - mean) * (x - mean);
  if (all.empty()) mean = std::nan("");
  return {mean, all.size() > 1 ? std::sqrt(squares / static_cast<double>(all.size() - 1)) : 0};
}

// The test of a trained model: predictions of the test nodes, by the whole graph.
inline Predictions test_nodes(NodeModel& net, const NodeTask& task) {
  const NoGrad off;
  net.eval();
  const Device device = net.y.device();
  Predictions found(task.data.class_names);
  found.add(index_select(net.whole(), 0, task.data.test.to(device)).to(Device::cpu()),
            index_select(task.data.y, 0, task.data.test));
  return found;
}

inline std::unique_ptr<data::DataLoader> node_loader(const Settings& s, const NodeTask& task, const Tensor& nodes,
                                                     data::Split split, const Generator& gen) {
  if (s.sampler == "full")  // one batch: all nodes
    return std::make_unique<data::DataLoader>(data::tensor_dataset({reshape(nodes, {1, nodes.numel()})}),
                                              data::DataLoaderOptions{.batch_size = std::nullopt});
  return std::make_unique<gnn::NeighborLoader>(
      gnn::NeighborSampler(task.data.graph, {.fanouts = fanouts(s), .seed = s.seed}),
      gnn::NeighborData{.x = task.data.x, .y = task.data.y, .input_nodes = nodes},
      gnn::NeighborLoaderOptions{.loader = {.batch_size = s.batch_size,
                                            .shuffle = split == data::Split::train,
                                            .num_workers = s.workers,
                                            .generator = gen.fork("shuffle")}});
}

// The files of --out.
inline void write_node_files(const Settings& s, Trainer& trainer, NodeModel& net, const NodeTask& task,
                             const NodeOutcome& outcome) {
  const std::string out = out_folder(s);
  if (out.empty() || trainer.global_rank() > 0) return;
  draw_losses(out + "/loss.svg", trainer,
              {{"train_loss_step", "step"},
               {"train_loss_epoch", "epoch mean"},
               {"train_loss", "training"},
               {"val_loss", "validation"}},
              {.title = "Loss", .x_label = "optimizer steps", .y_label = "cross-entropy"});
  write_file_atomically(out + "/report.txt", trainer.step_time_report());
  if (outcome.interrupted) return;
  save_safetensors(out + "/model.safetensors", net.state_dict());
  draw_embedding(out + "/embedding.svg", net.hidden, task.data.y.to_vector<std::int64_t>(), task.data.class_names,
                 "What the first layer learned of each node");
}

// A training with s.seed, and its test. GCN is tested as it is after the last epoch, the other models as they were in
// the epoch with the best validation accuracy. The result files are those of the first run.
inline NodeOutcome run_node(Settings s, const NodeTask& task, Device device, bool is_first) {
  const Generator gen(s.seed);
  const std::unique_ptr<NodeModel> net = make_node_model(s, task, gen, device);
  if (!is_first) s = without_files(std::move(s));
  TrainerOptions how = trainer_options(s, device);
  how.log_every_n_steps = s.sampler == "full" ? 1 : 10;
  const auto counted = std::make_shared<SampleCount>();
  const auto best = std::make_shared<KeepBest>(*net);
  const auto clock = std::make_shared<EpochClock>();
  how.callbacks.insert(how.callbacks.begin(), best);
  how.callbacks.insert(how.callbacks.end(), {counted, clock});
  Trainer trainer(how);
  const std::unique_ptr<data::DataLoader> seeds = node_loader(s, task, task.data.train, data::Split::train, gen),
                                          val = node_loader(s, task, task.data.val, data::Split::test, gen);
  NodeOutcome outcome;
  const auto fit = [&] { trainer.fit(*net, {.train = seeds.get(), .val = val.get(), .ckpt_path = s.resume}); };
  const auto test = [&] {
    outcome.predictions = test_nodes(*net, task);
    outcome.last = outcome.predictions.accuracy();
    if (best->weights.empty()) return;
    outcome.val = best->accuracy;
    const Tensor hidden = net->hidden;
    NamedTensors last;
    for (const auto& [name, value] : net->state_dict()) last.emplace_back(name, value.clone());
    net->load_state_dict(best->weights);
    const Predictions found = test_nodes(*net, task);
    outcome.best = found.accuracy();
    if (s.model != "gcn") {
      outcome.predictions = found;
    } else {
      net->load_state_dict(last);
      net->hidden = hidden;
    }
  };
  static_cast<Trained&>(outcome) = examples::train("gnn", device, *counted, fit, test);
  outcome.epoch_ms = clock->median_ms();
  outcome.end(s, trainer, *net, task.real);
  if (is_first) write_node_files(s, trainer, *net, task, outcome);
  return outcome;
}

// All runs of `gnn node`, their table and the JSON result.
inline int node_program(const Settings& s, Device device) {
  const NodeTask task = read_data([&] { return shared_nodes(s); });
  const gnn::Graph& g = task.data.graph;
  std::printf("%s: %lld nodes, %lld edges, %lld features, %lld classes; %lld nodes for training, %lld for the test\n",
              task.said.c_str(), static_cast<long long>(g.num_nodes()), static_cast<long long>(g.num_edges()),
              static_cast<long long>(task.features()), static_cast<long long>(task.data.num_classes),
              static_cast<long long>(task.data.train.numel()), static_cast<long long>(task.data.test.numel()));
  std::fflush(stdout);
  std::vector<double> last, best, chosen;
  Several<NodeOutcome> runs;
  const BetweenTrainings interrupts;
  for (std::int64_t k = 0; k < s.runs; ++k) {
    if (k > 0 && runs.interrupt(interrupts.received(s))) break;
    Settings now = s;
    now.seed += static_cast<std::uint64_t>(k);
    NodeOutcome outcome = run_node(now, task, device, k == 0);
    if (!outcome.interrupted) {
      last.push_back(outcome.last);
      best.push_back(outcome.best);
      chosen.push_back(s.model == "gcn" ? outcome.last : outcome.best);
      if (s.runs > 1)
        std::printf(
            "run %2lld: test accuracy %.2f %% after the last epoch, %.2f %% in the best of validation (%.2f %%)\n",
            static_cast<long long>(k + 1), 100 * outcome.last, 100 * outcome.best, 100 * outcome.val);
      std::fflush(stdout);
    }
    if (!runs.add(std::move(outcome))) break;
  }
  NodeOutcome& first = runs.first;
  if (!chosen.empty()) {
    first.predictions.print();
    std::printf("epoch %.3f ms (median, training alone)\n", first.epoch_ms);
    const auto show = [&](const char* when, const std::vector<double>& all) {
      const auto [mean, deviation] = mean_and_deviation(all);
      if (all.size() > 1)
        std::printf("test accuracy %s: %.2f +- %.2f %% over %zu runs\n", when, 100 * mean, 100 * deviation, all.size());
      else
        std::printf("test accuracy %s: %.2f %%\n", when, 100 * mean);
    };
    show("after the last epoch", last);
    show("in the epoch of the best validation", best);
  }
  if (!s.json.empty() && is_rank_zero(s)) {
    nlohmann::ordered_json& more = first.result.more;
    const auto [mean, deviation] = mean_and_deviation(chosen);
    more["model"] = s.model;
    more["sampler"] = s.sampler;
    more["test_accuracy"] = number(chosen.empty() ? std::nan("") : chosen.front());
    more["val_accuracy"] = number(first.val);
    more["epoch_milliseconds"] = number(first.epoch_ms);
    if (s.runs > 1) {
      more["test_accuracy_mean"] = number(mean);
      more["test_accuracy_std"] = number(deviation);
      more["runs"] = static_cast<std::int64_t>(chosen.size());
    }
    runs.write(s.json);
  }
  return runs.exit_code();
}

}  // namespace levin::examples::gnn_program
