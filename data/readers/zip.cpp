#include "data/readers/zip.h"

#include <zlib.h>

#include <algorithm>
#include <array>

#include "levin/error.h"
#include "tensor/core/formats.h"

namespace levin::data {
namespace {

using detail::Source;

constexpr std::size_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kLocatorBytes = 20, kEnd64Bytes = 56;
constexpr std::uint64_t kMaxEntry = kCentralBytes + 3 * 0xffff;  // with name, extra field and comment
constexpr std::uint64_t kMaxRatio = 1032;                        // what deflate can do
constexpr std::uint16_t kEncrypted = 1, kSizesFollow = 8;

// Little-endian numbers of bytes in memory; the caller knows that they are there.
std::uint64_t number(std::string_view bytes, std::size_t at, std::size_t width) {
  std::uint64_t value = 0;
  for (std::size_t k = width; k-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + k]);
  return value;
}
std::uint16_t u16(std::string_view b, std::size_t at) { return static_cast<std::uint16_t>(number(b, at, 2)); }
std::uint32_t u32(std::string_view b, std::size_t at) { return static_cast<std::uint32_t>(number(b, at, 4)); }

std::string bytes_at(Source& source, std::uint64_t at, std::uint64_t n) {
  std::string bytes(static_cast<std::size_t>(n), '\0');
  source.read(at, bytes.data(), bytes.size());
  return bytes;
}

struct Directory {
  std::uint64_t begin = 0, bytes = 0, members = 0;
};

// The end record stands before a comment of at most 65,535 bytes, which is the end of the file.
Directory find_directory(Source& source) {
  const std::string& file = source.name();
  if (source.size() < kEndBytes) {
    fail<FormatError>(file, ": is no zip file: it has ", source.size(), " bytes, expected at least ", kEndBytes);
  }
  const std::uint64_t tail_bytes = std::min<std::uint64_t>(source.size(), kEndBytes + 0xffff);
  const std::string tail = bytes_at(source, source.size() - tail_bytes, tail_bytes);
  std::size_t at = tail.size() - kEndBytes + 1;
  do {
    if (at-- == 0) fail<FormatError>(file, ": is no zip file, or is cut off: its end has no end record");
  } while (u32(tail, at) != kZipEnd || at + kEndBytes + u16(tail, at + 20) != tail.size());
  const std::uint64_t end = source.size() - tail_bytes + at;
  Directory d{u32(tail, at + 16), u32(tail, at + 12), u16(tail, at + 10)};
  std::uint64_t disks = u16(tail, at + 4) | u16(tail, at + 6), on_disk = u16(tail, at + 8), stop = end;
  if (d.begin == kZip64 || d.bytes == kZip64 || d.members == 0xffff) {
    if (end < kLocatorBytes + kEnd64Bytes) fail<FormatError>(file, ": has no zip64 record before its end record");
    const std::string locator = bytes_at(source, end - kLocatorBytes, kLocatorBytes);
    stop = number(locator, 8, 8);
    if (u32(locator, 0) != kZip64Locator || stop > end - kLocatorBytes - kEnd64Bytes) {
      fail<FormatError>(file, ": has no zip64 record before its end record");
    }
    const std::string record = bytes_at(source, stop, kEnd64Bytes);
    if (u32(record, 0) != kZip64End) fail<FormatError>(file, ": has no zip64 record at byte ", stop);
    d = {number(record, 48, 8), number(record, 40, 8), number(record, 32, 8)};
    disks = u32(record, 16) | u32(record, 20);
    on_disk = number(record, 24, 8);
  }
  if (disks != 0 || on_disk != d.members) fail<FormatError>(file, ": is a part of a zip file in several parts");
  if (d.bytes > stop || d.begin != stop - d.bytes) {
    fail<FormatError>(file, ": the directory has ", d.bytes, " bytes from byte ", d.begin, ", expected to end at byte ",
                      stop);
  }
  if (d.members > kZipMembers) {
    fail<FormatError>(file, ": has ", d.members, " members, expected at most ", kZipMembers);
  }
  if (d.bytes > d.members * kMaxEntry) {
    fail<FormatError>(file, ": the directory of ", d.members, " members has ", d.bytes, " bytes, expected at most ",
                      d.members * kMaxEntry);
  }
  return d;
}

// Replaces sizes of 0xffffffff by those of the zip64 field, which holds them in this order. False where it lacks one.
bool read_zip64(std::string_view extra, std::span<std::uint64_t* const> sizes) {
  std::string_view field;
  while (extra.size() >= 4) {
    const std::size_t n = u16(extra, 2);
    if (n > extra.size() - 4) break;
    if (u16(extra, 0) == kZip64Extra) field = extra.substr(4, n);
    extra.remove_prefix(4 + n);
  }
  for (std::uint64_t* size : sizes) {
    if (*size != kZip64) continue;
    if (field.size() < 8) return false;
    *size = number(field, 0, 8);
    field.remove_prefix(8);
  }
  return true;
}

class DirectoryReader {
 public:
  DirectoryReader(Source& source) : source_(source), file_(source.name()) {}

