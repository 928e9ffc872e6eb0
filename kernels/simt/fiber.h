// A stack of its own and the way to pass from one stack to another. Internal to kernels/simt.
#pragma once

#include <cstddef>

#if !((defined(__x86_64__) || defined(__aarch64__)) && defined(__linux__)) && !defined(LEVIN_SIMT_UCONTEXT)
#define LEVIN_SIMT_UCONTEXT 1
#endif
#if defined(LEVIN_SIMT_UCONTEXT)
#include <ucontext.h>
#endif

namespace levin::simt {

class Fiber {
 public:
  Fiber() = default;  // stands for the stack that runs now
  // entry(argument) runs on the new stack at the first switch_to it; it must never return.
  Fiber(void (*entry)(void*), void* argument);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Leaves this stack, which must be the one that runs, and resumes `next` where it was left. Returns when some fiber
  // switches back. Both must belong to the calling OS thread.
  void switch_to(Fiber& next);

 private:
  static void start();
  void arrived();  // what a stack does first when it runs again

  void* mapping_ = nullptr;  // guard page, then the stack
  std::size_t mapped_bytes_ = 0;
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
#if defined(LEVIN_SIMT_UCONTEXT)
  ucontext_t context_ = {};
#else
  void* stack_pointer_ = nullptr;
#endif
  // For AddressSanitizer.
  const void* bottom_ = nullptr;
  std::size_t bytes_ = 0;
  void* fake_stack_ = nullptr;
};

}  // namespace levin::simt
