#include <fstream>
#include <iterator>

#include "levin/autograd.h"
#include "levin/build_info.h"
#include "levin/nn.h"
#include "levin/ops.h"
#include "levin/train/checkpoint.h"
#include "tests/train/program.h"
#include "train/run/fixture_test.h"

using namespace levin;
using namespace levin::test;
using Ended = Program::Ended;

namespace {

// A checkpoint of a short run after `steps` steps, and its content.
struct Saved {
  Generator gen{3};
  Net net{{.gen = gen, .device = Device::cpu()}};
  optim::Adam opt{net.parameters(), optim::AdamOptions{.lr = 0.01}};
  data::DataLoader data = loader(40, 4);

  Saved(const std::string& path, std::int64_t steps, WeightsOnly only = WeightsOnly::no) {
    TrainerOptions options = silent();
    options.max_steps = steps;
    Trainer trainer(options);
    trainer.fit(opt, data, [&](const Batch& b) { return squared_error(net(b[0]), b[1]); });
    trainer.save_checkpoint(path, only);
  }
};

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Flips one bit of the tensor's first byte.
void damage(const std::string& path, const std::string& tensor) {
  std::string bytes = bytes_of(path);
  const TensorFile file = load_safetensors(path);
  std::size_t found = 0;
  for (const auto& [name, t] : file.tensors) {
    if (name != tensor) continue;
    ++found;
    const std::vector<float> values = t.to_vector<float>();
    const std::string content(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    const std::size_t at = bytes.find(content);
    REQUIRE(at != std::string::npos);
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
  }
  REQUIRE(found == 1);
  std::ofstream(path, std::ios::binary) << bytes;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("read_checkpoint_info tells weights from state, and counters and values by dotted names") {
  const TemporaryFolder dir;
  const std::string path = dir / "a.safetensors", bare = dir / "w.safetensors";
  const Saved run(path, 13);
  const CheckpointInfo info = read_checkpoint_info(path);
  CHECK_FALSE(info.weights_only);
  CHECK(info.damage.empty());
  CHECK(info.global_step == 13);
  CHECK(info.epochs_completed == 1);
  CHECK(info.weights.size() == run.net.state_dict().size());
  for (const auto& [name, t] : info.rest) CHECK_MESSAGE(name.starts_with("levin."), name);
  CHECK_FALSE(info.rest.empty());
  const auto value = [&](std::string_view name) {
    for (const auto& [key, v] : info.state) {
      if (key == name) return v;
    }
    return std::string("absent");
  };
  CHECK(value("loops.batches_in_epoch") == "3");
  CHECK(value("loops.total_batches") == "13");
  CHECK(value("optimizers") == "[\"adam\"]");

  const Saved weights(bare, 2, WeightsOnly::yes);
  const CheckpointInfo alone = read_checkpoint_info(bare);
  CHECK(alone.weights_only);
  CHECK(alone.weights.size() == info.weights.size());
  CHECK(alone.rest.empty());
  CHECK(alone.state.empty());

  // A checkpoint that lost its state or its hashes is no file of weights.
  TensorFile file = load_safetensors(path);
  for (const std::size_t gone : {0, 1}) {
    Metadata left = {file.metadata[1 - gone]};
    save_safetensors(dir / "cut.safetensors", file.tensors, left);
    const CheckpointInfo cut = read_checkpoint_info(dir / "cut.safetensors");
    CHECK_FALSE(cut.weights_only);
    REQUIRE(cut.damage.size() == 1);
    CHECK(cut.damage[0].name == file.metadata[gone].first);
  }
  // A tensor that is missing from one file is named.
  const std::string first = file.tensors[0].first;
  file.tensors.erase(file.tensors.begin());
  save_safetensors(dir / "fewer.safetensors", file.tensors, file.metadata);
  const CheckpointInfo fewer = read_checkpoint_info(dir / "fewer.safetensors");
  REQUIRE(fewer.damage.size() == 1);
  CHECK(fewer.damage[0].name == first);
}

TEST_CASE("levin ckpt verify names each damaged tensor of each file and exits with 65") {
  const TemporaryFolder dir;
  const Program levin_tool("levin", dir);
  if (!levin_tool.built()) return;
  const std::string good = dir / "good.safetensors", bad = dir / "bad.safetensors", cut = dir / "cut.safetensors";
  const Saved run(good, 5);
  CHECK(levin_tool.run({"ckpt", "verify", good}).code == 0);
  std::filesystem::copy_file(good, bad);
  damage(bad, "fc1.weight");
  damage(bad, "levin.optimizer.0.fc2.weight.exp_avg");
  std::ofstream(cut, std::ios::binary) << bytes_of(good).substr(0, 900);
  const Ended e = levin_tool.run({"ckpt", "verify", good, bad, cut, "--json", dir / "r.json"});
  CAPTURE(e.output);
  CHECK(e.code == 65);
  CHECK(
      has(e.output, "good.safetensors: " + std::to_string(load_safetensors(good).tensors.size()) + " tensors, every"));
  CHECK(has(e.output, "\"fc1.weight\" has hash"));
  CHECK(has(e.output, "\"levin.optimizer.0.fc2.weight.exp_avg\" has hash"));
  const nlohmann::json r = json_of(dir / "r.json");
  REQUIRE(r.size() == 3);
  CHECK(r[0]["damage"].empty());
  CHECK(r[1]["damage"].size() == 2);
  CHECK(r[2]["damage"].size() == 1);
  CHECK(levin_tool.run({"ckpt", "show", bad}).code == 65);
  CHECK(levin_tool.run({"ckpt", "export", bad, "--out", dir / "out.safetensors"}).code == 65);
  CHECK_FALSE(std::filesystem::exists(dir / "out.safetensors"));
}

TEST_CASE("levin ckpt show lists tensors with shape, dtype and bytes, and the state") {
  const TemporaryFolder dir;
  const Program levin_tool("levin", dir);
  if (!levin_tool.built()) return;
  const std::string path = dir / "a.safetensors";
  const Saved run(path, 13);
  const Ended e = levin_tool.run({"ckpt", "show", path, "--json", dir / "r.json"});
  CAPTURE(e.output);
  CHECK(e.code == 0);
  CHECK(has(e.output, "optimizer steps 13"));
  CHECK(has(e.output, "fc1.weight"));
  CHECK(has(e.output, "[16, 2]"));
  const nlohmann::json r = json_of(dir / "r.json");
  CHECK(r["kind"] == "checkpoint");
  CHECK(r["global_step"] == 13);
  CHECK(r["bytes"] == std::filesystem::file_size(path));
  CHECK(r["state"]["loops.batches_in_epoch"] == "3");
  bool found = false;
  for (const auto& t : r["tensors"]) {
    if (t["name"] != "fc1.weight") continue;
    found = true;
    CHECK(t["shape"] == nlohmann::json::array({16, 2}));
    CHECK(t["dtype"] == "f32");
    CHECK(t["bytes"] == 16 * 2 * 4);
    CHECK(t["part"] == "weights");
  }
  CHECK(found);
}

TEST_CASE("levin ckpt diff exits with 0 for equal checkpoints and with 1 for what it lists") {
  const TemporaryFolder dir;
  const Program levin_tool("levin", dir);
  if (!levin_tool.built()) return;
  const std::string a = dir / "a.safetensors", same = dir / "same.safetensors", later = dir / "later.safetensors";
  const Saved first(a, 5), again(same, 5), longer(later, 6);
  const Ended equal = levin_tool.run({"ckpt", "diff", a, same});
  CAPTURE(equal.output);
  CHECK(equal.code == 0);
  const Ended e = levin_tool.run({"ckpt", "diff", a, later, "--json", dir / "r.json"});
  CAPTURE(e.output);
  CHECK(e.code == 1);
  CHECK(has(e.output, "global_step is 5, in the second 6"));
  CHECK(has(e.output, "fc1.weight differs by at most 0.0"));
  CHECK(json_of(dir / "r.json")["equal"] == false);

  // Known values: 3 at most, a shape, a name.
  const Tensor x = full({2, 2}, 1.0, Device::cpu()), y = from_data<float>({1, 1, -2, 1.5f}, {2, 2}, Device::cpu());
  save_safetensors(dir / "x.safetensors", {{"w", x}, {"shape", x}, {"only", x}});
  save_safetensors(dir / "y.safetensors", {{"w", y}, {"shape", full({4}, 1.0, Device::cpu())}});
  const Ended known = levin_tool.run({"ckpt", "diff", dir / "x.safetensors", dir / "y.safetensors"});
  CAPTURE(known.output);
  CHECK(known.code == 1);
  CHECK(has(known.output, "w differs by at most 3\n"));
  CHECK(has(known.output, "shape is f32 [2, 2], in the second f32 [4]"));
  CHECK(has(known.output, "only is only in the first"));
}

TEST_CASE("levin ckpt export writes the weights alone, byte for byte as save_safetensors has them") {
  const TemporaryFolder dir;
  const Program levin_tool("levin", dir);
  if (!levin_tool.built()) return;
  const std::string path = dir / "a.safetensors", out = dir / "model.safetensors";
  const Saved run(path, 5);
  CHECK(levin_tool.run({"ckpt", "export", path, "--out", out}).code == 0);
  save_safetensors(dir / "expected.safetensors", run.net.state_dict());
  CHECK(bytes_of(out) == bytes_of(dir / "expected.safetensors"));
  CHECK(levin_tool.run({"ckpt", "export", path, "--out", dir / "model.npz"}).code == 2);
  CHECK(levin_tool.run({"ckpt", "export", path, "--out", dir / "absent/model.safetensors"}).code == 73);
}

TEST_CASE("levin plan tells the memory of a step of mnist and gan, and the largest batch for a memory") {
  const TemporaryFolder dir;
  const Program levin_tool("levin", dir);
  if (!levin_tool.built()) return;
  const auto planned = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "plan");
    for (const char* a : {"--json", "r.json"}) arguments.emplace_back(a == std::string("r.json") ? dir / "r.json" : a);
    const Ended e = levin_tool.run(std::move(arguments));
    CAPTURE(e.output);
    REQUIRE(e.code == 0);
    CHECK(has(e.output, "activations"));
    return json_of(dir / "r.json");
  };
  // LeNet of mnist: 857,738 parameters; sizes are rounded up by a quarter at most.
  const std::int64_t parameters = 4 * (32 * 25 + 32 + 64 * 32 * 25 + 64 + 64 * 49 * 256 + 256 + 2560 + 10);
  const nlohmann::json cnn = planned({"mnist", "--batch-size", "512", "--optimizer", "adam"});
  CHECK(cnn["parameters"] >= parameters);
  CHECK(cnn["parameters"] <= parameters * 5 / 4);
  CHECK(cnn["gradients"] == cnn["parameters"]);
  CHECK(cnn["optimizer_state"] == 2 * cnn["parameters"].get<std::int64_t>());
  CHECK(cnn["batch"].get<std::int64_t>() >= 512 * (28 * 28 * 4 + 8));
  CHECK(cnn["peak"].get<std::int64_t>() > cnn["activations"].get<std::int64_t>());
  const nlohmann::json half = planned({"mnist", "--batch-size", "512", "--precision", "bf16-mixed"});
  CHECK(half["activations"] < cnn["activations"]);
  CHECK(planned({"mnist", "--batch-size", "512", "--optimizer", "sgd"})["peak"] < cnn["peak"]);

  const std::int64_t peak = cnn["peak"];
  const nlohmann::json exact = planned({"mnist", "--memory", std::to_string(peak)});
  CHECK(exact["largest_batch"] >= 512);
  CHECK(exact["batch_size"] == exact["largest_batch"]);
  CHECK(exact["peak"] <= peak);
  const std::int64_t next = exact["largest_batch"].get<std::int64_t>() + 1;
  CHECK(planned({"mnist", "--batch-size", std::to_string(next)})["peak"] > peak);
  CHECK(planned({"mnist", "--memory", "1000"})["largest_batch"] == 0);

  const nlohmann::json gan = planned({"gan", "--model", "mlp", "--batch-size", "64"});
  CHECK(gan["optimizer"] == "adam");
  CHECK(gan["gradients"] > 0);  // of the larger of the two networks
  CHECK(gan["gradients"] < gan["parameters"]);
  CHECK(gan["optimizer_state"] == 2 * gan["parameters"].get<std::int64_t>());
  CHECK(levin_tool.run({"plan", "gan", "--optimizer", "sgd"}).code == 2);
  CHECK(levin_tool.run({"plan", "gpt"}).code == 2);
  CHECK(levin_tool.run({"plan", "mnist", "--precision", "8-true"}).code == 2);
}

TEST_CASE(
    "levin plan on a CPU counts what lies beside the step, and a run of mnist works under the memory that it names") {
  const TemporaryFolder dir;
  const Program levin_tool("levin", dir), mnist("mnist", dir);
  if (!levin_tool.built() || !mnist.built()) return;
  CHECK(levin_tool.run({"plan", "mnist", "--device", "cpu", "--batch-size", "512", "--json", dir / "r.json"}).code ==
        0);
  const nlohmann::json plan = json_of(dir / "r.json");
  const std::int64_t data = plan["data_sets"], ahead = plan["loaded_ahead"], peak = plan["peak"];
  CHECK(data >= 70000 * (28 * 28 + 1));
  CHECK(data <= 70000 * (28 * 28 + 1) * 5 / 4);
  CHECK(ahead >= 2 * 512 * (28 * 28 * 4 + 8));
  const auto run_under = [&](std::int64_t bytes) {
    return mnist.run({"--device", "cpu", "--batch-size", "512", "--fast-dev-run", "4", "--quiet", "--memory-limit",
                      std::to_string(bytes)});
  };
  const Ended fits = run_under(peak);
  CAPTURE(fits.output);
  CHECK(fits.code == 0);
  const Ended small = run_under(peak - data);
  CAPTURE(small.output);
  CHECK(small.code != 0);
  CHECK(has(small.output, "limit"));
  CHECK(
      levin_tool
          .run({"plan", "mnist", "--device", "cpu", "--batch-size", "512", "--workers", "0", "--json", dir / "r.json"})
          .code == 0);
  CHECK(json_of(dir / "r.json")["loaded_ahead"] == 0);
  // A GPU has neither.
  CHECK(levin_tool.run({"plan", "mnist", "--batch-size", "512", "--json", dir / "r.json"}).code == 0);
  CHECK(json_of(dir / "r.json")["data_sets"] == 0);
  CHECK(json_of(dir / "r.json")["loaded_ahead"] == 0);
  for (const char* flag : {"--batch-size", "--accumulate", "--memory", "--workers"}) {
    const Ended e = levin_tool.run({"plan", "mnist", flag, "99999999999999999999"});
    CAPTURE(e.output);
    CHECK(e.code == 2);
    CHECK(has(e.output, "is not a whole number from"));
  }
}

TEST_CASE(
    "levin plan --devices divides state, gradients and parameters of mnist among ranks as the stages of ZeRO do") {
  const TemporaryFolder dir;
  const Program levin_tool("levin", dir);
  if (!levin_tool.built()) return;
  CHECK(levin_tool.run({"plan", "mnist", "--devices", "4", "--json", dir / "r.json"}).code == 0);
  const nlohmann::json plan = json_of(dir / "r.json"), ranks = plan["ranks"];
  const std::int64_t p = plan["parameters"], g = plan["gradients"], s = plan["optimizer_state"], peak = plan["peak"];
  REQUIRE(ranks.size() == 4);
  const auto quarter = [](std::int64_t bytes) { return (bytes + 3) / 4; };
  CHECK(ranks[0]["peak"] == peak);
  CHECK(ranks[1]["peak"] == peak - s + quarter(s));
  CHECK(ranks[2]["peak"] == peak - s - g + quarter(s) + quarter(g));
  CHECK(ranks[3]["peak"] == peak - s - g - p + quarter(s) + quarter(g) + quarter(p));
  CHECK(ranks[3]["parameters"] == quarter(p));
  CHECK(levin_tool.run({"plan", "mnist", "--devices", "0"}).code == 2);
}

TEST_CASE(
    "levin plan of a language model gives the memory of ZeRO, the time of all-reduces and the bubble of pipelines") {
  const TemporaryFolder dir;
  const Program levin_tool("levin", dir);
  if (!levin_tool.built()) return;
  const auto planned = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"plan", "gpt2-124M", "--json", dir / "r.json"});
    const Ended e = levin_tool.run(std::move(arguments));
    CAPTURE(e.output);
    REQUIRE(e.code == 0);
    return json_of(dir / "r.json");
  };
  const auto layout = [](const nlohmann::json& plan, const std::string& strategy, int stages = 1) {
    for (const nlohmann::json& l : plan["layouts"]) {
      if (l["strategy"] == strategy && l["stages"] == stages && l["recompute"] == false) return l;
    }
    FAIL(strategy);
    return nlohmann::json();
  };
  const auto state_of = [](const nlohmann::json& l) {
    return l["parameters"].get<double>() + l["gradients"].get<double>() + l["optimizer_state"].get<double>();
  };
  // 16 bytes a parameter: weight and gradient of 16 bits, f32 master and Adam's two moments.
  const double p = 124439808;
  const nlohmann::json node = planned({"--devices", "8", "--alpha", "0"});
  CHECK(node["parameters"] == p);
  CHECK(state_of(layout(node, "ddp")) == doctest::Approx(16 * p));
  CHECK(state_of(layout(node, "zero_stage_1")) == doctest::Approx(4 * p + 12 * p / 8));
  CHECK(state_of(layout(node, "zero_stage_2")) == doctest::Approx(2 * p + 14 * p / 8));
  const double largest = (50257 + 1024 + 2) * 768.0;  // the embedding, of which two fit beside the shard
  CHECK(state_of(layout(node, "zero_stage_3")) == doctest::Approx(16 * p / 8 + 2 * 2 * largest));
  CHECK(node["checkpoint_bytes"] == 14 * p);

  // An all-reduce moves 2 (n - 1) / n of the bytes.
  CHECK(layout(node, "ddp")["communication_ms"].get<double>() ==
        doctest::Approx(1e3 * 2 * 7 / 8 * 2 * p / 475e9).epsilon(1e-6));
  const nlohmann::json two = planned({"--devices", "8", "--nodes", "2", "--net", "50", "--net-alpha", "0"});
  CHECK(layout(two, "ddp")["communication_ms"].get<double>() ==
        doctest::Approx(1e3 * 2 * 15 / 16 * 2 * p / 50e9).epsilon(1e-6));
  // Alone there is nothing to send; a slow network shows once backward is over.
  const nlohmann::json one = planned({"--devices", "1"});
  CHECK(one["layouts"].size() == 2);  // with and without recomputation
  CHECK(layout(one, "ddp")["exposed_ms"] == 0);
  const nlohmann::json slow = layout(planned({"--devices", "8", "--nodes", "2", "--net", "0.1"}), "ddp");
  CHECK(slow["exposed_ms"].get<double>() > 0.8 * slow["communication_ms"].get<double>());
  CHECK(slow["exposed_ms"].get<double>() < slow["communication_ms"].get<double>());

  for (const auto& [stages, tokens] : {std::pair{2, 65536}, {4, 131072}}) {
    const nlohmann::json l = layout(
        planned({"--devices", "4", "--batch-size", "2", "--tokens", std::to_string(tokens)}), "pipeline", stages);
    const double m = l["micro_batches"], bubble = l["bubble_ms"], compute = l["compute_ms"];
    CHECK(m == tokens / (4 / stages) / 2048.0);
    CHECK(bubble / (compute + bubble) == doctest::Approx((stages - 1) / (m + stages - 1)));
  }
  // Thousands of ranks are a matter of formulas.
  CHECK(planned({"--devices", "8", "--nodes", "512", "--tokens", "33554432"})["ranks"] == 4096);

  const Ended script = levin_tool.run({"plan", "gpt2-124M", "--devices", "8", "--nodes", "2", "--sbatch",
                                       dir / "job.sh", "--command", "./train --data /data"});
  CHECK(script.code == 0);
  const std::string text = read_file(dir / "job.sh", 1 << 16);
  CHECK(has(text, "#SBATCH --nodes=2"));
  CHECK(has(text, "./train --data /data --devices 8 --nodes 2 --strategy ddp"));
}

