// Note [NCCL]
//
// libnccl.so.2 has 218 MB, so it is loaded when a job wants it. A communicator does not block: each call may return
// in_progress and is then asked for under the job's deadline, because no other way gives up on a rank that is missing.
// Where the job's alarm is raised, ncclCommAbort ends the kernels that wait for lost ranks, and the communicator is
// gone. A thread of the group asks for errors that NCCL finds between calls (a link that goes down). It asks
// NCCL alone and no event, so that it disturbs no recording.
//
// A group's collectives run on a stream of their own, after the work of the current stream; Work::wait makes the
// current stream wait for them. A recording of the current stream records them, too. Texts go through the job's store.
// A part of a group is a communicator with an id of its own, which lives and ends independently of the whole one's.
#include "comm/group/nccl.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "comm/group/cpu_group.h"
#include "comm/group/engine.h"
#include "comm/group/group.h"
#include "comm/group/nccl_api.h"
#include "comm/group/work.h"
#include "levin/error.h"
#include "levin/stream.h"
#include "tensor/device/current.h"
#include "tensor/device/in_stream.h"
#include "tensor/text/number_text.h"

namespace levin::dist {
namespace {

using levin::detail::runtime::Current;
using Clock = std::chrono::steady_clock;

constexpr double kCloseSeconds = 5;
constexpr std::chrono::milliseconds kWatch{100};  // between two questions for errors
constexpr std::chrono::microseconds kPause{50};   // between two questions for a call that takes long
constexpr int kQuickPolls = 1000;
// In the id of a group: the same ranks may have a group for tensors of the CPU beside this one.
constexpr std::uint32_t kOfDevices = 0x6e63636c;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Between two questions: most calls are done after a few.
void pause_before(int poll) {
  if (poll < kQuickPolls) return std::this_thread::yield();
  std::this_thread::sleep_for(kPause);
}

// i16 travels as bytes: NCCL has no such type.
nccl::Type type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return nccl::Type::f32;
    case DType::f64: return nccl::Type::f64;
    case DType::f16: return nccl::Type::f16;
    case DType::bf16: return nccl::Type::bf16;
    case DType::i32: return nccl::Type::i32;
    case DType::i64: return nccl::Type::i64;
    case DType::u8:
    case DType::b8:
    case DType::i8:
    case DType::i16: break;
  }
  return nccl::Type::u8;
}
nccl::Reduce reduce_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: break;
    case ReduceOp::average: return nccl::Reduce::average;
    case ReduceOp::min: return nccl::Reduce::min;
    case ReduceOp::max: return nccl::Reduce::max;
  }
  return nccl::Reduce::sum;
}
bool begun(nccl::Result result) { return result == nccl::Result::success || result == nccl::Result::in_progress; }

