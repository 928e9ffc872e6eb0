// Starts a bundled program, or a program of bench/, as a process without a data folder, a cache or a route to the
// network.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "levin/serialize.h"
#include "tests/skip.h"
#include "tests/temporary.h"
#include "tests/where.h"

extern char** environ;

namespace levin::test {

class Program {
 public:
  struct Ended {
    int code = -1;
    std::string output;  // stdout and stderr
  };

  Program(const std::string& name, const TemporaryFolder& dir, const std::string& folder = "examples")
      : name_(folder + "/" + name), path_(build_dir() + "/" + name_), dir_(dir) {}

  // Returns false, and the test counts as skipped, where it is not built. ./run test builds benchmarks with --all only.
  [[nodiscard]] bool built() const {
    if (name_.starts_with("bench/") && !runs_everything()) {
      skip("benchmark programs: ./run test --all builds and starts them");
      return false;
    }
    if (std::filesystem::exists(path_)) return true;
    skip(name_ + " is not built");
    return false;
  }

  // input: a file that becomes its stdin; {}: that of this process.
  [[nodiscard]] pid_t start(std::vector<std::string> arguments, const std::string& input = {}) const {
    arguments.insert(arguments.begin(), path_);
    std::vector<std::string> variables;
    for (char** e = environ; *e; ++e) {
      const std::string v = *e;
      if (!v.starts_with("LEVIN_DATA=") && !v.starts_with("XDG_CACHE_HOME=") && !v.starts_with("https_proxy=") &&
          !v.starts_with("no_proxy=") && !v.starts_with("NO_PROXY="))
        variables.push_back(v);
    }
    variables.push_back("XDG_CACHE_HOME=" + dir_.path() + "/cache");
    variables.push_back("https_proxy=http://127.0.0.1:9");  // nobody listens there: curl fails at once
    std::vector<char*> argv = pointers(arguments), envp = pointers(variables);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, output().c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    if (!input.empty()) posix_spawn_file_actions_addopen(&files, 0, input.c_str(), O_RDONLY, 0);
    pid_t child = 0;
    REQUIRE(posix_spawn(&child, path_.c_str(), &files, nullptr, argv.data(), envp.data()) == 0);
    posix_spawn_file_actions_destroy(&files);
    return child;
  }
  [[nodiscard]] Ended wait_for(pid_t child) const {
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), .output = output_so_far()};
  }
  [[nodiscard]] std::string output_so_far() const { return read_file(output(), std::size_t{1} << 22); }
  [[nodiscard]] Ended run(std::vector<std::string> arguments) const { return wait_for(start(std::move(arguments))); }

 private:
  static std::vector<char*> pointers(std::vector<std::string>& words) {
    std::vector<char*> all;
    for (std::string& w : words) all.push_back(w.data());
    all.push_back(nullptr);
    return all;
  }
  [[nodiscard]] std::string output() const { return dir_ / "output.txt"; }
  std::string name_, path_;
  const TemporaryFolder& dir_;
};

// Equal for equal weights: the hashes of the tensors of out/model.safetensors.
inline std::string weights_of(const std::string& out) {
  std::string all;
  for (const auto& [name, tensor] : load_safetensors(out + "/model.safetensors").tensors)
    all += content_hash(name, tensor);
  return all;
}

inline nlohmann::json json_of(const std::string& path) { return nlohmann::json::parse(read_file(path, 1 << 20)); }

}  // namespace levin::test
