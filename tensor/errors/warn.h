// Warnings of a run.
#pragma once

namespace levin::detail {

// After this call each id is printed once more: a fit or an evaluation begins. Where several threads have runs, an id
// may be printed more than once in a run.
void begin_warnings_of_a_run() noexcept;

// Note [Warnings of ranks]
// The processes of a run find the same things, and rank 0 alone prints them: a strategy that joins processes switches
// printing off in all others, for the whole process. A handler (set_warning_handler) still hears every warning. Ranks
// that are threads of one process leave the switch alone, because it would silence rank 0 too.
void print_warnings(bool on) noexcept;

}  // namespace levin::detail
