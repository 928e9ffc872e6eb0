// Note [Checkpoint folders] is in folder.h.
#include "train/checkpoint/folder.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <system_error>

#include "comm/job/point.h"
#include "levin/ops.h"
#include "tensor/core/formats.h"
#include "tensor/files/file.h"
#include "tensor/files/folder.h"
#include "train/checkpoint/json.h"
#include "train/run/by_rank_zero.h"
#include "train/run/packed.h"

namespace levin::train {
namespace {

namespace fs = std::filesystem;
using Kind = JsonValue::Kind;
using Entry = FolderIndex::Entry;
using Piece = FolderIndex::Piece;

constexpr std::int64_t kIndexVersion = 1;
constexpr std::size_t kMostIndexBytes = std::size_t{1} << 30;
constexpr std::int64_t kMostRanks = 1'000'000;

std::string file_name(std::int64_t rank, std::int64_t ranks) {
  std::array<char, 80> name{};
  std::snprintf(name.data(), name.size(), "rank-%05lld-of-%05lld.safetensors", static_cast<long long>(rank),
                static_cast<long long>(ranks));
  return name.data();
}
std::string key_of(const std::string& name, std::int64_t begin, std::int64_t end) {
  return name + "@" + text(begin) + ":" + text(end);
}
std::optional<DType> dtype_of(std::string_view word) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (word == name(static_cast<DType>(i))) return static_cast<DType>(i);
  }
  return std::nullopt;
}

// ---- index.json

constexpr std::string_view kHashMember = ",\"hash\":\"";
constexpr std::size_t kHashDigits = 32;

class IndexReader final : public JsonReader {
 public:
  explicit IndexReader(const std::string& path) : path_(path) {}
  FolderIndex index;
  std::optional<std::int64_t> version, ranks;
  bool has_state = false;

  void begins(JsonPath path, JsonKind kind) override {
    if (path.empty() || (path[0].key != "files" && path[0].key != "tensors")) return;
    const std::string& top = path[0].key;
    const bool pieces = path.size() > 2 && path[2].key == "pieces", shape = path.size() == 3 && path[2].key == "shape";
    const bool of_tensor = top == "tensors" && (shape || (pieces && path.size() < 5));
    if ((kind == JsonKind::object) != (path.size() == 2) || (path.size() > 2 && !of_tensor)) lacks(top);
    if (path.size() == 2 && top == "files") {
      if (static_cast<std::int64_t>(index.files.size()) >= kMostRanks) lacks(top);
      index.files.emplace_back();
    } else if (path.size() == 2) {
      index.tensors.emplace_back();
      dims_.emplace_back();
    } else if (path.size() == 3 && pieces) {
      tensor().in_pieces = true;
    } else if (path.size() == 4) {
      tensor().pieces.emplace_back();
    }
  }
  void value(JsonPath path, const JsonValue& v) override {
    if (path.empty()) lacks("an object");
    const std::string& top = path[0].key;
    if (path.size() == 1) {
      if (top == "version") version = number(top, v);
      if (top == "ranks") ranks = number(top, v);
      if (top == "state") index.state = word(top, v), has_state = true;
    } else if (top == "files") {
      if (path.size() != 3 || index.files.empty()) lacks(top);
      if (path[2].key == "bytes") index.files.back().bytes = number("bytes", v);
      if (path[2].key == "hash") index.files.back().hash = word("hash", v);
    } else if (top == "tensors") {
      if (path.size() < 3 || index.tensors.empty()) lacks(top);
      tensor_value(path, v);
    }
  }
  // The dims of each tensor, which FolderIndex has as a Shape.
  [[nodiscard]] const std::vector<std::vector<std::int64_t>>& dims() const { return dims_; }
  [[noreturn]] void lacks(std::string_view what) const {
    fail<FormatError>("resume: ", path_, ": its index lacks what it should hold (", what.substr(0, 64),
                      " is missing or of another type); use an older checkpoint");
  }

