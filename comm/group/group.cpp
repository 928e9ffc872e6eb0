#include "comm/group/group.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "comm/group/engine.h"
#include "comm/group/work.h"
#include "levin/stream.h"
#include "tensor/memory/read_only.h"

namespace levin::dist {
namespace {

std::uint64_t hash_of(std::string_view text, std::uint64_t hash = 0xcbf29ce484222325ull) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;  // FNV-1a
  return hash;
}
std::uint64_t site_of(const std::source_location& where) {
  return hash_of(std::to_string(where.line()), hash_of(where.file_name()));
}

const char* name_of(ReduceOp op) {
  constexpr const char* kNames[] = {"sum", "average", "min", "max"};
  return kNames[static_cast<int>(op)];
}

// A tensor that a collective reads, and one that it writes.
void check_tensor(const char* op, const char* argument, const Tensor& t) {
  if (!t.defined()) levin::detail::fail_undefined(op);
  if (!t.is_contiguous()) {
    fail<ShapeError>(op, ": ", argument, " ", text(t), " is not contiguous; pass ", argument, ".contiguous()");
  }
}
void check_written(const char* op, const char* argument, const Tensor& t) {
  check_tensor(op, argument, t);
  levin::detail::check_writable(op, t);
}
void check_pair(const char* op, const Tensor& out, const Tensor& in) {
  check_written(op, "out", out);
  check_tensor(op, "in", in);
  if (out.dtype() != in.dtype()) {
    fail<DTypeError>(op, ": out is ", out.dtype(), " and in ", in.dtype(), "; both need one dtype");
  }
  if (out.device() != in.device()) { fail<DeviceError>(op, ": out is on ", out.device(), " and in on ", in.device()); }
}
// `small` may be slice `rank` of `large`, and may share nothing of it otherwise. allowed < 0: nothing at all.
void check_apart(const char* op, const Tensor& large, const Tensor& small, std::int64_t allowed) {
  if (!large.shares_storage(small) || small.numel() == 0) return;
  const std::int64_t from = small.offset() - large.offset();
  if (from == allowed && allowed >= 0) return;
  if (from < large.numel() && from + small.numel() > 0) {
    fail<ShapeError>(op, ": out and in overlap", allowed >= 0 ? " other than as this rank's slice" : "",
                     "; pass a clone");
  }
}
void check_reduce(const char* op, const Tensor& t, ReduceOp reduce, ReduceOrder order, int size) {
  if (static_cast<unsigned>(reduce) > static_cast<unsigned>(ReduceOp::max)) {
    fail<ConfigError>(op, ": there is no ReduceOp ", static_cast<int>(reduce));
  }
  if (static_cast<unsigned>(order) > static_cast<unsigned>(ReduceOrder::tree)) {
    fail<ConfigError>(op, ": there is no ReduceOrder ", static_cast<int>(order));
  }
  if (is_storage(t.dtype())) {
    fail<DTypeError>(op, ": tensors of ", t.dtype(), " are moved and not computed with; reduce to(DType::i32)");
  }
  if (t.dtype() == DType::b8 && (reduce == ReduceOp::sum || reduce == ReduceOp::average)) {
    fail<DTypeError>(op, ": bool tensors have min (and) and max (or), not ", name_of(reduce));
  }
  if (!is_float(t.dtype()) && reduce == ReduceOp::average) {
    fail<DTypeError>(op, ": the average of ", t.dtype(), " is no ", t.dtype(), "; sum, or convert with to(DType::f32)");
  }
  if (order == ReduceOrder::tree && !std::has_single_bit(static_cast<unsigned>(size))) {
    fail<ConfigError>(op, ": ReduceOrder::tree needs a power of two of ranks, the group has ", size);
  }
}
void check_rank(const char* op, const char* argument, int rank, int size) {
  if (rank < 0 || rank >= size) {
    fail<ConfigError>(op, ": ", argument, " is ", rank, ", but the group's ranks are 0 to ", size - 1);
  }
}

Entry entry_of(Collective op, const Tensor& t, std::int64_t count, const std::source_location& where) {
  return Entry{.op = op, .dtype = t.dtype(), .count = static_cast<std::uint64_t>(count), .site = site_of(where)};
}
// A text's length is no part of a plan. The second exchange of a text belongs to the entry of the first.
Entry text_entry(std::uint64_t root, bool continues, const std::source_location& where) {
  return Entry{.op = Collective::text, .site = site_of(where), .tensors = root << 1 | (continues ? kContinuesText : 0)};
}

// What a rank sends in the algorithm that sends least.
std::int64_t bytes_sent(Collective op, std::int64_t bytes, int rank, int root, int size) {
  switch (op) {
    case Collective::all_reduce: return 2 * bytes * (size - 1) / size;
    case Collective::broadcast: return rank == root && size > 1 ? bytes : 0;
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::all_to_all: return bytes * (size - 1);
    case Collective::send: return bytes;
    case Collective::recv:
    case Collective::barrier:
    case Collective::text: return 0;
  }
  return 0;
}

}  // namespace

