#include <zlib.h>

#include <algorithm>
#include <array>
#include <set>

#include "data/readers/npz.h"
#include "data/readers/zip.h"
#include "tensor/core/formats.h"

namespace levin::data {
namespace {

using Bytes = std::span<const std::byte>;

void add(std::string& out, std::uint64_t value, std::size_t width) {  // little-endian
  for (std::size_t k = 0; k < width; ++k) out += static_cast<char>(value >> (8 * k) & 0xff);
}
std::uint32_t sum_of(std::uint32_t sum, Bytes bytes) {
  if (bytes.empty()) return sum;
  return static_cast<std::uint32_t>(crc32_z(sum, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

std::string deflated(std::span<const Bytes> parts) {
  z_stream stream{};
  const auto close = [](z_stream* s) { deflateEnd(s); };
  if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    fail<OutOfMemoryError>("save_npz: no memory to deflate");
  }
  const std::unique_ptr<z_stream, decltype(close)> closed(&stream, close);
  std::string out;
  std::vector<char> block(std::size_t{1} << 16);
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const bool last = p + 1 == parts.size();
    std::size_t done = 0;
    do {
      const std::size_t n = std::min(parts[p].size() - done, std::size_t{1} << 30);
      // zlib does not write to its input.
      stream.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(parts[p].data())) + done;
      stream.avail_in = static_cast<uInt>(n);
      done += n;
      const int flush = last && done == parts[p].size() ? Z_FINISH : Z_NO_FLUSH;
      do {
        stream.next_out = reinterpret_cast<Bytef*>(block.data());
        stream.avail_out = static_cast<uInt>(block.size());
        (void)deflate(&stream, flush);
        out.append(block.data(), block.size() - stream.avail_out);
      } while (stream.avail_out == 0);
    } while (done < parts[p].size());
  }
  return out;
}

constexpr std::uint16_t kUtf8 = 1 << 11, kDate = 1 << 5 | 1;  // 1980-01-01: the same tensors give the same bytes
constexpr std::uint16_t kUnix = 3 << 8, kVersion = 20, kVersion64 = 45;
constexpr std::uint32_t kMode = 0100644u << 16;

// What local header and directory share, from the version needed to the extra field's length.
std::string common(const ZipMember& m, std::uint64_t zip64_from, std::size_t extra) {
  const auto short_form = [&](std::uint64_t size) { return size >= zip64_from ? kZip64 : size; };
  const bool ascii =
      std::all_of(m.name.begin(), m.name.end(), [](char c) { return static_cast<unsigned char>(c) < 128; });
  std::string out;
  add(out, extra ? kVersion64 : kVersion, 2);
  add(out, ascii ? 0 : kUtf8, 2);
  add(out, m.method, 2);
  add(out, 0, 2);  // midnight
  add(out, kDate, 2);
  add(out, m.sum, 4);
  add(out, extra ? kZip64 : short_form(m.packed), 4);
  add(out, extra ? kZip64 : short_form(m.unpacked), 4);
  add(out, m.name.size(), 2);
  add(out, extra, 2);
  return out;
}
// Empty, or the zip64 field with all sizes, and the position where it is asked for.
std::string extra_of(const ZipMember& m, std::uint64_t zip64_from, bool with_position) {
  if (std::max(m.packed, m.unpacked) < zip64_from && !(with_position && m.header >= zip64_from)) return "";
  std::string out;
  add(out, kZip64Extra, 2);
  add(out, with_position ? 24 : 16, 2);
  add(out, m.unpacked, 8);
  add(out, m.packed, 8);
  if (with_position) add(out, m.header, 8);
  return out;
}

std::string directory_of(const std::vector<ZipMember>& members, std::uint64_t begin, std::uint64_t zip64_from) {
  std::string out;
  for (const ZipMember& m : members) {
    const std::string extra = extra_of(m, zip64_from, true);
    add(out, kZipCentral, 4);
    add(out, kUnix | (extra.empty() ? kVersion : kVersion64), 2);
    out += common(m, zip64_from, extra.size());
    add(out, 0, 2 + 2 + 2);  // no comment, the first disk, binary
    add(out, kMode, 4);
    add(out, extra.empty() ? m.header : kZip64, 4);
    out += m.name + extra;
  }
  const std::uint64_t bytes = out.size(), end = begin + bytes, count = members.size();
  const bool zip64 = std::max(begin, bytes) >= zip64_from;
  if (zip64) {
    add(out, kZip64End, 4);
    add(out, 44, 8);  // bytes after this number
    add(out, kUnix | kVersion64, 2);
    add(out, kVersion64, 2);
    add(out, 0, 4 + 4);
    for (const std::uint64_t value : {count, count, bytes, begin}) add(out, value, 8);
    add(out, kZip64Locator, 4);
    add(out, 0, 4);
    add(out, end, 8);
    add(out, 1, 4);
  }
  add(out, kZipEnd, 4);
  add(out, 0, 4);
  add(out, count, 2);
  add(out, count, 2);
  add(out, zip64 ? kZip64 : bytes, 4);
  add(out, zip64 ? kZip64 : begin, 4);
  add(out, 0, 2);
  return out;
}

void check_names(const std::string& path, const NamedTensors& tensors) {
  if (tensors.size() > kZipMembers) {
    fail<ConfigError>("save_npz: ", path, ": ", tensors.size(), " tensors, expected at most ", kZipMembers);
  }
  std::set<std::string_view> names;
  for (const auto& [name, tensor] : tensors) {
    if (const std::string wrong = wrong_zip_name(name + ".npy"); !wrong.empty()) {
      fail<ConfigError>("save_npz: ", path, ": a tensor's name with .npy ", wrong);
    }
    if (!names.insert(name).second) fail<ConfigError>("save_npz: ", path, ": name '", name, "' is given twice");
  }
}

}  // namespace

NpzParts npz_parts(const std::string& path, const NamedTensors& tensors, NpzPacking packing, std::uint64_t zip64_from) {
  check_names(path, tensors);
  NpzParts zip;
  std::vector<ZipMember> members;
  std::uint64_t at = 0;
  const auto part = [&](Bytes bytes) {
    zip.parts.push_back(bytes);
    at += bytes.size();
  };
  const auto bytes_of = [](const std::string& s) { return std::as_bytes(std::span<const char>(s)); };
  for (const auto& [name, tensor] : tensors) {
    const std::string what = "save_npz: " + path + ": '" + name + "'";
    if (!tensor.defined()) fail<ConfigError>(what, " is an undefined tensor");
    const std::string& head = zip.texts.emplace_back(detail::npy_header(what, tensor));
    const Tensor& dense = zip.tensors.emplace_back(detail::dense_on_host(what, tensor));
    const std::array content{bytes_of(head), detail::bytes_of(dense)};
    ZipMember m;
    m.name = name + ".npy";
    m.header = at;
    m.unpacked = content[0].size() + content[1].size();
    m.packed = m.unpacked;
    m.sum = sum_of(sum_of(static_cast<std::uint32_t>(crc32(0, nullptr, 0)), content[0]), content[1]);
    const std::string* packed = nullptr;
    if (packing == NpzPacking::deflated) {
      packed = &zip.texts.emplace_back(deflated(content));
      m.method = kZipDeflated;
      m.packed = packed->size();
      zip.tensors.back() = {};
    }
    const std::string extra = extra_of(m, zip64_from, false);
    std::string& local = zip.texts.emplace_back();
    add(local, kZipLocal, 4);
    local += common(m, zip64_from, extra.size()) + m.name + extra;
    part(bytes_of(local));
    if (packed) {
      part(bytes_of(*packed));
    } else {
      part(content[0]);
      part(content[1]);
    }
    members.push_back(std::move(m));
  }
  part(bytes_of(zip.texts.emplace_back(directory_of(members, at, zip64_from))));
  return zip;
}

void save_npz(const std::string& path, const NamedTensors& tensors, NpzPacking packing) {
  write_file_atomically(path, npz_parts(path, tensors, packing).parts);
}

}  // namespace levin::data
