#include <signal.h>

#include <algorithm>
#include <cstdlib>

#include "levin/data.h"
#include "tests/train/program.h"
#include "tests/where.h"

using namespace levin;
using levin::test::json_of;
using levin::test::Program;
using levin::test::TemporaryFolder;
using levin::test::weights_of;
using Ended = Program::Ended;

namespace {

namespace fs = std::filesystem;

bool built(const TemporaryFolder& dir) { return Program("mnist", dir).built(); }
Ended run(const TemporaryFolder& dir, std::vector<std::string> arguments) {
  return Program("mnist", dir).run(std::move(arguments));
}

}  // namespace

TEST_CASE("mnist trains on drawn digits, says so first, and leaves its result files") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  const std::string out = dir / "out", json = dir / "r.json";
  const Ended e =
      run(dir, {"--model", "mlp", "--epochs", "1", "--limit-train-batches", "20", "--out", out, "--json", json});
  CAPTURE(e.output);
  REQUIRE(e.code == 0);
  CHECK(e.output.starts_with("data: generated digits"));
  CHECK(e.output.find("test accuracy") != std::string::npos);
  for (const char* name : {"model.safetensors", "misclassified.png", "loss.svg", "metrics.csv"})
    CHECK_MESSAGE(fs::file_size(fs::path(out) / name) > 0, name);
  CHECK(load_safetensors(out + "/model.safetensors").tensors.size() == 6);
  CHECK(data::load_png(out + "/misclassified.png").numel() > 0);
  const nlohmann::json r = json_of(json);
  for (const char* field : {"program", "status", "data", "seed", "device", "precision", "strategy", "world_size",
                            "epochs", "optimizer_steps", "train_seconds", "samples_per_second", "peak_bytes",
                            "parameters", "test_accuracy", "val_loss"})
    CHECK_MESSAGE(r.contains(field), field);
  CHECK(r["program"] == "mnist");
  CHECK(r["status"] == "done");
  CHECK(r["data"] == "generated");
  CHECK(r["optimizer_steps"] == 20);
  CHECK(r["parameters"] == 784 * 512 + 512 + 512 * 512 + 512 + 5120 + 10);
  CHECK(r["val_loss"].is_null());
  CHECK(r["test_accuracy"].get<double>() > 0.2);  // chance is 0.1
  CHECK(r["train_seconds"].get<double>() > 0);
}

TEST_CASE("mnist gives the same weights for any number of workers and threads, and when cut and resumed") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  const auto weights = [&](const std::string& name, std::vector<std::string> more) {
    const std::string out = dir / name;
    more.insert(more.end(), {"--model", "mlp", "--epochs", "1", "--limit-train-batches", "12", "--batch-size", "64",
                             "--quiet", "--out", out});
    const Ended e = run(dir, more);
    CAPTURE(e.output);
    CHECK(e.code == 0);
    return weights_of(out);
  };
  const std::string base = weights("a", {"--workers", "0", "--threads", "1"});
  CHECK(weights("b", {"--workers", "4", "--threads", "2"}) == base);
  CHECK(weights("c", {"--workers", "1", "--threads", "2"}) == base);
  CHECK(weights("d", {"--seed", "2"}) != base);
  CHECK(weights("e", {"--max-steps", "7", "--json", dir / "e.json"}) != base);
  CHECK(json_of(dir / "e.json")["status"] == "stopped");
  CHECK(weights("e", {"--resume", "last"}) == base);
}

TEST_CASE("mnist goes on from the best validation of an earlier run") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  const std::string out = dir / "best";
  const auto trained = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--model", "mlp", "--limit-train-batches", "4", "--limit-val-batches", "2", "--batch-size",
                             "64", "--scheduler", "constant", "--quiet", "--out", out, "--json", dir / "r.json"});
    const Ended e = run(dir, more);
    CAPTURE(e.output);
    CHECK(e.code == 0);
    return json_of(dir / "r.json");
  };
  CHECK(trained({"--epochs", "2"})["optimizer_steps"] == 8);
  CHECK(std::filesystem::exists(out + "/checkpoints/last.safetensors"));
  CHECK(trained({"--epochs", "3", "--resume", "best"})["optimizer_steps"] == 12);
}

TEST_CASE("mnist's convolutional model too gives the same weights for any number of workers and threads") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  const auto weights = [&](const std::string& name, const char* workers, const char* threads) {
    const std::string out = dir / name;
    const Ended e = run(dir, {"--model", "cnn", "--epochs", "1", "--limit-train-batches", "3", "--batch-size", "48",
                              "--quiet", "--out", out, "--workers", workers, "--threads", threads});
    CAPTURE(e.output);
    CHECK(e.code == 0);
    return weights_of(out);
  };
  const std::string base = weights("a", "0", "1");
  CHECK(weights("b", "4", "2") == base);
  CHECK(weights("c", "1", "1") == base);
}