// NCCL's handle, what ends it, and the thread that looks for errors.
class Communicator {
 public:
  Communicator(std::shared_ptr<Rendezvous> ranks, Device device)
      : ranks_(std::move(ranks)), device_(device), nccl_(nccl::library()) {
    std::string mine;
    if (ranks_->rank() == 0) {
      nccl::Id id;
      if (const nccl::Result made = nccl_.ncclGetUniqueId(&id); made != nccl::Result::success) {
        fail<CommError>("nccl: no id for the group: ", text_of(made));
      }
      mine.assign(id.bytes, sizeof id.bytes);
    }
    const std::string shared = ranks_->gather("NCCL's id", mine)[0];
    nccl::Id id;
    if (shared.size() != sizeof id.bytes) fail<CommError>("nccl: rank 0 sent bytes that are no id of NCCL");
    std::memcpy(id.bytes, shared.data(), sizeof id.bytes);
    waker_ = ranks_->alarm()->add([this] { end(ranks_->alarm()->verdict().text); });
    try {
      settle("the connection of the ranks", call([&](nccl::Comm) {
               nccl::Config config;
               config.blocking = 0;
               config.name = "levin";
               return nccl_.ncclCommInitRankConfig(&comm_, ranks_->size(), id, ranks_->rank(), &config);
             }));
    } catch (...) {
      ranks_->alarm()->remove(waker_);
      end("the ranks were not connected");
      throw;
    }
    try {
      thread_ = std::thread([this] { watch(); });
    } catch (const std::system_error&) {
      // Errors appear at the next call.
    }
  }
  ~Communicator() { close(); }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] const nccl::Library& nccl() const { return nccl_; }

  // Calls NCCL and returns when it has taken the work. words() is the call's text for errors.
  template <class Words, class Body>
  void issue(const Words& words, const Body& body) {
    check();
    const nccl::Result result = call(body);
    if (result != nccl::Result::success) settle(words(), result);
  }
  // Throws CommError where the communicator is gone.
  void check() {
    ranks_->alarm()->check();
    const std::lock_guard lock(mutex_);
    check_locked();
  }
  // Waits on the host, and gives up with the job.
  void await(detail::WorkState& work, const std::string& what) {
    const Clock::time_point start = Clock::now();
    for (int poll = 0; !work.done(); ++poll) {
      check();
      if (seconds_since(start) > ranks_->timeout()) too_late(what);
      pause_before(poll);
    }
    check();
  }
  // Ends the kernels that run. From any thread.
  void end(std::string_view reason) noexcept {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    if (reason_.empty()) reason_ = reason;
    abandon();
  }
  // A communicator whose work is done is finished together; any other is aborted.
  void close() noexcept {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
    if (const std::uint64_t id = std::exchange(waker_, 0)) ranks_->alarm()->remove(id);
    const std::lock_guard lock(mutex_);
    if (!comm_) return;
    const bool good = std::uncaught_exceptions() == 0 && !ranks_->alarm()->raised();
    if (good && finish()) {
      static_cast<void>(nccl_.ncclCommDestroy(std::exchange(comm_, nullptr)));
    } else {
      abandon();
    }
    ended_ = true;
    if (reason_.empty()) reason_ = "the group is closed";
  }

 private:
  template <class Body>
  nccl::Result call(const Body& body) {
    const std::lock_guard lock(mutex_);
    check_locked();
    const Current current(device_);
    return body(comm_);
  }
  void check_locked() const {
    if (ended_) fail<CommError>(reason_);
  }
  std::string text_of(nccl::Result result) const {
    const char *const name = nccl_.ncclGetErrorString(result), *const last = nccl_.ncclGetLastError(comm_);
    std::string out = name ? name : "error " + text(static_cast<int>(result));
    if (last && *last) out += std::string(" (") + last + ")";
    return out;
  }
  // What NCCL says about the call that is under way. With the lock.
  nccl::Result ask() {
    nccl::Result state = nccl::Result::success;
    const nccl::Result asked = nccl_.ncclCommGetAsyncError(comm_, &state);
    return asked == nccl::Result::success ? state : asked;
  }
  // Returns when the call that gave `result` is done on the host.
  void settle(const std::string& what, nccl::Result result) {
    const Clock::time_point start = Clock::now();
    for (int poll = 0; result == nccl::Result::in_progress; ++poll) {
      ranks_->alarm()->check();
      if (seconds_since(start) > ranks_->timeout()) too_late(what);
      pause_before(poll);
      const std::lock_guard lock(mutex_);
      check_locked();
      result = ask();
    }
    if (result == nccl::Result::success) return;
    std::string error;
    {
      const std::lock_guard lock(mutex_);
      check_locked();
      error = "nccl: " + what + ": " + text_of(result);
    }
    give_up(error);
  }
  [[noreturn]] void too_late(const std::string& what) {
    give_up("nccl: " + what + " was not done within " + text(ranks_->timeout()) + " s");
  }
  [[noreturn]] void give_up(const std::string& error) {
    end(error);
    ranks_->report(error, -1);
    ranks_->alarm()->check();
    fail<CommError>(error);
  }
  // NCCL's farewell, with the lock. False: it did not come to an end.
  bool finish() noexcept {
    const Clock::time_point start = Clock::now();
    try {
      const Current current(device_);
      nccl::Result state = nccl_.ncclCommFinalize(comm_);
      for (int poll = 0; state == nccl::Result::in_progress && seconds_since(start) < kCloseSeconds; ++poll) {
        pause_before(poll);
        state = ask();
      }
      return state == nccl::Result::success;
    } catch (const Error&) { return false; }
  }
  void abandon() noexcept {  // with the lock
    if (comm_) static_cast<void>(nccl_.ncclCommAbort(std::exchange(comm_, nullptr)));
  }
  void watch() {
    std::unique_lock lock(mutex_);
    while (!closing_ && comm_) {
      const nccl::Result state = ask();
      if (!begun(state)) {
        const std::string error = "nccl: " + text_of(state);
        lock.unlock();
        end(error);
        try {
          ranks_->report(error, -1);
        } catch (const std::exception&) {
          // The next call of this rank throws the error.
        }
        return;
      }
      changed_.wait_for(lock, kWatch);
    }
  }

  std::shared_ptr<Rendezvous> ranks_;
  Device device_;
  const nccl::Library& nccl_;
  std::mutex mutex_;  // guards the members below, and NCCL: one thread at a time
  std::condition_variable changed_;
  nccl::Comm comm_ = nullptr;
  bool ended_ = false, closing_ = false;
  std::string reason_;
  std::uint64_t waker_ = 0;
  std::thread thread_;
};

