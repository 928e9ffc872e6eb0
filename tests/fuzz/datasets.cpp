// Readers of data sets, on bytes in memory: a file for each input would take most of a run's time.
#include <zlib.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "data/image.h"
#include "data/readers/cifar.h"
#include "levin/serialize.h"
#include "tests/fuzz/target.h"

namespace levin::fuzz {
namespace {

detail::MemorySource memory(Bytes in) { return {"memory", std::as_bytes(in)}; }
std::string_view text_of(Bytes in) { return {reinterpret_cast<const char*>(in.data()), in.size()}; }

// The CRC-32 of [begin, end), little-endian, after its end.
void correct_sum(std::vector<std::uint8_t>& bytes, std::size_t begin, std::size_t end) {
  if (end + 4 > bytes.size() || end < begin) return;
  const auto sum =
      static_cast<std::uint32_t>(crc32(crc32(0, nullptr, 0), bytes.data() + begin, static_cast<uInt>(end - begin)));
  for (std::size_t k = 0; k < 4; ++k) bytes[end + k] = static_cast<std::uint8_t>(sum >> (8 * k));
}

// The sums of an xz stream's header, first block's header, index and footer: most mutations would end at one of them.
std::vector<std::uint8_t> with_right_xz_sums(Bytes in) {
  std::vector<std::uint8_t> out(in.begin(), in.end());
  constexpr std::size_t kHeader = 12, kFooter = 12;
  if (out.size() < kHeader + kFooter || out[0] != 0xfd || out[1] != '7') return out;
  correct_sum(out, 6, 8);
  const std::size_t block = (std::size_t{out[kHeader]} + 1) * 4;
  correct_sum(out, kHeader, kHeader + block - 4);
  const std::size_t footer = out.size() - kFooter;
  const std::size_t index = (std::size_t{out[footer + 4]} + 1) * 4;
  if (index <= footer) correct_sum(out, footer - index, footer - 4);
  // The footer's sum stands before what it covers.
  const auto sum = static_cast<std::uint32_t>(crc32(crc32(0, nullptr, 0), out.data() + footer + 4, 6));
  for (std::size_t k = 0; k < 4; ++k) out[footer + k] = static_cast<std::uint8_t>(sum >> (8 * k));
  return out;
}

}  // namespace

bool cifar(Bytes in) {
  if (!in.empty() && in[0] >= 'a' && in[0] <= 'z') {
    return !refused([&] {
      expect(data::read_cifar10_classes("memory", text_of(in)).size() == 10, "cifar10_classes gave not ten names");
    });
  }
  constexpr std::uint64_t kMostBytes = 1 << 16, kMemory = 1 << 20;
  const std::vector<std::uint8_t> content = with_right_xz_sums(in);
  return !refused([&] {
    detail::MemorySource source = memory(content);
    const std::vector<std::byte> records = data::read_cifar10(source, kMostBytes, kMemory);
    expect(!records.empty() && records.size() % data::kCifarRecord == 0, "load_cifar10_files gave a part of a record");
    expect(records.size() <= std::max<std::size_t>(kMostBytes, 64 * in.size()), "load_cifar10_files gave too much");
    for (std::size_t at = 0; at < records.size(); at += data::kCifarRecord) {
      expect(records[at] < std::byte{10}, "load_cifar10_files gave a wrong label");
    }
  });
}

bool jpeg(Bytes in) {
  constexpr std::uint64_t kMostPixels = 1 << 12;
  return !refused([&] {
    const Tensor x = data::read_jpeg("memory", text_of(in), kMostPixels);
    expect(x.rank() == 2 || (x.rank() == 3 && x.size(2) == 3), "load_jpeg gave another shape");
    expect(static_cast<std::uint64_t>(x.size(0) * x.size(1)) <= kMostPixels, "load_jpeg gave too many pixels");
    (void)content_hash("", x);
  });
}

}  // namespace levin::fuzz