 private:
  Entry& tensor() {
    if (index.tensors.empty()) lacks("tensors");
    return index.tensors.back();
  }
  std::int64_t number(std::string_view what, const JsonValue& v) const {
    const std::int64_t n = whole(v, -1);
    if (n < 0) lacks(what);
    return n;
  }
  std::string word(std::string_view what, const JsonValue& v) const {
    if (v.kind != Kind::word) lacks(what);
    return std::string(v.word);
  }
  void tensor_value(JsonPath path, const JsonValue& v) {
    const std::string& member = path[2].key;
    if (path.size() == 3) {
      if (member == "name") tensor().name = word(member, v);
      if (member == "rank") tensor().rank = number(member, v);
      if (member == "dtype") {
        const std::optional<DType> known = dtype_of(word(member, v));
        if (!known) lacks(member);
        tensor().dtype = *known;
      }
    } else if (path.size() == 4 && member == "shape") {
      if (dims_.back().size() >= static_cast<std::size_t>(kMaxRank)) lacks(member);
      dims_.back().push_back(number(member, v));
    } else if (path.size() == 5 && member == "pieces" && path[4].index >= 0 && path[4].index < 3) {
      if (tensor().pieces.empty()) lacks(member);
      Piece& p = tensor().pieces.back();
      (path[4].index == 0 ? p.rank : path[4].index == 1 ? p.begin : p.end) = number(member, v);
    } else {
      lacks(member);
    }
  }
  const std::string& path_;
  std::vector<std::vector<std::int64_t>> dims_;
};

// Why the pieces are not all elements of the tensor, each once. Empty: they are.
std::string why_not_whole(const Entry& e) {
  std::int64_t at = 0;
  for (const Piece& p : e.pieces) {
    if (p.begin != at || p.end <= p.begin || p.end > e.shape.numel())
      return "rank " + text(p.rank) + " has elements " + text(p.begin) + " to " + text(p.end) +
             ", expected some from " + text(at) + " on";
    at = p.end;
  }
  return at == e.shape.numel() ? "" : "no rank has the elements from " + text(at) + " on";
}

}  // namespace

std::string index_text(const FolderIndex& index) {
  std::string out = "{\"version\":" + text(kIndexVersion) + ",\"ranks\":" + text(index.files.size()) + ",\"files\":[";
  for (const FolderIndex::File& f : index.files)
    out += "{\"bytes\":" + text(f.bytes) + ",\"hash\":" + json_of(std::string_view(f.hash)) + "},\n";
  if (!index.files.empty()) out.resize(out.size() - 2);
  out += "],\n\"tensors\":[";
  for (const Entry& e : index.tensors) {
    out += "{\"name\":" + json_of(std::string_view(e.name)) + ",\"dtype\":\"" + name(e.dtype) + "\",\"shape\":[";
    for (const std::int64_t n : e.shape) out += text(n) + ",";
    if (e.shape.rank() > 0) out.pop_back();
    out += "]";
    if (e.in_pieces) {
      out += ",\"pieces\":[";
      for (const Piece& p : e.pieces) out += "[" + text(p.rank) + "," + text(p.begin) + "," + text(p.end) + "],";
      if (!e.pieces.empty()) out.pop_back();
      out += "]},\n";
    } else {
      out += ",\"rank\":" + text(e.rank) + "},\n";
    }
  }
  if (!index.tensors.empty()) out.resize(out.size() - 2);
  out += "]";
  if (!index.state.empty()) out += ",\n\"state\":" + json_of(std::string_view(index.state));
  return out + std::string(kHashMember) + content_hash(out) + "\"}";
}

FolderIndex read_index_text(const std::string& path, const std::string& text) {
  IndexReader reader(path);
  read_json(path, detail::kIndex, text, reader);
  if (!reader.version) reader.lacks("version");
  if (*reader.version != kIndexVersion)
    fail<FormatError>("resume: ", path, ": its index has version ", *reader.version, ", this Levin reads ",
                      kIndexVersion, "; use the Levin that wrote it");
  const std::size_t at = text.rfind(kHashMember), end = at + kHashMember.size() + kHashDigits;
  if (at == std::string::npos || text.size() != end + 2 ||
      content_hash(std::string_view(text).substr(0, at)) != text.substr(at + kHashMember.size(), kHashDigits))
    fail<FormatError>("resume: ", path, ": the hash of ", detail::kIndex,
                      " is not that of its content; the folder is damaged, use an older checkpoint");
  FolderIndex& index = reader.index;
  const auto ranks = static_cast<std::int64_t>(index.files.size());
  if (ranks == 0 || reader.ranks != ranks) reader.lacks("ranks");
  for (std::size_t i = 0; i < index.tensors.size(); ++i) {
    Entry& e = index.tensors[i];
    if (e.name.empty()) reader.lacks("name");
    const std::string where = "resume: " + path + ": tensor '" + e.name.substr(0, 64) + "'";
    e.shape = detail::checked_shape(where, reader.dims()[i]);
    const auto stranger =
        std::find_if(e.pieces.begin(), e.pieces.end(), [&](const Piece& p) { return p.rank >= ranks; });
    if (e.rank >= ranks || stranger != e.pieces.end())
      fail<FormatError>(where, " lies in the file of rank ", stranger != e.pieces.end() ? stranger->rank : e.rank,
                        ", expected one of ", ranks, " ranks");
    if (e.in_pieces) {
      if (const std::string why = why_not_whole(e); !why.empty()) fail<FormatError>(where, " is not whole: ", why);
    }
    if (i > 0 && !(index.tensors[i - 1].name < e.name))
      fail<FormatError>(where, " is given twice or out of order in ", detail::kIndex);
  }
  return std::move(index);
}

