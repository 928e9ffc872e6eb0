// ShardedStrategy: data-parallel training whose ranks share the optimizer's state. Base of ZeroStrategy and
// FsdpStrategy.
//
// The trained parameters lie in flat buckets, of which each rank owns an equal slice. After backward each rank has the
// average gradient of its slice alone, its optimizer updates that (Optimizer::use_pieces), and the ranks exchange the
// updated slices. Every element gets the update that it gets under ddp.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "levin/train/process_strategy.h"

namespace levin {

// Where a rank keeps what its passes do not need: on the module's device, on the CPU, in a file.
enum class Offload : std::uint8_t { none, cpu, nvme };

// What lies elsewhere than the module, and where.
// - optimizer: the state of the optimizer, and the slices that it updates, f32 masters included. The gradients of these
//   slices are copied to the CPU, where the optimizer steps, and the new slices back. All copies go through the current
//   stream; the host waits for it once in each backward pass that reduces gradients, and once more in a step with exact
//   weighting or a loss scale, a number of which the CPU needs. Every element gets the update that the CPU computes.
// - params: with sharded parameters, the slices between two gathers, too. Needs optimizer (ConfigError).
// - cpu: page-locked memory with pin_memory, else pageable memory, whose copies are staged. A module on the CPU trains
//   as without offload.
// - nvme: one file of each rank in the folder nvme_path, of the disk space that it takes when the optimizer is
//   attached: a folder that is missing or cannot be written to is a FileError, a full disk an OutOfMemoryError, before
//   training begins. The file has no name while it is used, and its space is free when the optimizer goes, the process
//   ends or is killed. A step has the state of sub_group_size elements in memory at once, and gives the same bits.
// One process offloads, too.
struct OffloadOptions {
  Offload optimizer = Offload::none, params = Offload::none;
  std::string nvme_path = "/local_nvme";
  bool pin_memory = true;
  std::int64_t sub_group_size = 1'000'000'000'000;  // elements
};

// What a checkpoint is that the trainer names, where ranks share the state. Trainer::save_checkpoint goes by the name
// that it is given, whatever the type: NAME.levin is a folder.
//   full      one file, NAME.safetensors, which rank 0 gathers tensor by tensor and writes
//   sharded   a folder, NAME.levin, to which each rank writes its part at the same time, on a file system that all
//             ranks see; no rank ever has the whole model, and on_save_checkpoint sees sharded parameters on
//             Device::meta(). consolidate_checkpoint makes one file of it. Excludes plugins.checkpoint_io
//             (ConfigError).
// Both are resumed by any strategy and number of ranks, to the same bits.
enum class StateDictType : std::uint8_t { full, sharded };

// What the sharded strategies have in common.
//
// - The optimizer treats each element by itself: LBFGS, LAMB, Muon and Adafactor are ConfigErrors.
// - Every rank makes the same passes. A parameter that requires grad and gets no gradient is a StateError.
// - Optimization is automatic, with one optimizer (ConfigError).
// - Gradients are in Optimizer::parameters() after backward, a piece of each parameter, and no longer in the module's.
//   gradient_clip_val clips by the norm over all ranks; optim::clip_grad_norm_ sees the pieces of one rank.
// - Parameters that the optimizer does not have stay as they are, and their gradients are those of the rank.
// - A checkpoint has the whole state, in one file or in a folder (StateDictType), which any strategy and number of
//   ranks loads. After an error no checkpoint is written, because each rank has a part of the state alone
//   (W-CKPT-SHARDED): a run resumes from its newest checkpoint.
// - With sharded parameters, a module's parameters are on Device::meta() in hooks and wherever the module does not run.
//   A module is gathered if it reports its calls (nn::Call); one that does not is a StateError. Ranks that call modules
//   in different orders are a CommError, callbacks that average weights a ConfigError. Evaluations,
//   checkpoints and the end of the fit gather the whole model.
// - With one process nothing is shared; offloading, mixed precision and what is refused are the same there.
class LEVIN_API ShardedStrategy : public ProcessStrategy {
 public:
  ~ShardedStrategy() override;

  void check(const TrainerOptions& options) const override;
  void attach_model(TrainModule& module, nn::Module* tree, Stage stage) override;
  void attach_optimizers(std::span<const std::shared_ptr<optim::Optimizer>> optimizers) override;
  void detach() noexcept override;
  void begin_step() override;
  [[nodiscard]] StepOutput training_step(const StepCall& call) override;
  void backward(const Tensor& loss, SyncGrad sync) override;
  void merge_weight(Tensor& weight) override;
  void merge_squared_norm(Tensor& sum) override;
  void merge_found_inf(Tensor& found) override;
  void finish_step() override;
  [[nodiscard]] std::string prevents_capture() const override;
  [[nodiscard]] Tensor whole(const Tensor& piece, const Tensor& of) override;
  [[nodiscard]] Tensor piece(const Tensor& whole, const Tensor& of) override;
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> piece_range(const Tensor& of) const override;
  [[nodiscard]] bool shards_checkpoints() const override { return sharding_.state_dict_type == StateDictType::sharded; }
  void unshard() override;
  void reshard() override;

  // What this rank holds of the trained parameters, in bytes, in the present or last fit.
  struct Report {
    std::int64_t buckets = 0;
    std::int64_t largest_bucket = 0;   // of whole parameters, with padding
    std::int64_t parameters = 0;       // all ranks' elements, without padding
    std::int64_t peak_gradients = 0;   // the most at once: of whole buckets, and of slices
    std::int64_t peak_parameters = 0;  // likewise
    std::int64_t held_parameters = 0;  // now: of slices that are not offloaded, and of what is whole
    std::int64_t held_gradients = 0;   // likewise
    std::int64_t optimizer_state = 0;  // Optimizer::state_sizes, while the optimizer lives
    std::int64_t file = 0;             // of nvme
    std::int64_t peak_file_part = 0;   // the most bytes of it in memory at once
    std::int64_t gathered = 0;         // of whole parameters that were gathered since the fit began
    std::int64_t reduced = 0;          // of whole gradients that were reduced since the fit began
  };
  [[nodiscard]] Report report() const;

 protected:
  void leave() noexcept override;
  struct Sharding {
    double bucket_cap_mb = 25;
    bool reduces_each_batch = true;  // else gradients of an open window are whole
    bool parameters = false;         // sharded, too; a unit is one bucket then
    bool frees_after_forward = true;
    bool forward_prefetch = false, backward_prefetch = true;
    std::optional<DType> param{}, reduce{}, buffer{};  // mixed precision, with sharded parameters
    Function<bool(const nn::Module&)> is_unit{}, checkpoints{}, ignores{};
    int group_size = 0;  // ranks that share one copy; 0: all, -1: those of a node
    OffloadOptions offload{};
    bool overlaps = true;  // reductions and the rest of backward
    StateDictType state_dict_type = StateDictType::full;
  };
  ShardedStrategy(ProcessOptions options, Sharding sharding);

 private:
  struct Attached;  // of the present or last fit
  [[nodiscard]] std::vector<const nn::Module*> units() const;
  [[nodiscard]] bool mixed() const { return sharding_.param || sharding_.reduce || sharding_.buffer; }
  void make_groups();
  [[nodiscard]] bool offloads(const optim::Optimizer& optimizer) const;
  Sharding sharding_;
  std::shared_ptr<dist::ProcessGroup> shared_, copies_;  // ranks of one copy; ranks with the same slice, or null
  std::unique_ptr<Attached> attached_;                   // never null
  nn::Module* tree_ = nullptr;                           // of a fit
  bool stale_ = false;                                   // buffers, since the last reduction
};

}  // namespace levin
