// What a block has under way beside its threads: copies, products of warpgroups, and the barriers that count them.
// Internal to kernels/simt. async_memory.cpp has the two views and the clocks, async_barrier.cpp barriers and
// registers, async_copy.cpp TMA, async_product.cpp wgmma, async_cluster.cpp what blocks of a cluster do to each other,
// async.cpp the order of completion and the messages.
//
// Note [Two views of shared memory]
// TMA and wgmma access memory in the async proxy. The shim keeps the dynamic shared memory of a block twice: as its
// threads see it and as the async proxy does. A copy writes the async view when it completes; threads see NaN there
// until one of them has waited for the copy's phase. A thread's writes reach the async view at its
// fence_async_shared(). An async read of bytes that differ between the views is an error.
//
// Note [Race clocks]
// Each warp has a vector clock, with one component an agent: a warp's writes, the phases of a barrier, the wgmma groups
// of a warp, the bulk groups of a thread. A component is the number of the agent's last access that comes before the
// warp's next instruction. Barriers join clocks. An access that is not after all accesses that it conflicts with is an
// error, in every schedule.
//
// Note [Weak order between blocks]
// An arrival at a barrier of another block, store_remote and cluster_arrive_relaxed tell the other block what has
// ended: waits, products, reads, the initialisation of barriers. They do not order memory that threads wrote. So each
// warp has a further agent, its past, which the weak forms pass on, while its writes pass with cluster_arrive alone.
//
// Note [Views of other blocks]
// A remote load gives what the bytes were when the threads of their block last arrived at the cluster's barrier; a
// difference from what they are is an error, as nothing orders the write before the load. Bytes of a remote store are
// NaN to threads of the block that has them, until one of them passes a cluster_wait that comes after the store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "kernels/lib/tensor_map.h"
#include "kernels/simt/block.h"
#include "kernels/simt/hopper.h"

namespace levin::simt {

inline constexpr int kWarpgroup = 128;
inline constexpr std::size_t kPage = 1024;

struct Clock {
  std::vector<std::uint32_t> known;  // by agent
  [[nodiscard]] std::uint32_t of(int agent) const;
  void know(int agent, std::uint32_t value);
  void join(const Clock& other);
};

struct Range {  // bytes of the dynamic shared memory
  std::size_t begin, end;
  [[nodiscard]] bool meets(const Range& other) const { return begin < other.end && other.begin < end; }
  [[nodiscard]] bool holds(const Range& other) const { return begin <= other.begin && other.end <= end; }
};

struct Access {
  Range range;
  int agent;
  std::uint32_t value;
  bool writes;
  const char* what;
  Site at;
  int swizzle = -1;  // of a copy that wrote it
};

// A copy, or a remote store, that no thread of the block has waited for.
struct Landing {
  int number;  // the phase of a barrier; of a remote store: the access of its agent
  Range range;
  std::vector<std::byte> bytes = {};  // of a copy whose bytes are not in the async view
  int agent = -1;
};

struct BarrierState {
  const Barrier* word;
  std::int64_t expected, pending, bytes = 0;  // bytes: tx-count
  int phase = 0;
  int agent;
  int init_warp;
  std::uint32_t init_value = 0;  // 0: no fence_barrier_init yet
  Clock gathering = {}, released = {};
  std::vector<int> seen;              // by thread: the last phase it waited for
  std::vector<Landing> landing = {};  // by phase
  Site at;
};

struct Copy {
  const char* what;
  Range range;
  Site at;
  kernels::TiledMatrix map = {};  // of a copy of a box
  BoxAt box = {};
  std::byte* global = nullptr;  // of a linear copy
  bool adds = false;            // f32 numbers
  bool loads = false;
  int thread = 0;
  int barrier = -1, phase = 0;  // of a load
  int parts_done = 0;
  int group = 0;  // of a store
  bool was_read = false;
  std::vector<std::byte> source = {};  // of a store, at issue; of a store_remote

