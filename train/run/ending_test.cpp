// A run that resumes a file from the end of a run ends alike; and files of other runs stay.
#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <functional>

#include "levin/train/averaging.h"
#include "levin/train/checkpoint.h"
#include "tests/warnings.h"
#include "train/run/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

namespace fs = std::filesystem;

// Batch norm, dropout, a schedule by epochs; notes its hooks at the end of epochs and of the run.
struct Model : TrainModuleOf<Model> {
  Model() : TrainModuleOf({.gen = Generator(3), .device = Device::cpu()}) {}
  nn::Linear fc1{*this, "fc1", {.in = 2, .out = 8}};
  nn::BatchNorm1d norm{*this, "norm", {.features = 8}};
  nn::Dropout drop{*this, "drop", {.p = 0.25}};
  nn::Linear fc2{*this, "fc2", {.in = 8, .out = 1}};
  std::shared_ptr<optim::Adam> optimizer;
  std::vector<std::string> ends;
  StepOutput training_step(const Batch& b, std::int64_t) override {
    Tensor loss = squared_error(fc2(drop(tanh(norm(fc1(b[0]))))), b[1]);
    log("loss", loss, {.on_step = true, .on_epoch = true});
    return loss;
  }
  void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
    log("val_loss", squared_error(fc2(drop(tanh(norm(fc1(b[0]))))), b[1]));
  }
  OptimizerConfig configure_optimizers() override {
    optimizer = std::make_shared<optim::Adam>(parameters(), optim::AdamOptions{.lr = 0.02});
    return {.optimizers = {optimizer},
            .schedulers = {{.scheduler = std::make_shared<optim::StepLR>(*optimizer, 1, 0.5)}}};
  }
  void on_train_epoch_end() override { ends.emplace_back("epoch"); }
  void on_train_end() override { ends.emplace_back("train"); }
  [[nodiscard]] std::vector<float> weights() {
    std::vector<float> all;
    for (const auto& [name, t] : state_dict()) {
      const std::vector<float> values = t.to(DType::f32).to_vector<float>();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
};

struct Ended {
  std::vector<float> weights;
  std::vector<std::string> ends;
  std::int64_t epochs = 0, steps = 0;
  double lr = 0;
  std::vector<LogRecord> history;
};
bool same_end(const Ended& a, const Ended& b) {
  return a.weights == b.weights && a.epochs == b.epochs && a.steps == b.steps && a.lr == b.lr;
}

Ended fit(TrainerOptions options, const std::string& from = {}, std::int64_t batch_size = 4) {
  Model model;
  data::DataLoader train = loader(24, batch_size), val = loader(8, 4);
  Trainer trainer(std::move(options));
  Ended out;
  try {
    trainer.fit(model, {.train = train, .val = val, .ckpt_path = from});
  } catch (const InterruptedError&) {}
  return {.weights = model.weights(),
          .ends = model.ends,
          .epochs = trainer.current_epoch(),
          .steps = trainer.global_step(),
          .lr = model.optimizer ? model.optimizer->lr(0) : 0,
          .history = trainer.history()};
}

// Calls a function in hooks; the last of the callbacks.
struct In : Callback {
  Function<void(const char*)> act;
  explicit In(Function<void(const char*)> f) : act(std::move(f)) {}
  void on_train_start() override { act("train_start"); }
  void on_train_epoch_start() override { act("epoch_start"); }
  BatchStart on_train_batch_start(const StepInfo&) override {
    act("batch_start");
    return BatchStart::proceed;
  }
  void on_train_batch_end(const StepInfo&) override { act("batch_end"); }
  void on_validation_end() override { act("validation_end"); }
  void on_train_epoch_end() override { act("epoch_end"); }
  void on_train_end() override { act("train_end"); }
  void on_fit_end() override { act("fit_end"); }
  [[nodiscard]] bool writes_checkpoints() const override { return true; }
};

std::shared_ptr<Callback> ema() {
  return std::make_shared<EmaWeightAveraging>(EmaWeightAveragingOptions{.decay = 0.7});
}
std::shared_ptr<Callback> swa() {
  return std::make_shared<StochasticWeightAveraging>(
      StochasticWeightAveragingOptions{.swa_lrs = {0.01}, .swa_epoch_start = 1});
}
TrainerOptions with(std::vector<std::shared_ptr<Callback>> callbacks, std::int64_t epochs) {
  TrainerOptions options = silent();
  options.max_epochs = epochs;
  options.callbacks = std::move(callbacks);
  return options;
}
std::int64_t steps_of(const std::string& file) { return read_checkpoint_info(file).global_step; }

}  // namespace

