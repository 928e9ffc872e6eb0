// Checkpoints that are folders: Note [Checkpoint folders].
#include "train/checkpoint/folder.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <sstream>

#include "comm/job/socket.h"
#include "comm/job/spawned_test.h"
#include "levin/train/checkpoint.h"
#include "levin/train/ddp_strategy.h"
#include "levin/train/fsdp_strategy.h"
#include "levin/train/zero_strategy.h"
#include "tests/warnings.h"
#include "train/checkpoint/content.h"
#include "train/data/rank_fixture_test.h"
#include "train/strategy/parallel_fixture_test.h"

using namespace levin;
using namespace levin::test::parallel;
namespace fs = std::filesystem;

namespace {

// Reads its part of the data by a distributed sampler, and saves to all paths after a batch.
struct Saves : TrainModuleOf<Saves, Mlp> {
  using TrainModuleOf<Saves, Mlp>::TrainModuleOf;
  std::vector<std::string> paths;
  std::int64_t save_after = 7;  // of 5 an epoch, in an open window
  StepOutput training_step(const Batch& b, std::int64_t) override {
    return test::squared_error((*this)(b[0]).to(DType::f32), b[1].to(DType::f32));
  }
  void on_train_batch_end(const StepInfo&) override {
    for (const std::string& path : paths) {
      if (trainer().total_batch_idx() == save_after) trainer().save_checkpoint(path);
    }
  }
};

enum class By { nothing, ddp, stage_1, stage_2, stage_3, offloaded, fsdp, hybrid };
TrainerOptions strategy(TrainerOptions options, By by, const Group& group,
                        StateDictType type = StateDictType::sharded) {
  const ProcessOptions process{.group = group};
  if (by == By::ddp) options.strategy = std::make_shared<DdpStrategy>(DdpOptions{.process = process});
  if (by == By::stage_1 || by == By::stage_2 || by == By::stage_3)
    options.strategy = std::make_shared<ZeroStrategy>(ZeroOptions{.stage = by == By::stage_1   ? 1
                                                                           : by == By::stage_2 ? 2
                                                                                               : 3,
                                                                  .bucket_cap_mb = kSmallBucket,
                                                                  .state_dict_type = type,
                                                                  .process = process});
  if (by == By::offloaded)
    options.strategy = std::make_shared<ZeroStrategy>(ZeroOptions{.stage = 3,
                                                                  .bucket_cap_mb = kSmallBucket,
                                                                  .offload_optimizer = Offload::nvme,
                                                                  .offload_params = Offload::nvme,
                                                                  .nvme_path = fs::temp_directory_path().string(),
                                                                  .state_dict_type = type,
                                                                  .process = process});
  if (by == By::fsdp || by == By::hybrid)
    options.strategy = std::make_shared<FsdpStrategy>(
        FsdpOptions{.sharding = by == By::fsdp ? FsdpSharding::full_shard : FsdpSharding::hybrid_shard,
                    .auto_wrap_policy = wrap_larger_than(10),
                    .hybrid_group = by == By::hybrid ? 2 : 0,
                    .state_dict_type = type,
                    .process = process});
  return options;
}

struct Fit {
  By by = By::nothing;
  int ranks = 1;
  std::string precision = "32-true";
  std::vector<std::string> save{};
  std::string resume{};
  std::int64_t accumulate = 3;
};
std::vector<Weights> fit(const Fit& f) {
  return on_ranks(f.ranks, [&](const Group& group) {
    TrainerOptions options = plain();
    options.use_distributed_sampler = true;
    options.max_steps = 6;
    options.accumulate_grad_batches = f.accumulate;
    options.precision = f.precision;
    if (f.precision == "16-o2") options.grad_scaler = optim::GradScalerOptions{.init_scale = 16};
    Saves module(3);
    module.adam = true;
    module.paths = f.save;
    data::DataLoader data = test::loader(120, 24 / f.ranks);
    Trainer(strategy(options, f.by, group)).fit(module, {.train = data, .ckpt_path = f.resume});
    return values_of(module);
  });
}

std::string with_hash(std::string text) {
  const std::size_t at = text.rfind(",\"hash\":\"");
  REQUIRE(at != text.npos);
  text.resize(at);
  return text + ",\"hash\":\"" + content_hash(text) + "\"}";
}
std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const std::size_t at = text.find(what);
  REQUIRE(at != text.npos);
  return text.replace(at, what.size(), by);
}
std::string text_of(const std::string& file) { return read_file(file, std::size_t{1} << 24); }
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}
template <class E>
std::string error_of(const Function<void()>& f) {
  try {
    f();
  } catch (const E& e) { return e.what(); }
  return "no error of this type";
}

}  // namespace

