// The command-line tool: inspects checkpoints, compares and exports them, plans memory, and describes this build.
#include <cmath>
#include <filesystem>
#include <map>

#include "examples/flags.h"
#include "examples/levin_plan.h"
#include "examples/levin_plan_job.h"

using namespace levin;

namespace {

using Json = nlohmann::ordered_json;

// ---- Shared by the commands

// A text file; "-" is stdout.
void write_json(const std::string& path, const Json& j) {
  const std::string text = examples::json_text(j);
  if (path == "-")
    std::fputs(text.c_str(), stdout);
  else if (!path.empty())
    write_file_atomically(path, text);
}

void add_json(examples::Flags& flags, std::string& path) {
  flags.add("--json", path)->description("the same as JSON; - writes it to stdout in place of the text");
}

std::int64_t bytes_of(const Tensor& t) { return t.numel() * static_cast<std::int64_t>(itemsize(t.dtype())); }
std::int64_t bytes_of(const NamedTensors& tensors) {
  std::int64_t sum = 0;
  for (const auto& [name, t] : tensors) sum += bytes_of(t);
  return sum;
}

const char* kind_of(const CheckpointInfo& info) { return info.weights_only ? "weights" : "checkpoint"; }

// The report of verify on a file, and of show on a damaged one.
std::string verdict(const CheckpointInfo& info) {
  const std::string count = std::to_string(info.weights.size() + info.rest.size()) + " tensors";
  if (info.weights_only) return count + ", weights alone: the file is whole, it has no hashes to compare";
  if (info.damage.empty()) return count + ", every hash is right";
  std::string what = "damaged: ";
  for (const auto& d : info.damage) what += (&d == &info.damage[0] ? "\"" : "; \"") + d.name + "\" " + d.what;
  return what;
}

Json damage_of(const CheckpointInfo& info) {
  Json all = Json::array();
  for (const auto& d : info.damage) all.push_back({{"name", d.name}, {"what", d.what}});
  return all;
}

int code_of(const CheckpointInfo& info) { return info.damage.empty() ? examples::kDone : examples::kBadData; }

// ---- ckpt show

// Of a file, or of all files in the folder of a sharded checkpoint.
std::uintmax_t bytes_on_disk(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return std::filesystem::file_size(path);
  std::uintmax_t all = 0;
  for (const auto& file : std::filesystem::directory_iterator(path)) all += file.file_size();
  return all;
}

Json to_json(const std::string& path, const CheckpointInfo& info) {
  Json state = Json::object(), tensors = Json::array();
  for (const auto& [name, value] : info.state) state[name] = value;
  const auto list = [&](const NamedTensors& part, const char* name_of_part) {
    for (const auto& [name, t] : part) {
      const std::span<const std::int64_t> sizes(t.shape().begin(), t.shape().end());
      tensors.push_back({{"name", name},
                         {"part", name_of_part},
                         {"dtype", text(t.dtype())},
                         {"shape", std::vector<std::int64_t>(sizes.begin(), sizes.end())},
                         {"bytes", bytes_of(t)}});
    }
  };
  list(info.weights, "weights");
  list(info.rest, "state");
  return {{"file", path},
          {"kind", kind_of(info)},
          {"bytes", bytes_on_disk(path)},
          {"epochs_completed", info.epochs_completed},
          {"global_step", info.global_step},
          {"state", state},
          {"tensors", tensors},
          {"damage", damage_of(info)}};
}

void print_tensors(const char* title, const NamedTensors& tensors) {
  if (tensors.empty()) return;
  std::size_t width = 0, shape_width = 0;
  for (const auto& [name, t] : tensors) {
    width = std::max(width, name.size());
    shape_width = std::max(shape_width, text(t.shape()).size());
  }
  std::printf("%s: %zu tensors, %lld bytes\n", title, tensors.size(), static_cast<long long>(bytes_of(tensors)));
  for (const auto& [name, t] : tensors)
    std::printf("  %-*s  %-4s  %-*s  %12lld\n", static_cast<int>(width), name.c_str(), text(t.dtype()).c_str(),
                static_cast<int>(shape_width), text(t.shape()).c_str(), static_cast<long long>(bytes_of(t)));
}

void print_state(const Metadata& state) {
  constexpr std::size_t kWidest = 100;  // of a value: sums of many metrics are long
  std::size_t width = 0;
  for (const auto& [name, value] : state) width = std::max(width, name.size());
  if (!state.empty()) std::printf("state\n");
  for (const auto& [name, value] : state)
    std::printf("  %-*s  %s%s\n", static_cast<int>(width), name.c_str(), value.substr(0, kWidest).c_str(),
                value.size() > kWidest ? " ..." : "");
}

int show(int argc, char** argv) {
  std::string path, json;
  examples::Flags flags("levin ckpt show", "What is in a checkpoint. Exit code 65 for a damaged one.");
  flags.add_argument("FILE", path, "a checkpoint, or weights alone")->check(CLI::ExistingPath);
  add_json(flags, json);
  flags.parse(argc, argv);
  const CheckpointInfo info = read_checkpoint_info(path);
  write_json(json, to_json(path, info));
  if (json != "-") {
    std::printf("%s: %s, %s\n", path.c_str(), kind_of(info), verdict(info).c_str());
    if (!info.weights_only)
      std::printf("epochs completed %lld, optimizer steps %lld\n", static_cast<long long>(info.epochs_completed),
                  static_cast<long long>(info.global_step));
    print_state(info.state);
    print_tensors("weights", info.weights);
    print_tensors("state of optimizer, schedules and callbacks", info.rest);
  }
  return code_of(info);
}

// ---- ckpt verify

int verify(int argc, char** argv) {
  std::vector<std::string> paths;
  std::string json;
  examples::Flags flags("levin ckpt verify", "Compares every hash. Exit code 65 when one file is damaged.");
  flags.add_argument("FILE", paths, "checkpoints")->check(CLI::ExistingPath);
  add_json(flags, json);
  flags.parse(argc, argv);
  int code = examples::kDone;
  Json all = Json::array();
  for (const std::string& path : paths) {
    std::string said;
    Json damage;
    try {
      const CheckpointInfo info = read_checkpoint_info(path);
      code = std::max<int>(code, code_of(info));
      said = verdict(info);
      damage = damage_of(info);
    } catch (const FormatError& e) {  // cut, or absent: then there are no names
      code = examples::kBadData;
      said = std::string("damaged: ") + e.what();
      damage = Json::array({{{"name", nullptr}, {"what", e.what()}}});
    }
    if (json != "-") std::printf("%s: %s\n", path.c_str(), said.c_str());
    all.push_back({{"file", path}, {"damage", damage}});
  }
  write_json(json, all);
  return code;
}

// ---- ckpt diff

struct Difference {
  std::string name, what;
};

// The largest |a - b|; NaN where one of the two is NaN.
double greatest_difference(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.to(DType::f64).to_vector<double>(), y = b.to(DType::f64).to_vector<double>();
  double greatest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
    const double d = std::abs(x[i] - y[i]);
    if (std::isnan(d)) return d;
    greatest = std::max(greatest, d);
  }
  return greatest;
}

