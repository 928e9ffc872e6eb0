#include <signal.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "levin/data.h"
#include "levin/data/store.h"
#include "tests/datasets.h"
#include "tests/train/program.h"

using namespace levin;
using levin::test::json_of;
using levin::test::Program;
using levin::test::TemporaryFolder;
using levin::test::weights_of;
using Ended = Program::Ended;

namespace {

namespace fs = std::filesystem;

bool built(const TemporaryFolder& dir) { return Program("gnn", dir).built(); }
Ended run(const TemporaryFolder& dir, std::vector<std::string> arguments) {
  return Program("gnn", dir).run(std::move(arguments));
}
std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("gnn node learns the karate club without data, and leaves its result files") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  const std::string out = dir / "out", json = dir / "r.json";
  const Ended e = run(dir, {"node", "--epochs", "60", "--quiet", "--out", out, "--json", json});
  CAPTURE(e.output);
  REQUIRE(e.code == 0);
  CHECK(e.output.starts_with("data: Zachary's karate club"));
  CHECK(e.output.find("confusion") != std::string::npos);
  CHECK(e.output.find("test accuracy after the last epoch") != std::string::npos);
  for (const char* name : {"model.safetensors", "embedding.svg", "loss.svg", "metrics.csv", "report.txt"})
    CHECK_MESSAGE(fs::file_size(fs::path(out) / name) > 0, name);
  const std::string picture = text_of(out + "/embedding.svg");
  CHECK(std::count(picture.begin(), picture.end(), '\n') > 34 + 4);  // a dot a node, a name a class
  CHECK(picture.find("nan") == std::string::npos);
  const nlohmann::json r = json_of(json);
  for (const char* field : {"program", "status", "data", "seed", "device", "precision", "strategy", "world_size",
                            "epochs", "optimizer_steps", "train_seconds", "samples_per_second", "peak_bytes",
                            "parameters", "test_accuracy", "val_accuracy", "epoch_milliseconds"})
    CHECK_MESSAGE(r.contains(field), field);
  CHECK(r["program"] == "gnn");
  CHECK(r["status"] == "done");
  CHECK(r["data"] == "generated");
  CHECK(r["optimizer_steps"] == 60);
  CHECK(r["parameters"] == 34 * 16 + 16 + 16 * 4 + 4);
  CHECK(r["test_accuracy"].get<double>() > 0.5);  // the largest class has 0.38
  CHECK(r["epoch_milliseconds"].get<double>() > 0);
}

TEST_CASE("gnn node trains each model, also on sampled neighbourhoods, with equal bits for any number of workers") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  for (const char* model : {"gat", "sage"}) {
    const Ended e = run(dir, {"node", "--model", model, "--epochs", "40", "--quiet", "--json", dir / "m.json"});
    CAPTURE(e.output);
    CHECK(e.code == 0);
    CHECK(json_of(dir / "m.json")["test_accuracy"].get<double>() > 0.5);
  }
  const auto sampled = [&](const std::string& name, const char* workers, const char* threads) {
    const std::string out = dir / name;
    const Ended e = run(dir, {"node",      "--model",      "sage",     "--sampler", "neighbor",
                              "--fanout",  "5,3",          "--epochs", "1",         "--limit-train-batches",
                              "4",         "--batch-size", "256",      "--workers", workers,
                              "--threads", threads,        "--quiet",  "--out",     out,
                              "--json",    dir / "s.json"});
    CAPTURE(e.output);
    CHECK(e.code == 0);
    CHECK(e.output.starts_with("data: a generated graph of planted classes"));
    CHECK(e.output.find("W-LOG-BATCH-SIZE") == std::string::npos);
    return weights_of(out);
  };
  const std::string base = sampled("a", "0", "1");
  CHECK(sampled("b", "1", "2") == base);
  CHECK(sampled("c", "4", "2") == base);
}

TEST_CASE("gnn node repeats with other seeds, and gives mean and deviation") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  const Ended e = run(dir, {"node", "--runs", "3", "--epochs", "30", "--quiet", "--json", dir / "r.json"});
  CAPTURE(e.output);
  REQUIRE(e.code == 0);
  CHECK(e.output.find("over 3 runs") != std::string::npos);
  const nlohmann::json r = json_of(dir / "r.json");
  CHECK(r["runs"] == 3);
  CHECK(r["test_accuracy_mean"].get<double>() > 0.4);
  CHECK(r["test_accuracy_std"].get<double>() >= 0);
}

