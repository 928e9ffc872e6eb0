#include "train/strategy/synced_norms.h"

#include <utility>

#include "levin/nn/layers.h"

namespace levin::train {

SyncedNorms::SyncedNorms(nn::Module* tree, const std::shared_ptr<dist::ProcessGroup>& group) {
  if (!tree || !group) return;
  tree->visit([&](const std::string&, nn::Module& m) {
    if (auto* const norm = dynamic_cast<nn::BatchNorm*>(&m))
      before_.emplace_back(norm, std::exchange(norm->sync_group, group));
  });
}
SyncedNorms::~SyncedNorms() {
  for (auto& [norm, group] : before_) norm->sync_group = std::move(group);
}

}  // namespace levin::train
