#include "train/profiler/batch_watch.h"

#include <cmath>

#include "levin/autograd.h"
#include "levin/error.h"
#include "levin/memory.h"
#include "levin/ops.h"
#include "levin/warning.h"

namespace levin::train {

void BatchWatch::start() { *this = BatchWatch(); }

void BatchWatch::batch_start() {
  before_ = copy_counts();
  releases_before_ = cache_releases();
  if (grown_ + 1 == kGrowing && !told_growth_) watch_ = std::make_unique<GraphWatch>();
}

void BatchWatch::step_done(const Batch& batch) {
  copies_.newest = copy_counts() - before_;
  copies_.all += copies_.newest;
  ++copies_.batches;
  const auto fields = static_cast<std::int64_t>(batch.fields.size());
  const CopyCounts& made = copies_.newest;
  if (told_copies_ || copies_.batches == 1 || made.to_device <= fields) return;  // in the first things are made
  told_copies_ = true;
  warn("W-TRAIN-COPIES", WarningCategory::possible_user,
       "fit: a training batch of " + text(fields) + " tensors made " + text(made.to_device) +
           " copies to the device (" + text(made.to_device_bytes) +
           " bytes); make tensors where they are used, by factories with the module's device() or register_buffer");
}

void BatchWatch::batch_done() {
  if (cache_releases() != releases_before_)
    warn("W-TRAIN-CACHE", WarningCategory::possible_user,
         "fit: release_cached_memory was called in a training batch; the device stands still for it, and the next step "
         "asks the system for the same memory again: leave it out, or call it between runs");
  const std::int64_t now = live_graph_nodes();
  if (grown_ == 0) alive_at_first_ = alive_;
  grown_ = now > alive_ && copies_.batches > 1 ? grown_ + 1 : 0;
  alive_ = now;
  if (grown_ < kGrowing || told_growth_) {
    if (grown_ == 0) watch_.reset();
    return;
  }
  told_growth_ = true;
  const char* const op = watch_ ? watch_->newest_alive() : nullptr;
  watch_.reset();
  warn("W-TRAIN-GRAPH-GROWS", WarningCategory::possible_user,
       "fit: each of the last " + text(kGrowing) + " batches left recorded ops alive, " +
           text((now - alive_at_first_) / kGrowing) + " each on average" +
           (op ? ", the newest of them made by " + std::string(op) : std::string()) +
           "; a tensor that is kept keeps its graph: detach() it, or use log() or a MeanMetric");
}

void LossWatch::batch_done(const Tensor& loss, std::int64_t step) {
  if (told_ || !loss.defined() || loss.device().is_meta()) return;
  step_ = step;
  if (loss.device().launches())
    kept_ = loss;
  else
    saw(loss.item());
}

Tensor LossWatch::kept() const {
  const NoGrad off;
  return kept_.defined() ? reshape(kept_.detach(), {}).to(DType::f64) : Tensor();
}

void LossWatch::read(double kept) {
  kept_ = Tensor();
  saw(kept);
}

void LossWatch::look() {
  if (const Tensor loss = std::exchange(kept_, Tensor()); loss.defined()) saw(loss.item());
}

void LossWatch::saw(double loss) {
  newest_ = loss;
  if (std::isfinite(loss)) {
    first_ = -1;
    return;
  }
  if (first_ < 0) first_ = step_;
  if (step_ - first_ + 1 >= kMany) tell();
}

void LossWatch::end() {
  look();
  if (first_ >= 0) tell();
}

void LossWatch::tell() {
  if (std::exchange(told_, true)) return;
  warn("W-TRAIN-NAN", WarningCategory::user,
       "fit: the loss is " + text(newest_) + " at step " + text(step_) +
           (first_ < step_ ? ", and was not finite since step " + text(first_) : std::string()) +
           "; detect_anomaly finds the op, a smaller learning rate or gradient_clip_val may help",
       Repeat::yes);
}

}  // namespace levin::train
