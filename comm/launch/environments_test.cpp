#include "comm/launch/environments.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <string>

#include "levin/comm/cluster.h"
#include "levin/error.h"
#include "levin/serialize.h"
#include "tests/temporary.h"
#include "tests/variables.h"
#include "tests/warnings.h"

using namespace levin;
using dist::ClusterEnvironment;
using test::PlantedVariables;

namespace {

std::string error_of(const PlantedVariables&) {
  try {
    (void)ClusterEnvironment::detect();
  } catch (const ConfigError& e) { return e.what(); }
  return "";
}

std::string mismatch(const ClusterEnvironment& e, int devices, int num_nodes) {
  try {
    e.validate(devices, num_nodes);
  } catch (const ConfigError& error) { return error.what(); }
  return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a process that nothing started is one process, and its launcher starts the others") {
  const PlantedVariables planted({});
  const auto e = ClusterEnvironment::detect();
  CHECK(e->name() == "single");
  CHECK_FALSE(e->creates_processes_externally());
  CHECK(e->world_size() == 1);
  CHECK(e->global_rank() == 0);
  CHECK(mismatch(*e, 4, 1).empty());
  CHECK(has(mismatch(*e, 4, 2), "MASTER_ADDR"));
}

TEST_CASE("a node of a job that a person starts by hand says which one it is") {
  const PlantedVariables planted({{"NODE_RANK", "1"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "1234"}});
  const auto e = ClusterEnvironment::detect();
  CHECK(e->node_rank() == 1);
  CHECK(e->main_address() == "10.0.0.1");
  CHECK(e->main_port() == 1234);
  CHECK(mismatch(*e, 4, 2).empty());
  CHECK(has(mismatch(*e, 4, 1), "NODE_RANK is 1, and num_nodes is 1"));
}

TEST_CASE("torchrun's variables describe a rank, and its agent holds the port") {
  const PlantedVariables planted({{"TORCHELASTIC_RUN_ID", "none"},
                                  {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                  {"TORCHELASTIC_RESTART_COUNT", "2"},
                                  {"RANK", "3"},
                                  {"LOCAL_RANK", "1"},
                                  {"WORLD_SIZE", "4"},
                                  {"LOCAL_WORLD_SIZE", "2"},
                                  {"GROUP_RANK", "1"},
                                  {"MASTER_ADDR", "n1"},
                                  {"MASTER_PORT", "29500"},
                                  // Also inside of a step of SLURM that runs torchrun.
                                  {"SLURM_STEP_ID", "0"},
                                  {"SLURM_PROCID", "0"},
                                  {"SLURM_NTASKS", "1"}});
  const auto e = ClusterEnvironment::detect();
  CHECK(e->name() == "torchrun");
  CHECK(e->creates_processes_externally());
  CHECK(e->main_address() == "n1");
  CHECK(e->main_port() == 29500);
  CHECK(e->main_port_is_taken());
  CHECK(e->world_size() == 4);
  CHECK(e->global_rank() == 3);
  CHECK(e->local_rank() == 1);
  CHECK(e->node_rank() == 1);
  CHECK(e->run_id() == "none");
  CHECK(e->restart_count() == 2);
  CHECK(mismatch(*e, 2, 2).empty());
  const std::string error = mismatch(*e, 3, 2);
  CHECK(has(error, "WORLD_SIZE is 4"));
  CHECK(has(error, "is 6"));
}

TEST_CASE("torchrun's variables that are missing, no numbers or contradict each other are named") {
  CHECK(has(error_of(PlantedVariables({{"LEVIN_ELASTIC_RUN_ID", "x"}})), "WORLD_SIZE is missing"));
  CHECK(has(error_of(PlantedVariables({{"TORCHELASTIC_RUN_ID", "x"}, {"WORLD_SIZE", "two"}})),
            "WORLD_SIZE is \"two\", expected a whole number from 1"));
  const PlantedVariables outside({{"TORCHELASTIC_RUN_ID", "x"},
                                  {"WORLD_SIZE", "2"},
                                  {"RANK", "2"},
                                  {"LOCAL_RANK", "0"},
                                  {"MASTER_ADDR", "a"},
                                  {"MASTER_PORT", "1"}});
  CHECK(has(error_of(outside), "rank 2 (local rank 0) is outside of a job of 2"));
  const PlantedVariables local({{"TORCHELASTIC_RUN_ID", "x"},
                                {"WORLD_SIZE", "4"},
                                {"RANK", "2"},
                                {"LOCAL_RANK", "2"},
                                {"LOCAL_WORLD_SIZE", "2"},
                                {"MASTER_ADDR", "a"},
                                {"MASTER_PORT", "1"}});
  CHECK(has(error_of(local), "contradict each other"));
  const PlantedVariables port({{"TORCHELASTIC_RUN_ID", "x"},
                               {"WORLD_SIZE", "1"},
                               {"RANK", "0"},
                               {"LOCAL_RANK", "0"},
                               {"MASTER_ADDR", "a"},
                               {"MASTER_PORT", "65536"}});
  CHECK(has(error_of(port), "MASTER_PORT is \"65536\""));
}

namespace {

// Task 5 of 8 on two nodes of four, as srun sets it; an empty text removes a variable.
struct Step : PlantedVariables {
  explicit Step(List more = {})
      : PlantedVariables({{"SLURM_STEP_ID", "3"},
                          {"SLURM_JOB_ID", "123456789"},
                          {"SLURM_PROCID", "5"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_NTASKS", "8"},
                          {"SLURM_STEP_NUM_TASKS", "8"},
                          {"SLURM_NNODES", "2"},
                          {"SLURM_TASKS_PER_NODE", "4(x2)"},
                          {"SLURM_NODELIST", "host[5-6]"},
                          {"SLURM_JOB_NAME", "train"}}) {
    for (const auto& [name, value] : more) {
      if (*value != '\0')
        ::setenv(name, value, 1);
      else
        ::unsetenv(name);
    }
  }
};

}  // namespace

TEST_CASE("a step of SLURM describes its ranks") {
  const Step planted({{"SLURM_RESTART_COUNT", "1"}});
  const auto e = ClusterEnvironment::detect();
  CHECK(e->name() == "slurm");
  CHECK(e->main_address() == "host5");
  CHECK(e->main_port() == 21789);
  CHECK(e->world_size() == 8);
  CHECK(e->global_rank() == 5);
  CHECK(e->local_rank() == 1);
  CHECK(e->node_rank() == 1);
  CHECK(e->run_id() == "slurm-123456789.3");
  CHECK(e->restart_count() == 1);
  CHECK_FALSE(e->main_port_is_taken());
  CHECK(mismatch(*e, 4, 2).empty());
}

TEST_CASE("a step of SLURM that does not fit the trainer's devices and nodes is refused with both numbers") {
  const Step planted;
  const auto e = ClusterEnvironment::detect();
  CHECK(has(mismatch(*e, 4, 3), "the step has 2 nodes, and num_nodes is 3"));
  const std::string tasks = mismatch(*e, 2, 2);
  CHECK(has(tasks, "a node runs 4 tasks, as SLURM_TASKS_PER_NODE says, and devices is 2"));
  const Step each({{"SLURM_TASKS_PER_NODE", ""}, {"SLURM_NTASKS_PER_NODE", "4"}});
  CHECK(has(mismatch(*ClusterEnvironment::detect(), 2, 2), "as SLURM_NTASKS_PER_NODE says, and devices is 2"));
  CHECK(mismatch(*ClusterEnvironment::detect(), 4, 2).empty());
}

TEST_CASE("uneven tasks on SLURM's nodes are refused, and so are tasks that no variable spreads over nodes") {
  const Step uneven({{"SLURM_TASKS_PER_NODE", "5,3"}});
  CHECK(has(mismatch(*ClusterEnvironment::detect(), 5, 2), "a node runs 3 tasks"));
  const Step none({{"SLURM_TASKS_PER_NODE", ""}});
  CHECK(has(error_of(none), "8 tasks run, and none of SLURM_NTASKS_PER_NODE"));
  const Step wrong({{"SLURM_TASKS_PER_NODE", "4x2"}});
  CHECK(has(error_of(wrong), "\"4x2\", expected numbers of tasks"));
}

TEST_CASE("variables of SLURM that are missing or no node lists are named") {
  const Step list({{"SLURM_NODELIST", "host[5-"}});
  CHECK(has(error_of(list), "SLURM_NODELIST is \"host[5-\""));
  const Step rank({{"SLURM_PROCID", ""}});
  CHECK(has(error_of(rank), "SLURM_PROCID is missing"));
}

TEST_CASE("a step's own numbers come before those of its SLURM job") {
  const Step planted({{"SLURM_STEP_NUM_TASKS", "1"},
                      {"SLURM_STEP_TASKS_PER_NODE", "1"},
                      {"SLURM_STEP_NUM_NODES", "1"},
                      {"SLURM_PROCID", "0"},
                      {"SLURM_LOCALID", "0"},
                      {"SLURM_NODEID", "0"}});
  const auto e = ClusterEnvironment::detect();
  CHECK(e->world_size() == 1);
  CHECK(e->main_address() == "127.0.0.1");
  CHECK(mismatch(*e, 1, 1).empty());
}

TEST_CASE("MASTER_PORT and MASTER_ADDR come before what is derived from a SLURM job") {
  const Step planted({{"MASTER_PORT", "4321"}, {"MASTER_ADDR", "ib0"}});
  CHECK(ClusterEnvironment::detect()->main_port() == 4321);
  CHECK(ClusterEnvironment::detect()->main_address() == "ib0");
  const Step none({{"SLURM_JOB_ID", ""}});
  CHECK(ClusterEnvironment::detect()->main_port() == 12910);
  CHECK(dist::port_of_job("123456789") == 21789);
  CHECK(dist::port_of_job("7") == 15007);
  CHECK(dist::port_of_job("") == 12910);
}

TEST_CASE("a program of a SLURM batch script without srun is one process, and hears of srun") {
  const test::TemporaryFolder folder;
  write_file_atomically(folder / "srun", "#!/bin/sh\n");
  ::chmod((folder / "srun").c_str(), 0700);
  const Step planted({{"SLURM_STEP_ID", ""}, {"PATH", folder.path().c_str()}});
  const test::Warnings warnings;
  const auto e = ClusterEnvironment::detect();
  CHECK(e->name() == "single");
  CHECK(e->world_size() == 1);
  CHECK(warnings.count("W-SLURM-SRUN") == 1);
}

TEST_CASE("SLURM's job names bash and interactive make each task a job by itself") {
  for (const char* name : {"bash", "interactive"}) {
    const test::ExpectedWarnings expected{"W-SLURM-JOB-NAME"};
    const Step planted({{"SLURM_JOB_NAME", name}});
    CHECK(ClusterEnvironment::detect()->name() == "single");
  }
}

TEST_CASE("ranks of mpirun inside of a step of SLURM are mpirun's") {
  const Step planted({{"OMPI_COMM_WORLD_RANK", "1"},
                      {"OMPI_COMM_WORLD_SIZE", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                      {"PMIX_NAMESPACE", "7"}});
  CHECK(ClusterEnvironment::detect()->name() == "mpi");
}

TEST_CASE("ranks of LSF read their hosts from the rank file") {
  const test::TemporaryFolder folder;
  write_file_atomically(folder / "ranks", "batch\nc1.cluster\nc1.cluster\nc2.cluster\nc2.cluster\n");
  const PlantedVariables planted({{"LSB_JOBID", "1234567"},
                                  {"LSB_DJOB_RANKFILE", (folder / "ranks").c_str()},
                                  {"JSM_NAMESPACE_SIZE", "4"},
                                  {"JSM_NAMESPACE_RANK", "3"},
                                  {"JSM_NAMESPACE_LOCAL_RANK", "1"}});
  const auto e = ClusterEnvironment::detect();
  CHECK(e->name() == "lsf");
  CHECK(e->main_address() == "c1.cluster");
  CHECK(e->main_port() == 19567);
  CHECK(e->world_size() == 4);
  CHECK(e->global_rank() == 3);
  CHECK(e->local_rank() == 1);
  CHECK(e->node_rank() == -1);  // this machine is none of them
  const PlantedVariables missing({{"LSB_JOBID", "1"},
                                  {"LSB_DJOB_RANKFILE", (folder / "none").c_str()},
                                  {"JSM_NAMESPACE_SIZE", "1"},
                                  {"JSM_NAMESPACE_RANK", "0"},
                                  {"JSM_NAMESPACE_LOCAL_RANK", "0"}});
  CHECK(has(error_of(missing), "LSB_DJOB_RANKFILE cannot be read"));
}

TEST_CASE("ranks of Open MPI on one node derive their port from the job's name") {
  const auto planted = [](const char* space) {
    return PlantedVariables({{"OMPI_COMM_WORLD_RANK", "1"},
                             {"OMPI_COMM_WORLD_SIZE", "2"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                             {"OMPI_COMM_WORLD_NODE_RANK", "1"},  // the rank within the node
                             {"PMIX_NAMESPACE", space}});
  };
  int first = 0;
  {
    const PlantedVariables one = planted("2766536705");
    const auto e = ClusterEnvironment::detect();
    CHECK(e->name() == "mpi");
    CHECK(e->main_address() == "127.0.0.1");
    CHECK(e->node_rank() == 0);
    CHECK(e->local_rank() == 1);
    CHECK(e->run_id() == "mpi-2766536705");
    first = e->main_port();
    CHECK(first >= 15000);
    CHECK(first < 25000);
    CHECK(ClusterEnvironment::detect()->main_port() == first);
  }
  const PlantedVariables other = planted("2766536706");
  CHECK(ClusterEnvironment::detect()->main_port() != first);
}

TEST_CASE("ranks of Open MPI on several nodes need an address") {
  const auto planted = [](const char* address) {
    return PlantedVariables({{"OMPI_COMM_WORLD_RANK", "1"},
                             {"OMPI_COMM_WORLD_SIZE", "4"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                             {"PMIX_NAMESPACE", "1"},
                             {"MASTER_ADDR", address}});
  };
  CHECK(has(error_of(planted("")), "set MASTER_ADDR"));
  const PlantedVariables with = planted("n0");
  CHECK(ClusterEnvironment::detect()->main_address() == "n0");
  CHECK(ClusterEnvironment::detect()->node_rank() == -1);
}

TEST_CASE("ranks of PMI need a port where nothing names the job") {
  CHECK(has(error_of(PlantedVariables(
                {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}})),
            "set MASTER_PORT"));
  const PlantedVariables planted({{"PMI_RANK", "1"},
                                  {"PMI_SIZE", "2"},
                                  {"MPI_LOCALRANKID", "1"},
                                  {"MPI_LOCALNRANKS", "2"},
                                  {"MASTER_PORT", "5000"}});
  const auto e = ClusterEnvironment::detect();
  CHECK(e->global_rank() == 1);
  CHECK(e->main_port() == 5000);
}

TEST_CASE("Levin's own launchers come before the cluster that runs them") {
  const Step planted({{"LEVIN_LAUNCHER", "levin-run"},
                      {"LEVIN_RUN_ID", "ab"},
                      {"LEVIN_RESTART_COUNT", "1"},
                      {"LOCAL_RANK", "1"},
                      {"RANK", "3"},
                      {"NODE_RANK", "1"},
                      {"WORLD_SIZE", "4"},
                      {"LOCAL_WORLD_SIZE", "2"},
                      {"MASTER_ADDR", "10.0.0.1"},
                      {"MASTER_PORT", "4000"}});
  const auto e = ClusterEnvironment::detect();
  CHECK(e->name() == "levin");
  CHECK(e->global_rank() == 3);
  CHECK(e->node_rank() == 1);
  CHECK(e->world_size() == 4);
  CHECK(e->run_id() == "ab");
  CHECK(e->restart_count() == 1);
}

TEST_CASE("processes that a person starts by hand need LOCAL_RANK, WORLD_SIZE and an address") {
  const PlantedVariables planted(
      {{"LOCAL_RANK", "1"}, {"NODE_RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "4000"}});
  const auto e = ClusterEnvironment::detect();
  CHECK(e->name() == "levin");
  CHECK(e->creates_processes_externally());
  CHECK(e->global_rank() == 1);
  CHECK(e->main_address() == "127.0.0.1");
  CHECK(has(mismatch(*e, 3, 1), "WORLD_SIZE is 2, and num_nodes 1 times devices 3 is 3"));
  CHECK(has(error_of(PlantedVariables({{"LOCAL_RANK", "1"}})), "WORLD_SIZE is missing"));
  CHECK(has(error_of(PlantedVariables({{"LOCAL_RANK", "1"}, {"WORLD_SIZE", "2"}})), "MASTER_PORT is missing"));
  CHECK(has(error_of(PlantedVariables({{"LOCAL_RANK", "0"}, {"WORLD_SIZE", "4"}, {"NODE_RANK", "1"}})),
            "LOCAL_WORLD_SIZE is missing"));
  CHECK(has(error_of(PlantedVariables({{"LEVIN_LAUNCHER", "script"}})), "LOCAL_RANK is not"));
}
