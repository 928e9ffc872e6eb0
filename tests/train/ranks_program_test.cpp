// Programs on several processes: started by themselves, and by levin-run.
#include <algorithm>
#include <cmath>

#include "tests/train/program.h"
#include "tests/variables.h"

using namespace levin;
using namespace levin::test;

namespace {

const std::vector<std::string> kRun = {"--model",   "mlp", "--scheduler", "constant",    "--optimizer", "sgd",
                                       "--lr",      "0.1", "--epochs",    "1",           "--max-steps", "6",
                                       "--workers", "0",   "--quiet",     "--precision", "32-true"};

// With a schedule, whose length depends on the number of batches of an epoch.
const std::vector<std::string> kScheduled = {"--model",   "mlp", "--max-steps", "6",   "--workers", "1",
                                             "--threads", "1",   "--clip",      "0.5", "--quiet"};

std::vector<std::string> flags(std::vector<std::string> first, const std::string& out) {
  first.insert(first.end(), kRun.begin(), kRun.end());
  first.insert(first.end(), {"--out", out, "--json", out + ".json"});
  return first;
}

double most_different(const std::string& a, const std::string& b) {
  const auto left = load_safetensors(a + "/model.safetensors"), right = load_safetensors(b + "/model.safetensors");
  REQUIRE(left.tensors.size() == right.tensors.size());
  double most = 0;
  for (std::size_t i = 0; i < left.tensors.size(); ++i) {
    const std::vector<float> x = left.tensors[i].second.to_vector<float>(),
                             y = right.tensors[i].second.to_vector<float>();
    REQUIRE(x.size() == y.size());
    for (std::size_t k = 0; k < x.size(); ++k) most = std::max(most, std::abs(double{x[k]} - double{y[k]}));
  }
  return most;
}

}  // namespace

TEST_CASE("mnist on two processes makes the steps of one process with batches of twice the size") {
  const TemporaryFolder dir;
  const Program mnist("mnist", dir);
  if (!mnist.built()) return;
  const auto one = mnist.run(flags({"--batch-size", "32"}, dir / "one"));
  CAPTURE(one.output);
  REQUIRE(one.code == 0);
  const auto two = mnist.run(flags({"--batch-size", "16", "--devices", "2", "--strategy", "ddp"}, dir / "two"));
  CAPTURE(two.output);
  REQUIRE(two.code == 0);
  CHECK(two.output.find("[rank 1] ") != std::string::npos);
  CHECK(json_of(dir / "two.json")["optimizer_steps"] == 6);
  CHECK(json_of(dir / "two.json")["world_size"] == 2);
  CHECK(json_of(dir / "two.json")["strategy"] == "ddp");
  CHECK(json_of(dir / "one.json")["world_size"] == 1);
  CHECK(json_of(dir / "one.json")["strategy"] == "single_device");
  CHECK(most_different(dir / "one", dir / "two") <= 1e-5);
}

TEST_CASE("mnist by fsdp and by ZeRO on two processes makes the steps of one process with batches of twice the size") {
  const TemporaryFolder dir;
  const Program mnist("mnist", dir);
  if (!mnist.built()) return;
  const auto one = mnist.run(flags({"--batch-size", "32"}, dir / "one"));
  CAPTURE(one.output);
  REQUIRE(one.code == 0);
  for (const std::string strategy : {"fsdp", "zero_stage_2"}) {
    const auto two = mnist.run(flags({"--batch-size", "16", "--devices", "2", "--strategy", strategy}, dir / strategy));
    CAPTURE(two.output);
    REQUIRE(two.code == 0);
    CHECK(json_of(dir / (strategy + ".json"))["strategy"] == strategy);
    CHECK(json_of(dir / (strategy + ".json"))["world_size"] == 2);
    CHECK(most_different(dir / "one", dir / strategy) <= 1e-5);
  }
}

