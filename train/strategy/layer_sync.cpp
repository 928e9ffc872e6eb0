#include "levin/train/layer_sync.h"

#include <utility>

#include "levin/nn/layers.h"

namespace levin {

LayerSync::~LayerSync() = default;

void BatchNormSync::apply(nn::Module& tree, const std::shared_ptr<dist::ProcessGroup>& group) {
  tree.visit([&](const std::string&, nn::Module& m) {
    if (auto* const norm = dynamic_cast<nn::BatchNorm*>(&m))
      before_.emplace_back(norm, std::exchange(norm->sync_group, group));
  });
}
void BatchNormSync::revert(nn::Module&) noexcept {
  for (auto& [norm, group] : before_) norm->sync_group = std::move(group);
  before_.clear();
}

}  // namespace levin
