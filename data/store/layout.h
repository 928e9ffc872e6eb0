// The bytes of a store: a header, a table of sections, and the sections. Offsets only, no pointers.
//
//   offset  bytes
//        0      8  "LVNSTORE"
//        8      4  version
//       12      4  0x01020304 in the maker's byte order
//       16      8  bytes of the whole store
//       24      8  number of sections
//       32      8  bytes of the table
//       40     32  hash of the table
//       72      4  1 when the store is complete, written last
//       76      4  processes that have opened the store
//       80      8  offset of the table
//       88     40  zeros
//      128         sections, each at a multiple of the alignment, and before or behind them the table: for each section
//                  u32 length of the name, u8 dtype, u8 rank, u16 0, u64 offset, u64 bytes, 32 hash, i64 sizes, name
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "levin/serialize.h"
#include "levin/tensor.h"

namespace levin::data::store {

constexpr std::size_t kHeader = 128, kReadyAt = 72, kOpenedAt = 76;
constexpr std::uint32_t kVersion = 1;

// A tensor in a store.
struct Section {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::uint64_t offset = 0, bytes = 0;
  std::string hash;  // 32 hex digits of its bytes
};
struct Layout {
  std::vector<Section> sections;
  std::string table;
  std::uint64_t bytes = 0;
};

// Where dense tensors on cpu go; computes their hashes.
[[nodiscard]] Layout plan(const NamedTensors& tensors, std::size_t alignment);
// A section of this content, and its entry in a table.
[[nodiscard]] Section section_of(const std::string& name, const Tensor& dense, std::uint64_t offset);
void add_entry(const Section& section, std::string& table);
// Writes a header without the ready flag.
void write_header(std::byte* to, std::uint64_t bytes, std::uint64_t sections, std::uint64_t table_at,
                  const std::string& table);
// Writes all but the ready flag. `to` has plan.bytes zeros.
void write(const Layout& plan, const NamedTensors& tensors, std::byte* to);
// The sections of a complete store. Throws FormatError `where: ...` for other bytes. Reads no section.
[[nodiscard]] std::vector<Section> parse(std::span<const std::byte> bytes, const std::string& where);
// Compares a section with its hash, and bytes of a bool with 0 and 1. Throws FormatError.
void check_hash(std::span<const std::byte> bytes, const Section& section, const std::string& where);
[[nodiscard]] bool is_ready(const std::byte* store);
void set_ready(std::byte* store);

}  // namespace levin::data::store
