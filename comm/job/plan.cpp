#include "comm/job/plan.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>

#include "levin/error.h"
#include "levin/serialize.h"

namespace levin::dist {
namespace {

using std::string;
using std::string_view;

// What a rank brings to an exchange: an entry, or the end of a pass.
constexpr char kEntry = 'e', kEnd = 'p';

string message(const Entry& entry, const string& words) {
  string out(1, kEntry);
  out.append(reinterpret_cast<const char*>(&entry), sizeof entry);
  return out + words;
}

struct Side {
  bool is_entry = false;
  Entry entry;
  string words;
};
Side side_of(const string& text) {
  Side out;
  if (text.size() > sizeof(Entry) && text[0] == kEntry) {
    out.is_entry = true;
    std::memcpy(&out.entry, text.data() + 1, sizeof(Entry));
    out.words = text.substr(1 + sizeof(Entry));
  } else {
    out.words = text.empty() ? text : text.substr(1);
  }
  return out;
}

// The fields in which two entries with equal words differ.
string differences(const Entry& mine, const Entry& other) {
  string out;
  const auto field = [&](const char* name, const auto& a, const auto& b) {
    if (a == b) return;
    out += string(out.empty() ? "" : ", ") + name + " " + text(b) + ", here " + text(a);
  };
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
bool same(const string& a, const string& b) {
  const std::size_t head = 1 + sizeof(Entry);
  if (a.size() > head && b.size() > head && a[0] == kEntry && b[0] == kEntry)
    return a.compare(0, head, b, 0, head) == 0;
  return a == b;
}

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
    if (other.words == own.words && other.is_entry && own.is_entry)
      out += " (" + differences(own.entry, other.entry) + ")";
  }
  fail<CommError>(out + "; call the same collectives in the same order on all ranks of a group");
}

std::array<std::uint8_t, 16> hash_of(string_view key, const std::vector<Entry>& entries) {
  string content(key);
  content += '\n';
  content.append(reinterpret_cast<const char*>(entries.data()), entries.size() * sizeof(Entry));
  const string hex = content_hash(content);
  std::array<std::uint8_t, 16> out{};
  const auto digit = [](char c) { return static_cast<unsigned>(c <= '9' ? c - '0' : c - 'a' + 10); };
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<std::uint8_t>(digit(hex[2 * i]) << 4 | digit(hex[2 * i + 1]));
  return out;
}

struct Plan {
  std::vector<Entry> entries;
  std::vector<string> words;
  std::array<std::uint8_t, 16> hash{};  // of a sealed plan: of its entries
  bool sealed = false;
};

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
  std::shared_ptr<Exchange> exchange;
  mutable std::mutex mutex;  // another thread asks for the last entry
  std::vector<std::pair<string, std::shared_ptr<Plan>>> plans;
  string key;                  // of the running pass; empty: none
  std::shared_ptr<Plan> plan;  // of the running pass
  std::size_t position = 0;    // entries of the pass so far
  std::array<std::uint8_t, 16> hash{};
  std::uint64_t sequence = 0, passed = 0;
  // The last entry: the words themselves, or an entry of a sealed plan.
  Last last;
  std::shared_ptr<Plan> last_plan;
  std::size_t last_position = 0;

  [[nodiscard]] std::shared_ptr<Plan> find(string_view wanted) const {
    for (const auto& [name, plan] : plans) {
      if (name == wanted) return plan;
    }
    return nullptr;
  }
  void remember(string words) {
    last = {.words = std::move(words), .order = ++issued};
    last_plan = nullptr;
  }
  // Compares with all ranks, without the lock: they may take long.
  void compare(const string& mine) const {
    const std::vector<string> all = exchange->gather(mine);
    if (std::any_of(all.begin(), all.end(), [&](const string& one) { return !same(one, mine); })) refuse(all, mine);
  }
};

Plans::Plans(std::shared_ptr<Exchange> exchange) : state_(std::make_unique<State>()) {
  state_->exchange = std::move(exchange);
}
Plans::~Plans() = default;

void Plans::begin(string_view key) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  s.position = 0;
  s.key = key;
  s.plan = key.empty() ? nullptr : s.find(key);
  if (!key.empty() && !s.plan) s.plan = std::make_shared<Plan>();
  s.hash = s.plan && s.plan->sealed ? s.plan->hash : hash_of(key, {});
}

void Plans::end() {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  const std::shared_ptr<Plan> plan = std::exchange(s.plan, nullptr);
  const string key = std::exchange(s.key, {});
  const std::size_t position = std::exchange(s.position, 0);
  if (!plan) return;
  if (plan->sealed) {
    if (position < plan->entries.size()) {
      fail<CommError>("collectives differ between steps: this rank ended the pass `", key, "` after ", position, " of ",
                      plan->entries.size(), " collectives; the next one was ", plan->words[position],
                      "; issue the same collectives in each step");
    }
    return;
  }
  if (s.exchange) {
    // Ranks that issue more than this one meet this message with their next entry.
    const string end = "the end of the pass `" + key + "` after " + text(position) + " collectives";
    s.remember(end);
    lock.unlock();
    s.compare(string(1, kEnd) + end);
    lock.lock();
  }
  plan->hash = hash_of(key, plan->entries);
  plan->sealed = true;
  s.plans.emplace_back(key, plan);
}

void Plans::issue(const Entry& entry, const Function<string()>& words) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  ++s.sequence;
  if (s.plan && s.plan->sealed) {
    if (s.position < s.plan->entries.size() && s.plan->entries[s.position] == entry) {
      s.last.order = ++issued;
      s.last_plan = s.plan;
      s.last_position = s.position++;
      s.passed = s.sequence;
      return;
    }
    // Another entry than in earlier passes. If it is so on all ranks, they meet here and learn the rest anew; else the
    // others are in the sealed collective, and the store finds this rank waiting in an exchange without them.
    auto changed = std::make_shared<Plan>();
    const auto begin = s.plan->entries.begin();
    changed->entries.assign(begin, begin + static_cast<std::ptrdiff_t>(s.position));
    changed->words.assign(s.plan->words.begin(), s.plan->words.begin() + static_cast<std::ptrdiff_t>(s.position));
    std::erase_if(s.plans, [&](const auto& named) { return named.second == s.plan; });
    s.plan = std::move(changed);
    s.hash = hash_of(s.key, {});
  }
  string text = words();
  const string mine = message(entry, text);
  s.remember(text);
  if (s.exchange) {
    lock.unlock();
    s.compare(mine);
    lock.lock();
  }
  s.passed = s.sequence;
  if (!s.plan) return;
  s.plan->entries.push_back(entry);
  s.plan->words.push_back(std::move(text));
  ++s.position;
}

void Plans::forget() {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  s.plans.clear();
  s.plan = nullptr;
  s.key.clear();
  s.position = 0;
  s.hash = {};
}

std::array<std::uint8_t, 16> Plans::hash() const {
  const std::lock_guard lock(state_->mutex);
  return state_->hash;
}

std::uint64_t Plans::sequence() const {
  const std::lock_guard lock(state_->mutex);
  return state_->sequence;
}

std::uint64_t Plans::passed() const {
  const std::lock_guard lock(state_->mutex);
  return state_->passed;
}

Plans::Last Plans::last() const {
  const State& s = *state_;
  const std::lock_guard lock(s.mutex);
  Last out = s.last;
  if (s.last_plan) out.words = s.last_plan->words[s.last_position];
  return out;
}

}  // namespace levin::dist