void compare_tensors(std::vector<Difference>& to, const NamedTensors& a, const NamedTensors& b) {
  std::map<std::string, Tensor> others(b.begin(), b.end());
  for (const auto& [name, x] : a) {
    const auto it = others.find(name);
    if (it == others.end()) {
      to.push_back({name, "is only in the first"});
      continue;
    }
    const Tensor y = it->second;
    others.erase(it);
    if (x.shape() != y.shape() || x.dtype() != y.dtype())
      to.push_back({name, "is " + text(x.dtype()) + " " + text(x.shape()) + ", in the second " + text(y.dtype()) + " " +
                              text(y.shape())});
    else if (content_hash(name, x) != content_hash(name, y))
      to.push_back({name, "differs by at most " + text(greatest_difference(x, y))});
  }
  for (const auto& [name, y] : others) to.push_back({name, "is only in the second"});
}

void compare_state(std::vector<Difference>& to, const Metadata& a, const Metadata& b) {
  std::map<std::string, std::string> others(b.begin(), b.end());
  for (const auto& [name, value] : a) {
    const auto it = others.find(name);
    if (it == others.end())
      to.push_back({name, "is only in the first"});
    else if (it->second != value)
      to.push_back({name, "is " + value + ", in the second " + it->second});
    if (it != others.end()) others.erase(it);
  }
  for (const auto& [name, value] : others) to.push_back({name, "is only in the second"});
}

