// Warnings of a run.
#pragma once

namespace levin::detail {

// From here on each id is printed once again: a fit or an evaluation begins. Where several threads have runs, an id may
// be printed more than once a run.
void begin_warnings_of_a_run() noexcept;

}  // namespace levin::detail
