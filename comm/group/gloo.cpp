// Note [Ranks on several hosts]
//
// Between hosts the algorithms of algorithms.h run over Gloo's messages. A sum is made in three steps: within each host
// over shared memory, between the first ranks of the hosts over Gloo, within each host again. ReduceOrder::tree does so
// where each host has the same power of two of consecutive ranks, because a host's sum is then a node of the tree; else
// all ranks take part in one halving over Gloo. The collectives without a sum cross the network from every rank.
//
// Gloo's connections carry no proof of the job's secret and no encryption: who can reach the ports of the ranks can
// disturb and read a job's tensors. A job between hosts belongs on a network of its own.
#include "comm/group/gloo.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "comm/group/algorithms.h"
#include "comm/group/gloo_face.h"
#include "comm/group/reduce.h"
#include "comm/group/shm.h"
#include "comm/group/transport.h"
#include "comm/job/point.h"
#include "comm/job/socket.h"
#include "levin/error.h"
#include "tensor/text/number_text.h"

namespace levin::dist {
namespace {

constexpr const char* kLibrary = "liblevin_gloo.so";
constexpr double kCloseSeconds = 5;

// The places of the library, in the order of the search.
std::vector<std::string> places() {
  if (const char* const named = std::getenv("LEVIN_GLOO_LIBRARY"); named && *named) return {named};
  std::vector<std::string> out;
  const auto beside = [&](const std::filesystem::path& file) {
    // A build's programs lie one folder below its libraries.
    const std::filesystem::path folder = file.parent_path();
    for (const auto& place : {folder / kLibrary, folder.parent_path() / kLibrary}) {
      if (std::find(out.begin(), out.end(), place.string()) == out.end()) out.push_back(place.string());
    }
  };
  std::error_code none;
  if (const auto program = std::filesystem::read_symlink("/proc/self/exe", none); !none) beside(program);
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&make_gloo_engine), &here) != 0 && here.dli_fname) {
    if (const auto levin = std::filesystem::canonical(here.dli_fname, none); !none) beside(levin);
  }
  out.push_back(installed_gloo());
  out.emplace_back(kLibrary);  // where the system looks
  return out;
}

// By place, so that a change of LEVIN_GLOO_LIBRARY counts. A library stays loaded: Gloo has threads.
const LevinGloo& load() {
  static std::mutex mutex;
  static std::map<std::string, const LevinGloo*> loaded;
  const std::lock_guard lock(mutex);
  std::string tried;
  for (const std::string& place : places()) {
    if (const auto known = loaded.find(place); known != loaded.end()) return *known->second;
    std::error_code none;
    if (place != kLibrary && !std::filesystem::exists(place, none)) {
      tried += "\n  " + place + ": no such file";
      continue;
    }
    void* const library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      const char* const why = dlerror();
      tried += "\n  " + place + ": " + (why ? why : "not loaded");
      continue;
    }
    using Get = const LevinGloo* (*)();
    const auto get = reinterpret_cast<Get>(dlsym(library, "levin_gloo"));
    const LevinGloo* const found = get ? get() : nullptr;
    if (found && found->version == kLevinGlooVersion) return *(loaded[place] = found);
    tried += "\n  " + place + ": of another version of Levin";
    dlclose(library);
  }
  fail<ConfigError>("gloo: ", kLibrary,
                    " is not found; Levin builds it where Debian's package libgloo-dev is installed, and looks for "
                    "LEVIN_GLOO_LIBRARY, beside the program, where Levin was installed and where the system looks:",
                    tried);
}

// Slots of Gloo. The upper bits are a message's size, so that two sides which differ in it never meet (Note [Gloo's
// traps]): all sizes up to 4 MiB differ there, and segments have 1 MiB. Larger messages follow a head with their size.
std::uint64_t slot_of(std::uint64_t slot, std::size_t n) {
  return std::uint64_t{1} << 62 | (static_cast<std::uint64_t>(n) & 0x3fffff) << 40 | (slot & 0xffffffffff);
}
constexpr std::uint64_t kMessages = std::uint64_t{1} << 39;  // above the numbers of collectives

