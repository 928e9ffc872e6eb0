#include "data/idx.h"

#include <algorithm>
#include <array>
#include <new>
#include <vector>

#include "data/readers/unpack.h"
#include "levin/data.h"

// The format: two zero bytes, the element type, the rank, a big-endian 32-bit size for each dimension, the elements
// (big-endian, row-major). Files may be gzipped as a whole.
namespace levin::data {
namespace {

using detail::ByteOrder;
using detail::FileType;
using detail::Source;

constexpr int kMaxIdxRank = 4;
// Deflate cannot shrink more than this: a header that claims more is refused before anything is unpacked.
constexpr std::uint64_t kMaxRatio = 1032;

struct KnownType {
  unsigned code;
  FileType type;
};
constexpr KnownType kTypes[] = {
    {0x08, {DType::u8, 1}},  {0x09, {DType::i8, 1}},  {0x0b, {DType::i16, 2}},
    {0x0c, {DType::i32, 4}}, {0x0d, {DType::f32, 4}}, {0x0e, {DType::f64, 8}},
};

struct Header {
  FileType type;
  std::vector<std::int64_t> dims;
};

// `read(out, n)` returns the number of bytes read.
template <class Read>
Header read_header(const std::string& file, const Read& read) {
  std::array<unsigned char, 4> magic{};
  if (read(magic.data(), magic.size()) != magic.size())
    fail<FormatError>(file, ": ends within the 4 bytes of its magic");
  if (magic[0] != 0 || magic[1] != 0) {
    fail<FormatError>(file, ": is no IDX file: it begins with bytes ", unsigned{magic[0]}, " and ", unsigned{magic[1]},
                      ", expected 0 and 0");
  }
  Header h;
  const auto* known = std::find_if(std::begin(kTypes), std::end(kTypes), [&](auto& k) { return k.code == magic[2]; });
  if (known == std::end(kTypes)) {
    fail<FormatError>(file, ": element type is ", unsigned{magic[2]}, ", expected 8, 9, 11, 12, 13 or 14");
  }
  h.type = known->type;
  if (magic[3] < 1 || magic[3] > kMaxIdxRank) {
    fail<FormatError>(file, ": rank is ", unsigned{magic[3]}, ", expected 1 to ", kMaxIdxRank);
  }
  for (int d = 0; d < magic[3]; ++d) {
    std::array<unsigned char, 4> b{};
    if (read(b.data(), b.size()) != b.size()) fail<FormatError>(file, ": ends within the size of dimension ", d);
    h.dims.push_back(static_cast<std::int64_t>(b[0]) << 24 | b[1] << 16 | b[2] << 8 | b[3]);
  }
  return h;
}

Tensor read_packed(Source& source) {
  const std::string& file = source.name();
  const std::unique_ptr<Unpacked> unpacked = gunzip(source);
  const Header h = read_header(file, [&](void* out, std::size_t n) { return unpacked->read(out, n); });
  const Shape shape = detail::checked_shape(file + ":", h.dims);
  const std::uint64_t bytes = static_cast<std::uint64_t>(shape.numel()) * h.type.width;
  if (bytes > source.size() * kMaxRatio) {
    fail<FormatError>(file, ": the header implies ", bytes, " bytes for shape ", shape, ", ", source.size(),
                      " bytes of gzip hold at most ", source.size() * kMaxRatio);
  }
  const auto fill = [&](void* out) {
    const std::size_t got = unpacked->read(out, static_cast<std::size_t>(bytes));
    if (got != bytes) {
      fail<FormatError>(file, ": unpacks to ", got, " bytes of data, expected ", bytes, " for shape ", shape);
    }
    // The stream must end here with its check sum, and the file must end with the stream.
    std::byte more{};
    if (unpacked->read(&more, 1) != 0)
      fail<FormatError>(file, ": unpacks to more than the ", bytes, " bytes its header implies");
    unpacked->finish();
  };
  if (h.type.dtype == DType::u8) {
    Tensor x = empty(shape, Device::cpu(), DType::u8);
    fill(x.get().storage->data);
    return x;
  }
  std::vector<std::byte> data;
  try {
    data.resize(static_cast<std::size_t>(bytes));
  } catch (const std::bad_alloc&) {
    fail<OutOfMemoryError>(file, ": no memory for the ", bytes, " bytes that shape ", shape, " unpacks to");
  }
  fill(data.data());
  detail::MemorySource memory(file, data);
  return detail::read_tensor(memory, file + ":", 0, shape, h.type, ByteOrder::big);
}

}  // namespace

Tensor read_idx(Source& source) {
  const std::string& file = source.name();
  if (is_gzip(source)) return read_packed(source);
  std::uint64_t at = 0;
  const Header h = read_header(file, [&](void* out, std::size_t n) {
    const auto got = static_cast<std::size_t>(std::min<std::uint64_t>(n, source.size() - at));
    source.read(at, out, got);
    at += got;
    return got;
  });
  const Shape shape = detail::checked_shape(file + ":", h.dims);
  const std::uint64_t wanted = static_cast<std::uint64_t>(shape.numel()) * h.type.width, found = source.size() - at;
  if (wanted != found) {
    fail<FormatError>(file, ": the data have ", found, " bytes, expected ", wanted, " for shape ", shape);
  }
  return detail::read_tensor(source, file + ":", at, shape, h.type, ByteOrder::big);
}

Tensor load_idx(const std::string& path) {
  detail::FileSource source(path);
  return read_idx(source);
}

}  // namespace levin::data
