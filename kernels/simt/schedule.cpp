// Which thread runs next, and what completes while threads wait.
//
// Note [Who runs next]
// A thread runs until it must wait or ends. Then its own stack asks pick() for the next one and passes straight to it;
// the launching stack runs again only when none is left, or when one has thrown. Threads that have not begun have no
// stack: a stack whose thread has ended begins the next, so a kernel without barriers needs one stack for all.
//
// The threads of all blocks of a cluster have one order: those of rank 0, of rank 1 and so on.
#include <algorithm>
#include <bit>
#include <string>

#include "kernels/simt/async.h"
#include "kernels/simt/block.h"
#include "levin/error.h"

namespace levin::simt {

std::span<Thread> Engine::threads_of(const Block& block) {
  return std::span(threads_).subspan(std::size_t(block.first_thread), std::size_t(count_));
}
std::span<const Thread> Engine::threads_of(const Block& block) const {
  return std::span(threads_).subspan(std::size_t(block.first_thread), std::size_t(count_));
}

// ---- Waits for what is under way

Async& Engine::make_async(Block& block) {
  if (cluster_ == nullptr) cluster_ = std::make_unique<Cluster>(int(blocks_.size()), warp_count_);
  const std::uint64_t other = block.rank == 0 ? 0 : mixed(std::uint64_t(block.rank));
  const std::uint64_t seed = mixed(completion_seed_ ^ random_) ^ other;
  block.async = std::make_unique<Async>(*this, block, *cluster_, launch_.shared_bytes, count_, completion_, seed);
  return *block.async;
}

Async& Engine::async_without_memory() { return block_->async != nullptr ? *block_->async : make_async(*block_); }

Async& Engine::async(Site at) {
  if (block_->dynamic == nullptr) {
    fail_thread("needs LEVIN_SHARED_DYNAMIC memory; the launch gives no bytes of it", at);
  }
  return async_without_memory();
}

void Engine::park(const char* what, Site at) {
  running_->state = Thread::State::in_async;
  running_->what = what;
  running_->at = at;
  wait();
}

void Engine::yield() {
  ready(*running_);
  if (schedule_ == Schedule::greedy_warp) favourite_ = int(random() % std::uint64_t(warps_in_use_));
  wait();
}

int Engine::elected() const {
  const bool last = schedule_ == Schedule::descending || (schedule_ != Schedule::ascending && mixed(seed_) % 2 != 0);
  return last ? kLanes - 1 : 0;
}

bool Engine::complete_when_idle() {
  const int blocks = int(blocks_.size());
  if (blocks == 1) return blocks_[0]->async->complete_when_idle();
  // Of several blocks: the first, the last, or any that has something under way.
  const int first = completion_ == Completion::random ? int(random() % std::uint64_t(blocks)) : 0;
  for (int i = 0; i < blocks; ++i) {
    const int rank = completion_ == Completion::late_newest ? blocks - 1 - i : (first + i) % blocks;
    if (blocks_[std::size_t(rank)]->async->complete_when_idle()) return true;
  }
  return false;
}

Thread* Engine::next_thread() {
  if (cluster_ == nullptr) return pick();
  try {
    for (const std::unique_ptr<Block>& block : blocks_) block->async->at_switch();
    Thread* next = pick();
    while (next == nullptr && complete_when_idle()) next = pick();
    return next;
  } catch (...) {  // of the block: its threads are unwound by resume
    if (error_ == nullptr) error_ = std::current_exception();
    return nullptr;
  }
}

// ---- The order

void Engine::ready(Thread& thread) {
  const int index = index_of(thread);
  thread.state = Thread::State::ready;
  warps_[std::size_t(index / kLanes)].ready |= 1u << index % kLanes;
}

std::uint64_t Engine::random() { return mixed(random_++); }

Thread* Engine::take(int warp, int lane) {
  warps_[std::size_t(warp)].ready &= ~(1u << lane);
  return &threads_[std::size_t(warp * kLanes + lane)];
}

Thread* Engine::pick() {
  const int count = int(threads_.size()), warps = warps_in_use_;
  const auto from_bit = [](int lane) { return ~0u << lane; };
  // The first that is ready from `start` upwards, or from 0 when there is none.
  const auto upwards = [&](int start) -> Thread* {
    const int warp = start / kLanes;
    for (int i = 0; i <= warps; ++i) {
      const int w = (warp + i) % warps;
      std::uint32_t bits = warps_[std::size_t(w)].ready;
      if (i == 0) bits &= from_bit(start % kLanes);
      if (bits != 0) return take(w, std::countr_zero(bits));
    }
    return nullptr;
  };
  switch (schedule_) {
    case Schedule::ascending: {
      Thread* const next = upwards(cursor_);
      if (next != nullptr) cursor_ = (index_of(*next) + 1) % count;
      return next;
    }
    case Schedule::descending: {
      const int warp = cursor_ / kLanes;
      for (int i = 0; i <= warps; ++i) {
        const int w = (warp - i + 2 * warps) % warps;
        std::uint32_t bits = warps_[std::size_t(w)].ready;
        if (i == 0) bits &= ~0u >> (kLanes - 1 - cursor_ % kLanes);
        if (bits == 0) continue;
        const int lane = kLanes - 1 - std::countl_zero(bits);
        cursor_ = (w * kLanes + lane + count - 1) % count;
        return take(w, lane);
      }
      return nullptr;
    }
    case Schedule::shuffled: return upwards(int(random() % std::uint64_t(count)));
    case Schedule::greedy_warp: {
      for (int i = 0; i < warps; ++i) {
        const int w = (favourite_ + i) % warps;
        if (warps_[std::size_t(w)].ready == 0) continue;
        favourite_ = w;
        return take(w, std::countr_zero(warps_[std::size_t(w)].ready));
      }
      return nullptr;
    }
  }
  return nullptr;
}

}  // namespace levin::simt
