// The program that tests of launchers start as the ranks of a job: it does what its arguments say, in their order.
//
//   ranks [--launch N] [--grace S] ACTION [VALUE] ...
//
// --launch makes the script launcher start the other ranks. "@R:" before an action is for rank R alone:
//   print N        N numbered lines on stdout and stderr        env NAME     the variable, as NAME=value
//   text WORDS     one line on stderr                           part WORDS   on stdout, without a line's end
//   ignore-term    SIGTERM has no effect                        read         a line of stdin
//   block-term     SIGTERM waits for await-term                 await-term   waits for SIGTERM
//   child FILE     a process that waits for ever; FILE holds its number     pid FILE   the same of this process
//   mark FILE      makes the file                               await FILE   waits until another rank has made it
//   hang           waits for ever                               signal N     raises a signal
//   hold S         hold_kill                                    exit CODE    by exit(3)
//   threads        the number of threads of CPU kernels
//   requeue-once   under SLURM, in the first start: sends SIGUSR1 to the job, and rank 0 requeues it when the signal
// comes
//   reduce         all_reduce over the job; prints the rank, the size and the sum of all ranks + 1
//   reduce-on      all_reduce again and again, until an error ends it
//   host NAME      this rank is on a host of that name; before the job's first action
//   fit FOLDER     40 steps of ddp, whose requeued job resumes from FOLDER; prints the bits of the weights, and writes
//                  the error that ended the fit to FOLDER/error.RANK
//   cut-fit FOLDER the same; in the job's first start rank 0 sends SIGUSR1 to it after 7 steps
//   train BACKEND  20 steps of ddp with 32 samples in all; prints the rank and the weights
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <bit>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "levin/comm.h"
#include "levin/comm/launch.h"
#include "levin/levin.h"
#include "tests/launchers/await.h"

using namespace levin;

namespace {

[[noreturn]] void hang() {
  while (true) ::pause();
}

void make_file(const std::string& path, const std::string& text) {
  const std::string partial = path + ".part";  // a reader sees the whole text or no file
  std::FILE* const file = std::fopen(partial.c_str(), "w");
  if (file == nullptr) std::exit(99);
  std::fputs(text.c_str(), file);
  std::fclose(file);
  std::rename(partial.c_str(), path.c_str());
}

// The group of all ranks, made at its first use and closed at the end of main.
std::shared_ptr<dist::ProcessGroup> all_ranks;
std::shared_ptr<dist::ProcessGroup> job_group() {
  if (!all_ranks) all_ranks = dist::init_process_group();
  return all_ranks;
}

// Sends SIGUSR1 to the tasks of this job. The signal reaches what a task has started, too.
void signal_job() {
  if (std::system(("trap '' USR1; scancel --signal=USR1 " + dist::slurm_job_name()).c_str()) != 0) std::exit(97);
}

// What a trainer does at the signal: all ranks take it, save and meet; then rank 0 requeues, and SIGTERM follows.
void requeue_once() {
  const auto environment = dist::ClusterEnvironment::detect();
  if (environment->restart_count() > 0) {
    if (environment->global_rank() == 0) std::printf("start %d\n", environment->restart_count());
    return;
  }
  sigset_t taken;
  sigemptyset(&taken);
  sigaddset(&taken, SIGUSR1);
  sigaddset(&taken, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &taken, nullptr);
  const auto world = job_group();
  world->barrier();  // no signal comes before all ranks wait for it
  if (world->rank() == 0) signal_job();
  int number = 0;
  while (number != SIGUSR1) ::sigwait(&taken, &number);
  world->barrier();
  if (world->rank() == 0) {
    std::printf("requeues\n");
    std::fflush(stdout);
    dist::requeue_job();
  }
  while (number != SIGTERM) ::sigwait(&taken, &number);
  std::_Exit(0);  // without a barrier with ranks that may be gone
}

struct Points : TrainModuleOf<Points> {
  using TrainModuleOf::TrainModuleOf;
  nn::Linear fc1{*this, "fc1", {.in = 2, .out = 16}};
  nn::Linear fc2{*this, "fc2", {.in = 16, .out = 1}};
  StepOutput training_step(const Batch& b, std::int64_t) override { return mean(square(fc2(tanh(fc1(b[0]))) - b[1])); }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1, .momentum = 0.9})}};
  }
};