int diff(int argc, char** argv) {
  std::vector<std::string> paths;
  std::string json;
  examples::Flags flags("levin ckpt diff",
                        "How two checkpoints differ. Exit code 0: equal, 1: different, 65: one is damaged.");
  flags.add_argument("FILE", paths, "two checkpoints")->check(CLI::ExistingPath)->expected(2);
  add_json(flags, json);
  flags.parse(argc, argv);
  const CheckpointInfo a = read_checkpoint_info(paths[0]), b = read_checkpoint_info(paths[1]);
  std::vector<Difference> weights, state;
  compare_tensors(weights, a.weights, b.weights);
  compare_tensors(state, a.rest, b.rest);
  compare_state(state, a.state, b.state);
  const bool equal = weights.empty() && state.empty();
  const auto listed = [&](const char* title, const std::vector<Difference>& all) {
    Json list = Json::array();
    if (json != "-") std::printf("%s: %s\n", title, all.empty() ? "equal" : "different");
    for (const Difference& d : all) {
      if (json != "-") std::printf("  %s %s\n", d.name.c_str(), d.what.c_str());
      list.push_back({{"name", d.name}, {"what", d.what}});
    }
    return list;
  };
  Json report = {{"equal", equal}};
  report["weights"] = listed("weights", weights);
  report["state"] = listed("state", state);
  write_json(json, report);
  bool damaged = false;
  for (std::size_t i = 0; i < 2; ++i) {
    const CheckpointInfo& info = i == 0 ? a : b;
    if (info.damage.empty()) continue;
    std::fprintf(stderr, "levin: %s: %s\n", paths[i].c_str(), verdict(info).c_str());
    damaged = true;
  }
  return damaged ? int{examples::kBadData} : equal ? 0 : 1;
}

// ---- ckpt export

int export_weights(int argc, char** argv) {
  std::string path, out;
  examples::Flags flags(
      "levin ckpt export",
      "Writes the weights alone, as model.safetensors has them: safetensors.torch.load_file reads it.");
  flags.add_argument("FILE", path, "a checkpoint")->check(CLI::ExistingPath);
  flags.add("--out", out)->required()->type_name("FILE")->description("the file to write, NAME.safetensors");
  flags.parse(argc, argv);
  if (!out.ends_with(".safetensors")) flags.refuse("--out: " + out + " does not end in .safetensors");
  const CheckpointInfo info = read_checkpoint_info(path);
  if (!info.damage.empty()) fail<FormatError>(path, ": ", verdict(info), "; nothing was exported");
  save_safetensors(out, info.weights);
  std::printf("%s: %zu tensors, %lld bytes\n", out.c_str(), info.weights.size(),
              static_cast<long long>(bytes_of(info.weights)));
  return examples::kDone;
}

// ---- ckpt consolidate

int consolidate(int argc, char** argv) {
  std::string folder, out;
  examples::Flags flags("levin ckpt consolidate",
                        "Writes the folder of a sharded checkpoint as one file, which any strategy resumes.");
  flags.add_argument("FOLDER", folder, "a sharded checkpoint, NAME.levin")->check(CLI::ExistingPath);
  flags.add_argument("FILE", out, "the file to write, NAME.safetensors");
  flags.parse(argc, argv);
  if (!out.ends_with(".safetensors")) flags.refuse("FILE: " + out + " does not end in .safetensors");
  consolidate_checkpoint(folder, out);
  std::printf("%s: %llu bytes\n", out.c_str(), static_cast<unsigned long long>(std::filesystem::file_size(out)));
  return examples::kDone;
}

// ---- plan

int plan(int argc, char** argv) {
  if (examples::names_transformer(argc, argv)) {
    const examples::JobSettings s = examples::parse_job(argc, argv);
    write_json(s.json, examples::plan_job(s));
    return examples::kDone;
  }
  const examples::PlanSettings s = examples::parse_plan(argc, argv);
  write_json(s.json, examples::plan(s));
  return examples::kDone;
}

// ---- env