TEST_CASE("levin plan of a language model takes measured figures, and says which number is wrong") {
  const TemporaryFolder dir;
  const Program levin_tool("levin", dir);
  if (!levin_tool.built()) return;
  write_file_atomically(dir / "c.json", R"({"busbw": 100, "tflops": 200, "error": 0.07})");
  const auto compute = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"plan", "gpt2-124M", "--json", dir / "r.json"});
    CHECK(levin_tool.run(std::move(arguments)).code == 0);
    return json_of(dir / "r.json")["layouts"][0]["compute_ms"].get<double>();
  };
  const double assumed = compute({});
  CHECK(compute({"--calibration", dir / "c.json"}) == doctest::Approx(2 * assumed));
  CHECK(json_of(dir / "r.json")["error"] == 0.07);
  CHECK(compute({"--calibration", dir / "c.json", "--tflops", "800"}) == doctest::Approx(assumed / 2));

  write_file_atomically(dir / "bad.json", R"({"busbw": -1})");
  const Ended bad = levin_tool.run({"plan", "gpt2-124M", "--calibration", dir / "bad.json"});
  CHECK(bad.code == 65);
  CHECK(has(bad.output, "\"busbw\""));
  CHECK(levin_tool.run({"plan", "gpt2-124M", "--calibration", dir / "absent.json"}).code == 65);
  const Ended few = levin_tool.run({"plan", "gpt2-124M", "--devices", "8", "--tokens", "1000"});
  CHECK(few.code == 2);
  CHECK(has(few.output, "1000 tokens"));
  CHECK(levin_tool.run({"plan", "gpt2-9000M"}).code == 2);
  CHECK(levin_tool.run({"plan", "gpt2-124M", "--devices", "0"}).code == 2);
  CHECK(levin_tool.run({"plan", "gpt2-124M", "--sbatch", dir / "x.sh"}).code == 2);
}

