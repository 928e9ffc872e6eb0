#include "comm/job/plan.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "levin/error.h"

namespace levin::dist {
namespace {

using std::string;
using std::string_view;

// What a rank brings to an exchange: the number of the collective in its group, its entry, and the entry's words.
constexpr std::size_t kHead = sizeof(std::uint64_t) + sizeof(Entry);

string message(std::uint64_t number, const Entry& entry, const string& words) {
  string out(reinterpret_cast<const char*>(&number), sizeof number);
  out.append(reinterpret_cast<const char*>(&entry), sizeof entry);
  return out + words;
}

struct Side {
  bool is_entry = false;
  std::uint64_t number = 0;
  Entry entry;
  string words;
};
Side side_of(const string& text) {
  Side out;
  out.is_entry = text.size() >= kHead;
  if (!out.is_entry) return out;
  std::memcpy(&out.number, text.data(), sizeof out.number);
  std::memcpy(&out.entry, text.data() + sizeof out.number, sizeof(Entry));
  out.words = text.substr(kHead);
  return out;
}

// The fields in which two entries with equal words differ.
string differences(const Side& mine_side, const Side& other_side) {
  const Entry &mine = mine_side.entry, &other = other_side.entry;
  string out;
  const auto field = [&](const char* name, const auto& a, const auto& b) {
    if (a == b) return;
    out += string(out.empty() ? "" : ", ") + name + " " + text(b) + ", here " + text(a);
  };
  field("number in the group", mine_side.number, other_side.number);
  field("operation", string(name_of(mine.op)), string(name_of(other.op)));
  field("dtype", string(name(mine.dtype)), string(name(other.dtype)));
  field("reduction", mine.reduce, other.reduce);
  field("root", mine.root, other.root);
  field("group", mine.group, other.group);
  field("elements", mine.count, other.count);
  field("place of the call", mine.site, other.site);
  field("tensors", mine.tensors, other.tensors);
  return out;
}

// "ranks 0, 2 and 3"; at most eight of them.
string ranks_text(const std::vector<std::size_t>& ranks) {
  constexpr std::size_t kShown = 8;
  string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kShown); ++i) {
    if (i != 0) out += i + 1 == ranks.size() ? " and " : ", ";
    out += text(ranks[i]);
  }
  return ranks.size() > kShown ? out + " and " + text(ranks.size() - kShown) + " more" : out;
}

// Words may differ (an address, a host), entries may not.
bool same(const string& a, const string& b) { return a.compare(0, kHead, b, 0, kHead) == 0; }

[[noreturn]] void refuse(const std::vector<string>& all, const string& mine) {
  const Side own = side_of(mine);
  string out = "collectives differ between ranks: this rank issues " + own.words;
  // Ranks with the same entry share a line.
  std::vector<string> seen;
  for (const string& one : all) {
    const auto as_one = [&](const string& other) { return same(other, one); };
    if (same(one, mine) || std::any_of(seen.begin(), seen.end(), as_one)) continue;
    seen.push_back(one);
    std::vector<std::size_t> ranks;
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (as_one(all[r])) ranks.push_back(r);
    }
    const Side other = side_of(one);
    out += "; " + ranks_text(ranks) + (ranks.size() == 1 ? " issues " : " issue ") + other.words;
    if (other.words == own.words && other.is_entry && own.is_entry) out += " (" + differences(own, other) + ")";
  }
  fail<CommError>(out + "; call the same collectives in the same order on all ranks of a group");
}

std::uint64_t mixed(std::uint64_t hash, std::uint64_t with) {
  hash = (hash ^ with) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 32;
}
std::uint64_t hash_of(const Entry& entry) {
  std::array<std::uint64_t, sizeof(Entry) / sizeof(std::uint64_t)> words{};
  std::memcpy(words.data(), &entry, sizeof entry);
  std::uint64_t hash = 0;
  for (const std::uint64_t word : words) hash = mixed(hash, word);
  return hash;
}

