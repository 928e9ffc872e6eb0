// Fits of ranks that are processes, one of which fails: who is named, and what is left of the run.
#include <doctest/doctest.h>

#include <bit>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "comm/job/point.h"
#include "comm/job/socket.h"
#include "comm/job/spawned_test.h"
#include "levin/ops.h"
#include "levin/train/checkpoint.h"
#include "levin/train/ddp_strategy.h"
#include "train/run/fixture_test.h"

using namespace levin;
using test::Rank;
using test::Spawned;
using test::TemporaryFolder;
namespace fs = std::filesystem;

namespace {

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

// What a rank is told: words in the order of the members.
struct Fit {
  int port = 0;
  std::string folder{};
  double timeout = 60, rendezvous = 60, silence = 10;
  std::string differs = "-";  // the phase in which rank 1 calls a collective alone, or SIGTERM: that rank 1 gets it
  std::string resume = "-";
  std::string optimizer = "sgd";
  int epochs = 2;

  [[nodiscard]] std::string words() const {
    std::ostringstream out;
    out << port << ' ' << folder << ' ' << timeout << ' ' << rendezvous << ' ' << silence << ' ' << differs << ' '
        << resume << ' ' << optimizer << ' ' << epochs;
    return out.str();
  }
  static Fit of(const std::string& words) {
    std::istringstream in(words);
    Fit fit;
    in >> fit.port >> fit.folder >> fit.timeout >> fit.rendezvous >> fit.silence >> fit.differs >> fit.resume >>
        fit.optimizer >> fit.epochs;
    return fit;
  }
};

int free_port() { return dist::port_of(dist::listen_at({"127.0.0.1", 0}, dist::Reach::loopback, 0)); }

struct Here final : dist::ClusterEnvironment {
  Here(const Rank& of, int at) : rank(of.rank()), size(of.size()), port(at) {}
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

// A point in each phase of a fit, where a rank may be ended, stopped or held, or call a collective alone.
struct Phases {
  const Rank* of = nullptr;
  std::shared_ptr<DdpStrategy> strategy{};
  std::string differs = "-";
  void at(const char* phase, std::int64_t index = 0) const {
    dist::point(phase, index);
    if (!strategy || differs != phase || strategy->ranks().rank != 1) return;
    of->report("calls alone");
    strategy->group()->all_reduce(ones({3}, Device::cpu())).wait();
  }
};

struct Points final : data::Dataset {
  explicit Points(Phases at) : phases(std::move(at)) {}
  Phases phases;
  data::DatasetRef all = test::points(32);
  [[nodiscard]] std::int64_t size() const override { return all->size(); }
  [[nodiscard]] data::Sample get(std::int64_t index, Generator& rng) const override {
    phases.at("data");
    return all->get(index, rng);
  }
};

struct Net final : TrainModuleOf<Net> {
  using TrainModuleOf::TrainModuleOf;
  nn::Linear fc{*this, "fc", {.in = 2, .out = 8}};
  nn::Linear out{*this, "out", {.in = 8, .out = 1}};
  Phases phases;
  std::string optimizer = "sgd";
  std::int64_t forwards = 0;
  void configure_model() override { phases.at("setup"); }
  StepOutput training_step(const Batch& b, std::int64_t) override {
    phases.at("forward", forwards++);
    return test::squared_error(out(tanh(fc(b[0]))), b[1]);
  }
  void on_before_backward(const Tensor&) override { phases.at("backward"); }
  void on_before_optimizer_step(optim::Optimizer&) override { phases.at("optimizer"); }
  void on_train_batch_end(const StepInfo& info) override {
    phases.at("hooks");
    if (phases.differs == "SIGTERM" && phases.strategy->ranks().rank == 1 && info.batch_idx == 1) (void)raise(SIGTERM);
  }
  void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
    phases.at("validation");
    log("val_loss", test::squared_error(out(tanh(fc(b[0]))), b[1]));
  }
  void on_save_checkpoint(CheckpointContent&) override { phases.at("save"); }
  OptimizerConfig configure_optimizers() override {
    if (optimizer == "lbfgs")
      return {.optimizers = {std::make_shared<optim::LBFGS>(parameters(), optim::LBFGSOptions{.max_iter = 3})}};
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1, .momentum = 0.9})}};
  }
};

