// A libnccl.so.2 between threads of one process, which tests script: how often it answers in_progress, which error it
// gives, and what it saw.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

namespace levin::test {

struct FakeNccl {
  std::atomic<int> version{22809};
  std::atomic<int> polls{2};  // answers in_progress of each call, at least
  // The results of the next call of the name, and of every question for errors; 0: as it comes.
  std::atomic<int> init_fails{0}, all_reduce_fails{0}, async_error{0};

  // Of the device: work in a stream, and the wait for what is there.
  void (*enqueue)(void* stream, void (*work)(void*), void* argument) = nullptr;
  void (*drain)(void* stream) = nullptr;

  std::atomic<int> alive{0}, made{0}, finalized{0}, destroyed{0}, aborted{0}, asked{0};
  std::mutex mutex;
  std::string broken;  // the rules of NCCL that a caller broke
};

}  // namespace levin::test

extern "C" levin::test::FakeNccl* levin_fake_nccl();
