// levin-run: starts a program as the ranks of a job. It reads its own flags up to `--` and leaves all others alone.
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "levin/comm/launch.h"
#include "levin/error.h"

using namespace levin;

namespace {

constexpr int kUsageCode = 2, kInternalCode = 70;

constexpr const char* kUsage =
    "usage: levin-run -n N [--nnodes K --node-rank R --rdzv HOST:PORT] [--max-restarts M] [--grace S] -- PROGRAM "
    "[ARGUMENTS]\n"
    "\n"
    "Runs PROGRAM as N ranks on this machine, and ends all of them when one fails.\n"
    "  -n N, --nproc-per-node N  ranks of this machine (default 1)\n"
    "  --nnodes K                machines; run levin-run on each (default 1)\n"
    "  --node-rank R             the number of this machine, 0 to K-1\n"
    "  --rdzv HOST:PORT          an address of machine 0, with a free port\n"
    "  --max-restarts M          start a job that failed again, at most M times (default 0)\n"
    "  --grace S                 seconds from SIGTERM to SIGKILL when the job ends early (default 8)\n"
    "\n"
    "The exit code is 0, or that of the rank that failed first: 128 + N after signal N, 127 if PROGRAM cannot start.\n"
    "SIGINT and SIGTERM go to all ranks; a second one kills them. Output of ranks above 0 begins with [rank R].\n"
    "Between machines the ranks need a common secret: export LEVIN_JOB_SECRET=$(openssl rand -hex 32)\n";

[[noreturn]] void usage_error(const std::string& what) {
  std::fprintf(stderr, "levin-run: %s\n\n%s", what.c_str(), kUsage);
  std::exit(kUsageCode);
}

int number(std::string_view flag, const char* text) {
  int n = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), n);
  if (error != std::errc() || *end != '\0')
    usage_error(std::string(flag) + " is \"" + text + "\", expected a whole number");
  return n;
}

}  // namespace

int main(int argc, char** argv) {
  dist::RunOptions o;
  int i = 1;
  for (; i < argc; ++i) {
    std::string_view flag = argv[i];
    const char* value = nullptr;
    if (flag == "--") {
      ++i;
      break;
    }
    if (flag == "--help" || flag == "-h") {
      std::fputs(kUsage, stdout);
      return 0;
    }
    if (flag.empty() || flag[0] != '-') break;  // the program, without --
    if (const std::size_t equals = flag.find('='); flag.starts_with("--") && equals != std::string_view::npos) {
      value = argv[i] + equals + 1;
      flag = flag.substr(0, equals);
    } else if (i + 1 < argc) {
      value = argv[++i];
    }
    if (value == nullptr) usage_error(std::string(flag) + " needs a value");
    if (flag == "-n" || flag == "--nproc-per-node") {
      o.processes = number(flag, value);
    } else if (flag == "--nnodes") {
      o.nodes = number(flag, value);
    } else if (flag == "--node-rank") {
      o.node_rank = number(flag, value);
    } else if (flag == "--rdzv") {
      o.rendezvous = value;
    } else if (flag == "--max-restarts") {
      o.max_restarts = number(flag, value);
    } else if (flag == "--grace") {
      o.grace = number(flag, value);
    } else {
      usage_error("unknown flag " + std::string(flag));
    }
  }
  o.command.assign(argv + i, argv + argc);
  try {
    return dist::run_job(o);
  } catch (const ConfigError& e) { usage_error(std::string(e.message())); } catch (const std::exception& e) {
    std::fprintf(stderr, "levin-run: %s\n", e.what());
    return kInternalCode;
  }
}
