// ShardedStrategy: data-parallel training whose ranks share the optimizer's state. Base of ZeroStrategy.
//
// The trained parameters lie in flat buckets, of which each rank owns an equal slice. After backward each rank has the
// average gradient of its slice alone, its optimizer updates that (Optimizer::use_pieces), and the ranks exchange the
// updated slices. Every element gets the update that it gets under ddp.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "levin/train/process_strategy.h"

namespace levin {

// What the sharded strategies have in common.
//
// - The optimizer treats each element by itself: LBFGS is a ConfigError.
// - Every rank makes the same passes. A parameter that requires grad and gets no gradient is a StateError.
// - Optimization is automatic, with one optimizer (ConfigError).
// - Gradients are in Optimizer::parameters() after backward, a piece of each parameter, and no longer in the module's.
//   gradient_clip_val clips by the norm over all ranks; optim::clip_grad_norm_ sees the pieces of one rank.
// - Parameters that the optimizer does not have stay as they are, and their gradients are those of the rank.
// - A checkpoint has the whole state in one file, which any strategy and number of ranks loads. After an error no
//   checkpoint is written, because each rank has a part of the state alone (W-CKPT-SHARDED).
// - With one process the strategy does nothing.
class LEVIN_API ShardedStrategy : public ProcessStrategy {
 public:
  ~ShardedStrategy() override;

  void attach_model(TrainModule& module, nn::Module* tree, Stage stage) override;
  void attach_optimizers(std::span<const std::shared_ptr<optim::Optimizer>> optimizers) override;
  void detach() noexcept override;
  void begin_step() override;
  void backward(const Tensor& loss, SyncGrad sync) override;
  void merge_weight(Tensor& weight) override;
  void merge_squared_norm(Tensor& sum) override;
  void merge_found_inf(Tensor& found) override;
  void finish_step() override;
  [[nodiscard]] std::string prevents_capture() const override;
  [[nodiscard]] Tensor whole(const Tensor& piece, const Tensor& of) override;
  [[nodiscard]] Tensor piece(const Tensor& whole, const Tensor& of) override;

  // What this rank holds of the trained parameters, in bytes, in the present or last fit.
  struct Report {
    std::int64_t buckets = 0;
    std::int64_t largest_bucket = 0;   // of whole parameters, with padding
    std::int64_t parameters = 0;       // all ranks' elements, without padding
    std::int64_t peak_gradients = 0;   // the most at once: of whole buckets, and of slices
    std::int64_t optimizer_state = 0;  // Optimizer::state_sizes, while the optimizer lives
  };
  [[nodiscard]] Report report() const;

 protected:
  struct Sharding {
    double bucket_cap_mb = 25;
    bool reduces_each_batch = true;  // else gradients of an open window are whole
  };
  ShardedStrategy(ProcessOptions options, Sharding sharding);

 private:
  struct Attached;  // of the present or last fit
  Sharding sharding_;
  std::unique_ptr<Attached> attached_;  // never null
  nn::Module* tree_ = nullptr;          // of a fit
  bool stale_ = false;                  // buffers, since the last reduction
};

}  // namespace levin
