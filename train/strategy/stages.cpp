#include "train/strategy/stages.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "levin/train/trainer.h"
#include "levin/warning.h"
#include "train/logs/metric_log.h"
#include "train/run/scope.h"

namespace levin {
namespace {

using Kind = PipelineSlot::Kind;

std::int64_t sum_of(const std::vector<std::int64_t>& numbers) {
  std::int64_t n = 0;
  for (const std::int64_t one : numbers) n += one;
  return n;
}

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

// What each layer costs (AutoBalance), by its pass over the module's example.
std::vector<double> costs_of(PipelineModule& module, const PipelineOptions& options, train::PipelineWords words) {
  Batch example = module.example_input();
  if (example.fields.empty())
    fail<ConfigError>("fit: strategy ", words.strategy, " has no balance, and ", module.type_name(),
                      " has no example_input() to choose one by; override example_input, or give "
                      "PipelineOptions::balance");
  nn::Sequential& net = module.layers();
  const Device device = train::device_of_layer(net, module.device());
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
    x = x.to(train::device_of_layer(net[i], x.device()));  // an earlier fit may have placed the layers
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
        Stream::current(x.device()).synchronize();
        ++runs;
      } while (Clock::now() - start < enough);
      costs.push_back(std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(runs));
    }
    x = y.detach();
  }
  return costs;
}

}  // namespace

train::StageLinks::~StageLinks() = default;

// ---- Fits whose stages are ranks

namespace {

struct Fits {
  std::atomic<std::size_t> count{0};  // a call of a module outside of such fits takes no lock
  std::mutex mutex;
  std::map<const PipelineModule*, PipelineRanksStrategy*> all;
};
Fits& fits() {
  static Fits one;
  return one;
}

}  // namespace

PipelineRanksStrategy* train::ranks_of(const PipelineModule& module) {
  Fits& f = fits();
  if (f.count == 0) return nullptr;
  const std::lock_guard lock(f.mutex);
  const auto at = f.all.find(&module);
  return at == f.all.end() ? nullptr : at->second;
}
void train::set_ranks_of(const PipelineModule& module, PipelineRanksStrategy* strategy) {
  Fits& f = fits();
  const std::lock_guard lock(f.mutex);
  if (strategy)
    f.all[&module] = strategy;
  else
    f.all.erase(&module);
  f.count = f.all.size();
}

// ---- The options

void train::check_pipeline(const char* op, const PipelineOptions& options) {
  if (options.microbatches < 1)
    fail<ConfigError>(op, ": microbatches is ", options.microbatches, ", expected 1 or more");
  for (std::size_t s = 0; s < options.balance.size(); ++s) {
    if (options.balance[s] < 1)
      fail<ConfigError>(op, ": balance is ", balance_words(options.balance), ", stage ", s, " has ", options.balance[s],
                        " layers, expected 1 or more");
  }
}

// ---- The layers

std::string train::balance_words(const std::vector<std::int64_t>& balance) {
  std::string all;
  for (const std::int64_t n : balance) all += (all.empty() ? "" : ", ") + text(n);
  return "{" + all + "}";
}

Device train::device_of_layer(nn::Module& layer, Device otherwise) {
  const std::vector<ParamRef> parameters = layer.parameters();
  if (!parameters.empty()) return parameters.front().value->device();
  const std::vector<nn::BufferRef> buffers = layer.buffers();
  return buffers.empty() ? otherwise : buffers.front().value->device();
}

PipelineModule& train::pipeline_module(TrainModule& module, std::size_t stages, PipelineWords words) {
  auto* const net = dynamic_cast<PipelineModule*>(&module);
  if (!net)
    fail<ConfigError>("fit: strategy ", words.strategy, " shares out the layers of a PipelineModule, and ",
                      module.type_name(), " has no layers(); derive it from PipelineModule");
  if (const std::int64_t layers = net->layers().size(); layers < static_cast<std::int64_t>(stages))
    fail<ConfigError>("fit: strategy ", words.strategy, ": ", stages, " stages and ", layers,
                      " layers, expected a layer or more for each stage");
  return *net;
}

void train::check_balance(const std::vector<std::int64_t>& balance, std::size_t stages, std::int64_t layers,
                          PipelineWords words) {
  if (balance.size() != stages)
    fail<ConfigError>("fit: strategy ", words.strategy, ": balance is ", balance_words(balance), ", ", balance.size(),
                      " stages, and there are ", stages, " ", words.places);
  if (sum_of(balance) != layers)
    fail<ConfigError>("fit: strategy ", words.strategy, ": balance is ", balance_words(balance), ", ", sum_of(balance),
                      " layers, and layers() has ", layers);
}