Json environment() {
  const BuildInfo build = build_info();
  Json libraries = Json::object(), devices = Json::array({"cpu"});
  for (const auto& [name, version] : build.libraries) libraries[name] = version;
  for (int i = 0; i < device_count(DeviceType::cuda); ++i) devices.push_back(text(Device::cuda(i)));
  if (device_count(DeviceType::simt) > 0) devices.push_back("simt");
  return {{"version", build.version},       {"compiler", build.compiler},       {"optimized", build.optimized},
          {"sanitizers", build.sanitizers}, {"launches_on", build.launches_on}, {"devices", devices},
          {"cpu_level", build.cpu_level},   {"cpus", data::available_cpus()},   {"threads", num_threads()},
          {"libraries", libraries}};
}

int env(int argc, char** argv) {
  std::string json;
  examples::Flags flags("levin env", "What this build is, and what it finds on this machine.");
  add_json(flags, json);
  flags.parse(argc, argv);
  const Json all = environment();
  write_json(json, all);
  if (json == "-") return examples::kDone;
  for (const auto& [name, value] : all.items()) {
    std::string line;
    if (value.is_structured()) {
      for (const auto& [key, entry] : value.items())
        line += (line.empty() ? "" : ", ") + (value.is_object() ? key + " " : "") + entry.get<std::string>();
    } else {
      line = value.is_string() ? value.get<std::string>() : value.dump();
    }
    std::printf("%-12s  %s\n", name.c_str(), line.c_str());
  }
  return examples::kDone;
}

// ---- The commands

struct Command {
  const char *name, *about;
  int (*run)(int argc, char** argv);
};
constexpr Command kCommands[] = {
    {"ckpt show", "FILE: what is in a checkpoint", show},
    {"ckpt verify", "FILE...: are they whole", verify},
    {"ckpt diff", "FILE FILE: how two differ", diff},
    {"ckpt export", "FILE --out model.safetensors: the weights alone", export_weights},
    {"ckpt consolidate", "FOLDER FILE: one file of a sharded checkpoint", consolidate},
    {"plan", "mnist|gan: the memory of a training step, the largest batch for --memory BYTES", plan},
    {"plan gpt2-124M", "(355M, 774M, 1558M): memory, communication and time of a step on many devices", plan},
    {"env", "build, devices, libraries", env},
};

// The commands that begin with the word `of`; all when it is empty.
void print_usage(std::FILE* to, std::string_view of = {}) {
  std::fprintf(to, "usage: levin COMMAND [ARGUMENTS]\n\n");
  for (const Command& c : kCommands) {
    if (std::string_view(c.name).starts_with(of)) std::fprintf(to, "  levin %-16s %s\n", c.name, c.about);
  }
  std::fprintf(to, "\nlevin COMMAND --help lists its flags.\n");
}

int run(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "--help" || first == "-h") {
    print_usage(stdout);
    return examples::kDone;
  }
  const std::string second = argc > 2 ? argv[2] : "";
  if (first == "ckpt" && (second == "--help" || second == "-h")) {
    print_usage(stdout, "ckpt ");
    return examples::kDone;
  }
  const std::string both = argc > 2 ? first + " " + argv[2] : first;
  for (const Command& c : kCommands) {
    if (first == c.name) return c.run(argc - 1, argv + 1);
    if (both == c.name) return c.run(argc - 2, argv + 2);
  }
  if (first.empty() || both == "ckpt") {
    print_usage(stderr, first.empty() ? "" : "ckpt ");
    return examples::kUsage;
  }
  const auto far = [&](const Command& c) {
    const std::string_view name = c.name;
    return examples::edit_distance(name.find(' ') == std::string_view::npos ? first : both, name);
  };
  const Command* const nearest = std::min_element(std::begin(kCommands), std::end(kCommands),
                                                  [&](const Command& a, const Command& b) { return far(a) < far(b); });
  std::fprintf(stderr, "levin: unknown command \"%s\"; did you mean \"%s\"?\nlevin: --help lists the commands\n",
               both.c_str(), nearest->name);
  return examples::kUsage;
}

}  // namespace

int main(int argc, char** argv) {
  return examples::run_program("levin", [&] { return run(argc, argv); });
}
