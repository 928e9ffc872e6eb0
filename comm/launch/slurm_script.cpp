// Batch scripts for SLURM, and requeueing.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>

#include "comm/launch/nodelist.h"
#include "comm/launch/program.h"
#include "comm/launch/variables.h"
#include "levin/comm/launch.h"
#include "levin/error.h"

namespace levin::dist {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Words that need no quotes, neither for the shell nor for sbatch.
bool is_plain(const std::string& text, std::string_view more) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return is_digit(c) || is_letter(c) || more.find(c) != std::string_view::npos;
  });
}

// MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS.
bool is_time(std::string_view text) {
  const std::size_t dash = text.find('-');
  if (dash != std::string_view::npos) {
    if (!read_count(text.substr(0, dash))) return false;
    text.remove_prefix(dash + 1);
  }
  int parts = 0;
  for (std::size_t begin = 0; begin <= text.size(); ++parts) {
    const std::size_t end = std::min(text.find(':', begin), text.size());
    if (!read_count(text.substr(begin, end - begin))) return false;
    begin = end + 1;
  }
  return parts <= 3;
}

bool is_memory(const std::string& text) {
  const bool unit = !text.empty() && std::string_view("KMGT").find(text.back()) != std::string_view::npos;
  return read_count(std::string_view(text).substr(0, text.size() - (unit ? 1 : 0))).has_value();
}

bool one_line(const std::string& text) {
  return text.find_first_of(std::string_view("\n\r\0", 3)) == std::string::npos;
}

template <class Value>
[[noreturn]] void refuse(const char* field, const Value& value, const char* expected) {
  fail<ConfigError>("SlurmScript: ", field, " is \"", value, "\", expected ", expected);
}

// USR1 of SIGUSR1.
std::string signal_of(const std::string& name) { return name.starts_with("SIG") ? name.substr(3) : name; }

void check(const SlurmScript& s) {
  if (!is_plain(s.job_name, "._-")) refuse("job_name", s.job_name, "letters, digits and ._-");
  if (s.job_name == "bash" || s.job_name == "interactive")
    refuse("job_name", s.job_name, "another name: it marks an interactive job, whose tasks are jobs by themselves");
  if (s.nodes < 1) refuse("nodes", s.nodes, "1 or more");
  if (s.gpus_per_node < 0) refuse("gpus_per_node", s.gpus_per_node, "0 or more");
  if (s.tasks_per_node < 1) refuse("tasks_per_node", s.tasks_per_node, "1 or more");
  if (!is_time(s.time)) refuse("time", s.time, "MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS");
  if (!s.memory_per_node.empty() && !is_memory(s.memory_per_node))
    refuse("memory_per_node", s.memory_per_node, "a number with K, M, G or T, as in 64G");
  if (s.log_dir.empty() || !one_line(s.log_dir) || s.log_dir.find_first_of("\"\\%") != std::string::npos)
    refuse("log_dir", s.log_dir, "a folder without quotes, backslashes and %");
  for (const std::string& module : s.modules)
    if (!is_plain(module, "._-/+")) refuse("modules", module, "names of modules");
  if (!s.email.empty() && !is_plain(s.email, "._-+@")) refuse("email", s.email, "an address");
  if (!s.requeue_signal.empty() && !is_plain(signal_of(s.requeue_signal), ""))
    refuse("requeue_signal", s.requeue_signal, "the name of a signal, as SIGUSR1");
  if (s.commands.empty()) fail<ConfigError>("SlurmScript: commands is empty; its last line is the program");
  for (const std::string& line : s.commands)
    if (line.empty() || !one_line(line)) refuse("commands", line, "one line each");
}