TEST_CASE("levin ckpt reads the folder of a sharded checkpoint as it reads a file, and makes one file of it") {
  const TemporaryFolder dir;
  const Program levin_tool("levin", dir);
  if (!levin_tool.built()) return;
  const std::string file = dir / "a.safetensors", folder = dir / "a.levin", out = dir / "one.safetensors";
  const Saved of_file(file, 5), of_folder(folder, 5);  // equal runs
  CHECK(levin_tool.run({"ckpt", "verify", folder}).code == 0);
  const Ended shown = levin_tool.run({"ckpt", "show", folder, "--json", dir / "r.json"});
  CHECK(shown.code == 0);
  CHECK(has(shown.output, "a.levin: checkpoint"));
  CHECK(json_of(dir / "r.json")["bytes"] > 1000);
  CHECK(levin_tool.run({"ckpt", "diff", folder, file}).code == 0);
  CHECK(levin_tool.run({"ckpt", "consolidate", folder, out}).code == 0);
  CHECK(levin_tool.run({"ckpt", "diff", out, file}).code == 0);
  CHECK(levin_tool.run({"ckpt", "consolidate", folder, dir / "one.npz"}).code == 2);
  const std::string of_rank = folder + "/rank-00000-of-00001.safetensors";
  std::string bytes = bytes_of(of_rank);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(of_rank, std::ios::binary) << bytes;
  CHECK(levin_tool.run({"ckpt", "verify", folder}).code == 65);
  CHECK(levin_tool.run({"ckpt", "consolidate", folder, out}).code == 65);
}

