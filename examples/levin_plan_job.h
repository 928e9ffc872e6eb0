// levin plan gpt2-...: what a training step of a language model costs on many devices, which layouts fit their memory,
// and the batch script that starts the job. The model of a step: Note [The model of a step].
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "examples/flags.h"
#include "examples/job_plan.h"
#include "levin/comm/launch.h"

namespace levin::examples {

struct JobSettings {
  Job job;
  double error = 0;  // of predicted steps, as the calibration measured it; 0: unknown
  bool calibrated = false;
  std::string json, sbatch, command;
};

inline bool names_transformer(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]).starts_with("gpt2")) return true;
  }
  return false;
}

// Measured figures, of a JSON object with any of alpha_us, busbw (both as bench_comm prints them), net_alpha_us, net,
// tflops and error (of predicted steps, relative). A flag that is given wins.
inline void calibrate(JobSettings& s, const std::string& path, const Flags& flags) {
  const auto content = [&] {
    try {
      return read_file(path, std::size_t{1} << 20);
    } catch (const FileError& e) { fail<DataError>("--calibration: ", e.what()); }
  };
  const nlohmann::json all = nlohmann::json::parse(content(), nullptr, false);
  if (!all.is_object()) fail<DataError>("--calibration: ", path, " is not a JSON object");
  const auto take = [&](const char* key, const char* flag, double& to, double unit) {
    if (!all.contains(key) || (*flag != '\0' && flags.given(flag))) return;
    if (!all[key].is_number() || !(all[key].get<double>() > 0))
      fail<DataError>("--calibration: \"", key, "\" of ", path, " is ", all[key].dump(), ", expected a number above 0");
    to = all[key].get<double>() * unit;
  };
  take("alpha_us", "--alpha", s.job.network.alpha, 1e-6);
  take("busbw", "--busbw", s.job.network.bandwidth, 1e9);
  take("net_alpha_us", "--net-alpha", s.job.network.net_alpha, 1e-6);
  take("net", "--net", s.job.network.net_bandwidth, 1e9);
  take("tflops", "--tflops", s.job.operations, 1e12);
  take("error", "", s.error, 1);
  s.calibrated = true;
}

inline JobSettings parse_job(int argc, const char* const* argv) {
  JobSettings s;
  Job& job = s.job;
  std::string model, calibration;
  std::int64_t devices = job.devices, nodes = job.nodes, tokens = 524288, batch = 8, memory = 141'000'000'000;
  double tflops = 400, busbw = 475, net = 50, alpha = 8, net_alpha = 25;
  Flags flags("levin plan", "What a training step of a language model costs on many devices, without running one.");
  std::vector<std::string> names;
  for (const Transformer& t : kTransformers) names.push_back(t.name);
  flags.add_argument("MODEL", model, "gpt2-124M, gpt2-355M, gpt2-774M or gpt2-1558M")->check(CLI::IsMember(names));
  flags.add("--devices", devices)->check(at_least(1))->description("devices of a node");
  flags.add("--nodes", nodes)->check(at_least(1));
  flags.add("--tokens", tokens)->check(at_least(1));
  flags.add("--batch-size", batch)->check(at_least(1))->description("sequences of a micro-batch of a device");
  flags.add_choice("--precision", job.precision,
                   {"16-o2", "32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true"});
  flags.add("--memory", memory)->check(at_least(1))->description("bytes of a device");
  flags.add("--tflops", tflops)->check(above(0));
  flags.add("--busbw", busbw)->check(above(0));
  flags.add("--net", net)->check(above(0));
  flags.add("--alpha", alpha)->check(at_least(0));
  flags.add("--net-alpha", net_alpha)->check(at_least(0));
  flags.add("--calibration", calibration);
  flags.add("--sbatch", s.sbatch);
  flags.add("--command", s.command);
  flags.add("--json", s.json)->description("the same as JSON; - writes it to stdout in place of the text");
  flags.parse(argc, argv);
  constexpr std::int64_t kMost = 1'000'000;  // ranks of a job
  if (devices > kMost || nodes > kMost || devices * nodes > kMost)
    flags.refuse("--devices times --nodes is more than " + std::to_string(kMost));
  if (!s.sbatch.empty() && s.command.empty()) flags.refuse("--sbatch needs --command, the program to start");
  for (const Transformer& t : kTransformers) {
    if (t.name == model) job.model = t;
  }
  job.devices = static_cast<int>(devices);
  job.nodes = static_cast<int>(nodes);
  job.tokens = static_cast<double>(tokens);
  job.batch = static_cast<double>(batch);
  job.memory = static_cast<double>(memory);
  job.operations = tflops * 1e12;
  job.network = {
      .alpha = alpha * 1e-6, .bandwidth = busbw * 1e9, .net_alpha = net_alpha * 1e-6, .net_bandwidth = net * 1e9};
  if (!calibration.empty()) calibrate(s, calibration, flags);
  return s;
}

