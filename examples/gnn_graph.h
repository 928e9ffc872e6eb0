// Classes of whole graphs: GIN in a cross-validation of ten folds.
#pragma once

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "examples/gnn_node.h"

namespace levin::examples::gnn_program {

// Five layers that add a node's features and its neighbours', each with a perceptron of 32 features; the sum over the
// nodes of a graph; a classifier. Xu et al., "How powerful are graph neural networks?", 2019; the sizes are those of
// PyTorch Geometric's example.
struct GinModel final : TrainModuleOf<GinModel> {
  static constexpr std::int64_t kHidden = 32;
  GinModel(const Settings& s, const GraphTask& task, const Generator& gen, Device device)
      : TrainModuleOf({.gen = gen.fork("model"), .device = device}),
        settings(s),
        mlp(*this, "mlp",
            {.channels = {kHidden, kHidden, task.data.num_classes}, .dropout = 0.5, .norm = gnn::Norm::none}) {
    for (int layer = 0; layer < 5; ++layer)
      convs.add(
          gnn::GINConvOptions{.mlp = {.channels = {layer > 0 ? kHidden : task.data.num_features, kHidden, kHidden}}});
  }
  const Settings settings;
  nn::ModuleList<gnn::GINConv> convs{*this, "convs"};
  gnn::MLP mlp;
  std::vector<double> accuracies;  // of each epoch's validation

