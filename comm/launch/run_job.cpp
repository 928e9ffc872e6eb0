// levin-run's work: ranks that are started from outside.
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "comm/launch/job_variables.h"
#include "comm/launch/nodelist.h"
#include "comm/launch/supervisor.h"
#include "comm/launch/variables.h"
#include "levin/comm/launch.h"
#include "levin/error.h"

namespace levin::dist {
namespace {

constexpr std::array kForwarded = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

// The signals of kForwarded come by a descriptor while it lives.
class TakenSignals {
 public:
  TakenSignals() {
    sigemptyset(&set_);
    for (const int number : kForwarded) sigaddset(&set_, number);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~TakenSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  TakenSignals(const TakenSignals&) = delete;
  TakenSignals& operator=(const TakenSignals&) = delete;
  [[nodiscard]] Fd open() const {
    return above_stderr(::signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK), "no signalfd");
  }

 private:
  sigset_t set_{}, before_{};
};

struct Outcome {
  int code = 0;
  bool interrupted = false;
};

Outcome run_once(const RunOptions& o, const JobShape& job) {
  const TakenSignals taken;
  Supervisor ranks("levin-run", Output::To::descriptors, o.grace);
  ranks.signals = taken.open();
  Outcome outcome;
  ranks.on_signal = [&](int number) {
    const bool ends = number == SIGINT || number == SIGTERM;
    if (ends && std::exchange(outcome.interrupted, true)) return ranks.kill();
    ranks.forward(number);
  };
  const VariableList variables = job_variables(job);
  const std::string hold = ranks.hold_variable();
  const std::size_t equals = hold.find('=');
  std::vector<std::string> command = o.command;
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  for (int local = 0; local < o.processes; ++local) {
    VariableList changes = variables;
    for (auto& entry : rank_variables(job, local)) changes.push_back(std::move(entry));
    changes.emplace_back(hold.substr(0, equals), hold.substr(equals + 1));
    const EnvironmentBlock environment(changes);
    const int rank = job.node_rank * job.processes + local;
    ranks.fork_rank(rank, rank == 0 ? Supervisor::Streams::first : Supervisor::Streams::prefixed, [&] {
      ::execvpe(argv[0], argv.data(), environment.get());
      const std::string why = "cannot start " + o.command[0] + ": " + std::strerror(errno) + "\n";
      write_all(STDERR_FILENO, why);
      return 127;
    });
  }
  ranks.output().start();
  ranks.run();
  if (const auto first = ranks.failure()) {
    outcome.code = first->code;
    ranks.output().print(ranks.report(o.processes - 1));
  }
  return outcome;
}

}  // namespace

int run_job(const RunOptions& o) {
  if (o.processes < 1 || o.processes > 4096 || o.nodes < 1 || o.nodes > kMostRanks / o.processes) {
    fail<ConfigError>("levin-run: processes is ", o.processes, " (expected 1 to 4096), nodes ", o.nodes,
                      " (1 or more)");
  }
  if (o.node_rank < 0 || o.node_rank >= o.nodes) {
    fail<ConfigError>("levin-run: the node's number is ", o.node_rank, ", expected 0 to ", o.nodes - 1);
  }
  if (o.max_restarts < 0) fail<ConfigError>("levin-run: max_restarts is ", o.max_restarts, ", expected 0 or more");
  if (!(o.grace >= 0)) fail<ConfigError>("levin-run: grace is ", o.grace, " seconds, expected 0 or more");
  if (o.command.empty() || o.command[0].empty()) fail<ConfigError>("levin-run: no program is given");
  JobShape job{.launcher = "levin-run", .processes = o.processes, .nodes = o.nodes, .node_rank = o.node_rank};
  if (!o.rendezvous.empty()) {
    const std::size_t colon = o.rendezvous.rfind(':');
    // Port 0 is none, as text that is no number.
    const std::int64_t port =
        colon == std::string::npos ? 0 : read_count(o.rendezvous.substr(colon + 1), kMostPort).value_or(0);
    if (port == 0 || colon == 0) {
      fail<ConfigError>("levin-run: the rendezvous is \"", o.rendezvous, "\", expected HOST:PORT");
    }
    job.address = o.rendezvous.substr(0, colon);
    job.port = static_cast<int>(port);
  } else if (o.nodes > 1) {
    fail<ConfigError>("levin-run: ", o.nodes, " nodes need a rendezvous, HOST:PORT of node 0");
  }
  name_job(job);
  while (true) {
    // A port of its own for each start: ranks of the one before may still hold connections.
    const auto port = o.rendezvous.empty() ? std::make_unique<HeldPort>() : nullptr;
    if (port) job.port = port->port();
    const Outcome outcome = run_once(o, job);
    if (outcome.code == 0 || outcome.interrupted || job.restarts >= o.max_restarts) return outcome.code;
    ++job.restarts;
    write_all(STDERR_FILENO,
              "levin-run: restart " + std::to_string(job.restarts) + " of " + std::to_string(o.max_restarts) + "\n");
  }
}

}  // namespace levin::dist