// ---- Reading

CheckpointFolder::CheckpointFolder(std::string path) : path_(std::move(path)) {
  std::error_code error;
  if (!fs::is_directory(path_, error)) {
    if (fs::exists(path_, error))
      fail<FormatError>("resume: ", path_, " is a file, expected the folder of a sharded checkpoint");
    fail<FileError>("resume: ", path_, ": there is no such folder");
  }
  const std::string file = path_ + "/" + detail::kIndex;
  if (!fs::exists(file, error))
    fail<FormatError>(
        "resume: ", path_, " is a folder without ", detail::kIndex,
        ", expected a file, or the folder of a checkpoint whose save was finished; use another checkpoint");
  index_ = read_index_text(path_, read_file(file, kMostIndexBytes));
  for (std::size_t r = 0; r < index_.files.size(); ++r) {
    const std::string of_rank = file_of(static_cast<std::int64_t>(r));
    const auto bytes = fs::file_size(of_rank, error);
    if (error)
      fail<FileError>("resume: ", path_, " lacks ", fs::path(of_rank).filename().string(), ", one of its ",
                      index_.files.size(), " files (", error.message(),
                      "); copy the whole folder, or use an older checkpoint");
    if (bytes != static_cast<std::uintmax_t>(index_.files[r].bytes))
      fail<FormatError>("resume: ", of_rank, " has ", bytes, " bytes, expected ", index_.files[r].bytes,
                        "; the folder is damaged, use an older checkpoint");
  }
}

std::string CheckpointFolder::file_of(std::int64_t rank) const {
  return path_ + "/" + file_name(rank, static_cast<std::int64_t>(index_.files.size()));
}

const Entry& CheckpointFolder::entry(std::string_view name) const {
  const auto at = std::lower_bound(index_.tensors.begin(), index_.tensors.end(), name,
                                   [](const Entry& e, std::string_view n) { return e.name < n; });
  if (at == index_.tensors.end() || at->name != name) fail<InternalError>(path_, ": no tensor is named ", name);
  return *at;
}

std::string CheckpointFolder::difference(std::int64_t rank) const {
  detail::FileSource source(file_of(rank));
  const std::string found = detail::content_hash_of(source);
  const std::string& expected = index_.files[static_cast<std::size_t>(rank)].hash;
  return found == expected ? "" : "has hash " + found + ", expected " + expected;
}

void CheckpointFolder::verify(std::int64_t first, std::int64_t step) const {
  for (std::int64_t r = first; r < static_cast<std::int64_t>(index_.files.size()); r += step) {
    if (const std::string what = difference(r); !what.empty())
      fail<FormatError>("resume: ", file_of(r), " ", what, "; the folder is damaged, use an older checkpoint");
  }
}

std::vector<std::pair<std::string, std::string>> CheckpointFolder::damage() const {
  std::vector<std::pair<std::string, std::string>> all;
  for (std::int64_t r = 0; r < static_cast<std::int64_t>(index_.files.size()); ++r) {
    if (std::string what = difference(r); !what.empty())
      all.emplace_back(file_name(r, static_cast<std::int64_t>(index_.files.size())), std::move(what));
  }
  return all;
}

