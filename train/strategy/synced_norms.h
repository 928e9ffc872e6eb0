// TrainerOptions::sync_batchnorm.
#pragma once

#include <memory>
#include <vector>

#include "levin/comm.h"
#include "levin/nn/module.h"

namespace levin::nn {
class BatchNorm;
}

namespace levin::train {

// While it lives, the batch norms of `tree` take their statistics over the ranks of `group`. Null: nothing changes.
class SyncedNorms {
 public:
  SyncedNorms(nn::Module* tree, const std::shared_ptr<dist::ProcessGroup>& group);
  ~SyncedNorms();
  SyncedNorms(const SyncedNorms&) = delete;
  SyncedNorms& operator=(const SyncedNorms&) = delete;

 private:
  std::vector<std::pair<nn::BatchNorm*, std::shared_ptr<dist::ProcessGroup>>> before_;
};

}  // namespace levin::train
