#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "levin/train/pipeline_strategy.h"
#include "levin/train/trainer.h"
#include "levin/warning.h"
#include "tensor/core/team.h"
#include "train/run/run.h"
#include "train/strategy/local_devices.h"
#include "train/strategy/parts.h"

namespace levin {
namespace {

using Kind = PipelineSlot::Kind;

std::string list(const std::vector<std::int64_t>& numbers) {
  std::string all;
  for (const std::int64_t n : numbers) all += (all.empty() ? "" : ", ") + text(n);
  return "{" + all + "}";
}
std::int64_t sum_of(const std::vector<std::int64_t>& numbers) {
  std::int64_t n = 0;
  for (const std::int64_t one : numbers) n += one;
  return n;
}

Device device_of(nn::Module& layer, Device otherwise) {
  const std::vector<ParamRef> parameters = layer.parameters();
  if (!parameters.empty()) return parameters.front().value->device();
  const std::vector<nn::BufferRef> buffers = layer.buffers();
  return buffers.empty() ? otherwise : buffers.front().value->device();
}

// Tensors on their way between two stages, by microbatch: activations to the next stage, gradients back. Sending never
// waits.
class Mail {
 public:
  explicit Mail(std::size_t microbatches) : activations_(microbatches), gradients_(microbatches) {}
  void send(Kind kind, std::size_t i, Tensor t) {
    const std::lock_guard lock(mutex_);
    box(kind)[i] = std::move(t);
    changed_.notify_all();
  }
  // Throws Closed after close().
  struct Closed {};
  [[nodiscard]] Tensor take(Kind kind, std::size_t i) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return box(kind)[i].has_value() || closed_; });
    if (!box(kind)[i]) throw Closed();
    return *std::exchange(box(kind)[i], std::nullopt);
  }
  void close() noexcept {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  std::vector<std::optional<Tensor>>& box(Kind kind) { return kind == Kind::forward ? activations_ : gradients_; }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::optional<Tensor>> activations_, gradients_;  // an undefined tensor: no gradient flows back
  bool closed_ = false;
};

// Note [Buffers of microbatches]
// Each microbatch starts from the buffers that the step began with. What the layers then write is averaged by samples,
// and the average is written at the end of the step. Recomputations write too; the end of the step overwrites that.
// Buffers that no layer writes are left alone, because a write would invalidate what autograd saved.
class StepBuffers {
 public:
  explicit StepBuffers(std::vector<Tensor*> all) {
    for (Tensor* t : all) {
      if (t->defined())
        all_.push_back({.value = t, .begin = t->detach().clone(), .mean = {}, .version = version_of(*t)});
    }
  }
  void before_forward() {
    for (One& b : all_) {
      if (!b.mean.defined()) continue;
      copy_(*b.value, b.begin);
      b.version = version_of(*b.value);
    }
  }
  void after_forward(double share) {
    for (One& b : all_) {
      if (version_of(*b.value) == b.version) continue;
      if (!is_float(b.value->dtype())) {
        b.mean = b.value->detach().clone();
      } else {
        const Tensor part = b.value->detach().to(DType::f64) * share;
        b.mean = b.mean.defined() ? b.mean + part : part;
      }
    }
  }
  void end() {
    for (One& b : all_) {
      if (b.mean.defined()) copy_(*b.value, b.mean.to(b.value->dtype()));
    }
  }

 private:
  struct One {
    Tensor* value;
    Tensor begin, mean;
    std::uint32_t version;
  };
  static std::uint32_t version_of(const Tensor& t) { return t.get().storage->version.load(std::memory_order_acquire); }
  std::vector<One> all_;
};

// The output of the whole batch: the mean of the losses by samples or the sum of sums, other outputs one after another.
template <class Share>
StepOutput joined(const std::vector<StepOutput>& outputs, Share&& share_of) {
  Tensor loss, weight;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const bool sums = outputs[i].summed().defined();
    const Tensor one = sums ? outputs[i].summed() : outputs[i].loss() * share_of(i);
    loss = loss.defined() ? loss + one : one;
    if (sums) weight = weight.defined() ? weight + outputs[i].weight() : outputs[i].weight();
  }
  if (weight.defined()) return StepOutput::sum(loss, weight);
  if (outputs[0].outputs().empty()) return loss;
  NamedTensors named{{"loss", loss}};
  for (std::size_t j = 0; j < outputs[0].outputs().size(); ++j) {
    const std::string& name = outputs[0].outputs()[j].first;
    if (name == "loss") continue;
    Tensors parts;
    for (const StepOutput& o : outputs) {
      if (o.outputs().size() != outputs[0].outputs().size() || o.outputs()[j].first != name)
        fail<ConfigError>(
            "fit: strategy pipeline: loss_of returned other outputs for one microbatch than for another; "
            "return the same names for each");
      parts.push_back(o.outputs()[j].second);
    }
    named.emplace_back(
        name, parts[0].rank() == 0 ? stack(std::span<const Tensor>(parts)) : cat(std::span<const Tensor>(parts)));
  }
  return named;
}

}  // namespace