class DeviceWork final : public detail::WorkState {
 public:
  DeviceWork(std::shared_ptr<Communicator> communicator, Stream stream)
      : communicator_(std::move(communicator)), device_(stream.device()), event_(stream.device()) {
    event_.record(stream);
  }
  void wait() override {
    communicator_->check();
    event_.block(Stream::current(device_));
  }
  [[nodiscard]] bool done() override { return event_.done(); }

 private:
  std::shared_ptr<Communicator> communicator_;
  Device device_;
  Event event_;
};

class NcclGroup final : public ProcessGroup {
 public:
  NcclGroup(std::shared_ptr<Rendezvous> ranks, Device device)
      : ProcessGroup(ranks->rank(), ranks->size()),
        ranks_(std::move(ranks)),
        device_(device),
        stream_(Stream::next_of(device)),
        token_(empty({1}, device, DType::u8)),
        communicator_(std::make_shared<Communicator>(ranks_, device)),
        id_(id_of(*ranks_) ^ kOfDevices) {}
  // Works that outlive the group hold the communicator, which is closed here.
  ~NcclGroup() override { communicator_->close(); }

  [[nodiscard]] std::string_view backend() const override { return "nccl"; }
  [[nodiscard]] bool capturable() const override { return true; }
  [[nodiscard]] std::shared_ptr<ProcessGroup> split(int color, int key) override {
    const Part part = part_of(*this, color, key);
    if (part.color < 0) return nullptr;
    return std::make_shared<NcclGroup>(ranks_->part(part.ranks), device_);
  }
  void abort(std::string_view reason) noexcept override {
    if (!ranks_->alarm()->raised()) {
      try {
        ranks_->report(reason, -1);
      } catch (const std::exception&) {
        // Without a decision the communicator's end stands alone.
      }
    }
    communicator_->end(reason);
  }

 protected:
  [[nodiscard]] Work issue(Call&& call) override {
    const bool message = call.op == Collective::send || call.op == Collective::recv;
    const bool is_text = call.entry.op == Collective::text;
    if (call.op != Collective::barrier && !is_text) check(call);
    const bool recorded = is_capturing(device_);
    if (recorded && (call.op == Collective::barrier || is_text)) {
      fail<CaptureError>(words(call.entry, call.where), ": the host waits for it, and a recording is under way");
    }
    communicator_->check();
    call.entry.group = id_;
    if (!message && !(is_text && (call.entry.tensors & kContinuesText) != 0)) {
      ranks_->plans()->issue(call.entry, [&] { return words(call.entry, call.where) + " on " + text(device_); });
    }
    if (is_text) {
      move_text(call);
      return {};
    }
    if (call.op == Collective::barrier) call.out = call.in = token_;
    stream_.wait(Stream::current(device_));
    std::byte *out = nullptr, *in = nullptr;
    {
      const StreamGuard guard(stream_);  // the memory is used there
      if (call.out.defined()) out = levin::detail::address_in_stream(call.out);
      if (call.in.defined()) in = levin::detail::address_in_stream(call.in);
    }
    if (call.out.defined()) call.out.get().storage->wrote("collective");
    if (call.count > 0 || call.op == Collective::barrier) {
      communicator_->issue([&] { return words(call.entry, call.where); },
                           [&](nccl::Comm comm) { return enqueue(call, comm, out, in); });
    }
    const auto work = std::make_shared<DeviceWork>(communicator_, stream_);
    if (call.op == Collective::barrier) communicator_->await(*work, words(call.entry, call.where));
    return Work(work);
  }

 private:
  void check(const Call& call) const {
    const Tensor& t = call.out.defined() ? call.out : call.in;
    if (t.device() != device_) {
      fail<DeviceError>(words(call.entry, call.where), ": the group moves tensors of ", text(device_), ", not ",
                        text(t.device()));
    }
    if (call.order == ReduceOrder::tree && size() > 2) {
      fail<UnsupportedError>(words(call.entry, call.where),
                             ": NCCL adds in an order of its own on more than two ranks; use ReduceOrder::fast, or a "
                             "group of CPU ranks");
    }
    if ((call.op == Collective::send || call.op == Collective::recv) && call.tag != 0) {
      fail<UnsupportedError>(words(call.entry, call.where), ": NCCL's messages have no tags; use tag 0");
    }
  }