std::string bits(const std::vector<float>& values) {
  std::string out;
  for (const float v : values) out += text(std::bit_cast<std::uint32_t>(v)) + " ";
  return out;
}

TrainerOptions options_of(const Fit& fit) {
  TrainerOptions options = test::silent();
  options.enable_checkpointing = true;
  options.default_root_dir = fit.folder;
  options.max_epochs = fit.epochs;
  options.handle_signals = fit.differs == "SIGTERM";
  return options;
}

void train(Net& net, Trainer& trainer, const Fit& fit, const Phases& phases, std::int64_t batch_size) {
  net.phases = phases;
  net.optimizer = fit.optimizer;
  data::DataLoader train(std::make_shared<Points>(phases),
                         {.batch_size = batch_size, .shuffle = true, .generator = Generator(9)});
  data::DataLoader val(test::points(8), {.batch_size = batch_size});
  trainer.fit(net, {.train = train, .val = val, .ckpt_path = fit.resume == "-" ? "" : fit.resume});
}

void fit_rank(Rank& rank) {
  const Fit fit = Fit::of(rank.argument());
  const auto strategy = std::make_shared<DdpStrategy>(
      DdpOptions{.process = {.timeout = fit.timeout, .rendezvous_timeout = fit.rendezvous, .silence = fit.silence}});
  TrainerOptions options = options_of(fit);
  options.devices = rank.size();
  options.strategy = strategy;
  options.plugins.environment = std::make_shared<Here>(rank, fit.port);
  if (fit.differs == "rendezvous" && rank.rank() == 1) {
    options.max_epochs = fit.epochs + 1;
    options.limit_train_batches = 0.5;
    options.limit_val_batches = 1;
    options.num_sanity_val_steps = std::nullopt;
    options.accumulate_weighting = AccumulateWeighting::exact;
    options.strategy = std::make_shared<ZeroStrategy>(
        ZeroOptions{.process = {.timeout = fit.timeout, .rendezvous_timeout = fit.rendezvous}});
  }
  Trainer trainer(options);
  Net net(nn::Options{.gen = Generator(3), .device = Device::cpu()});
  train(net, trainer, fit, {.of = &rank, .strategy = strategy, .differs = fit.differs}, 2);
  rank.report("steps " + text(trainer.global_step()));
  rank.report(bits(test::weights_of(net)));
}

// A group of three ranks whose fit ends in a phase, and what its survivors throw.
struct Failing {
  TemporaryFolder folder;
  int rank = 0;
  std::string phase;
  std::unique_ptr<Spawned> group{};

  [[nodiscard]] std::vector<std::string> errors() const {
    std::vector<std::string> all;
    for (int r = 0; r < 3; ++r) {
      if (r != rank) all.push_back(group->end_of(r).error);
    }
    return all;
  }
};

struct Row {
  const char* phase;
  const char* place;      // of the point
  const char* completed;  // steps, as the error says
};
constexpr Row kInFit[] = {
    {"setup", "", ""},
    {"data", " of step 1", ", 1 step completed"},
    {"forward", " of step 2", ", 2 steps completed"},
    {"backward", " of step 1", ", 1 step completed"},
    {"optimizer", " of step 3", ", 3 steps completed"},
    {"hooks", " of step 2", ", 2 steps completed"},
    {"validation", "", ", 6 steps completed"},
    {"save", "", ", 6 steps completed"},
};

std::vector<std::unique_ptr<Failing>> start(const char* action, Fit fit, std::span<const Row> rows = kInFit) {
  std::vector<std::unique_ptr<Failing>> all;
  for (const Row& row : rows) {
    auto& one = *all.emplace_back(std::make_unique<Failing>());
    one.phase = row.phase;
    one.rank = static_cast<int>(all.size()) % 3;
    fit.port = free_port();
    fit.folder = one.folder.path();
    one.group = std::make_unique<Spawned>(
        3, fit_rank,
        Spawned::Options{.argument = fit.words(),
                         .points = "rank " + text(one.rank) + ": at " + row.phase + row.place + " -> " + action});
  }
  return all;
}