TEST_CASE("a gnn run that is cut and resumed gives the weights of an uncut run") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  const auto weights = [&](const std::string& name, std::vector<std::string> more) {
    const std::string out = dir / name;
    more.insert(more.begin(), {"node", "--epochs", "12", "--quiet", "--out", out});
    const Ended e = run(dir, more);
    CAPTURE(e.output);
    CHECK(e.code == 0);
    return weights_of(out);
  };
  const std::string base = weights("a", {});
  CHECK(weights("b", {"--max-steps", "7"}) != base);
  CHECK(weights("b", {"--resume", "last"}) == base);
}

TEST_CASE("gnn graph tells drawn graphs with a clique from those without, fold by fold") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  const std::string out = dir / "out";
  const Ended e = run(dir, {"graph", "--epochs", "8", "--quiet", "--out", out, "--json", dir / "r.json"});
  CAPTURE(e.output);
  REQUIRE(e.code == 0);
  CHECK(e.output.starts_with("data: drawn graphs"));
  CHECK(e.output.find("fold 10") != std::string::npos);
  CHECK(fs::file_size(fs::path(out) / "embedding.svg") > 0);
  const nlohmann::json r = json_of(dir / "r.json");
  CHECK(r["fold_accuracy_mean"].get<double>() > 0.9);
  CHECK(r["fold_accuracy_std"].get<double>() >= 0);
  CHECK(r["parameters"] == 11202);
}

TEST_CASE("gnn's flags of the trainer change what it learns, as they do in the other programs") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  const std::string json = dir / "r.json";
  const auto trained = [&](const std::string& name, const std::vector<std::string>& task,
                           std::vector<std::string> more) {
    more.insert(more.begin(), task.begin(), task.end());
    more.insert(more.end(), {"--quiet", "--out", dir / name, "--json", json});
    const Ended e = run(dir, more);
    CAPTURE(e.output);
    CHECK(e.code == 0);
    return weights_of(dir / name);
  };
  const std::vector<std::string> sampled = {
      "node", "--model",  "sage", "--sampler", "neighbor", "--lr",         "0.1", "--limit-train-batches",
      "4",    "--fanout", "3,2",  "--epochs",  "1",        "--batch-size", "256"};
  std::vector<std::string> seen;
  for (const std::vector<std::string>& way : {std::vector<std::string>{},
                                              {"--accumulate", "2"},
                                              {"--clip", "0.01"},
                                              {"--clip", "0.01", "--clip-algorithm", "value"},
                                              {"--ema", "0.9"}}) {
    const std::string w = trained("node" + std::to_string(seen.size()), sampled, way);
    CHECK_MESSAGE(std::find(seen.begin(), seen.end(), w) == seen.end(), seen.size());
    seen.push_back(w);
    CHECK(json_of(json)["optimizer_steps"] == (seen.size() == 2 ? 2 : 4));
  }
  const std::vector<std::string> whole = {"node", "--epochs", "6"};
  CHECK(trained("swa", whole, {"--swa", "3"}) != trained("plain", whole, {"--profile", "trace"}));
  CHECK(fs::exists(dir / "plain/trace.json"));
  // A rate so small that no epoch improves ends the run after the first checks without an improvement.
  trained("stop", {"node", "--epochs", "50", "--lr", "1e-12"}, {"--early-stop", "val_accuracy"});
  CHECK(json_of(json)["status"] == "stopped");
  CHECK(json_of(json)["optimizer_steps"].get<int>() < 50);
  // 180 graphs in each of ten folds: 3 batches. Files and profile are those of the first fold.
  trained("graph", {"graph", "--epochs", "1", "--batch-size", "60", "--checkpoint-every", "1"},
          {"--accumulate", "2", "--profile", "simple"});
  CHECK(json_of(json)["optimizer_steps"] == 10 * 2);
  CHECK(read_file(dir / "graph/profile.txt", 1 << 16).find("training_step") != std::string::npos);
}

TEST_CASE("gnn graph exits with 130 on Ctrl-C, in whichever fold it trains") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  const Program gnn("gnn", dir);
  const pid_t child = gnn.start({"graph", "--epochs", "100", "--quiet", "--json", dir / "r.json"});
  for (int i = 0; i < 6000 && text_of(dir / "output.txt").find("fold  1") == std::string::npos; ++i) usleep(10000);
  kill(child, SIGINT);
  const Ended e = gnn.wait_for(child);
  CAPTURE(e.output);
  CHECK(e.code == 130);
  CHECK(json_of(dir / "r.json")["status"] == "interrupted");
  CHECK(json_of(dir / "r.json")["folds"].get<int>() >= 1);
}

