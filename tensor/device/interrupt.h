// How a waiting thread learns that the user wants the program to stop.
#pragma once

namespace levin::detail {

// The thread's function that says whether its waits should end; null: they do not end early. The owner of the signal
// handlers sets it for the thread that runs. A long wait, such as a loop over a loader for its workers, calls it ten
// times a second and throws InterruptedError when it returns true.
using StopAsked = bool (*)();
inline thread_local StopAsked stop_asked = nullptr;

}  // namespace levin::detail