  std::vector<ZipMember> read() {
    const Directory d = find_directory(source_);
    end_of_members_ = d.begin;
    const std::string bytes = bytes_at(source_, d.begin, d.bytes);
    std::string_view rest = bytes;
    std::vector<ZipMember> members;
    for (std::uint64_t k = 0; k < d.members; ++k) {
      if (rest.size() < kCentralBytes || u32(rest, 0) != kZipCentral) {
        fail<FormatError>(file_, ": the directory is damaged at byte ", d.begin + d.bytes - rest.size(), ", entry ", k);
      }
      const std::size_t name = u16(rest, 28), extra = u16(rest, 30), comment = u16(rest, 32);
      if (name + extra + comment > rest.size() - kCentralBytes) {
        fail<FormatError>(file_, ": entry ", k, " does not end inside of the directory");
      }
      members.push_back(read_entry(rest.substr(0, kCentralBytes), rest.substr(kCentralBytes, name),
                                   rest.substr(kCentralBytes + name, extra)));
      rest.remove_prefix(kCentralBytes + name + extra + comment);
    }
    if (!rest.empty()) fail<FormatError>(file_, ": ", rest.size(), " bytes follow the directory's last entry");
    check_overlaps(members);
    return members;
  }

 private:
  template <class... Parts>
  [[noreturn]] void refuse(const ZipMember& m, const Parts&... parts) const {
    fail<FormatError>(file_, ": member '", m.name, "': ", parts...);
  }

  ZipMember read_entry(std::string_view entry, std::string_view name, std::string_view extra) {
    if (const std::string wrong = wrong_zip_name(name); !wrong.empty()) {
      fail<FormatError>(file_, ": a member's name ", wrong);
    }
    ZipMember m;
    m.name = name;
    flags_ = u16(entry, 8);
    m.method = u16(entry, 10);
    m.sum = u32(entry, 16);
    m.packed = u32(entry, 20);
    m.unpacked = u32(entry, 24);
    m.header = u32(entry, 42);
    if (!read_zip64(extra, std::array{&m.unpacked, &m.packed, &m.header})) refuse(m, "its zip64 field is too short");
    if (flags_ & kEncrypted) refuse(m, "is encrypted");
    if (m.method != kZipStored && m.method != kZipDeflated) {
      refuse(m, "is packed by method ", m.method, ", expected 0 (stored) or 8 (deflate)");
    }
    if (m.method == kZipStored && m.packed != m.unpacked) {
      refuse(m, "is stored in ", m.packed, " bytes, expected its size of ", m.unpacked);
    }
    check_local(m);
    if (m.unpacked / kMaxRatio > m.packed) {
      refuse(m, "claims ", m.unpacked, " bytes, its ", m.packed, " bytes of deflate hold at most ",
             m.packed * kMaxRatio);
    }
    return m;
  }

  void check_local(ZipMember& m) {
    if (m.header > end_of_members_ || end_of_members_ - m.header < kLocalBytes) {
      refuse(m, "its header is at byte ", m.header, ", the directory at byte ", end_of_members_);
    }
    const std::string header = bytes_at(source_, m.header, kLocalBytes);
    const std::uint64_t name = u16(header, 26), extra = u16(header, 28);
    const std::uint64_t room = end_of_members_ - m.header - kLocalBytes;
    if (u32(header, 0) != kZipLocal) refuse(m, "no header is at byte ", m.header);
    if (name + extra > room || m.packed > room - name - extra) {
      refuse(m, "has ", m.packed, " bytes after its header at byte ", m.header, ", the file ", room);
    }
    const std::string rest = bytes_at(source_, m.header + kLocalBytes, name + extra);
    std::uint64_t packed = u32(header, 18), unpacked = u32(header, 22);
    const bool same = u16(header, 8) == m.method && std::string_view(rest).substr(0, name) == m.name &&
                      read_zip64(std::string_view(rest).substr(name), std::array{&unpacked, &packed});
    // Where the sizes follow the bytes, the header has zeros.
    const bool known = !(flags_ & kSizesFollow);
    if (!same || (known && (packed != m.packed || unpacked != m.unpacked || u32(header, 14) != m.sum))) {
      refuse(m, "its header at byte ", m.header, " and the directory contradict each other");
    }
    m.begin = m.header + kLocalBytes + name + extra;
  }

  void check_overlaps(const std::vector<ZipMember>& members) const {
    std::vector<const ZipMember*> order;
    for (const ZipMember& m : members) order.push_back(&m);
    std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->header < b->header; });
    for (std::size_t k = 1; k < order.size(); ++k) {
      if (order[k - 1]->begin + order[k - 1]->packed > order[k]->header) {
        refuse(*order[k], "overlaps member '", order[k - 1]->name, "'");
      }
    }
    std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->name < b->name; });
    const auto twice =
        std::adjacent_find(order.begin(), order.end(), [](auto* a, auto* b) { return a->name == b->name; });
    if (twice != order.end()) refuse(**twice, "is there twice");
  }

  Source& source_;
  const std::string& file_;
  std::uint64_t end_of_members_ = 0;
  std::uint16_t flags_ = 0;
};

}  // namespace

