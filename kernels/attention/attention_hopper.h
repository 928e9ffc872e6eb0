// Which calls of attention the kernels for compute capability 9.0 take. Plain host code;
// kernels/attention/attention_hopper.cu launches.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/attention/attention_library.h"
#include "levin/stream.h"

namespace levin::kernels {

// The first limit that the call, in the terms of the vendor's library, does not meet, as text; none where it meets all:
// heads of width 64 or 128, a scale above 0, the limits of TMA.
[[nodiscard]] std::optional<std::string> hopper_refusal(const LibraryAttention& call);

// Blocks of less than half the multiprocessors, of an H100 or H200, lose to the kernels of attention_device.cuh, whose
// blocks have fewer rows. So do gradients of fewer than 64 rows.
[[nodiscard]] bool fills_hopper(const LibraryAttention& call);

// The call of library_attention where it goes to the kernels: the device has compute capability 9.0, the call fills it,
// and no limit is in the way.
[[nodiscard]] std::optional<LibraryAttention> hopper_call(const Shape& batch, double scale, bool causal,
                                                          const AttentionTensors& t);

// Enqueue the call, the gradients with this many f32 numbers of scratch, on a device of compute capability 9.0. Both
// throw UnsupportedError for a call that hopper_refusal names.
void hopper_attention(const LibraryAttention& call, Stream stream);
[[nodiscard]] std::int64_t hopper_scratch(const LibraryAttention& call);
void hopper_attention_backward(const LibraryAttention& call, float* scratch, Stream stream);

}  // namespace levin::kernels
