#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "levin/serialize.h"
#include "tensor/core/formats.h"
#include "tensor/files/file.h"

// The format: u64 little-endian length of a JSON header, the header, the tensors' bytes.
namespace levin {
namespace {

using detail::FileType;
using detail::Source;
using detail::valid_utf8;

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMaxHeaderEver = 100'000'000;  // the reference implementation's limit
constexpr std::size_t kMaxNames = 1'000'000;
constexpr std::size_t kMaxName = 512;
constexpr char kMetadataKey[] = "__metadata__";

struct KnownType {
  std::string_view code;
  FileType type;
};
constexpr KnownType kTypes[] = {
    {"F32", {DType::f32, 4}}, {"F64", {DType::f64, 8}}, {"F16", {DType::f16, 2}}, {"BF16", {DType::bf16, 2}},
    {"I32", {DType::i32, 4}}, {"I64", {DType::i64, 8}}, {"U8", {DType::u8, 1}},   {"BOOL", {DType::b8, 1}},
    {"I8", {DType::i8, 1}},   {"I16", {DType::i16, 2}}, {"U16", {DType::i32, 2}}, {"U32", {DType::i64, 4}},
};
std::string_view code_of(DType t) {
  return std::find_if(std::begin(kTypes), std::end(kTypes),
                      [&](const KnownType& k) { return k.type.dtype == t && !k.type.widened(); })
      ->code;
}

// ---- Reading

struct Entry {
  std::string name;
  std::string_view code;
  FileType type;
  std::vector<std::int64_t> dims;
  std::uint64_t offsets[2] = {0, 0};
  std::uint8_t offset_count = 0;
  bool has_shape = false, has_offsets = false;
};

// Receives the header from the parser: no tree is built, so nesting and counts are refused where they appear.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(const std::string& file) : file_(file) {}
  std::vector<Entry> entries;
  Metadata metadata;

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("true or false"); }
  bool number_integer(number_integer_t value) override { return refuse(levin::text(value)); }
  bool number_float(number_float_t, const string_t& written) override { return refuse(shortened(written)); }
  bool binary(binary_t&) override { return refuse("binary data"); }
  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::shape) {
      if (value > static_cast<number_unsigned_t>(kMaxDim)) return refuse(levin::text(value));
      if (entry().dims.size() == static_cast<std::size_t>(kMaxRank)) {
        fail<FormatError>(where(), "has more than ", kMaxRank, " dimensions");
      }
      entry().dims.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (place_ == Place::offsets && entry().offset_count < 2) {
      entry().offsets[entry().offset_count++] = value;
      return true;
    }
    return refuse(levin::text(value));
  }
  bool string(string_t& value) override {
    if (place_ == Place::metadata) {
      metadata.back().second = std::move(value);
      return true;
    }
    if (place_ != Place::dtype) return refuse("'" + shortened(value) + "'");
    for (const KnownType& known : kTypes) {
      if (known.code != value) continue;
      entry().code = known.code;
      entry().type = known.type;
      place_ = Place::tensor;
      return true;
    }
    fail<FormatError>(where(), "has dtype '", shortened(value),
                      "', expected F64 F32 F16 BF16 I64 I32 I16 I8 U32 U16 U8 or BOOL");
  }
  bool start_object(std::size_t) override {
    if (place_ == Place::start) {
      place_ = Place::root;
    } else if (place_ == Place::tensor_begin) {
      place_ = Place::tensor;
    } else if (place_ == Place::metadata_begin) {
      place_ = Place::metadata;
    } else {
      return refuse("an object");
    }
    return true;
  }
  bool key(string_t& key) override {
    if (place_ == Place::root) {
      if (key == kMetadataKey) {
        if (seen_metadata_) fail<FormatError>(file_, ": __metadata__ is given twice");
        seen_metadata_ = true;
        place_ = Place::metadata_begin;
        return true;
      }
      check_name(key, "a tensor's name");
      if (entries.size() == kMaxNames) fail<FormatError>(file_, ": has more than ", kMaxNames, " tensors");
      entries.emplace_back();
      entry().name = std::move(key);
      place_ = Place::tensor_begin;
      return true;
    }
    if (place_ == Place::metadata) {
      check_name(key, "a key of __metadata__");
      if (metadata.size() == kMaxNames) fail<FormatError>(file_, ": __metadata__ has more than ", kMaxNames, " keys");
      metadata.emplace_back(std::move(key), "");
      return true;
    }
    // Inside of a tensor. place_ names the member whose value follows.
    const bool again = (key == "dtype" && !entry().code.empty()) || (key == "shape" && entry().has_shape) ||
                       (key == "data_offsets" && entry().has_offsets);
    if (again) fail<FormatError>(where(), "has ", key, " twice");
    if (key == "dtype") {
      place_ = Place::dtype;
    } else if (key == "shape") {
      place_ = Place::shape_begin;
    } else if (key == "data_offsets") {
      place_ = Place::offsets_begin;
    } else {
      fail<FormatError>(where(), "has the member '", shortened(key), "', expected dtype, shape and data_offsets");
    }
    return true;
  }
  bool end_object() override {
    if (place_ == Place::tensor) {
      if (entry().code.empty() || !entry().has_shape || !entry().has_offsets) {
        fail<FormatError>(where(), "lacks a member, expected dtype, shape and data_offsets");
      }
      place_ = Place::root;
    } else if (place_ == Place::metadata) {
      place_ = Place::root;
    } else {
      place_ = Place::done;
    }
    return true;
  }
  bool start_array(std::size_t) override {
    if (place_ == Place::shape_begin) {
      place_ = Place::shape;
    } else if (place_ == Place::offsets_begin) {
      place_ = Place::offsets;
    } else {
      return refuse("an array");
    }
    return true;
  }
  bool end_array() override {
    if (place_ == Place::shape) entry().has_shape = true;
    if (place_ == Place::offsets) {
      if (entry().offset_count != 2) fail<FormatError>(where(), "has one or no data_offsets, expected two");
      entry().has_offsets = true;
    }
    place_ = Place::tensor;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    fail<FormatError>(file_, ": the header is not valid JSON at its byte ", position);
  }

 private:
  enum class Place {
    start,
    root,
    metadata_begin,
    metadata,
    tensor_begin,
    tensor,
    dtype,
    shape_begin,
    shape,
    offsets_begin,
    offsets,
    done
  };

  static std::string shortened(const std::string& s) { return s.size() <= 64 ? s : s.substr(0, 64) + "..."; }
  Entry& entry() { return entries.back(); }
  std::string where() { return file_ + ": tensor '" + shortened(entry().name) + "' "; }
  void check_name(const std::string& name, const char* what) const {
    if (name.size() > kMaxName) {
      fail<FormatError>(file_, ": ", what, " has ", name.size(), " bytes, expected at most ", kMaxName);
    }
    if (name.find('\0') != std::string::npos) fail<FormatError>(file_, ": ", what, " contains a NUL");
  }
  bool refuse(const std::string& got) {
    const char* expected = "a tensor's description";
    switch (place_) {
      case Place::start: expected = "an object of tensors"; break;
      case Place::metadata_begin: expected = "an object of strings"; break;
      case Place::metadata: expected = "a string"; break;
      case Place::tensor:
      case Place::dtype: expected = "a string for dtype"; break;
      case Place::shape_begin: expected = "an array of dimensions"; break;
      case Place::shape: expected = "a dimension from 0 to 2^40"; break;
      case Place::offsets_begin:
      case Place::offsets: expected = "two byte offsets"; break;
      default: break;
    }
    const bool inside = !entries.empty() && place_ >= Place::tensor_begin;
    fail<FormatError>(inside ? where() : file_ + ": the header ", "has ", got, " where ", expected, " is expected");
  }

  const std::string& file_;
  Place place_ = Place::start;
  bool seen_metadata_ = false;
};