std::string words(const Entry& entry, const std::source_location& where) {
  std::string out = entry.op == Collective::text && entry.tensors >> 1 != 0 ? "broadcast_text" : name_of(entry.op);
  if (entry.op != Collective::barrier && entry.op != Collective::text) {
    out += " " + text(entry.dtype) + "[" + text(entry.count) + "]";
  }
  if (entry.op == Collective::all_reduce || entry.op == Collective::reduce_scatter) {
    out += std::string(" ") + name_of(static_cast<ReduceOp>(entry.reduce & 15));
    if ((entry.reduce >> 4) == static_cast<int>(ReduceOrder::tree)) out += " (tree)";
  }
  if (entry.op == Collective::broadcast) out += " from rank " + text(entry.tensors);
  std::string_view file = where.file_name();
  file = file.substr(file.find_last_of('/') + 1);
  return out + " at " + std::string(file) + ":" + text(where.line());
}

std::string all_words(const std::vector<std::string>& by_rank) {
  std::string out;
  for (std::size_t i = 0; i < by_rank.size(); ++i) {
    std::string ranks;
    int count = 0;
    bool first = true;
    for (std::size_t j = 0; j < by_rank.size(); ++j) {
      if (by_rank[j] != by_rank[i]) continue;
      if (j < i) first = false;
      if (++count <= 8) ranks += (count == 1 ? "" : ", ") + text(j);
    }
    if (!first) continue;
    if (count > 8) ranks += " and " + text(count - 8) + " more";
    out += (out.empty() ? "" : "; ") + std::string(count == 1 ? "rank " : "ranks ") + ranks + ": " + by_rank[i];
  }
  return out;
}

Work::Work() = default;
Work::Work(std::shared_ptr<detail::WorkState> state) : state_(std::move(state)) {}
Work::~Work() = default;
Work::Work(const Work&) = default;
Work::Work(Work&&) noexcept = default;
Work& Work::operator=(const Work&) = default;
Work& Work::operator=(Work&&) noexcept = default;
void Work::wait() const {
  if (state_) state_->wait();
}
bool Work::done() const { return !state_ || state_->done(); }

ProcessGroup::~ProcessGroup() = default;

// On meta a collective is checked and moves nothing.
Work ProcessGroup::start(Call&& call) {
  std::int64_t bytes = 0;
  if (call.op != Collective::barrier) {
    const Tensor& t = call.out.defined() ? call.out : call.in;
    if (t.device().is_meta()) return {};
    bytes = bytes_sent(call.op, call.count * static_cast<std::int64_t>(itemsize(t.dtype())), rank_, call.peer, size_);
  }
  Work work = issue(std::move(call));
  ++traffic_.collectives;
  traffic_.bytes += bytes;
  return work;
}