// Sends SIGUSR1 to the job's tasks, and waits for it. All threads block the signal, so it comes in the wait.
struct Cuts final : Callback {
  Cuts() {
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    ::sigprocmask(SIG_BLOCK, &usr1, nullptr);
  }
  std::string state_key() const override { return ""; }
  void on_train_batch_end(const StepInfo& at) override {
    if (at.global_step != 7) return;
    if (trainer().is_global_zero()) signal_job();
    sigset_t none;
    sigemptyset(&none);
    ::sigsuspend(&none);
  }
};

void fit(const std::string& folder, bool cut) {
  const auto environment = dist::ClusterEnvironment::detect();
  Generator gen(5);
  const Tensor x = randn({160, 2}, gen, Device::cpu());
  data::DataLoader data(data::tensor_dataset({x, slice(x, 1, 0, 1) * slice(x, 1, 1, 2)}),
                        {.batch_size = 8, .shuffle = true, .generator = Generator(9)});
  TrainerOptions options;
  options.logger = false;
  options.enable_checkpointing = options.enable_progress_bar = options.enable_model_summary = false;
  options.default_root_dir = folder;
  options.max_steps = 40;
  options.devices = environment->world_size();
  options.strategy = "ddp";
  if (cut && environment->restart_count() == 0) options.callbacks.push_back(std::make_shared<Cuts>());
  Points module({.gen = Generator(3), .device = Device::cpu()});
  Trainer trainer(options);
  const std::string rank = text(environment->global_rank());
  try {
    trainer.fit(module, {.train = data});
  } catch (const Error& e) {
    make_file(folder + "/error." + rank, e.what());
    throw;
  }
  std::string line = "start " + text(environment->restart_count()) + " of rank " + rank + " resumed \"" +
                     trainer.resumed_from() + "\"\nbits of rank " + rank + ":";
  for (const auto& [name, t] : module.state_dict()) {
    for (const float v : t.to_vector<float>()) line += " " + text(std::bit_cast<std::uint32_t>(v));
  }
  std::puts(line.c_str());
}

int number_of(const char* variable) {
  const char* const text = std::getenv(variable);
  return text ? std::stoi(text) : 1;
}

void train(const std::string& backend) {
  const int world = number_of("WORLD_SIZE"), of_a_host = number_of("LOCAL_WORLD_SIZE");
  Generator gen(5);
  const Tensor x = randn({160, 2}, gen, Device::cpu());
  data::DataLoader data(data::tensor_dataset({x, slice(x, 1, 0, 1) * slice(x, 1, 1, 2)}),
                        {.batch_size = 32 / world, .shuffle = true, .generator = Generator(9)});
  TrainerOptions options;
  options.logger = false;
  options.enable_checkpointing = options.enable_progress_bar = options.enable_model_summary = false;
  options.max_steps = 20;
  options.devices = of_a_host;
  options.num_nodes = world / of_a_host;
  options.strategy = std::make_shared<DdpStrategy>(DdpOptions{.process = {.backend = backend}});
  // Ranks begin with other weights, of which rank 0's count.
  const auto rank = static_cast<std::uint64_t>(dist::ClusterEnvironment::detect()->global_rank());
  Points module({.gen = Generator(3 + rank), .device = Device::cpu()});
  Trainer(options).fit(module, {.train = data});
  std::string line = "weights of rank " + text(rank) + ":";
  for (const auto& [name, t] : module.state_dict()) {
    for (const float v : t.to_vector<float>()) line += " " + text(v);
  }
  std::puts(line.c_str());
}

