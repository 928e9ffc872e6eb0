#include "levin/data.h"
#include "tests/train/program.h"

using namespace levin;
using levin::test::json_of;
using levin::test::Program;
using levin::test::TemporaryFolder;
using levin::test::weights_of;
using Ended = Program::Ended;

namespace {

namespace fs = std::filesystem;

bool built(const TemporaryFolder& dir) { return Program("cifar", dir).built(); }
Ended run(const TemporaryFolder& dir, std::vector<std::string> arguments) {
  return Program("cifar", dir).run(std::move(arguments));
}
// As short as a run can be that trains, validates and tests.
std::vector<std::string> short_run(std::vector<std::string> more) {
  more.insert(more.begin(), {"--epochs", "1", "--limit-train-batches", "4", "--batch-size", "32", "--quiet"});
  return more;
}

}  // namespace

TEST_CASE("cifar says where its data belong, trains on drawn patterns, and leaves its result files") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  const std::string out = dir / "out";
  const Ended e = run(dir, short_run({"--out", out, "--json", dir / "r.json", "--limit-val-batches", "2"}));
  CAPTURE(e.output);
  REQUIRE(e.code == 0);
  CHECK(e.output.starts_with("data: generated patterns, not CIFAR-10; put the binary version"));
  CHECK(e.output.find("test accuracy") != std::string::npos);
  for (const char* name : {"model.safetensors", "misclassified.png", "loss.svg", "metrics.csv"})
    CHECK_MESSAGE(fs::file_size(fs::path(out) / name) > 0, name);
  CHECK(data::load_png(out + "/misclassified.png").rank() == 3);
  const nlohmann::json r = json_of(dir / "r.json");
  CHECK(r["program"] == "cifar");
  CHECK(r["data"] == "generated");
  CHECK(r["optimizer_steps"] == 4);
  CHECK(!r["val_loss"].is_null());
  CHECK(r["test_accuracy"].get<double>() >= 0);
}

TEST_CASE("cifar gives the same weights for any number of workers, and each augmentation changes them") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  const auto weights = [&](std::vector<std::string> more) {
    const std::string out = dir / "out";
    fs::remove_all(out);
    more.insert(more.end(), {"--out", out});
    const Ended e = run(dir, short_run(std::move(more)));
    CAPTURE(e.output);
    CHECK(e.code == 0);
    return weights_of(out);
  };
  const std::string base = weights({"--workers", "0"});
  CHECK(weights({"--workers", "3"}) == base);
  CHECK(weights({"--augment", "crop,flip"}) != base);
  CHECK(weights({"--augment", "crop,flip,cutout,mixup"}) != base);
}

TEST_CASE("cifar refuses an unknown augmentation, and a folder without its files") {
  const TemporaryFolder dir;
  if (!built(dir)) return;
  const Ended e = run(dir, {"--augment", "crop,twirl"});
  CHECK(e.code == 2);
  CHECK(e.output.find("\"twirl\" is unknown") != std::string::npos);
  const Ended f = run(dir, {"--data", dir / "nowhere"});
  CHECK(f.code == 65);
  CHECK(f.output.find("lacks CIFAR-10's files") != std::string::npos);
}
