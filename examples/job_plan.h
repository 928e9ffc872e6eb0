// What a training step of a job of many devices costs: memory of a rank, communication and what of it the backward
// pass does not hide, the pipeline's bubble, and the step's time. Everything is computed from shapes and a network's
// figures.
//
// Note [The model of a step]
//
// A collective of n ranks over S bytes takes alpha + c (n - 1) / n S / bandwidth, with c = 2 for an all-reduce and 1
// for a reduce-scatter or an all-gather (ring and halving schedules both reach it: Thakur, Rabenseifner, Gropp,
// "Optimization of Collective Communication Operations in MPICH", 2005). Ranks of one node use the node's figures,
// ranks of several nodes the network's, per device.
//
// A transformer's token costs 6 P + 12 L H T operations, forward and backward, a third of them forward: P parameters,
// L layers of width H, T tokens of context (Chowdhery et al., "PaLM", 2022, appendix B). Units of the model (the
// embedding, each layer) take time in proportion to their parameters. Gradients become ready in the order of the
// backward pass and travel in buckets; a bucket starts when it is complete and the bucket before has arrived: exposed
// = end of the last bucket - end of backward.
//
// Memory follows Rajbhandari et al., "ZeRO", 2020: per parameter w bytes of weight, g of gradient, s of optimizer
// state, of which stage 1 divides s by the ranks, stage 2 g too, stage 3 w too, with two gathered units beside.
// Activations of a layer take 34 bytes a token and element of width in 16 bits with fused attention, 2 where they are
// recomputed (Korthikanti et al., "Reducing Activation Recomputation", 2022). A pipeline of p stages idles (p - 1) /
// (m + p - 1) of its time with m micro-batches, and a stage of 1F1B holds min(m, p) of them (Narayanan et al.,
// "Efficient Large-Scale Language Model Training", 2021).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "levin/error.h"