// Every survivor reports within 2 seconds after the failure; `wait`: seconds after which a silent rank is one.
void check_prompt(const Failing& one, double wait = 0) {
  for (int r = 0; r < 3; ++r) {
    if (r != one.rank) CHECK(one.group->seconds_to_error(one.rank, "rank " + text(one.rank) + " at ", r) < wait + 2);
  }
}

void check_named(const Failing& one, const Row& row, const char* words, double wait = 0) {
  CAPTURE(row.phase);
  check_prompt(one, wait);
  for (const std::string& error : one.errors()) {
    CAPTURE(error);
    CHECK(error.starts_with("CommError: "));
    CHECK(contains(error, "rank " + text(one.rank) + " (host "));
    CHECK(contains(error, words));
    CHECK(contains(error, std::string("in phase ") + row.phase + row.completed));
  }
}

}  // namespace

TEST_CASE("a rank of a fit that is killed in any phase is named with phase and steps by all survivors") {
  const auto all = start("kill", {});
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i]->group->wait();
    CHECK(all[i]->group->end_of(all[i]->rank).signal == SIGKILL);
    check_named(*all[i], kInFit[i], "was lost");
  }
}

TEST_CASE("an exception of one rank of a fit in any phase reaches all others with its type and text") {
  const auto all = start("throw", {});
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i]->group->wait();
    CHECK(contains(all[i]->group->end_of(all[i]->rank).error, "DataError: "));
    const bool agreed = all[i]->phase == "save";  // the ranks agree on it, before anything is written
    if (!agreed) check_named(*all[i], kInFit[i], "failed");
    for (const std::string& error : all[i]->errors()) {
      CAPTURE(error);
      CHECK((contains(error, ": DataError: ") || (agreed && error.starts_with("DataError: rank "))));
      CHECK(contains(error, "LEVIN_POINTS: rank " + text(all[i]->rank) + " at " + all[i]->phase));
    }
  }
}

TEST_CASE("a rank of a fit that is stopped in any phase is silent, and named by all others") {
  const auto all = start("stop", {.silence = 0.5});
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i]->group->wait_but(all[i]->rank);
    all[i]->group->kill(all[i]->rank, SIGKILL);
    all[i]->group->wait();
    check_named(*all[i], kInFit[i], "has been silent for ", 0.5);
  }
}

TEST_CASE("a rank of a fit that is alive and late in any phase is named by all after the timeout") {
  // Half of them at once: where 24 processes share two cores, ranks that are in time may be late as well.
  const std::span<const Row> rows(kInFit);
  for (const auto& part : {rows.first(4), rows.subspan(4)}) {
    const auto all = start("hold", {.timeout = 1}, part);
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i]->group->wait_but(all[i]->rank);
      all[i]->group->release();
      all[i]->group->wait();
      check_named(*all[i], part[i], "is alive and has not come to a collective for ", 1);
      CHECK(contains(all[i]->group->end_of(all[i]->rank).error, "CommError: "));
    }
  }
}

TEST_CASE("ranks that agree on a signal end each by itself, and none of them is a failure of the others") {
  const TemporaryFolder folder;
  Spawned group(3, fit_rank,
                {.argument = Fit{.port = free_port(), .folder = folder.path(), .differs = "SIGTERM"}.words(),
                 .points = "rank 1: at leave -> hold"});
  group.wait_for(1, "rank 1 at leave 0");  // all ranks have come to the end of the job, and none has failed
  group.release();
  group.wait();
  for (int r = 0; r < 3; ++r) {
    CAPTURE(group.end_of(r).output);
    CAPTURE(group.end_of(r).error);
    CHECK(group.end_of(r).error.starts_with("exception: fit: stopped by SIGTERM after 2 optimizer steps; "));
    CHECK_FALSE(contains(group.end_of(r).output, "W-COMM-EXIT"));
  }
}