template <class T, class Name>
void check_unique(const std::string& file, const std::vector<T>& items, const char* what, const Name& name_of) {
  std::vector<std::uint32_t> order(items.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return name_of(items[a]) < name_of(items[b]); });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const std::string& name = name_of(items[order[i]]);
    if (name == name_of(items[order[i - 1]])) fail<FormatError>(file, ": ", what, " '", name, "' is given twice");
  }
}

// Checks that every tensor's bytes match its shape and that the ranges tile [0, data_bytes). Returns the shapes.
std::vector<Shape> check_ranges(const std::string& file, const std::vector<Entry>& entries, std::uint64_t data_bytes) {
  std::vector<Shape> shapes;
  shapes.reserve(entries.size());
  for (const Entry& e : entries) {
    const std::string where = file + ": tensor '" + e.name + "'";
    shapes.push_back(detail::checked_shape(where, e.dims));
    const std::uint64_t bytes = static_cast<std::uint64_t>(shapes.back().numel()) * e.type.width;  // at most 2^51
    if (e.offsets[0] > e.offsets[1] || e.offsets[1] > data_bytes || e.offsets[1] - e.offsets[0] != bytes) {
      fail<FormatError>(where, " has data_offsets [", e.offsets[0], ", ", e.offsets[1], "], expected ", bytes,
                        " bytes for ", e.code, " ", shapes.back(), " inside of the file's ", data_bytes);
    }
  }
  std::vector<std::uint32_t> order(entries.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) {
    return std::pair(entries[a].offsets[0], entries[a].offsets[1]) <
           std::pair(entries[b].offsets[0], entries[b].offsets[1]);
  });
  std::uint64_t at = 0;
  for (const std::uint32_t i : order) {
    if (entries[i].offsets[0] != at) {
      fail<FormatError>(file, ": tensor '", entries[i].name, "' begins at data byte ", entries[i].offsets[0],
                        ", expected ", at, ": tensors may not overlap or leave gaps");
    }
    at = entries[i].offsets[1];
  }
  if (at != data_bytes) {
    fail<FormatError>(file, ": the tensors end at data byte ", at, ", the file at ", data_bytes);
  }
  return shapes;
}