TEST_CASE("mnist validates on images that it does not train on when a flag asks for it") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  const std::string out = dir / "out", json = dir / "r.json";
  const std::vector<std::string> common = {"--model", "mlp",     "--epochs", "1", "--batch-size",
                                           "50",      "--quiet", "--json",   json};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), common.begin(), common.end());
    const Ended e = run(dir, more);
    CAPTURE(e.output);
    CHECK(e.code == 0);
    return e.output;
  };
  const std::string said =
      with({"--limit-train-batches", "6", "--val-check-interval", "3", "--limit-val-batches", "2", "--out", out});
  CHECK(said.find("validation loss") != std::string::npos);
  const double loss = json_of(json)["val_loss"].get<double>();
  CHECK(loss > 0);
  CHECK(loss < 3);  // chance is log 10
  const std::string csv = read_file(out + "/metrics.csv", 1 << 20);
  CHECK(csv.find("val_accuracy") != std::string::npos);
  // 55,000 images are 1,100 batches of 50, and 5,000 are 100: one more of either is refused.
  CHECK(run(dir, {"--limit-val-batches", "2", "--val-check-interval", "1101", "--batch-size", "50"}).code == 2);
  with({"--overfit-batches", "2"});
  CHECK(json_of(json)["optimizer_steps"] == 2);
  CHECK(json_of(json)["val_loss"].is_number());
  with({"--limit-train-batches", "5"});
  CHECK(json_of(json)["val_loss"].is_null());
}

TEST_CASE("mnist's dev run takes a few batches of everything and writes no file but the result") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  const std::string out = dir / "out", json = dir / "r.json";
  const Ended e = run(dir, {"--fast-dev-run", "2", "--model", "mlp", "--out", out, "--json", json});
  CAPTURE(e.output);
  CHECK(e.code == 0);
  CHECK_FALSE(fs::exists(out));
  CHECK(json_of(json)["optimizer_steps"] == 2);
  CHECK(json_of(json)["val_loss"].is_number());
  CHECK(run(dir, {"--model", "mlp", "--quiet", "--json", json, "--fast-dev-run"}).code == 0);
  CHECK(json_of(json)["optimizer_steps"] == 1);
}

TEST_CASE("mnist's flags of training change what it learns, and a run that they cut goes on") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  const std::string json = dir / "r.json";
  const auto weights = [&](const std::string& name, std::vector<std::string> more) {
    const std::string out = dir / name;
    more.insert(more.end(), {"--model", "mlp", "--epochs", "2", "--limit-train-batches", "5", "--batch-size", "16",
                             "--quiet", "--out", out, "--json", json});
    const Ended e = run(dir, more);
    CAPTURE(e.output);
    CHECK(e.code == 0);
    return weights_of(out);
  };
  const std::vector<std::vector<std::string>> ways = {{},
                                                      {"--accumulate", "2"},
                                                      {"--clip", "0.01"},
                                                      {"--clip", "0.01", "--clip-algorithm", "value"},
                                                      {"--optimizer", "sgd"},
                                                      {"--optimizer", "adam"},
                                                      {"--scheduler", "cosine"},
                                                      {"--scheduler", "constant"}};
  std::vector<std::string> seen;
  for (const auto& way : ways) {
    const std::string w = weights("run" + std::to_string(seen.size()), way);
    CHECK_MESSAGE(std::find(seen.begin(), seen.end(), w) == seen.end(), seen.size());
    seen.push_back(w);
    // Windows of two batches: after batches 2, 4 and 5.
    CHECK(json_of(json)["optimizer_steps"] == (seen.size() == 2 ? 6 : 10));
  }
  CHECK(weights("cut", {"--accumulate", "2", "--max-steps", "4"}) != seen[1]);
  CHECK(weights("cut", {"--accumulate", "2", "--resume", "last"}) == seen[1]);
  // The records of both parts are in one file.
  const std::string csv = read_file(dir / "cut/metrics.csv", 1 << 20);
  CHECK(csv == read_file(dir / "run1/metrics.csv", 1 << 20));

  weights("board", {"--logger", "csv,tensorboard"});
  bool events = false;
  for (const auto& file : fs::directory_iterator(dir / "board"))
    events = events || file.path().filename().string().starts_with("events.out.tfevents");
  CHECK(events);
  CHECK(fs::exists(dir / "board/metrics.csv"));
  const Ended timed = run(dir, {"--model", "mlp", "--epochs", "100000", "--limit-train-batches", "5", "--batch-size",
                                "16", "--quiet", "--max-time", "00:00:00:01", "--json", json});
  CHECK(timed.code == 0);
  CHECK(json_of(json)["status"] == "stopped");
}

