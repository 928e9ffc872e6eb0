// What a strategy does for one process on one device.
#include "levin/train/strategy.h"

#include "levin/autograd.h"

namespace levin {

Strategy::Strategy() = default;
Strategy::~Strategy() = default;
void Strategy::check(const TrainerOptions&) const {}
void Strategy::connect(const TrainerOptions&) {}
std::string Strategy::run_in_copies(const TrainerOptions&, const Function<std::string()>& stage) { return stage(); }
void Strategy::all_reduce(const Tensor&, dist::ReduceOp) {}
void Strategy::attach_model(TrainModule&, nn::Module*, Stage) {}
void Strategy::attach_optimizers(std::span<const std::shared_ptr<optim::Optimizer>>) {}
StepOutput Strategy::training_step(const StepCall& call) { return call.forward(call.module, call.batch); }
void Strategy::backward(const Tensor& loss, SyncGrad) { levin::backward(loss); }
void Strategy::merge_weight(Tensor&) {}
void Strategy::merge_squared_norm(Tensor&) {}
void Strategy::merge_found_inf(Tensor&) {}
Tensor Strategy::whole(const Tensor& piece, const Tensor&) { return piece; }
Tensor Strategy::piece(const Tensor& whole, const Tensor&) { return whole; }
std::pair<std::int64_t, std::int64_t> Strategy::piece_range(const Tensor& of) const { return {0, of.numel()}; }
void Strategy::load_state(const NamedTensors&) {}
void Strategy::entered(Phase, std::int64_t) noexcept {}
void Strategy::failed(const std::exception&) noexcept {}
void Strategy::interrupted() noexcept {}

}  // namespace levin
