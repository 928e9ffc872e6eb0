// Readers of data sets, on bytes in memory: a file for each input would take most of a run's time.
#include <zlib.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "data/image.h"
#include "data/readers/cifar.h"
#include "data/readers/csv.h"
#include "data/readers/npz.h"
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

// The first byte is the schema, the rest the file, in blocks of a record and of the whole.
bool csv(Bytes in) {
  if (in.empty()) return false;
  data::CsvSchema schema;
  const unsigned way = in[0];
  schema.header = (way & 1u) == 0;
  if (way & 2u) schema.delimiter = ';';
  if (way & 4u) schema.quote = '\0';
  if (way & 8u || !schema.header) {
    schema.columns = {{"a", data::CsvKind::f64, {}, {}},
                      {"b", data::CsvKind::category, {}, -1},
                      {"c", data::CsvKind::i64, {}, {}},
                      {"d", data::CsvKind::boolean, {}, 1}};
    if (way & 16u) schema.columns.resize(2);
    if (way & 32u) schema.columns[1].categories = {"x", "y"};
    if (way & 64u) schema.columns[0] = {"a", data::CsvKind::u8, {}, 7};
  }
  return !refused([&] {
    detail::MemorySource source = memory(in.subspan(1));
    const data::CsvTable table = data::read_csv(source, schema, 1);
    expect(table.columns.size() == table.categories.size(), "load_csv gave columns without categories");
    for (std::size_t k = 0; k < table.columns.size(); ++k) {
      const Tensor& x = table.columns[k].second;
      expect(x.numel() == table.columns[0].second.numel(), "load_csv gave columns of several lengths");
      expect(static_cast<std::size_t>(x.numel()) <= in.size(), "load_csv gave more rows than bytes");
      for (std::int64_t i = 0; table.categories[k].size() > 0 && i < x.numel(); ++i) {
        const std::int64_t index = x.data<std::int64_t>()[i];
        expect(index >= -1 && index < static_cast<std::int64_t>(table.categories[k].size()),
               "load_csv gave an index without a word");
      }
      (void)content_hash("", x);
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

bool npz(Bytes in) {
  constexpr std::uint64_t kMostBytes = 1 << 16;
  return !refused([&] {
    detail::MemorySource source = memory(in);
    const NamedTensors read = data::read_npz(source, {.unpacked_bytes = kMostBytes});
    std::uint64_t bytes = 0;
    for (const auto& [name, tensor] : read) {
      bytes += static_cast<std::uint64_t>(tensor.numel()) * itemsize(tensor.dtype());
      (void)content_hash(name, tensor);
    }
    expect(bytes <= 4 * kMostBytes, "load_npz gave more than its limit");
    // What was read can be written, and reads again.
    const data::NpzParts parts = data::npz_parts("memory", read, data::NpzPacking::stored);
    std::vector<std::uint8_t> written;
    for (const auto& part : parts.parts) {
      const auto* begin = reinterpret_cast<const std::uint8_t*>(part.data());
      written.insert(written.end(), begin, begin + part.size());
    }
    detail::MemorySource again = memory(written);
    const NamedTensors second = data::read_npz(again);
    expect(second.size() == read.size(), "save_npz wrote another number of arrays");
    for (std::size_t k = 0; k < read.size(); ++k) {
      expect(second[k].first == read[k].first, "save_npz wrote another name");
      expect(content_hash("", second[k].second) == content_hash("", read[k].second), "save_npz wrote other values");
    }
  });
}

}  // namespace levin::fuzz
