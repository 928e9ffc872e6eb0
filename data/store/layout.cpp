#include "data/store/layout.h"

#include <array>
#include <atomic>
#include <cstring>
#include <string_view>

#include "tensor/files/file.h"

namespace levin::data::store {
namespace {

constexpr std::string_view kMagic = "LVNSTORE";
constexpr std::uint32_t kOrder = 0x01020304;
constexpr std::size_t kHash = 32, kLeastEntry = 4 + 4 + 16 + kHash;
constexpr std::size_t kVersionAt = 8, kOrderAt = 12, kBytesAt = 16, kSectionsAt = 24, kTableBytesAt = 32, kHashAt = 40,
                      kTableAt = 80;

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <class T>
void put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}
template <class T>
T get(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::uint64_t aligned(std::uint64_t at, std::size_t alignment) { return (at + alignment - 1) / alignment * alignment; }

// Reads the table without leaving it.
struct Reader {
  std::span<const std::byte> left;
  const std::string& where;
  const std::byte* take(std::uint64_t bytes) {
    if (bytes > left.size()) fail<FormatError>(where, ": the table of sections is cut; make the store again");
    const std::byte* at = left.data();
    left = left.subspan(static_cast<std::size_t>(bytes));
    return at;
  }
  template <class T>
  T number() {
    return get<T>(take(sizeof(T)));
  }
};

}  // namespace

Section section_of(const std::string& name, const Tensor& dense, std::uint64_t offset) {
  const auto bytes = levin::detail::bytes_of(dense);
  return {name, dense.dtype(), dense.shape(), offset, bytes.size(), content_hash(text_of(bytes))};
}
void add_entry(const Section& s, std::string& table) {
  put(table, static_cast<std::uint32_t>(s.name.size()));
  put(table, static_cast<std::uint8_t>(s.dtype));
  put(table, static_cast<std::uint8_t>(s.shape.rank()));
  put(table, std::uint16_t{0});
  put(table, s.offset);
  put(table, s.bytes);
  table += s.hash;
  for (int d = 0; d < s.shape.rank(); ++d) put(table, s.shape[d]);
  table += s.name;
}
void write_header(std::byte* to, std::uint64_t bytes, std::uint64_t sections, std::uint64_t table_at,
                  const std::string& table) {
  std::memcpy(to, kMagic.data(), kMagic.size());
  put(to + kVersionAt, kVersion);
  put(to + kOrderAt, kOrder);
  put(to + kBytesAt, bytes);
  put(to + kSectionsAt, sections);
  put(to + kTableBytesAt, static_cast<std::uint64_t>(table.size()));
  std::memcpy(to + kHashAt, content_hash(table).data(), kHash);
  put(to + kTableAt, table_at);
}

Layout plan(const NamedTensors& tensors, std::size_t alignment) {
  Layout layout;
  std::size_t table = 0;
  for (const auto& [name, t] : tensors) table += kLeastEntry + 8 * static_cast<std::size_t>(t.rank()) + name.size();
  std::uint64_t at = aligned(kHeader + table, alignment);
  for (const auto& [name, t] : tensors) {
    layout.sections.push_back(section_of(name, t, at));
    add_entry(layout.sections.back(), layout.table);
    at = aligned(at + layout.sections.back().bytes, alignment);
  }
  layout.bytes = at;
  return layout;
}

void write(const Layout& plan, const NamedTensors& tensors, std::byte* to) {
  write_header(to, plan.bytes, plan.sections.size(), kHeader, plan.table);
  std::memcpy(to + kHeader, plan.table.data(), plan.table.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto bytes = levin::detail::bytes_of(tensors[i].second);
    if (!bytes.empty()) std::memcpy(to + plan.sections[i].offset, bytes.data(), bytes.size());
  }
}

std::vector<Section> parse(std::span<const std::byte> bytes, const std::string& where) {
  if (bytes.size() < kHeader)
    fail<FormatError>(where, ": ", bytes.size(), " bytes, expected a store's header of ", kHeader);
  const std::byte* const head = bytes.data();
  if (text_of(bytes.first(kMagic.size())) != kMagic) fail<FormatError>(where, ": no store of Levin begins so");
  if (const auto order = get<std::uint32_t>(head + kOrderAt); order != kOrder)
    fail<FormatError>(where, ": the byte order mark is ", order, ", expected ", kOrder,
                      "; make the store on this machine");
  if (const auto version = get<std::uint32_t>(head + kVersionAt); version != kVersion)
    fail<FormatError>(where, ": version ", version, ", expected ", kVersion, "; make the store again");
  if (!is_ready(head)) fail<FormatError>(where, ": the store is not complete; its maker was stopped");
  if (const auto total = get<std::uint64_t>(head + kBytesAt); total != bytes.size())
    fail<FormatError>(where, ": ", bytes.size(), " bytes, expected ", total);
  const auto count = get<std::uint64_t>(head + kSectionsAt), table = get<std::uint64_t>(head + kTableBytesAt),
             table_at = get<std::uint64_t>(head + kTableAt);
  if (table_at < kHeader || table_at > bytes.size() || table > bytes.size() - table_at || count > table / kLeastEntry)
    fail<FormatError>(where, ": ", count, " sections in a table of ", table, " bytes do not fit the store");
  Reader reader{bytes.subspan(static_cast<std::size_t>(table_at), static_cast<std::size_t>(table)), where};
  if (content_hash(text_of(reader.left)) != text_of(bytes.subspan(kHashAt, kHash)))
    fail<FormatError>(where, ": the table of sections does not have its hash; make the store again");
  std::vector<Section> sections;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto name = reader.number<std::uint32_t>();
    const auto dtype = reader.number<std::uint8_t>(), rank = reader.number<std::uint8_t>();
    (void)reader.number<std::uint16_t>();
    Section s;
    s.offset = reader.number<std::uint64_t>();
    s.bytes = reader.number<std::uint64_t>();
    const std::string at = where + ": section " + text(static_cast<std::int64_t>(i));
    if (dtype >= kDTypeCount || rank > kMaxRank)
      fail<FormatError>(at, ": dtype ", int{dtype}, " and rank ", int{rank}, ", expected at most ", kDTypeCount - 1,
                        " and ", kMaxRank);
    s.dtype = static_cast<DType>(dtype);
    s.hash = text_of({reader.take(kHash), kHash});
    std::array<std::int64_t, kMaxRank> sizes{};
    for (std::size_t d = 0; d < rank; ++d) sizes[d] = reader.number<std::int64_t>();
    s.shape = levin::detail::checked_shape(at, {sizes.data(), rank});
    s.name = text_of({reader.take(name), name});
    if (s.bytes != static_cast<std::uint64_t>(s.shape.numel()) * itemsize(s.dtype))
      fail<FormatError>(at, ": ", s.bytes, " bytes for ", s.dtype, " ", s.shape);
    if (s.offset % itemsize(s.dtype) != 0 || s.offset > bytes.size() || s.bytes > bytes.size() - s.offset)
      fail<FormatError>(at, ": bytes ", s.offset, " to ", s.offset + s.bytes, " do not fit a store of ", bytes.size());
    sections.push_back(std::move(s));
  }
  return sections;
}

void check_hash(std::span<const std::byte> bytes, const Section& section, const std::string& where) {
  const std::string found = content_hash(text_of(bytes.subspan(section.offset, section.bytes)));
  if (found != section.hash)
    fail<FormatError>(where, ": section \"", section.name, "\" has hash ", found, ", expected ", section.hash,
                      "; the store is damaged, make it again");
  if (section.dtype != DType::b8) return;
  for (const std::byte b : bytes.subspan(section.offset, section.bytes)) {
    if (b > std::byte{1})
      fail<FormatError>(where, ": section \"", section.name, "\" has a bool of ", static_cast<int>(b),
                        ", expected 0 or 1");
  }
}

bool is_ready(const std::byte* store) {
  return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(const_cast<std::byte*>(store) + kReadyAt))
             .load(std::memory_order_acquire) == 1;
}
void set_ready(std::byte* store) {
  std::atomic_ref(*reinterpret_cast<std::uint32_t*>(store + kReadyAt)).store(1, std::memory_order_release);
}

}  // namespace levin::data::store
