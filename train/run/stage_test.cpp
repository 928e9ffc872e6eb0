// A stage around its loop: which hooks are called, in which order, what ends it, what may be changed before it.
#include <doctest/doctest.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>

#include "tensor/device/interrupt.h"
#include "tests/device.h"
#include "tests/printed.h"
#include "tests/skip.h"
#include "tests/warnings.h"
#include "train/run/probe_test.h"

using namespace levin;
using namespace levin::test;

namespace {

const nn::Options kStageOptions{.gen = Generator(1), .device = Device::cpu()};
const EvaluationOptions kQuietly{.data_module = nullptr, .ckpt_path = {}, .verbose = false};

// Notes the hooks of evaluations, in the module and in a callback that the module brings.
struct Evaluated : TrainModuleOf<Evaluated, Probe> {
  using TrainModuleOf::TrainModuleOf;
  struct Brought : Callback {
    Words* to = nullptr;
    void setup(Stage) override { to->emplace_back("setup of the callback"); }
    void on_validation_start() override { to->emplace_back("callback"); }
    void on_test_start() override { to->emplace_back("callback"); }
    void on_predict_start() override { to->emplace_back("callback"); }
    void teardown(Stage) override { to->emplace_back("teardown of the callback"); }
  };
  Words seen;
  int asked = 0;
  std::vector<std::shared_ptr<Callback>> configure_callbacks() override {
    ++asked;
    const auto one = std::make_shared<Brought>();
    one->to = &seen;
    return {one};
  }
  void on_validation_start() override { seen.emplace_back("start"); }
  void on_validation_epoch_start() override { seen.emplace_back("epoch_start"); }
  void on_validation_epoch_end() override { seen.emplace_back("epoch_end"); }
  void on_validation_end() override { seen.emplace_back("end"); }
  void on_test_start() override { seen.emplace_back("start"); }
  void on_test_epoch_end() override { seen.emplace_back("epoch_end"); }
  void on_predict_start() override { seen.emplace_back("start"); }
  void on_sanity_check_start() override { seen.emplace_back("sanity"); }
  void test_step(const Batch&, std::int64_t, std::int64_t) override {}
  Tensor predict_step(const Batch& b, std::int64_t, std::int64_t) override { return b[0]; }
};

}  // namespace

TEST_CASE("an evaluation without a batch is set up and torn down, calls no other hook and returns nothing") {
  const Warnings of_no_batches;
  const Words nothing = {"setup of the callback", "teardown of the callback"};
  data::DataLoader data = ramp(3), other = ramp(3);
  data::DataLoader empty(data::tensor_dataset({ones({2, 1}, Device::cpu())}), {.batch_size = 4, .drop_last = true});
  for (const bool by_limit : {true, false}) {
    TrainerOptions options = epochs(1);
    if (by_limit) options.limit_val_batches = options.limit_test_batches = options.limit_predict_batches = 0;
    data::DataLoader& from = by_limit ? other : empty;
    Evaluated module(kStageOptions);
    Trainer trainer(options);
    const auto heard = [&](auto evaluate) {
      module.seen.clear();
      CHECK(evaluate().empty());
      return module.seen;
    };
    CHECK(heard([&] { return trainer.validate(module, from, kQuietly); }) == nothing);
    CHECK(heard([&] { return trainer.test(module, from, kQuietly); }) == nothing);
    CHECK(heard([&] { return trainer.predict(module, from); }) == nothing);
    module.seen.clear();
    trainer.fit(module, {.train = data, .val = from});
    CHECK(module.seen == nothing);
    CHECK(trainer.global_step() == 3);
  }
}