TEST_CASE("a checkpoint saved after a fit with averaged weights trains on with the same callback") {
  const TemporaryFolder dir;
  const std::string file = dir / "behind.safetensors";
  for (const auto& make : {&ema, &swa}) {
    CAPTURE(make == &ema);
    const Warnings quiet;
    Model model;
    data::DataLoader train = loader(24, 4);
    Trainer trainer(with({make()}, 2));
    trainer.fit(model, {.train = train});
    trainer.save_checkpoint(file);
    const Ended same = fit(with({make()}, 2), file);
    CHECK(same.weights == model.weights());
    CHECK(same.steps == 12);
    const Ended more = fit(with({make()}, 4), file);
    CHECK(more.epochs == (make == &ema ? 4 : 5));  // an extra epoch for batch norms
    CHECK(more.steps > 12);
    CHECK(more.weights != model.weights());
  }
}

TEST_CASE("an interrupt in any hook of a run with averaged weights resumes to the end of one without") {
  for (const auto& make : {&ema, &swa}) {
    for (const std::string where : {"train_start", "epoch_start", "batch_start", "batch_end", "validation_end",
                                    "epoch_end", "train_end", "fit_end"}) {
      for (const int n : {1, 2, 3, 9, 12}) {
        CAPTURE(make == &ema);
        CAPTURE(where);
        CAPTURE(n);
        const Warnings quiet;
        const TemporaryFolder dir;
        const auto run = [&](int at, const std::string& from) {
          int seen = 0;
          auto options = with({make(), std::make_shared<In>([&, at](const char* hook) {
                                 if (hook == where && ++seen == at) (void)std::raise(SIGINT);
                               })},
                              2);
          options.enable_checkpointing = options.handle_signals = true;
          options.default_root_dir = dir.path();
          options.val_check_interval = 3;
          return fit(options, from);
        };
        const Ended whole = run(-1, {});
        fs::remove_all(dir / "checkpoints");
        const Ended cut = run(n, {});
        const std::string last = dir / "checkpoints/last.safetensors";
        if (!fs::exists(last)) {
          CHECK((same_end(cut, whole) || cut.steps == 0));
          continue;
        }
        CHECK(same_end(run(-1, last), whole));
      }
    }
  }
}

TEST_CASE("a file of an epoch's end resumes with more or fewer batches an epoch") {
  const TemporaryFolder dir;
  for (const bool by_validation : {false, true}) {
    CAPTURE(by_validation);
    auto options = with({std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
                            .dirpath = dir / (by_validation ? "v" : "e"), .save_on_train_epoch_end = !by_validation})},
                        2);
    options.enable_checkpointing = true;
    const Warnings quiet;
    (void)fit(options);
    const std::string file = dir / (by_validation ? "v" : "e") + "/epoch=1-step=12.safetensors";
    for (const std::int64_t batch_size : {8, 2}) {
      const Ended more = fit(with({}, 4), file, batch_size);
      CHECK(more.epochs == 4);
      CHECK(more.steps == 12 + 2 * 24 / batch_size);
      CHECK(more.ends.size() == (by_validation ? 4 : 3));
    }
    auto fewer = with({}, 3);
    fewer.limit_train_batches = 2;
    CHECK(fit(fewer, file).steps == 14);
  }
}

TEST_CASE("a file written as its run is about to end leads to the same end: hooks, schedules, records and counters") {
  const TemporaryFolder dir;
  struct Way {
    const char* name;
    std::int64_t max_steps, stop_at, window;
  };
  int files = 0;
  for (const Way& way : {Way{"steps at an epoch's end", 12, -1, 1}, Way{"steps inside of an epoch", 9, -1, 1},
                         Way{"a stop inside of an epoch", -1, 9, 1}, Way{"a stop at an epoch's last batch", -1, 12, 1},
                         Way{"a stop inside of a window", -1, 8, 3}, Way{"epochs", -1, -1, 1}}) {
    for (const std::string where : {"batch_end", "validation_end", "epoch_end"}) {
      const auto options_with = [&](const std::function<void(Trainer&, std::int64_t)>& save) {
        const auto stop = std::make_shared<In>([](const char*) {});
        In* const stopper = stop.get();
        stop->act = [stopper, at = way.stop_at](const char* hook) {
          if (std::string(hook) == "batch_end" && stopper->trainer().total_batch_idx() == at)
            stopper->trainer().request_stop();
        };
        const auto saver = std::make_shared<In>([](const char*) {});
        In* const saves = saver.get();
        std::int64_t n = 0;
        saver->act = [saves, save, where, n](const char* hook) mutable {
          if (save && hook == where && !saves->trainer().sanity_checking()) save(saves->trainer(), ++n);
        };
        auto options = with({ema(), stop, saver}, 3);
        options.max_steps = way.max_steps;
        options.accumulate_grad_batches = way.window;
        options.val_check_interval = 3;
        return options;
      };
      std::int64_t count = 0;
      std::vector<std::size_t> ends, records;
      Ended whole = fit(options_with([&](Trainer& t, std::int64_t n) {
        count = n;
        ends.push_back(dynamic_cast<Model&>(*t.module()).ends.size());
        records.push_back(t.history().size());
        t.save_checkpoint(dir / (std::to_string(n) + ".safetensors"));
      }));
      CHECK(count > 0);
      for (std::int64_t n = std::max<std::int64_t>(1, count - 3); n <= count; ++n) {
        CAPTURE(std::string(way.name));
        CAPTURE(where);
        CAPTURE(n);
        const Warnings quiet;
        const Ended resumed = fit(options_with({}), dir / (std::to_string(n) + ".safetensors"));
        CHECK(same_end(resumed, whole));
        const auto at = static_cast<std::size_t>(n - 1);
        const auto rest = [](const auto& all, std::size_t from) {
          return std::vector(all.begin() + static_cast<std::ptrdiff_t>(from), all.end());
        };
        CHECK(resumed.ends == rest(whole.ends, ends[at]));
        const std::vector<LogRecord> due = rest(whole.history, records[at]);
        REQUIRE(resumed.history.size() == due.size());
        for (std::size_t i = 0; i < due.size(); ++i) CHECK(resumed.history[i].values == due[i].values);
        ++files;
      }
    }
  }
  CHECK(files > 40);
}