TEST_CASE("a collective of one rank alone in any phase of a fit is an error of all, before data moves") {
  std::vector<std::unique_ptr<Failing>> all;
  for (const Row& row : kInFit) {
    auto& one = *all.emplace_back(std::make_unique<Failing>());
    one.group = std::make_unique<Spawned>(
        3, fit_rank,
        Spawned::Options{.argument =
                             Fit{.port = free_port(), .folder = one.folder.path(), .differs = row.phase}.words()});
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    CAPTURE(kInFit[i].phase);
    all[i]->group->wait();
    for (int r = 0; r < 3; ++r) {
      const std::string& error = all[i]->group->end_of(r).error;
      CAPTURE(error);
      CHECK(error.starts_with("CommError: "));
      CHECK(contains(error, r == 1 ? "this rank issues all_reduce f32[3] sum at failing_ranks_test.cpp"
                                   : "rank 1 issues all_reduce f32[3] sum at failing_ranks_test.cpp"));
      CHECK(contains(error, r == 1 ? "ranks 0 and 2 issue " : "this rank"));
      CHECK(all[i]->group->seconds_to_error(1, "calls alone", r) < 2);
    }
  }
}

TEST_CASE("a rank that is lost within a collective is named with its step, and with what the others wait in") {
  const TemporaryFolder folder;
  for (const char* action : {"kill", "throw"}) {
    CAPTURE(action);
    Spawned group(3, fit_rank,
                  {.argument = Fit{.port = free_port(), .folder = folder.path()}.words(),
                   .points = std::string("rank 1: at collective of step 2 -> ") + action});
    group.wait();
    for (const int r : {0, 2}) {
      const std::string& error = group.end_of(r).error;
      CAPTURE(error);
      CHECK(contains(error, "CommError: "));
      CHECK(contains(error, "rank 1 (host "));
      CHECK(contains(error, "2 steps completed"));
      CHECK(contains(error, "; rank"));
      CHECK(contains(error, " in "));
      CHECK(group.seconds_to_error(1, "rank 1 at collective", r) < 2);
    }
  }
}

TEST_CASE("a rank that is killed, stopped, failing or late before it arrives is missed by number") {
  std::vector<std::unique_ptr<Failing>> all;
  for (const char* action : {"kill", "stop", "throw", "hold"}) {
    auto& one = *all.emplace_back(std::make_unique<Failing>());
    one.rank = 2;
    one.phase = action;
    one.group = std::make_unique<Spawned>(
        3, fit_rank,
        Spawned::Options{.argument = Fit{.port = free_port(), .folder = one.folder.path(), .rendezvous = 0.5}.words(),
                         .points = std::string("rank 2: at rendezvous -> ") + action});
  }
  for (const auto& one : all) {
    CAPTURE(one->phase);
    one->group->wait_but(2);
    one->group->release();
    one->group->kill(2, SIGCONT);
    one->group->wait();
    for (const std::string& error : one->errors()) CHECK(contains(error, "rank 2 of 3 did not arrive within 0.5 s"));
    check_prompt(*one, 0.5);
    CHECK((one->group->end_of(2).signal == SIGKILL) == (one->phase == "kill"));
    CHECK(one->group->end_of(2).error.empty() == (one->phase == "kill"));
  }
}

TEST_CASE("a rank with other options is refused on all ranks before any work, with both values") {
  const TemporaryFolder folder;
  Spawned group(3, fit_rank,
                {.argument = Fit{.port = free_port(), .folder = folder.path(), .differs = "rendezvous"}.words()});
  group.wait();
  for (int r = 0; r < 3; ++r) {
    CHECK(group.end_of(r).error.starts_with("ConfigError: init_process_group: ranks differ"));
    for (const char* words :
         {"max_epochs: ranks 0, 2: `2`; rank 1: `3`", "limit_train_batches: ranks 0, 2: `unset`; rank 1: `0.5`",
          "limit_val_batches: ranks 0, 2: `unset`; rank 1: `1`",
          "num_sanity_val_steps: ranks 0, 2: `0`; rank 1: `unset`",
          "accumulate_weighting: ranks 0, 2: `per_batch`; rank 1: `exact`",
          "strategy: ranks 0, 2: `ddp`; rank 1: `zero"})
      CHECK(contains(group.end_of(r).error, words));
  }
}