// ---- Writing

std::string json_string(std::string_view s) {
  std::string out = "\"";
  for (const char c : s) {
    const auto byte = static_cast<unsigned char>(c);
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (byte < 0x20) {
          out += "\\u00";
          out += "0123456789abcdef"[byte >> 4];
          out += "0123456789abcdef"[byte & 15];
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

// Place of a dtype in the reference implementation's order of files: wide ones first.
int rank_of(DType t) {
  constexpr int kRanks[kDTypeCount] = {/*f32*/ 2,  /*f64*/ 1, /*f16*/ 5, /*bf16*/ 4,
                                       /*i32*/ 3,  /*i64*/ 0, /*u8*/ 8,
                                       /*bool*/ 9, /*i8*/ 7,  /*i16*/ 6};
  return kRanks[static_cast<int>(t)];
}

template <class Pairs>
void check_names(const std::string& path, const Pairs& pairs, const char* what) {
  std::vector<const std::string*> names;
  for (const auto& [name, value] : pairs) {
    if (name.size() > kMaxName || name.find('\0') != std::string::npos || !valid_utf8(name)) {
      fail<ConfigError>("save_safetensors: ", path, ": ", what, " '", name.substr(0, 64),
                        "' is longer than 512 bytes, holds a NUL or is not UTF-8");
    }
    names.push_back(&name);
  }
  std::sort(names.begin(), names.end(), [](auto* a, auto* b) { return *a < *b; });
  const auto twice = std::adjacent_find(names.begin(), names.end(), [](auto* a, auto* b) { return *a == *b; });
  if (twice != names.end()) {
    fail<ConfigError>("save_safetensors: ", path, ": ", what, " '", **twice, "' is given twice");
  }
}

}  // namespace

namespace detail {

bool valid_utf8(std::string_view s) {
  std::size_t i = 0;
  while (i < s.size()) {
    const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(s[at]); };
    const unsigned lead = byte(i);
    const std::size_t more = lead < 0x80   ? 0
                             : lead < 0xc2 ? 9
                             : lead < 0xe0 ? 1
                             : lead < 0xf0 ? 2
                             : lead < 0xf5 ? 3
                                           : 9;
    if (more == 9 || s.size() - i <= more) return false;
    unsigned code = more == 0 ? lead : lead & (0x3fu >> more);
    for (std::size_t k = 1; k <= more; ++k) {
      if ((byte(i + k) & 0xc0u) != 0x80u) return false;
      code = code << 6 | (byte(i + k) & 0x3fu);
    }
    constexpr unsigned kLeast[] = {0, 0x80, 0x800, 0x10000};
    if (code < kLeast[more] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
    i += more + 1;
  }
  return true;
}

SafetensorsHeader read_safetensors_header(Source& source, SafetensorsLimits limits) {
  const std::string& file = source.name();
  if (limits.header_bytes > kMaxHeaderEver) {
    fail<ConfigError>("load_safetensors: header_bytes is ", limits.header_bytes, ", expected at most ", kMaxHeaderEver);
  }
  if (source.size() < kLengthBytes) {
    fail<FormatError>(file, ": the file has ", source.size(), " bytes, a safetensors file at least 8");
  }
  std::uint64_t header_bytes = 0;
  source.read(0, &header_bytes, kLengthBytes);
  if (header_bytes > source.size() - kLengthBytes) {
    fail<FormatError>(file, ": the header has ", header_bytes, " bytes, the file only ", source.size() - kLengthBytes,
                      " more; is it a safetensors file, and whole?");
  }
  if (header_bytes > limits.header_bytes) {
    fail<FormatError>(file, ": the header has ", header_bytes, " bytes, expected at most ", limits.header_bytes,
                      limits.header_bytes == kMaxHeaderEver
                          ? ", the format's limit"
                          : "; raise SafetensorsLimits::header_bytes if you trust the file");
  }
  std::string header(static_cast<std::size_t>(header_bytes), '\0');
  source.read(kLengthBytes, header.data(), header.size());
  if (header.empty() || header.front() != '{') {
    fail<FormatError>(file, ": the header does not begin with '{'; is it a safetensors file?");
  }
  HeaderReader reader(file);
  nlohmann::json::sax_parse(header, &reader);
  std::string().swap(header);
  check_unique(file, reader.entries, "tensor", [](const Entry& e) -> const std::string& { return e.name; });
  check_unique(file, reader.metadata, "the key of __metadata__",
               [](const auto& m) -> const std::string& { return m.first; });
  const std::uint64_t data = kLengthBytes + header_bytes;
  const std::vector<Shape> shapes = check_ranges(file, reader.entries, source.size() - data);
  SafetensorsHeader result;
  result.metadata = std::move(reader.metadata);
  result.entries.reserve(shapes.size());
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    Entry& e = reader.entries[i];
    result.entries.push_back({std::move(e.name), shapes[i], e.type, data + e.offsets[0]});
  }
  return result;
}

TensorFile read_safetensors(Source& source, SafetensorsLimits limits) {
  SafetensorsHeader header = read_safetensors_header(source, limits);
  TensorFile result;
  result.metadata = std::move(header.metadata);
  result.tensors.reserve(header.entries.size());
  for (SafetensorsHeader::Entry& e : header.entries) {
    Tensor x = read_tensor(source, source.name() + ": tensor '" + e.name + "'", e.at, e.shape, e.type);
    result.tensors.emplace_back(std::move(e.name), std::move(x));
  }
  return result;
}

SafetensorsLayout layout_safetensors(const std::string& path, const NamedTensors& tensors, const Metadata& metadata) {
  check_names(path, tensors, "tensor");
  check_names(path, metadata, "the key of __metadata__");
  for (const auto& [name, x] : tensors) {
    if (name == kMetadataKey) fail<ConfigError>("save_safetensors: ", path, ": a tensor is named __metadata__");
    if (!x.defined()) fail<ConfigError>("save_safetensors: ", path, ": tensor '", name, "' is undefined");
  }
  SafetensorsLayout layout;
  layout.order.resize(tensors.size());
  std::iota(layout.order.begin(), layout.order.end(), std::size_t{0});
  std::sort(layout.order.begin(), layout.order.end(), [&](std::size_t a, std::size_t b) {
    const int ra = rank_of(tensors[a].second.dtype()), rb = rank_of(tensors[b].second.dtype());
    return ra != rb ? ra < rb : tensors[a].first < tensors[b].first;
  });
  std::string json = "{";
  if (!metadata.empty()) {
    json += json_string(kMetadataKey) + ":{";
    for (const auto& [key, value] : metadata) {
      if (!valid_utf8(value)) {
        fail<ConfigError>("save_safetensors: ", path, ": the value of '", key, "' in __metadata__ is not UTF-8");
      }
      json += json_string(key) + ":" + json_string(value) + ",";
    }
    json.back() = '}';
    json += ',';
  }
  std::uint64_t at = 0;
  for (const std::size_t i : layout.order) {
    const auto& [name, x] = tensors[i];
    const std::uint64_t end = at + static_cast<std::uint64_t>(x.numel()) * itemsize(x.dtype());
    json += json_string(name) + ":{\"dtype\":\"" + std::string(code_of(x.dtype())) + "\",\"shape\":[";
    for (const std::int64_t size : x.shape()) json += levin::text(size) + ",";
    if (x.rank() > 0) json.pop_back();
    json += "],\"data_offsets\":[" + levin::text(at) + "," + levin::text(end) + "]},";
    at = end;
  }
  if (json.back() == ',') json.pop_back();
  json += '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  if (json.size() > kMaxHeaderEver) {
    fail<ConfigError>("save_safetensors: ", path, ": the header has ", json.size(), " bytes, the format's limit is ",
                      kMaxHeaderEver);
  }
  const std::uint64_t length = json.size();
  layout.header.assign(reinterpret_cast<const char*>(&length), sizeof length);
  layout.header += json;
  return layout;
}

}  // namespace detail

TensorFile load_safetensors(const std::string& path, SafetensorsLimits limits) {
  detail::FileSource source(path);
  return detail::read_safetensors(source, limits);
}

void save_safetensors(const std::string& path, const NamedTensors& tensors, const Metadata& metadata) {
  const detail::SafetensorsLayout layout = detail::layout_safetensors(path, tensors, metadata);
  std::vector<Tensor> dense;  // keeps the bytes alive while they are written
  std::vector<std::span<const std::byte>> parts{std::as_bytes(std::span<const char>(layout.header))};
  dense.reserve(tensors.size());
  for (const std::size_t i : layout.order) {
    const auto& [name, x] = tensors[i];
    dense.push_back(detail::dense_on_host("save_safetensors: " + path + ": tensor '" + name + "'", x));
    parts.push_back(detail::bytes_of(dense.back()));
  }
  write_file_atomically(path, parts);
}

}  // namespace levin