struct PipelineStrategy::Stages {
  struct One {
    Device device = Device::cpu();
    std::int64_t begin = 0, end = 0;  // of its layers
    std::vector<ParamRef> parameters{};
    std::vector<Tensor*> buffers{};
  };
  explicit Stages(int size) : team(size) {}
  detail::Team team;
  PipelineModule* module = nullptr;
  std::vector<One> all;
};

// ---- PipelineModule

void PipelineModule::on_step_output(const StepOutput&) {}
Tensor PipelineModule::operator()(const Tensor& x) {
  nn::Sequential& net = layers();
  Tensor y = x;
  for (std::int64_t i = 0; i < net.size(); ++i) y = net.run(y.to(device_of(net[i], y.device())), i, i + 1);
  return y;
}
StepOutput PipelineModule::whole_step(const Batch& batch) {
  const Tensor y = (*this)(input_of(batch));
  Batch there = batch;
  for (Tensor& t : there.fields) {
    if (t.defined()) t = t.to(y.device());
  }
  StepOutput output = loss_of(y, there);
  on_step_output(output);
  return output;
}
StepOutput PipelineModule::training_step(const Batch& batch, std::int64_t) { return whole_step(batch); }

StepOutput PipelineModule::forward_backward(const Batch& batch) {
  Trainer::Run& run = Trainer::Run::of(trainer());
  if (!run.borrowed.manual)
    fail<StateError>(
        "forward_backward: the module optimizes automatically, where the trainer calls it; let "
        "automatic_optimization() return false");
  if (!run.in_training_step) fail<StateError>("forward_backward: called outside of training_step");
  if (!run.strategy->fuses_backward()) {
    const StepOutput output = whole_step(batch);
    manual_backward(output.loss());
    return train::detached(output);
  }
  const Function<StepOutput(TrainModule&, const Batch&)> forward = [](TrainModule& module, const Batch& b) {
    return module.training_step(b, 0);
  };
  const Function<Tensor(const StepOutput&)> objective = [&run](const StepOutput& output) {
    return run.optimizers.scaled(output.loss());
  };
  run.window.gradients_torn = true;
  StepOutput output = run.strategy->training_step(
      {.module = *this, .batch = batch, .batch_idx = 0, .closes = true, .forward = forward, .objective = objective});
  run.hooks.call(train::hooks::on_before_backward, run.optimizers.scaled(output.loss()));
  run.hooks.call(train::hooks::on_after_backward);
  return output;
}

// ---- The options

PipelineStrategy::PipelineStrategy(PipelineOptions options) : options_(std::move(options)) {
  train::check_local_devices("PipelineStrategy", options_.devices);
  if (options_.microbatches < 1)
    fail<ConfigError>("PipelineStrategy: microbatches is ", options_.microbatches, ", expected 1 or more");
  for (std::size_t s = 0; s < options_.balance.size(); ++s) {
    if (options_.balance[s] < 1)
      fail<ConfigError>("PipelineStrategy: balance is ", list(options_.balance), ", stage ", s, " has ",
                        options_.balance[s], " layers, expected 1 or more");
  }
}
PipelineStrategy::~PipelineStrategy() = default;

void PipelineStrategy::check(const TrainerOptions& o) const {
  const std::size_t devices = train::local_devices("pipeline", options_.devices, o).size();
  if (!options_.balance.empty() && options_.balance.size() != devices)
    fail<ConfigError>("Trainer: strategy pipeline: balance is ", list(options_.balance), ", ", options_.balance.size(),
                      " stages, and there are ", devices, " devices; give one device for each stage");
}
void PipelineStrategy::connect(const TrainerOptions& o) {
  devices_ = train::local_devices("pipeline", options_.devices, o);
  exact_ = o.accumulate_weighting == AccumulateWeighting::exact;
}
std::optional<Device> PipelineStrategy::device() const {
  return devices_.empty() ? std::nullopt : std::optional(devices_.front());
}

