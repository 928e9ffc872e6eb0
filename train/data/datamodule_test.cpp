// Data modules: which hooks are called, in which order, and what a checkpoint keeps of them.
#include "levin/train/datamodule.h"

#include <doctest/doctest.h>

#include <memory>
#include <stdexcept>

#include "tests/warnings.h"
#include "train/run/fixture_test.h"
#include "train/run/probe_test.h"
#include "train/tuner/fixture_test.h"

using namespace levin;

namespace {

using Words = std::vector<std::string>;

std::unique_ptr<data::DataLoader> few(std::int64_t batches) {
  return std::make_unique<data::DataLoader>(test::ramp(batches));
}
const char* name_of(Stage stage) {
  constexpr const char* kNames[] = {"fit", "validate", "test", "predict"};
  return kNames[static_cast<int>(stage)];
}

// Notes its calls in a list that it shares with others.
struct NotedData : DataModuleOf<NotedData> {
  explicit NotedData(Words& w) : words(w) {}
  Words& words;
  std::int64_t batches = 3;
  bool throws = false;
  std::unique_ptr<data::DataLoader> made(const char* word, std::int64_t n) {
    words.emplace_back(word);
    return few(n);
  }
  void prepare_data() override { words.emplace_back("data.prepare_data"); }
  void setup(Stage s) override { words.emplace_back(std::string("data.setup ") + name_of(s)); }
  void teardown(Stage s) override { words.emplace_back(std::string("data.teardown ") + name_of(s)); }
  void on_exception(const std::exception& e) override {
    words.emplace_back(std::string("data.on_exception ") + e.what());
  }
  std::unique_ptr<data::DataLoader> train_loader() override {
    if (throws) throw std::domain_error("planted");
    return made("data.train_loader", batches);
  }
  std::unique_ptr<data::DataLoader> val_loader() override { return made("data.val_loader", 2); }
  std::unique_ptr<data::DataLoader> test_loader() override { return made("data.test_loader", 4); }
  std::unique_ptr<data::DataLoader> predict_loader() override { return made("data.predict_loader", 5); }
};

struct NotedModule : TrainModuleOf<NotedModule> {
  explicit NotedModule(Words& list)
      : TrainModuleOf(nn::Options{.gen = Generator(1), .device = Device::cpu()}), words(list) {}
  Words& words;
  nn::Parameter w{*this, "w", ones({1}, Device::cpu())};
  std::int64_t trained = 0, validated = 0, tested = 0;
  Tensor operator()(const Tensor& x) { return x * w; }
  StepOutput training_step(const Batch& b, std::int64_t) override {
    ++trained;
    return mean(b[0] * w);
  }
  void validation_step(const Batch&, std::int64_t, std::int64_t) override { ++validated; }
  void test_step(const Batch&, std::int64_t, std::int64_t) override { ++tested; }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
  }
  void setup(Stage s) override { words.emplace_back(std::string("module.setup ") + name_of(s)); }
  void teardown(Stage s) override { words.emplace_back(std::string("module.teardown ") + name_of(s)); }
  void on_fit_start() override { words.emplace_back("module.on_fit_start"); }
  void on_train_start() override { words.emplace_back("module.on_train_start"); }
  std::unique_ptr<data::DataLoader> train_loader() override {
    words.emplace_back("module.train_loader");
    return few(7);
  }
};

struct NotedCallback : Callback {
  explicit NotedCallback(Words& list) : words(list) {}
  Words& words;
  void setup(Stage s) override { words.emplace_back(std::string("callback.setup ") + name_of(s)); }
  void teardown(Stage s) override { words.emplace_back(std::string("callback.teardown ") + name_of(s)); }
  void on_sanity_check_end() override { words.emplace_back("callback.on_sanity_check_end"); }
  void on_exception(const std::exception&) override { words.emplace_back("callback.on_exception"); }
};

struct Noted {
  Words words;
  NotedData data{words};
  NotedModule net{words};
  TrainerOptions options(std::int64_t epochs = 2) {
    TrainerOptions o = test::epochs(epochs);
    o.callbacks = {std::make_shared<NotedCallback>(words)};
    return o;
  }
};

