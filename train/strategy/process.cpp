// What strategies of several processes share: Note [Equal modules].
#include "levin/train/process_strategy.h"

#include <algorithm>
#include <array>
#include <exception>
#include <typeinfo>
#include <utility>

#include "comm/group/nccl.h"
#include "comm/job/job.h"
#include "levin/autograd.h"
#include "levin/comm/launch.h"
#include "levin/ops.h"
#include "levin/train/precision_plugin.h"
#include "levin/train/profiler.h"
#include "tensor/errors/warn.h"
#include "tensor/text/type_name.h"
#include "train/checkpoint/rank_states.h"
#include "train/logs/metric_log.h"
#include "train/options/accelerators.h"
#include "train/strategy/flat_copies.h"
#include "train/strategy/names.h"

namespace levin {

ProcessStrategy::ProcessStrategy(ProcessOptions options) : options_(std::move(options)) {}
ProcessStrategy::~ProcessStrategy() = default;

void ProcessStrategy::check(const TrainerOptions& o) const {
  const bool cuda = train::ranks_have_cuda(o);
  if (!cuda && o.devices.is_list())
    fail<ConfigError>("Trainer: devices is the list ", text(o.devices),
                      " and the accelerator is the CPU, where devices counts processes; give a number");
  const int there = cuda ? device_count(DeviceType::cuda) : 0;
  for (const int i : o.devices.indices()) {
    if (i >= there)
      fail<ConfigError>("Trainer: devices lists ", i, ", and there are ", there, " CUDA devices, 0 to ", there - 1);
  }
  const bool by_nccl = options_.backend.find("nccl") != std::string::npos;
  if (by_nccl && !cuda)
    fail<ConfigError>("Trainer: strategy ", name(), " has backend \"", options_.backend,
                      "\", and NCCL connects CUDA devices; set accelerator = \"cuda\", or leave the backend out");
  if (options_.launcher != Launcher::spawn) return;
  const auto refuse = [](const auto&... what) {
    fail<ConfigError>("Trainer: the strategy starts copies of this process (ddp_spawn), and ", what...,
                      "; use ddp, whose processes run the program again");
  };
  const std::optional<Device> where = train::accelerator_device(o);
  if (o.num_nodes.value() > 1) refuse("num_nodes is ", o.num_nodes.value(), ", where copies are of one node");
  if (cuda && !where) refuse("devices lists CUDA devices, whose driver does not survive a fork");
  if (where && !where->is_cpu()) refuse("accelerator is \"", o.accelerator, "\", whose driver does not survive a fork");
  if (o.plugins.environment) refuse("plugins has the environment ", o.plugins.environment->name());
  if (options_.group) refuse("its options have ranks that are connected");
}

namespace {

// The backends of a run on CUDA devices.
std::string with_nccl(const std::string& backend) {
  if (backend == "nccl") return "cpu:auto,cuda:nccl";
  return backend.find("cuda:") == std::string::npos ? "cpu:" + backend + ",cuda:nccl" : backend;
}

// The processes of a node that the options ask for.
std::int64_t processes_of(const TrainerOptions& o) {
  if (o.devices.is_list()) return static_cast<std::int64_t>(o.devices.indices().size());
  return o.devices.count().value_or(train::ranks_have_cuda(o) ? device_count(DeviceType::cuda) : 1);
}

// The options that decide what a rank does, a line each: ranks that differ here would wait for each other in vain.
std::string agreement_of(const TrainerOptions& o, std::string_view strategy) {
  std::string lines;
  const auto line = [&](const char* name, const std::string& value) {
    lines += std::string(name) + " " + value + "\n";
  };
  const auto optional = [&](const char* name, const auto& value) { line(name, value ? text(*value) : "unset"); };
  const auto flag = [&](const char* name, bool on) { line(name, on ? "on" : "off"); };
  const auto words_of = [](const Portion& p) { return p.is_fraction() ? text(p.fraction()) : text(p.count()); };
  const auto portion = [&](const char* name, const std::optional<Portion>& p) {
    line(name, p ? words_of(*p) : "unset");
  };
  line("strategy", std::string(strategy));
  line("num_nodes", text(o.num_nodes.value()));
  optional("max_epochs", o.max_epochs);
  optional("min_epochs", o.min_epochs);
  line("max_steps", text(o.max_steps));
  optional("min_steps", o.min_steps);
  line("fast_dev_run", text(o.fast_dev_run));
  portion("limit_train_batches", o.limit_train_batches);
  portion("limit_val_batches", o.limit_val_batches);
  portion("limit_test_batches", o.limit_test_batches);
  portion("limit_predict_batches", o.limit_predict_batches);
  portion("overfit_batches", o.overfit_batches);
  if (const auto& every = o.val_check_interval)
    line("val_check_interval", every->time() ? text(every->time()->seconds()) + " s" : words_of(every->portion()));
  optional("check_val_every_n_epoch", o.check_val_every_n_epoch);
  optional("num_sanity_val_steps", o.num_sanity_val_steps);
  line("accumulate_grad_batches", text(o.accumulate_grad_batches));
  line("accumulate_weighting", o.accumulate_weighting == AccumulateWeighting::exact ? "exact" : "per_batch");
  line("precision", o.plugins.precision ? o.plugins.precision->name() : o.precision + o.amp_level);
  optional("gradient_clip_val", o.gradient_clip_val);
  line("gradient_clip_algorithm", o.gradient_clip_algorithm == ClipAlgorithm::value ? "value" : "norm");
  flag("sync_batchnorm", o.sync_batchnorm || o.plugins.layer_sync);
  flag("use_distributed_sampler", o.use_distributed_sampler);
  line("reload_dataloaders_every_n_epochs", text(o.reload_dataloaders_every_n_epochs));
  return lines;
}

}  // namespace

void ProcessStrategy::connect(const TrainerOptions& o) {
  if (group_) {
    if (!job_) return;
    job_->note().set_phase(dist::Phase::setup);
    job_->agreed_to_end(false);  // of an earlier stage
    return;
  }
  if (runs_in_copies()) {  // what is no stage runs in this process
    group_ = dist::single_process_group();
  } else if (options_.group) {
    group_ = options_.group;
    job_ = dist::Job::of(*group_);
    const int rank = group_->rank(), size = group_->size();
    ranks_ = {.rank = rank, .size = size, .local_rank = rank, .local_size = size};
  } else {
    std::shared_ptr<dist::ClusterEnvironment> environment = o.plugins.environment;
    if (!environment) environment = dist::ClusterEnvironment::detect();
    const auto nodes = static_cast<int>(o.num_nodes.value());
    // Without a number each node has as many processes as something else has started there.
    const bool told = o.devices.count() || o.devices.is_list() || !environment->creates_processes_externally();
    const auto processes = static_cast<int>(told ? processes_of(o) : environment->world_size() / nodes);
    if (environment->creates_processes_externally())
      environment->validate(processes, nodes);
    else if (std::int64_t{processes} * nodes > 1)
      environment = dist::launch_script({.processes = processes, .nodes = nodes});
    const bool cuda = train::ranks_have_cuda(o);
    const int local = environment->local_rank();
    const std::vector<int>& listed = o.devices.indices();
    const int index = cuda && std::cmp_less(local, listed.size()) ? listed[static_cast<std::size_t>(local)] : -1;
    if (cuda) device_ = dist::nccl_device(local, index);
    group_ = dist::init_process_group({.backend = cuda ? with_nccl(options_.backend) : options_.backend,
                                       .environment = environment,
                                       .timeout = options_.timeout,
                                       .rendezvous_timeout = options_.rendezvous_timeout,
                                       .silence = options_.silence,
                                       .agreement = agreement_of(o, name()),
                                       .cuda_device = index});
    job_ = dist::Job::of(*group_);
    ranks_ = {.rank = group_->rank(),
              .size = group_->size(),
              .local_rank = environment->local_rank(),
              .local_size = group_->size() / nodes,
              .node = std::max(0, environment->node_rank()),
              .nodes = nodes};
    detail::print_warnings(ranks_.rank == 0);  // Note [Warnings of ranks]
  }
  if (job_) job_->note().set_phase(dist::Phase::setup);
  control_ = group_;
  votes_ = zeros({4}, Device::cpu(), DType::u8);
}

bool ProcessStrategy::runs_in_copies() const { return options_.launcher == Launcher::spawn && !in_copy_; }

std::string ProcessStrategy::run_in_copies(const TrainerOptions& o, const Function<std::string()>& stage) {
  if (!runs_in_copies()) return stage();
  if (const auto other = dist::ClusterEnvironment::detect(); other->creates_processes_externally())
    fail<ConfigError>("Trainer: the strategy starts copies of this process (ddp_spawn), which ", other->name(),
                      " has started as a rank of a job; use ddp, which joins that job");
  const auto body = [&](int rank) {
    in_copy_ = true;
    group_ = control_ = nullptr;  // of the caller alone
    ranks_ = {};
    // The other ranks wait for this one's farewell.
    struct Leave {
      ProcessStrategy& of;
      ~Leave() { of.leave(); }
    } const at_end{*this};
    std::string result = stage();
    return rank == 0 ? result : std::string();
  };
  return dist::spawn(static_cast<int>(processes_of(o)), body).front();
}

void ProcessStrategy::leave() noexcept {
  control_.reset();
  group_.reset();
  job_.reset();
}

Votes ProcessStrategy::vote(const Votes& mine) {
  auto* const cells = votes_.mutable_data<std::uint8_t>();
  cells[0] = mine.stop;
  cells[1] = mine.skip;
  cells[2] = mine.no_data;
  cells[3] = mine.signal;
  control_->all_reduce_now(votes_, dist::ReduceOp::max);
  return {.stop = cells[0], .skip = cells[1], .no_data = cells[2], .signal = cells[3]};
}
std::vector<std::string> ProcessStrategy::gather(std::string_view mine) { return control_->gather_text(mine); }
std::string ProcessStrategy::from_rank_zero(std::string_view mine) { return control_->broadcast_text(mine); }
void ProcessStrategy::all_reduce(const Tensor& t, dist::ReduceOp op) {
  (t.device().is_cpu() ? control_ : group_)->all_reduce_now(t, op);
}
void ProcessStrategy::barrier() { control_->barrier(); }

namespace {

// Note [Equal modules]
// Ranks build their modules themselves, from the same program and seed. Before a stage they compare what they have, as
// one line a tensor, and then take rank 0's values: a random first value, or a file that one rank read, cannot make the
// ranks differ. Buffers that no file has are among them; states of metrics are not, because each rank has its own. Of
// generators other ranks take a fork (Note [Random numbers of ranks] in checkpoint/rank_states.h).
std::string list_of(const NamedTensors& tensors) {
  std::string lines;
  for (const auto& [name, t] : tensors) lines += name + " " + text(t.dtype()) + " " + text(t.shape()) + "\n";
  return lines;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

void check_equal(const std::vector<std::string>& lists) {
  for (std::size_t r = 1; r < lists.size(); ++r) {
    if (lists[r] == lists[0]) continue;
    const std::vector<std::string> first = lines_of(lists[0]), other = lines_of(lists[r]);
    std::size_t i = 0;
    while (i < first.size() && i < other.size() && first[i] == other[i]) ++i;
    const auto line = [&](const std::vector<std::string>& of) {
      return i < of.size() ? of[i] : std::string("nothing");
    };
    fail<CommError>("fit: the modules of rank 0 and rank ", r, " differ: tensor ", i, " is \"", line(first),
                    "\" on rank 0 and \"", line(other), "\" on rank ", r, "; build the same module on every rank");
  }
}

}  // namespace

void ProcessStrategy::attach_model(TrainModule&, nn::Module* tree, Stage) {
  if (!tree) return;
  const NoGrad off;
  NamedTensors tensors = tree->state_dict();
  for (const nn::BufferRef& b : train::buffers_of_model(tree)) {
    if (b.persistent == nn::Persistent::no) tensors.emplace_back(b.name, *b.value);
  }
  std::vector<std::pair<std::string, Generator*>> generators = tree->generators();
  std::string list = list_of(tensors);
  for (const auto& [name, g] : generators) list += name + " generator\n";
  check_equal(gather(list));
  train::broadcast(*group_, tensors);
  std::string states;
  for (const auto& [name, g] : generators) {
    const RandomRange s = g->state();
    states.append(reinterpret_cast<const char*>(&s), sizeof s);
  }
  const std::string firsts = from_rank_zero(states);
  for (std::size_t i = 0; i < generators.size(); ++i) {
    RandomRange s;
    std::copy_n(firsts.data() + i * sizeof s, sizeof s, reinterpret_cast<char*>(&s));
    generators[i].second->set_state(train::random_numbers_of_rank(*this, s));
  }
}

namespace {

// By levin::Phase.
constexpr std::array kJobPhases = {dist::Phase::loop,       dist::Phase::data,      dist::Phase::forward,
                                   dist::Phase::backward,   dist::Phase::optimizer, dist::Phase::collective,
                                   dist::Phase::collective, dist::Phase::hooks,     dist::Phase::validation,
                                   dist::Phase::save,       dist::Phase::logging};
static_assert(kJobPhases.size() == kPhases);

}  // namespace

// While an exception leaves phases, the note keeps the one in which it was thrown.
void ProcessStrategy::entered(Phase phase, std::int64_t global_step) noexcept {
  if (job_ && std::uncaught_exceptions() == 0)
    job_->note().set(kJobPhases[static_cast<std::size_t>(phase)], global_step);
}

void ProcessStrategy::failed(const std::exception& error) noexcept {
  if (!control_) return;
  if (!job_) return control_->abort(error.what());
  // A signal to this rank alone may be a launcher's, which ends the survivors of another rank before they know of it.
  if (dynamic_cast<const InterruptedError*>(&error) != nullptr) (void)job_->await_verdict(0.3);
  if (job_->alarm()->raised()) return;  // another rank's failure ends this one, too
  try {
    job_->failed(detail::type_name(typeid(error)) + ": " + error.what());
  } catch (const std::exception&) {  // no memory for the text
    job_->failed("an exception ended its stage");
  }
}

void ProcessStrategy::interrupted() noexcept {
  if (job_) job_->agreed_to_end(true);
}

bool ProcessStrategy::is_rescuer() const {
  if (!job_ || !job_->alarm()->raised()) return false;
  const dist::Verdict verdict = job_->alarm()->verdict();
  if (verdict.writer >= 0) return verdict.writer == ranks_.rank;
  return verdict.rank == 0 && (ranks_.rank == 1 || (ranks_.local_rank == 0 && ranks_.rank != 0));
}

}  // namespace levin
