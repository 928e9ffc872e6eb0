// Packed files as their bytes in order, in bounded memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tensor/files/file.h"

namespace levin::data {

// The bytes that a packed file holds.
class Unpacked {
 public:
  virtual ~Unpacked() = default;
  // Fills up to n bytes; fewer only at the end of the stream. Throws FormatError where the stream is damaged.
  virtual std::size_t read(void* out, std::size_t n) = 0;
  // Throws FormatError unless the file ends with the stream, which read() has reached.
  virtual void finish() = 0;
};

// By the first two bytes.
[[nodiscard]] bool is_gzip(detail::Source& source);
[[nodiscard]] bool is_xz(detail::Source& source);
// One gzip member (zlib).
[[nodiscard]] std::unique_ptr<Unpacked> gunzip(detail::Source& source);
// One xz stream (liblzma) with any of its filters, in at most `memory` bytes; 65 MiB suffice for `xz -9`. Throws
// UnsupportedError in a build without liblzma.
inline constexpr std::uint64_t kXzMemory = std::uint64_t{128} << 20;
[[nodiscard]] std::unique_ptr<Unpacked> unxz(detail::Source& source, std::uint64_t memory = kXzMemory);
[[nodiscard]] bool has_lzma();

// All bytes of a file that is plain, gzip or xz. Throws FormatError when it unpacks to more than `most` bytes.
[[nodiscard]] std::vector<std::byte> read_unpacked(detail::Source& source, std::uint64_t most,
                                                   std::uint64_t xz_memory = kXzMemory);

// The packed bytes of a file, in blocks for a library's stream.
class Blocks {
 public:
  explicit Blocks(detail::Source& source);
  [[nodiscard]] std::uint64_t at() const { return at_; }
  [[nodiscard]] std::uint64_t left() const { return source_.size() - at_; }
  [[nodiscard]] const detail::Source& source() const { return source_; }
  // The next block; empty at the end of the file.
  [[nodiscard]] std::span<std::uint8_t> next();

 private:
  detail::Source& source_;
  std::vector<std::uint8_t> buffer_;
  std::uint64_t at_ = 0;
};

}  // namespace levin::data