template <class F>
std::string refusal(const F& call) {
  try {
    call();
  } catch (const ConfigError& e) { return e.what(); }
  return "accepted";
}

}  // namespace

TEST_CASE(
    "a fit with a data module: prepare, setup of data module, callbacks, module; loaders when needed; teardown "
    "likewise") {
  Noted n;
  TrainerOptions options = n.options();
  options.num_sanity_val_steps = 1;
  Trainer trainer(options);
  trainer.fit(n.net, n.data);
  CHECK(n.words == Words{"data.prepare_data", "data.setup fit", "callback.setup fit", "module.setup fit",
                         "module.on_fit_start", "data.val_loader", "callback.on_sanity_check_end", "data.train_loader",
                         "module.on_train_start", "data.teardown fit", "callback.teardown fit", "module.teardown fit"});
  CHECK(n.net.trained == 6);
  CHECK(n.net.validated == 1 + 4);
  CHECK(trainer.data_module() == nullptr);  // it ended with the stage
  CHECK_THROWS_AS((void)n.data.trainer(), StateError);

  n.words.clear();
  (void)trainer.test(n.net, n.data, {.verbose = false});
  CHECK(n.words == Words{"data.prepare_data", "data.setup test", "callback.setup test", "module.setup test",
                         "data.test_loader", "data.teardown test", "callback.teardown test", "module.teardown test"});
  CHECK(n.net.tested == 4);
  CHECK(trainer.predict(n.net, {}, {.data_module = &n.data}).at(0).size() == 5);
  (void)trainer.validate(n.net, n.data, {.verbose = false});
  CHECK(n.net.validated == 5 + 2);
}

TEST_CASE("a loader is that of the argument, then of the data module, then of the module") {
  Noted n;
  Trainer trainer(n.options(1));
  trainer.fit(n.net);
  CHECK(n.net.trained == 7);
  struct OnlyVal : DataModuleOf<OnlyVal> {
    std::unique_ptr<data::DataLoader> val_loader() override { return few(2); }
  } only_val;
  trainer.options().max_epochs = 2;
  trainer.fit(n.net, {.data_module = &only_val});
  CHECK(n.net.trained == 14);
  CHECK(n.net.validated == 2);
  trainer.options().max_epochs = 3;
  trainer.fit(n.net, {.train = n.data, .data_module = &n.data});
  CHECK(n.net.trained == 17);
  auto given = test::ramp(1);
  trainer.options().max_epochs = 4;
  trainer.fit(n.net, {.train = given});
  CHECK(n.net.trained == 18);
}

TEST_CASE("loaders and a data module together, two data modules, and one that does not name itself are refused") {
  Noted n;
  Trainer trainer(n.options(1));
  auto loader = test::ramp(2);
  CHECK(refusal([&] { trainer.fit(n.net, {.train = loader, .data_module = &n.data}); }) ==
        "fit: a data module and 1 loaders were given, expected one or the other; leave one out");
  CHECK(refusal([&] { trainer.fit(n.net, {.train = n.data, .val = loader}); }).starts_with("fit: a data module and 1"));
  CHECK(
      refusal([&] { (void)trainer.test(n.net, loader, {.data_module = &n.data}); }).starts_with("test: a data module"));
  NotedData other(n.words);
  CHECK(refusal([&] { trainer.fit(n.net, {.train = other, .data_module = &n.data}); }) ==
        "fit: two data modules were given, expected one; leave one out");
  struct Unnamed : NotedData {
    using NotedData::NotedData;
    std::unique_ptr<data::DataLoader> train_loader() override { return few(1); }
  } unnamed(n.words);
  CHECK(refusal([&] { trainer.fit(n.net, unnamed); }).find("DataModuleOf<D, Base>") != std::string::npos);
  CHECK(n.words.empty());  // before any work
  struct Named : DataModuleOf<Named, NotedData> {
    using DataModuleOf<Named, NotedData>::DataModuleOf;
    std::unique_ptr<data::DataLoader> train_loader() override { return few(1); }
  } named(n.words);
  trainer.fit(n.net, named);
  CHECK(n.net.trained == 1);
  CHECK(n.net.validated == 2);  // overrides of the base count
}