// For the shell, as one word.
std::string quoted(const std::string& text) {
  if (is_plain(text, "._-/+@:,=%")) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

std::string SlurmScript::render() const {
  check(*this);
  std::string out = "#!/bin/bash\n";
  const auto option = [&](const std::string& text) { out += "#SBATCH --" + text + "\n"; };
  option("job-name=" + job_name);
  option("nodes=" + std::to_string(nodes));
  option("ntasks-per-node=" + std::to_string(tasks_per_node));
  if (gpus_per_node > 0) option("gpus-per-node=" + std::to_string(gpus_per_node));
  option("time=" + time);
  if (!memory_per_node.empty()) option("mem=" + memory_per_node);
  option("output=\"" + log_dir + "/" + job_name + "-%j.log\"");
  option("open-mode=append");  // what the job wrote before a requeue stays
  if (!requeue_signal.empty()) {
    option("requeue");
    option("signal=" + signal_of(requeue_signal) + "@90");
  }
  if (!email.empty()) {
    option("mail-user=" + email);
    option("mail-type=END,FAIL");
  }
  out += "\nset -eo pipefail\n";
  for (const std::string& module : modules) out += "module load " + module + "\n";
  out +=
      "# The ranks prove to each other that they belong to this job.\n"
      "LEVIN_JOB_SECRET=$(od -An -vtx1 -N32 /dev/urandom | tr -d ' \\n')\nexport LEVIN_JOB_SECRET\n";
  for (std::size_t i = 0; i + 1 < commands.size(); ++i) out += commands[i] + "\n";
  // One rank's failure ends the step. exec: sbatch reports the step's code, and signals reach srun.
  return out + "exec srun --kill-on-bad-exit=1 " + commands.back() + "\n";
}

std::vector<SlurmScript> SlurmScript::grid(const std::vector<GridAxis>& axes) const {
  check(*this);
  constexpr std::size_t kMostPoints = 100000;
  std::size_t points = 1;
  for (const GridAxis& axis : axes) {
    if (!is_plain(axis.flag, "-_.")) refuse("the flag of an axis", axis.flag, "a flag as --lr");
    if (axis.values.empty()) fail<ConfigError>("SlurmScript: the axis ", axis.flag, " has no values");
    for (const std::string& value : axis.values)
      if (!one_line(value)) refuse("a value of an axis", value, "one line");
    points *= axis.values.size();
    if (points > kMostPoints) fail<ConfigError>("SlurmScript: the grid has more than ", kMostPoints, " points");
  }
  std::vector<SlurmScript> scripts;
  for (std::size_t point = 0; point < points; ++point) {
    SlurmScript script = *this;
    script.job_name += "-" + std::to_string(point);
    std::string flags;
    std::size_t rest = point;
    for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
      flags = " " + axis->flag + " " + quoted(axis->values[rest % axis->values.size()]) + flags;
      rest /= axis->values.size();
    }
    script.commands.back() += flags;
    scripts.push_back(std::move(script));
  }
  return scripts;
}

std::string SlurmScript::submit() const {
  const std::string script = render();
  std::error_code error;
  std::filesystem::create_directories(log_dir, error);  // SLURM makes none
  if (error) fail<ConfigError>("SlurmScript: the folder ", log_dir, " cannot be made: ", error.message());
  const ProgramEnd end = run_program({"sbatch", "--parsable"}, script);
  const std::string id = end.out.substr(0, end.out.find_first_of(";\n"));  // "123" or "123;cluster"
  if (end.code != 0 || !read_count(id)) {
    fail<CommError>("SlurmScript: sbatch refused the script with code ", end.code, ": ",
                    end.err.empty() ? end.out : end.err);
  }
  return id;
}

std::string slurm_job_name() {
  if (has_variable("SLURM_ARRAY_JOB_ID") && has_variable("SLURM_ARRAY_TASK_ID"))
    return variable("SLURM_ARRAY_JOB_ID") + "_" + variable("SLURM_ARRAY_TASK_ID");
  return variable(has_variable("SLURM_JOB_ID") ? "SLURM_JOB_ID" : "SLURM_JOBID");
}

void requeue_job() {
  const std::string job = slurm_job_name();
  if (job.empty()) fail<StateError>("requeue_job: this process belongs to no SLURM job: SLURM_JOB_ID is not set");
  const ProgramEnd end = run_program({"scontrol", "requeue", job}, "");
  if (end.code != 0) {
    fail<CommError>("requeue_job: scontrol requeue ", job, " failed with code ", end.code, ": ",
                    end.err.empty() ? end.out : end.err);
  }
}

}  // namespace levin::dist
