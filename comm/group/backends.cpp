// Which engine connects the ranks of a group.
#include "comm/group/cpu_group.h"
#include "comm/group/gloo.h"
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

std::shared_ptr<Engine> make_engine(const std::shared_ptr<Rendezvous>& ranks, std::string_view backend) {
  if (backend == "gloo:all") return make_gloo_engine(ranks, GlooUse::everywhere);
  const int elsewhere = first_elsewhere(*ranks);
  if (elsewhere < 0) return make_shm_engine(ranks);
  if (backend == "shm") {
    fail<ConfigError>("init_process_group: backend is \"shm\", but rank ", ranks->world_rank(elsewhere), " and rank ",
                      ranks->world_rank(0), " are on different hosts; \"auto\" connects hosts by Gloo");
  }
  return make_gloo_engine(ranks, GlooUse::hosts);
}

}  // namespace

std::uint32_t id_of(const Rendezvous& ranks) {
  std::uint32_t id = 1;
  for (int r = 0; r < ranks.size(); ++r) id = id * 0x01000193u ^ static_cast<std::uint32_t>(ranks.world_rank(r) + 1);
  return id;
}

std::shared_ptr<ProcessGroup> make_cpu_group(std::shared_ptr<Rendezvous> ranks, std::string_view backend) {
  if (backend != "auto" && backend != "shm" && backend != "gloo" && backend != "gloo:all")
    fail<ConfigError>("init_process_group: backend is \"", backend,
                      "\", expected auto, shm, gloo, gloo:all, nccl or single, or one for each kind of device, such as "
                      "\"cpu:gloo,cuda:nccl\"");
  const std::uint32_t id = id_of(*ranks);
  const int rank = ranks->rank(), size = ranks->size();
  auto engine = make_engine(ranks, backend);
  return std::make_shared<CpuGroup>(rank, size, std::move(engine), id, std::move(ranks));
}

}  // namespace levin::dist