TEST_CASE("mnist averages, stops early, profiles, and searches its batch size and learning rate when told to") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  const std::string json = dir / "r.json";
  const auto ran = [&](const std::string& name, std::vector<std::string> more) {
    more.insert(more.end(), {"--model", "mlp", "--limit-train-batches", "8", "--limit-val-batches", "2", "--batch-size",
                             "16", "--quiet", "--out", dir / name, "--json", json});
    const Ended e = run(dir, more);
    CHECK_MESSAGE(e.code == 0, e.output);
    return e.output;
  };
  const auto weights = [&](const std::string& name) { return weights_of(dir / name); };
  ran("plain", {"--epochs", "2", "--profile", "trace"});
  CHECK(fs::exists(dir / "plain/trace.json"));
  CHECK(read_file(dir / "plain/report.txt", 1 << 16).find("forward") != std::string::npos);
  ran("ema", {"--epochs", "2", "--ema", "0.9", "--profile", "simple"});
  CHECK(read_file(dir / "ema/profile.txt", 1 << 16).find("training_step") != std::string::npos);
  CHECK(weights("ema") != weights("plain"));
  ran("swa", {"--epochs", "2", "--swa", "2"});
  CHECK(weights("swa") != weights("plain"));
  // A rate so small that no epoch improves ends the run after the first check without an improvement.
  ran("stop", {"--epochs", "50", "--lr", "1e-12", "--early-stop", "val_accuracy"});
  CHECK(json_of(json)["status"] == "stopped");
  CHECK(json_of(json)["optimizer_steps"].get<int>() < 50 * 8);

  CHECK(ran("lr", {"--epochs", "1", "--find-lr"}).find("learning rate ") != std::string::npos);
  CHECK(fs::exists(dir / "lr/lr.svg"));
  CHECK(
      ran("size", {"--epochs", "1", "--find-batch-size", "power", "--memory-limit", "90000000"}).find("batch size ") !=
      std::string::npos);
  for (const std::vector<std::string>& bad : {std::vector<std::string>{"--ema", "0.9", "--swa", "2"},
                                              {"--ema", "1.5"},
                                              {"--early-stop", "loss"},
                                              {"--find-batch-size", "guess"},
                                              {"--profile", "trace"}})
    CHECK(run(dir, bad).code == 2);
}

TEST_CASE("mnist refuses what it does not understand with exit code 2 and the nearest name") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  const auto refused = [&](std::vector<std::string> arguments, const char* text) {
    const Ended e = run(dir, std::move(arguments));
    CAPTURE(e.output);
    CHECK(e.code == 2);
    CHECK(e.output.find(text) != std::string::npos);
  };
  refused({"--epoch", "1"}, "did you mean --epochs?");
  refused({"--sampler", "full"}, "has no meaning for this program");
  refused({"--epochs", "many"}, "--epochs");
  refused({"--model", "resnet"}, "mlp");
  refused({"--batch-size", "0"}, "--batch-size");
  // Every flag that takes a number refuses a value that the number cannot hold, before the search for data.
  for (const char* flag :
       {"--batch-size", "--epochs", "--max-steps", "--workers", "--threads", "--seed", "--accumulate", "--swa",
        "--memory-limit", "--checkpoint-every", "--check-val-every-n-epoch"}) {
    refused({flag, "99999999999999999999"}, "is not a whole number from");
    refused({flag, "1.5"}, "is not a whole number from");
  }
  for (const char* flag : {"--lr", "--clip", "--ema"}) refused({flag, "1e999"}, "is not a number that can be held");
  refused({"--lr", "nan"}, "is not a number");
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"--precision", "fp8"},
                                                {"--device", "tpu"},
                                                {"--limit-val-batches", "2.5"},
                                                {"--val-check-interval", "0"},
                                                {"--overfit-batches", "x"},
                                                {"--find-batch-size", "guess"}}) {
    const Ended e = run(dir, wrong);
    CAPTURE(e.output);
    CHECK(e.code == 2);
    CHECK(e.output.find("data:") == std::string::npos);
  }
  CHECK(run(dir, {"--frob"}).output.find("did you mean") == std::string::npos);
  refused({"--device", "tpu"}, "--device");
  refused({"surplus"}, "surplus");
  refused({"--clip-algorithm", "value"}, "--clip");
  refused({"--clip", "1", "--clip-algorithm", "sum"}, "value");
  refused({"--optimizer", "adagrad"}, "adamw");
  refused({"--max-time", "soon"}, "soon");
  refused({"--logger", "csv,paper", "--out", dir / "x"}, "paper");
  refused({"--logger", "tensorboard"}, "--out");
  refused({"--check-val-every-n-epoch", "0"}, "--check-val-every-n-epoch");
  refused({"--resume", "last"}, "--out");
  refused({"--resume", "best"}, "--out");
  refused({"--resume", "best", "--out", dir / "unvalidated"}, "needs a run that validates");
  refused({"--limit-train-batches", "lots"}, "lots");
  refused({"--limit-train-batches", "99999999999999999999"}, "--limit-train-batches");
  // 469 batches an epoch: their number in 2^63 - 1 epochs cannot be counted.
  refused({"--epochs", "9223372036854775807"}, "19666038458112528 epochs at most");
  const Ended help = run(dir, {"--help"});
  CHECK(help.code == 0);
  for (const char* flag : {"--data", "--epochs", "--batch-size", "--lr", "--model", "--workers", "--threads", "--seed",
                           "--device", "--out", "--json", "--resume"})
    CHECK_MESSAGE(help.output.find(flag) != std::string::npos, flag);
}

