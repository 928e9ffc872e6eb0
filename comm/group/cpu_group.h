// A group over an engine on the host: the queue, what is checked before a tensor is queued, split.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "comm/group/engine.h"
#include "comm/group/group.h"
#include "comm/group/lane.h"
#include "levin/comm.h"

namespace levin::dist {

class CpuGroup final : public ProcessGroup {
 public:
  // `ranks` is null for threads of one process, whose engine compares the calls itself.
  CpuGroup(int rank, int size, std::shared_ptr<Engine> engine, std::uint32_t id, std::shared_ptr<Rendezvous> ranks);
  ~CpuGroup() override;
  [[nodiscard]] std::string_view backend() const override { return engine_->name(); }
  [[nodiscard]] std::shared_ptr<ProcessGroup> split(int color, int key) override;
  void abort(std::string_view reason) noexcept override;

 protected:
  [[nodiscard]] Work issue(Call&& call) override;

 private:
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Rendezvous> ranks_;
  std::shared_ptr<Lane> collectives_, sends_, receives_;
  std::uint32_t id_;  // of the group, in entries
  std::uint64_t issued_ = 0, splits_ = 0;
};

// A group's id in entries, a hash of its ranks.
[[nodiscard]] std::uint32_t id_of(const Rendezvous& ranks);

// What a collective does in a group of one rank: out becomes in, on the tensors' current stream.
void copy_alone(const Tensor& out, const Tensor& in);

// The ranks of a part and its rank order: those whose "color key" equals this rank's color, by key, then by rank.
struct Part {
  int color = -1;
  std::vector<int> ranks;
  int rank = -1;  // in the part
};
[[nodiscard]] Part part_of(ProcessGroup& group, int color, int key);

}  // namespace levin::dist