TEST_CASE("an exception reaches callbacks, then the data module, which is torn down") {
  Noted n;
  n.data.throws = true;
  Trainer trainer(n.options(1));
  CHECK_THROWS_AS(trainer.fit(n.net, n.data), std::domain_error);
  REQUIRE(n.words.size() > 5);
  CHECK(Words(n.words.end() - 5, n.words.end()) == Words{"callback.on_exception", "data.on_exception planted",
                                                         "data.teardown fit", "callback.teardown fit",
                                                         "module.teardown fit"});
  n.data.throws = false;
  trainer.fit(n.net, n.data);
  CHECK(n.net.trained == 3);
}

TEST_CASE("prepare_data runs on the first process of a node, or of all") {
  struct At final : Strategy {
    explicit At(RankInfo where) : at(where) {}
    RankInfo at;
    RankInfo ranks() const override { return at; }
  };
  struct Preparing : DataModuleOf<Preparing> {
    int calls = 0;
    bool per_node = true;
    void prepare_data() override { ++calls; }
    bool prepare_data_per_node() const override { return per_node; }
    std::unique_ptr<data::DataLoader> train_loader() override { return few(1); }
  };
  struct Case {
    int rank, local_rank;
    bool per_node;
    int calls;
  };
  for (const Case& c : {Case{0, 0, true, 1}, Case{0, 0, false, 1}, Case{4, 0, true, 1}, Case{4, 0, false, 0},
                        Case{1, 1, true, 0}, Case{1, 1, false, 0}}) {
    CAPTURE(c.rank);
    CAPTURE(c.per_node);
    Preparing preparing;
    preparing.per_node = c.per_node;
    Noted n;
    TrainerOptions options = n.options(1);
    options.strategy = std::make_shared<At>(RankInfo{.rank = c.rank, .local_rank = c.local_rank});
    Trainer trainer(std::move(options));
    trainer.fit(n.net, preparing);
    CHECK(preparing.calls == c.calls);
  }
}

TEST_CASE("a warning reports that prepare_data stores something") {
  struct Storing : DataModuleOf<Storing> {
    int found = 0, stores = 0;
    void prepare_data() override { found += stores; }
    std::unique_ptr<data::DataLoader> train_loader() override { return few(1); }
  } storing;
  Noted n;
  for (const int stores : {0, 1}) {
    storing.stores = stores;
    const test::Warnings warnings;
    Trainer trainer(n.options(1));
    trainer.fit(n.net, storing);
    CHECK(warnings.count("W-DATA-PREPARE") == stores);
  }
}

namespace {

struct DoublingData : DataModuleOf<DoublingData> {
  Batch on_after_batch_transfer(Batch batch) override {
    batch.fields[0] = batch.fields[0] * 2.0;
    return batch;
  }
  std::unique_ptr<data::DataLoader> train_loader() override { return few(1); }
  std::unique_ptr<data::DataLoader> val_loader() override { return few(1); }
};
struct SeesBatch : TrainModuleOf<SeesBatch, NotedModule> {
  using TrainModuleOf<SeesBatch, NotedModule>::TrainModuleOf;
  double trained_on = 0, validated_on = 0;
  bool before = false;
  StepOutput training_step(const Batch& b, std::int64_t) override {
    trained_on = b[0].item();
    return mean(b[0] * w);
  }
  void validation_step(const Batch& b, std::int64_t, std::int64_t) override { validated_on = b[0].item(); }
  Batch on_before_batch_transfer(Batch batch) override {
    before = true;
    return batch;
  }
};
struct Tripling : TrainModuleOf<Tripling, SeesBatch> {
  using TrainModuleOf<Tripling, SeesBatch>::TrainModuleOf;
  Batch on_after_batch_transfer(Batch batch) override {
    batch.fields[0] = batch.fields[0] * 3.0;
    return batch;
  }
};

}  // namespace

