#include "data/readers/npz.h"

#include <doctest/doctest.h>
#include <zlib.h>

#include <cstring>
#include <functional>

#include "data/readers/zip.h"
#include "levin/memory.h"
#include "levin/serialize.h"
#include "tensor/core/formats_test.h"
#include "tests/temporary.h"
#include "tests/where.h"

using namespace levin;
using namespace levin::data;
using namespace levin::test;

namespace {

const auto reads = [](detail::Source& s) { (void)read_npz(s); };

template <class T>
Tensor tensor(const Shape& shape, DType dtype, const std::vector<T>& values) {
  Tensor x = empty(shape, Device::cpu(), dtype);
  std::memcpy(x.get().storage->data, values.data(), values.size() * sizeof(T));
  return x;
}
template <class T>
std::vector<T> values(const Tensor& x) {
  return {x.data<T>(), x.data<T>() + x.numel()};
}
NamedTensors some() {
  return {{"w", tensor<float>({2, 3}, DType::f32, {1, 2, 3, 4, 5, 6})},
          {"layer/b", tensor<std::int64_t>({}, DType::i64, {-7})},
          {"\u00e9", tensor<std::uint8_t>({0, 5}, DType::u8, {})},
          {"flags", tensor<std::uint8_t>({3}, DType::b8, {1, 0, 1})},
          {"bytes", tensor<std::int8_t>({2}, DType::i8, {-128, 127})},
          {"sound", tensor<std::int16_t>({1, 2}, DType::i16, {-32768, 32767})}};
}
std::string bytes_of(const NamedTensors& tensors, NpzPacking packing, std::uint64_t zip64_from = 0xffffffff) {
  std::string out;
  const NpzParts zip = npz_parts("memory", tensors, packing, zip64_from);
  for (const auto& part : zip.parts) out.append(reinterpret_cast<const char*>(part.data()), part.size());
  return out;
}
NamedTensors parsed(const std::string& bytes, NpzLimits limits = {}) {
  detail::MemorySource source("memory", std::as_bytes(std::span<const char>(bytes)));
  return read_npz(source, limits);
}
void check_equal(const NamedTensors& a, const NamedTensors& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t k = 0; k < a.size(); ++k) {
    CHECK(a[k].first == b[k].first);
    CHECK(content_hash("", a[k].second) == content_hash("", b[k].second));
  }
}
// A seed of the fuzz target.
std::string seed(const std::string& name) {
  return read_file(test::source_dir() + "/tests/fuzz/corpus/npz/" + name, 1 << 16);
}
// The byte after the k-th occurrence of `what`, k from 0, and `offset` more.
std::size_t after(const std::string& s, const std::string& what, std::size_t k, std::size_t offset) {
  std::size_t at = s.find(what);
  while (k-- > 0) at = s.find(what, at + 1);
  REQUIRE(at != std::string::npos);
  return at + offset;
}
const std::string kLocal = "PK\3\4", kCentral = "PK\1\2", kEnd = "PK\5\6";

}  // namespace

TEST_CASE("arrays that NumPy wrote read with their names, dtypes and values, stored and deflated") {
  for (const char* name : {"numpy_stored", "numpy_deflated"}) {
    CAPTURE(name);
    const NamedTensors read = parsed(seed(name));
    REQUIRE(read.size() == 4);
    CHECK(read[0].first == "x");
    CHECK(read[0].second.shape() == Shape{2, 3});
    CHECK(values<float>(read[0].second) == std::vector<float>{0, 1, 2, 3, 4, 5});
    CHECK(read[1].first == "layer/bias");
    CHECK(values<std::int16_t>(read[1].second) == std::vector<std::int16_t>{-1, 300});
    CHECK(read[2].first == "scalar");
    CHECK(read[2].second.shape() == Shape{});
    CHECK(values<double>(read[2].second) == std::vector<double>{2.5});
    CHECK(read[3].first == "columns");  // in Fortran order
    CHECK(values<std::int64_t>(read[3].second) == std::vector<std::int64_t>{0, 1, 2, 3});
  }
}