Work ProcessGroup::all_reduce(const Tensor& t, ReduceOp op, ReduceOrder order, std::source_location where) {
  return start(reduction(t, op, order, where));
}
void ProcessGroup::all_reduce_now(const Tensor& t, ReduceOp op, ReduceOrder order, std::source_location where) {
  Call call = reduction(t, op, order, where);
  call.waits = true;
  start(std::move(call)).wait();
}
ProcessGroup::Call ProcessGroup::reduction(const Tensor& t, ReduceOp op, ReduceOrder order,
                                           std::source_location where) const {
  check_written("all_reduce", "t", t);
  check_reduce("all_reduce", t, op, order, size_);
  Entry entry = entry_of(Collective::all_reduce, t, t.numel(), where);
  entry.reduce = static_cast<std::uint8_t>(static_cast<int>(op) | static_cast<int>(order) << 4);
  return {.op = Collective::all_reduce,
          .out = t,
          .in = t,
          .reduce = op,
          .order = order,
          .count = static_cast<std::int64_t>(entry.count),
          .entry = entry,
          .where = where};
}

Work ProcessGroup::broadcast(const Tensor& t, int root, std::source_location where) {
  check_written("broadcast", "t", t);
  check_rank("broadcast", "root", root, size_);
  Entry entry = entry_of(Collective::broadcast, t, t.numel(), where);
  entry.tensors = static_cast<std::uint64_t>(root);
  return start({.op = Collective::broadcast,
                .out = t,
                .in = t,
                .peer = root,
                .count = t.numel(),
                .entry = entry,
                .where = where});
}

Work ProcessGroup::all_gather(const Tensor& out, const Tensor& in, std::source_location where) {
  check_pair("all_gather", out, in);
  if (out.numel() != in.numel() * size_) {
    fail<ShapeError>("all_gather: out ", text(out), " has ", out.numel(), " elements; ", size_, " ranks with in ",
                     text(in), " need ", in.numel() * size_);
  }
  check_apart("all_gather", out, in, rank_ * in.numel());
  return start({.op = Collective::all_gather,
                .out = out,
                .in = in,
                .count = in.numel(),
                .entry = entry_of(Collective::all_gather, in, in.numel(), where),
                .where = where});
}

Work ProcessGroup::reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, ReduceOrder order,
                                  std::source_location where) {
  check_pair("reduce_scatter", out, in);
  check_reduce("reduce_scatter", out, op, order, size_);
  if (in.numel() != out.numel() * size_) {
    fail<ShapeError>("reduce_scatter: in ", text(in), " has ", in.numel(), " elements; ", size_, " ranks with out ",
                     text(out), " need ", out.numel() * size_);
  }
  check_apart("reduce_scatter", in, out, rank_ * out.numel());
  Entry entry = entry_of(Collective::reduce_scatter, out, out.numel(), where);
  entry.reduce = static_cast<std::uint8_t>(static_cast<int>(op) | static_cast<int>(order) << 4);
  return start({.op = Collective::reduce_scatter,
                .out = out,
                .in = in,
                .reduce = op,
                .order = order,
                .count = static_cast<std::int64_t>(entry.count),
                .entry = entry,
                .where = where});
}

Work ProcessGroup::all_to_all(const Tensor& out, const Tensor& in, std::source_location where) {
  check_pair("all_to_all", out, in);
  if (out.numel() != in.numel() || in.numel() % size_ != 0) {
    fail<ShapeError>("all_to_all: out ", text(out), " and in ", text(in),
                     " need the same number of elements, a multiple of ", size_, " ranks");
  }
  if (size_ > 1 || out.offset() != in.offset()) check_apart("all_to_all", out, in, -1);
  return start({.op = Collective::all_to_all,
                .out = out,
                .in = in,
                .count = in.numel() / size_,
                .entry = entry_of(Collective::all_to_all, in, in.numel() / size_, where),
                .where = where});
}

