// The plan of a job's collectives: what each rank issues, compared before data moves.
//
// Note [Plans of collectives]: a step issues a few collectives, the same in every step. While a plan is learnt, each
// rank exchanges the entry of each collective first (32 bytes by the store or in memory): a difference ends all ranks
// before data moves, with both entries as text. After one pass the plan is sealed: an entry is compared with the sealed
// one in nanoseconds, and the plan's hash travels in the step's vote. An entry that a sealed plan lacks is exchanged
// again: where all ranks issue it, the plan is learnt anew from there; where one rank alone does, the store finds that
// rank waiting for an exchange while the others wait in a collective (Judge), and shows both.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "levin/dtype.h"
#include "levin/function.h"

namespace levin::dist {

enum class Collective : std::uint8_t {
  all_reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  all_to_all,
  send,
  recv,
  barrier,
  text
};
[[nodiscard]] const char* name_of(Collective c);

// What a rank is about to issue. 32 bytes, compared bytewise.
struct Entry {
  Collective op{};
  DType dtype{};
  std::uint8_t reduce = 0;  // ReduceOp and ReduceOrder
  std::uint8_t root = 0;
  std::uint32_t group = 0;    // hash of its ranks
  std::uint64_t count = 0;    // elements
  std::uint64_t site = 0;     // hash of file:line, or of a bucket's name
  std::uint64_t tensors = 0;  // hash of what the caller named
  friend bool operator==(const Entry&, const Entry&) = default;
};
static_assert(sizeof(Entry) == 32);

// How ranks exchange entries while a plan is learnt.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // Every rank's words, in the order of ranks. Waits for all; throws CommError.
  virtual std::vector<std::string> gather(std::string_view mine) = 0;
};

// The plans of one rank, by key ("train/closing", "val", ...).
class Plans {
 public:
  explicit Plans(std::shared_ptr<Exchange> exchange);  // null: one rank
  ~Plans();
  // The pass that follows is of this plan; empty: each collective is checked by itself.
  void begin(std::string_view key);
  // Ends the pass: a plan that was learnt is sealed. Throws CommError for a pass that was shorter than the sealed one.
  void end();
  // Before a collective moves data. `words` gives its text for errors. Throws CommError with this rank's and the other
  // ranks' entries where they differ.
  void issue(const Entry& entry, const Function<std::string()>& words);
  // Forgets the plans, because what is issued changes on all ranks (buckets were built anew). Ends a running pass.
  void forget();
  [[nodiscard]] std::array<std::uint8_t, 16> hash() const;  // of the plan of the running pass
  [[nodiscard]] std::uint64_t sequence() const;             // collectives issued so far
  // Collectives that were compared with all ranks or equal a sealed plan. From any thread.
  [[nodiscard]] std::uint64_t passed() const;
  // The last collective, in words, for a verdict. From any thread.
  struct Last {
    std::string words{};      // empty: none yet
    std::uint64_t order = 0;  // grows with each collective of this process, over all groups
  };
  [[nodiscard]] Last last() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace levin::dist