TEST_CASE("levin ckpt --help lists the commands of ckpt, and each lists its flags") {
  const TemporaryFolder dir;
  const Program levin_tool("levin", dir);
  if (!levin_tool.built()) return;
  const Ended e = levin_tool.run({"ckpt", "--help"});
  CHECK(e.code == 0);
  for (const char* command :
       {"levin ckpt show", "levin ckpt verify", "levin ckpt diff", "levin ckpt export", "levin ckpt consolidate"})
    CHECK_MESSAGE(has(e.output, command), command);
  CHECK_FALSE(has(e.output, "levin plan"));
  for (const char* command : {"show", "verify", "diff", "export", "consolidate"}) {
    const Ended of = levin_tool.run({"ckpt", command, "--help"});
    CHECK(of.code == 0);
    CHECK_MESSAGE(has(of.output, "FILE"), command);
  }
}

TEST_CASE("levin ckpt show answers in JSON for a file whose name is not UTF-8") {
  const TemporaryFolder dir;
  const Program levin_tool("levin", dir);
  if (!levin_tool.built()) return;
  const std::string path = dir / "\xff\xfe.safetensors";
  save_safetensors(path, {{"w", full({2}, 1.0, Device::cpu())}});
  const Ended e = levin_tool.run({"ckpt", "show", path, "--json", "-"});
  CAPTURE(e.output);
  CHECK(e.code == 0);
  CHECK(nlohmann::json::parse(e.output)["kind"] == "weights");
  CHECK(levin_tool.run({"ckpt", "verify", path, "--json", dir / "r.json"}).code == 0);
  CHECK(json_of(dir / "r.json").size() == 1);
}

