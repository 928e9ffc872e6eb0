#include "comm/job/card.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "comm/job/socket.h"
#include "comm/job/wire.h"
#include "levin/error.h"
#include "levin/serialize.h"

namespace levin::dist {
namespace {

using std::string;
using std::string_view;

constexpr std::uint32_t kProtocol = 1;          // of the messages of wire.h
constexpr const char* kVersion = "0.1.0";       // a test compares it with build_info()
constexpr std::size_t kArgumentsLimit = 16384;  // bytes; longer command lines are shown as their hash
constexpr std::size_t kEqualLimit = 4096;       // lines

string content_of(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  return std::move(out).str();
}

// The hash of a file's content, and its size; the file's name may differ between hosts.
string hash_of_file(const char* path) {
  const Fd fd(::open(path, O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0 || status.st_size <= 0) return "unreadable";
  const auto bytes = static_cast<std::size_t>(status.st_size);
  void* data = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return "unreadable";
  const string hash = content_hash(string_view(static_cast<const char*>(data), bytes));
  ::munmap(data, bytes);
  return hash.substr(0, 16) + " of " + text(bytes) + " bytes";
}

// The program, and Levin where it is a library of its own.
const std::pair<string, string>& hashes() {
  static const std::pair<string, string> once = [] {
    std::pair<string, string> out{hash_of_file("/proc/self/exe"), {}};
    Dl_info info{};
    struct stat program {
    }, library{};
    if (::dladdr(reinterpret_cast<const void*>(&hash_of_file), &info) != 0 && info.dli_fname != nullptr &&
        ::stat("/proc/self/exe", &program) == 0 && ::stat(info.dli_fname, &library) == 0 &&
        (program.st_ino != library.st_ino || program.st_dev != library.st_dev))
      out.second = hash_of_file(info.dli_fname);
    return out;
  }();
  return once;
}

// The arguments without those that launchers give each rank its own of.
string arguments() {
  constexpr std::array<string_view, 6> kOwn = {"--local-rank", "--local_rank", "--node-rank",
                                               "--node_rank",  "--rank",       "--global-rank"};
  const string line = content_of("/proc/self/cmdline");
  string out;
  bool is_first = true, drops_value = false;
  for (std::size_t at = 0; at < line.size();) {
    const std::size_t end = std::min(line.find('\0', at), line.size());
    const string_view one = string_view(line).substr(at, end - at);
    at = end + 1;
    const bool is_program = std::exchange(is_first, false);
    if (is_program || std::exchange(drops_value, false)) continue;
    const string_view name = one.substr(0, one.find('='));
    if (std::find(kOwn.begin(), kOwn.end(), name) != kOwn.end()) {
      drops_value = name.size() == one.size();
      continue;
    }
    out += (out.empty() ? "" : " ") + string(one);
  }
  if (out.size() > kArgumentsLimit) return "of " + text(out.size()) + " bytes, hash " + content_hash(out).substr(0, 16);
  return out;
}

string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? string(name.data()) : string("unknown");
}

string trimmed(string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

}  // namespace

Card own_card(int world, string_view agreement) {
  Card out;
  out.process = ::getpid();
  const char* named = std::getenv("LEVIN_HOST");
  out.host = named != nullptr && *named != 0 ? string(named) : host_name();
  // Containers of one machine have its boot id, and each a /dev/shm of its own.
  struct stat shm {};
  out.memory = out.host + " " + trimmed(content_of("/proc/sys/kernel/random/boot_id")) + " " +
               (::stat("/dev/shm", &shm) == 0 ? text(shm.st_dev) : string("-"));
  out.equal = {{"protocol", text(kProtocol)}, {"world size", text(world)}, {"Levin", kVersion},
               {"compiler", __VERSION__},     {"program", hashes().first}, {"library", hashes().second},
               {"arguments", arguments()}};
  while (!agreement.empty()) {
    const std::size_t end = agreement.find('\n');
    const string_view line = agreement.substr(0, end);
    agreement = end == string_view::npos ? string_view{} : agreement.substr(end + 1);
    if (line.empty()) continue;
    const std::size_t blank = line.find(' ');
    out.equal.emplace_back(line.substr(0, blank), blank == string_view::npos ? string_view{} : line.substr(blank + 1));
  }
  return out;
}

string packed(const Card& card) {
  Packer out;
  out.put(kProtocol).put(static_cast<std::int32_t>(card.rank)).put(static_cast<std::int32_t>(card.local_rank));
  out.put(static_cast<std::int32_t>(card.node_rank)).put(static_cast<std::int64_t>(card.process));
  out.put_text(card.host).put_text(card.memory).put_text(card.run).put(static_cast<std::int32_t>(card.restart));
  out.put(static_cast<std::uint32_t>(card.equal.size()));
  for (const auto& [name, value] : card.equal) out.put_text(name).put_text(value);
  return out.bytes();
}

ReadCard read_card(string_view bytes) {
  Unpacker in(bytes);
  ReadCard out;
  Card& card = out.card;
  (void)in.get<std::uint32_t>();  // the protocol, among the lines too
  card.rank = in.get<std::int32_t>();
  card.local_rank = in.get<std::int32_t>();
  card.node_rank = in.get<std::int32_t>();
  card.process = in.get<std::int64_t>();
  card.host = in.get_text();
  card.memory = in.get_text();
  card.run = in.get_text();
  card.restart = in.get<std::int32_t>();
  const auto lines = in.get<std::uint32_t>();
  if (lines > kEqualLimit) return out;
  for (std::uint32_t i = 0; i < lines && in.good(); ++i) {
    const string_view name = in.get_text();
    card.equal.emplace_back(name, in.get_text());
  }
  out.good = in.good();
  return out;
}

string name_of(const Card& card) {
  return "rank " + text(card.rank) + " (host " + card.host + ", process " + text(card.process) + ")";
}

string differences(const std::vector<const Card*>& cards) {
  const auto value_in = [](const Card& card, const string& name, std::size_t nth) {
    for (const auto& [key, value] : card.equal) {
      if (key == name && nth-- == 0) return value;
    }
    return string("(not given)");
  };
  // Names in order of appearance; a name may stand in several lines.
  std::vector<std::pair<string, std::size_t>> names;
  for (const Card* card : cards) {
    std::map<string, std::size_t> count;
    for (const auto& line : card->equal) {
      const std::pair<string, std::size_t> name{line.first, count[line.first]++};
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  string out;
  for (const auto& [name, nth] : names) {
    std::vector<std::pair<string, std::vector<int>>> values;  // with their ranks
    for (const Card* card : cards) {
      const string value = value_in(*card, name, nth);
      const auto same = std::find_if(values.begin(), values.end(), [&](const auto& v) { return v.first == value; });
      if (same == values.end())
        values.push_back({value, {card->rank}});
      else
        same->second.push_back(card->rank);
    }
    if (values.size() < 2) continue;
    out += "\n  " + name + ":";
    for (const auto& [value, ranks] : values) {
      constexpr std::size_t kShown = 8;
      out += string(&value == &values[0].first ? " " : "; ") + (ranks.size() == 1 ? "rank" : "ranks");
      for (std::size_t i = 0; i < std::min(ranks.size(), kShown); ++i) out += (i == 0 ? " " : ", ") + text(ranks[i]);
      if (ranks.size() > kShown) out += " and " + text(ranks.size() - kShown) + " more";
      out += ": `" + value + "`";
    }
  }
  return out;
}

}  // namespace levin::dist