const CheckpointFolder::Place& CheckpointFolder::place(std::int64_t rank, const std::string& key, DType dtype,
                                                       const Shape& shape) const {
  auto of_rank = places_.find(rank);
  if (of_rank == places_.end()) {
    detail::FileSource source(file_of(rank));
    Places places;
    for (detail::SafetensorsHeader::Entry& e : detail::read_safetensors_header(source).entries) {
      if (!e.type.widened()) places.emplace(std::move(e.name), Place{e.type.dtype, e.shape, e.at});
    }
    of_rank = places_.emplace(rank, std::move(places)).first;
  }
  const auto at = of_rank->second.find(key);
  if (at == of_rank->second.end() || at->second.dtype != dtype || at->second.shape != shape)
    fail<FormatError>("resume: ", file_of(rank), " has no tensor '", key, "' of ", name(dtype), " ", text(shape),
                      ", as ", detail::kIndex, " says; the folder is damaged, use an older checkpoint");
  return at->second;
}

Tensor CheckpointFolder::read(const Entry& e) const {
  if (e.in_pieces) return view(read(e, 0, e.shape.numel()), Dims(e.shape.dims()));
  const Place& at = place(e.rank, e.name, e.dtype, e.shape);
  detail::FileSource source(file_of(e.rank));
  return detail::read_tensor(source, source.name() + ": tensor '" + e.name + "'", at.at, e.shape,
                             {e.dtype, static_cast<std::uint8_t>(itemsize(e.dtype))});
}

Tensor CheckpointFolder::read(const Entry& e, std::int64_t begin, std::int64_t end) const {
  const auto width = static_cast<std::uint8_t>(itemsize(e.dtype));
  const auto elements = [&](std::int64_t rank, const Place& at, std::int64_t first, std::int64_t count) {
    detail::FileSource source(file_of(rank));
    return detail::read_tensor(source, source.name() + ": tensor '" + e.name + "'",
                               at.at + static_cast<std::uint64_t>(first) * width, Shape{count}, {e.dtype, width});
  };
  if (!e.in_pieces) return elements(e.rank, place(e.rank, e.name, e.dtype, e.shape), begin, end - begin);
  Tensors parts;
  for (const Piece& p : e.pieces) {
    const std::int64_t first = std::max(begin, p.begin), last = std::min(end, p.end);
    if (first >= last) continue;
    const Place& at = place(p.rank, key_of(e.name, p.begin, p.end), e.dtype, Shape{p.end - p.begin});
    parts.push_back(elements(p.rank, at, first - p.begin, last - first));
  }
  if (parts.empty()) return empty({0}, Device::cpu(), e.dtype);
  return parts.size() == 1 ? parts.front() : cat(parts);
}

// ---- Writing