void act(std::string_view action, const std::string& value) {
  if (action == "print") {
    for (int i = 0; i < std::stoi(value); ++i) {
      std::printf("out %d\n", i);
      std::fprintf(stderr, "err %d\n", i);
    }
  } else if (action == "env") {
    const char* const text = std::getenv(value.c_str());
    std::printf("%s=%s\n", value.c_str(), text ? text : "");
  } else if (action == "text") {
    std::fprintf(stderr, "%s\n", value.c_str());
  } else if (action == "part") {
    std::fputs(value.c_str(), stdout);
    std::fflush(stdout);
  } else if (action == "ignore-term") {
    std::signal(SIGTERM, SIG_IGN);
  } else if (action == "block-term") {
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    ::sigprocmask(SIG_BLOCK, &term, nullptr);
  } else if (action == "await-term") {
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    int number = 0;
    ::sigwait(&term, &number);
  } else if (action == "child") {
    const pid_t child = ::fork();
    if (child == 0) hang();
    make_file(value, std::to_string(child));
  } else if (action == "pid") {
    make_file(value, std::to_string(::getpid()));
  } else if (action == "mark") {
    make_file(value, "");
  } else if (action == "await") {
    test::await_file(value);
  } else if (action == "read") {
    char line[64] = "nothing\n";
    if (std::fgets(line, sizeof line, stdin) == nullptr)
      std::fputs("end of stdin\n", stdout);
    else
      std::printf("read %s", line);
  } else if (action == "hang") {
    hang();
  } else if (action == "signal") {
    std::raise(std::stoi(value));
  } else if (action == "hold") {
    dist::hold_kill(std::stoi(value));
  } else if (action == "exit") {
    std::exit(std::stoi(value));
  } else if (action == "requeue-once") {
    requeue_once();
  } else if (action == "reduce") {
    const auto world = job_group();
    const Tensor t = full({1000}, world->rank() + 1, Device::cpu());
    world->all_reduce(t).wait();
    std::printf("rank %d of %d: %d\n", world->rank(), world->size(), static_cast<int>(t.to_vector<float>()[999]));
  } else if (action == "reduce-on") {
    const auto world = job_group();
    const Tensor t = zeros({1000}, Device::cpu());
    for (;;) world->all_reduce(t).wait();
  } else if (action == "host") {
    ::setenv("LEVIN_HOST", value.c_str(), 1);
  } else if (action == "fit" || action == "cut-fit") {
    fit(value, action == "cut-fit");
  } else if (action == "train") {
    train(value);
  } else if (action == "threads") {
    std::printf("threads %d\n", num_threads());
  } else {
    std::fprintf(stderr, "ranks: unknown action %s\n", std::string(action).c_str());
    std::exit(98);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    dist::LaunchOptions o;
    int i = 1;
    for (; i + 1 < argc && std::string_view(argv[i]).starts_with("--"); i += 2) {
      if (std::string_view(argv[i]) == "--launch") o.processes = std::stoi(argv[i + 1]);
      if (std::string_view(argv[i]) == "--grace") o.grace = std::stoi(argv[i + 1]);
    }
    auto environment = dist::ClusterEnvironment::detect();
    if (o.processes > 1) environment = dist::launch_script(o);
    for (; i < argc; ++i) {
      std::string_view action = argv[i];
      bool mine = true;
      if (action[0] == '@') {
        const std::size_t end = action.find(':');
        mine = std::stoi(std::string(action.substr(1, end - 1))) == environment->global_rank();
        action.remove_prefix(end + 1);
      }
      const bool has_value = action != "hang" && action != "read" && action != "ignore-term" &&
                             action != "await-term" && action != "block-term" && action != "threads" &&
                             action != "reduce" && action != "reduce-on" && action != "requeue-once";
      const std::string value = has_value && i + 1 < argc ? argv[++i] : "";
      if (mine) act(action, value);
    }
    all_ranks.reset();
    return 0;
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
