// Learning on graphs: classes of the nodes of one graph (gnn node), or of whole graphs (gnn graph).
#include "examples/gnn_graph.h"
#include "examples/gnn_node.h"

using namespace levin;
using namespace levin::examples;
using gnn_program::Settings;

namespace {

Settings parse(int argc, char** argv) {
  Settings s;
  s.epochs = 0;
  s.batch_size = 0;
  s.keeps_best = true;
  Flags flags("gnn", "Trains a network on graphs: classes of nodes (node) or of graphs (graph).");
  flags.add_argument("task", s.task, "node or graph")->check(CLI::IsMember({"node", "graph"}));
  flags.add("--model", s.model)->check(CLI::IsMember({"gcn", "gat", "sage", "gin"}));
  flags.add("--sampler", s.sampler)->check(CLI::IsMember({"full", "neighbor"}));
  flags.add("--fanout", s.fanout);
  flags.add("--runs", s.runs)->check(at_least(1));
  add_training_flags(flags, s, {.monitors = {"val_loss", "val_accuracy", "train_loss"}});
  flags.describe("--model", "gcn for node, gin for graph");
  flags.describe("--epochs", "200; 10 with --sampler neighbor; 350 for graph");
  flags.describe("--lr", "0.01; 0.005 for gat");
  flags.describe("--batch-size", "1024 nodes, 32 graphs");
  flags.describe("--capture", "auto; off where batches differ in shape: --sampler neighbor and graph");
  flags.describe("--data", "",
                 "a folder of Planetoid's arrays or of TU files (default: $LEVIN_DATA/cora or mutag, built-in graphs)");
  flags.parse(argc, argv);
  const bool is_node = s.task == "node";
  if (s.model.empty()) s.model = is_node ? "gcn" : "gin";
  if (is_node == (s.model == "gin")) flags.refuse("--model " + s.model + " is not for gnn " + s.task);
  const auto needs = [&](bool there, std::initializer_list<const char*> names, const char* what) {
    for (const char* name : names) {
      if (!there && flags.given(name)) flags.refuse(std::string(name) + " needs " + what);
    }
  };
  needs(is_node, {"--sampler", "--runs", "--resume"}, "gnn node");
  needs(s.sampler == "neighbor", {"--fanout"}, "--sampler neighbor");
  needs(!is_node || s.sampler == "neighbor", {"--batch-size", "--workers", "--limit-train-batches"},
        "--sampler neighbor or gnn graph");
  if (s.sampler == "neighbor" && s.model == "gcn")
    flags.refuse("--model gcn needs all neighbours of a node; take gat or sage for --sampler neighbor");
  (void)gnn_program::fanouts(s);
  if (s.runs > 1 && !s.resume.empty()) flags.refuse("--resume is for one run; drop --runs");
  if (!flags.given("--epochs")) s.epochs = !is_node ? 350 : s.sampler == "neighbor" ? 10 : 200;
  if (!flags.given("--lr")) s.lr = s.model == "gat" ? 0.005 : 0.01;
  if (!flags.given("--capture") && (!is_node || s.sampler == "neighbor")) s.capture = "off";
  if (!flags.given("--batch-size")) s.batch_size = is_node ? 1024 : 32;
  check_training_flags(flags, s);
  return s;
}

int run(Settings s) {
  const Device device = use_machine(s);
  make_output_folder(out_folder(s));
  join_processes(s);
  return s.task == "node" ? gnn_program::node_program(s, device) : gnn_program::graph_program(s, device);
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("gnn", [&] { return run(parse(argc, argv)); });
}
