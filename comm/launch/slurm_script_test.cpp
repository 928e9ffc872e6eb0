#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "levin/comm/launch.h"
#include "levin/error.h"
#include "levin/serialize.h"
#include "tests/planted_program.h"
#include "tests/temporary.h"
#include "tests/variables.h"

using namespace levin;
using dist::SlurmScript;
using test::PlantedProgram;
using test::PlantedVariables;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

template <class E, class F>
std::string error_of_call(F&& f) {
  try {
    f();
  } catch (const E& e) { return e.what(); }
  return "no such error";
}

}  // namespace

TEST_CASE("a SLURM script asks for what its fields say, and starts its last command by srun") {
  const SlurmScript script{.job_name = "vision",
                           .nodes = 2,
                           .gpus_per_node = 4,
                           .tasks_per_node = 4,
                           .time = "1-00:30:00",
                           .memory_per_node = "64G",
                           .log_dir = "my logs",
                           .modules = {"cuda/13.0"},
                           .email = "a@b.org",
                           .commands = {"cd /data", "./train --devices 4"}};
  const std::string text = script.render();
  for (const char* line :
       {"#!/bin/bash\n", "\n#SBATCH --job-name=vision\n", "\n#SBATCH --nodes=2\n", "\n#SBATCH --ntasks-per-node=4\n",
        "\n#SBATCH --gpus-per-node=4\n", "\n#SBATCH --time=1-00:30:00\n", "\n#SBATCH --mem=64G\n",
        "\n#SBATCH --output=\"my logs/vision-%j.log\"\n", "\n#SBATCH --open-mode=append\n", "\n#SBATCH --requeue\n",
        "\n#SBATCH --signal=USR1@90\n", "\n#SBATCH --mail-user=a@b.org\n", "\nmodule load cuda/13.0\n",
        "\nexport LEVIN_JOB_SECRET\n", "\ncd /data\nexec srun --kill-on-bad-exit=1 ./train --devices 4\n"})
    CHECK(has(text, line));
  const SlurmScript plain{.requeue_signal = "", .commands = {"./train"}};
  for (const char* absent : {"--gpus", "--mem", "--mail", "--requeue", "--signal", "module"})
    CHECK_FALSE(has(plain.render(), absent));
}

TEST_CASE("the shell accepts a SLURM script, whose secret has 32 bytes") {
  const test::TemporaryFolder folder;
  const PlantedProgram srun("srun", "echo \"$LEVIN_JOB_SECRET $*\"\n");
  const SlurmScript script{.commands = {"echo before", "./train --name 'two words'"}};
  write_file_atomically(folder / "script", script.render());
  const std::string command = "bash '" + (folder / "script") + "' >'" + (folder / "out") + "'";
  REQUIRE(std::system(command.c_str()) == 0);
  const std::string out = read_file(folder / "out", 4096);
  const std::size_t space = out.find(' ');
  CHECK(out.substr(0, 7) == "before\n");
  CHECK(space == 7 + 64);
  CHECK(out.substr(space) == " --kill-on-bad-exit=1 ./train --name two words\n");
}

TEST_CASE("values that would break a SLURM script are refused by name") {
  const auto error = [](SlurmScript script) {
    if (script.commands.empty()) script.commands = {"./train"};
    return error_of_call<ConfigError>([&] { (void)script.render(); });
  };
  CHECK(has(error({.job_name = "a b"}), "job_name is \"a b\""));
  CHECK(has(error({.job_name = "bash"}), "marks an interactive job"));
  CHECK(has(error({.nodes = 0}), "nodes is \"0\""));
  CHECK(has(error({.tasks_per_node = 0}), "tasks_per_node"));
  CHECK(has(error({.gpus_per_node = -1}), "gpus_per_node"));
  for (const char* time : {"", "1h", "1:2:3:4", "1-", "-1", ":30"}) CHECK(has(error({.time = time}), "time is"));
  for (const char* memory : {"G", "64GB", "-1G"}) CHECK(has(error({.memory_per_node = memory}), "memory_per_node"));
  CHECK(has(error({.log_dir = "a\"b"}), "log_dir"));
  CHECK(has(error({.modules = {"a; rm"}}), "modules"));
  CHECK(has(error({.email = "a b"}), "email"));
  CHECK(has(error({.requeue_signal = "USR1@9"}), "requeue_signal"));
  CHECK(has(error({.commands = {"a\nb"}}), "commands"));
  CHECK(has(error_of_call<ConfigError>([] { (void)SlurmScript{}.render(); }), "commands is empty"));
}