TEST_CASE("mnist keeps the last three of the checkpoints that it writes by steps") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  const std::string out = dir / "out";
  const Ended e = run(dir, {"--model", "mlp", "--epochs", "1", "--limit-train-batches", "12", "--batch-size", "16",
                            "--quiet", "--checkpoint-every", "2", "--out", out});
  CAPTURE(e.output);
  CHECK(e.code == 0);
  std::vector<std::string> names;
  for (const auto& file : fs::directory_iterator(out + "/checkpoints")) names.push_back(file.path().filename());
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"epoch=0-step=10.safetensors", "epoch=0-step=12.safetensors",
                                          "epoch=0-step=8.safetensors"});
}

TEST_CASE("mnist tells a damaged data folder and an unwritable place apart by exit code") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  fs::create_directories(dir / "empty");
  CHECK(run(dir, {"--data", dir / "empty"}).code == 65);
  fs::create_directories(dir / "bad");
  for (const char* name :
       {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"})
    write_file_atomically(dir / ("bad/" + std::string(name)), "this is no IDX file");
  CHECK(run(dir, {"--data", dir / "bad"}).code == 65);
  write_file_atomically(dir / "file", "x");
  CHECK(run(dir, {"--out", dir / "file/below"}).code == 73);
}

TEST_CASE("mnist saves and exits with 130 on Ctrl-C, and goes on from there") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  const Program mnist("mnist", dir);
  const std::string out = dir / "out", json = dir / "r.json";
  const std::vector<std::string> arguments = {"--model", "mlp", "--epochs",           "1", "--out", out,
                                              "--json",  json,  "--checkpoint-every", "5"};
  const pid_t child = mnist.start(arguments);
  // The first checkpoint shows that training is under way.
  for (int i = 0; i < 3000; ++i) {
    std::error_code error;
    if (fs::exists(out + "/checkpoints", error) && !fs::is_empty(out + "/checkpoints", error)) break;
    usleep(20000);
  }
  kill(child, SIGINT);
  const Ended e = mnist.wait_for(child);
  CAPTURE(e.output);
  CHECK(e.code == 130);
  CHECK(json_of(json)["status"] == "interrupted");
  CHECK(json_of(json)["test_accuracy"].is_null());
  CHECK(fs::exists(out + "/checkpoints/last.safetensors"));
}

TEST_CASE("mnist goes on with the threads that it has where the system starts no more, and says so") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  // The limit does not apply to root: a copy, which only its owner must be able to read, runs as another user.
  fs::copy_file(levin::test::build_dir() + "/examples/mnist", dir / "mnist");
  fs::permissions(dir.path(), fs::perms::all);
  const std::string run_as = geteuid() == 0 ? "setpriv --reuid=65534 --clear-groups " : "", out = dir / "said.txt";
  const std::string line = run_as + "bash -c 'ulimit -u 1 && exec " + dir / "mnist" +
                           " --model mlp --fast-dev-run 2 --quiet --workers 1 --device cpu' > " + out + " 2>&1";
  const int status = std::system(("XDG_CACHE_HOME=" + dir.path() + " " + line).c_str());
  const std::string said = read_file(out, 1 << 20);
  CAPTURE(said);
  if (WEXITSTATUS(status) == 126 || WEXITSTATUS(status) == 127) return levin::test::skip("no setpriv or no bash here");
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(said.find("W-DATA-THREADS") != std::string::npos);
  CHECK(said.find("test accuracy") != std::string::npos);
}
