// Note [A fake of NCCL]
//
// Ranks are threads. A collective takes a copy of its input at the call, is in progress until all ranks have called it
// and the scripted number of questions was asked, and then enqueues the write of its result. The stream writes later,
// so that a reader that does not wait for the work reads what was there before. Rules whose breach NCCL answers by a
// crash or a hang end in FakeNccl::broken.
#include "tests/fake_nccl/nccl.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/group/nccl_api.h"
#include "levin/dtype.h"

namespace {

using levin::bf16, levin::f16;
using levin::dist::nccl::Comm, levin::dist::nccl::Config, levin::dist::nccl::Id, levin::dist::nccl::Reduce;
using levin::dist::nccl::Result, levin::dist::nccl::Stream, levin::dist::nccl::Type;
using levin::test::FakeNccl;
using Bytes = std::vector<std::byte>;

enum class Kind { init, all_reduce, broadcast, all_gather, reduce_scatter, send, recv };

struct Call {
  Kind kind = Kind::init;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  Type type = Type::u8;
  Reduce reduce = Reduce::sum;
  int peer = 0;
  Stream stream = nullptr;
  std::uint64_t number = 0;  // of a collective
  [[nodiscard]] bool like(const Call& o) const {
    return kind == o.kind && count == o.count && type == o.type && reduce == o.reduce && peer == o.peer;
  }
};
struct Round {
  std::map<int, std::pair<Call, Bytes>> by_rank;
  int left = 0;  // ranks that are done
};
struct World {
  int size = 0;
  std::map<int, bool> ranks;
  std::map<std::uint64_t, Round> rounds;
  std::map<std::pair<int, int>, std::deque<Bytes>> mail;
};
constexpr std::uint32_t kAlive = 0x600dc0de;
struct FakeComm {
  std::uint32_t mark = kAlive;
  std::shared_ptr<World> world;
  int rank = 0, polls_left = 0;
  std::uint64_t collectives = 0;
  std::vector<Call> under_way;
  bool finalizing = false, finalized = false;
  std::atomic<int> inside{0};
};

FakeNccl& fake() {
  static FakeNccl f;
  return f;
}
std::mutex& order() {
  static std::mutex m;
  return m;
}
std::map<std::string, std::shared_ptr<World>>& worlds() {
  static std::map<std::string, std::shared_ptr<World>> all;
  return all;
}
thread_local int group_depth = 0;
thread_local std::vector<std::pair<FakeComm*, Call>> grouped;

void broke(const std::string& rule) {
  const std::lock_guard lock(fake().mutex);
  fake().broken += rule + "\n";
}

// A communicator that a call uses: one thread at a time.
class Use {
 public:
  explicit Use(Comm comm) : comm_(static_cast<FakeComm*>(comm)) {
    if (!comm_ || comm_->mark != kAlive) {
      broke("a communicator was used after its end");
      comm_ = nullptr;
    } else if (++comm_->inside != 1) {
      broke("two threads used one communicator at a time");
    }
  }
  ~Use() {
    if (comm_) --comm_->inside;
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  explicit operator bool() const { return comm_ != nullptr; }
  FakeComm* operator->() const { return comm_; }
  [[nodiscard]] FakeComm* get() const { return comm_; }

 private:
  FakeComm* comm_;
};

std::size_t size_of(Type type) {
  switch (type) {
    case Type::u8: return 1;
    case Type::f16:
    case Type::bf16: return 2;
    case Type::i32:
    case Type::f32: return 4;
    case Type::i64:
    case Type::f64: return 8;
  }
  return 0;
}

template <class T, class Wide>
void combine_as(const std::vector<const std::byte*>& in, std::byte* out, std::size_t count, Reduce reduce) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto at = [&](const std::byte* from) {
      T x;
      std::memcpy(&x, from + i * sizeof(T), sizeof(T));
      return static_cast<Wide>(x);
    };
    Wide sum = at(in[0]);
    for (std::size_t r = 1; r < in.size(); ++r) {
      const Wide x = at(in[r]);
      const bool nan = x != x || sum != sum;
      switch (reduce) {
        case Reduce::sum:
        case Reduce::average: sum = static_cast<Wide>(sum + x); break;
        case Reduce::max: sum = nan ? static_cast<Wide>(sum + x) : std::max(sum, x); break;
        case Reduce::min: sum = nan ? static_cast<Wide>(sum + x) : std::min(sum, x); break;
      }
    }
    if (reduce == Reduce::average) sum = static_cast<Wide>(sum / static_cast<Wide>(in.size()));
    const T x = static_cast<T>(sum);
    std::memcpy(out + i * sizeof(T), &x, sizeof(T));
  }
}
void combine(Type type, const std::vector<const std::byte*>& in, std::byte* out, std::size_t count, Reduce reduce) {
  switch (type) {
    case Type::u8: return combine_as<std::uint8_t, std::uint8_t>(in, out, count, reduce);
    case Type::i32: return combine_as<std::uint32_t, std::uint32_t>(in, out, count, reduce);
    case Type::i64: return combine_as<std::uint64_t, std::uint64_t>(in, out, count, reduce);
    case Type::f16: return combine_as<f16, float>(in, out, count, reduce);
    case Type::bf16: return combine_as<bf16, float>(in, out, count, reduce);
    case Type::f32: return combine_as<float, float>(in, out, count, reduce);
    case Type::f64: return combine_as<double, double>(in, out, count, reduce);
  }
}

