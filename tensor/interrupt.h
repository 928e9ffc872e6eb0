// How a wait on a thread learns that the user wants the program to stop.
#pragma once

namespace levin::detail {

// A function of the thread that says whether its waits should end, or null: they do not. Whoever turns signals into an
// orderly stop sets it for the thread that runs; what waits long, such as a loop over a loader for its workers, asks it
// ten times a second and throws InterruptedError.
using StopAsked = bool (*)();
inline thread_local StopAsked stop_asked = nullptr;

}  // namespace levin::detail