TEST_CASE("tensors come back from .npz files of both kinds, and the same tensors give the same bytes") {
  const TemporaryFolder folder;
  for (const NpzPacking packing : {NpzPacking::stored, NpzPacking::deflated}) {
    save_npz(folder / "a.npz", some(), packing);
    check_equal(load_npz(folder / "a.npz"), some());
    CHECK(read_file(folder / "a.npz", 1 << 20) == bytes_of(some(), packing));
    check_equal(parsed(bytes_of(some(), packing, 1)), some());    // zip64 in each header
    check_equal(parsed(bytes_of(some(), packing, 300)), some());  // only in some
    CHECK(parsed(bytes_of({}, packing)).empty());
  }
  // Strided tensors are written in order.
  const Tensor x = tensor<float>({2, 3}, DType::f32, {1, 2, 3, 4, 5, 6});
  const NamedTensors columns = parsed(bytes_of({{"t", as_strided(x, {3, 2}, Strides{{1, 3}}, 0)}}, NpzPacking::stored));
  CHECK(values<float>(columns[0].second) == std::vector<float>{1, 4, 2, 5, 3, 6});
  // More than one block of input and output, of bytes that deflate makes longer.
  Tensor noise = empty({300'000}, Device::cpu(), DType::u8);
  std::uint64_t state = 1;
  for (std::int64_t i = 0; i < noise.numel(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    noise.mutable_data<std::uint8_t>()[i] = static_cast<std::uint8_t>(state >> 56);
  }
  check_equal(parsed(bytes_of({{"noise", noise}}, NpzPacking::deflated)), {{"noise", noise}});
  const std::string zeros =
      bytes_of({{"z", tensor<double>({1000}, DType::f64, std::vector<double>(1000))}}, NpzPacking::deflated);
  CHECK(zeros.size() < 400);
}

TEST_CASE("a .npz file cut anywhere, or with any bit flipped, is refused or holds the same values") {
  for (const NpzPacking packing : {NpzPacking::stored, NpzPacking::deflated}) {
    const std::string good = bytes_of({{"w", tensor<float>({3}, DType::f32, {1, 2, 3})}}, packing);
    check_truncations(good, reads);
    std::size_t changed = 0;
    for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
      std::string bad = good;
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
      if (outcome(bad, reads) != Outcome::accepted) continue;
      changed += values<float>(parsed(bad)[0].second) != std::vector<float>{1, 2, 3};
    }
    CHECK(changed == 0);
    CHECK(check_bit_flips(good, 0, good.size(), reads) < 256);  // bits of dates, versions, attributes
  }
  const std::vector<std::string> tokens = {
      kLocal, kCentral, kEnd, "PK\6\6", "PK\6\7", std::string(8, '\xff'), std::string(4, '\0')};
  check_mutations(bytes_of(some(), NpzPacking::deflated), 5000, tokens, reads);
  check_mutations(bytes_of(some(), NpzPacking::stored, 300), 5000, tokens, reads);
}

TEST_CASE("a .npz file whose headers lie is refused by the member's name before memory is taken") {
  const NamedTensors two{{"a", tensor<float>({3}, DType::f32, {1, 2, 3})}, {"b", tensor<float>({1}, DType::f32, {4})}};
  const std::string good = bytes_of(two, NpzPacking::stored);
  const auto patched = [&](std::size_t at, const std::string& bytes) {
    return std::string(good).replace(at, bytes.size(), bytes);
  };
  const auto both = [&](std::size_t member, std::size_t local, std::size_t central, const std::string& bytes) {
    return patched(after(good, kLocal, member, local), bytes)
        .replace(after(good, kCentral, member, central), bytes.size(), bytes);
  };
  REQUIRE(outcome(good, reads) == Outcome::accepted);
  CHECK(contains(refusal("", reads), "is no zip file: it has 0 bytes"));
  CHECK(contains(refusal(std::string(100000, 'x'), reads), "its end has no end record"));
  CHECK(contains(refusal(patched(after(good, kLocal, 1, 30), "c"), reads), "member 'b.npy': its header at byte"));
  CHECK(contains(refusal(both(0, 30, 46, "/"), reads), "a member's name leads out of the archive"));
  CHECK(contains(refusal(both(0, 30, 46, "b"), reads), "member 'b.npy': is there twice"));
  CHECK(contains(refusal(both(0, 30 + 2, 46 + 2, "x"), reads), "member 'a.xpy' is no array"));
  CHECK(contains(refusal(both(0, 30, 46, "\xff"), reads), "is not UTF-8"));
  CHECK(contains(refusal(both(0, 6, 8, std::string("\1\0", 2)), reads), "member 'a.npy': is encrypted"));
  CHECK(contains(refusal(both(0, 8, 10, std::string("\16\0", 2)), reads), "is packed by method 14, expected 0"));
  CHECK(contains(refusal(both(0, 14, 16, "sums"), reads), "its check sum is "));
  CHECK(contains(refusal(both(0, 18, 20, std::string("\7\0\0\0", 4)), reads), "is stored in 7 bytes, expected"));
  // The second entry of the directory points to the first member.
  CHECK(contains(refusal(patched(after(good, kCentral, 1, 42), std::string(4, '\0')), reads), "contradict each other"));
  CHECK(contains(refusal(patched(after(good, kCentral, 1, 42), "\xfe\xff\xff\x7f"), reads), "its header is at byte"));
  CHECK(contains(refusal(good.substr(0, good.size() - 22) + "x" + good.substr(good.size() - 22), reads),
                 "expected to end at byte"));
  CHECK(contains(refusal(patched(good.size() - 12, std::string("\3\0", 2)), reads), "in several parts"));
  CHECK(outcome(patched(good.size() - 2, std::string("\4\0", 2)) + "note", reads) == Outcome::accepted);  // a comment
  // A directory that is longer than its two entries can be: its bytes stand at byte 12 of the end record.
  std::string wide = good;
  wide.insert(good.size() - 22, 400'000, '\0');
  std::uint32_t claimed = 0;
  std::memcpy(&claimed, wide.data() + wide.size() - 10, sizeof claimed);
  claimed += 400'000;
  std::memcpy(wide.data() + wide.size() - 10, &claimed, sizeof claimed);
  CHECK(contains(refusal(wide, reads), "bytes, expected at most 393302"));
  const auto limited = [](detail::Source& s) { (void)read_npz(s, {.unpacked_bytes = 200}); };
  CHECK(contains(refusal(good, limited), "unpack to more than 200 bytes"));
  const std::string zeros =
      bytes_of({{"z", tensor<double>({1000}, DType::f64, std::vector<double>(1000))}}, NpzPacking::deflated);
  // 2 GB in a few hundred bytes.
  std::string bomb = zeros;
  for (const std::size_t at : {after(zeros, kLocal, 0, 22), after(zeros, kCentral, 0, 24)})
    bomb.replace(at, 4, "\0\0\0\x7f", 4);
  reset_peak_memory(Device::cpu());
  const std::int64_t before = memory_stats(Device::cpu()).peak;
  CHECK(contains(refusal(bomb, reads), "bytes of deflate hold at most"));
  CHECK(memory_stats(Device::cpu()).peak == before);
  // Slightly more than deflate gives: the array's own header has the other size.
  std::string more = zeros;
  for (const std::size_t at : {after(zeros, kLocal, 0, 22), after(zeros, kCentral, 0, 24)})
    more[at] = static_cast<char>(more[at] + 8);
  CHECK(contains(refusal(more, reads), "member 'z.npy': the data have 8008 bytes, expected 8000"));
}

TEST_CASE("save_npz refuses tensors and names that load_npz could not read, and leaves no file") {
  const TemporaryFolder folder;
  const std::string path = folder / "x.npz";
  const Tensor x = tensor<float>({1}, DType::f32, {1});
  const auto with_name = [&](const std::string& name) { save_npz(path, {{name, x}}); };
  for (const char* bad : {"/a", "../a", "a/../b", "a//b", "\xff"}) CHECK_THROWS_AS(with_name(bad), ConfigError);
  CHECK_THROWS_AS(with_name(std::string(509, 'x')), ConfigError);
  CHECK_THROWS_AS(with_name(std::string("a\0b", 3)), ConfigError);
  CHECK_THROWS_AS(save_npz(path, {{"a", x}, {"a", x}}), ConfigError);
  CHECK_THROWS_AS(save_npz(path, {{"a", Tensor()}}), ConfigError);
  CHECK_THROWS_AS(save_npz(path, {{"a", empty({1}, Device::cpu(), DType::bf16)}}), DTypeError);
  CHECK_THROWS_AS(save_npz(path, {{"a", empty({1}, Device::meta())}}), UnsupportedError);
  CHECK_THROWS_AS((void)load_npz(path), FileError);
  CHECK_THROWS_AS((void)load_npz(folder.path()), FileError);
  CHECK_THROWS_AS(save_npz(folder / "absent/x.npz", {{"a", x}}), FileError);
}