class GlooTransport final : public Transport {
 public:
  explicit GlooTransport(std::shared_ptr<Rendezvous> ranks)
      : ranks_(std::move(ranks)), gloo_(load()), timeout_(ranks_->timeout()) {
    std::array<char, kLevinGlooError> error{};
    const std::string address = reachable_address();
    context_ = gloo_.open(ranks_->rank(), ranks_->size(), address.c_str(), timeout_, error.data());
    try {
      std::string mine, why;
      if (context_) {
        std::size_t n = 0;
        const char* const card = gloo_.card(context_, &n);
        mine.assign(card, n);
      } else {
        why = "gloo: cannot listen at " + address + ": " + error.data();
      }
      // All ranks connect, or all throw.
      agree("Gloo's devices", why);
      // Before the connections: a rank that is lost while they are made ends the wait for it.
      waker_ = ranks_->alarm()->add([this] { gloo_.abort(context_); });
      const std::vector<std::string> cards = ranks_->gather("Gloo's addresses", mine);
      std::vector<const char*> bytes;
      std::vector<std::size_t> sizes;
      for (const std::string& one : cards) {
        bytes.push_back(one.data());
        sizes.push_back(one.size());
      }
      point("gloo:connect");
      if (gloo_.connect(context_, bytes.data(), sizes.data(), error.data()) != 0) {
        why = std::string("gloo: rank ") + text(ranks_->world_rank(ranks_->rank())) + " at " + address +
              " cannot connect: " + error.data();
      }
      agree("Gloo's connections", why);
    } catch (...) {
      ranks_->alarm()->remove(waker_);
      if (context_) gloo_.close(context_);
      throw;
    }
  }
  ~GlooTransport() override {
    ranks_->alarm()->remove(waker_);
    gloo_.close(context_);
  }
  [[nodiscard]] int rank() const override { return ranks_->rank(); }
  [[nodiscard]] int size() const override { return ranks_->size(); }

  Handle send(int to, std::uint64_t slot, const std::byte* bytes, std::size_t n) override {
    std::array<char, kLevinGlooError> error{};
    void* const m = gloo_.send(context_, to, slot_of(slot, n), bytes, n, error.data());
    return begun(m, to, error.data());
  }
  Handle recv(int from, std::uint64_t slot, std::byte* bytes, std::size_t n) override {
    std::array<char, kLevinGlooError> error{};
    void* const m = gloo_.recv(context_, from, slot_of(slot, n), bytes, n, error.data());
    return begun(m, from, error.data());
  }
  void wait(Handle handle) override {
    const std::unique_ptr<UnderWay> m(reinterpret_cast<UnderWay*>(handle));
    std::array<char, kLevinGlooError> error{};
    const int result = gloo_.wait(context_, m->message, timeout_, error.data());
    if (result == 1) failed(m->peer, "the wait was aborted");
    if (result == 2) failed(m->peer, error.data());
  }
  void drop(Handle handle) noexcept override {
    const std::unique_ptr<UnderWay> m(reinterpret_cast<UnderWay*>(handle));
    gloo_.drop(context_, m->message);
  }
  void abort(std::string_view reason) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      if (reason_.empty()) reason_ = reason;
    }
    dead_ = true;
    gloo_.abort(context_);
  }
  [[nodiscard]] bool dead() const { return dead_ || ranks_->alarm()->raised(); }
  // A rank that is late after this call has ended before, or ends later: no failure of the job.
  void begin_close() {
    closing_ = true;
    timeout_ = std::min<double>(timeout_, kCloseSeconds);
  }

 private:
  // This rank's address for all others. A rank on the host of the job's rank 0 may know only a loopback address; what
  // ranks elsewhere call that host is what they reach.
  std::string reachable_address() {
    const std::string mine = ranks_->address();
    const std::vector<std::string> of_main = ranks_->gather("addresses of rank 0", ranks_->main_address());
    if (mine.empty()) return "127.0.0.1";
    if (!is_loopback(mine)) return mine;
    for (const std::string& address : of_main) {
      if (!address.empty() && !is_loopback(address)) return address;
    }
    return of_main.back();  // all are on one host; rank 0 itself may see another loopback address than the others
  }

  struct UnderWay {
    void* message;
    int peer;
  };
  void agree(const char* what, const std::string& why) {
    for (const std::string& error : ranks_->gather(what, why)) {
      if (!error.empty()) fail<CommError>(error);
    }
  }
  Handle begun(void* message, int peer, const char* error) {
    if (!message) failed(peer, error);
    return reinterpret_cast<Handle>(new UnderWay{message, peer});
  }
  [[noreturn]] void failed(int peer, const char* why) {
    ranks_->alarm()->check();
    {
      const std::lock_guard lock(mutex_);
      if (!reason_.empty()) fail<CommError>(reason_);
    }
    const std::string what = "gloo: the connection to rank " + text(ranks_->world_rank(peer)) + ": " + why;
    if (closing_) fail<CommError>(what);
    abort(what);
    ranks_->report(what, peer);
    ranks_->alarm()->check();
    fail<CommError>(what);
  }

  std::shared_ptr<Rendezvous> ranks_;
  const LevinGloo& gloo_;
  std::atomic<double> timeout_;
  std::atomic<bool> closing_{false};
  void* context_ = nullptr;
  std::uint64_t waker_ = 0;
  std::atomic<bool> dead_{false};
  std::mutex mutex_;
  std::string reason_;  // of the first abort
};

