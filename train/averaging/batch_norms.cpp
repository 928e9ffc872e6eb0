#include "train/averaging/batch_norms.h"

#include <optional>
#include <vector>

#include "levin/autograd.h"
#include "levin/nn/layers.h"
#include "levin/ops.h"
#include "levin/train/averaging.h"
#include "train/run/evaluation.h"
#include "train/run/scope.h"

namespace levin {
namespace {

nn::BatchNorm* with_statistics(nn::Module& module) {
  auto* norm = dynamic_cast<nn::BatchNorm*>(&module);
  return norm && norm->options.track_running_stats ? norm : nullptr;
}

// Makes a batch norm average over all batches until the scope ends.
class Cumulative {
 public:
  explicit Cumulative(nn::BatchNorm& norm) : norm_(norm), momentum_(norm.momentum) {
    for (const Tensor* t : statistics()) before_.push_back(t->clone());
    norm.reset_running_stats();
    norm.momentum.reset();
  }
  ~Cumulative() { norm_.momentum = momentum_; }
  Cumulative(const Cumulative&) = delete;
  Cumulative& operator=(const Cumulative&) = delete;
  void put_back() {
    for (std::size_t i = 0; i < before_.size(); ++i) copy_(*statistics()[i], before_[i]);
  }

 private:
  [[nodiscard]] std::array<Tensor*, 3> statistics() const {
    return {&norm_.running_mean, &norm_.running_var, &norm_.num_batches_tracked};
  }
  nn::BatchNorm& norm_;
  std::optional<double> momentum_;
  Tensors before_;
};

}  // namespace

bool train::has_statistics(nn::Module& module) {
  bool any = false;
  module.visit([&](const std::string&, nn::Module& m) { any = any || with_statistics(m); });
  return any;
}

void train::estimate_statistics(nn::Module& module, const Function<void()>& pass) {
  const NoGrad off;
  const ModeGuard modes(&module);
  module.train();
  std::vector<std::unique_ptr<Cumulative>> norms;
  module.visit([&](const std::string&, nn::Module& m) {
    nn::BatchNorm* norm = with_statistics(m);
    if (norm && norm->is_training()) norms.push_back(std::make_unique<Cumulative>(*norm));
  });
  if (norms.empty()) return;
  try {
    pass();
  } catch (...) {
    for (const auto& n : norms) n->put_back();
    throw;
  }
}

void update_bn(data::DataLoader& loader, nn::Module& module, const Function<void(const Batch&)>& forward) {
  train::estimate_statistics(module, [&] {
    const std::vector<ParamRef> parameters = module.parameters();
    const Device device = parameters.empty() ? module.device() : parameters.front().value->device();
    bool any = false;
    for (const Batch& loaded : loader) {
      Batch batch = loaded;
      for (Tensor& t : batch.fields) {
        if (t.defined()) t = t.to(device);
      }
      forward(batch);
      any = true;
    }
    if (!any) fail<DataError>("update_bn: the loader gave no batch; the statistics of batch norms need one");
  });
}

}  // namespace levin
