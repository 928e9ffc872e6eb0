// What training batches do that costs and is easy not to see: copies to the device, graphs that are kept.
#pragma once

#include <cstdint>
#include <memory>

#include "levin/live_graph.h"
#include "levin/train/trainer.h"

namespace levin::train {

class BatchWatch {
 public:
  void start();        // a fit begins
  void batch_start();  // before the batch goes to its device
  // The step is done. Warns once a fit of more copies to the device than the batch has tensors.
  void step_done(const Batch& batch);
  // All of the batch is done. Warns of a release of cached memory in it, and once a fit when each of 50 batches left more recorded ops alive than the one before.
  void batch_done();
  [[nodiscard]] const Trainer::CopyReport& copies() const { return copies_; }

 private:
  static constexpr int kGrowing = 50;  // batches
  Trainer::CopyReport copies_;
  CopyCounts before_, own_before_;
  std::int64_t releases_before_ = 0;
  bool told_copies_ = false, told_growth_ = false;
  std::int64_t alive_ = 0, alive_at_first_ = 0;
  int grown_ = 0;                      // batches in a row
  std::unique_ptr<GraphWatch> watch_;  // in the last of them: who makes what is kept
};

}  // namespace levin::train
