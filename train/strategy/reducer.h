// Averages gradients over ranks, in buckets, beside the backward pass.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levin/autograd.h"
#include "levin/comm.h"
#include "levin/train/ddp_strategy.h"
#include "train/strategy/power_sgd.h"

namespace levin::train {

// Note [Buckets]
//
// A reduction of many small tensors waits for the network once each, so gradients lie in flat buckets. Each bucket is
// one reduction. Parameters that the module declares last are used last and complete first in backward, so buckets are
// filled in reverse. The first has 1 MiB, so that communication starts early. A bucket holds parameters of one dtype,
// one device and one set of optimizers: an optimizer that is toggled alone is reduced alone.
//
// A hook on each leaf counts its bucket down. A bucket is issued when it and all buckets before it are complete, so all
// ranks issue in one order, on the group's own thread or stream, while backward runs. After the first pass of each
// optimizer the buckets are built once more, in the order in which rank 0 completed its gradients.
//
// A pass waits for the parameters that require grad when it begins. What gradients a bucket holds of others, such as
// earlier passes left, is averaged again, which changes nothing: the average is linear.
class Reducer {
 public:
  struct Member {
    std::string name;
    Tensor value;
    std::uint64_t optimizers = 0;  // bit k: optimizer k has it
  };
  // All parameters that may ever require grad; those that do not require it yet get a bucket when they do.
  Reducer(std::shared_ptr<dist::ProcessGroup> group, std::vector<Member> members, const DdpOptions& options);
  ~Reducer();  // gradients stay where they are
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // backward(loss), and with SyncGrad::yes the average. Throws StateError for parameters without a gradient, CommError.
  void backward(const Tensor& loss, SyncGrad sync);

  // What this rank's next pass depends on beside gradients: that of CommHook::powersgd, by parameter name.
  [[nodiscard]] NamedTensors state() const;
  void load_state(const NamedTensors& state);  // throws ConfigError, and changes nothing then

  [[nodiscard]] const DdpStrategy::Report& report() const { return report_; }

 private:
  enum class Part : std::uint8_t { outside, awaited, unused, arrived };  // of a parameter in a pass
  struct Parameter {
    Member of;
    Tensor home{};
    std::size_t bucket = 0;
    HookHandle hook{};
    Part part = Part::outside;
    bool has_home = false;
  };
  struct Bucket {
    std::vector<std::size_t> parameters;
    Tensor flat;
    std::int64_t waiting = 0;
    bool takes_part = false;
    Tensor sent{};  // what travels
    dist::Work work{};
    std::shared_ptr<PowerSgd::Round> round{};  // instead of both
  };

  void build(const std::vector<std::size_t>& order);
  void admit();    // parameters that have begun to require grad
  void rebuild();  // in the order of the passes so far
  void begin(const Tensor& loss);
  void find_unused(const Tensor& loss);
  void leave_out(Parameter& p);  // counts as a gradient of 0
  void arrived(std::size_t parameter);
  void issue_complete();
  void issue(Bucket& bucket);
  void issue_compressed(Bucket& bucket);
  void finish();
  void settle_missing();
  [[nodiscard]] std::string signature() const;  // which parameters require grad
  [[noreturn]] void fail_missing(const std::vector<std::size_t>& missing) const;

  std::shared_ptr<dist::ProcessGroup> group_;
  const DdpOptions options_;
  std::vector<Parameter> parameters_;  // in the order of registration
  std::vector<Bucket> buckets_;
  std::size_t next_ = 0;                   // the first bucket that is not issued
  bool active_ = false;                    // in a pass that reduces
  std::vector<std::size_t> completed_;     // in the order of their first gradients
  std::size_t passes_before_rebuild_ = 0;  // 0: there is none to come
  bool rebuild_due_ = false;
  // static_graph: the unused parameters of passes by their signature.
  std::vector<std::pair<std::string, std::string>> learnt_;
  Tensor used_;  // u8, by parameter
  std::optional<PowerSgd> power_sgd_;
  std::int64_t passes_ = 0;                  // that reduced
  bool compresses_ = false;                  // this pass
  std::shared_ptr<PowerSgd::Round> newest_;  // of this pass
  DdpStrategy::Report report_;
};

}  // namespace levin::train
