#include "comm/group/algorithms.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <utility>

#include "comm/group/reduce.h"

namespace levin::dist {
namespace {

// Messages that are under way; an error of one drops the others, because their memory goes.
class Pending {
 public:
  explicit Pending(Transport& transport) : transport_(transport) {}
  ~Pending() {
    for (const Transport::Handle handle : handles_) transport_.drop(handle);
  }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  void add(Transport::Handle handle) { handles_.push_back(handle); }
  [[nodiscard]] std::size_t size() const { return handles_.size(); }
  void wait_first() {
    const Transport::Handle handle = handles_.front();
    handles_.pop_front();
    transport_.wait(handle);
  }
  void wait_all() {
    while (!handles_.empty()) wait_first();
  }

 private:
  Transport& transport_;
  std::deque<Transport::Handle> handles_;
};

struct Ring {
  int next, before;
};

// The algorithms of one collective over elements of one type.
class Algorithm {
 public:
  Algorithm(Transport& transport, std::uint64_t slot, Scratch& scratch, DType dtype, ReduceOp op)
      : t_(transport), slot_(slot), scratch_(scratch), dtype_(dtype), op_(op), item_(itemsize(dtype)) {}

  // Sends `out` to a rank while `in` comes from another; either may be empty.
  void swap(int to, const std::byte* out, std::size_t out_bytes, int from, std::byte* in, std::size_t in_bytes) {
    Pending sends(t_), receives(t_);
    std::size_t sent = 0, received = 0;
    const auto more = [&] {
      while (received < in_bytes && receives.size() < 2) {
        const std::size_t n = std::min(kSegment, in_bytes - received);
        receives.add(t_.recv(from, slot_, in + received, n));
        received += n;
      }
      while (sent < out_bytes && sends.size() < 2) {
        const std::size_t n = std::min(kSegment, out_bytes - sent);
        sends.add(t_.send(to, slot_, out + sent, n));
        sent += n;
      }
    };
    for (more(); receives.size() + sends.size() > 0; more()) {
      if (receives.size() > 0) receives.wait_first();
      if (sends.size() > 0) sends.wait_first();
    }
  }

  // The same, where what comes is combined with `sum`; the lower rank is the left operand.
  enum class Side : bool { left, right };
  void swap_add(int to, const std::byte* out, std::size_t out_bytes, int from, std::byte* sum, std::size_t sum_bytes,
                Side theirs) {
    const std::size_t segment = std::min(kSegment, sum_bytes);
    scratch_.segments.resize(std::max(scratch_.segments.size(), 2 * segment));
    Pending sends(t_), receives(t_);
    std::size_t sent = 0, posted = 0, added = 0;
    const auto place = [&](std::size_t at) { return scratch_.segments.data() + at / kSegment % 2 * segment; };
    const auto more = [&] {
      while (posted < sum_bytes && receives.size() < 2) {
        const std::size_t n = std::min(kSegment, sum_bytes - posted);
        receives.add(t_.recv(from, slot_, place(posted), n));
        posted += n;
      }
      while (sent < out_bytes && sends.size() < 2) {
        const std::size_t n = std::min(kSegment, out_bytes - sent);
        sends.add(t_.send(to, slot_, out + sent, n));
        sent += n;
      }
    };
    for (more(); receives.size() + sends.size() > 0; more()) {
      if (receives.size() > 0) {
        receives.wait_first();
        const std::size_t n = std::min(kSegment, sum_bytes - added);
        add(sum + added, place(added), n, theirs);
        added += n;
      }
      if (sends.size() > 0) sends.wait_first();
    }
  }

  void add(std::byte* sum, const std::byte* other, std::size_t bytes, Side theirs) const {
    const auto n = static_cast<std::int64_t>(bytes / item_);
    if (theirs == Side::left) {
      combine(dtype_, op_, sum, other, sum, n);
    } else {
      combine(dtype_, op_, sum, sum, other, n);
    }
  }

  // ---- Among the first `ranks` ranks, a power of two

