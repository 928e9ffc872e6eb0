// Note [Collectives over shared memory]
//
// Data moves in chunks of at most 512 KiB a rank. A rank has two slots, used in turns, and three flags that count
// chunks: `in`, its data is in its slot; `mid`, its part of the sum is there; `done`, it needs no slot of the chunk any
// more. A rank writes a slot when all are done with the chunk before last.
//
// all_reduce: copy in, wait for all; add slice r of all slots into slice r of the own slot (Note [The tree over
// ranks]); wait for all; copy out slice q of slot q. At most 4 KiB: each rank adds everything, without a second wait.
//
// Messages go through a ring of 64 KiB for each pair of ranks, as a stream with heads. A receiver keeps what came
// before the tag that it wants.
#include "comm/group/shm.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/group/reduce.h"
#include "comm/group/segment.h"
#include "comm/group/spin.h"
#include "levin/error.h"
#include "tensor/text/number_text.h"

namespace levin::dist {
namespace {

constexpr std::size_t kSlot = std::size_t{512} << 10;
constexpr std::size_t kAlone = std::size_t{4} << 10;  // bytes that each rank adds by itself
constexpr std::size_t kRing = std::size_t{64} << 10;  // a power of two
constexpr double kLook = 0.1;                         // seconds of a sleep

struct Control {
  Flag in, mid, done;
};
struct Ring {
  Flag written, read;  // bytes
};
struct Head {
  std::uint64_t count = 0;
  std::uint32_t tag = 0, dtype = 0;
};
struct Stored {
  Head head;
  std::vector<std::byte> bytes;
};

class ShmEngine final : public Engine {
 public:
  explicit ShmEngine(std::shared_ptr<Rendezvous> ranks)
      : ranks_(std::move(ranks)),
        me_(static_cast<std::size_t>(ranks_->rank())),
        size_(static_cast<std::size_t>(ranks_->size())),
        segment_(*ranks_, bytes_for(size_)),
        inbox_(size_) {
    const auto wake = [this] { wake_all(); };
    waker_ = ranks_->alarm()->add(wake);
  }
  ~ShmEngine() override { ranks_->alarm()->remove(waker_); }
  [[nodiscard]] std::string_view name() const override { return "shm"; }

  void run(const Task& task) override {
    check(task);  // a rank that raised its flags after an abort would end the waits of others
    task_ = &task;
    switch (task.op) {
      case Collective::all_reduce: return all_reduce(task);
      case Collective::reduce_scatter: return reduce_scatter(task);
      case Collective::broadcast: return broadcast(task);
      case Collective::all_gather: return all_gather(task);
      case Collective::all_to_all: return all_to_all(task);
      case Collective::barrier:
        open_chunk();
        meet();
        return close_chunk();
      case Collective::send:
      case Collective::recv:
      case Collective::text: return;
    }
  }

  void send(const Task& task) override {
    check(task);
    const Head head{.count = static_cast<std::uint64_t>(task.count),
                    .tag = static_cast<std::uint32_t>(task.tag),
                    .dtype = static_cast<std::uint32_t>(task.dtype)};
    write(task, reinterpret_cast<const std::byte*>(&head), sizeof head);
    write(task, task.in, task.bytes());
  }

  void recv(const Task& task) override {
    check(task);
    const auto from = static_cast<std::size_t>(task.peer);
    std::deque<Stored>& kept = inbox_[from][static_cast<std::uint32_t>(task.tag)];
    if (!kept.empty()) {
      const Stored stored = std::move(kept.front());
      kept.pop_front();
      check_message(task, stored.head);
      if (!stored.bytes.empty()) std::memcpy(task.out, stored.bytes.data(), stored.bytes.size());
      return;
    }
    for (;;) {
      Head head;
      read(task, reinterpret_cast<std::byte*>(&head), sizeof head);
      if (head.dtype >= static_cast<std::uint32_t>(kDTypeCount) || head.count > (std::uint64_t{1} << 48)) {
        fail<CommError>(words(task), ": rank ", task.peer, " sent bytes that are no message");
      }
      const bool wanted = head.tag == static_cast<std::uint32_t>(task.tag);
      if (wanted && fits(task, head)) return read(task, task.out, task.bytes());
      Stored stored{.head = head, .bytes{}};
      stored.bytes.resize(head.count * itemsize(static_cast<DType>(head.dtype)));
      read(task, stored.bytes.data(), stored.bytes.size());
      if (wanted) check_message(task, head);  // throws
      inbox_[from][head.tag].push_back(std::move(stored));
    }
  }

