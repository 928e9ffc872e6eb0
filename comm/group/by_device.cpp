#include "comm/group/by_device.h"

#include <string>
#include <string_view>
#include <utility>

#include "comm/group/cpu_group.h"
#include "comm/group/group.h"
#include "comm/group/nccl.h"

namespace levin::dist {
namespace {

class GroupByDevice final : public ProcessGroup {
 public:
  GroupByDevice(std::shared_ptr<Rendezvous> ranks, std::string cpu_backend, Device device)
      : ProcessGroup(ranks->rank(), ranks->size()),
        cpu_backend_(std::move(cpu_backend)),
        device_(device),
        cpu_(make_cpu_group(ranks, cpu_backend_)),
        devices_(make_nccl_group(ranks, device)),
        ranks_(std::move(ranks)),
        name_("cpu:" + std::string(cpu_->backend()) + (device.is_cuda() ? ",cuda:" : ",simt:") +
              std::string(devices_->backend())) {}

  [[nodiscard]] std::string_view backend() const override { return name_; }
  [[nodiscard]] std::shared_ptr<ProcessGroup> split(int color, int key) override {
    const Part part = part_of(*this, color, key);
    if (part.color < 0) return nullptr;
    return std::make_shared<GroupByDevice>(ranks_->part(part.ranks), cpu_backend_, device_);
  }
  void abort(std::string_view reason) noexcept override {
    cpu_->abort(reason);  // the job decides on one cause
    devices_->abort(reason);
  }

 protected:
  [[nodiscard]] Work issue(Call&& call) override {
    if (call.op == Collective::barrier) {
      issue_in(*devices_, Call(call)).wait();
      return issue_in(*cpu_, std::move(call));
    }
    const Tensor& t = call.out.defined() ? call.out : call.in;
    return issue_in(t.device().launches() ? *devices_ : *cpu_, std::move(call));
  }

 private:
  std::string cpu_backend_;
  Device device_;
  std::shared_ptr<ProcessGroup> cpu_, devices_;
  std::shared_ptr<Rendezvous> ranks_;
  std::string name_;
};

}  // namespace

std::shared_ptr<ProcessGroup> group_by_device(std::shared_ptr<Rendezvous> ranks, std::string cpu_backend,
                                              Device device) {
  return std::make_shared<GroupByDevice>(std::move(ranks), std::move(cpu_backend), device);
}

}  // namespace levin::dist