struct Write {
  void* to;
  Bytes bytes;
};
void write_in_stream(void* to, Bytes bytes, Stream stream) {
  fake().enqueue(
      stream,
      [](void* argument) {
        const std::unique_ptr<Write> w(static_cast<Write*>(argument));
        if (!w->bytes.empty()) std::memcpy(w->to, w->bytes.data(), w->bytes.size());
      },
      new Write{to, std::move(bytes)});
}

// The elements that a rank gives.
std::size_t given(const Call& call, const World& world) {
  return call.kind == Kind::reduce_scatter ? call.count * static_cast<std::size_t>(world.size) : call.count;
}

// Whether the call can end, and its end.
bool is_ready(const FakeComm& c, const Call& call) {
  World& w = *c.world;
  if (call.kind == Kind::init) return static_cast<int>(w.ranks.size()) == w.size;
  if (call.kind == Kind::send) return true;
  if (call.kind == Kind::recv) return !w.mail[{call.peer, c.rank}].empty();
  return static_cast<int>(w.rounds[call.number].by_rank.size()) == w.size;
}
void complete(FakeComm& c, const Call& call) {
  World& w = *c.world;
  if (call.kind == Kind::init || call.kind == Kind::send) return;
  if (call.kind == Kind::recv) {
    std::deque<Bytes>& mail = w.mail[{call.peer, c.rank}];
    if (mail.front().size() != call.count * size_of(call.type)) broke("a message had another size than its receive");
    write_in_stream(call.out, std::move(mail.front()), call.stream);
    mail.pop_front();
    return;
  }
  Round& round = w.rounds[call.number];
  std::vector<const std::byte*> in;
  for (const auto& [rank, theirs] : round.by_rank) {
    if (!theirs.first.like(call)) broke("ranks called different collectives");
    in.push_back(theirs.second.data());
  }
  const std::size_t slice = call.count * size_of(call.type);
  Bytes out(call.kind == Kind::all_gather ? slice * in.size() : slice);
  if (call.kind == Kind::all_gather) {
    for (std::size_t r = 0; r < in.size(); ++r) std::memcpy(out.data() + r * slice, in[r], slice);
  } else if (call.kind == Kind::broadcast) {
    std::memcpy(out.data(), in[static_cast<std::size_t>(call.peer)], slice);
  } else {
    if (call.kind == Kind::reduce_scatter) {
      for (const std::byte*& from : in) from += static_cast<std::size_t>(c.rank) * slice;
    }
    combine(call.type, in, out.data(), call.count, call.reduce);
  }
  write_in_stream(call.out, std::move(out), call.stream);
  if (++round.left == w.size) w.rounds.erase(call.number);
}

// With order() held.
Result start(FakeComm& c, Call call) {
  World& w = *c.world;
  if (call.kind != Kind::recv) {
    Bytes bytes(given(call, w) * size_of(call.type));
    if (!bytes.empty()) std::memcpy(bytes.data(), call.in, bytes.size());
    if (call.kind == Kind::send) {
      w.mail[{c.rank, call.peer}].push_back(std::move(bytes));
    } else {
      call.number = c.collectives++;
      w.rounds[call.number].by_rank[c.rank] = {call, std::move(bytes)};
    }
  }
  c.under_way.push_back(call);
  return Result::in_progress;
}

Result submit(Comm comm, const Call& call) {
  const Use c(comm);
  if (!c) return Result::invalid_argument;
  if (c->finalizing) broke("a call after the farewell");
  if (group_depth > 0) {
    grouped.emplace_back(c.get(), call);
    return Result::success;
  }
  if (!c->under_way.empty()) broke("a call while another one was in progress");
  fake().drain(call.stream);
  const std::lock_guard lock(order());
  c->polls_left = fake().polls;
  return start(*c.get(), call);
}

}  // namespace