// The numbers of last entries that tell what comes next, the most reliable first: a window of accumulation is long, and
// after an unusual collective a short memory knows the step again soon.
constexpr std::array<std::size_t, 2> kMemories = {16, 4};
constexpr std::size_t kMostExpected = 1 << 14;  // a loop whose collectives never recur stays within a few MB

// Orders the collectives of all groups of this process, for "what did this rank issue last".
std::atomic<std::uint64_t> issued{0};

}  // namespace

const char* name_of(Collective c) {
  switch (c) {
    case Collective::all_reduce: return "all_reduce";
    case Collective::broadcast: return "broadcast";
    case Collective::all_gather: return "all_gather";
    case Collective::reduce_scatter: return "reduce_scatter";
    case Collective::all_to_all: return "all_to_all";
    case Collective::send: return "send";
    case Collective::recv: return "recv";
    case Collective::barrier: return "barrier";
    case Collective::text: return "gather_text";
  }
  return "unknown";
}

struct Plans::State {
  struct Expected {
    Entry entry;
    std::shared_ptr<const string> words;
  };
  using Contexts = std::array<std::uint64_t, kMemories.size()>;

  std::shared_ptr<Exchange> exchange;
  mutable std::mutex mutex;                               // another thread asks for the last entry
  std::unordered_map<std::uint64_t, Expected> expected;   // by context
  std::array<std::uint64_t, kMemories.front()> recent{};  // hashes of the last entries
  std::size_t at = 0;                                     // the next place in `recent`
  std::shared_ptr<std::atomic<std::uint64_t>> passed = std::make_shared<std::atomic<std::uint64_t>>(0);
  std::shared_ptr<const string> words;  // of the last entry; null: none
  std::uint64_t order = 0;

  [[nodiscard]] Contexts contexts() const {
    Contexts out{};
    for (std::size_t k = 0; k < kMemories.size(); ++k) {
      std::uint64_t hash = kMemories[k];
      for (std::size_t i = 1; i <= kMemories[k]; ++i)
        hash = mixed(hash, recent[(at + recent.size() - i) % recent.size()]);
      out[k] = hash;
    }
    return out;
  }
  [[nodiscard]] const Expected* next(const Contexts& contexts) const {
    for (const std::uint64_t context : contexts) {
      if (const auto found = expected.find(context); found != expected.end()) return &found->second;
    }
    return nullptr;
  }
  void remember(std::shared_ptr<const string> its) {
    words = std::move(its);
    order = ++issued;
  }
  void learn(const Contexts& contexts, const Entry& entry) {
    if (expected.size() + contexts.size() > kMostExpected) expected.clear();
    for (const std::uint64_t context : contexts) {
      const auto [place, fresh] = expected.try_emplace(context, Expected{entry, words});
      if (!fresh && place->second.entry != entry) place->second = {entry, words};
    }
    recent[at] = hash_of(entry);
    at = (at + 1) % recent.size();
    ++*passed;
  }
};

Plans::Plans(std::shared_ptr<Exchange> exchange) : state_(std::make_unique<State>()) {
  state_->exchange = std::move(exchange);
}
Plans::~Plans() = default;

void Plans::issue(const Entry& entry, const Function<string()>& words) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  const State::Contexts contexts = s.contexts();
  if (const State::Expected* const next = s.next(contexts); next && next->entry == entry) {
    s.remember(next->words);
    return s.learn(contexts, entry);
  }
  s.remember(std::make_shared<const string>(words()));
  if (s.exchange) {
    const string mine = message(*s.passed + 1, entry, *s.words);
    lock.unlock();  // other ranks may take long
    const std::vector<string> all = s.exchange->gather(mine);
    if (std::any_of(all.begin(), all.end(), [&](const string& one) { return !same(one, mine); })) refuse(all, mine);
    lock.lock();
  }
  s.learn(contexts, entry);
}

std::uint64_t Plans::passed() const { return *state_->passed; }
std::shared_ptr<const std::atomic<std::uint64_t>> Plans::count() const { return state_->passed; }

Plans::Last Plans::last() const {
  const std::lock_guard lock(state_->mutex);
  return {.words = state_->words ? *state_->words : string(), .order = state_->order};
}

}  // namespace levin::dist
