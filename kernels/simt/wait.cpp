// What threads wait for: barriers and warp functions; and the other things that simt.h asks of a block.
#include <algorithm>
#include <bit>
#include <string>

#include "kernels/simt/async.h"
#include "kernels/simt/block.h"
#include "levin/error.h"

namespace levin::simt {

int Engine::barrier(Vote vote, int predicate, const char* what, Site at) {
  Thread& self = *running_;
  Block& block = *block_;
  self.state = Thread::State::at_barrier;
  self.what = what;
  self.at = at;
  if (block.waiting++ == 0) {
    block.votes = 0;
    block.divergent = false;
    block.barrier_at = at;
  }
  block.votes += predicate != 0 ? 1 : 0;
  block.divergent = block.divergent || !same(at, block.barrier_at);
  if (block.waiting == count_ && !block.divergent) {
    block.waiting = 0;
    block.result = vote == Vote::all   ? int(block.votes == count_)
                   : vote == Vote::any ? int(block.votes != 0)
                                       : block.votes;
    for (Thread& thread : threads_of(block)) ready(thread);
    if (block.async != nullptr) block.async->block_barrier();
    // Greedy resumes a warp other than the first: then an early write of the first warp and one of another each
    // meet a warp that has yet to read. With two warps there is only one or the other.
    if (warp_count_ >= 2) {
      favourite_ =
          block.first_warp + int(warp_count_ == 2 ? random() % 2 : 1 + random() % std::uint64_t(warp_count_ - 1));
    }
  }
  wait();
  return block.result;
}

std::uint32_t Engine::lanes_left() const {
  const Warp& warp = warps_[std::size_t(index_of(*running_) / kLanes)];
  return warp.present & ~warp.exited;
}

std::uint64_t Engine::warp_collective(std::uint32_t mask, const char* what, Site at, LaneInput in, WarpFunction f) {
  Thread& self = *running_;
  const int index = index_of(self), base = index / kLanes * kLanes, lane = index % kLanes;
  Warp& warp = warps_[std::size_t(index / kLanes)];
  const auto refuse = [&](const std::string& why) {
    fail_thread(std::string(what) + " with mask " + mask_text(mask) + " " + why, at);
  };
  if ((mask >> lane & 1u) == 0) refuse("called by lane " + text(lane) + ", which the mask does not name");
  if ((mask & ~warp.present) != 0) {
    refuse("names lanes " + lanes_text(mask & ~warp.present) + ", which are not in the block: its last warp has " +
           text(std::popcount(warp.present)) + " threads");
  }
  if ((mask & warp.exited) != 0) refuse("names lanes " + lanes_text(mask & warp.exited) + ", which have exited");
  if (in.width < 1 || in.width > kLanes || (in.width & (in.width - 1)) != 0) {
    refuse("has width " + text(in.width) + ", expected a power of two up to 32");
  }
  self.in = in;
  auto group = std::find_if(warp.groups.begin(), warp.groups.end(),
                            [&](const Group& g) { return g.mask == mask && g.f == f && same(g.at, at); });
  if (group == warp.groups.end()) group = warp.groups.insert(group, {mask, f, at, 0});
  group->waiting |= 1u << lane;
  if (group->waiting != mask) {
    self.state = Thread::State::in_warp;
    self.what = what;
    self.at = at;
    self.mask = mask;
    wait();
    return self.out;
  }
  // The last to arrive does the work and continues.
  warp.groups.erase(group);
  LaneInput all[kLanes];
  std::uint64_t out[kLanes] = {};
  for (std::uint32_t left = mask; left != 0; left &= left - 1) {
    const int l = std::countr_zero(left);
    all[l] = threads_[std::size_t(base + l)].in;
  }
  f(all, out, mask);
  for (std::uint32_t left = mask & ~(1u << lane); left != 0; left &= left - 1) {
    Thread& thread = threads_[std::size_t(base + std::countr_zero(left))];
    thread.out = out[index_of(thread) % kLanes];
    ready(thread);
  }
  return out[lane];
}

void* Engine::shared_array(const void* key, std::size_t bytes, std::size_t alignment) {
  for (const SharedArray& array : block_->shared) {
    if (array.key == key) return array.data.get();
  }
  block_->static_bytes += bytes;
  constexpr std::size_t kMostStatic = 48 * 1024;
  if (block_->static_bytes > kMostStatic) {
    fail_thread("LEVIN_SHARED arrays of " + text(block_->static_bytes) + " bytes, at most " + text(kMostStatic) +
                    "; use LEVIN_SHARED_DYNAMIC",
                Site::current());
  }
  if (block_->static_bytes + launch_.shared_bytes > kMostShared) {
    fail_thread("LEVIN_SHARED arrays of " + text(block_->static_bytes) + " bytes beside " +
                    text(std::size_t{launch_.shared_bytes}) + " dynamic ones, at most " + text(kMostShared) +
                    " together",
                Site::current());
  }
  block_->shared.push_back({key, nan_filled(bytes, alignment)});
  return block_->shared.back().data.get();
}

// ---- The calls of simt.h

int barrier(Vote vote, int predicate, const char* what, Site at) {
  return in_kernel(what).barrier(vote, predicate, what, at);
}
std::uint64_t warp_collective(std::uint32_t mask, const char* what, Site at, LaneInput in, WarpFunction f) {
  return in_kernel(what).warp_collective(mask, what, at, in, f);
}
void* shared_array(const void* key, std::size_t bytes, std::size_t alignment) {
  return in_kernel("LEVIN_SHARED").shared_array(key, bytes, alignment);
}
void* shared_dynamic() {
  Engine& e = in_kernel("LEVIN_SHARED_DYNAMIC");
  if (e.shared_dynamic() == nullptr) {
    e.fail_thread("LEVIN_SHARED_DYNAMIC: the launch gives no bytes of shared memory; set Grid::shared",
                  Site::current());
  }
  return e.shared_dynamic();
}
bool elect(Site at) {
  Engine& e = in_kernel("elect");
  e.warp_collective(~0u, "elect", at, {}, nothing);
  return e.running_index() % kLanes == e.elected();
}
void trap(Site at) { in_kernel("__trap").fail_thread("__trap", at); }
void fail_misaligned(const void* p, std::size_t bytes, Site at) {
  in_kernel("a load or store")
      .fail_thread("misaligned address: an access of " + text(bytes) + " bytes at " +
                       text(reinterpret_cast<std::uintptr_t>(p) % bytes) + " bytes above a multiple of that",
                   at);
}

}  // namespace levin::simt