  // Each rank ends with slice bitrev(rank) of the sum; returns its bounds in elements.
  struct Bounds {
    std::size_t begin, end;
  };
  std::vector<Bounds> halve(std::byte* x, std::size_t count, int ranks) {
    std::vector<Bounds> path{{0, count}};
    for (int distance = 1; distance < ranks; distance *= 2) {
      const auto [begin, end] = path.back();
      const std::size_t middle = begin + (end - begin) / 2;
      const int partner = t_.rank() ^ distance;
      const bool low = (t_.rank() & distance) == 0;
      const Bounds mine = low ? Bounds{begin, middle} : Bounds{middle, end};
      const Bounds theirs = low ? Bounds{middle, end} : Bounds{begin, middle};
      swap_add(partner, x + theirs.begin * item_, (theirs.end - theirs.begin) * item_, partner, x + mine.begin * item_,
               (mine.end - mine.begin) * item_, low ? Side::right : Side::left);
      path.push_back(mine);
    }
    return path;
  }
  void unhalve(std::byte* x, const std::vector<Bounds>& path, int ranks) {
    int distance = ranks / 2;
    for (std::size_t level = path.size() - 1; level > 0; --level, distance /= 2) {
      const Bounds mine = path[level], both = path[level - 1];
      const Bounds theirs = mine.begin == both.begin ? Bounds{mine.end, both.end} : Bounds{both.begin, mine.begin};
      const int partner = t_.rank() ^ distance;
      swap(partner, x + mine.begin * item_, (mine.end - mine.begin) * item_, partner, x + theirs.begin * item_,
           (theirs.end - theirs.begin) * item_);
    }
  }
  void double_all(std::byte* x, std::size_t bytes, int ranks) {
    for (int distance = 1; distance < ranks; distance *= 2) {
      const int partner = t_.rank() ^ distance;
      // What is sent must not change meanwhile.
      scratch_.whole.assign(x, x + bytes);
      swap_add(partner, scratch_.whole.data(), bytes, partner, x, bytes,
               (t_.rank() & distance) == 0 ? Side::right : Side::left);
    }
  }

  // ---- Any number of ranks