// ---- The stages

namespace {

// What each layer costs (AutoBalance), by its pass over the module's example.
std::vector<double> costs_of(PipelineModule& module, const PipelineOptions& options) {
  Batch example = module.example_input();
  if (example.fields.empty())
    fail<ConfigError>("fit: strategy pipeline has no balance, and ", module.type_name(),
                      " has no example_input() to choose one by; override example_input, or give "
                      "PipelineOptions::balance");
  nn::Sequential& net = module.layers();
  const Device device = device_of(net, module.device());
  for (Tensor& t : example.fields) {
    if (t.defined()) t = zeros(t.shape(), device, t.dtype());
  }
  std::vector<std::pair<nn::Module*, bool>> modes;  // in eval mode layers write no buffers and draw no numbers
  net.visit([&](const std::string&, nn::Module& m) { modes.emplace_back(&m, m.is_training()); });
  const train::Scope eval([&] { net.eval(); },
                          [&] {
                            for (const auto& [m, on] : modes) m->set_training_flag(on);
                          });
  std::vector<double> costs;
  Tensor x = module.input_of(example);
  const std::int64_t samples = std::max<std::int64_t>(x.rank() > 0 ? x.size(0) : 1, 1);
  const double microbatch = static_cast<double>(samples) / static_cast<double>(std::min(options.microbatches, samples));
  for (std::int64_t i = 0; i < net.size(); ++i) {
    Tensor y;
    if (options.auto_mode == AutoBalance::by_size) {
      const NoGrad off;
      y = net.run(x, i, i + 1);
      const double latent = static_cast<double>(y.numel()) * static_cast<double>(itemsize(y.dtype()));
      double parameters = 0;
      for (const ParamRef& p : net[i].parameters())
        parameters += static_cast<double>(p.value->numel()) * static_cast<double>(itemsize(p.value->dtype()));
      costs.push_back(latent / static_cast<double>(samples) * microbatch + 2.0 * parameters);
    } else {
      using Clock = std::chrono::steady_clock;
      const Clock::time_point start = Clock::now();
      const std::chrono::duration<double> enough(1.0 / static_cast<double>(net.size()));
      std::int64_t runs = 0;
      do {
        Tensor in = x.detach();
        if (is_float(in.dtype())) in.requires_grad_();
        y = net.run(in, i, i + 1);
        if (y.requires_grad()) {
          Tensors wanted;
          if (in.requires_grad()) wanted.push_back(in);
          for (const ParamRef& p : net[i].parameters()) {
            if (p.value->requires_grad()) wanted.push_back(*p.value);
          }
          const Tensor seed = ones_like(y.detach());
          (void)grad(std::span(&y, 1), wanted, std::span(&seed, 1), {.allow_unused = true});
        }
        Stream::current(device).synchronize();
        ++runs;
      } while (Clock::now() - start < enough);
      costs.push_back(std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(runs));
    }
    x = y.detach();
  }
  return costs;
}

void check_balance(const std::vector<std::int64_t>& balance, std::size_t stages, std::int64_t layers) {
  if (balance.size() != stages)
    fail<ConfigError>("fit: strategy pipeline: balance is ", list(balance), ", ", balance.size(),
                      " stages, and there are ", stages, " devices");
  if (sum_of(balance) != layers)
    fail<ConfigError>("fit: strategy pipeline: balance is ", list(balance), ", ", sum_of(balance),
                      " layers, and layers() has ", layers);
}

}  // namespace

