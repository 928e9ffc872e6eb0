// Warnings of a run.
#pragma once

namespace levin::detail {

// After this call each id is printed once more: a fit or an evaluation begins. Where several threads have runs, an id
// may be printed more than once in a run.
void begin_warnings_of_a_run() noexcept;

}  // namespace levin::detail