  void all_reduce(std::byte* x, std::size_t count) {
    const int ranks = t_.size(), rank = t_.rank();
    const std::size_t bytes = count * item_;
    const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)));
    if (bytes == 0) return;
    if (bytes > kSmall && power != ranks) return ring_all_reduce(x, count);
    const int extra = ranks - power;
    if (rank >= power) {
      swap(rank - power, x, bytes, -1, nullptr, 0);
      return swap(-1, nullptr, 0, rank - power, x, bytes);
    }
    if (rank < extra) swap_add(-1, nullptr, 0, rank + power, x, bytes, Side::right);
    if (bytes <= kSmall) {
      double_all(x, bytes, power);
    } else {
      unhalve(x, halve(x, count, power), power);
    }
    if (rank < extra) swap(rank + power, x, bytes, -1, nullptr, 0);
  }

  void ring_all_reduce(std::byte* x, std::size_t count) {
    const auto ranks = static_cast<std::size_t>(t_.size()), rank = static_cast<std::size_t>(t_.rank());
    const Ring ring = neighbours();
    const auto begin = [&](std::size_t slice) { return count * (slice % ranks) / ranks; };
    const auto bytes = [&](std::size_t slice) { return (count * (slice % ranks + 1) / ranks - begin(slice)) * item_; };
    for (std::size_t step = 0; step + 1 < ranks; ++step) {
      const std::size_t out = rank + ranks - step, in = out - 1;
      swap_add(ring.next, x + begin(out) * item_, bytes(out), ring.before, x + begin(in) * item_, bytes(in),
               Side::left);
    }
    for (std::size_t step = 0; step + 1 < ranks; ++step) {
      const std::size_t out = rank + 1 + ranks - step, in = out - 1;
      swap(ring.next, x + begin(out) * item_, bytes(out), ring.before, x + begin(in) * item_, bytes(in));
    }
  }

  // `in` has a slice for each rank.
  void reduce_scatter(std::byte* out, const std::byte* in, std::size_t count) {
    const auto ranks = static_cast<std::size_t>(t_.size()), rank = static_cast<std::size_t>(t_.rank());
    const std::size_t bytes = count * item_;
    if (bytes == 0) return;
    std::vector<std::byte>& work = scratch_.whole;
    work.resize(std::max(work.size(), bytes * ranks));
    if (std::has_single_bit(ranks)) {
      const int bits = std::countr_zero(ranks);
      for (std::size_t p = 0; p < ranks; ++p) {
        std::memcpy(work.data() + p * bytes, in + reversed(p, bits) * bytes, bytes);
      }
      const Bounds mine = halve(work.data(), count * ranks, t_.size()).back();
      std::memcpy(out, work.data() + mine.begin * item_, bytes);
      return;
    }
    for (std::size_t step = 1; step < ranks; ++step) {
      const std::size_t to = (rank + step) % ranks, from = (rank + ranks - step) % ranks;
      swap(static_cast<int>(to), in + to * bytes, bytes, static_cast<int>(from), work.data() + from * bytes, bytes);
    }
    std::memcpy(work.data() + rank * bytes, in + rank * bytes, bytes);
    std::vector<const std::byte*> all;
    for (std::size_t r = 0; r < ranks; ++r) all.push_back(work.data() + r * bytes);
    const std::array<std::byte*, 1> outs{out};
    reduce_tree(dtype_, op_ == ReduceOp::average ? ReduceOp::sum : op_, all, outs, static_cast<std::int64_t>(count));
  }

  // `out` has a slice for each rank, this rank's own in place.
  void all_gather(std::byte* out, std::size_t bytes) {
    const auto ranks = static_cast<std::size_t>(t_.size()), rank = static_cast<std::size_t>(t_.rank());
    if (bytes == 0) return;
    if (std::has_single_bit(ranks) && bytes * ranks <= kSmall) {
      for (std::size_t distance = 1; distance < ranks; distance *= 2) {
        const std::size_t mine = rank & ~(distance - 1), theirs = mine ^ distance;
        const int partner = static_cast<int>(rank ^ distance);
        swap(partner, out + mine * bytes, distance * bytes, partner, out + theirs * bytes, distance * bytes);
      }
      return;
    }
    const Ring ring = neighbours();
    for (std::size_t step = 0; step + 1 < ranks; ++step) {
      const std::size_t mine = (rank + ranks - step) % ranks, theirs = (mine + ranks - 1) % ranks;
      swap(ring.next, out + mine * bytes, bytes, ring.before, out + theirs * bytes, bytes);
    }
  }

  void broadcast(std::byte* x, std::size_t bytes, int root) {
    const int ranks = t_.size(), place = (t_.rank() - root + ranks) % ranks;  // the root is at place 0
    const auto rank_at = [&](int p) { return (p + root) % ranks; };
    const int levels = std::bit_width(static_cast<unsigned>(ranks - 1));
    // The lowest bit of a place is its parent's distance.
    const int own = place == 0 ? levels : std::countr_zero(static_cast<unsigned>(place));
    Pending sends(t_);
    for (std::size_t at = 0; at < bytes; at += kSegment) {
      const std::size_t n = std::min(kSegment, bytes - at);
      if (place != 0) swap(-1, nullptr, 0, rank_at(place - (1 << own)), x + at, n);
      for (int level = own - 1; level >= 0; --level) {
        const int child = place + (1 << level);
        if (child < ranks) sends.add(t_.send(rank_at(child), slot_, x + at, n));
      }
    }
    sends.wait_all();
  }

  void all_to_all(std::byte* out, const std::byte* in, std::size_t bytes) {
    const auto ranks = static_cast<std::size_t>(t_.size()), rank = static_cast<std::size_t>(t_.rank());
    if (bytes == 0) return;
    std::memcpy(out + rank * bytes, in + rank * bytes, bytes);
    for (std::size_t step = 1; step < ranks; ++step) {
      const std::size_t to = (rank + step) % ranks, from = (rank + ranks - step) % ranks;
      swap(static_cast<int>(to), in + to * bytes, bytes, static_cast<int>(from), out + from * bytes, bytes);
    }
  }

  void barrier() {
    const int ranks = t_.size(), rank = t_.rank();
    std::byte out{1}, in{0};
    for (int distance = 1; distance < ranks; distance *= 2) {
      swap((rank + distance) % ranks, &out, 1, (rank + ranks - distance) % ranks, &in, 1);
    }
  }

 private:
  [[nodiscard]] Ring neighbours() const {
    const int ranks = t_.size(), rank = t_.rank();
    return {(rank + 1) % ranks, (rank + ranks - 1) % ranks};
  }
  static std::size_t reversed(std::size_t x, int bits) {
    std::size_t out = 0;
    for (int b = 0; b < bits; ++b) out |= (x >> b & 1) << (bits - 1 - b);
    return out;
  }

  Transport& t_;
  std::uint64_t slot_;
  Scratch& scratch_;
  DType dtype_;
  ReduceOp op_;
  std::size_t item_;
};

