// The end of preloaded files, for the exit of a process and for tests.
#pragma once

namespace levin::data::store {

// Removes what this process preloaded without `keep` and no other process uses.
void remove_unused_preloads() noexcept;

}  // namespace levin::data::store
