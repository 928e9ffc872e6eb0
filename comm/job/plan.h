// The plan of a job's collectives: what each rank issues, compared before data moves.
//
// Note [Plans of collectives]: a step issues a few collectives, the same in every step. Each rank keeps what came after
// what: after the last 16 entries, and after the last 4. The entry that is expected there moves data at once. Any other
// entry is exchanged first (32 bytes by the store or in memory): a difference ends all ranks before data moves, with
// both entries as text, and an equal entry is what is expected there from then on.
//
// Ranks of a group that have issued the same expect the same. So where they differ for the first time, one of them at
// least issues what is not expected, and waits for an exchange while others wait in a collective. The store finds that
// (Judge), and shows both. A rank that comes to its end of the job, or of a group by Gloo, tells the number of its
// collectives first, so those who wait for it in one more are found too. Each group has a plan of its own, and messages
// are in none: ranks that wait for each other in two groups, or for a message, are stuck until `timeout`.
#pragma once

#include <atomic>
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

// How ranks exchange entries that are not expected.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // Every rank's words, in the order of ranks. Waits for all; throws CommError.
  virtual std::vector<std::string> gather(std::string_view mine) = 0;
};

// What one rank issues in one group.
class Plans {
 public:
  explicit Plans(std::shared_ptr<Exchange> exchange);  // null: one rank
  ~Plans();
  // Before a collective moves data. `words` gives its text for errors. Throws CommError with this rank's and the other
  // ranks' entries where they differ.
  void issue(const Entry& entry, const Function<std::string()>& words);
  // Collectives that were compared with all ranks, or were expected. From any thread.
  [[nodiscard]] std::uint64_t passed() const;
  [[nodiscard]] std::shared_ptr<const std::atomic<std::uint64_t>> count() const;  // passed(), also after the end
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