// Reductions of 16-bit elements in f32, rounded at the end.
void run_wide(Transport& transport, const Task& task, std::uint64_t slot, Scratch& scratch) {
  const bool scatter = task.op == Collective::reduce_scatter;
  const std::int64_t in_count = scatter ? task.count * transport.size() : task.count;
  std::vector<float> in(static_cast<std::size_t>(in_count)), out(scatter ? static_cast<std::size_t>(task.count) : 0);
  widen(task.dtype, in.data(), task.in, in_count);
  Task wide = task;
  wide.dtype = DType::f32;
  wide.in = reinterpret_cast<const std::byte*>(in.data());
  wide.out = reinterpret_cast<std::byte*>(scatter ? out.data() : in.data());
  run_collective(transport, wide, slot, scratch);
  narrow(task.dtype, task.out, scatter ? out.data() : in.data(), task.count);
}

struct MessageHead {
  std::uint64_t dtype = 0, count = 0;
};

}  // namespace

bool in_f32(const Task& task) {
  const bool half = task.dtype == DType::f16 || task.dtype == DType::bf16;
  // A sum of f16 may overflow where its average does not.
  return half && (task.order == ReduceOrder::tree || (task.reduce == ReduceOp::average && task.dtype == DType::f16));
}

void run_collective(Transport& transport, const Task& task, std::uint64_t slot, Scratch& scratch) {
  if (transport.size() == 1) {
    if (task.in && task.out && task.in != task.out && task.count > 0) std::memmove(task.out, task.in, task.bytes());
    return;
  }
  const bool reduces = task.op == Collective::all_reduce || task.op == Collective::reduce_scatter;
  if (reduces && in_f32(task)) return run_wide(transport, task, slot, scratch);
  Algorithm exchange(transport, slot, scratch, task.dtype, task.reduce);
  const auto count = static_cast<std::size_t>(task.count);
  switch (task.op) {
    case Collective::all_reduce:
      if (task.in != task.out && task.count > 0) std::memmove(task.out, task.in, task.bytes());
      exchange.all_reduce(task.out, count);
      break;
    case Collective::reduce_scatter: exchange.reduce_scatter(task.out, task.in, count); break;
    case Collective::all_gather: {
      std::byte* const mine = task.out + static_cast<std::size_t>(transport.rank()) * task.bytes();
      if (task.bytes() > 0 && mine != task.in) std::memcpy(mine, task.in, task.bytes());
      exchange.all_gather(task.out, task.bytes());
      break;
    }
    case Collective::broadcast: exchange.broadcast(task.out, task.bytes(), task.peer); break;
    case Collective::all_to_all: exchange.all_to_all(task.out, task.in, task.bytes()); break;
    case Collective::barrier: exchange.barrier(); break;
    case Collective::send:
    case Collective::recv:
    case Collective::text: break;
  }
  if (reduces && task.reduce == ReduceOp::average) divide(task.dtype, task.out, task.count, transport.size());
}

void send_message(Transport& transport, const Task& task, std::uint64_t slot) {
  const MessageHead head{.dtype = static_cast<std::uint64_t>(task.dtype),
                         .count = static_cast<std::uint64_t>(task.count)};
  Pending sends(transport);
  sends.add(transport.send(task.peer, slot, reinterpret_cast<const std::byte*>(&head), sizeof head));
  if (task.count > 0) sends.add(transport.send(task.peer, slot, task.in, task.bytes()));
  sends.wait_all();
}

void recv_message(Transport& transport, const Task& task, std::uint64_t slot) {
  MessageHead head;
  transport.wait(transport.recv(task.peer, slot, reinterpret_cast<std::byte*>(&head), sizeof head));
  const auto count = static_cast<std::uint64_t>(task.count);
  const auto dtype = static_cast<DType>(head.dtype);
  if (head.dtype >= static_cast<std::uint64_t>(kDTypeCount) || head.count > (std::uint64_t{1} << 48)) {
    fail<CommError>(words(task), ": rank ", task.peer, " sent bytes that are no message");
  }
  if (dtype == task.dtype && head.count == count) {
    if (count > 0) transport.wait(transport.recv(task.peer, slot, task.out, task.bytes()));
    return;
  }
  if (head.count > 0) {
    std::vector<std::byte> forgotten(head.count * itemsize(dtype));
    transport.wait(transport.recv(task.peer, slot, forgotten.data(), forgotten.size()));
  }
  fail<CommError>(words(task), ": rank ", task.peer, " sent ", text(dtype), "[", head.count, "], this rank takes ",
                  text(task.dtype), "[", task.count, "]");
}

}  // namespace levin::dist