TEST_CASE("validate, test and predict ask the module for its callbacks, as fit does") {
  data::DataLoader data = ramp(1);
  Evaluated module(kStageOptions);
  Trainer trainer(epochs(1));
  (void)trainer.validate(module, data, kQuietly);
  CHECK(module.seen == Words{"setup of the callback", "callback", "start", "epoch_start", "epoch_end", "end",
                             "teardown of the callback"});
  (void)trainer.test(module, data, kQuietly);
  (void)trainer.predict(module, data);
  CHECK(module.asked == 3);
  CHECK(std::count(module.seen.begin(), module.seen.end(), "callback") == 3);
  CHECK(trainer.callbacks().empty());  // they are only there in a stage
}

TEST_CASE("a module says how it evaluates: the mode that it chooses holds for the loop, and goes with it") {
  struct Sampling : TrainModuleOf<Sampling, Probe> {
    using TrainModuleOf::TrainModuleOf;
    nn::Dropout drop{*this, "drop", {.p = 0.5}};
    Words order;
    bool dropped = false;
    void on_validation_model_eval() override {
      order.emplace_back("eval");
      train(false);
      drop.train(true);
    }
    void on_validation_start() override { order.emplace_back("start"); }
    void validation_step(const Batch&, std::int64_t, std::int64_t) override {
      dropped = drop.is_training() && !is_training();
    }
    void test_step(const Batch&, std::int64_t, std::int64_t) override { dropped = drop.is_training(); }
  } module(kStageOptions);
  data::DataLoader data = ramp(1);
  Trainer trainer(epochs(1));
  (void)trainer.validate(module, data, kQuietly);
  CHECK(module.dropped);
  CHECK(module.order == Words{"eval", "start"});
  CHECK(module.is_training());
  (void)trainer.test(module, data, kQuietly);
  CHECK_FALSE(module.dropped);
  CHECK(module.drop.is_training());
}

TEST_CASE("provides says by name which functions a module overrides") {
  struct Small : TrainModuleOf<Small, Probe> {
    using TrainModuleOf::TrainModuleOf;
    Batch on_after_batch_transfer(Batch b) override { return b; }
  };
  const Small small(kStageOptions);
  CHECK(small.provides(Hook::training_step));
  CHECK(small.provides(Hook::on_after_batch_transfer));
  CHECK_FALSE(Probe(kStageOptions).provides(Hook::on_after_batch_transfer));
  CHECK_FALSE(small.provides(Hook::test_step));
  CHECK_FALSE(small.provides(Hook::train_loader));
}

TEST_CASE("in a module log of a tensor is the logarithm, and log of a name and a value a metric") {
  struct Logs : TrainModuleOf<Logs, Probe> {
    using TrainModuleOf::TrainModuleOf;
    StepOutput training_step(const Batch& b, std::int64_t) override {
      const Tensor loss = mean(log(b[0]) * w);
      log("loss", loss);
      return loss;
    }
  } module(kStageOptions);
  data::DataLoader data = ramp(2);
  Trainer trainer(epochs(1));
  trainer.fit(module, {.train = data});
  CHECK(trainer.history().at(1).values.at(0).second == doctest::Approx(std::log(2.0)));
}

TEST_CASE("a warning is printed once a run, in the next run again") {
  struct Lossless : TrainModuleOf<Lossless, Probe> {
    using TrainModuleOf::TrainModuleOf;
    StepOutput training_step(const Batch&, std::int64_t) override { return {}; }
    void test_step(const Batch&, std::int64_t, std::int64_t) override {
      warn("W-OF-A-TEST", WarningCategory::user, "t");
    }
  } module(kStageOptions);
  data::DataLoader data = ramp(3);
  const auto times = [](const std::string& text, const char* id) {
    int n = 0;
    for (std::size_t at = 0; (at = text.find(id, at)) != std::string::npos; ++at) ++n;
    return n;
  };
  Trainer trainer(epochs(1));
  for (int run = 1; run < 3; ++run) {
    trainer.options().max_epochs = run;
    CHECK(times(printed([&] { trainer.fit(module, {.train = data}); }), "[W-TRAIN-NO-LOSS]") == 1);
    CHECK(times(printed([&] { (void)trainer.test(module, data, kQuietly); }), "[W-OF-A-TEST]") == 1);
  }
}