TEST_CASE("survivors of a lost rank save the run once, and it resumes on as many and on fewer ranks") {
  const TemporaryFolder whole_folder;
  Spawned whole(2, fit_rank, {.argument = Fit{.port = free_port(), .folder = whole_folder.path()}.words()});
  struct Loss {
    int rank;
    const char *at, *saved;  // the file, without its number of steps at the end of which the point is
  };
  for (const Loss& loss : {Loss{1, "forward of step 5", "rescue-5"}, Loss{0, "backward of step 3", "rescue-3"},
                           Loss{1, "optimizer of step 4", "rescue-5"}, Loss{0, "validation of step 8", "rescue-8"}}) {
    CAPTURE(loss.at);
    const TemporaryFolder folder;
    Fit fit{.port = free_port(), .folder = folder.path()};
    Spawned group(2, fit_rank,
                  {.argument = fit.words(), .points = "rank " + text(loss.rank) + ": at " + loss.at + " -> kill"});
    group.wait();
    const std::string file = folder / loss.saved + ".safetensors";
    const std::string& error = group.end_of(1 - loss.rank).error;
    CAPTURE(error);
    CHECK(contains(error, "rank " + text(1 - loss.rank) + " saved " + file + ", ckpt_path = \"last\""));
    REQUIRE(fs::exists(file));
    for (const auto& entry : fs::directory_iterator(folder.path())) {
      const std::string name = entry.path().filename().string();
      CHECK((!name.starts_with("rescue-") || entry.path() == file));
    }
    whole.wait();
    const std::string& expected = whole.end_of(0).reports.at(1);
    fit.resume = "last";
    fit.port = free_port();
    Spawned again(2, fit_rank, {.argument = fit.words()});
    again.wait();
    for (int r = 0; r < 2; ++r) {
      CHECK(again.end_of(r).error.empty());
      CHECK(again.end_of(r).reports.at(0) == "steps 16");
      CHECK(again.end_of(r).reports.at(1) == expected);
    }
    fit.resume = file;
    TrainerOptions options = options_of(fit);
    const TemporaryFolder other;
    options.default_root_dir = other.path();
    Trainer alone(options);
    Net net(nn::Options{.gen = Generator(3), .device = Device::cpu()});
    train(net, alone, fit, {}, 4);
    CHECK(alone.global_step() == 16);
    std::istringstream in(expected);
    for (const float mine : test::weights_of(net)) {
      std::uint32_t word = 0;
      in >> word;
      CHECK(mine == doctest::Approx(std::bit_cast<float>(word)).epsilon(1e-4));
    }
  }
}

TEST_CASE("survivors save nothing within a step whose optimizer has changed parameters already") {
  const TemporaryFolder folder;
  Spawned group(2, fit_rank,
                {.argument = Fit{.port = free_port(), .folder = folder.path(), .optimizer = "lbfgs"}.words(),
                 .points = "rank 1: at forward 4 of step 1 -> kill"});
  group.wait();
  CHECK(group.end_of(1).signal == SIGKILL);
  CHECK(contains(group.end_of(0).error, "was within a step"));
  CHECK_FALSE(fs::exists(folder / "rescue-1.safetensors"));
}

TEST_CASE("a rescue checkpoint leaves the one of an earlier run, and nothing is saved before the first step") {
  const TemporaryFolder folder;
  for (const char* file : {"rescue-2.safetensors", "rescue-2-v1.safetensors"}) {
    Spawned group(2, fit_rank,
                  {.argument = Fit{.port = free_port(), .folder = folder.path()}.words(),
                   .points = "rank 1: at forward of step 2 -> kill"});
    group.wait();
    CHECK(contains(group.end_of(0).error, folder / file));
    const CheckpointInfo info = read_checkpoint_info(folder / file);
    CHECK(info.damage.empty());
    CHECK(info.global_step == 2);
    fs::last_write_time(folder / file, fs::file_time_type::clock::now() - std::chrono::hours(1));
  }
  Spawned early(2, fit_rank,
                {.argument = Fit{.port = free_port(), .folder = folder.path()}.words(),
                 .points = "rank 1: at backward of step 0 -> kill"});
  early.wait();
  CHECK_FALSE(contains(early.end_of(0).error, "saved"));
  CHECK_FALSE(fs::exists(folder / "rescue-0.safetensors"));
}
