// Memory for the length of one kernel call: 64-byte aligned, uninitialised, any size. Blocks are kept and reused, so
// that a kernel called again and again pays neither the allocator nor page faults. Safe from any thread.
#pragma once

#include <cstddef>

namespace levin::kernels::lib {

class Scratch {
 public:
  // Throws OutOfMemoryError where the system has no more memory.
  explicit Scratch(size_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  template <class T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Gives the blocks that no kernel holds back to the system.
void trim_scratch();

}  // namespace levin::kernels::lib
