// Which engine connects the ranks of a group.
#include "comm/group/cpu_group.h"
#include "comm/group/shm.h"
#include "levin/error.h"

namespace levin::dist {
namespace {

// The first rank that cannot share memory with rank 0; -1: all can.
int first_elsewhere(const Rendezvous& ranks) {
  for (int r = 1; r < ranks.size(); ++r) {
    if (ranks.host(r) != ranks.host(0)) return r;
  }
  return -1;
}

}  // namespace

std::shared_ptr<ProcessGroup> make_cpu_group(std::shared_ptr<Rendezvous> ranks, std::string_view backend) {
  if (backend == "gloo" || backend == "gloo:all" || backend == "nccl")
    fail<UnsupportedError>("init_process_group: backend is \"", backend,
                           "\", which this build does not have; it has auto and shm, between processes of one host");
  if (backend != "auto" && backend != "shm")
    fail<ConfigError>("init_process_group: backend is \"", backend, "\", expected auto or shm");
  if (const int r = first_elsewhere(*ranks); r >= 0)
    fail<UnsupportedError>("init_process_group: rank ", ranks->world_rank(r), " and rank ", ranks->world_rank(0),
                           " are on different hosts, and this build connects the processes of one host");
  std::uint32_t id = 1;
  for (int r = 0; r < ranks->size(); ++r) id = id * 0x01000193u ^ static_cast<std::uint32_t>(ranks->world_rank(r) + 1);
  const int rank = ranks->rank(), size = ranks->size();
  auto engine = make_shm_engine(ranks);
  return std::make_shared<CpuGroup>(rank, size, std::move(engine), id, std::move(ranks));
}

}  // namespace levin::dist