std::vector<std::int64_t> train::chosen_balance(PipelineModule& module, const PipelineOptions& options,
                                                std::size_t stages, PipelineWords words) {
  return pipeline_balance(costs_of(module, options, words), static_cast<std::int64_t>(stages));
}
void train::tell_balance(const std::vector<std::int64_t>& balance, PipelineWords words) {
  warn("I-TRAIN-BALANCE", WarningCategory::info,
       "fit: strategy " + std::string(words.strategy) + " chose PipelineOptions{.balance = " + balance_words(balance) +
           "}");
}

std::vector<train::PipelineStage> train::stages_of(PipelineModule& module, const std::vector<std::int64_t>& balance,
                                                   PipelineWords words) {
  nn::Sequential& layers = module.layers();
  std::vector<PipelineStage> all;
  std::vector<std::pair<std::string, Tensor>> placed;
  std::vector<std::size_t> of;
  std::vector<const void*> owned;
  std::int64_t at = 0;
  for (std::size_t s = 0; s < balance.size(); ++s) {
    PipelineStage stage{.begin = at, .end = at + balance[s]};
    for (; at < stage.end; ++at) {
      for (const ParamRef& r : layers[at].parameters()) {
        const std::string name = layers[at].path() + "." + r.name;
        for (std::size_t k = 0; k < placed.size(); ++k) {
          if (of[k] != s && placed[k].second.shares_storage(*r.value))
            fail<ConfigError>("fit: strategy ", words.strategy, ": layers of stages ", of[k], " and ", s,
                              " share the parameter ", placed[k].first, " (", name, "); put them into one stage");
        }
        placed.emplace_back(name, *r.value);
        of.push_back(s);
        stage.parameters.push_back(r);
        owned.push_back(r.value);
      }
      for (const nn::BufferRef& b : layers[at].buffers()) {
        stage.buffers.push_back(b.value);
        owned.push_back(b.value);
      }
      for (const auto& [name, g] : layers[at].generators()) {
        stage.generators.push_back(g);
        owned.push_back(g);
      }
    }
    all.push_back(std::move(stage));
  }
  const auto is_new = [&](const void* p) { return std::find(owned.begin(), owned.end(), p) == owned.end(); };
  for (const ParamRef& r : module.parameters()) {  // of loss_of
    if (!is_new(r.value)) continue;
    for (std::size_t k = 0; k < placed.size(); ++k) {
      if (of[k] + 1 != balance.size() && placed[k].second.shares_storage(*r.value))
        fail<ConfigError>("fit: strategy ", words.strategy, ": a layer of stage ", of[k],
                          " and the last stage share the parameter ", placed[k].first, " (", r.name,
                          "); put them into one stage");
    }
    all.back().parameters.push_back(r);
  }
  for (const nn::BufferRef& b : buffers_of_model(&module)) {
    if (is_new(b.value)) all.back().buffers_of_loss.push_back(b.value);
  }
  for (const auto& [name, g] : module.generators()) {
    if (is_new(g)) all.back().generators.push_back(g);
  }
  return all;
}

// ---- A step

double train::PipelineStep::share_of(std::size_t i) const {
  std::int64_t samples = 0;
  for (const Part& part : parts) samples += part.samples;
  return static_cast<double>(parts[i].samples) / static_cast<double>(samples);
}

StepOutput train::joined(const PipelineStep& step, const std::vector<StepOutput>& outputs) {
  const NoGrad off;
  Tensor loss, weight;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const bool sums = outputs[i].summed().defined();
    const Tensor one = sums ? outputs[i].summed() : outputs[i].loss() * step.share_of(i);
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
            "fit: strategy ", step.words.strategy,
            ": loss_of returned other outputs for one microbatch than for another; return the same names for each");
      parts.push_back(o.outputs()[j].second);
    }
    named.emplace_back(
        name, parts[0].rank() == 0 ? stack(std::span<const Tensor>(parts)) : cat(std::span<const Tensor>(parts)));
  }
  return named;
}

namespace {

// The leaves that a stage trains, each once: its layers may share one.
Tensors trained_of(const train::PipelineStage& stage) {
  Tensors all;
  std::set<const void*> taken;
  for (const ParamRef& r : stage.parameters) {
    if (r.value->requires_grad() && taken.insert(r.value->impl()).second) all.push_back(*r.value);
  }
  return all;
}

}  // namespace

