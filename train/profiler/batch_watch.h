// Warns of costs of training batches that are easy to miss: copies to the device, graphs that are kept.
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
  // After the step. Warns once a fit of more copies to the device than the batch has tensors.
  void step_done(const Batch& batch);
  // After the batch. Warns of a release of cached memory in it, and once a fit if each of 50 batches left more recorded
  // ops alive than the one before.
  void batch_done();
  [[nodiscard]] const Trainer::CopyReport& copies() const { return copies_; }

 private:
  static constexpr int kGrowing = 50;  // batches
  Trainer::CopyReport copies_;
  CopyCounts before_;
  std::int64_t releases_before_ = 0;
  bool told_copies_ = false, told_growth_ = false;
  std::int64_t alive_ = 0, alive_at_first_ = 0;
  int grown_ = 0;                      // batches in a row
  std::unique_ptr<GraphWatch> watch_;  // in the last of them: which op made what is kept
};

// Warns of a loss that is no number. A loss in host memory is read in each batch. A loss on a device is kept, and read
// when the host reads from the device anyway. Warns once a fit if no reading in kMany batches was finite, and at the
// end of the training if the newest reading was not.
class LossWatch {
 public:
  void start() { *this = LossWatch(); }
  void batch_done(const Tensor& loss, std::int64_t step);
  [[nodiscard]] Tensor kept() const;  // what batch_done kept, as an f64 cell; undefined: nothing
  void read(double kept);             // the number in it, which the caller has read
  void look();                        // reads what batch_done kept
  void end();                         // at the end of the training

 private:
  static constexpr std::int64_t kMany = 10;
  void saw(double loss);
  void tell();
  Tensor kept_;              // on a device
  std::int64_t step_ = 0;    // of the newest loss
  std::int64_t first_ = -1;  // step of the first of readings in a row that were not finite; -1: none
  double newest_ = 0;
  bool told_ = false;
};

}  // namespace levin::train