extern "C" {

FakeNccl* levin_fake_nccl() { return &fake(); }

Result ncclGetVersion(int* version) {
  *version = fake().version;
  return Result::success;
}
Result ncclGetUniqueId(Id* id) {
  static std::atomic<int> next{0};
  std::memset(id->bytes, 0x5a, sizeof id->bytes);
  const int n = ++next;
  std::memcpy(id->bytes + 60, &n, sizeof n);  // zeros in the middle: an id is no text
  return Result::success;
}
Result ncclCommInitRankConfig(Comm* comm, int size, Id id, int rank, Config* config) {
  if (config->magic != levin::dist::nccl::kMagic || config->size != sizeof(Config) || config->blocking != 0) {
    broke("a configuration that blocks, or is none");
    return Result::invalid_argument;
  }
  if (const int fails = fake().init_fails.exchange(0)) return static_cast<Result>(fails);
  auto made = std::make_unique<FakeComm>();
  const std::lock_guard lock(order());
  std::shared_ptr<World>& world = worlds()[std::string(id.bytes, sizeof id.bytes)];
  if (!world) world = std::make_shared<World>();
  if (std::exchange(world->ranks[rank], true)) broke("a rank twice");
  world->size = size;
  made->world = world;
  made->rank = rank;
  made->polls_left = fake().polls;
  made->under_way.push_back({});
  ++fake().made;
  ++fake().alive;
  *comm = made.release();
  return Result::in_progress;
}
Result ncclCommGetAsyncError(Comm comm, Result* state) {
  const Use c(comm);
  if (!c) return Result::invalid_argument;
  ++fake().asked;
  const std::lock_guard lock(order());
  *state = Result::success;
  if (const int error = fake().async_error) {
    *state = static_cast<Result>(error);
    return Result::success;
  }
  if (c->finalizing && !c->finalized) {
    c->finalized = --c->polls_left <= 0;
    if (!c->finalized) *state = Result::in_progress;
    return Result::success;
  }
  if (c->under_way.empty()) return Result::success;
  const bool ready =
      std::all_of(c->under_way.begin(), c->under_way.end(), [&](const Call& call) { return is_ready(*c.get(), call); });
  if (!ready || --c->polls_left > 0) {
    *state = Result::in_progress;
    return Result::success;
  }
  for (const Call& call : std::exchange(c->under_way, {})) complete(*c.get(), call);
  return Result::success;
}
Result ncclCommFinalize(Comm comm) {
  const Use c(comm);
  if (!c) return Result::invalid_argument;
  c->finalizing = true;
  c->polls_left = fake().polls;
  ++fake().finalized;
  return Result::in_progress;
}
Result ncclCommDestroy(Comm comm) {
  {
    const Use c(comm);
    if (!c) return Result::invalid_argument;
    if (!c->finalized) broke("a communicator was destroyed before its farewell ended");
    c->mark = 0;
  }
  ++fake().destroyed;
  --fake().alive;
  delete static_cast<FakeComm*>(comm);
  return Result::success;
}
Result ncclCommAbort(Comm comm) {
  {
    const Use c(comm);
    if (!c) return Result::invalid_argument;
    c->mark = 0;
  }
  ++fake().aborted;
  --fake().alive;
  delete static_cast<FakeComm*>(comm);
  return Result::success;
}
const char* ncclGetErrorString(Result result) {
  return result == Result::remote_error ? "remote process exited or there was a network error" : "system error";
}
const char* ncclGetLastError(Comm) { return "the fake wants it"; }

Result ncclAllReduce(const void* in, void* out, std::size_t count, Type type, Reduce reduce, Comm comm, Stream stream) {
  if (const int fails = fake().all_reduce_fails.exchange(0)) return static_cast<Result>(fails);
  return submit(comm, {Kind::all_reduce, in, out, count, type, reduce, 0, stream, 0});
}
Result ncclBroadcast(const void* in, void* out, std::size_t count, Type type, int root, Comm comm, Stream stream) {
  return submit(comm, {Kind::broadcast, in, out, count, type, Reduce::sum, root, stream, 0});
}
Result ncclAllGather(const void* in, void* out, std::size_t count, Type type, Comm comm, Stream stream) {
  return submit(comm, {Kind::all_gather, in, out, count, type, Reduce::sum, 0, stream, 0});
}
Result ncclReduceScatter(const void* in, void* out, std::size_t count, Type type, Reduce reduce, Comm comm,
                         Stream stream) {
  return submit(comm, {Kind::reduce_scatter, in, out, count, type, reduce, 0, stream, 0});
}
Result ncclSend(const void* in, std::size_t count, Type type, int to, Comm comm, Stream stream) {
  return submit(comm, {Kind::send, in, nullptr, count, type, Reduce::sum, to, stream, 0});
}
Result ncclRecv(void* out, std::size_t count, Type type, int from, Comm comm, Stream stream) {
  return submit(comm, {Kind::recv, nullptr, out, count, type, Reduce::sum, from, stream, 0});
}
Result ncclGroupStart() {
  ++group_depth;
  return Result::success;
}
Result ncclGroupEnd() {
  if (--group_depth > 0) return Result::success;
  std::vector<std::pair<FakeComm*, Call>> all = std::exchange(grouped, {});
  for (const auto& [comm, call] : all) {
    if (!comm->under_way.empty()) broke("a group while another call was in progress");
  }
  for (const auto& [comm, call] : all) fake().drain(call.stream);
  const std::lock_guard lock(order());
  for (const auto& [comm, call] : all) {
    comm->polls_left = fake().polls;
    start(*comm, call);
  }
  return all.empty() ? Result::success : Result::in_progress;
}
}