Tensors train::run_stage(const PipelineStep& step, const PipelineStage& stage, std::size_t s, std::size_t p,
                         StageLinks& links, std::vector<StepOutput>& outputs) {
  const std::size_t m = step.parts.size();
  const bool first = s == 0, last = s + 1 == p;
  const PipelineCheckpoint policy = step.options.checkpoint;
  const auto slots = pipeline_slots(step.options.schedule, static_cast<std::int64_t>(p), static_cast<std::int64_t>(m));
  nn::Sequential& layers = step.module.layers();
  std::vector<Tensor> in(m), out(m);
  const Tensors trained = trained_of(stage);
  Tensors sums(trained.size());
  StepBuffers buffers(stage.buffers);
  const auto forward = [&](std::size_t i) {
    in[i] = (first ? step.module.input_of(step.parts[i].batch) : links.take_input(i)).detach().to(stage.device);
    if (!first && is_float(in[i].dtype())) in[i].requires_grad_();
    {
      const NoGrad off;
      buffers.before_forward();
    }
    const bool again = policy == PipelineCheckpoint::always || (policy == PipelineCheckpoint::except_last && i + 1 < m);
    const auto pass = [&layers, begin = stage.begin, end = stage.end](std::span<const Tensor> x) {
      return Tensors{layers.run(x[0], begin, end)};
    };
    const Tensor y =
        again ? checkpoint(pass, std::span<const Tensor>(&in[i], 1))[0] : layers.run(in[i], stage.begin, stage.end);
    {
      const NoGrad off;
      buffers.after_forward(step.share_of(i));
    }
    if (!last) {
      out[i] = y;
      return links.give_output(i, y.detach());
    }
    Batch there = step.parts[i].batch;
    for (Tensor& t : there.fields) {
      if (t.defined()) t = t.to(stage.device);
    }
    const StepOutput output = step.module.loss_of(y, there);
    if (!output.loss().defined())
      fail<StateError>("fit: strategy ", step.words.strategy,
                       ": loss_of returned nothing; return a loss for each microbatch");
    if (output.weight().defined() && !step.exact)
      fail<ConfigError>(
          "fit: strategy ", step.words.strategy,
          ": loss_of returned a sum and its weight, and accumulate_weighting is per_batch; "
          "take exact, because the weight of a batch is known after its last microbatch, or return a mean");
    const Tensor objective = step.objective(output);
    out[i] = step.exact ? objective : objective * step.share_of(i);
    outputs[i] = detached(output);
  };
  const auto backward = [&](std::size_t i) {
    const Autocast off = Autocast::off();  // backward is not run under it
    const Tensor seed = last ? ones_like(out[i].detach()) : links.take_gradient(i);
    Tensors wanted = trained;
    const bool returns = in[i].requires_grad();
    if (returns) wanted.push_back(in[i]);
    Tensors got(wanted.size());
    if (last && !out[i].requires_grad()) levin::backward(out[i]);  // throws, with its reason
    if (seed.defined() && out[i].requires_grad() && !wanted.empty())
      got = grad(std::span(&out[i], 1), wanted, std::span(&seed, 1), {.allow_unused = true});
    const NoGrad no_history;
    if (!first) links.give_gradient(i, returns ? got.back() : Tensor());
    for (std::size_t k = 0; k < sums.size(); ++k) {
      if (got[k].defined()) sums[k] = sums[k].defined() ? sums[k] + got[k] : got[k];
    }
    in[i] = out[i] = Tensor();
  };
  for (const PipelineSlot& slot : slots[s]) {
    if (slot.kind == Kind::forward) forward(static_cast<std::size_t>(slot.microbatch));
    if (slot.kind == Kind::backward) backward(static_cast<std::size_t>(slot.microbatch));
  }
  const NoGrad off;
  buffers.end();
  return sums;
}

void train::deliver(const PipelineStage& stage, Tensors&& gradients) {
  std::vector<Edge> edges;
  Tensors given;
  const Tensors trained = trained_of(stage);
  for (std::size_t k = 0; k < std::min(trained.size(), gradients.size()); ++k) {
    if (!gradients[k].defined()) continue;
    edges.push_back(edge_of(trained[k]));
    given.push_back(std::move(gradients[k]));
  }
  if (!edges.empty()) detail::run_backward(edges, std::move(given), {}, /*retain_graph=*/false, /*create_graph=*/false);
}
}  // namespace levin