void PipelineStrategy::attach_model(TrainModule& module, nn::Module*, Stage stage) {
  stages_.reset();
  if (stage != Stage::fit) return;
  auto* const net = dynamic_cast<PipelineModule*>(&module);
  if (!net)
    fail<ConfigError>("fit: strategy pipeline shares out the layers of a PipelineModule, and ", module.type_name(),
                      " has no layers(); derive it from PipelineModule");
  nn::Sequential& layers = net->layers();
  const std::size_t p = devices_.size();
  if (layers.size() < static_cast<std::int64_t>(p))
    fail<ConfigError>("fit: strategy pipeline: ", p, " stages and ", layers.size(),
                      " layers, expected a layer or more for each stage");
  if (!options_.balance.empty()) {
    balance_ = options_.balance;
  } else {
    if (balance_.size() != p || sum_of(balance_) != layers.size())
      balance_ = pipeline_balance(costs_of(*net, options_), static_cast<std::int64_t>(p));
    warn("I-TRAIN-BALANCE", WarningCategory::info,
         "fit: strategy pipeline chose PipelineOptions{.balance = " + list(balance_) + "}");
  }
  check_balance(balance_, p, layers.size());

  auto stages = std::make_unique<Stages>(static_cast<int>(p));
  stages->module = net;
  std::int64_t at = 0;
  std::vector<std::pair<std::string, Tensor>> placed;
  std::vector<std::size_t> of;
  for (std::size_t s = 0; s < p; ++s) {
    Stages::One one{.device = devices_[s], .begin = at, .end = at + balance_[s]};
    for (; at < one.end; ++at) {
      for (const ParamRef& r : layers[at].parameters()) {
        const std::string name = layers[at].path() + "." + r.name;
        for (std::size_t k = 0; k < placed.size(); ++k) {
          if (of[k] != s && placed[k].second.shares_storage(*r.value))
            fail<ConfigError>("fit: strategy pipeline: layers of stages ", of[k], " and ", s, " share the parameter ",
                              placed[k].first, " (", name, "); put them into one stage");
        }
        placed.emplace_back(name, *r.value);
        of.push_back(s);
      }
    }
    stages->all.push_back(std::move(one));
  }
  placed.clear();
  // All of the module goes to the last device, where loss_of runs, then each layer to its stage.
  module.to(devices_.back());
  for (Stages::One& one : stages->all) {
    for (std::int64_t i = one.begin; i < one.end; ++i) layers[i].to(one.device);
  }
  for (Stages::One& one : stages->all) {
    for (std::int64_t i = one.begin; i < one.end; ++i) {
      for (const ParamRef& r : layers[i].parameters()) one.parameters.push_back(r);
      for (const nn::BufferRef& b : layers[i].buffers()) one.buffers.push_back(b.value);
    }
  }
  std::vector<const Tensor*> owned;
  for (const Stages::One& one : stages->all) {
    for (const ParamRef& r : one.parameters) owned.push_back(r.value);
  }
  for (const ParamRef& r : module.parameters()) {  // of loss_of
    if (std::find(owned.begin(), owned.end(), r.value) == owned.end()) stages->all.back().parameters.push_back(r);
  }
  stages_ = std::move(stages);
}
void PipelineStrategy::detach() noexcept { stages_.reset(); }