TEST_CASE(
    "levin refuses unknown commands and files with exit code 2 and the nearest name; env says what this build is") {
  const TemporaryFolder dir;
  const Program levin_tool("levin", dir);
  if (!levin_tool.built()) return;
  const auto refused = [&](std::vector<std::string> arguments, const char* text) {
    const Ended e = levin_tool.run(std::move(arguments));
    CAPTURE(e.output);
    CHECK(e.code == 2);
    CHECK(has(e.output, text));
  };
  refused({}, "usage");
  refused({"ckpt"}, "usage");
  refused({"ckpt", "verfy"}, "did you mean \"ckpt verify\"?");
  refused({"emv"}, "did you mean \"env\"?");
  refused({"ckpt", "show"}, "FILE");
  refused({"ckpt", "show", dir / "absent"}, "absent");
  refused({"ckpt", "diff", dir / "absent"}, "absent");
  refused({"env", "--jsn", "x"}, "did you mean --json?");
  refused({"env", "--epochs", "1"}, "has no meaning");
  CHECK(levin_tool.run({"--help"}).code == 0);
  CHECK(levin_tool.run({"ckpt", "diff", "--help"}).code == 0);
  const Ended e = levin_tool.run({"env", "--json", "-"});
  CAPTURE(e.output);
  CHECK(e.code == 0);
  const nlohmann::json r = nlohmann::json::parse(e.output);
  CHECK(r["version"] == build_info().version);
  CHECK(r["cpu_level"] == build_info().cpu_level);
  CHECK(r["devices"][0] == "cpu");
}