std::vector<ZipMember> read_zip_directory(Source& source) { return DirectoryReader(source).read(); }

std::string wrong_zip_name(std::string_view name) {
  if (name.empty() || name.size() > kZipName) return "has " + text(name.size()) + " bytes, expected 1 to 512";
  if (name.find('\0') != std::string_view::npos || !detail::valid_utf8(name)) return "is not UTF-8 without NUL";
  for (std::string_view rest = name; !rest.empty();) {
    const std::size_t slash = std::min(rest.find('/'), rest.size());
    if (rest.substr(0, slash) == ".." || slash == 0) return "leads out of the archive: '" + std::string(name) + "'";
    rest.remove_prefix(std::min(slash + 1, rest.size()));
  }
  return "";
}

struct ZipMemberSource::Inflate {
  Inflate(Source& source, const ZipMember& m, const std::string& what)
      : archive(source),
        member(m),
        name(what),
        input(static_cast<std::size_t>(std::min<std::uint64_t>(member.packed, 1 << 16))) {
    if (inflateInit2(&stream, -15) != Z_OK) fail<OutOfMemoryError>(name, ": no memory to unpack it");
  }
  Inflate(const Inflate&) = delete;
  Inflate& operator=(const Inflate&) = delete;
  ~Inflate() { inflateEnd(&stream); }

  // Packed bytes that the stream has used.
  [[nodiscard]] std::uint64_t used() const { return taken - stream.avail_in; }
  // Up to n more unpacked bytes; 0 also where more input is needed first.
  std::size_t some(std::uint8_t* out, std::size_t n) {
    if (stream.avail_in == 0) {
      const auto block = static_cast<std::size_t>(std::min<std::uint64_t>(member.packed - taken, input.size()));
      if (block == 0) fail<FormatError>(name, ": its ", member.packed, " bytes end inside of the deflate stream");
      archive.read(member.begin + taken, input.data(), block);
      taken += block;
      stream.next_in = input.data();
      stream.avail_in = static_cast<uInt>(block);
    }
    const auto room = static_cast<uInt>(std::min<std::size_t>(n, std::size_t{1} << 30));
    stream.next_out = out;
    stream.avail_out = room;
    const int rc = ::inflate(&stream, Z_NO_FLUSH);
    ended = rc == Z_STREAM_END;
    if (rc == Z_MEM_ERROR) fail<OutOfMemoryError>(name, ": no memory to unpack it");
    if (!ended && rc != Z_OK && rc != Z_BUF_ERROR) {
      fail<FormatError>(name, ": is damaged near its byte ", used(), ": ", stream.msg ? stream.msg : "bad deflate");
    }
    return room - stream.avail_out;
  }

  Source& archive;
  const ZipMember& member;
  const std::string& name;
  z_stream stream{};
  std::vector<std::uint8_t> input;
  std::uint64_t taken = 0;  // packed bytes that were read
  bool ended = false;
};

ZipMemberSource::ZipMemberSource(Source& archive, const ZipMember& member)
    : Source(archive.name() + ": member '" + member.name + "'"),
      archive_(archive),
      member_(member),
      sum_(static_cast<std::uint32_t>(crc32(0, nullptr, 0))) {
  size_ = member.unpacked;
  if (member.method == kZipDeflated) inflate_ = std::make_unique<Inflate>(archive, member, name());
}
ZipMemberSource::~ZipMemberSource() = default;

void ZipMemberSource::read(std::uint64_t offset, void* out, std::size_t n) {
  if (offset != at_ || n > size_ - at_) fail<InternalError>(name(), ": byte ", offset, " is read after byte ", at_);
  auto* const to = static_cast<std::uint8_t*>(out);
  if (!inflate_) archive_.read(member_.begin + at_, to, n);
  for (std::size_t got = 0; inflate_ && got < n;) {
    if (inflate_->ended) fail<FormatError>(name(), ": unpacks to ", at_ + got, " bytes, expected ", size_);
    got += inflate_->some(to + got, n - got);
  }
  at_ += n;
  if (n > 0) sum_ = static_cast<std::uint32_t>(crc32_z(sum_, to, n));
}

void ZipMemberSource::finish() {
  if (at_ != size_) fail<InternalError>(name(), ": ", at_, " of its ", size_, " bytes were read");
  if (inflate_) {
    std::uint8_t more = 0;
    while (!inflate_->ended) {
      if (inflate_->some(&more, 1) != 0) fail<FormatError>(name(), ": unpacks to more than ", size_, " bytes");
    }
    if (inflate_->used() != member_.packed) {
      fail<FormatError>(name(), ": has ", member_.packed, " bytes, its deflate stream ", inflate_->used());
    }
  }
  if (sum_ != member_.sum) fail<FormatError>(name(), ": its check sum is ", sum_, ", expected ", member_.sum);
}

}  // namespace levin::data