TEST_CASE("mnist on two processes resumes from the file of rank 0 to the bits of a run that was not cut") {
  const TemporaryFolder dir;
  const Program mnist("mnist", dir);
  if (!mnist.built()) return;
  const auto run = [&](const char* steps, const std::string& out, std::vector<std::string> more) {
    more.insert(more.begin(), {"--batch-size", "16", "--devices", "2", "--checkpoint-every", "3"});
    std::vector<std::string> all = flags(std::move(more), dir / out);
    *(std::find(all.begin(), all.end(), "--max-steps") + 1) = steps;
    const auto ended = mnist.run(all);
    CAPTURE(ended.output);
    REQUIRE(ended.code == 0);
  };
  run("6", "whole", {});
  run("3", "cut", {});
  run("6", "cut", {"--resume", "last"});
  CHECK(json_of(dir / "cut.json")["optimizer_steps"] == 6);
  CHECK(weights_of(dir / "cut") == weights_of(dir / "whole"));
}

TEST_CASE("levin-run starts the processes of a program, which finds its rank by itself") {
  const TemporaryFolder dir;
  const Program mnist("mnist", dir), launcher("levin-run", dir);
  if (!mnist.built() || !launcher.built()) return;
  const auto self = mnist.run(flags({"--batch-size", "16", "--devices", "2"}, dir / "self"));
  CAPTURE(self.output);
  REQUIRE(self.code == 0);
  const auto run = launcher.run(flags(
      {"-n", "2", "--", build_dir() + "/examples/mnist", "--batch-size", "16", "--strategy", "ddp"}, dir / "run"));
  CAPTURE(run.output);
  REQUIRE(run.code == 0);
  CHECK(weights_of(dir / "self") == weights_of(dir / "run"));
}

TEST_CASE("mnist with 4 virtual ranks writes the same model, bit for bit, with 1, 2 and 4 processes") {
  const TemporaryFolder dir;
  const Program mnist("mnist", dir);
  if (!mnist.built()) return;
  std::vector<double> accuracies;
  // Batches of 32 samples, of all processes together.
  const auto model_of = [&](int processes, const std::string& virtual_ranks) {
    const std::string out = dir / (std::to_string(processes) + "-" + virtual_ranks);
    std::vector<std::string> arguments = kScheduled;
    arguments.insert(arguments.end(), {"--virtual-ranks", virtual_ranks, "--devices", std::to_string(processes)});
    arguments.insert(arguments.end(), {"--batch-size", std::to_string(32 / processes), "--out", out});
    arguments.insert(arguments.end(), {"--json", out + ".json"});
    const auto ended = mnist.run(arguments);
    CAPTURE(ended.output);
    REQUIRE(ended.code == 0);
    accuracies.push_back(json_of(out + ".json")["test_accuracy"]);
    return read_file(out + "/model.safetensors", std::size_t{1} << 26) +
           read_file(out + "/misclassified.png", std::size_t{1} << 26);
  };
  const std::string one = model_of(1, "4");
  CHECK(model_of(2, "4") == one);
  CHECK(model_of(4, "4") == one);
  // Each process tests its part of the samples.
  CHECK(accuracies == std::vector<double>(3, accuracies[0]));
  CHECK(model_of(1, "2") != one);
}

TEST_CASE("mnist trains as on one device: in stages, in parts of the batch, and in stages that are processes") {
  const TemporaryFolder dir;
  const Program mnist("mnist", dir);
  if (!mnist.built()) return;
  const auto ran = [&](std::vector<std::string> first, const std::string& out) {
    first.insert(first.end(), {"--batch-size", "32", "--device", "cpu"});
    const auto ended = mnist.run(flags(std::move(first), dir / out));
    CAPTURE(ended.output);
    REQUIRE(ended.code == 0);
    CHECK(json_of(dir / (out + ".json"))["optimizer_steps"] == 6);
    return ended.output;
  };
  (void)ran({}, "one");
  (void)ran({"--devices", "2", "--strategy", "pipeline", "--balance", "2,1"}, "stages");
  (void)ran({"--devices", "0,1,2", "--strategy", "pipe", "--microbatches", "3", "--schedule", "1f1b"}, "three");
  (void)ran({"--devices", "2", "--strategy", "dp"}, "parts");
  const double accuracy = json_of(dir / "one.json")["test_accuracy"].get<double>();
  const std::string ranks =
      ran({"--devices", "2", "--strategy", "rpc_sequential", "--balance", "1,2", "--microbatches", "4"}, "ranks");
  CHECK(ranks.find("[rank 1] ") != std::string::npos);
  for (const char* split : {"stages", "three", "parts", "ranks"}) {
    CAPTURE(split);
    CHECK(most_different(dir / "one", dir / split) <= 1e-5);
    CHECK(std::abs(json_of(dir / (std::string(split) + ".json"))["test_accuracy"].get<double>() - accuracy) < 0.01);
  }
}

