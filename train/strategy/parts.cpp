#include "train/strategy/parts.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin::train {
namespace {
thread_local bool in_replica = false;
}  // namespace

std::vector<Part> cut(const char* op, const Batch& batch, std::int64_t most) {
  std::optional<std::int64_t> n;
  for (std::size_t f = 0; f < batch.fields.size(); ++f) {
    const Tensor& t = batch.fields[f];
    if (!t.defined() || t.rank() == 0) continue;
    if (n && t.size(0) != *n)
      fail<ShapeError>(op, ": field ", f, " of the batch is ", t.shape(), ", another has size ", *n,
                       " in dimension 0; a batch is cut along dimension 0, where all its tensors have one size");
    n = t.size(0);
  }
  if (!n) fail<ConfigError>(op, ": the batch has no tensor with a dimension, expected one to cut along dimension 0");
  if (*n == 0) fail<ConfigError>(op, ": the batch has no sample, expected 1 or more");
  const std::int64_t size = (*n + most - 1) / most;
  std::vector<Part> parts;
  for (std::int64_t begin = 0; begin < *n; begin += size) {
    const std::int64_t end = std::min(begin + size, *n);
    Part part{.batch = {.fields = {}, .position = batch.position, .parts = batch.parts}, .samples = end - begin};
    for (const Tensor& t : batch.fields)
      part.batch.fields.push_back(!t.defined() || t.rank() == 0 ? t : slice(t, 0, begin, end));
    if (batch.size() == *n)
      part.batch.indices.assign(batch.indices.begin() + begin, batch.indices.begin() + end);
    else
      part.batch.indices = batch.indices;
    parts.push_back(std::move(part));
  }
  return parts;
}

StepOutput detached(const StepOutput& output) {
  if (!output.loss().defined()) return {};
  if (output.summed().defined()) return StepOutput::sum(output.summed().detach(), output.weight());
  if (output.outputs().empty()) return output.loss().detach();
  NamedTensors named;
  for (const auto& [name, t] : output.outputs()) named.emplace_back(name, t.detach());
  return StepOutput(std::move(named));
}

ReplicaThread::ReplicaThread() : before_(std::exchange(in_replica, true)) {}
ReplicaThread::~ReplicaThread() { in_replica = before_; }
bool ReplicaThread::here() { return in_replica; }

}  // namespace levin::train