TEST_CASE("a new run writes its last.safetensors beside the one of another run, and \"last\" finds the newest") {
  const TemporaryFolder dir;
  const Warnings quiet;
  const auto run = [&](std::int64_t epochs, SaveLast last, const std::string& from = {}) {
    auto options = with({std::make_shared<ModelCheckpoint>(
                            ModelCheckpointOptions{.dirpath = dir.path(), .save_top_k = 0, .save_last = last})},
                        epochs);
    options.enable_checkpointing = true;
    return fit(options, from);
  };
  (void)run(3, SaveLast::on);
  (void)run(1, SaveLast::on);
  CHECK(steps_of(dir / "last.safetensors") == 18);
  CHECK(steps_of(dir / "last-v1.safetensors") == 6);
  CHECK(run(2, SaveLast::on, "last").steps == 12);  // of the newest, whose file it continues
  CHECK(steps_of(dir / "last.safetensors") == 18);
  CHECK(steps_of(dir / "last-v1.safetensors") == 12);
  CHECK(!fs::exists(dir / "last-v2.safetensors"));
}

TEST_CASE("an interrupt saves beside the file of another run, and nothing before anything was trained") {
  const TemporaryFolder dir;
  const Warnings quiet;
  const auto run = [&](const std::string& where, int n, const std::string& from = {}) {
    int seen = 0;
    auto options =
        with({std::make_shared<In>([&](const char* hook) {
                if (hook == where && ++seen == n) (void)std::raise(SIGINT);
              }),
              std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = dir.path(), .save_top_k = 0})},
             2);
    options.enable_checkpointing = options.handle_signals = true;
    return fit(options, from);
  };
  (void)run("batch_end", 7);
  CHECK(steps_of(dir / "last.safetensors") == 7);
  (void)run("train_start", 1);
  CHECK(!fs::exists(dir / "last-v1.safetensors"));
  (void)run("batch_end", 2);
  CHECK(steps_of(dir / "last.safetensors") == 7);
  CHECK(steps_of(dir / "last-v1.safetensors") == 2);
  (void)run("batch_end", 3, dir / "last.safetensors");  // its own file is replaced
  CHECK(steps_of(dir / "last.safetensors") == 10);
  CHECK(!fs::exists(dir / "last-v2.safetensors"));
}

TEST_CASE("a run that was stopped trains on if its limits are others, and reports what stopped it") {
  const TemporaryFolder dir;
  const std::string file = dir / "stopped.safetensors";
  const auto run = [&](std::int64_t epochs, const std::string& from) {
    Model model;
    data::DataLoader train = loader(24, 4), val = loader(8, 4);
    Trainer trainer(with(
        {std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "val_loss", .min_delta = 100, .patience = 2})},
        epochs));
    trainer.fit(model, {.train = train, .val = val, .ckpt_path = from});
    if (from.empty()) trainer.save_checkpoint(file);
    return trainer.global_step();
  };
  const Warnings warnings;
  CHECK(run(5, {}) == 18);  // the first check is the best
  CHECK(run(5, file) == 18);
  CHECK(run(6, file) == 24);  // until the next check
  std::vector<std::string> told;
  for (const Warning& w : warnings.all()) {
    if (w.id == "I-CKPT-STOPPED") told.push_back(w.text);
  }
  REQUIRE(told.size() == 2);
  for (const std::string& text : told) CHECK(text.find("was stopped by EarlyStopping: val_loss is ") != text.npos);
  CHECK(told[0].find("raise max_epochs or max_steps") != told[0].npos);
  CHECK(told[1].find("trains on") != told[1].npos);
  CHECK(told[1].find("raise min_epochs") != told[1].npos);
}
