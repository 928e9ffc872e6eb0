// Samples on their way into memory or a file.
#pragma once

#include "levin/data.h"

namespace levin::data::store {

// Sample `index`, dense and on cpu. Throws DataError for one without fields; the dataset's errors name the sample.
[[nodiscard]] Sample sample_of(const Dataset& dataset, const EpochRandom& random, std::int64_t index);
// Whether two samples have fields of the same dtypes and shapes.
[[nodiscard]] bool are_alike(const Sample& a, const Sample& b);

}  // namespace levin::data::store