  [[nodiscard]] std::shared_ptr<Engine> part(const std::vector<int>&, std::uint64_t, int,
                                             const std::shared_ptr<Rendezvous>& meeting) override {
    return std::make_shared<ShmEngine>(meeting);
  }

  void abort(std::string_view reason) noexcept override {
    segment_.abort(reason);
    wake_all();
  }

 private:
  using Clock = std::chrono::steady_clock;

  static std::size_t pages(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
  static std::size_t slots_at(std::size_t ranks) {
    return pages(ranks * sizeof(Control)) + pages(ranks * ranks * sizeof(Ring));
  }
  static std::size_t rings_at(std::size_t ranks) { return slots_at(ranks) + ranks * 2 * kSlot; }
  static std::size_t bytes_for(std::size_t ranks) { return rings_at(ranks) + ranks * ranks * kRing; }

  [[nodiscard]] Control& control(std::size_t r) const { return reinterpret_cast<Control*>(segment_.data())[r]; }
  [[nodiscard]] Ring& ring(std::size_t from, std::size_t to) const {
    return reinterpret_cast<Ring*>(segment_.data() + pages(size_ * sizeof(Control)))[from * size_ + to];
  }
  [[nodiscard]] std::byte* ring_bytes(std::size_t from, std::size_t to) const {
    return segment_.data() + rings_at(size_) + (from * size_ + to) * kRing;
  }
  [[nodiscard]] std::byte* slot(std::size_t r) const {  // of the running chunk
    return segment_.data() + slots_at(size_) + (r * 2 + (chunk_ & 1)) * kSlot;
  }

  void wake_all() noexcept {
    for (std::size_t r = 0; r < size_; ++r) {
      Control& c = control(r);
      for (Flag* const flag : {&c.in, &c.mid, &c.done}) Segment::wake(*flag);
      for (Flag* const flag : {&ring(r, me_).written, &ring(me_, r).read}) Segment::wake(*flag);
    }
    // Another process looks after kLook at the latest.
  }

  // Returns when `flag`, which rank `owner` raises, has reached the value.
  void await(const Task& task, Flag& flag, std::uint32_t value, std::size_t owner) {
    if (spin_until([&] { return Segment::reached(flag, value); })) return;
    const Clock::time_point start = Clock::now();
    while (!Segment::reached(flag, value)) {
      check(task);
      Segment::sleep(flag, value, kLook);
      const double waited = std::chrono::duration<double>(Clock::now() - start).count();
      if (waited > ranks_->timeout() && !Segment::reached(flag, value)) too_late(task, owner);
    }
  }
  void check(const Task& task) const {
    ranks_->alarm()->check();
    if (segment_.aborted()) fail<CommError>(words(task), ": ", segment_.reason());
  }
  [[noreturn]] void too_late(const Task& task, std::size_t owner) {
    const int peer = static_cast<int>(owner);
    const std::string what = words(task) + ": rank " + text(ranks_->world_rank(peer)) + " did not come within " +
                             text(ranks_->timeout()) + " s";
    segment_.abort(what);
    wake_all();
    ranks_->report(what, peer);
    ranks_->alarm()->check();
    fail<CommError>(what);
  }

  // ---- Chunks

  void open_chunk() {
    for (std::size_t r = 0; r < size_; ++r) await(*task_, control(r).done, chunk_ - 1, r);
  }
  void await_in(std::size_t r) { await(*task_, control(r).in, chunk_ + 1, r); }
  void meet() {  // the own data is in the slot; returns when all are
    Segment::raise(control(me_).in, chunk_ + 1);
    for (std::size_t r = 0; r < size_; ++r) await_in(r);
  }
  void close_chunk() {
    Segment::raise(control(me_).mid, chunk_ + 1);
    Segment::raise(control(me_).done, chunk_ + 1);
    ++chunk_;
  }
  // body(first, n) for parts of `count` elements, of which `at_once` fit a slot.
  template <class Body>
  static void parts(std::int64_t count, std::int64_t at_once, const Body& body) {
    for (std::int64_t at = 0; at < count; at += at_once) body(at, std::min(at_once, count - at));
  }

  void all_reduce(const Task& task) {
    const auto item = static_cast<std::int64_t>(itemsize(task.dtype));
    std::vector<const std::byte*> in(size_);
    parts(task.count, static_cast<std::int64_t>(kSlot) / item, [&](std::int64_t at, std::int64_t n) {
      open_chunk();
      const auto bytes = static_cast<std::size_t>(n * item);
      std::memcpy(slot(me_), task.in + at * item, bytes);
      meet();
      if (bytes <= kAlone) {
        for (std::size_t r = 0; r < size_; ++r) in[r] = slot(r);
        const std::array<std::byte*, 1> outs{task.out + at * item};
        reduce_tree(task.dtype, task.reduce, in, outs, n);
        return close_chunk();
      }
      // Slices begin at multiples of a cache line.
      const auto ranks = static_cast<std::int64_t>(size_);
      const std::int64_t step = (n + ranks * 64 - 1) / (ranks * 64) * 64;
      const auto begin = [&](std::size_t r) { return std::min(n, static_cast<std::int64_t>(r) * step); };
      for (std::size_t r = 0; r < size_; ++r) in[r] = slot(r) + begin(me_) * item;
      const std::array<std::byte*, 1> outs{slot(me_) + begin(me_) * item};
      reduce_tree(task.dtype, task.reduce, in, outs, begin(me_ + 1) - begin(me_));
      Segment::raise(control(me_).mid, chunk_ + 1);
      for (std::size_t k = 0; k < size_; ++k) {
        const std::size_t r = (me_ + k) % size_;
        await(task, control(r).mid, chunk_ + 1, r);
        std::memcpy(task.out + (at + begin(r)) * item, slot(r) + begin(r) * item,
                    static_cast<std::size_t>((begin(r + 1) - begin(r)) * item));
      }
      close_chunk();
    });
  }

  void reduce_scatter(const Task& task) {
    const auto item = static_cast<std::int64_t>(itemsize(task.dtype)), ranks = static_cast<std::int64_t>(size_);
    const std::int64_t at_once = std::max<std::int64_t>(1, static_cast<std::int64_t>(kSlot) / item / ranks);
    std::vector<const std::byte*> in(size_);
    parts(task.count, at_once, [&](std::int64_t at, std::int64_t n) {
      open_chunk();
      for (std::int64_t r = 0; r < ranks; ++r) {
        std::memcpy(slot(me_) + r * n * item, task.in + (r * task.count + at) * item,
                    static_cast<std::size_t>(n * item));
      }
      meet();
      for (std::size_t r = 0; r < size_; ++r) in[r] = slot(r) + static_cast<std::int64_t>(me_) * n * item;
      const std::array<std::byte*, 1> outs{task.out + at * item};
      reduce_tree(task.dtype, task.reduce, in, outs, n);
      close_chunk();
    });
  }

  void broadcast(const Task& task) {
    const auto root = static_cast<std::size_t>(task.peer);
    parts(static_cast<std::int64_t>(task.bytes()), kSlot, [&](std::int64_t at, std::int64_t n) {
      open_chunk();
      if (root == me_) std::memcpy(slot(me_), task.in + at, static_cast<std::size_t>(n));
      Segment::raise(control(me_).in, chunk_ + 1);
      if (root != me_) {
        await_in(root);
        std::memcpy(task.out + at, slot(root), static_cast<std::size_t>(n));
      }
      close_chunk();
    });
  }

  void all_gather(const Task& task) {
    const auto bytes = static_cast<std::int64_t>(task.bytes());
    parts(bytes, kSlot, [&](std::int64_t at, std::int64_t n) {
      open_chunk();
      std::memcpy(slot(me_), task.in + at, static_cast<std::size_t>(n));
      Segment::raise(control(me_).in, chunk_ + 1);
      for (std::size_t k = 0; k < size_; ++k) {
        const std::size_t r = (me_ + k) % size_;
        await_in(r);
        std::byte* const to = task.out + static_cast<std::int64_t>(r) * bytes + at;
        if (to != task.in + at) std::memcpy(to, slot(r), static_cast<std::size_t>(n));
      }
      close_chunk();
    });
  }

  void all_to_all(const Task& task) {
    const auto bytes = static_cast<std::int64_t>(task.bytes()), ranks = static_cast<std::int64_t>(size_);
    parts(bytes, std::max<std::int64_t>(1, static_cast<std::int64_t>(kSlot) / ranks),
          [&](std::int64_t at, std::int64_t n) {
            open_chunk();
            for (std::int64_t r = 0; r < ranks; ++r) {
              std::memcpy(slot(me_) + r * n, task.in + r * bytes + at, static_cast<std::size_t>(n));
            }
            meet();
            for (std::int64_t r = 0; r < ranks; ++r) {
              std::memcpy(task.out + r * bytes + at,
                          slot(static_cast<std::size_t>(r)) + static_cast<std::int64_t>(me_) * n,
                          static_cast<std::size_t>(n));
            }
            close_chunk();
          });
  }

  // ---- Messages

  void write(const Task& task, const std::byte* bytes, std::size_t n) {
    const auto to = static_cast<std::size_t>(task.peer);
    Ring& r = ring(me_, to);
    std::byte* const memory = ring_bytes(me_, to);
    while (n > 0) {
      const std::uint32_t written = r.written.value.load(std::memory_order_relaxed);
      await(task, r.read, written - static_cast<std::uint32_t>(kRing) + 1, to);
      const std::size_t used = written - r.read.value.load(std::memory_order_acquire);
      const std::size_t at = written % kRing, part = std::min({n, kRing - used, kRing - at});
      std::memcpy(memory + at, bytes, part);
      Segment::raise(r.written, written + static_cast<std::uint32_t>(part));
      bytes += part;
      n -= part;
    }
  }
  void read(const Task& task, std::byte* bytes, std::size_t n) {
    const auto from = static_cast<std::size_t>(task.peer);
    Ring& r = ring(from, me_);
    const std::byte* const memory = ring_bytes(from, me_);
    while (n > 0) {
      const std::uint32_t done = r.read.value.load(std::memory_order_relaxed);
      await(task, r.written, done + 1, from);
      const std::size_t there = r.written.value.load(std::memory_order_acquire) - done;
      const std::size_t at = done % kRing, part = std::min({n, there, kRing - at});
      std::memcpy(bytes, memory + at, part);
      Segment::raise(r.read, done + static_cast<std::uint32_t>(part));
      bytes += part;
      n -= part;
    }
  }
  static bool fits(const Task& task, const Head& head) {
    return head.dtype == static_cast<std::uint32_t>(task.dtype) && head.count == static_cast<std::uint64_t>(task.count);
  }
  static void check_message(const Task& task, const Head& head) {
    if (fits(task, head)) return;
    fail<CommError>(words(task), ": rank ", task.peer, " sent ", text(static_cast<DType>(head.dtype)), "[", head.count,
                    "], this rank takes ", text(task.dtype), "[", task.count, "]");
  }

  std::shared_ptr<Rendezvous> ranks_;
  std::size_t me_, size_;
  Segment segment_;
  std::vector<std::map<std::uint32_t, std::deque<Stored>>> inbox_;  // by rank, then tag
  std::uint64_t waker_ = 0;
  std::uint32_t chunk_ = 0;  // counts the group's chunks
  const Task* task_ = nullptr;
};

}  // namespace

std::shared_ptr<Engine> make_shm_engine(std::shared_ptr<Rendezvous> ranks) {
  if (ranks->size() > 1024) fail<ConfigError>("shm: 1024 ranks of one host at most, got ", ranks->size());
  return std::make_shared<ShmEngine>(std::move(ranks));
}

}  // namespace levin::dist
