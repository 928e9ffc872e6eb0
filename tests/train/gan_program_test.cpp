#include "levin/data.h"
#include "tests/train/program.h"

using namespace levin;
using levin::test::json_of;
using levin::test::Program;
using levin::test::TemporaryFolder;
using levin::test::weights_of;
using Ended = Program::Ended;

namespace fs = std::filesystem;

TEST_CASE("gan trains both networks, draws samples and leaves its result files") {
  const TemporaryFolder dir;
  const Program gan("gan", dir);
  if (!gan.built()) return;
  for (const char* model : {"mlp", "cnn"}) {
    const std::string out = dir / model, json = dir / "r.json";
    const Ended e = gan.run({"--model", model, "--epochs", "1", "--limit-train-batches", "5", "--batch-size", "16",
                             "--accumulate", "2", "--out", out, "--json", json});
    CAPTURE(e.output);
    REQUIRE(e.code == 0);
    for (const char* name : {"model.safetensors", "samples.png", "loss.svg", "metrics.csv"})
      CHECK_MESSAGE(fs::file_size(fs::path(out) / name) > 0, name);
    // 8 rows of 8 digits, a pixel around each.
    CHECK(data::load_png(out + "/samples.png").shape() == Shape({8 * 29 + 1, 8 * 29 + 1}));
    const nlohmann::json r = json_of(json);
    CHECK(r["program"] == "gan");
    CHECK(r["status"] == "done");
    CHECK(r["optimizer_steps"] == 6);  // of each network, after batches 2, 4 and 5
    CHECK(r["d_loss"].get<double>() > 0);
    CHECK(r["g_loss"].get<double>() > 0);
  }
}

TEST_CASE("gan gives the same weights when cut and resumed, and refuses what has no meaning for it") {
  const TemporaryFolder dir;
  const Program gan("gan", dir);
  if (!gan.built()) return;
  const auto weights = [&](const std::string& name, std::vector<std::string> more) {
    const std::string out = dir / name;
    more.insert(more.end(), {"--model", "mlp", "--epochs", "2", "--limit-train-batches", "4", "--batch-size", "16",
                             "--quiet", "--out", out});
    const Ended e = gan.run(more);
    CAPTURE(e.output);
    CHECK(e.code == 0);
    return weights_of(out);
  };
  const std::string whole = weights("a", {"--threads", "1"});
  CHECK(weights("b", {"--max-steps", "6"}) != whole);  // three batches of two steps
  CHECK(weights("b", {"--resume", "last"}) == whole);
  const auto refused = [&](std::vector<std::string> arguments, const char* text) {
    const Ended e = gan.run(std::move(arguments));
    CAPTURE(e.output);
    CHECK(e.code == 2);
    CHECK(e.output.find(text) != std::string::npos);
  };
  refused({"--clip", "1"}, "has no meaning");
  refused({"--capture", "step"}, "has no meaning");
  refused({"--precision", "16-mixed"}, "16-mixed is not for this program; expected 32-true or bf16-mixed");
  const Ended help = gan.run({"--help"});
  CHECK(help.code == 0);
  CHECK(help.output.find("32-true or bf16-mixed") != std::string::npos);
  CHECK(help.output.find("16-o2") == std::string::npos);
  refused({"--fast-dev-run", "some"}, "--fast-dev-run");
  refused({"--logger", "paper", "--out", dir / "c"}, "paper");
  refused({"--max-time", "soon"}, "soon");
}

TEST_CASE("gan's dev run trains a few batches and writes no file but the result") {
  const TemporaryFolder dir;
  const Program gan("gan", dir);
  if (!gan.built()) return;
  const std::string out = dir / "out", json = dir / "r.json";
  const Ended e = gan.run({"--fast-dev-run", "--model", "mlp", "--batch-size", "8", "--out", out, "--json", json});
  CAPTURE(e.output);
  CHECK(e.code == 0);
  CHECK_FALSE(fs::exists(out));
  CHECK(json_of(json)["optimizer_steps"] == 2);
}