namespace levin::examples {

struct Network {
  int node = 8;              // devices that the node's figures hold for
  double alpha = 8e-6;       // seconds of a collective without data, in a node
  double bandwidth = 475e9;  // bytes a second of a device, in a node
  double net_alpha = 25e-6;  // the same between nodes
  double net_bandwidth = 50e9;
};

// Seconds of a collective of `ranks` over `bytes`; `crosses` says whether the ranks lie in several nodes.
inline double collective_seconds(const Network& net, double ranks, double bytes, double passes, bool crosses) {
  if (ranks <= 1) return 0;
  const double share = passes * (ranks - 1) / ranks * bytes;
  return crosses ? net.net_alpha + share / std::min(net.bandwidth, net.net_bandwidth)
                 : net.alpha + share / net.bandwidth;
}

// Bytes of a parameter: weight, gradient, state of Adam with what masters take.
struct ParameterBytes {
  double weight, gradient, state;
};
inline ParameterBytes parameter_bytes(const std::string& precision) {
  if (precision == "16-o2") return {2, 2, 12};
  if (precision == "bf16-true" || precision == "16-true") return {2, 2, 8};
  if (precision == "64-true") return {8, 8, 16};
  return {4, 4, 8};  // 32-true, and mixed precisions, whose weights are f32
}

struct Transformer {
  std::string name;
  double layers, width, vocabulary = 50257, context = 1024;
  [[nodiscard]] double layer_parameters() const { return 12 * width * width + 13 * width; }
  [[nodiscard]] double embedding() const { return (vocabulary + context) * width + 2 * width; }
  [[nodiscard]] double parameters() const { return embedding() + layers * layer_parameters(); }
  // Floating-point operations of a token of a sequence of `tokens`, forward and backward.
  [[nodiscard]] double operations(double tokens) const { return 6 * parameters() + 12 * layers * width * tokens; }
};
// Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
inline const Transformer kTransformers[] = {
    {"gpt2-124M", 12, 768}, {"gpt2-355M", 24, 1024}, {"gpt2-774M", 36, 1280}, {"gpt2-1558M", 48, 1600}};

struct Job {
  Transformer model;
  int devices = 8, nodes = 1;  // of a node; ranks = devices * nodes
  double tokens = 524288;      // of a step, over all ranks
  double batch = 8;            // sequences of a micro-batch of a rank
  double operations = 400e12;  // that a device achieves a second
  double memory = 141e9;       // bytes of a device
  double memory_bandwidth = 4.8e12;
  double bucket = 25 * 1024 * 1024;  // bytes of gradients in a reduction
  double disk = 1e9;                 // bytes a second of a checkpoint
  std::string precision = "16-o2";
  Network network;
  [[nodiscard]] double ranks() const { return double{1} * devices * nodes; }
};

// One way to lay a job out, and what it costs.
struct Layout {
  std::string strategy;  // ddp, zero_stage_1, zero_stage_2, zero_stage_3 or pipeline
  bool recompute = false;
  int stages = 1;
  double tokens = 0;         // that a step trains: whole micro-batches on each replica
  double micro_batches = 1;  // of a rank and step
  double parameters = 0, gradients = 0, state = 0, activations = 0;                      // bytes of a rank
  double compute = 0, update = 0, communication = 0, exposed = 0, bubble = 0, step = 0;  // seconds of a step
  double efficiency = 0;  // seconds of the computation alone / step
  [[nodiscard]] double memory() const { return parameters + gradients + state + activations; }
};

namespace plan_detail {

// The time of communication that is left when backward ends. Units complete from the last to the first.
inline double exposed_after_backward(const std::vector<double>& units, double backward, double bytes_each,
                                     double bucket, const Network& net, double ranks, double passes, bool crosses,
                                     double& total) {
  double all = 0;
  for (const double unit : units) all += unit;
  double now = 0, waiting = 0, end = 0, most = 1024 * 1024;  // the first bucket is small
  total = 0;
  const auto send = [&](double bytes) {
    const double seconds = collective_seconds(net, ranks, bytes, passes, crosses);
    end = std::max(now, end) + seconds;
    total += seconds;
  };
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
    const double begin = now, bytes = *unit * bytes_each, seconds = backward * *unit / all;
    double done = 0;
    while (waiting + (bytes - done) >= most) {  // buckets that fill up within the unit
      done += most - waiting;
      now = begin + seconds * done / bytes;
      send(most);
      waiting = 0;
      most = bucket;
    }
    waiting += bytes - done;
    now = begin + seconds;
  }
  if (waiting > 0) send(waiting);
  return std::max(0.0, end - backward);
}

// A pass over units, each of which is gathered before it computes, one ahead; in backward gradients are scattered
// after it. Returns the seconds by which the pass is longer than its computation.
inline double exposed_gathers(const std::vector<double>& units, double compute, double weight, double gradient,
                              const Network& net, double ranks, bool crosses, double& total) {
  double all = 0, link = 0, now = 0;
  for (const double unit : units) all += unit;
  std::vector<double> ends(units.size());    // of computations
  const auto scatter = [&](std::size_t i) {  // after the unit has computed
    const double seconds = collective_seconds(net, ranks, units[i] * gradient, 1, crosses);
    link = std::max(link, ends[i]) + seconds;
    total += seconds;
  };
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (gradient > 0 && i >= 2) scatter(i - 2);
    const double gather = collective_seconds(net, ranks, units[i] * weight, 1, crosses);
    link = std::max(link, i >= 2 ? ends[i - 2] : 0.0) + gather;  // two units lie in memory
    now = std::max(now, link) + compute * units[i] / all;
    ends[i] = now;
    total += gather;
  }
  if (gradient > 0) {
    for (std::size_t i = units.size() < 2 ? 0 : units.size() - 2; i < units.size(); ++i) scatter(i);
  }
  return std::max(now, gradient > 0 ? link : now) - compute;
}

}  // namespace plan_detail