// Some of a transport's ranks.
class Members final : public Transport {
 public:
  Members(Transport& all, std::vector<int> ranks)
      : all_(all),
        ranks_(std::move(ranks)),
        rank_(static_cast<int>(std::find(ranks_.begin(), ranks_.end(), all.rank()) - ranks_.begin())) {}
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(ranks_.size()); }
  Handle send(int to, std::uint64_t slot, const std::byte* bytes, std::size_t n) override {
    return all_.send(ranks_[static_cast<std::size_t>(to)], slot, bytes, n);
  }
  Handle recv(int from, std::uint64_t slot, std::byte* bytes, std::size_t n) override {
    return all_.recv(ranks_[static_cast<std::size_t>(from)], slot, bytes, n);
  }
  void wait(Handle handle) override { all_.wait(handle); }
  void drop(Handle handle) noexcept override { all_.drop(handle); }
  void abort(std::string_view reason) noexcept override { all_.abort(reason); }

 private:
  Transport& all_;
  std::vector<int> ranks_;
  int rank_;
};

class GlooEngine final : public Engine {
 public:
  GlooEngine(std::shared_ptr<Rendezvous> ranks, GlooUse use) : use_(use), ranks_(std::move(ranks)), gloo_(ranks_) {
    const int size = ranks_->size(), rank = ranks_->rank();
    std::vector<std::string> hosts;
    std::vector<int> leaders;
    for (int r = 0; r < size; ++r) {
      const std::string host = use == GlooUse::hosts ? ranks_->host(r) : text(r);
      auto at = std::find(hosts.begin(), hosts.end(), host);
      if (at == hosts.end()) {
        at = hosts.insert(at, host);
        leaders.push_back(r);
        members_.emplace_back();
      }
      const auto h = static_cast<std::size_t>(at - hosts.begin());
      host_of_.push_back(h);
      members_[h].push_back(r);
      if (r == rank) mine_ = h;
    }
    const std::size_t each = members_[0].size();
    blocks_ = std::has_single_bit(each);
    for (std::size_t h = 0; h < members_.size(); ++h) {
      blocks_ = blocks_ && members_[h].size() == each && members_[h].front() == static_cast<int>(h * each) &&
                members_[h].back() == static_cast<int>((h + 1) * each) - 1;
    }
    nested_ = static_cast<int>(members_.size()) < size;
    leads_ = members_[mine_].front() == rank;
    if (members_[mine_].size() > 1) host_ = make_shm_engine(ranks_->part(members_[mine_]));
    if (leads_) leaders_.emplace(gloo_, std::move(leaders));
  }
  ~GlooEngine() override {
    if (gloo_.dead() || std::uncaught_exceptions() > 0) return;
    ranks_->ends();
    // A connection that closes cuts what the peer still receives.
    gloo_.begin_close();
    try {
      Task last;
      last.op = Collective::barrier;
      run_collective(gloo_, last, kMessages - 1, scratch_);
    } catch (const std::exception&) {
      // The others ended otherwise.
    }
  }
  [[nodiscard]] std::string_view name() const override { return "gloo"; }
  [[nodiscard]] std::shared_ptr<Engine> part(const std::vector<int>&, std::uint64_t, int,
                                             const std::shared_ptr<Rendezvous>& meeting) override {
    return make_gloo_engine(meeting, use_);
  }