  nccl::Result enqueue(const Call& call, nccl::Comm comm, std::byte* out, const std::byte* in) const {
    const nccl::Library& n = communicator_->nccl();
    nccl::Stream const stream = stream_.handle();
    const DType dtype = (call.out.defined() ? call.out : call.in).dtype();
    const std::size_t bytes_each = dtype == DType::i16 ? itemsize(dtype) : 1;  // of an element that travels as bytes
    const std::size_t count = static_cast<std::size_t>(call.count) * bytes_each;
    const nccl::Type type = type_of(dtype);
    const nccl::Reduce reduce = reduce_of(call.reduce);
    switch (call.op) {
      case Collective::all_reduce: return n.ncclAllReduce(in, out, count, type, reduce, comm, stream);
      case Collective::broadcast: return n.ncclBroadcast(in, out, count, type, call.peer, comm, stream);
      case Collective::all_gather: return n.ncclAllGather(in, out, count, type, comm, stream);
      case Collective::reduce_scatter: return n.ncclReduceScatter(in, out, count, type, reduce, comm, stream);
      case Collective::send: return n.ncclSend(in, count, type, call.peer, comm, stream);
      case Collective::recv: return n.ncclRecv(out, count, type, call.peer, comm, stream);
      case Collective::barrier: return n.ncclAllReduce(in, out, 1, type, nccl::Reduce::max, comm, stream);
      case Collective::all_to_all: break;
      case Collective::text: return nccl::Result::success;
    }
    const std::size_t slice = static_cast<std::size_t>(call.count) * itemsize(dtype);
    nccl::Result result = n.ncclGroupStart();
    if (!begun(result)) return result;
    for (int r = 0; r < size(); ++r) {
      const std::size_t at = static_cast<std::size_t>(r) * slice;
      if (begun(result)) result = n.ncclSend(in + at, count, type, r, comm, stream);
      if (begun(result)) result = n.ncclRecv(out + at, count, type, r, comm, stream);
    }
    const nccl::Result ended = n.ncclGroupEnd();
    return begun(result) ? ended : result;
  }

  void move_text(const Call& call) {
    const auto address = [](const Tensor& t) {
      return reinterpret_cast<char*>(t.get().storage->data) +
             t.offset() * static_cast<std::int64_t>(itemsize(t.dtype()));
    };
    const std::size_t bytes = static_cast<std::size_t>(call.in.numel()) * itemsize(call.in.dtype());
    const std::vector<std::string> all = ranks_->gather("texts", std::string_view(address(call.in), bytes));
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (all[r].size() != bytes) {
        fail<CommError>(words(call.entry, call.where), ": rank ", r, " sent ", all[r].size(), " bytes, this rank ",
                        bytes);
      }
    }
    if (call.op == Collective::broadcast) {
      std::memcpy(address(call.out), all[static_cast<std::size_t>(call.peer)].data(), bytes);
      return;
    }
    for (std::size_t r = 0; r < all.size(); ++r) std::memcpy(address(call.out) + r * bytes, all[r].data(), bytes);
  }

  std::shared_ptr<Rendezvous> ranks_;
  Device device_;
  Stream stream_;
  Tensor token_;  // what a barrier moves
  std::shared_ptr<Communicator> communicator_;
  std::uint32_t id_;
};

}  // namespace

Device nccl_device(int local_rank, int index) {
#if defined(LEVIN_CUDA)
  const int devices = device_count(DeviceType::cuda);
  if (devices == 0) {
    fail<DeviceError>(
        "init_process_group: backend is \"nccl\", and this process sees no CUDA device; look at nvidia-smi and "
        "CUDA_VISIBLE_DEVICES, or use \"auto\" between CPU ranks");
  }
  if (index >= devices) {
    fail<DeviceError>("init_process_group: local rank ", local_rank, " was given CUDA device ", index,
                      ", and this process sees ", devices, ", 0 to ", devices - 1);
  }
  if (index >= 0) return Device::cuda(index);
  if (devices > 1 && local_rank >= devices) {
    fail<DeviceError>("init_process_group: local rank ", local_rank, " needs a CUDA device of its own, and this ",
                      "process sees ", devices, "; start at most ", devices, " ranks on this host");
  }
  return Device::cuda(devices == 1 ? 0 : local_rank);
#else
  static_cast<void>(index);
  fail<UnsupportedError>("init_process_group: backend is \"nccl\" for local rank ", local_rank,
                         ", and this build has no CUDA devices; build with -Dcuda=enabled, or use \"auto\" between "
                         "CPU ranks");
#endif
}

std::shared_ptr<ProcessGroup> make_nccl_group(std::shared_ptr<Rendezvous> ranks, Device device) {
  if (!device.launches()) {
    fail<DeviceError>("nccl: the group's device is ", text(device), ", and NCCL moves tensors of CUDA devices");
  }
  return std::make_shared<NcclGroup>(std::move(ranks), device);
}

}  // namespace levin::dist
