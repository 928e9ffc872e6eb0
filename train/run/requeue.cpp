#include "train/run/requeue.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "comm/launch/variables.h"
#include "levin/comm/launch.h"
#include "levin/error.h"
#include "train/checkpoint/folder.h"

namespace levin::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBegin = "hpc_ckpt_";

std::string root_of(const TrainerOptions& o) { return o.default_root_dir.empty() ? "." : o.default_root_dir; }

// By N, the largest first.
std::vector<std::pair<std::int64_t, std::string>> numbered(const TrainerOptions& options) {
  std::vector<std::pair<std::int64_t, std::string>> found;
  std::error_code error;
  for (fs::directory_iterator it(root_of(options), error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().stem().string();
    if (!is_checkpoint_name(it->path().string()) || !name.starts_with(kBegin)) continue;
    const char* const from = name.data() + kBegin.size();
    const char* const to = name.data() + name.size();
    std::int64_t n = 0;
    const auto [at, bad] = std::from_chars(from, to, n);
    if (bad == std::errc() && at == to && n > 0) found.emplace_back(n, it->path().string());
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

}  // namespace

int requeue_signal(const TrainerOptions& options) {
  std::string name = options.requeue_signal;
  if (name.empty()) return 0;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
  if (name.starts_with("SIG")) name = name.substr(3);
  for (int number = 1; number < SIGRTMIN; ++number) {
    const char* const known = ::sigabbrev_np(number);
    if (known && name == known && number != SIGKILL && number != SIGSTOP) return number;
  }
  fail<ConfigError>("Trainer: requeue_signal is \"", options.requeue_signal,
                    "\", expected the name of a signal that a process can handle, as SIGUSR1, or \"\" for none");
}

bool in_slurm_task() {
  if (!dist::has_variable("SLURM_STEP_ID") || dist::slurm_job_name().empty()) return false;
  const std::string name = dist::variable("SLURM_JOB_NAME");
  return name != "bash" && name != "interactive";
}

std::vector<std::string> hpc_files(const TrainerOptions& options) {
  std::vector<std::string> paths;
  for (auto& [n, path] : numbered(options)) paths.push_back(std::move(path));
  return paths;
}

std::string next_hpc_file(const TrainerOptions& options, std::string_view ending) {
  const auto found = numbered(options);
  return root_of(options) + "/" + std::string(kBegin) + text(found.empty() ? 1 : found.front().first + 1) +
         std::string(ending);
}

}  // namespace levin::train