inline std::string batch_script(const JobSettings& s, const Layout& layout) {
  std::string command = s.command + " --devices " + std::to_string(s.job.devices) + " --nodes " +
                        std::to_string(s.job.nodes) + " --strategy " + layout.strategy + " --precision " +
                        s.job.precision + " --batch-size " + text(static_cast<std::int64_t>(s.job.batch)) +
                        " --accumulate " + text(static_cast<std::int64_t>(layout.micro_batches));
  return dist::SlurmScript{.job_name = s.job.model.name,
                           .nodes = s.job.nodes,
                           .gpus_per_node = s.job.devices,
                           .tasks_per_node = s.job.devices,
                           .commands = {command}}
      .render();
}

inline nlohmann::ordered_json to_json(const Layout& l, double memory) {
  return {{"strategy", l.strategy},
          {"recompute", l.recompute},
          {"stages", l.stages},
          {"micro_batches", l.micro_batches},
          {"fits", l.memory() <= memory},
          {"memory", l.memory()},
          {"parameters", l.parameters},
          {"gradients", l.gradients},
          {"optimizer_state", l.state},
          {"activations", l.activations},
          {"compute_ms", 1e3 * l.compute},
          {"update_ms", 1e3 * l.update},
          {"communication_ms", 1e3 * l.communication},
          {"exposed_ms", 1e3 * l.exposed},
          {"bubble_ms", 1e3 * l.bubble},
          {"step_ms", 1e3 * l.step},
          {"efficiency", l.efficiency}};
}

inline nlohmann::ordered_json plan_job(const JobSettings& s) {
  const std::vector<Layout> layouts = all_layouts(s.job);
  const Layout *best = nullptr, *started = nullptr;  // the fastest that fits; the fastest that a script can start
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Layout& l : layouts) {
    if (!best && l.memory() <= s.job.memory) best = &l;
    if (!started && l.memory() <= s.job.memory && l.stages == 1 && !l.recompute) started = &l;
    rows.push_back(to_json(l, s.job.memory));
  }
  if (!s.sbatch.empty()) {
    if (!started)
      fail<ConfigError>("--sbatch: no layout fits ", s.job.memory,
                        " bytes of a device without stages and recomputation, which are the program's to build");
    write_file_atomically(s.sbatch, batch_script(s, *started));
  }
  nlohmann::ordered_json all = {{"model", s.job.model.name},
                                {"parameters", s.job.model.parameters()},
                                {"ranks", s.job.ranks()},
                                {"tokens", s.job.tokens},
                                {"precision", s.job.precision},
                                {"calibrated", s.calibrated},
                                {"checkpoint_bytes", checkpoint_bytes(s.job)},
                                {"checkpoint_seconds", checkpoint_bytes(s.job) / s.job.disk},
                                {"best", best ? to_json(*best, s.job.memory) : nullptr},
                                {"layouts", rows}};
  if (s.error > 0) all["error"] = s.error;
  if (s.json == "-") return all;

  std::printf("%s: %.0f parameters, %d x %d devices, %.0f tokens a step, %s\n", s.job.model.name.c_str(),
              s.job.model.parameters(), s.job.nodes, s.job.devices, s.job.tokens, s.job.precision.c_str());
  std::printf("%s: %.0f TFLOP/s a device, %.1f GB/s and %.1f us in a node, %.1f GB/s and %.1f us between nodes\n",
              s.calibrated ? "calibrated" : "assumed", s.job.operations / 1e12, s.job.network.bandwidth / 1e9,
              s.job.network.alpha * 1e6, s.job.network.net_bandwidth / 1e9, s.job.network.net_alpha * 1e6);
  std::printf("%-13s %6s %9s %7s %8s %8s %10s %10s %9s %9s %10s %10s\n", "strategy", "stages", "recompute", "memory",
              "state", "activ.", "compute", "commun.", "exposed", "bubble", "step", "efficiency");
  for (const Layout& l : layouts) {
    std::printf("%-13s %6d %9s %4.1f GB%s %5.1f GB %5.1f GB %7.1f ms %7.2f ms %6.2f ms %6.1f ms %7.1f ms %8.1f %%\n",
                l.strategy.c_str(), l.stages, l.recompute ? "yes" : "no", l.memory() / 1e9,
                l.memory() > s.job.memory ? "!" : " ", (l.memory() - l.activations) / 1e9, l.activations / 1e9,
                1e3 * l.compute, 1e3 * l.communication, 1e3 * l.exposed, 1e3 * l.bubble, 1e3 * l.step,
                100 * l.efficiency);
  }
  if (best)
    std::printf("the fastest that fits %.0f GB (! does not): %s%s%s, %.0f tokens/s%s\n", s.job.memory / 1e9,
                best->strategy.c_str(),
                best->stages > 1 ? (" of " + std::to_string(best->stages) + " stages").c_str() : "",
                best->recompute ? " with recomputation" : "", best->tokens / best->step,
                s.error > 0 ? (", +-" + std::to_string(static_cast<int>(100 * s.error + 0.5)) + " %").c_str() : "");
  else
    std::printf("no layout fits %.0f GB; take more devices or a smaller --batch-size\n", s.job.memory / 1e9);
  std::printf("a checkpoint has %.1f GB, %.0f s at %.1f GB/s\n", checkpoint_bytes(s.job) / 1e9,
              checkpoint_bytes(s.job) / s.job.disk, s.job.disk / 1e9);
  return all;
}

}  // namespace levin::examples