TEST_CASE("transfer hooks are the data module's where it has them, else the module's; both having one warns") {
  Words words;
  DoublingData data;
  {
    const test::Warnings warnings;
    SeesBatch net(words);
    Trainer trainer(test::epochs(1));
    trainer.fit(net, data);
    CHECK(net.trained_on == 2);
    CHECK(net.validated_on == 2);
    CHECK(net.before);  // the data module has none of that name
    CHECK(warnings.count("W-DATA-TRANSFER") == 0);
  }
  const test::Warnings warnings;
  Tripling net(words);
  Trainer trainer(test::epochs(1));
  trainer.fit(net, data);
  CHECK(net.trained_on == 2);
  CHECK(warnings.count("W-DATA-TRANSFER") == 1);
  trainer.options().max_epochs = 2;
  trainer.fit(net);
  CHECK(net.trained_on == 21);  // without a data module the module's: the seventh batch of its own loader, times 3
}

TEST_CASE(
    "reload_dataloaders_every_n_epochs asks the hooks again when the last loaders are so old, each by its own count") {
  struct Aging : DataModuleOf<Aging> {
    std::vector<std::int64_t> trains{}, vals{};
    std::unique_ptr<data::DataLoader> train_loader() override {
      trains.push_back(trainer().current_epoch());
      return few(trainer().current_epoch() + 1);  // one more each epoch
    }
    std::unique_ptr<data::DataLoader> val_loader() override {
      vals.push_back(trainer().current_epoch());
      return few(1);
    }
  };
  const auto fitted = [](std::int64_t every, std::optional<std::int64_t> validate_every) {
    Words words;
    NotedModule net(words);
    auto data = std::make_unique<Aging>();
    TrainerOptions options = test::epochs(6);
    options.reload_dataloaders_every_n_epochs = every;
    options.check_val_every_n_epoch = validate_every;
    Trainer trainer(options);
    trainer.fit(net, *data);
    return std::pair(std::move(data), net.trained);
  };
  using Epochs = std::vector<std::int64_t>;
  const auto [once, once_trained] = fitted(0, 1);
  CHECK(once->trains == Epochs{0});
  CHECK(once->vals == Epochs{0});
  CHECK(once_trained == 6);
  const auto [second, second_trained] = fitted(2, 1);
  CHECK(second->trains == Epochs{0, 2, 4});
  CHECK(second->vals == Epochs{0, 2, 4});
  CHECK(second_trained == 2 * (1 + 3 + 5));
  const auto [third, third_trained] = fitted(1, 3);
  CHECK(third->trains == Epochs{0, 1, 2, 3, 4, 5});
  CHECK(third->vals == Epochs{0, 2, 5});  // validations run in epochs 2 and 5
  CHECK(test::contains(test::refused([] {
                         TrainerOptions o = test::epochs(1);
                         o.reload_dataloaders_every_n_epochs = -1;
                         return o;
                       }()),
                       "reload_dataloaders_every_n_epochs is -1"));
}

namespace {

// The order of its loaders depends on the number of batches before each was made: without its state a resumed run has
// another order.
struct Curriculum : DataModuleOf<Curriculum> {
  std::int64_t level = 0, seed = 0, loads = 0;
  bool refuses = false, restored = false;
  Tensor seen = zeros({1}, Device::cpu());
  std::unique_ptr<data::DataLoader> train_loader() override {
    ++loads;
    if (!std::exchange(restored, false)) seed = level;
    return std::make_unique<data::DataLoader>(
        test::points(24),
        data::DataLoaderOptions{
            .batch_size = 4, .shuffle = true, .generator = Generator(static_cast<std::uint64_t>(seed))});
  }
  Batch on_before_batch_transfer(Batch batch) override {
    ++level;
    return batch;
  }
  CallbackState state() const override {
    return {.values = {{"level", text(level)}, {"seed", text(seed)}}, .tensors = {{"seen", seen + 1.0}}};
  }
  void load_state(const CallbackState& s) override {
    level = std::stoll(s.values.at(0).second);
    seed = std::stoll(s.values.at(1).second);
    restored = true;
    seen = s.tensors.at(0).second;
    if (refuses) throw std::domain_error("planted");
  }
};
struct CurriculumNet : TrainModuleOf<CurriculumNet> {
  CurriculumNet() : TrainModuleOf(nn::Options{.gen = Generator(3), .device = Device::cpu()}) {}
  test::Net net{*this, "net"};
  std::string save_to{};
  std::int64_t save_at = -1;
  StepOutput training_step(const Batch& b, std::int64_t) override { return test::squared_error(net(b[0]), b[1]); }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::Adam>(parameters(), optim::AdamOptions{.lr = 0.01})}};
  }
  void on_train_batch_end(const StepInfo&) override {
    if (trainer().total_batch_idx() == save_at) trainer().save_checkpoint(save_to);
  }
};

}  // namespace