TEST_CASE("a grid of hyper-parameters gives a SLURM script for each point, the last axis fastest") {
  const SlurmScript script{.job_name = "sweep", .commands = {"./train"}};
  const auto scripts = script.grid({{"--lr", {"0.1", "0.01"}}, {"--name", {"a", "it's b", "c"}}});
  REQUIRE(scripts.size() == 6);
  CHECK(scripts[0].commands.back() == "./train --lr 0.1 --name a");
  CHECK(scripts[1].commands.back() == "./train --lr 0.1 --name 'it'\\''s b'");
  CHECK(scripts[5].commands.back() == "./train --lr 0.01 --name c");
  CHECK(scripts[5].job_name == "sweep-5");
  CHECK_THROWS_AS((void)script.grid({{"--lr", {}}}), ConfigError);
  CHECK_THROWS_AS((void)script.grid({{"lr; rm", {"1"}}}), ConfigError);
  const std::vector<std::string> many(400, "1");
  CHECK_THROWS_AS((void)script.grid({{"--a", many}, {"--b", many}}), ConfigError);
}

TEST_CASE("sbatch gets the SLURM script, and its refusal is an error with its words") {
  const PlantedVariables planted({});
  const test::TemporaryFolder logs;
  const SlurmScript script{.log_dir = logs / "new", .commands = {"./train"}};
  {
    const PlantedProgram sbatch("sbatch", "cat >'" + (logs / "script") + "'\necho '4711;cluster'\n");
    CHECK(script.submit() == "4711");
    CHECK(read_file(logs / "script", 1 << 16) == script.render());
    CHECK(std::filesystem::is_directory(logs / "new"));
  }
  const PlantedProgram refusing("sbatch", "echo 'sbatch: error: invalid partition' >&2\nexit 1\n");
  CHECK(has(error_of_call<CommError>([&] { (void)script.submit(); }), "code 1: sbatch: error: invalid partition"));
  ::setenv("PATH", logs.path().c_str(), 1);
  CHECK(has(error_of_call<ConfigError>([&] { (void)script.submit(); }), "sbatch cannot be started"));
}

TEST_CASE("a job of SLURM is requeued by its id, a task of an array by both ids") {
  const test::TemporaryFolder folder;
  const auto requeue = [&](PlantedVariables::List variables) {
    const PlantedVariables planted(variables);
    const PlantedProgram scontrol("scontrol", "echo \"$*\" >'" + (folder / "words") + "'\n");
    dist::requeue_job();
    return read_file(folder / "words", 4096);
  };
  CHECK(requeue({{"SLURM_JOB_ID", "12"}}) == "requeue 12\n");
  CHECK(requeue({{"SLURM_JOB_ID", "15"}, {"SLURM_ARRAY_JOB_ID", "12"}, {"SLURM_ARRAY_TASK_ID", "3"}}) ==
        "requeue 12_3\n");
  const PlantedVariables none({});
  CHECK(dist::slurm_job_name().empty());
  CHECK_THROWS_AS(dist::requeue_job(), StateError);
  const PlantedVariables job({{"SLURM_JOB_ID", "12"}});
  const PlantedProgram failing("scontrol", "echo 'Job is unknown' >&2\nexit 1\n");
  CHECK(has(error_of_call<CommError>([] { dist::requeue_job(); }),
            "scontrol requeue 12 failed with code 1: Job is unknown"));
}