TEST_CASE("an error of a step names the batch once, keeps its type and its op, and others stay as they are") {
  struct Fails : TrainModuleOf<Fails, Probe> {
    using TrainModuleOf::TrainModuleOf;
    std::int64_t epoch = 1, batch = 2;
    bool in_validation = false, plain = false;
    void at(std::int64_t i) const {
      if (i != batch || trainer().current_epoch() != epoch) return;
      if (plain) throw std::runtime_error("plain");
      fail<IndexError>("pick: there is no ", i);
    }
    StepOutput training_step(const Batch& b, std::int64_t i) override {
      if (!in_validation) at(i);
      return Probe::training_step(b, i);
    }
    void validation_step(const Batch&, std::int64_t i, std::int64_t) override {
      if (in_validation) at(i);
    }
    void test_step(const Batch&, std::int64_t i, std::int64_t) override { at(i); }
  };
  data::DataLoader data = ramp(4), val = ramp(4);
  const auto told = [&](const Function<void(Fails&, Trainer&)>& call) -> std::string {
    Fails module(kStageOptions);
    Trainer trainer(epochs(3));
    try {
      call(module, trainer);
    } catch (const IndexError& e) {
      CHECK(e.op() == "pick");
      return e.what();
    } catch (const std::runtime_error& e) { return e.what(); }
    return "nothing";
  };
  CHECK(told([&](Fails& m, Trainer& t) { t.fit(m, {.train = data, .val = val}); }) ==
        "epoch 1, batch 2: pick: there is no 2");
  CHECK(told([&](Fails& m, Trainer& t) {
          m.in_validation = true;
          t.fit(m, {.train = data, .val = val});
        }) == "epoch 1, validation batch 2: pick: there is no 2");
  CHECK(told([&](Fails& m, Trainer& t) {
          m.epoch = 0;
          (void)t.test(m, val, kQuietly);
        }) == "test batch 2: pick: there is no 2");
  CHECK(told([&](Fails& m, Trainer& t) {
          m.plain = true;
          t.fit(m, {.train = data});
        }) == "plain");
}

TEST_CASE("a signal in a teardown hook ends the call as an interrupt, of a fit and of an evaluation") {
  struct Late : TrainModuleOf<Late, Probe> {
    using TrainModuleOf::TrainModuleOf;
    void teardown(Stage) override { raise(SIGINT); }
  } module(kStageOptions);
  const TemporaryFolder dir;
  TrainerOptions options = epochs(1);
  options.handle_signals = true;
  options.enable_checkpointing = true;
  options.default_root_dir = dir.path();
  data::DataLoader data = ramp(2);
  Trainer trainer(options);
  CHECK_THROWS_WITH_AS(trainer.fit(module, {.train = data}), doctest::Contains("fit: stopped by SIGINT after 2 "),
                       InterruptedError);
  CHECK(trainer.stop_signal() == SIGINT);
  CHECK_THROWS_WITH_AS((void)trainer.validate(module, data, kQuietly),
                       doctest::Contains("stopped by SIGINT after 2 optimizer steps; an evaluation changes nothing"),
                       InterruptedError);
}