// Note [A step of stages]
// One loop runs any schedule: each stage's thread takes its passes in their order, and waits for what the pass needs.
// A microbatch enters a stage as a leaf, so its backward pass ends there; the leaf's gradient goes to the stage before.
// Gradients of parameters are added in the stage's order and reach the leaves once, when the step is complete, so hooks
// see whole gradients and an error leaves none.
StepOutput PipelineStrategy::training_step(const StepCall& call) {
  if (!stages_) fail<StateError>("PipelineStrategy: training_step is called outside of a fit of a module");
  Stages& all = *stages_;
  const std::size_t p = all.all.size();
  const std::vector<train::Part> parts = train::cut("pipeline", call.batch, options_.microbatches);
  const std::size_t m = parts.size();
  std::int64_t samples = 0;
  for (const train::Part& part : parts) samples += part.samples;
  const auto share_of = [&](std::size_t i) {
    return static_cast<double>(parts[i].samples) / static_cast<double>(samples);
  };
  const auto slots = pipeline_slots(options_.schedule, static_cast<std::int64_t>(p), static_cast<std::int64_t>(m));
  std::vector<std::unique_ptr<Mail>> mail;  // between stage s and s + 1
  for (std::size_t s = 0; s + 1 < p; ++s) mail.push_back(std::make_unique<Mail>(m));
  std::vector<StepOutput> outputs(m);  // without history
  std::vector<Tensors> gradients(p);
  nn::Sequential& layers = all.module->layers();

  const auto run_stage = [&](std::size_t s) {
    const Stages::One& stage = all.all[s];
    const bool first = s == 0, last = s + 1 == p;
    std::vector<Tensor> in(m), out(m);
    Tensors trained;
    for (const ParamRef& r : stage.parameters) {
      if (r.value->requires_grad()) trained.push_back(*r.value);
    }
    Tensors sums(trained.size());
    StepBuffers buffers(stage.buffers);
    for (const PipelineSlot& slot : slots[s]) {
      const auto i = static_cast<std::size_t>(slot.microbatch);
      if (slot.kind == Kind::forward) {
        in[i] = (first ? all.module->input_of(parts[i].batch) : mail[s - 1]->take(Kind::forward, i))
                    .detach()
                    .to(stage.device);
        if (!first && is_float(in[i].dtype())) in[i].requires_grad_();
        {
          const NoGrad off;
          buffers.before_forward();
        }
        const bool again = options_.checkpoint == PipelineCheckpoint::always ||
                           (options_.checkpoint == PipelineCheckpoint::except_last && i + 1 < m);
        const auto pass = [&layers, begin = stage.begin, end = stage.end](std::span<const Tensor> x) {
          return Tensors{layers.run(x[0], begin, end)};
        };
        const Tensor y =
            again ? checkpoint(pass, std::span<const Tensor>(&in[i], 1))[0] : layers.run(in[i], stage.begin, stage.end);
        {
          const NoGrad off;
          buffers.after_forward(share_of(i));
        }
        if (!last) {
          out[i] = y;
          mail[s]->send(Kind::forward, i, y.detach().to(all.all[s + 1].device));
          continue;
        }
        Batch there = parts[i].batch;
        for (Tensor& t : there.fields) {
          if (t.defined()) t = t.to(stage.device);
        }
        const StepOutput output = all.module->loss_of(y, there);
        if (!output.loss().defined())
          fail<StateError>("fit: strategy pipeline: loss_of returned nothing; return a loss for each microbatch");
        if (output.weight().defined() && !exact_)
          fail<ConfigError>(
              "fit: strategy pipeline: loss_of returned a sum and its weight, and accumulate_weighting is per_batch; "
              "take exact, because the weight of a batch is known after its last microbatch, or return a mean");
        const Tensor objective = call.objective(output);
        out[i] = exact_ ? objective : objective * share_of(i);
        outputs[i] = train::detached(output);
      } else if (slot.kind == Kind::backward) {
        const Autocast off = Autocast::off();  // backward is not run under it
        const Tensor seed = last ? ones_like(out[i].detach()) : mail[s]->take(Kind::backward, i);
        Tensors wanted = trained;
        const bool returns = in[i].requires_grad();
        if (returns) wanted.push_back(in[i]);
        Tensors got(wanted.size());
        if (last && !out[i].requires_grad()) levin::backward(out[i]);  // throws, with its reason
        if (seed.defined() && out[i].requires_grad() && !wanted.empty())
          got = grad(std::span(&out[i], 1), wanted, std::span(&seed, 1), {.allow_unused = true});
        const NoGrad no_history;
        if (!first) {
          const Tensor back = returns ? got.back() : Tensor();
          mail[s - 1]->send(Kind::backward, i, back.defined() ? back.to(all.all[s - 1].device) : back);
        }
        for (std::size_t k = 0; k < sums.size(); ++k) {
          if (got[k].defined()) sums[k] = sums[k].defined() ? sums[k] + got[k] : got[k];
        }
        in[i] = out[i] = Tensor();
      }
    }
    const NoGrad off;
    buffers.end();
    gradients[s] = std::move(sums);
  };

  train::InStep inside([&]() -> StepOutput {
    const train::SameAutocast autocast;
    std::exception_ptr cause;
    std::mutex mutex;
    // The last stage, with the loss and what the module logs, runs on this thread.
    all.team.run([&](int member) {
      const std::size_t s = (static_cast<std::size_t>(member) + p - 1) % p;
      try {
        autocast.run([&] { run_stage(s); });
      } catch (const Mail::Closed&) {  // of another stage's error
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!cause) cause = std::current_exception();
        for (const auto& box : mail) box->close();
      }
    });
    if (cause) std::rethrow_exception(cause);
    const NoGrad off;
    StepOutput whole = joined(outputs, share_of);
    all.module->on_step_output(whole);
    return whole;
  });
  const StepOutput whole = call.forward(inside, call.batch);

  std::vector<Edge> edges;
  Tensors given;
  for (std::size_t s = 0; s < p; ++s) {
    std::size_t k = 0;
    for (const ParamRef& r : all.all[s].parameters) {
      if (!r.value->requires_grad() || k >= gradients[s].size()) continue;
      if (Tensor& g = gradients[s][k++]; g.defined()) {
        edges.push_back(edge_of(*r.value));
        given.push_back(std::move(g));
      }
    }
  }
  detail::run_backward(edges, std::move(given), {}, /*retain_graph=*/false, /*create_graph=*/false);
  return whole;
}

std::string PipelineStrategy::prevents_capture() const {
  return "strategy pipeline runs a step on several devices by threads";
}

}  // namespace levin