  [[nodiscard]] bool is_linear() const { return global != nullptr; }
  [[nodiscard]] bool is_store_remote() const { return loads && !source.empty(); }
  [[nodiscard]] int parts() const;  // rows of a box, 16 bytes of a linear copy
};

// An array of a thread that a product reads or writes.
struct Registers {
  std::uint32_t* p;
  int count;
  int last_op;  // the newest product that uses it
  bool in_flight;
  std::vector<std::uint32_t> values;  // in flight: what it will hold; else what it held at the last wait or fence
};

struct Product {
  ProductCall call;
  int group;
  int callers = 0, first_thread;
  Clock clocks[4] = {};
  std::uint32_t* d[kWarpgroup] = {};
  std::vector<std::uint32_t> a = {};  // [128][4], when in registers
};

struct Warpgroup {
  std::deque<Product> ops;  // not completed
  int completed = 0;
  int registers = 0;                      // of a thread
  int callers = 0, wanted = 0, turn = 0;  // set_registers
  bool takes = false;
};

struct Condition {
  enum class Kind : std::uint8_t { phase, bulk_read, bulk_done, products, registers, named, counter, cluster } kind;
  int index, value;
  const int* counter = nullptr;
};

struct AsyncThread {
  std::vector<Range> unfenced;
  std::vector<Registers> arrays;
  std::vector<int> ops_at_commit;
  int ops = 0, ops_waited = 0;
  bool fenced = false;
  int bulk_agent = -1, bulk_groups = 0, bulk_open = 0, bulk_waited = 0, bulk_done = 0;  // done: waited for as written
  const char* bulk_what = "";
  Site bulk_at, op_at;
  const int* turn = nullptr;  // the counter whose turn the thread has
  bool turn_fenced = false;
  std::vector<int> unread, unwritten;        // stores of each bulk group
  int cluster_phase = 0, cluster_waits = 0;  // phases of the cluster's barrier that it has arrived for, and waited for
  bool parked = false;
  Condition condition{};
};

struct NamedBarrier {
  int threads = 0, waiting = 0, turn = 0;
  Clock gathering, released;
};

// The last access of an agent of another block.
struct RemoteAccess {
  int agent;
  std::uint32_t value;
  const char* what;
  int rank;
  Site at;
};

class Async;
// What the Asyncs of a cluster share. Agents are numbered over the cluster: of each block the writes of its warps, then
// their products, then their pasts; after those of all blocks the agents that barriers and threads add. A block alone
// has no weak order: its warps' writes stand for their pasts.
struct Cluster {
  Cluster(int size, int warps_of_block)
      : warps(warps_of_block), kinds(size == 1 ? 2 : 3), agents(size * kinds * warps_of_block) {}
  [[nodiscard]] bool is_write(int agent) const {
    return kinds == 3 && agent < fixed && agent % (kinds * warps) < warps;
  }

  int warps;
  int kinds;  // of a warp's agents
  int agents;
  int fixed = agents;
  std::vector<Async*> blocks{};  // by rank
  int arrived = 0, phase = 0;    // at the cluster's barrier; threads that have exited do not count
  Clock gathering{}, released{};
};

class Async {
 public:
  Async(Engine& engine, Block& block, Cluster& cluster, std::size_t bytes, int threads, Completion completion,
        std::uint64_t seed);
  ~Async() { abandon(); }

  // Barriers
  void init(Barrier& barrier, unsigned arrivals, Site at);
  void fence_init();
  void arrive(Barrier& barrier, std::int64_t bytes, const char* what, Site at);
  void wait(Barrier& barrier, int phase, Site at);
  void named(int id, int threads, Site at);
  void set_registers(int registers, bool take, Site at);
  void block_barrier();  // all threads have reached __syncthreads

  // Copies
  void load(void* to, const kernels::TensorMap& map, BoxAt box, Barrier& barrier, unsigned ranks, Site at);
  void store(const kernels::TensorMap& map, BoxAt box, const void* from, Site at);
  void load_bytes(void* to, const void* from, std::size_t bytes, Barrier& barrier, Site at);
  void store_bytes(void* to, const void* from, std::size_t bytes, BulkStore how, Site at);
  void wait_turn(const int* counter, int value, Site at);
  void pass_turn(int* counter, Site at);
  void fence_global();
  void commit_bulk(Site at);
  void wait_bulk(int left, bool read, Site at);

  // Products
  void multiply(const ProductCall& call, float* d, const std::uint32_t* a);
  void fence_products();
  void commit_products();
  void wait_products(int left, Site at);
  [[nodiscard]] std::uint64_t descriptor(const void* p, unsigned leading, unsigned stride, kernels::Swizzle swizzle,
                                         Site at);

  // Memory
  void will_write(void* to, std::size_t bytes, const char* what, Site at);
  void fence();
  [[nodiscard]] unsigned window_address(const void* p) const;

  // Other blocks of the cluster
  void arrive_cluster(bool relaxed, Site at);
  void wait_cluster(Site at);
  [[nodiscard]] int rank_in_cluster(int rank, const char* what, Site at);  // the rank, or an error
  void load_remote(const void* from, std::size_t bytes, int rank, void* value, Site at);
  void store_remote(void* to, std::size_t bytes, int rank, const void* value, Site at);
  void store_remote_async(void* to, std::size_t bytes, int rank, const void* value, Barrier& barrier, Site at);
  void arrive_remote(Barrier& barrier, int rank, Site at);

  // The scheduler's side
  void at_switch();           // random order: perhaps completes something
  bool complete_when_idle();  // completes something; false where nothing is left
  void thread_ends();
  void thread_exits(int thread);
  void block_ends();
  void leave_cluster();  // the last thread of a block of several ends
  void abandon();        // threads will be unwound: no memory of theirs is poisoned any more
  [[nodiscard]] std::string stuck() const;

