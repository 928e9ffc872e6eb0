// Zip files: their directory and their members' bytes. The format: PKWARE's APPNOTE.TXT.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/files/file.h"

namespace levin::data {

// Signatures, little-endian.
inline constexpr std::uint32_t kZipLocal = 0x04034b50, kZipCentral = 0x02014b50, kZipEnd = 0x06054b50,
                               kZip64End = 0x06064b50, kZip64Locator = 0x07064b50;
inline constexpr std::uint16_t kZipStored = 0, kZipDeflated = 8, kZip64Extra = 1;
inline constexpr std::uint32_t kZip64 = 0xffffffff;  // a size that stands in the zip64 field
inline constexpr std::size_t kZipMembers = 10'000, kZipName = 512;

struct ZipMember {
  std::string name;
  std::uint16_t method = kZipStored;
  std::uint32_t sum = 0;                   // CRC-32 of the unpacked bytes
  std::uint64_t packed = 0, unpacked = 0;  // bytes
  std::uint64_t header = 0, begin = 0;     // of the local header and of the packed bytes, in the file
};

// The members in the directory's order. Throws FormatError unless directory and local headers agree, members do not
// overlap, and each can hold as much as it claims.
[[nodiscard]] std::vector<ZipMember> read_zip_directory(detail::Source& source);

// Empty, or why a member may not have this name.
[[nodiscard]] std::string wrong_zip_name(std::string_view name);

// A member as a source, which is read from its begin to its end, each byte once.
class ZipMemberSource final : public detail::Source {
 public:
  ZipMemberSource(detail::Source& archive, const ZipMember& member);
  ~ZipMemberSource() override;
  ZipMemberSource(const ZipMemberSource&) = delete;
  ZipMemberSource& operator=(const ZipMemberSource&) = delete;
  void read(std::uint64_t offset, void* out, std::size_t n) override;
  // After the last byte: throws FormatError unless check sum and size are right.
  void finish();

 private:
  struct Inflate;
  detail::Source& archive_;
  const ZipMember& member_;
  std::unique_ptr<Inflate> inflate_;
  std::uint64_t at_ = 0;
  std::uint32_t sum_;
};

}  // namespace levin::data
