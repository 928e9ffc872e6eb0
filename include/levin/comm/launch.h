// Starting the processes of a job: launchers for one machine, and scripts for SLURM.
//
//   auto job = dist::launch_script({.processes = 4});    // this process becomes rank 0 and starts three more
//   auto world = dist::init_process_group();             // all four meet here
//
// Note [The script launcher runs main again]
//
// launch_script starts the program again, with the same arguments, for each further rank: main runs once in each
// process, and everything before the call runs in each process, too. A rank finds its place in the environment
// (ClusterEnvironment::detect). In those processes launch_script returns at once.
//
// A program that cannot be started again, such as a plug-in of another program, uses spawn, which runs a function in
// children that are copies of the calling process. `levin-run -n 4 -- PROGRAM ARGUMENTS` starts any program from
// outside.
//
// Note [The end of a job]
//
// The ranks of a node end together. A rank that exits with a code other than 0, or dies of a signal, ends the job: the
// other ranks get SIGTERM, and SIGKILL after `grace` seconds. A rank that exits with 75 survived the failure of another
// rank, so the launcher waits two seconds for the rank that failed first. At the end the launcher prints which rank
// failed, with which code, and the last lines of its stderr. Processes that a killed rank has started die with it. The
// ranks get SIGTERM when the process that started them dies.
//
// Ranks above 0 read /dev/null. Their output appears line by line behind "[rank 1] ".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "levin/comm/cluster.h"
#include "levin/export.h"
#include "levin/function.h"

namespace levin::dist {

struct LaunchOptions {
  int processes = 1;  // of this node
  int nodes = 1;      // with the same number of processes each; the user starts the program on each of them
  // Several nodes need NODE_RANK, MASTER_ADDR and MASTER_PORT, by the environment.
  double grace = 8;  // seconds from SIGTERM to SIGKILL
};

// Makes this process local rank 0 and starts the other ranks of this node: Note [The script launcher runs main again].
// Sets LOCAL_RANK, RANK, NODE_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR (127.0.0.1), MASTER_PORT (a free port),
// LEVIN_RUN_ID and LEVIN_JOB_SECRET (of 32 random bytes, on one node) in this process and in those that it starts;
// OMP_NUM_THREADS, where it is unset, and Levin's own number of threads become max(1, CPUs / processes). Call it before
// work starts, and while no other thread reads the environment.
//
// When this process ends with code 0 it waits for the others first. If one of them failed, this process ends with that
// rank's code. When this process ends with another code the others are ended. When another rank fails and this process
// does not end within `grace` seconds, the launcher ends it with that rank's code.
//
// Returns the environment of this process: that of the existing job, without starting anything, where this process has
// been started by a launcher or has called launch_script before. Throws ConfigError where the job's size differs from
// `options`, an address is missing, or the program cannot be started again.
LEVIN_API std::shared_ptr<ClusterEnvironment> launch_script(const LaunchOptions& options);

// Seconds, from this call, for which launchers of this job wait with SIGKILL, because this rank is writing a checkpoint
// that must not be cut. 0 ends it. From any thread; without a launcher it does nothing.
LEVIN_API void hold_kill(double seconds) noexcept;

struct SpawnOptions {
  double grace = 8;  // seconds from SIGTERM to SIGKILL
};

// Runs body(rank) in `processes` children of this process, made by fork, as the ranks of one job, and returns what the
// bodies returned, in the order of ranks. The variables of launch_script are set in the children. What a child changes
// in memory is lost with it. In a child one thread exists; CPU kernels start theirs again.
// An error of a child ends the others and is thrown here, with the rank before its text and, for errors of Levin, as
// the same type. Throws
//   ConfigError  fewer than 1 processes
//   StateError   the CUDA driver is in use by this process: it does not survive a fork; use launch_script
//   CommError    a child that died of a signal or called exit
LEVIN_API std::vector<std::string> spawn(int processes, const Function<std::string(int)>& body,
                                         const SpawnOptions& options = {});

struct RunOptions {
  int processes = 1;                   // of this node
  int nodes = 1, node_rank = 0;        // with the same number of processes each
  std::string rendezvous{};            // "host:port" of node 0; needed for several nodes
  int max_restarts = 0;                // how often a job that failed is started again
  std::vector<std::string> command{};  // the program, found by PATH, and its arguments
  double grace = 8;                    // seconds from SIGTERM to SIGKILL
};

// What levin-run does: runs `command` as the ranks of this node and waits for their end. SIGINT, SIGTERM, SIGHUP,
// SIGUSR1 and SIGUSR2 of this process go to all ranks; a second SIGINT or SIGTERM kills them. Returns 0, or the exit
// code of the rank that failed first: 128 + the number of the signal that killed it, 127 for a program that cannot be
// started. Throws ConfigError for options that contradict each other.
[[nodiscard]] LEVIN_API int run_job(const RunOptions& options);

// Puts a running SLURM job back into the queue, with the id of this process's job or its task of a job array
// (`scontrol requeue`). Only rank 0 calls it, after all ranks have saved: SLURM sends SIGTERM to all tasks in the same
// second. Throws StateError outside of a SLURM job, and CommError with scontrol's words where it fails.
LEVIN_API void requeue_job();
// What scontrol calls this job: SLURM_JOB_ID, or SLURM_ARRAY_JOB_ID and SLURM_ARRAY_TASK_ID as "1234_5". Empty outside
// of a SLURM job.
[[nodiscard]] LEVIN_API std::string slurm_job_name();

// One hyper-parameter of a grid: "--lr" with {"0.1", "0.01"}.
struct GridAxis {
  std::string flag;
  std::vector<std::string> values;
};

// A batch script for SLURM, whose commands run under srun with one task for each device.
struct LEVIN_API SlurmScript {
  std::string job_name = "levin";  // bash and interactive would disable the job's detection
  int nodes = 1;
  int gpus_per_node = 0;               // 0: CPU ranks
  int tasks_per_node = 1;              // ranks of a node, the trainer's devices
  std::string time = "01:00:00";       // limit: MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS
  std::string memory_per_node{};       // "64G"; empty: the cluster's default
  std::string log_dir = ".";           // of JOBNAME-JOBID.log, appended to after a requeue
  std::vector<std::string> modules{};  // module load
  std::string email{};                 // of messages at the end and at a failure; empty: none
  // Sent 90 seconds before the limit, upon which the trainer saves and requeues; empty: none.
  std::string requeue_signal = "SIGUSR1";
  std::vector<std::string> commands{};  // shell lines; the last one is the program, which srun starts

  // The script. Throws ConfigError for values that SLURM would refuse or that would break the script.
  [[nodiscard]] std::string render() const;
  // One script for each point of the grid, the last axis fastest: the job's name gets a number and the program the
  // point's flags.
  [[nodiscard]] std::vector<SlurmScript> grid(const std::vector<GridAxis>& axes) const;
  // Hands the script to sbatch and returns the id of the job. Throws ConfigError without sbatch, CommError with
  // sbatch's words where it refuses.
  [[nodiscard]] std::string submit() const;
};

}  // namespace levin::dist