TEST_CASE(
    "a signal while the dataset blocks saves and ends a fit, and ends an evaluation, as one between batches does") {
  // Its third sample waits for a signal, as a loader waits for its workers.
  struct Blocks final : data::Dataset {
    [[nodiscard]] std::int64_t size() const override { return 4; }
    [[nodiscard]] data::Sample get(std::int64_t i, Generator&) const override {
      if (i == 2) raise(SIGINT);
      if (i == 2 && detail::stop_asked && detail::stop_asked()) fail<InterruptedError>("loader: stopped");
      return {ones({1}, Device::cpu())};
    }
  };
  const TemporaryFolder dir;
  TrainerOptions options = epochs(1);
  options.handle_signals = true;
  options.enable_checkpointing = true;
  options.default_root_dir = dir.path();
  data::DataLoader data(std::make_shared<Blocks>(), {.batch_size = 1});
  Probe module(kStageOptions);
  Trainer trainer(options);
  CHECK_THROWS_WITH_AS(trainer.fit(module, {.train = data}),
                       doctest::Contains("fit: stopped by SIGINT after 2 optimizer steps; saved "), InterruptedError);
  CHECK(trainer.stop_signal() == SIGINT);
  CHECK_THROWS_WITH_AS((void)trainer.validate(module, data, kQuietly),
                       doctest::Contains("validate: stopped by SIGINT after 2 "), InterruptedError);
  CHECK_FALSE(static_cast<bool>(detail::stop_asked));
  data::DataLoader whole = ramp(4);
  Trainer goes_on(options);
  goes_on.fit(module, {.train = whole, .ckpt_path = "last"});
  CHECK(goes_on.global_step() == 4);
}

