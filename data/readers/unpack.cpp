#include "data/readers/unpack.h"

#include <algorithm>
#include <array>
#include <new>
#include <stdexcept>

namespace levin::data {
namespace {

// Typed, also for sizes that no vector can have.
void resize(std::vector<std::byte>& bytes, std::uint64_t n, const std::string& file) {
  try {
    bytes.resize(static_cast<std::size_t>(n));
  } catch (const std::exception&) {  // bad_alloc, length_error
    fail<OutOfMemoryError>(file, ": no memory for ", n, " bytes");
  }
}

}  // namespace

bool is_xz(detail::Source& source) {
  constexpr std::array<unsigned char, 6> kMagic{0xfd, '7', 'z', 'X', 'Z', 0};
  std::array<unsigned char, 6> first{};
  if (source.size() >= first.size()) source.read(0, first.data(), first.size());
  return first == kMagic;
}

std::vector<std::byte> read_unpacked(detail::Source& source, std::uint64_t most, std::uint64_t xz_memory) {
  const std::string& file = source.name();
  std::vector<std::byte> bytes;
  const std::unique_ptr<Unpacked> unpacked = is_gzip(source) ? gunzip(source)
                                             : is_xz(source) ? unxz(source, xz_memory)
                                                             : nullptr;
  if (!unpacked) {
    if (source.size() > most) fail<FormatError>(file, ": has ", source.size(), " bytes, expected at most ", most);
    resize(bytes, source.size(), file);
    source.read(0, bytes.data(), bytes.size());
    return bytes;
  }
  constexpr std::uint64_t kFirst = std::uint64_t{1} << 16;
  std::uint64_t got = 0, room = std::min(std::max(kFirst, 2 * std::min(source.size(), most / 2)), most);
  while (true) {
    resize(bytes, room, file);
    got += unpacked->read(bytes.data() + got, static_cast<std::size_t>(room - got));
    if (got < room) break;
    std::byte more{};
    if (room == most) {
      if (unpacked->read(&more, 1) != 0) {
        fail<FormatError>(file, ": unpacks to more than ", most, " bytes, the most that a file of ", source.size(),
                          " bytes may");
      }
      break;
    }
    room = std::min(2 * room, most);
  }
  unpacked->finish();
  bytes.resize(static_cast<std::size_t>(got));
  return bytes;
}

}  // namespace levin::data