TEST_CASE(
    "the state of a data module is in checkpoints: a run cut at any batch, with reloading, ends with the same bits") {
  const test::TemporaryFolder dir;
  TrainerOptions options = test::epochs(4);
  options.reload_dataloaders_every_n_epochs = 2;
  CurriculumNet whole;
  Curriculum whole_data;
  Trainer first(options);
  first.fit(whole, whole_data);
  CHECK(whole_data.level == 24);
  CHECK(whole_data.loads == 2);
  for (const std::int64_t at : {1, 5, 6, 9, 12, 13, 20}) {
    CAPTURE(at);
    const std::string file = dir / ("at_" + text(at) + ".safetensors");
    CurriculumNet cut;
    Curriculum cut_data;
    cut.save_at = at;
    cut.save_to = file;
    Trainer writer(options);
    writer.fit(cut, cut_data);
    CurriculumNet resumed;
    Curriculum data;
    Trainer reader(options);
    reader.fit(resumed, {.data_module = &data, .ckpt_path = file});
    CHECK(data.level == 24);
    CHECK(reader.global_step() == 24);
    CHECK(test::weights_of(resumed) == test::weights_of(whole));
  }
}

TEST_CASE("a data module that refuses its state gets back what it had, and the run is as it was") {
  const test::TemporaryFolder dir;
  const std::string file = dir / "a.safetensors";
  CurriculumNet net;
  Curriculum data;
  net.save_at = 3;
  net.save_to = file;
  Trainer trainer(test::epochs(1));
  trainer.fit(net, data);
  CurriculumNet other;
  const std::vector<float> before = test::weights_of(other);
  Curriculum refusing;
  refusing.level = 7;
  refusing.refuses = true;
  Trainer second(test::epochs(1));
  {
    const test::Warnings quiet;  // it also refuses its own earlier state
    CHECK_THROWS_AS(second.fit(other, {.data_module = &refusing, .ckpt_path = file}), std::domain_error);
  }
  CHECK(refusing.level == 7);
  CHECK(test::weights_of(other) == before);
  // The same for a file that is refused after the data module took its state.
  Curriculum willing;
  willing.level = 7;
  test::Probe wrong(nn::Options{.gen = Generator(1), .device = Device::cpu()});
  CHECK_THROWS_AS(second.fit(wrong, {.data_module = &willing, .ckpt_path = file}), ConfigError);
  CHECK(willing.level == 7);
  // A run without a data module warns that it leaves out a state.
  const test::Warnings warnings;
  auto loader = test::loader(24, 4);
  second.fit(other, {.train = loader, .ckpt_path = file});
  CHECK(warnings.count("W-CKPT-CALLBACKS") == 1);
}

