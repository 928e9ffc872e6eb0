// Adds its place to an error in flight.
#pragma once

#include <string>

namespace levin::data {

// Call in a catch block: throws the current exception again with `note` after its text. A levin::Error keeps its type
// and place; std::bad_alloc becomes an OutOfMemoryError, anything else a DataError.
[[noreturn]] void rethrow_with(const std::string& note);

}  // namespace levin::data
