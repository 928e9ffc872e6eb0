#include <doctest/doctest.h>
#include <zlib.h>

#include <string>
#include <thread>

#include "data/image.h"
#include "levin/data/readers.h"
#include "levin/memory.h"
#include "levin/serialize.h"
#include "tensor/core/formats_test.h"
#include "tests/skip.h"
#include "tests/temporary.h"
#include "tests/where.h"

using namespace levin;
using namespace levin::data;
using namespace levin::test;

namespace {

// A seed of the fuzz target, made by Pillow.
std::string seed(const std::string& name) {
  return read_file(test::source_dir() + "/tests/fuzz/corpus/jpeg/" + name, 1 << 16);
}
const auto reads = [](detail::Source& s) {
  std::string content(static_cast<std::size_t>(s.size()), '\0');
  s.read(0, content.data(), content.size());
  (void)read_jpeg(s.name(), content);
};
unsigned long checksum(const Tensor& x) { return crc32(0, x.data<std::uint8_t>(), static_cast<uInt>(x.numel())); }

}  // namespace

TEST_CASE("a build without libjpeg refuses a JPEG file by the package's name") {
  if (has_jpeg()) return skip("libjpeg is in this build");
  const TemporaryFolder folder;
  write_file_atomically(folder / "x.jpg", seed("grey"));
  std::string message;
  try {
    (void)load_image(folder / "x.jpg");
  } catch (const UnsupportedError& e) { message = e.what(); }
  CHECK(contains(message, "libjpeg-dev"));
}

TEST_CASE("JPEG files of every kind decode to the pixels that Pillow gives") {
  if (!has_jpeg()) return skip("no libjpeg in this build");
  struct Known {
    const char* name;
    Shape shape;
    unsigned long sum;  // CRC-32 of Pillow's pixels
  };
  const Known all[] = {
      {"grey", {9, 7}, 0xd00ba6f3u},
      {"rgb_444", {8, 8, 3}, 0x54362767u},
      {"rgb_420", {17, 19, 3}, 0x49d76ec7u},
      {"progressive", {16, 16, 3}, 0xc1b9eb54u},
      {"grey_progressive", {12, 12}, 0x3aaeb2f6u},
      {"cmyk", {8, 8, 3}, 0xe87fbd3au},
      {"restart", {24, 24, 3}, 0xc7e7dceeu},
      {"exif", {4, 6, 3}, 0xd089b57bu},  // turned by EXIF, and read as it is stored
      {"rgb_keep", {8, 8, 3}, 0x0b1127e9u},
  };
  const TemporaryFolder folder;
  for (const Known& known : all) {
    CAPTURE(known.name);
    write_file_atomically(folder / known.name, seed(known.name));
    const Tensor x = load_jpeg(folder / known.name);
    CHECK(x.shape() == known.shape);
    CHECK(checksum(x) == known.sum);
    CHECK(checksum(load_image(folder / known.name)) == known.sum);
  }
}

TEST_CASE("a JPEG file that is cut anywhere is refused with its name, not filled with grey") {
  if (!has_jpeg()) return skip("no libjpeg in this build");
  for (const char* name : {"grey", "rgb_420", "progressive", "cmyk", "restart"}) {
    CAPTURE(name);
    const std::string good = seed(name);
    REQUIRE(outcome(good, reads) == Outcome::accepted);
    std::size_t not_refused = 0;
    for (std::size_t n = 0; n < good.size(); ++n) not_refused += outcome(good.substr(0, n), reads) != Outcome::refused;
    CHECK(not_refused == 0);
    CHECK(outcome(good + "bytes after the end", reads) == Outcome::accepted);  // as cameras write
  }
}

TEST_CASE("a JPEG file with any bit flipped is read or refused, nothing else, on any thread") {
  if (!has_jpeg()) return skip("no libjpeg in this build");
  std::thread other([] { check_bit_flips(seed("progressive"), 0, seed("progressive").size(), reads); });
  check_bit_flips(seed("rgb_420"), 0, seed("rgb_420").size(), reads);
  other.join();
  check_mutations(seed("restart"), 3000, {"\xff\xd9", "\xff\xda", "\xff\xc2", std::string("\xff\xff\0\0", 4)}, reads);
}

TEST_CASE("a JPEG header that implies more pixels than its file can hold is refused before memory is taken") {
  if (!has_jpeg()) return skip("no libjpeg in this build");
  std::string huge = seed("grey");
  const std::size_t frame = huge.find("\xff\xc0");
  REQUIRE(frame != std::string::npos);
  huge.replace(frame + 5, 4, "\xfd\xe8\xfd\xe8");  // 65,000 x 65,000
  reset_peak_memory(Device::cpu());
  const std::int64_t before = memory_stats(Device::cpu()).peak;
  CHECK(contains(refusal(huge, reads), "implies 4225000000 bytes for 65000 x 65000 pixels"));
  CHECK(memory_stats(Device::cpu()).peak == before);
  CHECK(contains(refusal("", reads), "is no JPEG file"));
  CHECK(contains(refusal("\xff\xd8\xff\xd9", reads), "is damaged in its header"));
  const TemporaryFolder folder;
  CHECK_THROWS_AS((void)load_jpeg(folder.path()), FileError);
  CHECK_THROWS_AS((void)load_jpeg(folder / "absent.jpg"), FileError);
}
