// A locale of the program in which numbers have a comma changes neither the files nor how they are read.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <clocale>
#include <cstdio>
#include <limits>

#include "levin/serialize.h"
#include "levin/train/checkpoint.h"
#include "tests/skip.h"
#include "tests/warnings.h"
#include "train/run/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

// Sets a locale with German numbers while it lives.
class German {
 public:
  explicit German(const TemporaryFolder& folder) {
    const std::string line =
        "localedef -i de_DE -f UTF-8 --no-archive " + (folder / "de_DE.UTF-8") + " >/dev/null 2>&1";
    if (std::system(line.c_str()) != 0) return;
    ::setenv("LOCPATH", folder.path().c_str(), 1);
    set_ = std::setlocale(LC_ALL, "de_DE.UTF-8") != nullptr;
  }
  ~German() {
    std::setlocale(LC_ALL, "C");
    ::unsetenv("LOCPATH");
  }
  German(const German&) = delete;
  German& operator=(const German&) = delete;
  [[nodiscard]] bool is_set() const { return set_; }

 private:
  bool set_ = false;
};

// Two epochs with everything that keeps numbers as text; `from` is the file to resume.
std::vector<float> run(const std::string& folder, std::int64_t epochs, const std::string& from = {}) {
  TrainerOptions options = silent();
  options.enable_checkpointing = true;
  options.max_epochs = epochs;
  options.callbacks = {std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "train_loss", .patience = 100}),
                       std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder,
                                                                                .filename = "e{epoch}",
                                                                                .monitor = "train_loss",
                                                                                .save_top_k = -1,
                                                                                .auto_insert_metric_name = false})};
  Net net({.gen = Generator(1), .device = Device::cpu()});
  optim::AdamW opt(net.parameters(), {.lr = 0.01});
  data::DataLoader train = loader();
  Trainer trainer(options);
  trainer.fit(opt, train, [&](const Batch& b) { return squared_error(net(b[0]), b[1]); }, {.ckpt_path = from});
  write_metrics_csv(folder + "/metrics.csv", trainer.history());
  LrFindResult search;
  search.mode = "exponential";
  search.results = {.lr = {1e-3, 0.1234567890123}, .loss = {0.5, 1.5}};
  search.write_csv(folder + "/lr.csv");
  (void)search.plot({.path = folder + "/lr.svg"});
  return weights_of(net);
}
std::string content(const std::string& path) { return read_file(path, std::size_t{1} << 24); }

}  // namespace

TEST_CASE("the locale of the program changes neither what a run writes nor how a checkpoint is read") {
  const Warnings quiet;
  const TemporaryFolder locales, plain, german;
  const std::vector<float> whole = run(plain.path(), 4);
  {
    const German numbers(locales);
    if (!numbers.is_set()) return skip("localedef can not make de_DE.UTF-8");
    char probe[16];
    (void)std::snprintf(probe, sizeof probe, "%.1f", 1.5);
    REQUIRE(std::string(probe) == "1,5");
    CHECK(run(german.path(), 4) == whole);
    CHECK(run(plain / "german", 4, plain / "e1.safetensors") == whole);  // written with a point
  }
  CHECK(run(german / "plain", 4, german / "e1.safetensors") == whole);
  for (const char* name : {"/metrics.csv", "/lr.csv", "/lr.svg"})
    CHECK(content(german.path() + name) == content(plain.path() + name));
  const CheckpointInfo a = read_checkpoint_info(plain / "e1.safetensors"),
                       b = read_checkpoint_info(german / "e1.safetensors");
  std::int64_t scores = 0;
  for (std::size_t i = 0; i < a.state.size(); ++i) {
    if (a.state[i].first.find("score") == std::string::npos) continue;
    ++scores;
    CHECK(a.state[i].second == b.state[i].second);
  }
  CHECK(scores >= 3);
}