// What `strategy` costs. Throws ConfigError for stages that divide neither ranks nor layers, and for a step of fewer
// tokens than one micro-batch of each rank.
inline Layout lay_out(const Job& job, const std::string& strategy, bool recompute, int stages = 1) {
  const Transformer& model = job.model;
  const double ranks = job.ranks(), replicas = ranks / stages;
  if (stages < 1 || std::fmod(ranks, stages) != 0 || std::fmod(model.layers, stages) != 0)
    fail<ConfigError>("plan: ", stages, " stages divide neither ", ranks, " ranks nor ", model.layers,
                      " layers; choose a divisor of both");
  Layout out{.strategy = strategy, .recompute = recompute, .stages = stages};
  const double per_micro = job.batch * model.context;
  out.micro_batches = std::floor(job.tokens / (replicas * per_micro) + 1e-9);
  if (out.micro_batches < 1)
    fail<ConfigError>("plan: ", job.tokens, " tokens a step are fewer than ", replicas * per_micro,
                      ", one micro-batch of ", job.batch, " sequences on each of ", replicas,
                      " replicas; give more tokens or a smaller batch");

  out.tokens = out.micro_batches * replicas * per_micro;

  // The units of a stage, in forward order.
  std::vector<double> units(static_cast<std::size_t>(model.layers / stages), model.layer_parameters());
  units.insert(units.begin(), model.embedding());
  double own = 0;
  for (const double unit : units) own += unit;

  const ParameterBytes bytes = parameter_bytes(job.precision);
  const int stage = strategy.starts_with("zero_stage_") ? strategy.back() - '0' : 0;
  out.parameters = bytes.weight * own / (stage == 3 ? ranks : 1);
  out.gradients = bytes.gradient * own / (stage >= 2 ? ranks : 1);
  out.state = bytes.state * own / (stage >= 1 ? ranks : 1);
  if (stage == 3) out.parameters += 2 * bytes.weight * *std::max_element(units.begin(), units.end());

  const double wide = bytes.weight > 2 && job.precision.find("16-mixed") == std::string::npos ? 2 : 1;
  const double live = stages > 1 ? std::min<double>(out.micro_batches, stages) : 1;  // micro-batches of 1F1B
  const double layer = 34 * wide * per_micro * model.width,
               kept = recompute ? 2 * wide * per_micro * model.width : layer;
  out.activations = live * kept * model.layers / stages + (recompute ? layer : 0) +
                    per_micro * model.vocabulary * (2 * wide + 4);  // logits, and their gradient in f32

  const double forward = model.operations(model.context) * per_micro / stages / job.operations / 3;
  const double backward = 2 * forward + (recompute ? forward : 0), micro = forward + backward;
  const double ideal = 3 * forward * out.micro_batches;
  out.compute = micro * out.micro_batches;
  out.bubble = stages > 1 ? micro * (stages - 1) : 0;
  // An update reads and writes weights and state, and reads gradients.
  const double updated = own / (stage >= 1 ? ranks : 1);
  out.update = updated * (2 * bytes.weight + bytes.gradient + 2 * bytes.state) / job.memory_bandwidth;

  const bool crosses = job.nodes > 1;
  const auto collective = [&](double n, double size, double passes) {
    return collective_seconds(job.network, n, size, passes, crosses);
  };
  if (stage == 3) {
    double total = 0;
    std::vector<double> reversed(units.rbegin(), units.rend());
    out.exposed = plan_detail::exposed_gathers(units, forward, bytes.weight, 0, job.network, ranks, crosses, total) +
                  plan_detail::exposed_gathers(reversed, backward, bytes.weight, bytes.gradient, job.network, ranks,
                                               crosses, total);
    out.exposed *= out.micro_batches;
    out.communication = total * out.micro_batches;
  } else {
    // Gradients travel in the last micro-batch's backward pass.
    out.exposed = plan_detail::exposed_after_backward(units, backward, bytes.gradient, job.bucket, job.network,
                                                      replicas, stage >= 1 ? 1 : 2, crosses, out.communication);
    if (stage == 2) {  // whose gradients are never whole, so they travel in each micro-batch
      out.exposed *= out.micro_batches;
      out.communication *= out.micro_batches;
    }
    if (stage >= 1) {
      const double gather = collective(ranks, bytes.weight * own, 1);
      out.communication += gather;
      out.exposed += gather;
    }
    if (stages > 1) {  // activations and their gradients, hidden but for the first and last micro-batch
      const double hop = collective(2, 2 * wide * per_micro * model.width * 2, 1);
      out.communication += 2 * hop * out.micro_batches;
      out.exposed += 2 * hop * (stages - 1);
    }
  }
  out.step = out.compute + out.bubble + out.exposed + out.update;
  out.efficiency = ideal / out.step;
  return out;
}

// All layouts of a job: each strategy without and with recomputation, and pipelines whose stages divide ranks and
// layers, the fastest first.
inline std::vector<Layout> all_layouts(const Job& job) {
  std::vector<Layout> all;
  for (const bool recompute : {false, true}) {
    for (const char* strategy : {"ddp", "zero_stage_1", "zero_stage_2", "zero_stage_3"}) {
      if (job.ranks() > 1 || std::string_view(strategy) == "ddp") all.push_back(lay_out(job, strategy, recompute));
    }
    for (int stages = 2; stages <= job.model.layers && stages <= job.ranks(); ++stages) {
      if (std::fmod(job.ranks(), stages) == 0 && std::fmod(job.model.layers, stages) == 0)
        all.push_back(lay_out(job, "pipeline", recompute, stages));
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Layout& a, const Layout& b) { return a.step / a.tokens < b.step / b.tokens; });
  return all;
}

// Bytes of a checkpoint: weights and the optimizer's state.
inline double checkpoint_bytes(const Job& job) {
  const ParameterBytes bytes = parameter_bytes(job.precision);
  return (bytes.weight + bytes.state) * job.model.parameters();
}

}  // namespace levin::examples