 private:
  struct Pending {
    int copy;       // or -1
    int warpgroup;  // of a product
  };
  [[nodiscard]] AsyncThread& self() { return threads_[std::size_t(index_)]; }
  void enter();  // index_ and warp_ are the running thread's
  [[nodiscard]] Clock& clock() { return clocks_[std::size_t(warp_)]; }
  [[nodiscard]] int add_agent() { return cluster_.agents++; }
  [[nodiscard]] int writes_of(int warp) const { return first_agent_ + warp; }
  [[nodiscard]] int products_of(int warp) const { return first_agent_ + cluster_.warps + warp; }
  [[nodiscard]] int past_of(int warp) const {
    return first_agent_ + (cluster_.kinds == 3 ? 2 * cluster_.warps : 0) + warp;
  }
  void advance_clock(int warp);  // later accesses are after what the clock has been joined to
  void release(Clock& to);       // joins the warp's clock to `to`
  void release_weakly(Clock& to);
  void park(Condition condition, const char* what, Site at);
  [[nodiscard]] bool met(const Condition& condition, int thread) const;
  void settle(const Condition& condition, int thread);  // what a wait brings when it is met
  void wake();

  // `from`: whose running thread uses the barrier.
  BarrierState& state_of(const Barrier& barrier, Async& from, const char* what, Site at);
  BarrierState& state_of(const Barrier& barrier, const char* what, Site at) {
    return state_of(barrier, *this, what, at);
  }
  [[nodiscard]] const Async* holder_of(const void* p) const;   // the block of the cluster whose memory it is
  [[nodiscard]] std::string in_rank(const Async& from) const;  // " of rank 1", for another block's messages
  void take_arrival(BarrierState& barrier, std::int64_t bytes, const char* what, Site at);
  void try_phase(BarrierState& barrier);
  void count_bytes(BarrierState& barrier, std::int64_t bytes) const;
  [[nodiscard]] bool try_registers(Warpgroup& group);

  Range range_of(const void* p, std::size_t bytes, const char* what, Site at);
  void check(Range range, bool writes, const Clock& clock, const char* what, Site at);
  void record(const Access& access);
  void check_views(Range range, const char* what, Site at);
  void check_swizzle(Range range, int swizzle, const char* what, Site at);
  void poison(Range range);
  void land(const Landing& landing);

  kernels::TiledMatrix map_of(const kernels::TensorMap& map, const BoxAt& box, const void* shared, const char* what,
                              Site at);
  Range linear_range(const void* shared, const void* global, std::size_t bytes, const char* what, Site at);
  Async& peer(int rank, const char* what, Site at);
  void check_landed() const;  // all copies into the block's memory have been waited for
  [[nodiscard]] std::byte* same_place(const void* p, const Async& other) const;  // in another block's memory
  void touch(Async& owner, const char* what, Site at);  // the running thread uses memory of `owner`
  void try_cluster();
  void publish();
  void hide(Landing store);
  void land_stores(const Clock& known);

  void start_load(Copy copy, const Barrier& barrier, Async& from);
  void start_store(Copy copy);
  void move_parts(const Copy& copy, int first, int last);
  void move_rows(const Copy& copy, int first, int last);
  void move_bytes(const Copy& copy, int first, int last);
  void check_turn(const char* what, Site at);
  void advance(int copy, bool in_parts);

  Registers& array_of(std::uint32_t* p, int count, const char* what, Site at);
  void take_array(Registers& array, int op);
  void give_array(Registers& array, Site at);
  Product& product_of(const ProductCall& call);
  [[nodiscard]] Range operand(std::uint64_t descriptor, bool along_mn, int lines, const char* what, Site at);
  void issue(Product& product);
  void finish(int warpgroup);

  [[nodiscard]] std::vector<Pending> pending() const;
  void complete(const Pending& op, bool in_parts);
  [[noreturn]] void fail_block(const std::string& what) const;

  Engine& engine_;
  Block& block_;
  Cluster& cluster_;
  int first_agent_;
  std::byte* shared_;
  std::vector<std::byte> view_;  // the async one
  Completion completion_;
  std::uint64_t random_;
  std::vector<AsyncThread> threads_;
  std::size_t unfenced_ = 0;   // ranges of all threads
  std::vector<Clock> clocks_;  // by warp
  std::vector<std::vector<Access>> pages_;
  std::deque<BarrierState> barriers_;
  std::deque<Copy> copies_;  // not completed, in order of issue
  std::vector<Warpgroup> warpgroups_;
  NamedBarrier named_[16];
  int pool_ = 0;  // registers that no warpgroup has
  // In a cluster of several blocks
  std::vector<std::byte> published_;   // what other blocks read
  bool publishes_ = false;             // a thread has arrived, not relaxed, in this phase of the cluster's barrier
  std::vector<Landing> stores_;        // of other blocks
  std::vector<RemoteAccess> touches_;  // by other blocks, the last of each agent
  bool has_ended_ = false;
  int index_ = 0, warp_ = 0;
};

// d [64, n] += a [64, 16] b [n, 16]^T: products exact, each sum rounded once.
void multiply_tile(const float (&a)[64][16], const float* b, float* d, int n);
// Where byte `offset` of an operand lies whose swizzle is counted from multiples of 1024.
[[nodiscard]] std::size_t swizzled(std::size_t address, kernels::Swizzle swizzle);

}  // namespace levin::simt
