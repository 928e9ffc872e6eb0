// LayerSync: layers that compute over the batches of all ranks.
//
//   Trainer trainer({.devices = 4, .strategy = "ddp", .plugins = {.layer_sync = std::make_shared<MySync>()}});
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "levin/comm.h"
#include "levin/export.h"
#include "levin/nn/module.h"

namespace levin {

namespace nn {
class BatchNorm;
}

// Derive from it for layers of your own that have statistics. A fit on one rank does not call it.
class LEVIN_API LayerSync {
 public:
  LayerSync() = default;
  virtual ~LayerSync();
  LayerSync(const LayerSync&) = delete;
  LayerSync& operator=(const LayerSync&) = delete;

  // Makes the layers of `tree` compute over the ranks of `group`. Called in a fit of several ranks, when the module is
  // on its device and equal on all ranks, and before configure_optimizers.
  virtual void apply(nn::Module& tree, const std::shared_ptr<dist::ProcessGroup>& group) = 0;
  // Makes the layers as they were before apply(). Called at the end of that fit, also after an exception.
  virtual void revert(nn::Module& tree) noexcept = 0;
};

// Batch norms take their statistics over the batches of all ranks: what TrainerOptions::sync_batchnorm stands for.
class LEVIN_API BatchNormSync final : public LayerSync {
 public:
  void apply(nn::Module& tree, const std::shared_ptr<dist::ProcessGroup>& group) override;
  void revert(nn::Module& tree) noexcept override;

 private:
  std::vector<std::pair<nn::BatchNorm*, std::shared_ptr<dist::ProcessGroup>>> before_;
};

}  // namespace levin