TEST_CASE("a wrong number of processes or strategy is refused before any work") {
  const TemporaryFolder dir;
  const Program mnist("mnist", dir);
  if (!mnist.built()) return;
  const auto refused = [&](std::vector<std::string> first, std::string_view what) {
    const auto ended = mnist.run(flags(std::move(first), dir / "refused"));
    CAPTURE(ended.output);
    CHECK(ended.code == 2);
    CHECK(ended.output.find(what) != std::string::npos);
  };
  refused({"--devices", "0"}, "devices is 0");
  refused({"--devices", "0,1", "--strategy", "ddp", "--device", "cpu"}, "devices is the list 0,1");
  refused({"--devices", "2", "--virtual-ranks", "3"}, "virtual_ranks is 3, expected a power of two");
  refused({"--devices", "3", "--virtual-ranks", "4"}, "virtual_ranks is 4 and there are 3 ranks");
  refused({"--devices", "2", "--strategy", "dp", "--virtual-ranks", "4"}, "--virtual-ranks is for --strategy ddp");
  refused({"--devices", "2", "--strategy", "ddq"}, "strategy is \"ddq\", expected one of");
  const std::vector<std::string> stages = {"--device", "cpu", "--devices", "2", "--strategy", "pipeline"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), stages.begin(), stages.end());
    return more;
  };
  refused(with({"--balance", "1,1,1"}), "balance is {1, 1, 1}, 3 stages, and there are 2 devices");
  refused(with({"--balance", "2,2"}), "balance is {2, 2}, 4 layers, and layers() has 3");
  refused(with({"--balance", "2,"}), "--balance: \"2,\" is not a list of numbers");
  refused(with({"--microbatches", "0"}), "--microbatches");
  refused({"--balance", "2,1"}, "--balance needs --strategy pipeline");
  refused({"--device", "cpu", "--strategy", "pipeline"}, "the accelerator is cpu, which is one device");
}

TEST_CASE(
    "mnist whose second process is killed names it, saves the run and ends with 75; resumed it has the same bits") {
  const TemporaryFolder dir;
  const Program mnist("mnist", dir);
  if (!mnist.built()) return;
  const std::vector<std::string> two = {"--batch-size", "16", "--devices", "2"};
  const auto whole = mnist.run(flags(two, dir / "whole"));
  REQUIRE(whole.code == 0);
  {
    const PlantedVariables planted({{"LEVIN_POINTS", "rank 1: at collective of step 3 -> kill"}});
    const auto lost = mnist.run(flags(two, dir / "lost"));
    CAPTURE(lost.output);
    CHECK(lost.code == 75);
    for (const char* part : {"rank 1 (host ", "was lost in phase ", ", 3 steps completed", "rescue-3.safetensors"})
      CHECK(lost.output.find(part) != std::string::npos);
  }
  std::vector<std::string> again = two;
  again.insert(again.end(), {"--resume", "last"});
  const auto resumed = mnist.run(flags(again, dir / "lost"));
  CAPTURE(resumed.output);
  REQUIRE(resumed.code == 0);
  CHECK(weights_of(dir / "lost") == weights_of(dir / "whole"));
}
