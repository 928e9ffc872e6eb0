// Moves batches to a device.
#pragma once

#include <atomic>
#include <optional>

#include "levin/data.h"
#include "levin/stream.h"

namespace levin::train {

// Returns the batch with all fields on `device`. Copies to a device that launches kernels do not wait.
[[nodiscard]] Batch move_batch(Batch batch, Device device);

// Note [Copies beside the step]
// Batches travel to a device on a stream of their own, and the stream of the step waits for each by an event, on the
// device. The host runs ahead of the device: while a step runs, the host fetches the next batch and enqueues its copy,
// which then runs beside the step. Pageable fields go through page-locked blocks that are used again once their copies
// are done (Note [Copies from pageable memory]). Fields in page-locked memory (DataLoaderOptions::pin_memory) go as
// they are. A loader may write a batch's memory again at once: what the device still reads is not in it, or is another
// block (data::recycled).
//
// A batch whose shapes have a recorded step (Note [Whole-step capture]) is copied into the tensors that the step reads,
// after the work that the step's stream has so far, which reads them: no copy within the device follows.
class Transfer {
 public:
  // Moves the fields that are on cpu, except those that record gradients. `into`: where to, or null; these tensors have
  // the shapes and dtypes of the fields and become the fields.
  void move(Batch& batch, Device device, const Tensors* into);

 private:
  struct Line {
    Stream copies;
    Event arrived, step;
  };
  std::optional<Line> line_;
};

extern std::atomic<bool> forget_arrivals;  // a planted error, for tests: steps do not wait for their batches

}  // namespace levin::train
