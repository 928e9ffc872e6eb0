// Errors of a batch name the batch.
#pragma once

#include <cstdint>
#include <optional>

#include "levin/error.h"

namespace levin::detail {

// Puts "epoch 3, batch 17: " before the message of an error in flight; with `loop` "epoch 3, validation batch 17: ",
// without an epoch "test batch 17: ". Type, place and op() stay. An error that already names a batch stays as it is.
void name_batch(Error& error, std::optional<std::int64_t> epoch, const char* loop, std::int64_t batch) noexcept;

}  // namespace levin::detail
