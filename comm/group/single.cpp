// The group of one rank.
#include "comm/group/cpu_group.h"
#include "comm/group/group.h"

namespace levin::dist {
namespace {

class SingleGroup final : public ProcessGroup {
 public:
  SingleGroup() : ProcessGroup(0, 1) {}
  [[nodiscard]] std::string_view backend() const override { return "single"; }
  [[nodiscard]] std::shared_ptr<ProcessGroup> split(int color, int) override {
    if (color < -1) fail<ConfigError>("split: a color is at least 0, or -1 for no group, got ", color);
    return color < 0 ? nullptr : std::make_shared<SingleGroup>();
  }
  [[nodiscard]] bool capturable() const override { return true; }
  void abort(std::string_view) noexcept override {}

 protected:
  [[nodiscard]] Work issue(Call&& call) override {
    if (call.out.defined() && call.in.defined()) {
      copy_alone(call.out, call.in);
      call.out.get().storage->wrote("collective");
    }
    return {};
  }
};

}  // namespace

std::shared_ptr<ProcessGroup> single_process_group() { return std::make_shared<SingleGroup>(); }

}  // namespace levin::dist