TEST_CASE("a limit of the size of files costs a checkpoint and a warning, not the run") {
  const TemporaryFolder dir;
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    int rc = 1;
    try {
      const rlimit limit{.rlim_cur = 64, .rlim_max = 64};
      ::setrlimit(RLIMIT_FSIZE, &limit);
      const Warnings warnings;
      TrainerOptions options = epochs(2);
      options.handle_signals = true;
      options.enable_checkpointing = true;
      options.default_root_dir = dir.path();
      Probe module(kStageOptions);
      data::DataLoader data = ramp(2);
      Trainer trainer(options);
      trainer.fit(module, {.train = data});
      rc = trainer.global_step() == 4 && warnings.count("W-CKPT-WRITE") > 0 ? 0 : 2;
    } catch (...) {}
    ::_exit(rc);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("SIGUSR1 and SIGHUP save and end a run like SIGTERM") {
  struct Hit : Callback {
    int signal = 0;
    void on_train_batch_end(const StepInfo& info) override {
      if (info.batch_idx == 1) raise(signal);
    }
  };
  for (const auto& [signal, name] : {std::pair{SIGUSR1, "SIGUSR1"}, std::pair{SIGHUP, "SIGHUP"}}) {
    const auto before = std::signal(signal, SIG_DFL);  // nohup starts programs that ignore SIGHUP, and so would a run
    const TemporaryFolder dir;
    const auto hit = std::make_shared<Hit>();
    hit->signal = signal;
    TrainerOptions options = epochs(1);
    options.handle_signals = true;
    options.enable_checkpointing = true;
    options.default_root_dir = dir.path();
    options.callbacks = {hit};
    Probe module(kStageOptions);
    data::DataLoader data = ramp(3);
    Trainer trainer(options);
    CHECK_THROWS_WITH_AS(
        trainer.fit(module, {.train = data}),
        doctest::Contains(("stopped by " + std::string(name) + " after 2 optimizer steps; saved ").c_str()),
        InterruptedError);
    CHECK(trainer.stop_signal() == signal);
    std::signal(signal, before);
  }
}

TEST_CASE("an option that the constructor reads and that is changed later is refused, others count") {
  data::DataLoader data = ramp(2);
  Probe module(kStageOptions);
  const auto refused_late = [&](const Function<void(TrainerOptions&)>& change) -> std::string {
    Trainer trainer(epochs(1));
    change(trainer.options());
    try {
      trainer.fit(module, {.train = data});
    } catch (const ConfigError& e) { return e.what(); }
    return "accepted";
  };
  CHECK(contains(refused_late([](TrainerOptions& o) { o.precision = "64-true"; }),
                 "fit: options().precision was changed after the trainer's constructor"));
  CHECK(contains(refused_late([](TrainerOptions& o) { o.callbacks.push_back(std::make_shared<Timer>("00:00:00:01")); }),
                 "options().callbacks"));
  CHECK(contains(refused_late([](TrainerOptions& o) { o.fast_dev_run = 1; }), "options().fast_dev_run"));
  CHECK(contains(refused_late([](TrainerOptions& o) { o.logger = true; }), "options().logger"));
  CHECK(contains(refused_late([](TrainerOptions& o) { o.max_time = "00:00:00:01"; }), "options().max_time"));
  CHECK(contains(refused_late([](TrainerOptions& o) { o.enable_checkpointing = true; }), "enable_checkpointing"));
  CHECK(refused_late([](TrainerOptions& o) { o.max_epochs = 2; }) == "accepted");
  Trainer trainer(epochs(1));
  trainer.options().enable_progress_bar = true;
  CHECK_THROWS_WITH_AS((void)trainer.validate(module, data, kQuietly),
                       doctest::Contains("validate: options().enable_progress_bar"), ConfigError);

  struct Changes : Callback {
    void on_train_batch_end(const StepInfo&) override { trainer().options().precision = "64-true"; }
  };
  TrainerOptions options = epochs(2);
  options.callbacks = {std::make_shared<Changes>()};
  Trainer changed(options);
  CHECK_THROWS_AS(changed.fit(module, {.train = data}), ConfigError);  // at the next epoch
  CHECK(changed.global_step() == 2);
}

TEST_CASE("an accelerator that is named is where a module is trained and evaluated, on a device as well") {
  Probe module(kStageOptions);
  data::DataLoader data = ramp(2);
  TrainerOptions options = epochs(1);
  options.accelerator = "cpu";
  Trainer here(options);
  here.fit(module, {.train = data});
  CHECK(module.w.device() == Device::cpu());
  DEVICE_OR_SKIP();
  options.accelerator = device.is_cuda() ? "cuda" : "simt";
  Trainer there(options);
  there.fit(module, {.train = data});
  CHECK(module.w.device() == device);
  CHECK(there.optimizer()->parameters().at(0).value->device() == device);
  Probe evaluated(kStageOptions);
  (void)there.validate(evaluated, data, kQuietly);
  CHECK(evaluated.w.device() == device);
  Probe borrowed(kStageOptions);
  optim::SGD sgd(borrowed.parameters(), {.lr = 0.1});
  CHECK_THROWS_WITH_AS(there.fit(sgd, data, [&](const Batch& b) { return mean(b[0] * borrowed.w); }),
                       doctest::Contains("the parameters are on cpu"), ConfigError);
}

TEST_CASE("a profiler reports last of all, with the teardown in its report") {
  struct Last : Logger {
    Words* to = nullptr;
    void log_metrics(const LogRecord&) override {}
    void finalize(std::string_view) override { to->emplace_back("logger"); }
  };
  struct Told : Profiler {
    Words* to = nullptr;
    void start(std::string_view) override {}
    void stop(std::string_view action) override {
      if (action == "teardown") to->emplace_back("teardown");
    }
    void finish() override { to->emplace_back("report"); }
  };
  struct Fails : TrainModuleOf<Fails, Probe> {
    using TrainModuleOf::TrainModuleOf;
    bool fails = false;
    StepOutput training_step(const Batch& b, std::int64_t i) override {
      if (fails) throw std::runtime_error("planted");
      return Probe::training_step(b, i);
    }
  } module(kStageOptions);
  Words order;
  const auto logger = std::make_shared<Last>();
  const auto profiler = std::make_shared<Told>();
  logger->to = profiler->to = &order;
  TrainerOptions options = epochs(1);
  options.logger = logger;
  options.profiler = profiler;
  data::DataLoader data = ramp(1);
  Trainer trainer(options);
  trainer.fit(module, {.train = data});
  CHECK(order == Words{"teardown", "logger", "report"});
  order.clear();
  module.fails = true;
  trainer.options().max_epochs = 2;
  CHECK_THROWS_WITH(trainer.fit(module, {.train = data}), "planted");
  CHECK(order == Words{"logger", "teardown", "report"});
}