TEST_CASE(
    "a folder of ranks resumes under any strategy and number of ranks, to the bits of the file of the same step") {
  const test::TemporaryFolder dir;
  for (const By from : {By::stage_1, By::stage_2, By::stage_3, By::offloaded, By::fsdp, By::hybrid}) {
    CAPTURE(static_cast<int>(from));
    const std::string name = text(static_cast<int>(from));
    const std::string folder = dir / (name + ".levin"), file = dir / (name + ".safetensors");
    const std::vector<Weights> whole = fit({.by = from, .ranks = 4, .save = {folder, file}});
    CHECK(names_in(folder) ==
          std::vector<std::string>{"index.json", "rank-00000-of-00004.safetensors", "rank-00001-of-00004.safetensors",
                                   "rank-00002-of-00004.safetensors", "rank-00003-of-00004.safetensors"});
    const Fit kinds[] = {{from == By::hybrid ? By::fsdp : from, 1},
                         {from, 2},
                         {from == By::hybrid ? By::stage_2 : from, 3},
                         {from, 4},
                         {By::ddp, 2},
                         {By::nothing, 1}};
    for (const Fit& kind : kinds) {
      CAPTURE(static_cast<int>(kind.by));
      CAPTURE(kind.ranks);
      Fit of_folder = kind, of_file = kind;
      of_folder.resume = folder;
      of_file.resume = file;
      const std::vector<Weights> a = fit(of_folder), b = fit(of_file);
      for (std::size_t r = 0; r < a.size(); ++r) CHECK(a[r] == b[0]);
      CHECK(difference(a[0], whole[0]) <= 1e-5);
      // Stage 1 keeps sums of each rank in an open window, of which a checkpoint has the average.
      if (kind.by == from && kind.ranks == 4 && from != By::stage_1) CHECK(a[0] == whole[0]);
    }
  }
}

TEST_CASE("a folder that becomes one file has the tensors, the state and the hashes of the file of the same step") {
  const test::TemporaryFolder dir;
  for (const char* precision : {"32-true", "16-o2"}) {
    CAPTURE(precision);
    const std::string folder = dir / "a.levin", file = dir / "a.safetensors", one = dir / "one.safetensors";
    (void)fit({.by = By::stage_2, .ranks = 4, .precision = precision, .save = {folder, file}});
    consolidate_checkpoint(folder, one);
    const TensorFile a = load_safetensors(one), b = load_safetensors(file);
    REQUIRE(a.tensors.size() == b.tensors.size());
    for (std::size_t i = 0; i < a.tensors.size(); ++i) {
      CHECK(a.tensors[i].first == b.tensors[i].first);
      CHECK(content_hash("", a.tensors[i].second) == content_hash("", b.tensors[i].second));
    }
    CHECK(read_checkpoint_info(one).damage.empty());
    CHECK(read_checkpoint_info(one).state == read_checkpoint_info(file).state);
    const CheckpointInfo info = read_checkpoint_info(folder);
    CHECK(info.damage.empty());
    CHECK_FALSE(info.weights_only);
    CHECK(info.weights.size() == read_checkpoint_info(file).weights.size());
    CHECK(fit({.by = By::nothing, .precision = precision, .resume = one}) ==
          fit({.by = By::nothing, .precision = precision, .resume = file}));
    // No file of a rank has the whole of what is shared.
    for (const std::string& name : names_in(folder)) {
      if (name == "index.json") continue;
      if (contains(precision, "16")) continue;  // the least slice has 64 bytes, which are all of a weight here
      for (const auto& [key, t] : load_safetensors(folder + "/" + name).tensors) {
        CHECK(key != "fc1.weight");
        CHECK((!contains(key, "fc1.weight") || t.rank() == 0 || t.numel() < 32));
      }
    }
  }
}