namespace {

struct Listed {
  Entry entry;
  Piece piece;
};

// What a rank tells the others of its parts.
std::string listing(const std::vector<PartOfCheckpoint>& parts, int rank) {
  Packed out;
  for (const PartOfCheckpoint& p : parts) {
    if (!p.piece && !p.own && rank != 0) continue;
    const Shape& shape = p.piece ? p.shape : p.value.shape();
    out.add(p.name).add(p.value.dtype()).add(p.piece).add(p.begin).add(p.value.numel()).add(shape.rank());
    for (const std::int64_t n : shape) out.add(n);
  }
  return out.bytes();
}

// Equal on all ranks, and so are its errors.
FolderIndex plan_of(const std::string& path, const std::vector<std::string>& listings) {
  std::map<std::string, Entry> all;
  for (std::size_t r = 0; r < listings.size(); ++r) {
    Unpacked in(listings[r]);
    while (!in.empty()) {
      const auto name = in.take<std::string>();
      Entry here{.name = name, .dtype = in.take<DType>(), .shape = {}, .rank = static_cast<std::int64_t>(r)};
      here.in_pieces = in.take<bool>();
      const auto begin = in.take<std::int64_t>(), count = in.take<std::int64_t>();
      std::vector<std::int64_t> dims(static_cast<std::size_t>(in.take<decltype(here.shape.rank())>()));
      for (std::int64_t& n : dims) n = in.take<std::int64_t>();
      here.shape = detail::checked_shape("save_checkpoint: " + path + ": " + name, dims);
      const auto [at, fresh] = all.try_emplace(name, here);
      Entry& e = at->second;
      if (!e.in_pieces && !fresh) continue;  // an earlier rank has all of it
      if (e.dtype != here.dtype || e.shape != here.shape)
        fail<StateError>("save_checkpoint: ", path, ": tensor '", name, "' is ", levin::name(here.dtype), " ",
                         text(here.shape), " on rank ", r, " and ", levin::name(e.dtype), " ", text(e.shape),
                         " on an earlier one");
      if (here.in_pieces && count > 0)
        e.pieces.push_back({.rank = static_cast<std::int64_t>(r), .begin = begin, .end = begin + count});
    }
  }
  FolderIndex plan;
  plan.files.resize(listings.size());
  for (auto& [name, e] : all) {
    if (e.in_pieces) {
      std::stable_sort(e.pieces.begin(), e.pieces.end(),
                       [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
      const auto same = [](const Piece& a, const Piece& b) { return a.begin == b.begin && a.end == b.end; };
      e.pieces.erase(std::unique(e.pieces.begin(), e.pieces.end(), same), e.pieces.end());
      if (const std::string why = why_not_whole(e); !why.empty())
        fail<StateError>("save_checkpoint: ", path, ": tensor '", name, "' is not whole: ", why,
                         "; do the ranks change different weights in on_save_checkpoint?");
    }
    plan.tensors.push_back(std::move(e));
  }
  return plan;
}

// The tensors that this rank writes.
NamedTensors tensors_of(const std::string& path, const FolderIndex& plan, const std::vector<PartOfCheckpoint>& parts,
                        std::int64_t rank) {
  std::set<std::string> mine;  // keys
  for (const Entry& e : plan.tensors) {
    if (!e.in_pieces && e.rank == rank) mine.insert(e.name);
    for (const Piece& p : e.pieces) {
      if (p.rank == rank) mine.insert(key_of(e.name, p.begin, p.end));
    }
  }
  NamedTensors out;
  for (const PartOfCheckpoint& p : parts) {
    const std::string key = p.piece ? key_of(p.name, p.begin, p.begin + p.value.numel()) : p.name;
    if (mine.erase(key) == 0) continue;
    const Tensor host = detail::dense_on_host("save_checkpoint: " + path + ": tensor '" + p.name + "'", p.value);
    out.emplace_back(key, p.piece ? view(host, {host.numel()}) : host);
  }
  return out;
}

}  // namespace

void write_folder(Strategy& strategy, const std::string& path, const std::vector<PartOfCheckpoint>& parts,
                  const std::string& state) {
  const RankInfo ranks = strategy.ranks();
  FolderIndex plan = plan_of(path, strategy.gather(listing(parts, ranks.rank)));
  plan.state = state;
  std::unique_ptr<detail::NewFolder> folder;  // of rank 0
  const std::string temporary = by_rank_zero(strategy, [&] {
    folder = std::make_unique<detail::NewFolder>(path);
    return folder->temporary();
  });
  FolderIndex::File mine;
  by_all_ranks(strategy, [&] {
    std::error_code error;
    if (!fs::is_directory(temporary, error))
      fail<FileError>("save_checkpoint: ", temporary, ", which rank 0 has made, is not here; a sharded checkpoint ",
                      "needs a file system that all ranks see");
    const std::string file = temporary + "/" + file_name(ranks.rank, ranks.size);
    dist::point("save:rank", ranks.rank);
    save_safetensors(file, tensors_of(path, plan, parts, ranks.rank));
    detail::FileSource written(file);
    mine = {.bytes = static_cast<std::int64_t>(written.size()), .hash = detail::content_hash_of(written)};
  });
  const std::vector<std::string> all = strategy.gather(Packed().add(mine.bytes).add(mine.hash).bytes());
  for (std::size_t r = 0; r < all.size(); ++r) {
    Unpacked in(all[r]);
    plan.files[r].bytes = in.take<std::int64_t>();
    plan.files[r].hash = in.take<std::string>();
  }
  (void)by_rank_zero(strategy, [&] {
    for (std::size_t r = 0; r < all.size(); ++r) {
      const std::string file = temporary + "/" + file_name(static_cast<std::int64_t>(r), ranks.size);
      std::error_code error;
      const auto bytes = fs::file_size(file, error);
      if (error || bytes != static_cast<std::uintmax_t>(plan.files[r].bytes))
        fail<FileError>("save_checkpoint: ", file, ", which rank ", r,
                        " has written, is not seen by rank 0; a sharded ",
                        "checkpoint needs a file system that all ranks see");
    }
    write_file_atomically(temporary + "/" + detail::kIndex, index_text(plan));
    folder->commit();
    return std::string();
  });
}

}  // namespace levin::train