Work ProcessGroup::send(const Tensor& t, int to, int tag, std::source_location where) {
  check_tensor("send", "t", t);
  check_peer("send", to, tag);
  return start({.op = Collective::send,
                .out = {},
                .in = t,
                .peer = to,
                .tag = tag,
                .count = t.numel(),
                .entry = entry_of(Collective::send, t, t.numel(), where),
                .where = where});
}

Work ProcessGroup::recv(const Tensor& t, int from, int tag, std::source_location where) {
  check_written("recv", "t", t);
  check_peer("recv", from, tag);
  return start({.op = Collective::recv,
                .out = t,
                .in = {},
                .peer = from,
                .tag = tag,
                .count = t.numel(),
                .entry = entry_of(Collective::recv, t, t.numel(), where),
                .where = where});
}

void ProcessGroup::check_peer(const char* op, int peer, int tag) const {
  check_rank(op, "the other rank", peer, size_);
  if (peer == rank_) fail<ConfigError>(op, ": rank ", peer, " is this rank");
  if (tag < 0) fail<ConfigError>(op, ": a tag is at least 0, got ", tag);
}

void ProcessGroup::barrier(std::source_location where) {
  Entry entry{.op = Collective::barrier, .site = site_of(where)};
  start({.op = Collective::barrier, .out = {}, .in = {}, .entry = entry, .where = where, .waits = true}).wait();
}

// Texts travel as two collectives of bytes: the lengths, then the texts, padded to the longest.
std::vector<std::string> ProcessGroup::gather_text(std::string_view mine, std::source_location where) {
  const auto gather = [&](const Tensor& out, const Tensor& in, bool continues) {
    start({.op = Collective::all_gather,
           .out = out,
           .in = in,
           .count = in.numel(),
           .entry = text_entry(0, continues, where),
           .where = where})
        .wait();
  };
  const Tensor lengths = empty({size_}, text_device_, DType::i64);
  gather(lengths, tensor({static_cast<std::int64_t>(mine.size())}, text_device_), false);
  const std::vector<std::int64_t> sizes = lengths.to_vector<std::int64_t>();
  std::int64_t longest = 0;
  for (const std::int64_t n : sizes) longest = std::max(longest, n);
  std::vector<std::string> out(static_cast<std::size_t>(size_));
  if (longest == 0) return out;
  std::vector<std::uint8_t> padded(static_cast<std::size_t>(longest));
  std::memcpy(padded.data(), mine.data(), mine.size());
  const Tensor all = empty({size_, longest}, text_device_, DType::u8);
  gather(all, from_data(padded, {longest}, text_device_), true);
  const std::vector<std::uint8_t> bytes = all.to_vector<std::uint8_t>();
  for (std::size_t r = 0; r < out.size(); ++r) {
    const auto* const begin = reinterpret_cast<const char*>(bytes.data()) + r * static_cast<std::size_t>(longest);
    out[r].assign(begin, static_cast<std::size_t>(sizes[r]));
  }
  return out;
}

std::string ProcessGroup::broadcast_text(std::string_view mine, int root, std::source_location where) {
  check_rank("broadcast_text", "root", root, size_);
  const auto broadcast = [&](const Tensor& t, bool continues) {
    start({.op = Collective::broadcast,
           .out = t,
           .in = t,
           .peer = root,
           .count = t.numel(),
           .entry = text_entry(static_cast<std::uint64_t>(root) + 1, continues, where),
           .where = where})
        .wait();
  };
  const Tensor length = tensor({static_cast<std::int64_t>(mine.size())}, text_device_);
  broadcast(length, false);
  const auto size = length.item<std::int64_t>();
  if (size == 0) return {};
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size));
  if (rank_ == root) std::memcpy(bytes.data(), mine.data(), mine.size());
  const Tensor t = from_data(bytes, {size}, text_device_);
  broadcast(t, true);
  bytes = t.to_vector<std::uint8_t>();
  return {bytes.begin(), bytes.end()};
}

}  // namespace levin::dist
