#include "kernels/simt/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "levin/error.h"

#if defined(__SANITIZE_ADDRESS__)
#define LEVIN_SIMT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LEVIN_SIMT_ASAN 1
#endif
#endif
#if defined(LEVIN_SIMT_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(LEVIN_SIMT_UCONTEXT)
// void levin_simt_switch(void** save, void* load): pushes what a callee must keep, stores the stack pointer to *save,
// takes `load` as the stack pointer and pops the same from there. The floating-point modes are the same on all stacks.
extern "C" void levin_simt_switch(void** save, void* load);
#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.globl levin_simt_switch
.hidden levin_simt_switch
.type levin_simt_switch, @function
levin_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size levin_simt_switch, .-levin_simt_switch
)");
#else
asm(R"(
.text
.p2align 4
.globl levin_simt_switch
.hidden levin_simt_switch
.type levin_simt_switch, %function
levin_simt_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size levin_simt_switch, .-levin_simt_switch
)");
#endif
#endif

namespace levin::simt {
namespace {

// Frames under AddressSanitizer have red zones and are not optimised away.
#if defined(LEVIN_SIMT_ASAN)
constexpr std::size_t kStackBytes = 256 * 1024;
#else
constexpr std::size_t kStackBytes = 64 * 1024;
#endif

// The two ends of the switch that happens now.
thread_local constinit Fiber* leaving = nullptr;
thread_local constinit Fiber* entering = nullptr;

}  // namespace

Fiber::Fiber(void (*entry)(void*), void* argument) : entry_(entry), argument_(argument) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  mapped_bytes_ = page + kStackBytes;
  mapping_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    fail<OutOfMemoryError>("simt: no memory for the stack of a thread, ", mapped_bytes_, " bytes");
  }
  mprotect(mapping_, page, PROT_NONE);  // an overflow faults here instead of writing over another thread's stack
  auto* const bottom = static_cast<unsigned char*>(mapping_) + page;
  bottom_ = bottom;
  bytes_ = kStackBytes;
#if defined(LEVIN_SIMT_ASAN)
  // The address may have been another stack's, whose frames ended without saying so.
  __asan_unpoison_memory_region(bottom, kStackBytes);
#endif
#if defined(LEVIN_SIMT_UCONTEXT)
  getcontext(&context_);
  context_.uc_stack.ss_sp = bottom;
  context_.uc_stack.ss_size = kStackBytes;
  context_.uc_link = nullptr;
  makecontext(&context_, &Fiber::start, 0);
#else
  // As if levin_simt_switch had been called from the first instruction of `start`, whose own caller is address 0: there
  // debuggers and unwinders stop.
  auto** const top = reinterpret_cast<void**>(bottom + kStackBytes);
  void (*const first)() = &Fiber::start;
#if defined(__x86_64__)
  void** const sp = top - 8;  // six registers, where to return to, and 0 as its caller
  std::memset(static_cast<void*>(sp), 0, 8 * sizeof(void*));
  std::memcpy(sp + 6, &first, sizeof first);
#else
  void** const sp = top - 20;
  std::memset(static_cast<void*>(sp), 0, 20 * sizeof(void*));
  std::memcpy(sp + 11, &first, sizeof first);  // x30
#endif
  stack_pointer_ = sp;
#endif
}

Fiber::~Fiber() {
  if (mapping_ == nullptr) return;
#if defined(LEVIN_SIMT_ASAN)
  __asan_unpoison_memory_region(bottom_, bytes_);
#endif
  munmap(mapping_, mapped_bytes_);
}

void Fiber::start() {
  Fiber& self = *entering;
  self.arrived();
  self.entry_(self.argument_);
  __builtin_trap();
}

void Fiber::arrived() {
#if defined(LEVIN_SIMT_ASAN)
  // Tells which stack was left: the only way to learn the bounds of an OS thread's own.
  __sanitizer_finish_switch_fiber(fake_stack_, &leaving->bottom_, &leaving->bytes_);
#endif
}

void Fiber::switch_to(Fiber& next) {
  leaving = this;
  entering = &next;
#if defined(LEVIN_SIMT_ASAN)
  __sanitizer_start_switch_fiber(&fake_stack_, next.bottom_, next.bytes_);
#endif
#if defined(LEVIN_SIMT_UCONTEXT)
  swapcontext(&context_, &next.context_);
#else
  levin_simt_switch(&stack_pointer_, next.stack_pointer_);
#endif
  arrived();
}

}  // namespace levin::simt