TEST_CASE("hparams of module and data module go to loggers and checkpoints; equal names with two values are refused") {
  struct Told : Logger {
    Metadata hparams;
    void log_metrics(const LogRecord&) override {}
    void log_hparams(const Metadata& h) override { hparams = h; }
  };
  struct WithHParams : DataModuleOf<WithHParams> {
    std::unique_ptr<data::DataLoader> train_loader() override { return few(1); }
  } data;
  data.save_hparams({{"batch_size", 32}, {"lr", 0.1}});
  Words words;
  NotedModule net(words);
  net.save_hparams({{"lr", 0.1}, {"width", 8}});
  const auto logger = std::make_shared<Told>();
  TrainerOptions options = test::epochs(1);
  options.logger = logger;
  Trainer trainer(options);
  struct Saves : Callback {
    std::string path;
    void on_train_end() override { trainer().save_checkpoint(path); }
  };
  trainer.fit(net, data);
  CHECK(logger->hparams == Metadata{{"lr", "0.1"}, {"width", "8"}, {"batch_size", "32"}});

  const test::TemporaryFolder dir;
  const auto saves = std::make_shared<Saves>();
  saves->path = dir / "a.safetensors";
  options.callbacks = {saves};
  Trainer saving(options);
  saving.fit(net, data);
  CHECK(to_metadata(load_hparams(saves->path)) == logger->hparams);

  words.clear();
  data.save_hparams({{"lr", 0.2}});
  trainer.options().max_epochs = 2;
  CHECK(refusal([&] { trainer.fit(net, data); }) ==
        "fit: the hparam \"lr\" is 0.1 in the module and 0.2 in the data module; give it one value, or two names");
  CHECK(words.empty());
  trainer.options().enable_autolog_hparams = false;
  trainer.fit(net, data);
  CHECK(trainer.current_epoch() == 2);
}

namespace {

struct SizedData : DataModuleOf<SizedData> {
  SizedData() { save_hparams({{"batch_size", 2}}); }
  std::vector<std::int64_t> made{};
  std::unique_ptr<data::DataLoader> train_loader() override {
    made.push_back(static_cast<std::int64_t>(hparam("batch_size")));
    return std::make_unique<data::DataLoader>(test::loader(400, made.back()));
  }
};
struct LimitedNet : TrainModuleOf<LimitedNet> {
  LimitedNet() : TrainModuleOf(test::kTuned) {
    tunable("batch_size", &batch_size);
    tunable("lr", &lr);
  }
  nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
  std::int64_t batch_size = 1;
  double lr = 0.01;
  StepOutput training_step(const Batch& b, std::int64_t) override {
    if (b.size() > 20) fail<OutOfMemoryError>("planted: ", b.size());
    return test::squared_error(fc(b[0]), b[1]);
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = lr})}};
  }
};

}  // namespace

TEST_CASE("the tuner looks up field and loader hook in the data module first, and writes all holders") {
  const test::TemporaryFolder dir;
  TrainerOptions options = test::epochs(1);
  options.default_root_dir = dir.path();
  const test::Warnings warnings;
  {
    SizedData data;
    LimitedNet net;
    Trainer trainer(options);
    CHECK(Tuner(trainer).scale_batch_size(net, {.data_module = &data}) == 16);
    CHECK(data.hparam("batch_size") == 16);
    CHECK(net.batch_size == 16);
    CHECK(data.made == std::vector<std::int64_t>{2, 2, 4, 8, 16, 32});
    CHECK(Tuner(trainer).scale_batch_size(net, {.loaders = data}) == 16);
  }
  SizedData data;
  LimitedNet net;
  data.set_field("batch_size", 8);
  Trainer trainer(options);
  const auto found = Tuner(trainer).lr_find(net, {.train = data, .num_training = 20});
  REQUIRE(found.has_value());
  CHECK(found->results.lr.size() == 20);
  CHECK(net.lr == *found->suggestion());
  // A callback uses the data module of the stage.
  data.set_field("batch_size", 2);
  options.callbacks = {std::make_shared<BatchSizeFinder>()};
  Trainer searching(options);
  searching.fit(net, data);
  CHECK(data.made.back() == 16);
  CHECK(searching.global_step() == 25);
  CHECK_THROWS_AS(BatchSizeFinder({.data_module = &data}), ConfigError);
  CHECK_THROWS_AS(LearningRateFinder({.data_module = &data}), ConfigError);
}
