// What is wrong with a block in which no thread can run, in words.
#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "kernels/simt/async.h"
#include "kernels/simt/block.h"
#include "levin/error.h"

namespace levin::simt {

std::string mask_text(std::uint32_t mask) {
  std::string digits = "0x";
  for (int shift = 28; shift >= 0; shift -= 4) digits += "0123456789abcdef"[mask >> shift & 15u];
  return digits;
}

std::string lanes_text(std::uint32_t lanes) {  // "3, 8-15"
  std::string out;
  while (lanes != 0) {
    const int first = std::countr_zero(lanes), length = std::countr_one(lanes >> first);
    out += (out.empty() ? "" : ", ") + text(first) + (length > 1 ? "-" + text(first + length - 1) : "");
    lanes = first + length >= kLanes ? 0 : lanes & (~0u << (first + length));
  }
  return out;
}

std::string site_text(const Site& at) {
  std::string file = at.file_name();
  while (file.starts_with("../")) file.erase(0, 3);  // from the build folder to the source root
  return file + ":" + text(at.line());
}

namespace {

std::string three(unsigned x, unsigned y, unsigned z) { return "(" + text(x) + ", " + text(y) + ", " + text(z) + ")"; }

std::string waits(const Thread& thread) { return std::string(thread.what) + ", " + site_text(thread.at); }

}  // namespace

std::string Engine::kernel_text(const Block& block) const {
  return "simt: " + std::string(name_) + ": block " + three(block.index.x, block.index.y, block.index.z);
}

std::string Engine::thread_text(const Thread& thread) const {
  if (blockDim.y == 1 && blockDim.z == 1) return "thread " + text(thread.index.x);
  return "thread " + three(thread.index.x, thread.index.y, thread.index.z);
}

void Engine::fail_thread(const std::string& what, Site at) const {
  throw InternalError(kernel_text(*block_) + ": " + thread_text(*running_) + ": " + what + "; at " + site_text(at), at);
}

void Engine::fail_block(const Block& block, const std::string& what) const {
  fail<InternalError>(kernel_text(block), ": ", what);
}

// A thread waits in a warp function: what do the other lanes of its mask?
std::string Engine::stuck_warp(const Thread& thread) const {
  const int index = index_of(thread), base = index / kLanes * kLanes;
  std::string out = thread_text(thread) + " waits in " + waits(thread) + ", with mask " + mask_text(thread.mask);
  const std::uint32_t exited = thread.mask & warps_[std::size_t(index / kLanes)].exited;
  if (exited != 0) return out + ", but lanes " + lanes_text(exited) + " have exited";
  for (std::uint32_t left = thread.mask; left != 0; left &= left - 1) {
    const Thread& other = threads_[std::size_t(base + std::countr_zero(left))];
    if (other.state == Thread::State::in_warp && same(other.at, thread.at) && other.mask == thread.mask &&
        std::string_view(other.what) == thread.what) {
      continue;
    }
    out += ", but lane " + text(std::countr_zero(left)) + " waits in " + waits(other);
    if (other.state == Thread::State::in_warp) out += ", with mask " + mask_text(other.mask);
    return out;
  }
  return out;
}

// "40 threads (thread 0 first) wait in __syncthreads, f.cuh:9, and 24 threads ..."
std::string Engine::places(const Block& block) const {
  std::vector<std::pair<const Thread*, int>> places;
  for (const Thread& thread : threads_of(block)) {
    if (thread.state == Thread::State::exited) continue;
    auto place = places.begin();
    while (place != places.end() && !same(place->first->at, thread.at)) ++place;
    if (place == places.end()) {
      places.emplace_back(&thread, 1);
    } else {
      ++place->second;
    }
  }
  std::string out;
  for (const auto& [thread, count] : places) {
    out += (thread == places.front().first ? " " : ", and ") + text(count) + " threads (" + thread_text(*thread) +
           " first) wait in " + waits(*thread);
  }
  return out;
}

std::string Engine::stuck(const Block& block) const {
  const auto threads = threads_of(block);
  const auto in_async = [](const Thread& thread) { return thread.state == Thread::State::in_async; };
  if (std::any_of(threads.begin(), threads.end(), in_async)) {
    return "no thread can continue:" + places(block) +
           (block.exited != 0 ? "; " + text(block.exited) + " have exited" : "") +
           (block.async != nullptr ? block.async->stuck() : "");
  }
  const Thread* first_barrier = nullptr;
  for (const Thread& thread : threads) {
    if (thread.state == Thread::State::in_warp) return stuck_warp(thread);
    if (thread.state == Thread::State::at_barrier && first_barrier == nullptr) first_barrier = &thread;
  }
  if (block.exited != 0) {
    return text(block.exited) + " threads have exited while " + text(block.waiting) + " wait in a barrier, " +
           thread_text(*first_barrier) + " in " + waits(*first_barrier) + "; every thread of a block must reach it";
  }
  return "divergent barriers:" + places(block) + "; all threads of a block must reach the same one";
}

// Of each block that has not ended.
std::string Engine::stuck() const {
  if (blocks_.size() == 1) return kernel_text(*blocks_[0]) + ": " + stuck(*blocks_[0]);
  std::string out = kernel_text(*blocks_[0]) + " and its cluster";
  for (const std::unique_ptr<Block>& block : blocks_) {
    out += (block->rank == 0 ? ": rank " : "; rank ") + text(block->rank) + ": ";
    out += block->exited == count_ ? "has ended" : stuck(*block);
  }
  return out;
}

}  // namespace levin::simt