  // What the layers learned of each graph, [B, 32].
  [[nodiscard]] Tensor embed(Tensor x, const gnn::Adj& on, const Tensor& ptr) const {
    for (const auto& conv : convs) x = relu(conv(x, on));
    return gnn::global_pool(x, ptr);
  }
  StepOutput training_step(const Batch& batch, std::int64_t) override {
    const gnn::GraphFields b = gnn::GraphFields::of(batch.fields);
    const Tensor loss = cross_entropy(mlp(embed(b.x, b.block, b.ptr)), b.y);
    log("train_loss", loss, {.prog_bar = true, .on_epoch = true, .batch_size = batch.size()});
    return loss;
  }
  void validation_step(const Batch& batch, std::int64_t, std::int64_t) override {
    const gnn::GraphFields b = gnn::GraphFields::of(batch.fields);
    const Tensor logits = mlp(embed(b.x, b.block, b.ptr));
    log("val_loss", cross_entropy(logits, b.y), {.batch_size = batch.size()});
    log("val_accuracy", accuracy(logits, b.y), {.prog_bar = true, .batch_size = batch.size()});
  }
  void on_validation_end() override {
    if (trainer().validating()) accuracies.push_back(metric(trainer(), "val_accuracy"));
  }
  // Adam, at half the learning rate after each 50 epochs.
  OptimizerConfig configure_optimizers() override {
    auto adam = std::make_shared<optim::Adam>(parameters(), optim::AdamOptions{.lr = settings.lr});
    return {.optimizers = {adam}, .schedulers = {{.scheduler = std::make_shared<optim::StepLR>(*adam, 50, 0.5)}}};
  }
};

struct GraphOutcome : OneOfSeveral {
  std::vector<double> accuracies;  // of each epoch's test
};

inline std::vector<gnn::GraphSample> chosen_graphs(const GraphTask& task, const Tensor& which) {
  std::vector<gnn::GraphSample> some;
  for (const std::int64_t g : which.to_vector<std::int64_t>())
    some.push_back(task.data.graphs[static_cast<std::size_t>(g)]);
  return some;
}

// Trains one fold and adds its test graphs to `predictions`.
inline GraphOutcome run_fold(Settings s, const GraphTask& task, std::size_t k, Device device,
                             Predictions& predictions) {
  const Generator gen = Generator(s.seed).fork("fold" + std::to_string(k));
  if (k > 0) s = without_files(std::move(s));
  GinModel net(s, task, gen, device);
  TrainerOptions how = trainer_options(s, device);
  how.log_every_n_steps = 5;
  const auto counted = std::make_shared<SampleCount>();
  how.callbacks.push_back(counted);
  Trainer trainer(how);
  const gnn::Fold& fold = task.folds[k];
  data::DataLoader graphs(
      gnn::graph_dataset(chosen_graphs(task, fold.train)),
      {.batch_size = s.batch_size, .shuffle = true, .num_workers = s.workers, .generator = gen.fork("shuffle")});
  data::DataLoader test(gnn::graph_dataset(chosen_graphs(task, fold.test)),
                        {.batch_size = s.batch_size, .num_workers = s.workers});
  GraphOutcome outcome;
  const auto fit = [&] { trainer.fit(net, {.train = &graphs, .val = &test}); };
  const auto after = [&] {
    const NoGrad off;
    net.eval();
    const auto whole = [&](const std::vector<gnn::GraphSample>& some) {
      return gnn::GraphBatch::collate(some).to(device);
    };
    const gnn::GraphBatch tested = whole(chosen_graphs(task, fold.test));
    predictions.add(net.mlp(net.embed(tested.x, tested.graph, tested.ptr)), tested.y);
    if (const std::string out = out_folder(s); !out.empty() && is_rank_zero(s)) {
      draw_losses(out + "/loss.svg", trainer, {{"train_loss_epoch", "epoch mean"}, {"val_loss", "test part"}},
                  {.title = "Loss of the first fold", .x_label = "optimizer steps", .y_label = "cross-entropy"});
      write_file_atomically(out + "/report.txt", trainer.step_time_report());
      save_safetensors(out + "/model.safetensors", net.state_dict());
      const gnn::GraphBatch all = whole(task.data.graphs);
      draw_embedding(out + "/embedding.svg", net.embed(all.x, all.graph, all.ptr), all.y.to_vector<std::int64_t>(),
                     predictions.classes, "What the layers learned of each graph");
    }
  };
  static_cast<Trained&>(outcome) = examples::train("gnn", device, *counted, fit, after);
  outcome.accuracies = net.accuracies;
  outcome.end(s, trainer, net, task.real);
  return outcome;
}

// `gnn graph`: each fold trains on its part and is tested after each epoch. The accuracy is that of the epoch whose
// mean over the folds is best (Xu et al., 2019); no other part of the data chooses the epoch, so it is optimistic.
inline int graph_program(const Settings& s, Device device) {
  const GraphTask task = read_data([&] { return find_graphs(s); });
  std::printf("%s: %zu graphs, %lld features, %lld classes, %zu folds\n", task.said.c_str(), task.data.graphs.size(),
              static_cast<long long>(task.data.num_features), static_cast<long long>(task.data.num_classes),
              task.folds.size());
  std::fflush(stdout);
  std::vector<std::string> classes;
  for (const std::int64_t label : task.data.class_labels) classes.push_back(std::to_string(label));
  Predictions predictions(classes);
  std::vector<std::vector<double>> curves;
  Several<GraphOutcome> folds;
  const BetweenTrainings interrupts;
  for (std::size_t k = 0; k < task.folds.size(); ++k) {
    if (k > 0 && folds.interrupt(interrupts.received(s))) break;
    GraphOutcome outcome = run_fold(s, task, k, device, predictions);
    if (!outcome.interrupted) curves.push_back(outcome.accuracies);
    if (!outcome.interrupted && !curves.back().empty())
      std::printf("fold %2zu: test accuracy %.2f %% after the last epoch\n", k + 1, 100 * curves.back().back());
    std::fflush(stdout);
    if (!folds.add(std::move(outcome))) break;
  }
  std::size_t epochs = curves.empty() ? 0 : curves[0].size();
  for (const auto& curve : curves) epochs = std::min(epochs, curve.size());
  double best = std::nan(""), deviation = std::nan("");
  std::size_t at = 0;
  for (std::size_t e = 0; e < epochs; ++e) {
    std::vector<double> all;
    for (const auto& curve : curves) all.push_back(curve[e]);
    const auto [mean, spread] = mean_and_deviation(all);
    if (!(mean <= best)) best = mean, deviation = spread, at = e;
  }
  if (!folds.first.interrupted) {
    predictions.print();
    std::printf("%zu folds trained in %.1f s\n", curves.size(), folds.first.result.train_seconds);
    std::printf("test accuracy in epoch %zu, the best of all folds together: %.2f +- %.2f %%\n", at + 1, 100 * best,
                100 * deviation);
  }
  if (!s.json.empty() && is_rank_zero(s)) {
    nlohmann::ordered_json& more = folds.first.result.more;
    more["model"] = s.model;
    more["fold_accuracy_mean"] = number(best);
    more["fold_accuracy_std"] = number(deviation);
    more["folds"] = static_cast<std::int64_t>(curves.size());
    more["best_epoch"] = static_cast<std::int64_t>(at + 1);
    folds.write(s.json);
  }
  return folds.exit_code();
}

}  // namespace levin::examples::gnn_program