TEST_CASE("a folder of weights alone is evaluated, and refused by a resume") {
  const test::TemporaryFolder dir;
  const std::string folder = dir / "weights.levin";
  const auto ranks = on_ranks(2, [&](const Group& group) {
    Saves module(3);
    data::DataLoader data = test::loader(48, 12);
    Trainer trainer(strategy(plain(), By::fsdp, group));
    trainer.fit(module, {.train = data});
    trainer.save_checkpoint(folder, WeightsOnly::yes);
    return values_of(module);
  });
  const CheckpointInfo info = read_checkpoint_info(folder);
  CHECK(info.weights_only);
  Weights read;
  for (const auto& [name, t] : info.weights) {
    const Weights values = t.to_vector<float>();
    read.insert(read.end(), values.begin(), values.end());
  }
  Weights sorted = ranks[0];
  std::sort(sorted.begin(), sorted.end());
  std::sort(read.begin(), read.end());
  CHECK(read == sorted);
  CHECK(contains(error_of<ConfigError>([&] { (void)train::read_checkpoint(folder); }), "holds weights alone"));
}

TEST_CASE(
    "a folder that is damaged, cut, mixed up or unfinished is an error that names the file, before a run changes") {
  const test::TemporaryFolder dir;
  const std::string good = dir / "good.levin", bad = dir / "bad.levin", index = bad + "/index.json";
  (void)fit({.by = By::stage_2, .ranks = 2, .save = {good}});
  const std::string second = bad + "/rank-00001-of-00002.safetensors";
  const auto fresh = [&] {
    fs::remove_all(bad);
    fs::copy(good, bad);
  };
  const auto read = [&] { (void)train::read_checkpoint(bad); };
  fresh();
  read();

  fs::remove(second);
  CHECK(contains(error_of<FileError>(read), "lacks rank-00001-of-00002.safetensors, one of its 2 files"));
  fresh();
  fs::resize_file(second, fs::file_size(second) - 1);
  CHECK(contains(error_of<FormatError>(read), "bytes, expected "));
  fresh();
  std::string bytes = text_of(second);
  bytes[bytes.size() - 2] = static_cast<char>(bytes[bytes.size() - 2] ^ 1);
  write_file_atomically(second, bytes);
  CHECK(contains(error_of<FormatError>(read), "rank-00001-of-00002.safetensors has hash "));
  CHECK(read_checkpoint_info(bad).damage.at(0).name == "rank-00001-of-00002.safetensors");
  CHECK(contains(error_of<FormatError>([&] { consolidate_checkpoint(bad, dir / "one.safetensors"); }), "has hash "));
  CHECK_FALSE(fs::exists(dir / "one.safetensors"));
  // Every rank of a resume gets the error, and the module stays as it was.
  Fit resumes{.by = By::stage_2, .ranks = 2};
  resumes.resume = bad;
  CHECK(contains(error_of<FormatError>([&] { (void)fit(resumes); }), "has hash "));

  fresh();
  fs::remove(index);
  CHECK(contains(error_of<FormatError>(read), "is a folder without index.json, expected a file, or the folder"));
  fs::remove_all(bad);
  write_file_atomically(bad, std::string("x"));
  CHECK(contains(error_of<FormatError>([&] { consolidate_checkpoint(bad, dir / "one.safetensors"); }),
                 "is a file, expected the folder"));
  CHECK(contains(error_of<FileError>([&] { (void)load_safetensors(good); }), "is a folder, expected a file"));

  fresh();
  const std::string text = text_of(index);
  for (std::size_t size = 0; size < text.size(); size += 1 + size / 7) {
    write_file_atomically(index, text.substr(0, size));
    CHECK_THROWS_AS(read(), FormatError);
  }
  write_file_atomically(index, replaced(text, "\"bytes\":", "\"bytes\": "));
  CHECK(contains(error_of<FormatError>(read), "the hash of index.json"));
  const std::pair<std::string, std::string> changes[] = {
      {"\"version\":1", "\"version\":2"},
      {"\"version\":1", "\"version\":[]"},
      {"\"version\":1", "\"version\":1e300"},
      {"\"ranks\":2", "\"ranks\":3"},
      {"\"ranks\":2", "\"ranks\":-1"},
      {"\"bytes\":", "\"bytes\":18446744073709551615,\"x\":"},
      {"\"dtype\":\"f32\"", "\"dtype\":\"f31\""},
      {"\"dtype\":\"f32\"", "\"dtype\":1"},
      {"\"shape\":[", "\"shape\":[1,2,3,4,5,6,7,8,9,"},
      {"\"shape\":[", "\"shape\":[1099511627776,1099511627776,1099511627776,"},
      {"\"shape\":[", "\"shape\":[[],"},
      {"\"pieces\":[[0,0,", "\"pieces\":[[7,0,"},
      {"\"pieces\":[[0,0,", "\"pieces\":[[0,1,"},
      {"\"pieces\":[[0,0,", "\"pieces\":[[0,0,1],[0,0,"},
      {"\"pieces\":[[0,0,", "\"pieces\":[[0,5,1],[0,0,"},
      {"\"pieces\":[[0,0,", "\"pieces\":[1,[0,0,"},
      {"\"rank\":0", "\"rank\":2"},
      {"\"tensors\":[", "\"tensors\":[1,"},
      {"\"tensors\":[", "\"tensors\":[{},"},
      {"\"tensors\":[", "\"tensors\":[{\"name\":\"zzz\",\"dtype\":\"f32\",\"shape\":[],\"rank\":0},"},
      {"\"files\":[", "\"files\":[{},"},
      {"\"state\":\"", "\"state\":[\""},
      {"\"state\":\"", "\"state\":\"x"},
  };
  for (const auto& [what, by] : changes) {
    CAPTURE(by);
    write_file_atomically(index, with_hash(replaced(text, what, by)));
    CHECK_THROWS_AS(read(), FormatError);
  }
  // An index that says other tensors than the files have.
  write_file_atomically(index, with_hash(replaced(text, "\"name\":\"fc1.bias\"", "\"name\":\"fc1.bi\"")));
  CHECK(contains(error_of<FormatError>(read), "has no tensor 'fc1.bi"));
}

