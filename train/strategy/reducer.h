// Averages the gradients of ranks in buckets.
//
// Note [Buckets]
// A bucket is one flat buffer for the gradients of several parameters of one dtype and device, in the reverse order of
// registration, which is nearly the order in which a backward completes them. When a parameter's gradient is complete
// it is copied into its place. When a bucket and all buckets before it are complete its all_reduce starts, while the
// backward pass goes on: every rank issues the same buckets in the same order. After the backward pass each gradient
// becomes the view of its place, so the average is not copied back.
//
// A backward is waited for by the parameters that require grad when it begins: frozen ones are left out, on all ranks
// alike.
#pragma once

#include <cstdint>
#include <vector>

#include "levin/autograd.h"
#include "levin/comm.h"
#include "levin/optim.h"

namespace levin::train {

class Reducer {
 public:
  // `first_bytes`: of the first bucket; `bytes`: of the others. `finds_unused`: DdpOptions::find_unused_parameters.
  Reducer(std::vector<ParamRef> parameters, dist::ProcessGroup& group, std::int64_t first_bytes, std::int64_t bytes,
          bool finds_unused);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  void begin();   // before a backward pass whose gradients are averaged
  void finish();  // after it; throws StateError for parameters without a gradient, on every rank
  void forget();  // the backward pass that began has failed
  [[nodiscard]] std::size_t buckets() const { return buckets_.size(); }

 private:
  struct Place {
    ParamRef parameter;
    Tensor slot;  // a view of the bucket, in the parameter's shape
    HookHandle hook;
    bool waited_for = false, complete = false;
  };
  struct Bucket {
    Tensor flat;
    std::vector<Place> places;
    std::int64_t waiting = 0;  // places that the running backward has still to complete
    bool used = false;         // the running backward waits for one of its places
    dist::Work work;
  };
  void completed(std::size_t bucket, std::size_t place, const Tensor& gradient);
  void issue_complete();
  [[nodiscard]] std::string missing_text() const;  // parameters without a gradient on this rank, a line each

  dist::ProcessGroup& group_;
  bool finds_unused_;
  bool running_ = false;
  std::vector<Bucket> buckets_;
  std::size_t next_ = 0;  // the first bucket that is not issued
};

}  // namespace levin::train