TEST_CASE("gnn node gives the same weights on simt with its step captured") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  if (device_count(DeviceType::simt) == 0) return test::skip("no simt in this build");
  const auto weights = [&](const char* capture) {
    const std::string out = dir / capture;
    const Ended e =
        run(dir, {"node", "--device", "simt", "--epochs", "3", "--capture", capture, "--quiet", "--out", out});
    CAPTURE(e.output);
    CHECK(e.code == 0);
    CHECK(e.output.find("warning") == std::string::npos);
    return weights_of(out);
  };
  CHECK(weights("step") == weights("off"));
}

TEST_CASE("gnn refuses flags that have no meaning for its task") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  const auto refused = [&](std::vector<std::string> arguments, const char* why) {
    const Ended e = run(dir, std::move(arguments));
    CAPTURE(e.output);
    CHECK(e.code == 2);
    CHECK(e.output.find(why) != std::string::npos);
  };
  refused({"node", "--model", "gin"}, "--model gin is not for gnn node");
  refused({"graph", "--model", "gcn"}, "--model gcn is not for gnn graph");
  refused({"node", "--fanout", "3,3"}, "--fanout needs --sampler neighbor");
  refused({"node", "--batch-size", "8"}, "--batch-size needs --sampler neighbor");
  refused({"graph", "--runs", "2"}, "--runs needs gnn node");
  refused({"node", "--sampler", "neighbor"}, "--model gcn needs all neighbours");
  refused({"node", "--model", "sage", "--sampler", "neighbor", "--fanout", "3,x"}, "is no list of two counts");
  refused({"node", "--find-lr"}, "--find-lr has no meaning for this program");
  refused({"node", "--clip-algorithm", "value"}, "--clip-algorithm needs --clip");
  refused({"graph", "--early-stop", "loss"}, "--early-stop");
  refused({"graph", "--resume", "x"}, "--resume needs gnn node");
  refused({"node", "--fanout", "x", "--sampler", "neighbor", "--model", "sage"}, "is no list of two counts");
  CHECK(run(dir, {"edge"}).code == 2);
  CHECK(run(dir, {"node", "--data", dir / "nowhere"}).code == 65);
  CHECK(run(dir, {"graph", "--data", dir / "nowhere"}).code == 65);
  const Ended help = run(dir, {"--help"});
  CHECK(help.output.find("200; 10 with --sampler neighbor; 350 for graph") != std::string::npos);
}

TEST_CASE("gnn node learns Cora to the published accuracy") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  const std::string data = test::real_data("cora");
  if (data.empty()) return test::skip("no Cora: set LEVIN_DATA to a folder with cora/");
  const Ended e = run(dir, {"node", "--data", data, "--quiet", "--json", dir / "r.json"});
  CAPTURE(e.output);
  REQUIRE(e.code == 0);
  const nlohmann::json r = json_of(dir / "r.json");
  CHECK(r["data"] == "real");
  CHECK(r["parameters"] == 23063);
  CHECK(r["test_accuracy"].get<double>() > 0.785);  // no seed of fifty is below
}

TEST_CASE("gnn node on two processes keeps one graph in memory, trains all runs, and leaves no file") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  const auto trained = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"node", "--epochs", "3", "--quiet", "--json", dir / "r.json"});
    const Ended e = run(dir, std::move(arguments));
    CAPTURE(e.output);
    REQUIRE(e.code == 0);
    return e.output;
  };
  const std::string said = trained({"--runs", "2", "--devices", "2"});
  CAPTURE(said);
  CHECK(said.find("in memory once for 2 processes: 34 nodes") != std::string::npos);
  CHECK(said.find("[rank 1] data") == std::string::npos);  // rank 0 alone speaks
  CHECK(json_of(dir / "r.json")["world_size"] == 2);
  CHECK(json_of(dir / "r.json")["runs"] == 2);
  CHECK(json_of(dir / "r.json")["optimizer_steps"] == 2 * 3);  // each rank has the whole graph as its one batch
  // Sampled neighbourhoods, which read the graph in each batch.
  trained({"--sampler", "neighbor", "--model", "sage", "--max-steps", "2", "--devices", "2"});
  CHECK(json_of(dir / "r.json")["optimizer_steps"] == 2);
  std::error_code absent;
  for (const auto& entry : std::filesystem::directory_iterator(data::preload_target(), absent))
    CHECK_FALSE(entry.path().filename().string().starts_with("gnn-"));
}

TEST_CASE("gnn graph trains all folds on two processes, whose validation counts each graph once") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  const Ended e = run(dir, {"graph", "--epochs", "1", "--quiet", "--devices", "2", "--json", dir / "r.json"});
  CAPTURE(e.output);
  REQUIRE(e.code == 0);
  CHECK(json_of(dir / "r.json")["world_size"] == 2);
  CHECK(json_of(dir / "r.json")["folds"] == 10);
}