TEST_CASE("a save refuses a folder where a file is to be, a file where a folder is, and a folder of the user's") {
  const test::TemporaryFolder dir;
  fs::create_directories(dir / "folder.safetensors");
  fs::create_directories(dir / "mine.levin");
  write_file_atomically(dir / "mine.levin/notes.txt", std::string("mine"));
  write_file_atomically(dir / "file.levin", std::string("mine"));
  const std::pair<const char*, const char*> cases[] = {
      {"folder.safetensors", "is a folder, expected a file"},
      {"file.levin", "is a file, and a folder of a sharded checkpoint is to be written there"},
      {"mine.levin", "is a folder with notes.txt, which is no part of a checkpoint"},
  };
  for (const auto& [name, words] : cases) {
    CAPTURE(name);
    std::vector<std::string> errors(2);
    on_ranks(2, [&, path = dir / name](const Group& group) {
      Saves module(3);
      data::DataLoader data = test::loader(48, 12);
      Trainer trainer(strategy(plain(), By::stage_2, group));
      trainer.fit(module, {.train = data});
      errors[static_cast<std::size_t>(group->rank())] = error_of<FileError>([&] { trainer.save_checkpoint(path); });
      return 0;
    });
    for (const std::string& error : errors) CHECK(contains(error, words));
  }
  CHECK(text_of(dir / "mine.levin/notes.txt") == "mine");
  CHECK(text_of(dir / "file.levin") == "mine");
  CHECK(names_in(dir.path()) == std::vector<std::string>{"file.levin", "folder.safetensors", "mine.levin"});
}

