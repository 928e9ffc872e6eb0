// What all calls of cuDNN share: descriptors, plans and how they are chosen, kept and run. Written against its C
// interface; cudnn_graph.h, the library's, calls a graph's nodes operations.
#pragma once

#include <cudnn_graph.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/lib/cudnn_plans.h"
#include "levin/dtype.h"
#include "levin/engines.h"
#include "levin/stream.h"

namespace levin::kernels::lib::cudnn {

// A call that cuDNN does not take. Never leaves the calls of cuDNN: their caller has kernels of its own.
struct Refused {
  cudnnStatus_t status;
};
inline void need(cudnnStatus_t status) {
  if (status != CUDNN_STATUS_SUCCESS) throw Refused{status};
}

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(cudnnBackendDescriptorType_t type) { need(cudnnBackendCreateDescriptor(type, &raw_)); }
  Descriptor(Descriptor&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~Descriptor() {
    if (raw_) (void)cudnnBackendDestroyDescriptor(raw_);
  }

  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t n, const void* v) {
    need(cudnnBackendSetAttribute(raw_, name, type, n, v));
    return *this;
  }
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const auto& value) {
    return set(name, type, 1, &value);
  }
  Descriptor& set(cudnnBackendAttributeName_t name, std::span<const std::int64_t> values) {
    return set(name, CUDNN_TYPE_INT64, static_cast<std::int64_t>(values.size()), values.data());
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& part) {
    return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, part.raw_);
  }
  Descriptor&& finish() {
    need(cudnnBackendFinalize(raw_));
    return std::move(*this);
  }
  // How many values were read, at most n.
  std::int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t n, void* v) const {
    std::int64_t count = 0;
    need(cudnnBackendGetAttribute(raw_, name, type, n, &count, v));
    return std::min(n, count);
  }
  [[nodiscard]] cudnnBackendDescriptor_t raw() const { return raw_; }

 private:
  cudnnBackendDescriptor_t raw_ = nullptr;
};

// Who compiles plans: a handle of a device, or the description of one that need not be here.
struct Target {
  cudnnHandle_t handle = nullptr;
  const Descriptor* described = nullptr;

  void put(Descriptor& into, cudnnBackendAttributeName_t handle_name,
           cudnnBackendAttributeName_t described_name) const {
    if (described)
      into.set(described_name, *described);
    else
      into.set(handle_name, CUDNN_TYPE_HANDLE, handle);
  }
};

// ---- Graphs

[[nodiscard]] cudnnDataType_t type_of(DType dtype);

// A tensor in memory. A user of a finished descriptor copies what it needs.
[[nodiscard]] Descriptor memory(std::int64_t uid, cudnnDataType_t type, std::span<const std::int64_t> sizes,
                                std::span<const std::int64_t> strides);
// A tensor that the graph makes and uses up itself, never in memory.
[[nodiscard]] Descriptor passing(std::int64_t uid, cudnnDataType_t type, std::span<const std::int64_t> sizes,
                                 std::span<const std::int64_t> strides);
// An f32 number that the call brings along, in as many dimensions as the tensors it meets.
[[nodiscard]] Descriptor number(std::int64_t uid, int rank);

// y = mode(x, b), in f32; `b` null where the mode takes one operand.
[[nodiscard]] Descriptor pointwise(cudnnPointwiseMode_t mode, const Descriptor& x, const Descriptor* b,
                                   const Descriptor& y);

[[nodiscard]] Descriptor graph_of(std::span<const Descriptor> operations, const Target& target);

// ---- Calls

enum Kind : std::int64_t { kConvolution, kAttention, kAttentionBackward, kBatchNorm, kBatchNormBackward };

struct Call {
  std::vector<std::int64_t> key{};  // all that plans depend on, beginning with the kind
  DType dtype;                      // of what is multiplied
  bool tf32 = false;                // f32 numbers may be rounded to TF32 for that
  std::vector<std::int64_t> uids{};
  std::vector<void*> data{};  // of each uid; numbers lie on the host
  std::function<Descriptor(const Target&)> graph;
  std::function<LibraryCallText()> said;  // to a user

  void operand(std::int64_t uid, const void* p) {
    uids.push_back(uid);
    data.push_back(const_cast<void*>(p));
  }
  void plan_by(std::span<const std::int64_t> values) { key.insert(key.end(), values.begin(), values.end()); }
};

// Enqueues the call; false where it is ours to compute: `by` says so, or cuDNN has no engine that is taken (Note
// [Engines that are taken]). Plans are made once a key and kept. Throws CaptureError where one would have to be made
// while a graph is recorded: Note [Plans and recordings].
[[nodiscard]] bool run(const Call& call, EngineChoice by, Stream stream);

// At most `most` plans for `device`, which is described in cuDNN's JSON and need not be here.
[[nodiscard]] CudnnPlans plans_for(const Call& call, std::string_view device, std::size_t most);

}  // namespace levin::kernels::lib::cudnn
