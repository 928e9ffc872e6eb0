#include "comm/group/by_device.h"

#include <string>
#include <string_view>
#include <utility>

#include "comm/group/group.h"

namespace levin::dist {
namespace {

class GroupByDevice final : public ProcessGroup {
 public:
  GroupByDevice(std::shared_ptr<ProcessGroup> cpu, std::shared_ptr<ProcessGroup> devices, Device device)
      : ProcessGroup(cpu->rank(), cpu->size()),
        name_("cpu:" + std::string(cpu->backend()) + (device.is_cuda() ? ",cuda:" : ",simt:") +
              std::string(devices->backend())),
        device_(device),
        cpu_(std::move(cpu)),
        devices_(std::move(devices)) {}

  [[nodiscard]] std::string_view backend() const override { return name_; }
  [[nodiscard]] std::shared_ptr<ProcessGroup> split(int color, int key) override {
    std::shared_ptr<ProcessGroup> cpu = cpu_->split(color, key), devices = devices_->split(color, key);
    if (!cpu) return nullptr;
    return std::make_shared<GroupByDevice>(std::move(cpu), std::move(devices), device_);
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
  std::string name_;
  Device device_;
  std::shared_ptr<ProcessGroup> cpu_, devices_;
};

}  // namespace

std::shared_ptr<ProcessGroup> group_by_device(std::shared_ptr<ProcessGroup> cpu, std::shared_ptr<ProcessGroup> devices,
                                              Device device) {
  return std::make_shared<GroupByDevice>(std::move(cpu), std::move(devices), device);
}

}  // namespace levin::dist