TEST_CASE("ModelCheckpoint names, ranks, links and removes folders whole, and last finds the newest that is finished") {
  for (const SaveLast kind : {SaveLast::on, SaveLast::link}) {
    const test::TemporaryFolder dir;
    const std::string folder = dir / "ck";
    std::vector<std::string> best(2), resumed(2);
    std::vector<Weights> whole, continued;
    const auto run = [&](std::int64_t epochs, const std::string& from, const std::string& to) {
      return on_ranks(2, [&](const Group& group) {
        const auto keep = std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
            .dirpath = to, .monitor = "epoch", .mode = Mode::max, .save_top_k = 2, .save_last = kind});
        TrainerOptions options = plain();
        options.use_distributed_sampler = true;
        options.enable_checkpointing = true;
        options.default_root_dir = dir.path();
        options.max_steps = -1;
        options.max_epochs = epochs;
        options.callbacks = keep;
        Saves module(3);
        module.adam = true;
        data::DataLoader data = test::loader(48, 12);
        Trainer trainer(strategy(options, By::stage_3, group));
        trainer.fit(module, {.train = data, .ckpt_path = from});
        best[static_cast<std::size_t>(group->rank())] = keep->best_model_path();
        resumed[static_cast<std::size_t>(group->rank())] = trainer.resumed_from();
        return values_of(module);
      });
    };
    whole = run(5, "", dir / "whole");
    (void)run(3, "", folder);
    CHECK(best[0] == folder + "/epoch=2-step=6.levin");
    CHECK(best[0] == best[1]);
    CHECK(names_in(folder) == std::vector<std::string>{"epoch=1-step=4.levin", "epoch=2-step=6.levin", "last.levin"});
    CHECK(fs::is_symlink(folder + "/last.levin") == (kind == SaveLast::link));
    CHECK(read_checkpoint_info(folder + "/last.levin").global_step == 6);
    // A save that was not finished, and the temporary folder of a writer that is gone.
    fs::create_directories(folder + "/epoch=9-step=20.levin");
    fs::create_directories(folder + "/x.levin.tmp-" + text(1 << 22) + "-0");
    fs::copy(folder + "/epoch=2-step=6.levin/rank-00000-of-00002.safetensors",
             folder + "/x.levin.tmp-" + text(1 << 22) + "-0/rank-00000-of-00002.safetensors");
    continued = run(5, "last", folder);
    CHECK(contains(resumed[0], folder + "/"));
    CHECK(resumed[0] == resumed[1]);
    CHECK(continued == whole);
    CHECK_FALSE(fs::exists(folder + "/x.levin.tmp-" + text(1 << 22) + "-0"));
    CHECK_FALSE(fs::exists(folder + "/epoch=1-step=4.levin"));
    CHECK(read_checkpoint_info(folder + "/last.levin").global_step == 10);
  }
}

TEST_CASE("a strategy whose checkpoints are folders refuses a plug-in that writes files") {
  TrainerOptions options = plain();
  options.plugins.checkpoint_io = std::make_shared<AsyncCheckpointIO>();
  CHECK(contains(error_of<ConfigError>([&] { (void)Trainer(strategy(options, By::stage_2, nullptr)); }),
                 "state_dict_type = sharded, and plugins has a checkpoint_io"));
}

namespace {

struct Failing : TrainModuleOf<Failing, Saves> {
  using TrainModuleOf<Failing, Saves>::TrainModuleOf;
  int rank = -1;
  bool raises = false;
  void on_save_checkpoint(CheckpointContent&) override {
    if (trainer().global_rank() == rank) fail<DataError>("a bad hook");
  }
  void on_train_batch_end(const StepInfo& info) override {
    if (raises && trainer().global_rank() == 0 && info.batch_idx == 1) (void)std::raise(SIGTERM);
    Saves::on_train_batch_end(info);
  }
};

}  // namespace

TEST_CASE("an error of one rank's on_save_checkpoint is that of all ranks, at once, and nothing is written") {
  const test::TemporaryFolder dir;
  for (const By by : {By::ddp, By::stage_2, By::stage_3}) {
    for (const char* name : {"a.safetensors", "a.levin"}) {
      for (const int rank : {0, 2}) {
        std::vector<std::string> errors(3);
        on_ranks(3, [&](const Group& group) {
          Failing module(3);
          module.rank = rank;
          data::DataLoader data = test::loader(72, 24);
          Trainer trainer(strategy(plain(), by, group));
          trainer.fit(module, {.train = data});
          errors[static_cast<std::size_t>(group->rank())] =
              error_of<DataError>([&] { trainer.save_checkpoint(dir / name); });
          module.rank = -1;
          trainer.save_checkpoint(dir / (std::string("good-") + name));  // the ranks are together
          return 0;
        });
        for (const std::string& error : errors) CHECK(contains(error, "a bad hook"));
        CHECK(contains(errors[1], "rank " + text(rank) + ": "));
        CHECK_FALSE(fs::exists(dir / name));
        CHECK(fs::exists(dir / (std::string("good-") + name)));
      }
    }
  }
}