  void run(const Task& task) override {
    try {
      choose(task);
    } catch (const std::exception& e) {
      // The ranks of this host wait for each other, not for the network.
      abort(e.what());
      throw;
    }
  }
  void send(const Task& task) override {
    if (Task near = task; is_near(near)) return host_->send(near);
    send_message(gloo_, task, kMessages | static_cast<std::uint64_t>(task.tag));
  }
  void recv(const Task& task) override {
    if (Task near = task; is_near(near)) return host_->recv(near);
    recv_message(gloo_, task, kMessages | static_cast<std::uint64_t>(task.tag));
  }
  void abort(std::string_view reason) noexcept override {
    if (host_) host_->abort(reason);
    gloo_.abort(reason);
  }

 private:
  [[nodiscard]] bool is_near(Task& task) const {
    const auto peer = static_cast<std::size_t>(task.peer);
    if (!host_ || host_of_[peer] != mine_) return false;
    task.peer = place(task.peer);
    return true;
  }
  // Of a rank of this host, in the host.
  [[nodiscard]] int place(int rank) const {
    const std::vector<int>& all = members_[mine_];
    return static_cast<int>(std::find(all.begin(), all.end(), rank) - all.begin());
  }
  void flat(const Task& task) { run_collective(gloo_, task, task.number, scratch_); }
  void between(const Task& task) {
    if (leads_) run_collective(*leaders_, task, task.number, scratch_);
  }
  void within(const Task& task) {
    if (host_) host_->run(task);
  }

  void choose(const Task& task) {
    if (!nested_) return flat(task);
    switch (task.op) {
      case Collective::all_reduce:
        if (task.order == ReduceOrder::tree && !blocks_) return flat(task);
        return nested_sum(task);
      case Collective::broadcast: return nested_broadcast(task);
      case Collective::barrier:
        within(task);
        between(task);
        return within(task);
      default: return flat(task);
    }
  }

  void nested_sum(const Task& task) {
    Task step = task;
    std::vector<float> wide;
    if (in_f32(task)) {  // the sum of a host, too
      wide.resize(static_cast<std::size_t>(task.count));
      widen(task.dtype, wide.data(), task.in, task.count);
      step.dtype = DType::f32;
      step.in = step.out = reinterpret_cast<std::byte*>(wide.data());
    }
    const bool divides = task.reduce == ReduceOp::average;
    if (divides) step.reduce = ReduceOp::sum;
    within(step);
    if (host_) step.in = step.out;
    if (leads_) {
      between(step);
      if (divides) divide(step.dtype, step.out, step.count, ranks_->size());
    }
    step.op = Collective::broadcast;
    step.peer = 0;
    step.in = step.out;
    within(step);
    if (!wide.empty()) narrow(task.dtype, task.out, wide.data(), task.count);
  }

  void nested_broadcast(const Task& task) {
    const std::size_t source = host_of_[static_cast<std::size_t>(task.peer)];
    Task step = task;
    if (source == mine_) {
      step.peer = place(task.peer);
      within(step);
    }
    step.peer = static_cast<int>(source);  // hosts are numbered as their first ranks
    between(step);
    step.peer = 0;
    if (source != mine_) within(step);
  }

  GlooUse use_;
  std::shared_ptr<Rendezvous> ranks_;
  GlooTransport gloo_;
  std::optional<Members> leaders_;         // the first ranks of the hosts
  std::shared_ptr<Engine> host_;           // shared memory; null: this rank is alone on its host
  std::vector<std::vector<int>> members_;  // by host, in the order of first ranks
  std::vector<std::size_t> host_of_;       // by rank
  std::size_t mine_ = 0;
  bool blocks_ = false, nested_ = false, leads_ = false;
  Scratch scratch_;
};

}  // namespace

std::shared_ptr<Engine> make_gloo_engine(std::shared_ptr<Rendezvous> ranks, GlooUse use) {
  return std::make_shared<GlooEngine>(std::move(ranks), use);
}

}  // namespace levin::dist