TEST_CASE("an error of one rank's on_save_checkpoint in the save of an interrupt ends all ranks, with its words") {
  const test::TemporaryFolder dir;
  std::vector<std::string> errors(2);
  on_ranks(2, [&](const Group& group) {
    Failing module(3);
    module.rank = 1;
    module.raises = true;
    TrainerOptions options = plain();
    options.handle_signals = true;
    options.enable_checkpointing = true;
    options.default_root_dir = dir.path();
    data::DataLoader data = test::loader(72, 12);
    Trainer trainer(strategy(options, By::ddp, group));
    errors[static_cast<std::size_t>(group->rank())] =
        error_of<InterruptedError>([&] { trainer.fit(module, {.train = data}); });
    return 0;
  });
  for (const std::string& error : errors) {
    CHECK(contains(error, "stopped by SIGTERM"));
    CHECK(contains(error, "it could not be saved"));
    CHECK(contains(error, "a bad hook"));
  }
}

namespace {

struct Spawn final : dist::ClusterEnvironment {
  Spawn(const test::Rank& of, int at) : rank(of.rank()), size(of.size()), port(at) {}
  int rank, size, port;
  [[nodiscard]] std::string_view name() const override { return "spawned by a test"; }
  [[nodiscard]] bool creates_processes_externally() const override { return true; }
  [[nodiscard]] std::string main_address() const override { return "127.0.0.1"; }
  [[nodiscard]] int main_port() const override { return port; }
  [[nodiscard]] int world_size() const override { return size; }
  [[nodiscard]] int global_rank() const override { return rank; }
  [[nodiscard]] int local_rank() const override { return rank; }
  [[nodiscard]] int node_rank() const override { return 0; }
};

// Trains 3 epochs of 2 steps, and saves a folder after each.
void fit_and_save(test::Rank& rank) {
  std::istringstream words(rank.argument());
  int port = 0;
  std::string folder, resume;
  words >> port >> folder >> resume;
  TrainerOptions options = test::silent();
  options.devices = rank.size();
  options.max_epochs = 3;
  options.enable_checkpointing = true;
  options.default_root_dir = folder;
  options.plugins.environment = std::make_shared<Spawn>(rank, port);
  options.strategy = std::make_shared<ZeroStrategy>(ZeroOptions{.state_dict_type = StateDictType::sharded});
  options.callbacks = std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder});
  Saves module(3);
  module.adam = true;
  data::DataLoader data = test::loader(32, 16 / rank.size());
  Trainer trainer(options);
  trainer.fit(module, {.train = data, .ckpt_path = resume});
  std::string hash;
  for (const auto& [name, t] : module.state_dict()) hash += content_hash(name, t);
  rank.report(trainer.resumed_from() + " " + hash);
}

}  // namespace

TEST_CASE("a rank that is killed in the middle of a save leaves the older folder as the newest, which is resumed") {
  const auto port = [] { return dist::port_of(dist::listen_at({"127.0.0.1", 0}, dist::Reach::loopback, 0)); };
  const test::TemporaryFolder whole_dir;
  test::Spawned whole(2, fit_and_save, {.argument = text(port()) + " " + whole_dir.path()});
  whole.wait();
  REQUIRE(whole.end_of(0).error.empty());
  for (const int lost : {0, 1}) {
    CAPTURE(lost);
    const test::TemporaryFolder dir;
    test::Spawned group(2, fit_and_save,
                        {.argument = text(port()) + " " + dir.path(),
                         .points = "rank " + text(lost) + ": at save:rank of step 4 -> kill"});
    group.wait();
    CHECK(group.end_of(lost).signal == SIGKILL);
    CHECK(contains(group.end_of(1 - lost).error, "CommError: "));
    CHECK(contains(group.end_of(1 - lost).error, "rank " + text(lost) + " "));
    CHECK(fs::exists(dir / "epoch=0-step=2.levin/index.json"));
    CHECK_FALSE(fs::exists(dir / "epoch=1-step=4.levin"));
    test::Spawned again(2, fit_and_save, {.argument = text(port()) + " " + dir.path() + " last"});
    again.wait();
    for (int r = 0; r < 2; ++r) {
      CHECK(again.end_of(r).error.empty());
      const std::string& expected = whole.end_of(0).reports.at(0);
      CHECK(again.end_of(r).reports.at(0) == dir / "epoch=0-step=2.levin" + expected);
    }
    CHECK(names_in(dir.path()) == std::vector<std::string>{"epoch=0-step=2.levin", "epoch=2-step=6.levin"});
  }
}
